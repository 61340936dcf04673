"""Bytes that a factor update sends, counted in the collectives, over layer widths and workers, beside formulas.

``python -m workflow.bench.probes.communication --tier embedded --out communication.csv`` writes one row an optimizer,
width, number of workers, rank and collective. Each measures one step, with its refresh, of one layer ``[d, d]``
without bias on `ROWS` rows a rank, in gloo processes; gradients themselves, which every optimizer exchanges alike, are
left out. Bytes do not depend on the device, so it runs on the CPU at every tier. Columns:

- optimizer: mkor, mkor_bfloat16 (half precision, as the paper assumes), kaisa (COMM-OPT), kaisa_mem_opt (one
  gradient worker), eva, hylo.
- dimension d, workers, rank, collective.
- bytes: the payload that the rank handed to the collective, counted there (`mkor_core.comm.bytes_sent`); a broadcast
  counts at its source.
- predicted_bytes: the same from a formula of d, `ROWS` and the workers (`predicted`), which is this implementation's.
- paper_bytes: what Table 1 of the paper gives for the whole update, in float32, whatever the rank and collective: MKOR
  2d/2, KAISA 4d^2, Eva 2d, HyLo 2bd + b^2 numbers; empty where it gives none.
- hardware, code_fingerprint, git_commit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from baselines import method_class
from mkor_core import Preconditioner, comm
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _ranks

DIMENSIONS: Final = (64, 128, 256, 512, 1024)
WORKERS: Final = (2, 4)
ROWS: Final = 32
NUMBER: Final = 4  # bytes of a float32
COLLECTIVES: Final = ("all_reduce", "all_gather", "broadcast")
METHODS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "mkor": ("mkor", {}),
    "mkor_bfloat16": ("mkor", {"factor_dtype": torch.bfloat16}),
    "kaisa": ("kaisa", {}),
    "kaisa_mem_opt": ("kaisa", {"grad_worker_fraction": 1e-9}),  # max(1, W f) = 1 gradient worker
    "eva": ("eva", {"kl_clip": None}),
    "hylo": ("hylo", {}),
}


class Row(NamedTuple):
    """One rank's bytes in one collective."""

    optimizer: str
    dimension: int
    workers: int
    rank: int
    collective: str
    bytes: int
    predicted_bytes: int
    paper_bytes: int | None
    hardware: str


def predicted(label: str, d: int) -> dict[str, int]:
    """Return the bytes of one layer's factor update by collective: of a rank, or, for a broadcast, of its source.

    MKOR and Eva add mean vectors and a count; in half precision the count goes before. KAISA adds upper triangles of
    two moments and a count, then its owner broadcasts eigenvectors and eigenvalues to the gradient workers, or the
    update to the others. HyLo gathers the rows.
    """
    match label:
        case "mkor" | "eva":
            return {"all_reduce": NUMBER * (2 * d + 1)}
        case "mkor_bfloat16":
            return {"all_reduce": NUMBER + 2 * 2 * d}
        case "kaisa":
            return {"all_reduce": NUMBER * (d * (d + 1) + 1), "broadcast": NUMBER * 2 * (d * d + d)}
        case "kaisa_mem_opt":
            return {"all_reduce": NUMBER * (d * (d + 1) + 1), "broadcast": NUMBER * d * d}
        case "hylo":
            return {"all_gather": NUMBER * 2 * ROWS * d}
    raise ValueError(f"There is no formula for {label!r}; there are {', '.join(METHODS)}.")


def of_paper(label: str, d: int, workers: int) -> int | None:
    """Return the bytes that Table 1 gives, each number a float32; HyLo's b is the global batch."""
    b = ROWS * workers
    numbers = {"mkor_bfloat16": d, "mkor": d, "kaisa": 4 * d * d, "eva": 2 * d, "hylo": 2 * b * d + b * b}
    return NUMBER * numbers[label] if label in numbers else None


Sent = dict[tuple[str, int], dict[str, int]]
"""Bytes by collective, by label and dimension."""


def sent(labels: Sequence[str], dimensions: Sequence[int]) -> Sent:
    """Return what a rank sends in one factor update; runs on every rank."""
    found: Sent = {}
    for label in labels:
        name, values = METHODS[label]
        cls = method_class(name)
        assert cls is not None  # all here are second-order methods
        for d in dimensions:
            torch.manual_seed(0)
            layer = torch.nn.Linear(d, d, bias=False)
            preconditioner = Preconditioner(layer, cls(**values), lr=1.0)
            rows = torch.randn(ROWS, d, generator=torch.Generator().manual_seed(comm.rank()))
            layer(rows).square().mean().backward()
            comm.reset_bytes_sent()
            preconditioner.step()
            found[label, d] = comm.bytes_sent()
            preconditioner.remove()
    return found


def rows(labels: Sequence[str], dimensions: Sequence[int], workers: Iterable[int], hardware: str) -> Iterator[Row]:
    """Yield the rows of some optimizers, widths and numbers of workers."""
    for number in workers:
        by_rank = _ranks.run(number, sent, labels, dimensions)
        for label in labels:
            for d in dimensions:
                formula = predicted(label, d)
                for rank, found in enumerate(by_rank):
                    counted = found[label, d]
                    for collective in COLLECTIVES:
                        # One layer has one owner, the first rank; nobody else is the source of a broadcast.
                        due = 0 if collective == "broadcast" and rank != 0 else formula.get(collective, 0)
                        if counted.get(collective, 0) or due:
                            yield Row(
                                label,
                                d,
                                number,
                                rank,
                                collective,
                                counted.get(collective, 0),
                                due,
                                of_paper(label, d, number),
                                hardware,
                            )


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows."""
    return rows(tuple(METHODS), DIMENSIONS, WORKERS, plan.hardware)


if __name__ == "__main__":
    sys.exit(_command.run("communication", measure))
