"""Texts with the characters of a shell in every place where a user can give one: no command of theirs runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given

from tests.support.experiments import block, make_folder, optimizer, options, write
from tests.support.fork_server import commands_fork
from tests.support.shells import (
    NAMED,
    RAN,
    TEXTS,
    TRIED,
    Ran,
    configure,
    examples,
    planned_jobs,
    recorded,
    refused_in_one_line,
    run_recorded,
)
from tests.support.synthetic import numerics
from tests.support.synthetic_claims import half_precision
from tests.support.synthetic_probes import write_probe, write_probes
from tests.support.tally import count
from workflow.bench import train
from workflow.bench.analysis.captions import from_rst
from workflow.bench.plan.hyperparameters import read_signatures
from workflow.bench.support.config import ROOT, ConfigError
from workflow.cluster import submit

PLAIN = "plainword"
"""A text that is valid everywhere and means nothing to a shell."""


PLACES = (
    *(*NAMED, "results in the file", "title of a tier", "title of an experiment"),
    *("queue", "folder of a cluster"),
)


def does(folder: Path, place: str, text: str) -> Ran | None:
    """Return what the commands of all jobs do with a text in one place; None if it is refused, in one line."""
    try:
        settings = configure(folder, place, text)
    except (OSError, ValueError):  # a file system without names such as this one
        return None
    with refused_in_one_line(SystemExit):
        return run_recorded(planned_jobs(folder, **settings), folder.with_name("place"))
    return None


def surprises(ran: Ran, expected: Ran) -> int:
    """Return the number of commands and files that were not meant, and fail if one that was meant is missing."""
    assert expected.commands - ran.commands == Counter()
    assert expected.files - ran.files == Counter()
    return (ran.commands - expected.commands).total() + (ran.files - expected.files).total()


@pytest.mark.parametrize("place", PLACES)
def test_a_text_is_refused_or_part_of_one_argument(place: str, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("shell") / "folder"
    plain = does(folder, place, PLAIN)
    accepted = 0

    @examples(one_in=25)
    @given(TEXTS)
    def tries(text: str) -> None:
        nonlocal accepted
        count(TRIED)
        ran = does(folder, place, text)
        if ran is not None:
            accepted += 1
            assert plain is not None
            ran_too = surprises(ran, plain.replaced(PLAIN, text))
            count(RAN, ran_too)
            assert ran_too == 0

    tries()
    if place in ("results", "results in the file", "title of a tier", "title of an experiment"):
        assert accepted, "every text was refused"


@examples(one_in=4)
@given(TEXTS)
def test_an_account_is_refused_or_one_word(text: str):
    count(TRIED)
    with pytest.MonkeyPatch.context() as patch, suppress(ValueError), refused_in_one_line(submit.SubmitError):
        patch.setenv(submit.ACCOUNT, text)  # a ValueError if no variable can hold it
        assert recorded([f"qsub -A {submit.account()}"], Path.cwd()) == [["qsub", "-A", text.strip()]]


@examples(one_in=4)
@given(TEXTS)
def test_a_file_of_baselines_is_a_module_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str):
    count(TRIED)
    root = tmp_path_factory.mktemp("root")
    for package in ("baselines", "mkor_core"):
        shutil.copytree(ROOT / package, root / package)
    try:
        shutil.copy(ROOT / "baselines" / "first_order" / "sgd.py", root / "baselines" / f"{text}.py")
    except (OSError, ValueError):  # a file system without names such as this one
        return
    with refused_in_one_line(ConfigError):
        assert text in read_signatures(root)


@examples(one_in=25)
@given(TEXTS)
def test_a_file_to_write_to_is_written_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str):
    """By training itself, which writes it in the end."""
    count(TRIED)
    folder = make_folder(tmp_path_factory.mktemp("out") / "config")
    write(folder, "one", block(optimizer("sgd"), steps=2, evaluate_every=2))
    out = folder.parent / "out"
    out.mkdir()
    code = train.main(["one", "sgd", *options(folder), f"--out={out / 'x'}{text}"])
    assert [file.name for file in out.iterdir()] == ([f"x{text}"] if code == 0 else [])


NASTY = "a'b\"c\\d`touch x`$(touch x)$HOME*?[a]!#&|<>()~%^,:;=@é中😀+.r # c"


def test_a_pipeline_in_a_folder_of_all_characters_ends_well_also_after_a_failed_job(tmp_path: Path):
    """SOAP cannot train on micro-batches; after it has failed, the partial results are drawn."""
    config = make_folder(tmp_path / "config")
    # In the file, because Snakemake changes some texts that --config gives it.
    settings = {"tier": "embedded", "results": NASTY, "hardware": "test"}
    (config / "config.yaml").write_text(yaml.safe_dump(settings))
    tier = config / "tiers" / "embedded.yaml"
    title = "{x} {{ cycler }} {% endraw %}{{ cycler }} $(touch x)"
    tier.write_text(yaml.safe_dump({**yaml.safe_load(tier.read_text()), "title": title}))
    good = block(optimizer("sgd"), optimizer("mkor", base="sgd"), steps=6, evaluate_every=3)
    write(config, "update_rules", good, block(optimizer("soap"), steps=6, evaluate_every=3, micro_batch_size=32))
    results = Path(NASTY, "test", "embedded")
    write_probes(tmp_path / results)
    write_probe(tmp_path / results, "half_precision", half_precision())
    write_probe(tmp_path / results, "numerics", numerics())
    failed = pipeline(tmp_path, "--keep-going")
    assert failed.returncode == 1
    assert f"of partial results in {NASTY}/partial/test/embedded" in failed.stderr
    write(config, "update_rules", good)
    done = pipeline(tmp_path)
    assert done.returncode == 0, done.stderr
    assert title in from_rst((tmp_path / results / "figures" / "fig13_update_rules.rst").read_text())
    assert (tmp_path / results / "report.html").stat().st_size > 0
    assert not (tmp_path / NASTY / "partial").exists()
    surprising = {file.name for file in tmp_path.iterdir()} - {".snakemake", "config", "figures", NASTY}
    count(RAN, len(surprising))
    assert surprising == set()


def pipeline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the pipeline to its report."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "2", "artefacts"]
    return subprocess.run(
        [*command, *arguments, "--config", "config_dir=config"],
        cwd=folder,
        env={**os.environ, **commands_fork(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
