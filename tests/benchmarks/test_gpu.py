"""The measurements of a GPU, tried out on a CPU: on a bare machine, within a time, chunk by chunk."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager, nullcontext
from unittest.mock import Mock

import pandas as pd
import pytest
import torch

from benchmarks import gpu, gpu_parts, whole_steps
from benchmarks.contenders import OptimizerContender
from benchmarks.gpu import CHUNKS, FIRST, Session, measure_chunk
from benchmarks.gpu_parts import OutOfTimeError
from benchmarks.methods import methods
from benchmarks.models import BLOCKS, narrowed
from workflow.bench.plan import Plan
from workflow.bench.probes._models import precision_of
from workflow.bench.support.config import ROOT

BARE = """
import sys
from importlib.machinery import PathFinder

MISSING = {missing}

find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name.split(".")[0] in MISSING else find_spec(name, *where)
from benchmarks import gpu, gpu_parts, models, steps, whole_steps
from benchmarks.methods import methods
from workflow.bench.probes import cost_scaling, iteration_time, memory, step_breakdown

gpu.methods = lambda chosen=("mkor", "lamb", "soap", "singd"): methods(chosen)
gpu_parts.run_module = lambda *given: ()
models.BLOCKS = models.BLOCKS[:1]
steps.QUICK_MINUTES, whole_steps.ROUNDS, whole_steps.PERIOD = 0.02, (2, 2), 2
whole_steps.LABELS, gpu_parts.PROFILED = ("mkor", "soap"), ("base",)
cost_scaling.REPEATS = 1
for probe in (cost_scaling, iteration_time, memory, step_breakdown):
    probe.OPTIMIZERS = ("base", "mkor") if "base" in probe.OPTIMIZERS else ("mkor",)
