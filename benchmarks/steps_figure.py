"""The picture of ``steps.csv``: each optimizer's step as a multiple of SGD's, on each block of layers.

``python -m benchmarks.steps_figure FOLDER`` draws ``FOLDER/steps.png`` and ``.pdf`` from ``FOLDER/steps.csv`` again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from benchmarks.models import BLOCKS
from benchmarks.step_rows import ADAMW, CONTROL, FACTOR, FACTOR_BLOCK, FORWARD_BACKWARD, SGD, YARDSTICKS
from workflow.bench.analysis import styles
from workflow.bench.analysis.wording import in_words
from workflow.bench.figures import _page as page
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ConfigError

NAME: Final = "steps"
PERIOD: Final = 10
_EVERY: Final = styles.MethodStyle("an update every step", page.SOFT, "|", "-")
_TENTH: Final = styles.MethodStyle("an update every 10 steps", page.GUIDE, "o", "-")
_PASS: Final = styles.MethodStyle("forward and backward pass", page.GUIDE, "", page.MODEL_LINE)
_TITLES: Final = {block.name: block.title for block in BLOCKS}


def draw(folder: Path) -> list[Path]:
    """Draw a folder's ``steps.csv`` and return the files.

    Raises:
        ConfigError: there is no such file, or it has no times.
    """
    file = folder / "steps.csv"
    if not file.is_file():
        raise ConfigError(f"{file}: no such file; python -m benchmarks.steps --out {folder} writes it")
    table = pd.read_csv(file)
    widest = table["width"] == table.groupby("block")["width"].transform("max")
    shown = table[widest & ~table["optimizer"].isin((SGD, CONTROL, *YARDSTICKS)) & (table["block"] != FACTOR_BLOCK)]
    if shown["ms"].notna().sum() == 0:
        raise ConfigError(f"{file}: has no times of optimizers")
    blocks = list(dict.fromkeys(shown["block"]))
    # The cheapest at the top, by the median over the blocks; those without times at the bottom.
    order = shown[shown["period"] == PERIOD].groupby("optimizer")["of_sgd"].median().sort_values().index.to_list()
    figure, (panels,) = page.new_figure(1, len(blocks), height=0.16 * len(order) + 0.8, sharey=True)
    for panel, block in zip(panels, blocks, strict=True):
        _draw_block(panel, table[widest & (table["block"] == block)], order)
        panel.set_title(_TITLES.get(block, block))
    panels[0].set_yticks(range(len(order)), [_name(label) for label in order])
    panels[0].set_ylim(len(order) - 0.5, -0.5)
    legend = [page.marker_entry(_TENTH), page.marker_entry(_EVERY), page.line_entry(_PASS)]
    return page.save(
        figure, folder, NAME, legend=legend, caption=_caption(table, widest), message=_message(shown, blocks)
    )


def _message(shown: pd.DataFrame, blocks: Sequence[str]) -> str:
    """Return the title: MKOR's step over SGD's in each block."""
    of_mkor = shown[(shown["optimizer"] == "mkor") & (shown["period"] == PERIOD)].set_index("block")["of_sgd"]
    phrases = [f"{of_mkor[block]:.0f} ({_TITLES.get(block, block)})" for block in blocks if block in of_mkor.dropna()]
    return f"A step of MKOR costs that of SGD times {in_words(phrases)}" if phrases else ""


def _draw_block(axes: Axes, rows: pd.DataFrame, order: Sequence[str]) -> None:
    axes.set_xscale("log")
    axes.axvline(1, color=page.SOFT, linewidth=0.8)
    sgd = rows[rows["optimizer"] == SGD]["ms"].min()
    axes.axvline(rows[rows["optimizer"] == FORWARD_BACKWARD]["ms"].min() / sgd, color=page.GUIDE, linestyle="--")
    for place, label in enumerate(order):
        look = styles.style_of(label)
        of_label = rows[rows["optimizer"] == label].set_index("period")
        for period, marker in ((1, "|"), (PERIOD, look.marker)):
            if period in of_label.index and np.isfinite(of_label["of_sgd"][period]):
                one = of_label.loc[period]
                axes.hlines(place, one["of_sgd_low"], one["of_sgd_high"], color=look.color, linewidth=1.2)
                axes.plot(one["of_sgd"], place, marker=marker, color=look.color, linestyle="none")
        if of_label["of_sgd"].isna().all():
            axes.annotate(
                "not timed",
                (0.98, place),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="center",
                fontsize=5.5,
                color=page.SOFT,
            )
    axes.set_xlabel("step, in steps of SGD")


def _caption(table: pd.DataFrame, widest: pd.Series) -> str:
    rows = table[widest]
    first = rows.iloc[0]
    control = rows[(rows["optimizer"] == CONTROL) & (rows["period"] == 1)]
    parts = [
        f"Time of an optimizer's step alone, as a multiple of torch's foreach SGD with momentum; ratios with 95 % "
        f"intervals over rounds in which all take turns. {first['device']}, {first['hardware']}, "
        f"{first['threads']} threads, PyTorch {first['torch']}, commit {str(first['git_commit'])[:10]}",
        "SGD beside itself: "
        + ", ".join(
            f"{row.of_reference:.3f} [{row.of_reference_low:.3f}, {row.of_reference_high:.3f}] "
            f"({_TITLES.get(str(row.block), row.block)})"
            for row in control.itertuples()
        ),
    ]
    factor = table[(table["optimizer"] == FACTOR) & (table["period"] == 1)]
    if len(factor):
        parts.append(
            "an update of one dense factor takes "
            + ", ".join(f"{row.of_reference:.2f} (width {row.width})" for row in factor.itertuples())
            + " times a matrix-vector product and an outer product on the same matrix"
        )
    return "; ".join(parts) + "."


def _name(label: str) -> str:
    window = label.removeprefix("mkor_w")
    if window != label and window.isdigit():
        return f"MKOR, window {window}"
    return {ADAMW: "AdamW, torch's fused"}.get(label, styles.style_of(label).name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the picture of a folder; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps_figure", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder of steps.csv")

    def work(options: argparse.Namespace) -> None:
        for file in draw(options.folder):
            print(file)

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
