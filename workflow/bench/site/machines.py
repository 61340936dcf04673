"""The verdicts of several machines side by side, and the times that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from workflow.bench.plan import REFERENCE
from workflow.bench.results.rows import read_verdicts

MEASURED_BY: Final = "machine"
_TIMES: Final = ("measured", "projected")
"""The columns of the hardware table that hold a machine's time; one of them has a text."""
_OF_A_ROW: Final = ("repeats or runs", "reached", "iterations", "iterations measured on", "data")
"""Its columns that tell a machine's measurement and not what was measured."""


@dataclass(frozen=True)
class MachineEntry:
    """One machine's verdicts at a tier."""

    folder: Path
    is_own: bool = False
    """Whether the site is that of its results."""
    is_reference: bool = False
    """Whether other verdicts are compared with these."""

    @property
    def hardware(self) -> str:
        """The name of its hardware."""
        return self.folder.resolve().parent.name

    @property
    def name(self) -> str:
        """The name of its column."""
        return self.hardware + (" (this run)" if self.is_own else " (reference)" if self.is_reference else "")

    @cached_property
    def claims(self) -> Mapping[str, Mapping[str, str]]:
        """Its rows of ``claims.csv`` by id; none if its claims were not decided."""
        return read_verdicts(self.folder)


def gather(results: Path, compared: Iterable[Path]) -> tuple[MachineEntry, ...]:
    """Return this machine and the other folders that have verdicts.

    The committed results of the same hardware are the reference, else the first committed ones.
    """
    own = MachineEntry(results, is_own=True)
    others = [MachineEntry(folder) for folder in compared if folder.resolve() != results.resolve()]
    machines = [machine for machine in others if machine.claims]
    committed = [machine for machine in machines if machine.folder.resolve().is_relative_to(REFERENCE)]
    committed.sort(key=lambda machine: machine.hardware != own.hardware)
    marked = [replace(machine, is_reference=machine is committed[0]) if committed else machine for machine in machines]
    return (own, *marked)


def side_by_side(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the rows of the hardware table with one column of times for each machine."""
    names = list(dict.fromkeys(row[MEASURED_BY] for row in rows))
    merged: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        # What was measured is the key; a machine that measured it too adds a column.
        about = {key: text for key, text in row.items() if key not in (MEASURED_BY, *_TIMES, *_OF_A_ROW)}
        times = merged.setdefault(tuple(about.values()), {**about, **dict.fromkeys(names, "")})
        times[row[MEASURED_BY]] = row["measured"] or (f"{row['projected']} projected" if row["projected"] else "")
    return list(merged.values())
