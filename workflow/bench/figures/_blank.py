"""The figure of experiments whose runs were all skipped: it says so, and the rest of the pipeline goes on."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from workflow.bench import style
from workflow.bench.captions import caption
from workflow.bench.results import Results


def draw(results: Results, folder: Path, name: str, runs: pd.DataFrame) -> list[Path]:
    """Write a figure without data whose caption names the skipped ``runs``, and why they were skipped."""
    figure, axes = style.new_figure(1, 1, height=0.6)
    axes[0, 0].set_axis_off()
    style.say(axes[0, 0], "every run was skipped")
    style.finish(figure, [], caption(results, runs, summarised=False))
    return style.save(figure, folder, name)
