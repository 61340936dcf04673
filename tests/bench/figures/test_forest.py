"""Rows of methods: markers, and intervals that have no end."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.lines import Line2D

from tests.support.figures import xs
from workflow.bench.analysis.estimates import Estimate, median_interval
from workflow.bench.figures._forest import draw_interval, final_changes, shown_value, undecided


def ratio(low: float, high: float, value: float = 1.0) -> Estimate:
    return Estimate(value, low, high, 6, "median", "order statistics", is_ratio=True)


@pytest.mark.parametrize(
    ("low", "high", "ends"),
    [(0.5, 2.0, ""), (0.5, math.inf, ">"), (0.0, 2.0, "<"), (0.0, math.inf, "<>"), (50.0, math.inf, ">")],
)
def test_an_interval_without_an_end_has_an_arrow_at_the_edge_and_stays_inside(low, high, ends):
    """The axis is logarithmic and ends at 10: a bar from 50 on lies beyond it, and the arrow says so."""
    figure, axes = plt.subplots(layout="constrained")
    axes.set_xscale("log")
    draw_interval(axes, ratio(low, high), 0, "#000000")
    axes.set_xlim(0.1, 10)
    figure.canvas.draw()
    lines = [line for line in axes.get_children() if isinstance(line, Line2D)]
    assert {str(line.get_marker()): xs(line) for line in lines if line.get_marker() in ("<", ">")} == {
        marker: [{"<": 0.01, ">": 0.99}[marker]] for marker in ends
    }
    bars = [line for line in lines if line.get_marker() == "None"]
    assert len(bars) == bool(ends)
    assert all(bar.get_clip_path() is not None or bar.get_clip_box() is not None for bar in bars)
    assert axes.get_window_extent().width > figure.bbox.width / 2
    plt.close(figure)


def test_the_marker_of_few_runs_is_their_median():
    assert shown_value(ratio(0.5, 2.0, 1.3), [1.0, 5.0, 1.1]) == 1.1
    assert shown_value(ratio(0.5, 2.0, 1.3), [1.0] * 9) == 1.3


def test_a_run_that_broke_down_counts_as_the_worst_final_loss_and_studies_are_the_units():
    """Of 18 seeds, two in each study, 17 end at 0 to 16 % below the base, and one broke down.

    Truth: the median lies between the ninth and the tenth of all, -7.5 %; without that run it would be -8 %. The
    studies' geometric means, of which the last is infinite, give the interval.
    """
    losses = {"mkor": [*(1 - 0.01 * seed for seed in range(17)), math.inf], "sgd": [1.0] * 18}
    rows = pd.DataFrame(
        {"optimizer": label, "seed": seed, "study": seed // 2, "run": f"{label}{seed}", "step": 10, "value": value}
        | {"status": "finished" if math.isfinite(value) else "diverged"}
        for label, values in losses.items()
        for seed, value in enumerate(values)
    )
    changes, step = final_changes(rows, rows, "sgd")
    assert step == 10
    assert changes["mkor"].estimate.n == 9
    assert changes["mkor"].shown == pytest.approx(-7.5)
    means = [100 * (math.sqrt((1 - 0.02 * study) * (0.99 - 0.02 * study)) - 1) for study in range(8)]
    assert (changes["mkor"].estimate.low, changes["mkor"].estimate.high) == pytest.approx(
        median_interval([*means, math.inf])
    )


@pytest.mark.parametrize(
    ("low", "high", "said"), [(0.9, 1.1, " (undecided)"), (0.5, 0.9, ""), (math.nan, math.nan, " (undecided)")]
)
def test_a_ratio_without_an_interval_that_leaves_out_1_is_undecided(low, high, said):
    assert undecided(ratio(low, high)) == said
