"""Figure 9, appendix: a model of 7 billion parameters on 8 to 1,024 GPUs, computed from published link speeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.wording import number
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import Results

PROBES = ("projection",)

SHARDED: Final = "_sharded"
"""The suffix of labels that are trained under ``fully_shard``; others are under DistributedDataParallel."""
SMALL: Final = ("bert_large", "Polaris")
"""The model that fits one GPU, and the system on which its times are drawn."""
LARGE: Final = ("gpt_7b", "DGX H100")
"""The model that does not, and is drawn sharded."""
_TITLED: Final = {SMALL: ("mkor", "kaisa"), LARGE: ("mkor_owners", "kaisa_mem_opt")}
"""Labels whose steps a title gives."""
_NAMES: Final = {"kaisa_mem_opt": "KFAC, MEM-OPT"}
"""Names in a title of labels whose short names say too little."""
_AT: Final = 64
"""GPUs at which texts give the model's times: those of the paper."""
_MODEL: Final[Any] = {"linestyle": page.MODEL_LINE, "linewidth": 1.0, "markersize": 3.2}
_GUIDE: Final[Any] = {"color": page.GUIDE, "linewidth": 0.8}
_CORNER: Final[Any] = {"ha": "right", "va": "top", "color": page.GUIDE}


def make(results: Results, folder: Path) -> list[Path]:
    """Draw a step over the base optimizer's, and the memory and bytes of a rank."""
    rows = results.some_rows("projection")
    figure, ((steps, memory, sent),) = page.new_figure(1, 3, height=2.3)
    rank = _of(rows, LARGE)
    draw_steps(steps, steps_over_base(rows, LARGE), rows)
    steps.set_title("step")
    _lines(memory, rank, "memory_bytes")
    _lines(sent, rank[rank["sent_bytes"] > 0], "sent_bytes")
    exchanged = rank.drop_duplicates("workers").sort_values("workers")
    sent.plot(exchanged["workers"], exchanged["gradient_bytes"], **_GUIDE, linestyle=page.MODEL_LINE)
    at = (1.0, float(exchanged["gradient_bytes"].iloc[0]))
    panels.annotate(sent, "gradients and parameters", at, panels.ROW_AT_EDGE, xytext=(-2, -2.5), **_CORNER)
    capacity = float(rank["gpu_memory_bytes"].iloc[0])
    memory.axhline(capacity, **_GUIDE)
    for panel, title in ((memory, "memory per rank"), (sent, "bytes per step")):
        panel.set_title(title)
        panels.byte_axis(panel)
        _finish(panel, rows)
    legend = page.entries_of(map(variant_of, rank["optimizer"]), linestyle=page.MODEL_LINE)
    legend.append(page.guide_entry(f"base's step; memory of a GPU, {panels.amount(capacity)}", linewidth=0.8))
    text = page.footer(results, rows, notes=[*notes(rows), *_notes(rows)])
    reading = "All of it is computed by a model, without any measurement."
    return page.save(figure, folder, "fig09_model_appendix", legend, text, message(rows, LARGE), reading)


# What the other figures of scaling share


def variant_of(label: str) -> str:
    """Return the label without the suffix for what divides the training, which the panels say."""
    return label.removesuffix(SHARDED).removesuffix("_ddp")


def look_of(label: str) -> styles.MethodStyle:
    """Return the look of an optimizer, whatever divides the training."""
    return styles.style_of(variant_of(label))


def steps_over_base(rows: pd.DataFrame, place: tuple[str, str]) -> pd.DataFrame:
    """Return the rows of the methods of a model on a system, with their steps over the base optimizer's as ``ratio``.

    The times have the bytes that the kernels move, where they are known, and not those of the floor. A method that a
    GPU's memory does not hold has none.
    """
    of_place = _of(rows, place)
    ratios = _over_base(of_place, "step_ms_counted" if has_counted(rows) else "step_ms")
    return ratios[ratios["memory_bytes"] <= ratios["gpu_memory_bytes"]]


