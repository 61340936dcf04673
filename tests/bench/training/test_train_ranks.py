"""Ranks train like one process, resume bit for bit, agree on how a run ends, and end if one of them is lost."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, strategies
from torch._C._distributed_c10d import HashStore
from torch.testing import assert_close

from tests.support import train_ranks
from tests.support.experiments import TIMES, block, load, make_folder, optimizer, options, rows, write
from tests.support.records import read_metrics, read_summary
from tests.support.train_ranks import (
    IMAGES,
    METHODS,
    SLICED,
    command,
    image_run,
    join_and_train,
    run_of_case,
    slow_command,
    start,
    train_all,
)
from tests.support.trained import SMALL, run_of
from workflow.bench import train
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import ROOT, ConfigError
from workflow.bench.training import checkpoint, ranks, replicas
from workflow.bench.training.launcher import LaunchedRank
from workflow.bench.training.record import RunFolder
from workflow.bench.training.stop_signals import EXIT_RESUMABLE
from workflow.bench.workloads import create
from workflow.bench.workloads.autoencoder import Autoencoder
from workflow.cluster import pilot

PATIENCE = 60.0
"""Seconds until a test gives up on processes."""
BERT: dict[str, Any] = {
    "name": "bert_pretraining",
    "batch_size": 32,
    "layers": 1,
    "hidden_size": 16,
    "heads": 2,
    "vocabulary_size": 256,
    "validation_pairs": 64,
}


class Launched:
    """Ranks that call something with the options of a plan; ``log``: the file that their words go to, by rank."""

    def __init__(self, what: Callable[..., Any], *words: Any, log: Path, size: int = 2) -> None:
        self._log = log
        self.processes = start(size, what, *words, log=log)

    def codes(self) -> list[int | None]:
        """Wait for the ranks, kill those that do not end in time, and return their exit codes."""
        limit = time.monotonic() + PATIENCE
        for rank in self.processes:
            rank.join(max(limit - time.monotonic(), 0.1))
        codes = [rank.exitcode for rank in self.processes]
        for rank in self.processes:
            rank.kill()
        return codes

    def said(self) -> list[str]:
        """Return what each rank has said."""
        return [self._log.with_name(f"{self._log.name}.{rank}").read_text() for rank in range(len(self.processes))]

    def ends_with(self, *codes: int) -> str:
        """Check the exit codes, and return what all ranks have said."""
        assert self.codes() == list(codes), self.said()
        return "".join(self.said())


@pytest.fixture
def launch(folder: Path, tmp_path: Path) -> Callable[..., Launched]:
    """Start two ranks of a command for the label of the experiment ``one`` in ``folder``."""
    numbers = itertools.count()
    return lambda what, *words: Launched(what, *options(folder), *words, log=tmp_path / f"log{next(numbers)}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = make_folder(tmp_path_factory.mktemp("runs") / "config")
    return {case: run_of_case(folder, case) for case in METHODS}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return image_run(make_folder(tmp_path_factory.mktemp("images") / "config"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, runs: dict[str, Any], images: Run) -> dict[int, Path]:
    """Every case of `METHODS`, trained by 1 and 2 ranks, some by 4, and `images` by 2."""
    folders = {size: tmp_path_factory.mktemp(f"ranks{size}") for size in (1, 2, 4)}
    waiting = {
        size: Launched(join_and_train, folders[size], runs, images, log=folders[size] / "log", size=size)
        for size in (2, 4)
    }
    train_all(folders[1], runs)
    for size, launched in waiting.items():
        launched.ends_with(*[0] * size)
    return folders


OF_STATES = ("cosine_left", "cosine_right", "start_weight")
"""Metrics that a rank has only if it has the states of all layers."""


def values(place: RunFolder, *, of_states: bool = True) -> list[float]:
    return [float(row["value"]) for row in read_metrics(place) if of_states or row["metric"] not in OF_STATES]


@pytest.mark.parametrize(
    ("size", "case"), [*((2, case) for case in METHODS), *((4, case) for case in train_ranks.ON_FOUR)]
)
def test_ranks_train_like_one_process(trained: dict[int, Path], runs: dict[str, Any], case: str, size: int):
    """Truth: the same run on one process, in float64."""
    run, places = runs[case], {size: RunFolder(folder / case / "plain") for size, folder in trained.items()}
    truth = checkpoint.load(places[1].weights, run.id)
    for name, tensor in checkpoint.load(places[size].weights, run.id).items():
        assert_close(tensor, truth[name], rtol=1e-9, atol=1e-12, msg=name)
    # KAISA with fewer gradient workers than ranks has not all states anywhere.
    found, alone = (values(places[ranks], of_states=case != "kaisa half") for ranks in (size, 1))
    assert found == pytest.approx(alone, rel=1e-9)
    one, many = (read_summary(places[n]) for n in (1, size))
    assert [many[key] for key in ("switch_step", "steps_done", "parameters")] == [
        one[key] for key in ("switch_step", "steps_done", "parameters")
    ]
    assert many["world_size"] == size
    assert "replicas_differ_after" not in many


def test_a_change_of_one_unit_in_the_last_place_on_one_rank_is_reported(trained: dict[int, Path]):
    """In a weight while a run trains, once, by the first rank; and in a factor."""
    first, second = (json.loads((trained[2] / f"said.{rank}").read_text()) for rank in (0, 1))
    assert first[1:] == second[1:]
    slipped = "ranks differ in the weights inner.0.weight: rank 1 from rank 0"
    advice = "its numbers are not those of one model (docs/distributed.md)"
    assert first[0] == f"warning: after step 4, {slipped}; {advice}\n"
    assert second[0] == first[0]  # the bench gives the other ranks a stream that nobody reads
    assert read_summary(RunFolder(trained[2] / "slipped"))["replicas_differ_after"] == 4
    slipped = "ranks differ in the factor 'left' of inner.6: rank 1 from rank 0"
    assert first[1:] == [None, slipped, None, slipped]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_digest_depends_on_every_number_and_its_place(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replicas, "_NUMBERS_AT_ONCE", 8)
    numbers = (torch.arange(60).view(3, 20) % 3).to(dtype)
    found = {int(replicas.digest(numbers)), int(replicas.digest(numbers.roll(1)))}
    for index in range(60):
        changed = numbers.clone()
        changed.view(-1)[index] = not changed.view(-1)[index]
        found.add(int(replicas.digest(changed)))
    assert len(found) == 62
    assert replicas.digest(numbers.t()) != replicas.digest(numbers)
    assert int(replicas.digest(torch.empty(0, dtype=dtype))) == 0


def test_a_message_names_the_few_ranks_that_differ_from_the_most():
    """Tensors that only some ranks hold, as KAISA's decompositions, are compared among those."""
    alike = [{"w": 1, "x": 2}] * 20
    assert replicas._described(alike) is None
    assert replicas._described([*alike, {"w": 1, "y": 3}, {"w": 1, "y": 3}]) is None
    said = replicas._described([{"w": 7, "x": 2}, *alike, {"w": 8, "x": 3}])
    assert said == "ranks differ in w and 1 more: ranks 0, 21 from ranks 1, 2, 3, 4, 5, 6, 7, 8 and 12 more"


