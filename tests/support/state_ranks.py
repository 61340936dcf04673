"""Runs that are saved and resumed through `torch.distributed.checkpoint.state_dict` by the processes of a test."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

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

from mkor_core import MKORH, Preconditioner
from tests.support.sharded_ranks import Network, Place, Training, method, sharded, start

LOSS_FOLLOWER = MKORH(inverse_update_period=2, warmup_steps=7, knee_beta=1.0)
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
]


class Run(Training):
    """A training whose unused layer is frozen, as torch refuses the states of parameters that never had a gradient."""

    def __init__(self, case: str, kind: str, place: Place) -> None:
        self.place, self.is_tensor_parallel = place, False
        self.model = Network(even=False)
        self.model.unused.requires_grad_(False)
        kind = "fsdp" if kind == "hsdp" and place.world < 4 else kind
        self.network = sharded(self.model, kind, place.world)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9)
        self.method = LOSS_FOLLOWER if case == "follows loss" else method(case, place.world)
        owners = True if case.endswith(" by owners") else None
        self.preconditioner = Preconditioner(self.network, self.method, owners=owners).attach(self.optimizer)

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
    run = Run(case, "alone", Place())
    for step in range(STEPS * len(WORLDS)):
        run.step(step)
    return run.end()


def run_leg(rank: int, world: int, folder: str, leg: int) -> None:
    """Resume every run from the leg before, train on, and save; the last leg writes the weights."""
    (Path(folder) / f"ranks{leg}").mkdir(exist_ok=True)
    place = start(rank, world, f"{folder}/ranks{leg}")
    ends: dict[tuple[str, str, bool], Any] = {}
    for kind, case, flat in RUNS:
        options = StateDictOptions(flatten_optimizer_state_dict=flat)
        run = Run(case, kind, place)
        name = f"{folder}/{kind}-{case}-{flat}"
        if leg > 0:
            model = get_model_state_dict(run.network)
            optimizer = get_optimizer_state_dict(run.network, run.optimizer, options=options)
            load(state := {"model": model, "optimizer": optimizer}, checkpoint_id=f"{name}-{leg - 1}")
            set_model_state_dict(run.network, state["model"])
            set_optimizer_state_dict(run.network, run.optimizer, state["optimizer"], options=options)
        for step in range(leg * STEPS, (leg + 1) * STEPS):
            run.step(step)
        model = get_model_state_dict(run.network)
        optimizer = get_optimizer_state_dict(run.network, run.optimizer, options=options)
        save({"model": model, "optimizer": optimizer}, checkpoint_id=f"{name}-{leg}")
        ends[kind, case, flat] = run.end()
    if rank == 0 and leg == len(WORLDS) - 1:
        torch.save(ends, f"{folder}/ends.pt")
    dist.destroy_process_group()


FULL_CASES = ("dense", "window", "kaisa")
FULL_KINDS = ("fsdp", "ddp")


def run_full_saving(rank: int, world: int, folder: str) -> None:
    """Train a leg, and let the first rank save the full state dict, which torch loads in the nested form alone."""
    place = start(rank, world, folder)
    refusals = []
    for kind in FULL_KINDS:
        for case in FULL_CASES:
            run = Run(case, kind, place)
            for step in range(STEPS):
                run.step(step)
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
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, refusals)
    if rank == 0:
        torch.save(everyone, f"{folder}/refusals.pt")
    dist.destroy_process_group()


def run_full_loading(rank: int, world: int, folder: str, *, broadcast: bool) -> None:
    """Resume from full state dicts, read by the first rank or by all."""
    place = start(rank, world, f"{folder}/{broadcast}")
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast)
    ends: dict[tuple[str, str], Any] = {}
    for kind in FULL_KINDS:
        for case in FULL_CASES:
            run = Run(case, kind, place)
            state: dict[str, Any] = {"model": {}, "optimizer": {}}
            if rank == 0 or not broadcast:
                state = torch.load(f"{folder}/{kind}-{case}.pt", weights_only=True)
            set_model_state_dict(run.network, state["model"], options=options)
            set_optimizer_state_dict(run.network, run.optimizer, state["optimizer"], options=options)
            for step in range(STEPS, len(WORLDS) * STEPS):
                run.step(step)
            ends[kind, case] = run.end()
    if rank == 0:
        torch.save(ends, f"{folder}/{broadcast}/ends.pt")
    dist.destroy_process_group()


def run_plain(rank: int, world: int, folder: str) -> None:
    """Load what the first rank saves for all of a run by owners, without and with the other ranks' parts."""
    place = start(rank, world, folder)
    run = Run("window by owners", "ddp", place)
    for step in range(STEPS):
        run.step(step)
    messages = []
    for gathers in (False, True):
        if gathers:
            run.preconditioner.consolidate(0)
        states = [copy.deepcopy(run.optimizer.state_dict()) if rank == 0 else None]
        dist.broadcast_object_list(states, 0)
        other = Run("window by owners", "ddp", place)
        other.model.load_state_dict(run.model.state_dict())
        try:
            other.optimizer.load_state_dict(states[0] or {})
        except ValueError as refused:
            messages.append(str(refused))
    for step in range(STEPS, len(WORLDS) * STEPS):
        other.step(step)
    results = {"messages": messages, "end": other.end()}
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, results)
    if rank == 0:
        torch.save(everyone, f"{folder}/results.pt")
    dist.destroy_process_group()