def draw_steps(axes: Axes, ratios: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Draw `steps_over_base` over the GPUs of all ``rows``."""
    _lines(axes, ratios, "ratio")
    axes.axhline(1, **_GUIDE)
    axes.set_ylabel("step ÷ base's")
    _finish(axes, rows)


def message(rows: pd.DataFrame, place: tuple[str, str]) -> str:
    """Return a title: steps over the base's with the most GPUs; empty without these rows."""
    ratios = steps_over_base(rows, place)
    most = ratios[ratios["workers"] == ratios["workers"].max()].set_index("optimizer")["ratio"]
    known = {variant_of(str(label)): ratio for label, ratio in most.items()}
    shown = [
        f"{known[label]:.2f} ({_NAMES.get(label, look_of(label).short)})" for label in _TITLED[place] if label in known
    ]
    start = f"{styles.workload_name(place[0])} on {ratios['workers'].max():,} GPUs by a model: a step takes"
    return f"{start} {' and '.join(shown)} times the base optimizer's" if shown else ""


def has_counted(rows: pd.DataFrame) -> bool:
    """Return whether the model has times with the bytes counted from the code; those of earlier versions have none."""
    return "step_ms_counted" in rows and bool(rows["step_ms_counted"].notna().all())


def notes(rows: pd.DataFrame) -> list[str]:
    """Return the caption's sentences on the model."""
    model, system = SMALL
    efficiencies = []
    for label, times in _of(rows, SMALL).groupby("optimizer", sort=False):
        by_gpus = times.set_index("workers")["step_ms"]
        fewest = by_gpus.index.min()
        if _AT in by_gpus:
            efficiency = fewest * by_gpus[fewest] / (_AT * by_gpus[_AT])
            efficiencies.append(f"{look_of(str(label)).name} {number(float(efficiency))}")
    at_floor = _over_base(_of(rows, SMALL), "step_ms")
    most = at_floor[at_floor["workers"] == at_floor["workers"].max()].set_index("optimizer")["ratio"]
    floors = ", ".join(f"{look_of(str(label)).name} {ratio:.2f}" for label, ratio in most.items())
    counted = (
        "steps: with the bytes that this version's kernels move, counted on meta tensors, in the optimizer and its "
        f"base; at the floor, by formulas, {styles.workload_name(model)}'s on {at_floor['workers'].max():,} GPUs take "
        f"{floors} times the base's"
    )
    return [
        "model (dashed, on gray): computed, not measured, from published speeds of GPUs and links "
        "(workflow/systems.yaml) and from operations and bytes counted by formulas; a fixed global batch; nothing "
        "overlaps; 40 % of the peak of matrix products is assumed; one refresh in 10 steps",
        *([counted] if has_counted(rows) else []),
        f"at the floor, efficiency of {styles.workload_name(model)} on {system} at {_AT} GPUs over "
        f"{rows['workers'].min()}: {', '.join(efficiencies)}",
    ]


def _notes(rows: pd.DataFrame) -> list[str]:
    """Return the caption's sentences on the ranks of the large model."""
    whole = rows[
        (rows["workload"] == LARGE[0]) & (rows["system"] == LARGE[1]) & (rows["workers"] == rows["workers"].max())
    ]
    kept = whole[whole["optimizer"].isin(("adamw", "mkor"))].set_index("optimizer")["memory_bytes"]
    sizes = [f"{look_of(str(label)).short} {panels.amount(float(f'{size:.3g}'))}" for label, size in kept.items()]
    return [
        f"{styles.workload_name(LARGE[0])} on {LARGE[1]}, sharded by fully_shard; memory: parameters, gradients and "
        "optimizer state, without activations; bytes: handed to the method's collectives; what needs more than a GPU's "
        "memory has no step",
        *([f"under DistributedDataParallel a rank would keep: {', '.join(sizes)}"] if sizes else []),
    ]


def _of(rows: pd.DataFrame, place: tuple[str, str]) -> pd.DataFrame:
    """Return the rows of a model on a system: sharded ones of the large model, replicated ones of the small one."""
    model, system = place
    chosen = rows[(rows["workload"] == model) & (rows["system"] == system)]
    return chosen[chosen["optimizer"].str.endswith(SHARDED) == (place == LARGE)]


def _over_base(rows: pd.DataFrame, times: str) -> pd.DataFrame:
    """Return the rows of methods, with a column's time over that of the base optimizer, which has no state to keep."""
    is_base = rows["state_bytes"] == 0
    base = rows[is_base].set_index("workers")[times]
    methods = rows[~is_base]
    return methods.assign(ratio=methods[times] / methods["workers"].map(base))


def _lines(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    for label, of_label in rows.groupby("optimizer", sort=False):
        look, line = look_of(str(label)), of_label.sort_values("workers")
        axes.plot(line["workers"], line[column], color=look.color, marker=look.marker, **_MODEL)


def _finish(axes: Axes, rows: pd.DataFrame) -> None:
    gpus = sorted(rows["workers"].unique())
    axes.set_xscale("log", base=2)
    panels.fixed_ticks(axes.xaxis, [*gpus[:-2:2], gpus[-1]])
    axes.set_xlim(gpus[0] / 1.4, gpus[-1] * 1.4)
    axes.set_xlabel("GPUs")
    axes.set_facecolor("#F3F3F3")  # of panels that show a model, and no measurement
