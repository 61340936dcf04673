"""The memory table: what every optimizer keeps, and its overhead over the base optimizer, measured and computed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import footer
from workflow.bench.analysis.paper_names import paper_name
from workflow.bench.analysis.wording import number
from workflow.bench.results.sources import from_rows
from workflow.bench.results.tables import NoDataError, Results, published
from workflow.bench.tables._files import write_table

PROBES = ("memory",)
PUBLISHED = ("memory_gb",)

#: The paper's model that stands beside a workload of the probe.
MODELS: Final = {"bert": "BERT-Large-Uncased", "resnet": "ResNet-50"}
_OURS: Final = (
    "model here",
    "optimizer here",
    "optimizer state here (MB)",
    "computed optimizer state (MB)",
    "overhead over the base here (MB)",
    "computed overhead (MB)",
    "KAISA's overhead over this one's here",
    "overhead over the parameters' bytes here",
    "peak over the base's here (MB)",
)
_PAPER: Final = (
    "model in the paper",
    "optimizer in the paper",
    "memory in the paper (GB)",
    "overhead in the paper (GB)",
)
_STATE: Final = ("first_order_state", "preconditioner_state")
_MEGA: Final = 1e6


def sizes(rows: pd.DataFrame) -> dict[str, float | None]:
    """One optimizer's bytes on one workload, from rows of ``probes/memory.csv``.

    ``state`` and ``overhead`` (the preconditioner's state) as measured and as computed, None where a tensor has no
    formula; ``parameters``; ``peak``, over what the process held before it made the model.
    """

    def total(kinds: tuple[str, ...], column: str) -> float | None:
        found = rows.loc[rows["quantity"].isin(kinds), column]
        return None if found.isna().any() else float(found.sum())

    return {
        "state": total(_STATE, "bytes"),
        "computed state": total(_STATE, "computed_bytes"),
        "overhead": total(_STATE[1:], "bytes"),
        "computed overhead": total(_STATE[1:], "computed_bytes"),
        "parameters": total(("parameters",), "bytes"),
        "peak": total(("peak_over_start",), "bytes"),
    }


def _mega(value: float | None) -> str:
    return "" if value is None else number(value / _MEGA, 4)


def _ratio(numerator: float | None, denominator: float | None) -> str:
    return number(numerator / denominator) if numerator and denominator else ""


def _published(memory: pd.DataFrame, model: str, optimizer: str | None) -> Mapping[str, Any]:
    """The paper's memory of an optimizer, and its overhead over the first-order optimizer of the same model."""
    of_model = memory[memory["model"] == model].set_index("optimizer")["memory_gb"]
    if optimizer is None or optimizer not in of_model:
        return {}
    first_order = of_model[[name for name in ("SGD", "LAMB") if name in of_model]].iloc[0]
    overhead = float(of_model[optimizer] - first_order)
    return dict(zip(_PAPER, (model, optimizer, float(of_model[optimizer]), number(overhead)), strict=True))


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row a workload and optimizer.  Raises NoDataError where the probe has not run."""
    memory = results.probe("memory")
    if memory.empty:
        raise NoDataError(f"no probes/memory.csv in {results.root}: run python -m workflow.bench.probes.memory first.")
    paper = published("memory_gb")
    table: list[dict[str, Any]] = []
    for workload, of_workload in memory.groupby("workload", sort=False):
        found = {str(label): sizes(rows) for label, rows in of_workload.groupby("optimizer", sort=False)}
        base = next((label for label, size in found.items() if size["overhead"] == 0), None)
        base_peak = None if base is None else found[base]["peak"]
        for label, size in found.items():
            theirs = _published(paper, MODELS.get(str(workload), ""), paper_name(label))
            peak = size["peak"]
            ours = (
                workload,
                label,
                _mega(size["state"]),
                _mega(size["computed state"]),
                _mega(size["overhead"]),
                _mega(size["computed overhead"]),
                _ratio(found.get("kaisa", {}).get("overhead"), size["overhead"]),
                _ratio(size["overhead"], size["parameters"]),
                "" if peak is None or base_peak is None else _mega(peak - base_peak),
            )
            beside = (name for name in (base, "kaisa") if name in found)
            named = ", ".join(dict.fromkeys([label, *filter(None, beside)]))
            data = from_rows("probes/memory.csv", workload=workload, optimizer=named)
            if theirs:
                data += from_rows("workflow/paper/memory_gb.csv", model=theirs["model in the paper"])
            table.append({**dict(zip(_OURS, ours, strict=True)), **theirs, "data": data})
    notes = [
        "MB are 10^6 bytes. The overhead is the preconditioner's state: measured, the bytes of its tensors; computed, "
        "from the layers' shapes by each method's formula. The base is the optimizer that the others wrap",
        "A peak is the most at once over two steps; on a CPU it is the process's resident memory, interpreter and "
        "libraries taken off, whose noise is larger than the states of small models",
        "The paper states the whole memory of a GPU: its overhead is that minus the first-order optimizer's. Its MKOR "
        "keeps factors in half precision, as mkor_bfloat16 does",
    ]
    return write_table(
        pd.DataFrame(table, columns=[*_OURS, *_PAPER, "data"]),
        folder,
        "table7_memory",
        title="Memory of every optimizer over its base",
        caption=footer(results, memory, notes=notes),
    )
