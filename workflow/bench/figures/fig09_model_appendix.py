"""Figure 9, appendix: a model of 7 billion parameters on 8 to 1,024 GPUs, computed from published link speeds.

Every line is a model's: dashed at the floor, and dotted with the bytes that the code's kernels move.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd
from matplotlib.artist import Artist
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
_AT: Final = 64
"""GPUs at which texts give the model's times: those of the paper."""
_MODEL: Final[Any] = {"linestyle": page.MODEL_LINE, "linewidth": 1.0, "markersize": 3.2}
_COUNTED_LINE: Final = (0, (1, 1.2))
"""The line of times with counted bytes."""
_GUIDE: Final[Any] = {"color": page.GUIDE, "linewidth": 0.8}
_CORNER: Final[Any] = {"ha": "right", "va": "top", "color": page.GUIDE}


def make(results: Results, folder: Path) -> list[Path]:
    """Draw a step over the base optimizer's, and the memory and bytes of a rank."""
    rows = results.some_rows("projection")
    figure, ((steps, memory, sent),) = page.new_figure(1, 3, height=2.5)
    draw_steps(steps, rows, LARGE)
    rank = _of(rows, LARGE, sharded=True)
    _lines(memory, rank, "memory_bytes")
    _lines(sent, rank[rank["sent_bytes"] > 0], "sent_bytes")
    exchanged = rank.drop_duplicates("workers").sort_values("workers")
    sent.plot(exchanged["workers"], exchanged["gradient_bytes"], **_GUIDE, linestyle=page.MODEL_LINE)
    at = (1.0, float(exchanged["gradient_bytes"].iloc[0]))
    panels.annotate(sent, "gradients and parameters", at, panels.ROW_AT_EDGE, xytext=(-2, -2.5), **_CORNER)
    for panel, title in ((memory, "memory per rank"), (sent, "bytes per step")):
        panel.set_title(title)
        panels.byte_axis(panel)
        _finish(panel, rows)
    _replicated(memory, _of(rows, LARGE, sharded=False))
    legend = page.entries_of(map(variant_of, rank["optimizer"])) + entries(rows)
    text = page.footer(results, rows, notes=notes(rows))
    reading = "Computed by a model from published speeds of GPUs and links; nothing of it is measured."
    return page.save(figure, folder, "fig09_model_appendix", legend, text, reading=reading)


# What the other figures of scaling share


def variant_of(label: str) -> str:
    """Return the label without the suffix for what divides the training, which the panels say."""
    return label.removesuffix(SHARDED).removesuffix("_ddp")


def look_of(label: str) -> styles.MethodStyle:
    """Return the look of an optimizer, whatever divides the training."""
    return styles.style_of(variant_of(label))


def draw_steps(axes: Axes, rows: pd.DataFrame, place: tuple[str, str]) -> set[str]:
    """Draw the steps of a model on a system over the base optimizer's, and return the labels of the looks."""
    (model, system), sharded = place, place == LARGE
    of_panel = _of(rows, place, sharded=sharded)
    ratios = _over_base(of_panel, "step_ms")
    _lines(axes, ratios, "ratio")
    if has_counted(rows):
        counted = _over_base(of_panel, "step_ms_counted")
        _lines(axes, counted, "ratio", linestyle=_COUNTED_LINE, markersize=0)
    axes.axhline(1, **_GUIDE)
    axes.set_ylabel("step ÷ base's, model")
    axes.set_title(f"{styles.workload_name(model)}, {'sharded' if sharded else 'DDP'}, {system}")
    _finish(axes, rows)
    return {variant_of(str(label)) for label in ratios["optimizer"]}


def message(rows: pd.DataFrame) -> str:
    """Return a title: steps over the base's on the small model with the most GPUs; empty without these rows."""
    ratios = _over_base(_of(rows, SMALL, sharded=False), "step_ms")
    most = ratios[ratios["workers"] == ratios["workers"].max()].set_index("optimizer")["ratio"]
    shown = [f"of {look_of(label).short} {most[label]:.2f}" for label in ("mkor", "kaisa") if label in most]
    start = f"By a model of {ratios['workers'].max():,} GPUs a step takes"
    return f"{start} {' and '.join(shown)} times the base optimizer's" if shown else ""


