"""Table 1: the published orders of cost of each optimizer, beside measured slopes over a layer's width, and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import footer
from workflow.bench.analysis.fits import power_law, width_law
from workflow.bench.analysis.paper_names import paper_name
from workflow.bench.analysis.wording import number, spans
from workflow.bench.results.sources import NO_SOURCES, from_rows
from workflow.bench.results.tables import NoDataError, Results, published
from workflow.bench.tables._files import write_table
from workflow.bench.tables.table7_memory import sizes

PROBES = ("cost_scaling", "communication", "memory")
PUBLISHED = ("complexity",)

#: Labels in their order; others come after, `FLOOR` last.
_FIRST: Final = ("mkor", "mkor_bfloat16", "mkor_windowed", "hylo", "kaisa", "kaisa_inverse", "kaisa_mem_opt", "eva")
FLOOR: Final = "copy"
_OURS: Final = (
    "optimizer here",
    "factor update: slope over d here",
    "preconditioning: slope over d here",
    "state over the parameters' bytes here",
    "bytes a factor update here",
    "bytes: slope over d here",
)
_THEIRS: Final = {
    "optimizer": "optimizer in the paper",
    "computation": "computation in the paper",
    "memory_overhead": "memory overhead in the paper",
    "communication": "communication in the paper",
}
_BYTES_OF_PAPER: Final = "bytes by the paper's formula"


def slope(times: pd.DataFrame) -> float:
    """The exponent of d in the time of one part (`fits.width_law`); NaN for fewer than two widths."""
    law = width_law(times)
    return float("nan") if law is None else law.exponent


def bytes_by_width(counted: pd.DataFrame) -> pd.Series:
    """What the rank that sends most hands to all collectives in one update, by d, at the fewest workers measured."""
    here = counted[counted["workers"] == counted["workers"].min()]
    return here.groupby(["dimension", "rank"])["bytes"].sum().groupby("dimension").max()


def _communication(counted: pd.DataFrame) -> dict[str, str]:
    if counted.empty:
        return {}
    by_width = bytes_by_width(counted)
    widest = by_width.index.max()
    here = counted[(counted["dimension"] == widest) & (counted["workers"] == counted["workers"].min())]
    law = power_law(list(by_width.index), list(by_width)).exponent if len(by_width) > 1 else float("nan")
    said = here["paper_bytes"].dropna()
    return {
        "bytes a factor update here": f"{by_width[widest]} (d = {widest})",
        "bytes: slope over d here": number(law),
        _BYTES_OF_PAPER: "" if said.empty else f"{int(said.iloc[0])} (d = {widest})",
    }


def _overheads(memory: pd.DataFrame) -> str:
    """The preconditioner's state in units of the parameters' bytes, by workload."""
    parts = []
    for workload, rows in memory.groupby("workload", sort=False):
        found = sizes(rows)
        if found["overhead"] is not None and found["parameters"]:
            parts.append(f"{workload} {number(found['overhead'] / found['parameters'])}")
    return ", ".join(parts)


def _measured(label: str, own: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """One optimizer's cells of ours, and where they come from; own: its rows of each probe."""
    times = own["cost_scaling"]
    return {
        "optimizer here": "memory floor: a copy of [d, d]" if label == FLOOR else label,
        "factor update: slope over d here": number(
            slope(times[times["part"] == ("floor" if label == FLOOR else "factor")])
        ),
        "preconditioning: slope over d here": number(slope(times[times["part"] == "precondition"])),
        "state over the parameters' bytes here": _overheads(own["memory"]),
        **_communication(own["communication"]),
        "data": sum(
            (from_rows(f"probes/{probe}.csv", optimizer=label) for probe, rows in own.items() if not rows.empty),
            NO_SOURCES,
        ),
    }


def _of_paper(paper: pd.DataFrame, name: str) -> dict[str, Any]:
    """The paper's cells of one optimizer; paper: its table by optimizer."""
    cells = {title: str(paper.loc[name, column]) for column, title in _THEIRS.items()}
    return cells | {"data": from_rows("workflow/paper/complexity.csv", optimizer=name)}


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row an optimizer that any of the probes measured; those that only the paper has come last.

    Raises NoDataError where none of the probes has run.
    """
    times = results.probe("cost_scaling")
    counted = results.probe("communication")
    memory = results.probe("memory")
    probes = dict(zip(PROBES, (times, counted, memory), strict=True))
    there = {name: rows for name, rows in probes.items() if not rows.empty}
    if not there:
        raise NoDataError(f"none of {', '.join(f'probes/{name}.csv' for name in PROBES)} in {results.root}.")
    labels = {str(label) for rows in there.values() for label in rows["optimizer"]} - {FLOOR}
    floor = [FLOOR] if (times["optimizer"] == FLOOR).any() else []
    ordered = [label for label in _FIRST if label in labels] + sorted(labels - set(_FIRST)) + floor
    paper = published("complexity", as_text=True).set_index("optimizer", drop=False)
    table = []
    for label in ordered:
        ours = _measured(label, {name: rows[rows["optimizer"] == label] for name, rows in probes.items()})
        name = paper_name(label)
        theirs = _of_paper(paper, name) if name is not None and name in paper.index else {"data": NO_SOURCES}
        table.append(ours | theirs | {"data": ours["data"] + theirs["data"]})
    table += [
        _of_paper(paper, name) for name in paper.index.difference([paper_name(label) for label in ordered], sort=False)
    ]
    notes = [
        "Slopes are exponents of d. The paper's orders: d is a layer's width, b the batch. State: the preconditioner's "
        "in units of the parameters' bytes; for a layer [d, d] the paper's orders are 1 for MKOR (half precision) and "
        "4 for KAISA"
    ]
    if not times.empty:
        notes.append(
            f"Times are geometric means of repeats at d = {spans(times['dimension'])}; the floor is what an update "
            "that makes a new matrix of an old one takes at least"
        )
    if not counted.empty:
        notes.append(
            "Bytes: what the rank that sends most hands to the collectives in one factor update of a layer [d, d], on "
            f"{counted['workers'].min():g} workers; the paper's formula in float32, but for MKOR's half precision"
        )
    return write_table(
        pd.DataFrame(table, columns=[*_OURS, *_THEIRS.values(), _BYTES_OF_PAPER, "data"]),
        folder,
        "table1_complexity",
        title="Orders of cost: measured slopes and bytes beside the paper's",
        caption=footer(
            results,
            pd.concat(there.values(), ignore_index=True),
            notes=notes,
            absent=[f"probe {name}" for name in PROBES if name not in there],
        ),
    )