def test_ranks_evaluate_the_first_one_s_model_like_one_process(trained: dict[int, Path], images: Run):
    """Truth: one process with the final weights and running means, which are those of rank 0."""
    place, workload = RunFolder(trained[2] / "images"), create(**IMAGES)
    model = workload.model(0)
    model.load_state_dict(checkpoint.load(place.weights, images.id))
    last = {row["metric"]: float(row["value"]) for row in read_metrics(place) if row["split"] == "validation"}
    truth = workload.evaluate(model)
    assert last["loss"] == pytest.approx(truth["loss"], rel=1e-6)
    assert last["accuracy"] == truth["accuracy"]


class Ended:
    """Stands for the watchdog, whose `end_all` exits the process."""

    def __init__(self, *_: object) -> None: ...

    def end_all(self, problem: BaseException) -> None:
        raise problem


def told_to_nccl(
    monkeypatch: pytest.MonkeyPatch, visible: list[list[str]], local_ranks: list[int], device: str = "cuda"
) -> list[Any]:
    """Return what each rank of one machine tells torch before NCCL connects, or why it ends.

    visible: the UUIDs of the GPUs that each rank sees.
    """
    this = threading.local()
    outcomes: list[Any] = [None] * len(visible)
    store = HashStore()

    def init(*_: object, device_id: torch.device | None, **__: object) -> None:
        outcomes[this.rank] = [*this.chosen, device_id]
        raise InterruptedError

    def be(rank: int) -> None:
        this.rank, this.chosen = rank, []
        place = LaunchedRank(rank=rank, size=len(visible), local_rank=local_ranks[rank])
        try:
            with ranks.joined(place, device):
                pass
        except ConfigError as problem:
            outcomes[rank] = str(problem)
        except InterruptedError:
            pass

    properties = lambda index: SimpleNamespace(uuid=visible[this.rank][index])  # noqa: E731
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(visible[this.rank]))
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: this.chosen.append(gpu))
    monkeypatch.setattr(ranks, "Watchdog", Ended)
    monkeypatch.setattr(ranks, "_meet", lambda _: store)
    monkeypatch.setattr(ranks, "_connect", lambda _: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", init)
    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(len(visible))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return outcomes


def test_ranks_on_gpus_tell_nccl_theirs(monkeypatch: pytest.MonkeyPatch):
    """Whether each sees all GPUs of the machine, or its launcher shows it only one."""
    gpus = [torch.device("cuda", index) for index in range(3)]
    assert told_to_nccl(monkeypatch, [["a", "b", "c"]] * 3, [2, 0, 1]) == [[gpus[i], gpus[i]] for i in (2, 0, 1)]
    assert told_to_nccl(monkeypatch, [["a"], ["b"]], [0, 1]) == [[gpus[0], gpus[0]]] * 2
    assert told_to_nccl(monkeypatch, [["a", "b"]] * 2, [0, 1], "cpu") == [[None]] * 2


@pytest.mark.parametrize(
    ("visible", "local_ranks", "says"),
    [
        ([["a", "b"]] * 3, [0, 1, 2], "rank 2 has the local rank 2, and sees 2 GPUs; start one rank for each GPU"),
        # A wrapper that deals out one GPU to each of more ranks than there are GPUs; two ranks in one MIG slice.
        ([["a"], ["b"], ["a"]], [0, 1, 2], "ranks 0 and 2 have the same GPU, a; start one rank for each GPU, or"),
        ([["MIG-1"]] * 2, [0, 1], "ranks 0 and 1 have the same GPU, MIG-1; start one rank for each GPU, or for each"),
    ],
)
def test_two_ranks_on_one_gpu_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, visible: list[list[str]], local_ranks: list[int], says: str
):
    """NCCL would end with an error that does not name them, or on MIG they would share a slice silently."""
    outcomes = told_to_nccl(monkeypatch, visible, local_ranks)
    assert len({*outcomes}) == 1, outcomes
    assert says in outcomes[0]
    assert "\n" not in outcomes[0]


