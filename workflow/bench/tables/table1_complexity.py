"""Table 1: the published orders of cost of each optimizer, and measured slopes over a layer's width and bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import footer
from workflow.bench.analysis.fits import power_law, width_law
from workflow.bench.analysis.wording import integer_ranges, number, paper_name
from workflow.bench.results.sources import NO_SOURCES, from_rows
from workflow.bench.results.tables import NoDataError, Results, published
from workflow.bench.tables._files import write_table
from workflow.bench.tables.table7_memory import sizes

PROBES = ("cost_scaling", "communication", "memory")
PUBLISHED = ("complexity",)

_FIRST: Final[tuple[str, ...]] = (
    *("mkor", "mkor_bfloat16", "mkor_windowed", "hylo"),
    *("kaisa", "kaisa_inverse", "kaisa_mem_opt", "eva"),
)
"""The first labels in their order; then come the others, and `FLOOR` last."""
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


def _slope(times: pd.DataFrame) -> str:
    """Return the exponent of d in the time of one part (`fits.width_law`); empty for fewer than two widths."""
    law = width_law(times)
    return number(math.nan if law is None else law.exponent)


def _communication(counted: pd.DataFrame) -> dict[str, str]:
    """Return the cells on one optimizer's bytes: at the largest width, their slope, and by the paper's formula."""
    if counted.empty:
        return {}
    fewest = counted[counted["workers"] == counted["workers"].min()]
    # In all collectives of one update, of the rank that sends most.
    by_width = fewest.groupby(["dimension", "rank"])["bytes"].sum().groupby("dimension").max()
    widest = by_width.index.max()
    exponent = power_law(list(by_width.index), list(by_width)).exponent if len(by_width) > 1 else math.nan
    of_paper = fewest.loc[fewest["dimension"] == widest, "paper_bytes"].dropna()
    return {
        "bytes a factor update here": f"{by_width[widest]} (d = {widest})",
        "bytes: slope over d here": number(exponent),
        _BYTES_OF_PAPER: "" if of_paper.empty else f"{int(of_paper.iloc[0])} (d = {widest})",
    }


def _overheads(memory: pd.DataFrame) -> str:
    """Return one optimizer's preconditioner state in units of the parameters' bytes, by workload."""
    parts = []
    for workload, rows in memory.groupby("workload", sort=False):
        size = sizes(rows)
        if size["overhead"] is not None and size["parameters"]:
            parts.append(f"{workload} {number(size['overhead'] / size['parameters'])}")
    return ", ".join(parts)


def _measured(label: str, probes: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Return the measured cells of one optimizer; probes: the rows of each probe."""
    rows = {probe: frame[frame["optimizer"] == label] for probe, frame in probes.items()}
    times = rows["cost_scaling"]
    updates = times[times["part"] == ("floor" if label == FLOOR else "factor")]
    sources = (from_rows(f"probes/{probe}.csv", optimizer=label) for probe, frame in rows.items() if not frame.empty)
    return {
        "optimizer here": "memory floor: a copy of [d, d]" if label == FLOOR else label,
        "factor update: slope over d here": _slope(updates),
        "preconditioning: slope over d here": _slope(times[times["part"] == "precondition"]),
        "state over the parameters' bytes here": _overheads(rows["memory"]),
        **_communication(rows["communication"]),
        "data": sum(sources, NO_SOURCES),
    }


def _rows(probes: Mapping[str, pd.DataFrame]) -> Iterator[dict[str, Any]]:
    """Yield a row per measured optimizer with the paper's cells, and then the paper's other optimizers."""
    paper = {
        str(row["optimizer"]): {title: row[column] for column, title in _THEIRS.items()}
        | {"data": from_rows("workflow/paper/complexity.csv", optimizer=row["optimizer"])}
        for row in published("complexity", as_text=True).to_dict("records")
    }
    measured = {str(label) for rows in probes.values() for label in rows["optimizer"]}
    # The paper's methods first and in its order, so that the sides can be read across.
    labels = [label for label in _FIRST if label in measured]
    labels += [*sorted(measured - {*_FIRST, FLOOR}), *({FLOOR} & measured)]
    for label in labels:
        ours, theirs = _measured(label, probes), paper.get(paper_name(label) or "", {"data": NO_SOURCES})
        yield ours | theirs | {"data": ours["data"] + theirs["data"]}
    yield from (paper[name] for name in paper if name not in map(paper_name, labels))


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per optimizer that any of the probes measured; those that only the paper has come last."""
    probes = {name: results.probe(name) for name in PROBES}
    measured = {name: rows for name, rows in probes.items() if not rows.empty}
    if not measured:
        raise NoDataError(f"none of {', '.join(f'probes/{name}.csv' for name in PROBES)} in {results.root}.")
    table = pd.DataFrame(_rows(probes), columns=[*_OURS, *_THEIRS.values(), _BYTES_OF_PAPER, "data"])
    absent = [f"probe {name}" for name in PROBES if name not in measured]
    title = "Orders of cost: measured slopes and bytes beside the paper's"
    rows = pd.concat(measured.values(), ignore_index=True)
    text = footer(results, rows, notes=_notes(measured), absent=absent)
    return write_table(table, folder, "table1_complexity", title=title, caption=text)


def _notes(measured: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the sentences of the caption; measured: the rows of the probes that have run."""
    notes = [
        "Slopes are exponents of d. In the paper's orders d is a layer's width and b the batch. State: that of the "
        "preconditioner in units of the parameters' bytes; for a layer [d, d] the paper's orders are 1 for MKOR (half "
        "precision) and 4 for KAISA"
    ]
    if "cost_scaling" in measured:
        widths = integer_ranges(measured["cost_scaling"]["dimension"])
        notes.append(
            f"Times are geometric means of repeats at d = {widths}; the memory floor is the time in which a "
            "matrix is read and another one written"
        )
    if "communication" in measured:
        workers = measured["communication"]["workers"].min()
        notes.append(
            "Bytes: what the rank that sends most hands to the collectives in one factor update of a layer [d, d], on "
            f"{workers:g} workers; the paper's formula is in float32, except for MKOR's half precision"
        )
    return notes