sys.exit(gpu.main(["--device", "cpu", "--quick", "--out", sys.argv[1]]))
"""
MISSING = (
    *("pytorch_optimizer", "singd", "timm", "transformers", "torchvision", "tokenizers", "torchmetrics", "jsonschema"),
    *("snakemake", "tqdm", "sklearn", "matplotlib", "seaborn", "accelerate", "lightning"),
)


def session(folder, **changes) -> Session:
    return Session(folder, torch.device("cpu"), True, "test-cpu", **changes)


def test_a_bare_machine_measures_what_it_can_and_says_what_is_missing(tmp_path):
    code = BARE.format(missing=MISSING)
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert f"All {len(CHUNKS)} chunks are in" in process.stdout
    assert "soap on bert" in process.stdout
    assert "the package pytorch_optimizer is not installed" in process.stdout
    assert "the package timm is not installed" in process.stdout
    assert "python -m benchmarks.kernels" in process.stdout
    trials = pd.read_csv(tmp_path / "bench" / "smoke.csv").set_index("optimizer")["status"].to_dict()
    assert trials == {"mkor": "ok", "lamb": "missing", "soap": "missing", "singd": "missing"}
    steps = pd.read_csv(tmp_path / "bench" / "whole_steps.csv").set_index(["workload", "optimizer"])["note"]
    assert steps["resnet", "soap"] == "the package pytorch_optimizer is not installed"
    assert steps["bert", "mkor"] == "the package transformers is not installed"
    assert pd.isna(steps["resnet", "mkor"])
    assert set(pd.read_csv(tmp_path / "bench" / "strides.csv")["stride"]) == {16, 17, 24}
    for probe in ("cost_scaling", "step_breakdown", "iteration_time", "memory"):
        table = pd.read_csv(tmp_path / "probes" / f"{probe}.csv")
        assert "mkor" in set(table["optimizer"])
        # BERT's model is a class of transformers.
        assert "workload" not in table or set(table["workload"]) == {"resnet"}
    left_out = json.loads((tmp_path / "chunks" / "memory_bert.json").read_text())["left_out"]
    assert any("the package transformers is not installed" in line for line in left_out)


def test_models_are_trained_as_at_the_tier(tmp_path):
    plan = Plan.load(tier="single_gpu", results=str(tmp_path), hardware="test-gpu")
    for name, make in gpu.MODELS.items():
        assert make(session(tmp_path)).precision == precision_of(plan, name)
    assert session(tmp_path).plan.tier.name == plan.tier.name
    assert session(tmp_path).plan.tier.title in plan.tier.title


def test_steps_that_were_measured_in_time_are_kept(tmp_path, monkeypatch):
    columns = dict.fromkeys(whole_steps.Row._fields, 1.0) | {"workload": "bert", "optimizer": "mkor", "note": None}

    def measure(makers: object, *given: object):
        if makers == [whole["bert"]]:
            yield whole_steps.Row(**columns)
        else:
            raise OutOfTimeError

    whole = whole_steps.small_models()
    monkeypatch.setattr(whole_steps, "small_models", lambda: whole)
    monkeypatch.setattr(whole_steps, "measure", measure)
    given = session(tmp_path)
    measure_chunk("steps", given)
    assert len(pd.read_csv(tmp_path / "bench" / "whole_steps.csv")) == 1
    assert given.left_out[0].startswith("the rest of the chunk: not measured within")


@pytest.fixture
def stand_ins(monkeypatch):
    """The chunks with rows of their own, of which one fails, one takes too long and one lacks its module."""

    def measured(given: Session):
        yield gpu_parts.MethodTrial("bert", "mkor", "ok", None, None, None, "cpu", "test-cpu", "2.13")

    def too_long(given: Session):
        yield from measured(given)
        time.sleep(10)

    def failing(given: Session):
        raise ValueError("no such kernel")
        yield

    kinds = {"strides": failing, "steps": too_long, "kernels": gpu.kernel_rows}
    for name in FIRST:
        monkeypatch.setitem(CHUNKS, name, CHUNKS[name]._replace(rows=kinds.get(name, measured)))
    monkeypatch.setattr(gpu, "FIRST", FIRST | {"steps": 0.1})
    missing = ModuleNotFoundError("no such module", name="benchmarks.kernels")
    monkeypatch.setattr(gpu_parts, "run_module", Mock(side_effect=missing))


def test_what_is_measured_first_goes_on_after_a_part_that_fails_and_says_so(tmp_path, capsys, stand_ins):
    assert gpu.main(["--first", "--device", "cpu", "--quick", "--out", str(tmp_path)]) == 1
    table = pd.read_csv(tmp_path / "first" / "first.csv").set_index("chunk")
    assert [*table.index] == [*FIRST]
    assert table["status"].to_dict() == {
        **dict.fromkeys(FIRST, "ok"),
        "strides": "failed",
        "steps": "in part",
        "kernels": "in part",
    }
    assert table["rows"].to_dict() == {**dict.fromkeys(FIRST, 1), "strides": 0, "kernels": 0}
    # Rows that were measured in time are kept.
    assert table.loc["steps", "detail"].startswith("the rest of the chunk: not measured within")
    assert len(pd.read_csv(tmp_path / "first" / CHUNKS["steps"].file)) == 1
    assert json.loads((tmp_path / "first" / "chunks" / "steps.json").read_text())["rows"] == 1
    said = capsys.readouterr().out
    assert said.index("strides: 0 rows in") < said.index("profile: 1 rows in")
    last = said[said.index("profile: 1 rows in") :].splitlines()[1:]
    assert [line.split()[0] for line in last[: len(FIRST)]] == [*FIRST]
    assert re.search(r"strides +failed .* the rest of the chunk: failed: no such kernel", "\n".join(last))
    assert "the package benchmarks.kernels is not installed" in "\n".join(last)
    assert not (tmp_path / "chunks").exists()  # the chunks are still to be measured in full


def test_what_is_measured_first_fits_into_ten_minutes():
    assert sum(FIRST.values()) <= 9 * 60
    assert set(FIRST) <= set(CHUNKS)
    assert set(gpu.FIRST_LABELS) <= set(whole_steps.LABELS)


def test_the_kernels_command_gets_a_file_and_its_failure_is_told(tmp_path, monkeypatch):
    calls = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess:
        calls.append((command[1:], options["timeout"]))
        return subprocess.CompletedProcess(command, len(calls) - 1)

    monkeypatch.setattr(gpu_parts.subprocess, "run", run)
    file = tmp_path / "bench" / "kernels.csv"
    for failed in (False, True):
        given = session(tmp_path, seconds=60.0)
        assert list(gpu.kernel_rows(given)) == []
        assert given.failed is failed
    assert calls[0] == (["-m", "benchmarks.kernels", "--out", str(file)], 58.0)
    assert file.parent.is_dir()
    assert "ended with status 1" in given.left_out[0]
    monkeypatch.setattr(gpu_parts.subprocess, "run", Mock(side_effect=subprocess.TimeoutExpired("python", 58.0)))
    given = session(tmp_path, seconds=60.0)
    assert list(gpu.kernel_rows(given)) == []
    assert "took longer than 58 s" in given.left_out[0]


def test_a_profile_has_the_operators_of_one_period(monkeypatch):
    monkeypatch.setattr(gpu_parts, "PERIOD", 2)
    model = whole_steps.small_models()["resnet"]()
    rows = gpu_parts.profile_rows(model, "mkor_w4", torch.device("cpu"), "test-cpu")
    names = {row.name: row.calls for row in rows}
    assert names["Optimizer.step#SGD.step"] == 2
    assert len(rows) <= gpu_parts.LARGEST


def test_another_model_s_rows_stay(tmp_path):
    file = tmp_path / "probes" / "memory.csv"
    row = gpu.memory.Row("bert", "mkor", None, "peak", None, 1, None, "float32", "test-cpu")
    gpu.write_part(file, [row])
    gpu.write_part(file, [row._replace(workload="resnet", bytes=2)])
    gpu.write_part(file, [row._replace(bytes=3)])
    table = pd.read_csv(file)
    assert sorted(zip(table["workload"], table["bytes"], strict=True)) == [("bert", 3), ("resnet", 2)]


def test_a_failure_costs_only_its_own_part_and_the_exit_status(tmp_path, monkeypatch, capsys):
    def broken(*given: object) -> None:
        raise ValueError("no such kernel")

    monkeypatch.setattr(gpu.memory, "OPTIMIZERS", ("base", "mkor"))
    real = gpu.memory.rows
    monkeypatch.setattr(gpu.memory, "rows", lambda *given: broken() if given[1].label == "sgd" else real(*given))
    assert gpu.main(["--device", "cpu", "--quick", "--out", str(tmp_path), "--chunk", "memory_resnet"]) == 1
    assert set(pd.read_csv(tmp_path / "probes" / "memory.csv")["optimizer"]) == {"mkor"}
    said = capsys.readouterr().out
    assert "memory of base on resnet is left out: failed: no such kernel" in said
    assert "Missing: smoke, steps" in said


def test_chunks_are_listed_with_those_that_a_folder_has(tmp_path, capsys):
    (tmp_path / "chunks").mkdir()
    (tmp_path / "chunks" / "steps.json").write_text("{}")
    assert gpu.main(["--list", "--out", str(tmp_path)]) == 0
    lines = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()}
    assert lines == {name: "done" if name == "steps" else "missing" for name in CHUNKS}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--out: must be the folder to write to"),
        (["--out", "{}", "--chunk", "memory"], "chunk = 'memory': unknown; did you mean 'memory_bert'?"),
        (["--out", "{}"], "--device cuda: PyTorch finds no GPU"),
        (["--out", "{}", "--first"], "--device cuda: PyTorch finds no GPU"),
        (["--out", "{}", "--first", "--chunk", "steps", "--device", "cpu"], "--first: has its own chunks"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(arguments, message, tmp_path, capsys):
    if torch.cuda.is_available() and "no GPU" in message:
        pytest.skip("this machine has a GPU")
    assert gpu.main([argument.format(tmp_path) for argument in arguments]) == 1
    assert message in capsys.readouterr().err


CPU, SMALL = torch.device("cpu"), narrowed(BLOCKS[0], 8)
(MKOR,) = methods(["mkor"])


def test_a_trial_of_a_method_compares_its_updates_with_float64():
    row = gpu_parts.trial(MKOR, SMALL, CPU, "test-cpu")
    assert (row.status, row.waits, row.detail) == ("ok", None, None)
    assert row.one_minus_cosine is not None
    assert abs(row.one_minus_cosine) < 1e-6


@pytest.fixture
def pretended_waits(monkeypatch):
    """A step that waits twice, as PyTorch reports it in each of its modes."""
    modes = ["default"]

    @contextmanager
    def sync_debug(mode: str):
        modes.append(mode)
        try:
            yield
        finally:
            modes.pop()

    real = OptimizerContender.give_gradients

    def give_gradients(contender: OptimizerContender) -> None:
        real(contender)
        if modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        if modes[-1] == "warn":
            for _ in range(2):
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("something else", stacklevel=1)

    monkeypatch.setattr(gpu_parts, "_sync_debug", sync_debug)
    monkeypatch.setattr(OptimizerContender, "give_gradients", give_gradients)
    return modes


def test_a_trial_counts_waits_and_names_their_lines(pretended_waits):
    waits = gpu_parts.waits_in_steps(MKOR, SMALL, SMALL.widths[0], CPU)
    assert len(waits) == 2 * 2 * gpu_parts.CYCLES
    assert all(re.fullmatch(r".*test_gpu\.py:\d+", wait) for wait in waits)
    assert pretended_waits == ["default"]


def test_a_trial_without_waits_has_none(monkeypatch):
    monkeypatch.setattr(gpu_parts, "_sync_debug", lambda mode: nullcontext())
    assert gpu_parts.waits_in_steps(MKOR, SMALL, SMALL.widths[0], CPU) == []
