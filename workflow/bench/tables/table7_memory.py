"""The memory table: every optimizer's state and its overhead over the base optimizer, measured and computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import footer
from workflow.bench.analysis.wording import number, paper_name
from workflow.bench.results.sources import from_rows
from workflow.bench.results.tables import Results, published
from workflow.bench.tables._files import write_table

PROBES = ("memory",)
PUBLISHED = ("memory_gb",)

MODELS: Final = {"bert": "BERT-Large-Uncased", "resnet": "ResNet-50"}
"""The paper's model that a workload of the probe is compared with."""
_PAPER: Final = (
    "model in the paper",
    "optimizer in the paper",
    "memory in the paper (GB)",
    "overhead in the paper (GB)",
)


def sizes(rows: pd.DataFrame) -> dict[str, float | None]:
    """Return one optimizer's bytes on one workload, from its rows of ``probes/memory.csv``.

    ``state`` and ``overhead`` (the preconditioner's state) are measured; the ``computed`` ones are None if a tensor has
    no formula. ``peak`` does not include the memory of the process before it made the model.
    """

    def total(column: str, *quantities: str) -> float | None:
        sizes = rows.loc[rows["quantity"].isin(quantities), column]
        return None if sizes.isna().any() else float(sizes.sum())

    return {
        "state": total("bytes", "first_order_state", "preconditioner_state"),
        "computed state": total("computed_bytes", "first_order_state", "preconditioner_state"),
        "overhead": total("bytes", "preconditioner_state"),
        "computed overhead": total("computed_bytes", "preconditioner_state"),
        "parameters": total("bytes", "parameters"),
        "peak": total("bytes", "peak_over_start"),
    }


def _mega(value: float | None) -> str:
    return "" if value is None else number(value / 1e6, 4)


def _ratio(numerator: float | None, denominator: float | None) -> str:
    return number(numerator / denominator) if numerator and denominator else ""


def _published(memory: pd.DataFrame, model: str, optimizer: str | None) -> Mapping[str, Any]:
    """Return the paper's memory of an optimizer, and its overhead over the first-order optimizer of the same model."""
    of_model = memory[memory["model"] == model].set_index("optimizer")["memory_gb"]
    if optimizer is None or optimizer not in of_model:
        return dict.fromkeys(_PAPER)
    first_order = of_model[[name for name in ("SGD", "LAMB") if name in of_model]].iloc[0]
    overhead = float(of_model[optimizer] - first_order)
    return dict(zip(_PAPER, (model, optimizer, float(of_model[optimizer]), number(overhead)), strict=True))


def _rows(workload: str, memory: pd.DataFrame, paper: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield one row per optimizer of a workload; memory: the workload's rows of the probe."""
    by_label = {str(label): sizes(rows) for label, rows in memory.groupby("optimizer", sort=False)}
    base = next((label for label, size in by_label.items() if size["overhead"] == 0), None)
    base_peak = None if base is None else by_label[base]["peak"]
    for label, size in by_label.items():
        peak = size["peak"]
        ours = {
            "model here": workload,
            "optimizer here": label,
            "optimizer state here (MB)": _mega(size["state"]),
            "computed optimizer state (MB)": _mega(size["computed state"]),
            "overhead over the base here (MB)": _mega(size["overhead"]),
            "computed overhead (MB)": _mega(size["computed overhead"]),
            "KAISA's overhead over this one's here": _ratio(
                by_label.get("kaisa", {}).get("overhead"), size["overhead"]
            ),
            "overhead over the parameters' bytes here": _ratio(size["overhead"], size["parameters"]),
            "peak over the base's here (MB)": "" if peak is None or base_peak is None else _mega(peak - base_peak),
        }
        theirs = _published(paper, MODELS.get(workload, ""), paper_name(label))
        compared = dict.fromkeys(name for name in (label, base, "kaisa") if name in by_label)
        data = from_rows("probes/memory.csv", workload=workload, optimizer=", ".join(map(str, compared)))
        if theirs["model in the paper"]:
            data += from_rows("workflow/paper/memory_gb.csv", model=theirs["model in the paper"])
        yield {**ours, **theirs, "data": data}


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per workload and optimizer."""
    memory = results.some_rows("memory")
    paper = published("memory_gb")
    rows = [
        row for workload, rows in memory.groupby("workload", sort=False) for row in _rows(str(workload), rows, paper)
    ]
    notes = [
        "MB are 10^6 bytes. The overhead is the preconditioner's state: measured as the bytes of its tensors, computed "
        "from the layers' shapes by each method's formula. The base is the optimizer that the others wrap",
        "The peak is the largest memory over two steps; on a CPU it is the process's resident memory without the "
        "interpreter and the libraries, whose noise is larger than the states of small models",
        "The paper states the whole memory of a GPU; its overhead is that minus the first-order optimizer's. Its MKOR "
        "keeps factors in half precision, as mkor_bfloat16 does",
    ]
    title, text = "Memory of every optimizer over its base", footer(results, memory, notes=notes)
    return write_table(pd.DataFrame(rows), folder, "table7_memory", title=title, caption=text)