def test_ranks_whose_networks_do_not_connect_end_with_one_line(monkeypatch: pytest.MonkeyPatch):
    """A network plugin of NCCL that hangs: nothing else would end the job before the queue's time limit."""
    ended, heard = threading.Event(), list[str]()

    class Ending(Ended):
        def end_all(self, problem: BaseException) -> None:
            if isinstance(problem, InterruptedError):
                raise problem
            heard.append(str(problem))
            ended.set()  # the true one exits the process here

    def hang(*_: object, **__: object) -> None:
        assert ended.wait(PATIENCE)
        raise InterruptedError

    monkeypatch.setattr(ranks, "ARRIVAL_TIMEOUT", timedelta(seconds=0.3))
    monkeypatch.setattr(ranks, "Watchdog", Ending)
    monkeypatch.setattr(ranks, "_meet", lambda _: HashStore())
    monkeypatch.setattr(ranks, "_connect", lambda _: None)
    monkeypatch.setattr(ranks, "_own_gpu", lambda *_: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", hang)
    with pytest.raises(InterruptedError), ranks.joined(LaunchedRank(size=2), "cuda"):
        pass
    assert "the 2 ranks met, but did not connect through their networks within 0.005 minutes: NCCL's" in heard[0]
    assert "\n" not in heard[0]


def _over_a_missing_interface(*arguments: str) -> int:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo,nope7"
    return command(*arguments)


def test_a_missing_network_interface_is_named_in_one_line(folder: Path, launch: Callable[..., Launched]):
    """Truth: torch's error names no variable, and the ranks would blame one that was killed."""
    run_of(folder, "sgd")
    (line,) = launch(_over_a_missing_interface, "one", "sgd").ends_with(1, 1).splitlines()
    assert "GLOO_SOCKET_IFNAME: " in line
    assert " has no network interface 'nope7'; it has lo" in line


@given(examples=strategies.integers(0, 10**6), size=strategies.integers(1, 2000))
def test_the_parts_of_ranks_are_all_examples_once(examples: int, size: int):
    parts = [range(examples)[ranks.Ranks(LaunchedRank(rank=rank, size=size)).part(examples)] for rank in range(size)]
    assert parts[0].start == 0
    assert parts[-1].stop == examples
    assert all(first.stop == second.start for first, second in pairwise(parts))
    assert {len(part) for part in parts} <= {examples // size, -(-examples // size)}


@pytest.mark.parametrize(("size", "case"), SLICED)
def test_interrupted_and_resumed_ranks_equal_uninterrupted_ones(
    trained: dict[int, Path], runs: dict[str, Any], case: str, size: int
):
    """Truth: the same ranks without the interruption, bit for bit; each rank has its own dropout."""
    run, whole, sliced = runs[case], *(RunFolder(trained[size] / case / name) for name in ("whole", "sliced"))
    truth = checkpoint.load(whole.weights, run.id)
    for name, tensor in checkpoint.load(sliced.weights, run.id).items():
        assert torch.equal(tensor, truth[name]), name
    assert rows(sliced.metrics, TIMES) == rows(whole.metrics, TIMES)
    summary = read_summary(sliced)
    assert (summary["slices"], summary["steps_done"]) == (2, train_ranks.STEPS)
    assert not sliced.checkpoint.exists()


def test_the_record_has_bytes_and_times_by_rank(trained: dict[int, Path]):
    summary = read_summary(RunFolder(trained[2] / "sgd" / "plain"))
    assert [each["rank"] for each in summary["by_rank"]] == [0, 1]
    assert {each["bytes_sent"]["gradient_all_reduce"] for each in summary["by_rank"]} == {
        train_ranks.STEPS * summary["parameters"] * 8
    }
    for each in summary["by_rank"]:
        assert sum(each["seconds"].values()) == pytest.approx(summary["wall_seconds"], rel=0.5)
    assert summary["peak_memory_bytes"] == max(each["peak_memory_bytes"] for each in summary["by_rank"])


def blocks() -> list[dict[str, Any]]:
    """Return runs of one label: an autoencoder, BERT whose masks give ranks unequal parts of the loss, bfloat16."""
    return [
        block(optimizer("mkor", "all"), workload=SMALL),
        block(optimizer("mkor", "all", lr=0.01), workload=BERT, steps=4, evaluate_every=2),
        block(optimizer("sgd", "all", lr=0.01), workload=BERT, steps=2, evaluate_every=2, micro_batch_size=16),
        block(optimizer("mkor", "all"), workload=SMALL, precision="bfloat16"),
    ]


def test_under_torchrun_and_mpiexec_the_command_publishes_the_rows_of_one_process(folder: Path, tmp_path: Path):
    """Truth: the command on one process."""
    write(folder, "one", *blocks())
    results = {size: tmp_path / f"results{size}" for size in (1, 2, 4)}
    arguments = {
        size: ["one", "all", f"--config-dir={folder}", f"--results={path}", "--hardware=test"]
        for size, path in results.items()
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    two = subprocess.Popen(
        [*torchrun, f"--master-port={train_ranks.free_port()}", "-m", "workflow.bench.train", *arguments[2]],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert train.main(arguments[1]) == 0
    four = Launched(command, *arguments[4], log=tmp_path / "log", size=4)
    four.ends_with(0, 0, 0, 0)
    _, errors = two.communicate(timeout=PATIENCE)
    assert two.returncode == 0, errors
    assert errors.count("finished after") == 4  # one rank prints

    published = {size: rows(path / "test" / "embedded" / "one" / "all.csv") for size, path in results.items()}
    for size in (2, 4):
        for truth, row in zip(published[1], published[size], strict=True):
            rel = 2e-2 if row["run"] == published[1][-1]["run"] else 1e-5  # bfloat16 has three digits
            assert float(row["value"]) == pytest.approx(float(truth["value"]), rel=rel)
            same = set(row) - {"value", *TIMES}
            assert {key: row[key] for key in same} == {key: truth[key] for key in same}
    assert four.said()[1:] == [""] * 3


def until_row(place: RunFolder, number: int) -> None:
    """Wait until a run has this number of rows of losses."""
    losses = lambda: sum(row["metric"] == "loss" for row in read_metrics(place))  # noqa: E731
    limit = time.monotonic() + PATIENCE
    while losses() < number and time.monotonic() < limit:
        time.sleep(0.01)
    assert losses() >= number


@pytest.fixture
def long(folder: Path) -> tuple[Path, RunFolder]:
    """Return a configuration with one run that lasts some seconds, and that run's folder."""
    tier = folder / "tiers" / "embedded.yaml"
    tier.write_text(yaml.safe_dump({**yaml.safe_load(tier.read_text()), "checkpoint_steps": 30}))
    lasts = {"steps": 200, "evaluate_every": 10}
    run = run_of(folder, "kaisa", lasts, inverse_update_period=20, grad_worker_fraction=0.5)
    return folder, RunFolder.of(load(folder).results, run.id)


def test_a_signal_to_one_rank_and_the_death_of_another_change_no_result(
    long: tuple[Path, RunFolder], launch: Callable[..., Launched], tmp_path: Path
):
    """SIGUSR1, then a kill in the next slice, then the remaining steps. Truth: the uninterrupted run, bit for bit.

    Before the last slice, the last checkpoint loses a weight: both ranks resume from the one before.
    """
    _, place = long
    whole = launch(slow_command, "one", "kaisa", f"--results={tmp_path / 'whole'}")
    first = launch(slow_command, "one", "kaisa")
    until_row(place, 5)
    os.kill(first.processes[1].pid or 0, signal.SIGUSR1)
    first.ends_with(EXIT_RESUMABLE, 0)  # rank 0's code is the job's
    assert first.said()[0].endswith("interrupted and saved; the same command resumes it\n")
    summary = read_summary(place)
    assert summary["status"] == "interrupted"
    saved = summary["steps_done"]

    second = launch(slow_command, "one", "kaisa")
    until_row(place, 2 * (saved + 60) // 10)
    second.processes[1].kill()
    killed = time.monotonic()
    assert second.codes()[0] == 1
    assert time.monotonic() - killed < 60
    resuming, lost = second.said()[0].splitlines()
    assert f"resuming from step {saved}" in resuming
    assert lost.endswith("rank 1 is gone (killed?); the same command resumes from the last checkpoint")

    content = checkpoint.load(place.checkpoint, place.path.name)
    last = content["ranks"][0]["account"]["steps_done"]
    assert last % 30 == 0  # a checkpoint by checkpoint_steps
    del content["model"]["0.weight"]
    checkpoint.save(place.checkpoint, place.path.name, last, content, keep_previous=False)
    said = launch(slow_command, "one", "kaisa").ends_with(0, 0)
    assert said.count('"0.weight".; going back to the checkpoint before it, or to the start\n') == 1
    again = int(said.split("resuming from step ")[1].split()[0])
    assert saved < again == last - 30
    whole.ends_with(0, 0)
    (uninterrupted,) = (tmp_path / "whole" / "test" / "embedded" / "runs").iterdir()
    assert rows(place.metrics, TIMES) == rows(RunFolder(uninterrupted).metrics, TIMES)


@pytest.mark.parametrize(
    ("shared", "why"),
    [
        ({"workload": {**SMALL, "batch_size": 127}}, "2 ranks cannot have equal parts of a batch of 127; 1 or 127 can"),
        ({"workload": {**SMALL, "batch_size": 96}, "micro_batch_size": 32}, "parts of 3 micro-batches of 32"),
    ],
)
def test_ranks_that_cannot_share_a_batch_are_refused_in_one_line(
    folder: Path, launch: Callable[..., Launched], shared: dict[str, Any], why: str
):
    run_of(folder, "sgd", shared)
    errors = launch(command, "one", "sgd").ends_with(1, 1)
    assert errors.count("\n") == 1
    assert why in errors


def test_the_pilot_measures_on_ranks_with_as_many_examples_each(folder: Path, launch: Callable[..., Launched]):
    run_of(folder, "sgd")
    launch(_pilot, "--steps", "2").ends_with(0, 0)
    (row,) = rows(load(folder).results / "pilot.csv")
    assert (row["experiment"], row["ranks"], row["examples"]) == ("one", "2", "128")
    assert float(row["step_seconds"]) > 0


def _pilot(*arguments: str) -> int:
    """Be ``python -m workflow.cluster.pilot``."""
    return pilot.main(arguments)


def test_divergence_on_ranks_is_an_outcome(folder: Path, launch: Callable[..., Launched]):
    run_of(folder, "sgd", lr=1e30)
    launch(command, "one", "sgd").ends_with(0, 0)
    (row,) = (row for row in rows(load(folder).results / "one" / "sgd.csv") if row["step"] == "0")
    assert row["status"] == "diverged"


def _run_out_of_memory(mark: Path, *arguments: str) -> int:
    os.environ["MKOR_SAVED"] = str(mark)
    if os.environ["PMI_RANK"] == "1":
        Autoencoder.loss = lambda *_: torch.empty(2**50).sum()  # type: ignore[method-assign]
    return command(*arguments)


def test_lack_of_memory_on_one_rank_is_an_outcome_and_the_job_can_continue(
    folder: Path, launch: Callable[..., Launched], tmp_path: Path
):
    """The others, which wait for that rank, are ended; the same command then continues with the remaining runs."""
    run = run_of(folder, "sgd")
    said = launch(partial(_run_out_of_memory, tmp_path / "mark"), "one", "sgd").ends_with(
        EXIT_RESUMABLE, EXIT_RESUMABLE
    )
    assert (tmp_path / "mark").exists()  # launchers may turn the code into another
    (error,) = said.splitlines()
    assert "rank 1 of 2" in error
    assert "out_of_memory" in error
    assert read_summary(RunFolder.of(load(folder).results, run.id))["status"] == "out_of_memory"
    launch(command, "one", "sgd").ends_with(0, 0)
    assert {row["status"] for row in rows(load(folder).results / "one" / "sgd.csv")} == {"out_of_memory"}


def test_a_checkpoint_of_another_number_of_ranks_is_refused_in_one_line(
    long: tuple[Path, RunFolder], launch: Callable[..., Launched], capsys: pytest.CaptureFixture[str]
):
    folder, place = long
    ranks = launch(slow_command, "one", "kaisa")
    until_row(place, 3)
    os.kill(ranks.processes[0].pid or 0, signal.SIGTERM)
    ranks.ends_with(EXIT_RESUMABLE, 0)
    before = place.checkpoint.read_bytes()
    assert train.main(["one", "kaisa", *options(folder)]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "checkpoint.pt: made by 2 ranks, not by 1" in errors
    assert place.checkpoint.read_bytes() == before


def test_a_rank_without_the_others_reports_it_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run_of(folder, "sgd")
    monkeypatch.setattr(ranks, "ARRIVAL_TIMEOUT", timedelta(seconds=1))
    for key, value in train_ranks.as_mpiexec(0, 2, train_ranks.free_port()).items():
        monkeypatch.setenv(key, value)
    assert train.main(["one", "sgd", *options(folder)]) == 1
    errors = capsys.readouterr().err
    assert "rank 0 of 2: ranks [1] did not connect to 127.0.0.1:" in errors
    assert errors.count("\n") == 1


def test_a_rank_without_heartbeat_ends_the_job():
    """A rank that watches one without heartbeats, in a separate process, which must end."""
    code = (
        "import time; from torch.distributed import TCPStore\n"
        "from workflow.bench.training.launcher import LaunchedRank\n"
        "from workflow.bench.training.watchdog import Watchdog\n"
        "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "own = LaunchedRank(rank=0, size=2, host='127.0.0.1', port=store.port)\n"
        "Watchdog(own, store, beat=0.1, silence=0.5).start()\n"
        "time.sleep(60)"
    )
    called = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert called.returncode == 1
    assert called.stderr.startswith("rank 0 of 2 (")
    assert "no heartbeat from rank 1 for" in called.stderr
    assert called.stderr.count("\n") == 1


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