def entries(rows: pd.DataFrame) -> list[Artist]:
    """Return the legend's entries of the model's lines."""
    names = {"model": page.MODEL_LINE, **({"model, counted bytes": _COUNTED_LINE} if has_counted(rows) else {})}
    return [page.guide_entry(name, linewidth=1.0, linestyle=line) for name, line in names.items()]


def has_counted(rows: pd.DataFrame) -> bool:
    """Return whether the model has times with the bytes counted from the code; those of earlier versions have none."""
    return "step_ms_counted" in rows and bool(rows["step_ms_counted"].notna().all())


def notes(rows: pd.DataFrame) -> list[str]:
    """Return the caption's sentences on the model."""
    model, system = SMALL
    efficiencies = []
    for label, times in _of(rows, SMALL, sharded=False).groupby("optimizer", sort=False):
        by_gpus = times.set_index("workers")["step_ms"]
        fewest = by_gpus.index.min()
        if _AT in by_gpus:
            efficiency = fewest * by_gpus[fewest] / (_AT * by_gpus[_AT])
            efficiencies.append(f"{look_of(str(label)).name} {number(float(efficiency))}")
    counted = (
        "dashed: the optimizer's step at its floor; dotted: with the bytes that this version's kernels move, "
        "counted on meta tensors, in the optimizer and its base"
    )
    return [
        "model (dashed, on gray): computed, not measured, from published speeds of GPUs and links "
        "(workflow/systems.yaml) and from operations and bytes counted by formulas; a fixed global batch; nothing "
        "overlaps; 40 % of the peak of matrix products is assumed; one refresh in 10 steps; sharded: by fully_shard; "
        "memory: parameters, gradients and optimizer state, without activations; bytes: handed to the method's "
        "collectives",
        *([counted] if has_counted(rows) else []),
        f"by the model, efficiency of {styles.workload_name(model)} on {system} at {_AT} GPUs over "
        f"{rows['workers'].min()}: {', '.join(efficiencies)}",
    ]


def _of(rows: pd.DataFrame, place: tuple[str, str], *, sharded: bool) -> pd.DataFrame:
    model, system = place
    chosen = rows[(rows["workload"] == model) & (rows["system"] == system)]
    return chosen[chosen["optimizer"].str.endswith(SHARDED) == sharded]


def _over_base(rows: pd.DataFrame, times: str) -> pd.DataFrame:
    """Return the rows of methods, with a column's time over that of the base optimizer, which has no state to keep."""
    is_base = rows["state_bytes"] == 0
    base = rows[is_base].set_index("workers")[times]
    methods = rows[~is_base]
    return methods.assign(ratio=methods[times] / methods["workers"].map(base))


def _lines(axes: Axes, rows: pd.DataFrame, column: str, **style_of_line: Any) -> None:
    for label, of_label in rows.groupby("optimizer", sort=False):
        look, line = look_of(str(label)), of_label.sort_values("workers")
        axes.plot(line["workers"], line[column], color=look.color, marker=look.marker, **(_MODEL | style_of_line))


def _finish(axes: Axes, rows: pd.DataFrame) -> None:
    gpus = sorted(rows["workers"].unique())
    axes.set_xscale("log", base=2)
    panels.fixed_ticks(axes.xaxis, [*gpus[:-2:2], gpus[-1]])
    axes.set_xlim(gpus[0] / 1.4, gpus[-1] * 1.4)
    axes.set_xlabel("GPUs")
    axes.set_facecolor("#F3F3F3")  # of panels that show a model, and no measurement


def _replicated(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw what the base optimizer and dense MKOR would keep under DistributedDataParallel, and a GPU's memory."""
    texts = []
    kept = rows[(rows["state_bytes"] == 0) | (rows["optimizer"] == "mkor")]
    for label, of_label in kept.sort_values("memory_bytes", ascending=False).groupby("optimizer", sort=False):
        line, look = of_label.sort_values("workers"), look_of(str(label))
        axes.plot(line["workers"], line["memory_bytes"], color=look.color, **_MODEL)
        size = float(f"{line['memory_bytes'].iloc[0]:.3g}")
        texts.append(f"DDP: {look.short} {panels.amount(size)}")
    axes.axhline(float(rows["gpu_memory_bytes"].iloc[0]), **_GUIDE)
    axes.set_ylim(top=300 * axes.get_ylim()[1])
    panels.annotate(axes, "\n".join([*texts, f"solid: one {rows['gpu'].iloc[0]}"]), (0.97, 0.97), **_CORNER)
