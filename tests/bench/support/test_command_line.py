"""Numbers on command lines: every numeric option of every command refuses what is no number, or out of its range."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.experiments import block, optimizer, options, write
from tests.support.fuzzing import call
from tests.support.numbers import WRITTEN, within
from workflow.bench import make_artefact, prepare, timing, train, tune
from workflow.bench.support.command_line import real, whole
from workflow.bench.support.config import ROOT

SECONDS = 10.0

COMMANDS = [
    *(f"workflow.bench.{path.stem}" for path in sorted((ROOT / "workflow" / "bench").glob("[!_]*.py"))),
    "workflow.bench.plan.__main__",
    "workflow.bench.data.cifar",
    "workflow.cluster.submit",
]


class _ParserError(BaseException):
    """Carries a command's parser out of its `main`."""


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command's options."""

    def stop(self: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        raise _ParserError(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        with pytest.raises(_ParserError) as caught:
            import_module(command).main([])
    parser = caught.value.args[0]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


@pytest.fixture(scope="module")
def numeric_options() -> list[tuple[str, str]]:
    """Every option that is a number: its command and its name."""
    return [
        (command, action.option_strings[0])
        for command in COMMANDS
        for action in parser_of(command)._actions
        if action.type in (whole, real)
    ]


def test_every_numeric_option_is_read_strictly(numeric_options: list[tuple[str, str]]):
    for command in COMMANDS:
        assert not {int, float} & {action.type for action in parser_of(command)._actions}, command
    assert {command.rpartition(".")[2] for command, _ in numeric_options} == {
        "train",
        "prepare",
        "tune",
        "make_artefact",
        "timing",
    }
    assert len(numeric_options) >= 9


@pytest.fixture
def checked_only(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The arguments of commands that check their options and then do nothing."""
    write(folder, "one", block(optimizer("sgd")))
    metric = {"split": "validation", "metric": "loss"}
    tuning = {"trials": 1, "seed": 9, "metric": metric, "space": {"lr": {"log": [0.1, 1.0]}}}
    write(folder, "two", block(optimizer("sgd"), tuning=tuning))
    monkeypatch.setattr(train, "_train", lambda *_: None)
    monkeypatch.setattr(tune, "_train", lambda *_: True)
    monkeypatch.setattr(tune, "publish", lambda *_: [])
    monkeypatch.setattr(make_artefact, "make", lambda *_: [])
    monkeypatch.setattr(timing, "share_of_others", lambda *_: 0.0)
    monkeypatch.setattr(timing, "run_pipeline", lambda *_: 0)
    monkeypatch.setattr(prepare, "prepare", lambda *_: "done")
    monkeypatch.setattr(prepare, "Vocabulary", lambda **_: None)
    return {
        "workflow.bench.train": ["one", "sgd", *options(folder)],
        "workflow.bench.tune": ["two", *options(folder)],
        "workflow.bench.prepare": [str(tmp_path)],
        "workflow.bench.timing": options(folder),
        "workflow.bench.make_artefact": ["fig01_mkor_diagram", f"--results={tmp_path}"],
    }


@given(data=st.data(), written=WRITTEN)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_number_on_a_command_line_is_accepted_or_refused_by_the_option_s_name(
    data: st.DataObject,
    written: str,
    numeric_options: list[tuple[str, str]],
    checked_only: dict[str, list[str]],
    capsys: pytest.CaptureFixture[str],
):
    command, option = data.draw(st.sampled_from(numeric_options))
    main = import_module(command).main
    with within(SECONDS):
        code, err = call(main, [*checked_only[command], f"{option}={written}"], capsys)
    if code:
        said = err.strip().splitlines()[-1]
        assert option in said
        assert "must be" in said or "no seed of" in said
        assert len(said) < 300
    else:
        assert abs(float(written)) < 1e10
