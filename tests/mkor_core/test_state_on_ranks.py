"""States kept by `torch.distributed.checkpoint`. Truth: the uninterrupted run on one process, in float64, to 1e-12."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.testing import assert_close

from tests.support.rank_processes import results_of
from tests.support.sharded_ranks import Training

WORLDS = (1, 2, 4, 2, 1)
"""The numbers of ranks of the legs of a run, each resumed from the one before."""
STEPS = 3
"""Of a leg: an odd number, so that a run is interrupted between two updates of every second step."""
CASES = ("dense", "window", "eva", "kaisa", "follows loss", "window by owners")
KINDS = ("fsdp", "hsdp", "ddp")
RUNS = [
    (kind, case, flat)
    for kind in KINDS
    for case in CASES
    for flat in (False, True)
    if kind == "ddp" or (case != "window by owners" and (kind == "fsdp" or case in ("dense", "window")))
    if not flat or (kind, case) in {("fsdp", "dense"), ("ddp", "window by owners")}
]
"""Kinds of parallelism, cases, and whether states are flattened, which test_optimizer_state.py does for all."""


class Run(Training):
    """A training whose unused layer is frozen, as torch refuses the states of parameters that never had a gradient."""

    def __init__(self, case: str, kind: str, rank: int = 0, world: int = 1) -> None:
        super().__init__(case, "fsdp" if kind == "hsdp" and world < 4 else kind, rank, world, freezes=True)

    def step(self, step: int, **options: Any) -> None:
        """Take a step, after a loss that is the same on all ranks, since a state has the losses of one of them."""
        self.preconditioner.observe(2.0**-step)
        super().step(step, **options)

    def end(self) -> dict[str, Any]:
        """Return the weights, and what the preconditioner saves beside its tensors."""
        counters = self.preconditioner.state_dict()
        del counters["layers"]
        return {"weights": self.weights(), **counters}


def train_alone(case: str) -> dict[str, Any]:
    """Return the `Run.end` of an uninterrupted run on one process."""
    run = Run(case, "alone")
    run.train(0, STEPS * len(WORLDS))
    return run.end()


def run_leg(rank: int, world: int, folder: str, leg: int) -> dict[tuple[str, str, bool], Any]:
    """Resume every run from the leg before, train on, and save."""
    ends: dict[tuple[str, str, bool], Any] = {}
    for kind, case, flat in RUNS:
        options = StateDictOptions(flatten_optimizer_state_dict=flat)
        run = Run(case, kind, rank, world)
        name = f"{folder}/{kind}-{case}-{flat}"
        if leg > 0:
            model = get_model_state_dict(run.network)
            optimizer = get_optimizer_state_dict(run.network, run.optimizer, options=options)
            load(state := {"model": model, "optimizer": optimizer}, checkpoint_id=f"{name}-{leg - 1}")
            set_model_state_dict(run.network, state["model"])
            set_optimizer_state_dict(run.network, run.optimizer, state["optimizer"], options=options)
        run.train(leg * STEPS, (leg + 1) * STEPS)
        model = get_model_state_dict(run.network)
        optimizer = get_optimizer_state_dict(run.network, run.optimizer, options=options)
        save({"model": model, "optimizer": optimizer}, checkpoint_id=f"{name}-{leg}")
        ends[kind, case, flat] = run.end()
    return ends


FULL_CASES = ("dense", "window", "kaisa")
FULL_KINDS = ("fsdp", "ddp")


def run_full_saving(rank: int, world: int, folder: str) -> list[str]:
    """Train a leg, and let the first rank save the full state dict, which torch loads in the nested form alone.

    Return what was refused.
    """
    refusals = []
    for kind, case in product(FULL_KINDS, FULL_CASES):
        run = Run(case, kind, rank, world)
        run.train(0, STEPS)
        if kind == "ddp" and case == "kaisa":
            try:
                get_optimizer_state_dict(run.network, run.optimizer, options=StateDictOptions(full_state_dict=True))
            except RuntimeError as refused:
                refusals.append(str(refused))
            run.preconditioner.consolidate(0)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model = get_model_state_dict(run.network, options=options)
        optimizer = get_optimizer_state_dict(run.network, run.optimizer, options=options)
        if rank == 0:
            torch.save({"model": model, "optimizer": optimizer}, f"{folder}/{kind}-{case}.pt")
    return refusals


def run_full_loading(rank: int, world: int, folder: str, broadcast: bool) -> dict[tuple[str, str], Any]:
    """Resume from full state dicts, read by the first rank or by all."""
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast)
    ends: dict[tuple[str, str], Any] = {}
    for kind, case in product(FULL_KINDS, FULL_CASES):
        run = Run(case, kind, rank, world)
        state: dict[str, Any] = {"model": {}, "optimizer": {}}
        if rank == 0 or not broadcast:
            state = torch.load(f"{folder}/{kind}-{case}.pt", weights_only=True)
        set_model_state_dict(run.network, state["model"], options=options)
        set_optimizer_state_dict(run.network, run.optimizer, state["optimizer"], options=options)
        run.train(STEPS, len(WORLDS) * STEPS)
        ends[kind, case] = run.end()
    return ends


def run_plain(rank: int, world: int) -> tuple[list[str], dict[str, Any]]:
    """Load what the first rank saves for all of a run by owners, without and with the other ranks' parts.

    Return what was refused, and the end.
    """
    run = Run("window by owners", "ddp", rank, world)
    run.train(0, STEPS)
    messages = []
    for gathers in (False, True):
        if gathers:
            run.preconditioner.consolidate(0)
        states = [copy.deepcopy(run.optimizer.state_dict()) if rank == 0 else None]
        dist.broadcast_object_list(states, 0)
        other = Run("window by owners", "ddp", rank, world)
        other.model.load_state_dict(run.model.state_dict())
        try:
            other.optimizer.load_state_dict(states[0] or {})
        except ValueError as refused:
            messages.append(str(refused))
    other.train(STEPS, len(WORLDS) * STEPS)
    return messages, other.end()


@pytest.fixture(scope="module")
def legs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """All that ranks do in this file, by leg and rank: processes start once."""
    folder = str(tmp_path_factory.mktemp("legs"))
    return results_of(
        *((world, run_leg, (folder, leg)) for leg, world in enumerate(WORLDS)),
        (4, run_full_saving, (folder,)),
        *((2, run_full_loading, (folder, broadcast)) for broadcast in (False, True)),
        (2, run_plain, ()),
    )


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    return {case: train_alone(case) for case in CASES}


@pytest.mark.parametrize(("kind", "case", "flat"), RUNS)
def test_a_run_that_goes_from_1_to_2_to_4_ranks_and_back_is_the_uninterrupted_one(legs, alone, kind, case, flat):
    """Saved and loaded through get_ and set_optimizer_state_dict, nested and flattened, and nothing else."""
    last_leg = legs[len(WORLDS) - 1]
    end, truth = dict(last_leg[0][kind, case, flat]), dict(alone[case])
    assert_close(end.pop("weights"), truth.pop("weights"), rtol=1e-12, atol=1e-12)
    end.pop("hyperparameters"), truth.pop("hyperparameters")  # KAISA's depend on the number of ranks
    assert end == truth
    assert (truth["switch_step"] is not None) == (case == "follows loss")


@pytest.mark.parametrize("broadcast", [False, True])
@pytest.mark.parametrize("case", FULL_CASES)
@pytest.mark.parametrize("kind", FULL_KINDS)
def test_a_full_state_dict_has_what_other_ranks_keep(legs, alone, kind, case, broadcast):
    """Layers' owners and KAISA's workers keep different parts. On two ranks; the first reads it, or all."""
    end, truth = legs[-2 if broadcast else -3][0][kind, case], alone[case]
    assert_close(end["weights"], truth["weights"], rtol=1e-12, atol=1e-12)
    assert end["step"] == truth["step"]


def test_a_full_state_dict_that_would_lack_a_part_is_refused_in_a_line(legs):
    """Where torch gathers nothing, ranks may call it alone, so that no collective call may be made for them."""
    for refusals in legs[-4]:
        (line,) = refusals
        assert line.startswith("Other ranks keep parts of the preconditioner's state, which a full state dict lacks: ")
        assert "\n" not in line


def test_a_state_that_one_rank_saves_is_refused_by_the_others_unless_it_is_whole(legs, alone):
    """Layers have owners; the first rank keeps its own, and the others' once it has gathered them."""
    (first, _), (second, _) = legs[-1]
    assert first == []
    (line,) = second
    assert "which this rank keeps: call consolidate() on all ranks before one of them saves" in line
    for _, end in legs[-1]:
        assert_close(end["weights"], alone["window by owners"]["weights"], rtol=1e-12, atol=1e-12)
