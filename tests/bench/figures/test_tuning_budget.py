"""Figure 19: a panel for each search, and a caption that names trials and studies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.support.figures import caption_of, figure_of, legend_of, lines_of, texts_in, title_of, xs, ys
from tests.support.synthetic_trials import TRIALS, trial_rows, write_trials
from workflow.bench.analysis.tuning_budget import expected_best
from workflow.bench.results.columns import TRIAL_COLUMNS
from workflow.bench.results.rows import write_csv
from workflow.bench.results.tables import NoDataError, Results


@pytest.fixture
def figure(tmp_path: Path) -> Iterator[Figure]:
    yield figure_of("fig19_tuning_budget_appendix", Results(tmp_path, trial_tables=tuple(write_trials(tmp_path))))
    plt.close("all")


def mean_best(label: str, *, by_steps: bool) -> list[float]:
    """Return the best of each number of trials, the mean over draws and studies, from the rows of an optimizer."""
    column = "steps_to_target" if by_steps else "score"
    mine = [row for row in trial_rows("", "", by_steps=by_steps) if row["optimizer"] == label]
    studies = [
        [float("inf") if row[column] is None else row[column] for row in mine if row["study"] == study]
        for study in (0, 1)
    ]
    return [sum(pair) / 2 for pair in zip(*map(expected_best, studies), strict=True)]


def test_a_panel_shows_each_optimizer_s_mean_over_studies(figure: Figure):
    for index, by_steps in ((0, False), (1, True)):
        panel = figure.axes[index]
        for line, label in zip(panel.lines, ("sgd", "kaisa", "mkor"), strict=True):  # the legend's order
            means = mean_best(label, by_steps=by_steps)
            finite = {n: mean for n, mean in enumerate(means, start=1) if mean < float("inf")}
            assert dict(zip(xs(line), ys(line), strict=True)) == pytest.approx(finite)
            assert xs(line)[-1] == TRIALS
        assert len(panel.collections) == 2  # bands of KFAC and MKOR
        assert len({line.get_marker() for line in panel.lines} - {"None"}) == 3
    shown = [(panel.get_title(), panel.get_ylabel()) for panel in figure.axes[:2]]
    assert shown == [("Autoencoder", "validation loss"), ("AlexNet", "steps to the target")]
    assert legend_of(figure) == ["SGD", "KFAC (KAISA)", "MKOR (exact rule)", "range over studies"]


def test_the_caption_names_trials_studies_and_optimizers_without_success(figure: Figure, tmp_path: Path):
    assert "6 trials of each optimizer in 2 studies: one, two, three, four." in caption_of(figure)
    rows = [
        row | ({"score": None, "status": "diverged"} if row["optimizer"] == "sgd" else {})
        for row in trial_rows("odd", "autoencoder", by_steps=False)
        if row["study"] == 0
    ]
    write_csv(tmp_path / "odd.csv", TRIAL_COLUMNS, rows)
    caption = caption_of(
        figure_of("fig19_tuning_budget_appendix", Results(tmp_path, trial_tables=(tmp_path / "odd.csv",)))
    )
    assert "6 trials of each optimizer in 1 study: odd. " in caption
    assert "Without success in some study: SGD in odd Autoencoder." in caption


def test_losses_of_runs_that_broke_down_do_not_stretch_an_axis(tmp_path: Path):
    """Half of an optimizer's trials end at 1e16: so does the mean of the best of a few."""
    rows = list(trial_rows("odd", "autoencoder", by_steps=False))
    for row in [row for row in rows if row["optimizer"] == "kaisa"][::2]:
        row["score"] = 1e16
    write_csv(tmp_path / "odd.csv", TRIAL_COLUMNS, rows)
    panel = figure_of("fig19_tuning_budget_appendix", Results(tmp_path, trial_tables=(tmp_path / "odd.csv",))).axes[0]
    ends = [ys(line)[-1] for line in panel.lines]
    low, high = panel.get_ylim()
    assert low < min(ends) < max(ends) < high < 2 * max(ends)


def test_the_figure_has_what_half_of_the_trials_would_cost(tmp_path: Path):
    """Truth: the best of three of six trials against the best of all, the mean over draws and studies."""
    figure = figure_of("fig19_tuning_budget", Results(tmp_path, trial_tables=tuple(write_trials(tmp_path))))
    (axes,) = figure.axes
    means = [mean_best("mkor", by_steps=by_steps) for by_steps in (False, True)]
    costs = [100 * (mean[TRIALS // 2 - 1] / mean[-1] - 1) for mean in means]
    dots = xs(lines_of(axes, "mkor", ".")[0])
    assert dots[:2] == pytest.approx(costs)
    assert f"{np.median(dots):.1f} % (MKOR)" in title_of(figure)
    assert title_of(figure).endswith("medians of 4 searches")
    assert "4" in texts_in(axes)


@pytest.mark.parametrize(
    ("same", "said"),
    [({"mkor"}, "medians of 2 searches"), ({"mkor", "kaisa"}, "in one search")],
)
def test_the_same_trials_in_two_experiments_are_one_search(same: set[str], said: str, tmp_path: Path):
    """Truth: the ids of runs, which tell whole specifications. One search has no median.

    Every label has the searches that MKOR and KFAC have: where these are one, SGD's second stands alone.
    """
    files = []
    for experiment in ("one", "two"):
        rows = [
            row | {"run": row["run"] if row["optimizer"] in same else f"{experiment}-{row['run']}"}
            for row in trial_rows("one", "autoencoder", by_steps=False)
        ]
        files.append(tmp_path / f"{experiment}.csv")
        write_csv(files[-1], TRIAL_COLUMNS, [row | {"experiment": experiment} for row in rows])
    figure = figure_of("fig19_tuning_budget", Results(tmp_path, trial_tables=tuple(files)))
    (axes,) = figure.axes
    numbers = {label: len(xs(lines_of(axes, label, ".")[0])) for label in ("mkor", "kaisa", "sgd")}
    assert numbers == {label: 1 if label in same or len(same) == 2 else 2 for label in numbers}
    assert all(bool(lines_of(axes, label, "|")) == (number > 1) for label, number in numbers.items())
    assert title_of(figure).endswith(said)


def test_without_trials_there_is_no_figure(tmp_path: Path):
    with pytest.raises(NoDataError, match=r"^no trials of tuning; run python -m workflow\.bench\.tune$"):
        figure_of("fig19_tuning_budget_appendix", Results(tmp_path))


def test_a_workload_that_was_tuned_at_several_sizes_is_named_and_not_drawn(tmp_path: Path):
    """The table of trials does not say which size a trial has: a study with two chosen trials was searched twice."""
    twice = [row for _ in range(2) for row in trial_rows("sizes", "autoencoder", by_steps=False)]
    write_csv(tmp_path / "sizes.csv", TRIAL_COLUMNS, [*twice, *trial_rows("sizes", "alexnet", by_steps=False)])
    figure = figure_of("fig19_tuning_budget_appendix", Results(tmp_path, trial_tables=(tmp_path / "sizes.csv",)))
    assert [panel.get_title() for panel in figure.axes] == ["AlexNet"]
    assert "Not shown, since they were tuned at several sizes: sizes Autoencoder." in caption_of(figure)
    write_csv(tmp_path / "sizes.csv", TRIAL_COLUMNS, twice)
    with pytest.raises(NoDataError, match="tuned at several sizes"):
        figure_of("fig19_tuning_budget_appendix", Results(tmp_path, trial_tables=(tmp_path / "sizes.csv",)))
