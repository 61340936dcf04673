"""Figures 1, 2, 6, 7, 11 and 12 from synthetic runs: their contents, and their messages about missing runs."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tests.support.figures import (
    below,
    caption_of,
    figure_of,
    is_inside,
    legend_of,
    lines_of,
    reaching_parts,
    texts_in,
    title_of,
    xs,
    ys,
)
from tests.support.synthetic import run_rows, write_experiment
from tests.support.synthetic_probes import step_time, write_probe
from tests.support.synthetic_training import SECONDS, accuracy, accuracy_rows, training_parts, write_training
from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.step_times import Timed
from workflow.bench.analysis.wording import signed
from workflow.bench.figures import _page, _time_to_target
from workflow.bench.figures._panels import ended, targets
from workflow.bench.figures.fig11_training_time import TimeContest, _message, contests, equal_levels, to_level
from workflow.bench.plan.experiment_files import label_of
from workflow.bench.plan.targets import Target
from workflow.bench.results.tables import NoDataError, Results, published
from workflow.bench.support.config import CONFIG, read_mapping
from workflow.bench.workloads import NAMES

DRAWN = ("fig01_mkor_diagram", "fig07_approximations")
MEASURED = ("fig06_resnet50_accuracy", "fig11_training_time", "fig12_training_accuracy")
GOAL = Target("train", "accuracy", "above", 0.9)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("results") / "test-cpu" / "embedded")


@pytest.fixture(scope="module")
def drawn(results: Path) -> Iterator[dict[str, Figure]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plt.rcParams, "figure.max_open_warning", 0)  # all of them stay open
        yield {name: figure_of(name, Results(results)) for name in (*DRAWN, *MEASURED)}
    plt.close("all")


@pytest.fixture
def some(results: Path, tmp_path: Path) -> Path:
    """A copy of `results` that a test may change."""
    return Path(shutil.copytree(results, tmp_path / "test-cpu" / "embedded"))


def single(axes: Axes, label: str) -> list[Line2D]:
    """Return the markers of single points in a method's look."""
    return [line for line in lines_of(axes, label, styles.style_of(label).marker) if len(xs(line)) == 1]


def hollow(axes: Axes) -> list[float]:
    return sorted(value for line in axes.lines if line.get_markerfacecolor() == "none" for value in xs(line))


# Diagrams


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_of_a_drawing_leaves_it_or_touches_another(name, drawn):
    figure = drawn[name]
    figure.canvas.draw()
    (axes,) = figure.axes
    boxes = [(text.get_text(), text.get_window_extent()) for text in axes.texts]
    assert len(boxes) > 15
    for text, box in boxes:
        assert is_inside(box, axes.bbox, slack=0), text
    for (one, first), (other, second) in combinations(boxes, 2):
        assert not first.overlaps(second), (one, other)
    assert not figure.texts[-1].get_window_extent().overlaps(axes.bbox)


def test_figure_1_has_the_exact_rule_and_says_that_there_are_others(drawn):
    found = " ".join(texts_in(drawn["fig01_mkor_diagram"].axes[0]))
    for part in ("Rank-1 statistics", "One all-reduce", "Factor update", "Precondition", "Base optimizer", "$O(d^2)$"):
        assert part in found
    assert "figure 13 compares them" in caption_of(drawn["fig01_mkor_diagram"])
    # Who sees the picture alone finds what its symbols mean.
    shown = " ".join(below(drawn["fig01_mkor_diagram"]))
    assert all(symbol in shown for symbol in ("J:", "D:", "f:", "γ:", "ε, ζ:"))


# Figures 6, 11 and 12


@pytest.mark.parametrize("name", ["fig06_resnet50_accuracy", "fig12_training_accuracy"])
def test_a_diverged_run_is_crossed_and_named(name, some):
    """MKOR's seed 2 breaks down half-way: the median goes on as the worse one of the others, and the run is named."""
    experiment = "resnet50_imagenet" if name == MEASURED[0] else "alexnet_cifar100"
    for suffix in (".csv", ".runs.csv"):
        frame = pd.read_csv(some / f"{experiment}{suffix}")
        broken = (frame["optimizer"] == "mkor") & (frame["seed"] == 2)
        frame.loc[broken, "status"] = "diverged"
        if suffix == ".csv":
            frame = frame[~broken | (frame["step"] <= 50)]
        frame.to_csv(some / f"{experiment}{suffix}", index=False)
    figure = figure_of(name, Results(some))
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    curve, *runs = lines_of(figure.axes[0], "mkor")
    assert crosses == [line for line in runs if line.get_marker() == "x"]
    assert len(crosses) == 1
    ends = [ys(line)[-1] for line in runs if max(xs(line)) == max(xs(curve)) and line not in crosses]
    worse = min(ends) if ys(curve)[0] < ys(curve)[-1] else max(ends)
    assert (len(ends), ys(curve)[-1]) == (2, pytest.approx(worse))
    assert "MKOR (exact rule) seed 2" in caption_of(figure).split("Diverged: ")[1]


@pytest.mark.parametrize("name", MEASURED)
def test_missing_runs_have_no_values_and_are_named(name, some):
    """Figure 11 has no panel of an experiment without MKOR, over whose time its ratios are."""
    experiment, workload = ("resnet50_imagenet", "resnet20") if name == MEASURED[0] else ("alexnet_cifar100", "alexnet")
    there = [accuracy_rows(experiment, workload, label, target=GOAL) for label in ("sgd", "kaisa")]
    gone = accuracy_rows(experiment, workload, "mkor", status="missing")
    write_experiment(some, experiment, [*there, gone])
    figure = figure_of(name, Results(some))
    if name == "fig11_training_time":
        assert not any("AlexNet" in panel.get_title() for panel in figure.axes)
    else:
        assert lines_of(figure.axes[0], "mkor") == []
    assert f"Missing: {styles.workload_name(workload)} MKOR (exact rule) seeds 0-2" in caption_of(figure)


@pytest.mark.parametrize("name", MEASURED[1:])
def test_an_absent_experiment_has_no_panels_and_is_named(name, some):
    for file in some.glob("bert_imdb*"):
        file.unlink()
    figure = figure_of(name, Results(some))
    assert len(figure.axes) == 2
    assert not any("BERT, classes" in panel.get_title() for panel in figure.axes)
    assert "No results yet: bert_imdb." in caption_of(figure)


def test_one_seed_has_no_interval(tmp_path):
    write_experiment(tmp_path, "resnet50_imagenet", [accuracy_rows("resnet50_imagenet", "resnet20", "mkor", [0])])
    figure = figure_of("fig06_resnet50_accuracy", Results(tmp_path))
    assert "95 % interval" not in legend_of(figure)
    assert "one run, no interval" in caption_of(figure)


# Figure 6


def test_figure_6_marks_what_each_run_took_to_the_target(drawn):
    """Truth: the law of the synthetic runs, evaluated at every tenth step, over SGD's."""
    figure = drawn["fig06_resnet50_accuracy"]
    steps = {
        label: [next(step for step in range(0, 101, 10) if accuracy(label, seed, step) >= 0.9) for seed in range(3)]
        for label in ("sgd", "kaisa", "mkor")
    }
    ratios = [ours / base for ours, base in zip(steps["kaisa"], steps["sgd"], strict=True)]
    epochs, seconds = figure.axes[1:]
    assert xs(single(epochs, "kaisa")[0]) == pytest.approx([np.median(ratios)])
    assert xs(lines_of(epochs, "kaisa", ".")[0]) == pytest.approx(ratios)
    slower = SECONDS["kaisa"] / SECONDS["sgd"]
    # Without the probe's step times the seconds of two labels cannot be compared: the runs are there, and no estimate.
    assert xs(lines_of(seconds, "kaisa", ".")[0]) == pytest.approx([ratio * slower for ratio in ratios])
    assert not single(seconds, "kaisa")
    of_mkor = np.median([ours / base for ours, base in zip(steps["mkor"], steps["sgd"], strict=True)])
    assert f"MKOR reaches the target in {of_mkor:.2f} times SGD's epochs" in title_of(figure)


def test_figure_6_counts_runs_that_never_reach_the_target(drawn):
    """HyLo ends at 0.87 on all seeds: triangles at the right edge, and no marker."""
    assert max(accuracy("hylo", seed, 100) for seed in range(3)) < 0.9
    _, epochs, seconds = drawn["fig06_resnet50_accuracy"].axes
    assert texts_in(seconds) == ["0 of 3", "reached"]
    assert not single(epochs, "hylo")
    assert [xs(line) for line in lines_of(epochs, "hylo", ">")] == [[1]]


def test_figure_6_has_the_published_ratios_beside_the_measured_ones(drawn):
    figure, of_paper = drawn["fig06_resnet50_accuracy"], published("resnet50_imagenet").set_index("optimizer")
    for axes, column in zip(figure.axes[1:], ("epochs_to_target", "time_to_target_s"), strict=True):
        ratios = of_paper[column] / of_paper.loc["SGD", column]
        assert hollow(axes) == pytest.approx(sorted(ratios.drop("SGD")))
    assert not hollow(figure.axes[0])


def test_figure_6_without_a_target_has_curves_alone_and_gives_the_reason(tmp_path):
    write_experiment(tmp_path, "resnet50_imagenet", [accuracy_rows("resnet50_imagenet", "resnet20", "sgd")])
    figure = figure_of("fig06_resnet50_accuracy", Results(tmp_path))
    assert "The runs have no target on the validation accuracy" in caption_of(figure)
    assert len(figure.axes) == 1
    assert "published (ImageNet)" not in legend_of(figure)


# Figures 11 and 12


def accuracies_of(results: Path, experiment: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return an experiment's runs, and their accuracies on the training data."""
    given = Results(results)
    return given.runs(experiment), ended(given.metrics(experiment), "train", "accuracy")


def test_equal_training_accuracy_is_the_files_target_or_sgds_last(results):
    assert equal_levels(*accuracies_of(results, "alexnet_cifar100")) == dict.fromkeys(range(3), 0.9)
    runs, rows = accuracies_of(results, "bert_imdb")
    assert equal_levels(runs, rows) == pytest.approx({seed: accuracy("sgd", seed, 100) for seed in range(3)})
    assert targets(runs, "train", "accuracy") == []


def test_a_run_that_never_shows_the_level_takes_forever(results):
    given = accuracies_of(results, "alexnet_cifar100")
    assert set(to_level(*given, "hylo", {0: 0.9, 1: 0.9}).values()) == {math.inf}
    assert to_level(*given, "mkor", {0: 0.05}) == {0: 10 * SECONDS["mkor"]}


def test_figure_11_shows_ratios_to_equal_training_accuracy(drawn, results):
    """Truth: the median of the paired ratios, by the law of the synthetic runs."""

    def seconds(label: str, seed: int) -> float:
        return SECONDS[label] * next(step for step in range(0, 101, 10) if accuracy(label, seed, step) >= 0.9)

    ratios = [seconds("kaisa", seed) / seconds("mkor", seed) for seed in range(3)]
    panel = drawn["fig11_training_time"].axes[0]
    assert panel.get_xlabel() == "time ÷ MKOR's to\n90 % accuracy"
    marks = {round(ys(mark)[0]): mark for mark in single(panel, "mkor")}
    assert xs(marks[1])[0] == pytest.approx(np.median(ratios))
    # The runs' dots stand below the marker, which would hide them.
    (dots,) = (line for line in lines_of(panel, "mkor", ".") if len(ys(line)) and round(ys(line)[0]) == 1)
    assert xs(dots) == pytest.approx(ratios)
    assert min(ys(dots)) > ys(marks[1])[0] + 0.1
    found = contests(*accuracies_of(results, "alexnet_cifar100"))
    assert {pair for pair in found if pair[1] == "mkor"} == {("sgd", "mkor"), ("kaisa", "mkor"), ("hylo", "mkor")}
    # HyLo reaches the level on no seed, so that it has counts but no ratio.
    assert (found["hylo", "mkor"].rival_never, found["hylo", "mkor"].contender_never) == (3, 0)
    assert 2 not in marks
    assert texts_in(panel) == ["0 of 3 arrive", "0 of 3 arrive"]
    figure = drawn["fig11_training_time"]
    figure.canvas.draw()
    assert all(is_inside(text.get_window_extent(), axes.bbox) for axes in figure.axes for text in axes.texts)


@pytest.mark.parametrize(
    ("ends", "seeds", "said"),
    [
        ((1.1, 2.0), 3, "faster on AlexNet (1.30×)"),
        ((0.5, 0.9), 3, "slower on AlexNet (1.30×)"),
        ((0.9, 2.0), 3, "undecided on AlexNet (1.30×)"),
        ((math.nan, math.nan), 1, "one run each on AlexNet"),
    ],
)
def test_figure_11s_title_claims_what_an_interval_shows(ends, seeds, said):
    runs = pd.DataFrame({"workload": "alexnet", "dataset": "x", "optimizer": ["sgd", "mkor"], "target": None})
    method = "t" if ends[0] > 0 else "none"
    ratio = Estimate(1.27, *ends, seeds, "geometric mean", method, is_ratio=True)
    contest = TimeContest(ratio, (1.3,) * seeds, rival_never=0, contender_never=0, seeds=seeds)
    message = _message({"x": {("sgd", "mkor"): contest}}, {"x": Timed(runs, pd.DataFrame())})
    assert message == f"MKOR vs SGD to equal training accuracy: {said}"


def test_a_run_that_ended_before_the_other_reached_the_level_has_no_ratio(results):
    """Truth: a rival that stopped after a tenth of a second might have been first if it had continued."""
    runs, rows = accuracies_of(results, "alexnet_cifar100")
    assert contests(runs, rows)["sgd", "mkor"].ratio is not None
    short = runs.assign(train_seconds=runs["train_seconds"].where(runs["optimizer"] != "sgd", 0.1))
    found = contests(short, rows[rows["optimizer"] != "sgd"])["sgd", "mkor"]
    assert (found.ratio, found.rival_never) == (None, 3)


@pytest.mark.parametrize(("never", "reached"), [(0, 8), (8, 0)])
def test_figure_11_says_how_many_runs_got_there_if_there_is_no_ratio(never, reached):
    """Truth: 5 of 8 runs of SGD never arrive."""
    runs = pd.DataFrame({"workload": "alexnet", "dataset": "x", "optimizer": ["sgd", "mkor"], "steps": 400})
    timed = Timed(runs.assign(target=Target("train", "accuracy", "above", 0.7)), pd.DataFrame())
    contest = TimeContest(None, (), rival_never=5, contender_never=never, seeds=8)
    said = f"MKOR vs SGD to equal training accuracy: not all arrive on AlexNet (MKOR in {reached} of 8 runs, SGD in 3)"
    assert _message({"x": {("sgd", "mkor"): contest}}, {"x": timed}) == said
    # The median of a run that never arrived and one that did is no number of a panel.
    few = TimeContest(
        Estimate(0.3, math.nan, math.nan, 2, "median", "none", is_ratio=True),
        (0.0, 0.6),
        rival_never=0,
        contender_never=1,
        seeds=2,
    )
    assert _message({"x": {("sgd", "mkor"): few}}, {"x": timed}).endswith("AlexNet (MKOR in 1 of 2 runs, SGD in 2)")


def test_figure_11_has_the_published_speedups_beside_the_measured_ones(drawn):
    of_paper = published("training_speedups").groupby("experiment")["speedup"]
    names = ("AlexNet/CIFAR-100", "BERT-Large-Cased/IMDB", "BERT-Base-Cased/SQuAD")
    for axes, name in zip(drawn["fig11_training_time"].axes, names, strict=True):
        assert hollow(axes) == sorted(of_paper.get_group(name))


def test_figure_12_is_over_time(drawn):
    by_time = drawn["fig12_training_accuracy"].axes[0]
    (over_time, *runs) = lines_of(by_time, "kaisa")
    assert xs(over_time) == pytest.approx([step * SECONDS["kaisa"] for step in range(0, 101, 10)])
    assert ys(over_time) == pytest.approx(
        [np.median([accuracy("kaisa", seed, step) for seed in range(3)]) for step in range(0, 101, 10)]
    )
    assert len(runs) == 3  # every method shows its runs, as the legend says
    assert any(set(ys(line)) == {0.9} for line in by_time.lines)
    assert texts_in(by_time) == ["target: 90 %"]
    # From 90 to 99 % is as far as from 0 to 90 %.
    heights = [by_time.transData.transform((0, share))[1] for share in (0.0, 0.9, 0.99)]
    if by_time.get_ylim()[1] > 0.99:
        assert heights[2] - heights[1] == pytest.approx(heights[1] - heights[0])


def test_runs_without_a_training_accuracy_are_told_from_absent_ones(some):
    """Such runs come from code that did not measure it."""
    metrics = pd.read_csv(some / "bert_base_squad.csv")
    metrics[metrics["metric"] != "accuracy"].to_csv(some / "bert_base_squad.csv", index=False)
    assert "bert_base_squad: no training accuracy in its runs" in texts_in(
        figure_of("fig12_training_accuracy", Results(some)).axes[2]
    )
    figure = figure_of("fig11_training_time", Results(some))
    assert len(figure.axes) == 2  # no empty panel of ratios
    assert "No run that reached equal training accuracy beside another: BERT, questions." in caption_of(figure)


def test_figure_11_without_any_ratio_says_so(tmp_path):
    write_experiment(tmp_path, "alexnet_cifar100", [accuracy_rows("alexnet_cifar100", "alexnet", "sgd", target=GOAL)])
    with pytest.raises(NoDataError, match="no rival's run has one of MKOR beside it"):
        figure_of("fig11_training_time", Results(tmp_path))


def _figure_12(folder: Path, ends: dict[str, list[float]]) -> Figure:
    """Return figure 12 of AlexNet's runs, a label's accuracies multiplied so that its seeds end with these values."""
    parts = [accuracy_rows("alexnet_cifar100", "alexnet", label, [*range(len(of))]) for label, of in ends.items()]
    for (metrics, _), of_label in zip(parts, ends.values(), strict=True):
        for row in metrics:
            row["value"] *= of_label[row["seed"]] / accuracy(row["optimizer"], row["seed"], 100)
    write_experiment(folder, "alexnet_cifar100", parts)
    return figure_of("fig12_training_accuracy", Results(folder))


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ([0.98, 0.97, 0.99], [0.88, 0.875, 0.89], "higher on AlexNet (98, 88 %)"),
        ([0.88, 0.875, 0.89], [0.98, 0.97, 0.99], "lower on AlexNet (88, 98 %)"),
        ([0.98, 0.8, 0.99], [0.95, 0.96, 0.94], "undecided on AlexNet (98, 95 %)"),
        ([0.98], [0.88], "one run each on AlexNet"),
    ],
)
def test_figure_12s_title_claims_what_the_pairs_of_runs_show(ours, theirs, said, tmp_path):
    """Truth: differences of 0.1, or of 0.03, -0.16 and 0.05, whose t interval holds 0."""
    figure = _figure_12(tmp_path, {"sgd": theirs, "mkor": ours})
    assert title_of(figure) == f"MKOR's last training accuracy vs SGD's: {said}"
    assert "100" not in [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_figure_12_draws_sgd_above_the_others_and_has_a_tick_at_100(tmp_path):
    (panel,) = _figure_12(tmp_path, {"sgd": [0.88, 0.9], "mkor": [1.0, 1.0]}).axes
    (_, edge), labels = panel.get_ylim(), [label.get_text() for label in panel.get_yticklabels()]
    assert (panel.get_yticks()[-1], labels[-1]) == (pytest.approx(edge), "100")
    order = [line.get_color() for line in panel.lines]
    assert order.index(styles.style_of("mkor").color) < order.index(styles.style_of("sgd").color)
    assert len({line.get_zorder() for line in panel.lines if line.get_linewidth() == 1.5}) == 1


def test_two_rules_of_mkor_have_a_mark_each(tmp_path):
    write_experiment(tmp_path, "alexnet_cifar100", training_parts("alexnet_cifar100", target=GOAL))
    (panel,) = figure_of("fig11_training_time", Results(tmp_path)).axes
    heights = [ys(single(panel, label)[0])[0] for label in ("mkor", "mkor_released")]
    assert heights[0] < heights[1]


@pytest.mark.parametrize(("seeds", "has_bars"), [(3, False), (6, True)])
def test_figure_11s_legend_has_intervals_where_the_runs_are_many(seeds, has_bars, tmp_path):
    labels = [
        accuracy_rows("alexnet_cifar100", "alexnet", label, [*range(seeds)], target=GOAL) for label in ("sgd", "mkor")
    ]
    write_experiment(tmp_path, "alexnet_cifar100", labels)
    write_probe(tmp_path, "step_time", step_time(Results(tmp_path).runs("alexnet_cifar100")))
    figure = figure_of("fig11_training_time", Results(tmp_path))
    assert ("95 % interval" in legend_of(figure)) == has_bars
    edges = [line for line in figure.axes[0].lines if line.get_marker() in ("<", ">") and xs(line)[0] in (0, 1)]
    assert ("triangle" in " ".join(below(figure))) == bool(edges)
    (panel,) = figure.axes
    bars = [*panel.collections, *(line for line in panel.lines if line.get_linewidth() > 2)]
    assert bool(bars) == has_bars


# Figure 2


def _figure_2(folder: Path, **steps: float | None) -> Figure:
    """Return figure 2 of labels that reach the target after so many steps, each timed at 30 ms but KAISA at 50."""
    write_experiment(folder, "bert_pretraining", reaching_parts(**steps))
    write_probe(folder, "step_time", step_time(Results(folder).runs("bert_pretraining")))
    return figure_of("fig02_bert_loss", Results(folder))


def test_figure_2s_title_and_markers_are_the_same_numbers(tmp_path):
    """Truth: each seed's steps, 80 to 82 over 120 to 122, at equal milliseconds."""
    figure = _figure_2(tmp_path, sgd=None, lamb=120.0, mkor=80.0)
    _, iterations, time = figure.axes
    truth = np.median([(80 + seed) / (120 + seed) for seed in range(3)])
    for panel in (iterations, time):
        assert xs(single(panel, "mkor")[0]) == pytest.approx([truth])
        assert xs(single(panel, "lamb")[0]) == [1]
        assert not single(panel, "sgd")
    assert texts_in(time) == ["0 of 3", "reached"]
    said = f"MKOR reaches the target in {truth:.2f} times LAMB's iterations and {truth:.2f} times its time"
    assert title_of(figure).endswith(said)


def test_figure_2_without_ratios_says_what_mkor_and_its_base_end_at(tmp_path):
    """Truth: the medians of three runs' last losses and seconds; a run that broke down has no end to compare."""
    parts = [
        run_rows("bert_pretraining", "bert_pretraining", label, range(3), base="lamb", period=5, steps=150)
        for label in ("lamb", "mkor")
    ]
    write_experiment(tmp_path, "bert_pretraining", parts)
    ends = [[row for row in metrics if row["step"] == 150] for metrics, _ in parts]
    ours, theirs = (
        " after ".join(f"{np.median([row[key] for row in rows]):.3g}" for key in ("value", "train_seconds"))
        for rows in (ends[1], ends[0])
    )
    said = f": MKOR's loss ends at {ours} s, LAMB's at {theirs} s (medians of runs)"
    assert title_of(figure_of("fig02_bert_loss", Results(tmp_path))).endswith(said)
    parts[0] = (
        [row | {"status": "diverged"} for row in parts[0][0]],
        [row | {"status": "diverged"} for row in parts[0][1]],
    )
    write_experiment(tmp_path, "bert_pretraining", parts)
    assert "ends at" not in title_of(figure_of("fig02_bert_loss", Results(tmp_path)))


def test_a_pair_whose_base_never_arrived_is_a_triangle_at_the_left(tmp_path):
    parts = reaching_parts(lamb=120.0, mkor=80.0)
    parts[0][1][2] |= dict.fromkeys(("crossing_step", "crossing_seconds"))
    write_experiment(tmp_path, "bert_pretraining", parts)
    panel = figure_of("fig02_bert_loss", Results(tmp_path)).axes[1]
    assert [xs(line) for line in lines_of(panel, "mkor", "<")] == [[0]]
    assert "a triangle: one never arrived. No bar: too few seeds or studies" in " ".join(below(panel.figure))
    assert len(xs(lines_of(panel, "mkor", ".")[0])) == 2


@pytest.mark.parametrize(
    ("iterations", "time", "said"),
    [
        ((0.7, 0.9), (0.8, 1.1), "0.80 times SGD's epochs and 0.90 times its time (the time undecided)"),
        ((0.7, 1.1), (0.8, 1.1), "0.80 times SGD's epochs and 0.90 times its time (both undecided)"),
        ((0.7, 1.1), (0.8, 0.95), "0.80 times SGD's epochs (the epochs undecided) and 0.90 times its time"),
        ((0.7, 0.9), None, "0.80 times SGD's epochs"),
    ],
)
def test_a_title_says_which_of_its_numbers_is_undecided(iterations, time, said):
    ratios = {"epochs": {"mkor": Estimate(0.8, *iterations, 8, "median", "order-statistics", is_ratio=True)}}
    if time:
        ratios["time"] = {"mkor": Estimate(0.9, *time, 8, "median", "order-statistics", is_ratio=True)}
    runs = pd.DataFrame({"workload": ["resnet20"], "dataset": ["x"]})
    assert _time_to_target._message(runs, "sgd", ratios) == f"X (ResNet-20): MKOR reaches the target in {said}"


def test_figure_2s_caption_compares_no_last_losses_of_runs_of_different_lengths(tmp_path):
    """At the paper tier budgets differ: step 100 is the end of one schedule and the middle of another."""
    parts = [
        run_rows("bert_pretraining", "bert_pretraining", label, range(3), base="lamb", period=5, steps=steps)
        for label, steps in (("lamb", 150), ("mkor", 150), ("mkor_h", 100))
    ]
    write_experiment(tmp_path, "bert_pretraining", parts)
    caption = caption_of(figure_of("fig02_bert_loss", Results(tmp_path)))
    last = [[row["value"] for row in metrics if row["step"] == 150] for metrics, _ in parts[:2]]
    mean = 100 * np.mean(np.divide(last[1], last[0]) - 1)
    said = f"Loss at iteration 150 against LAMB's, paired by seed: MKOR (exact rule) {signed(mean)} ["
    assert said in caption
    assert "MKOR-H" not in caption.split(said)[1].split("]")[0]


@pytest.mark.parametrize(("start", "is_cut"), [(9.0, True), (4.4, False)])
def test_figure_2_leaves_the_start_out_if_it_would_flatten_the_rest(tmp_path, start, is_cut):
    """After a tenth of the steps all losses are at most 4.5."""
    metrics, runs = run_rows("bert_pretraining", "bert_pretraining", "lamb", range(2), steps=150)
    metrics = [row | {"value": start if row["step"] == 0 else 4.5 - row["step"] / 300} for row in metrics]
    write_experiment(tmp_path, "bert_pretraining", [(metrics, runs)])
    figure = figure_of("fig02_bert_loss", Results(tmp_path))
    assert (figure.axes[0].get_ylim()[1] < 5) == (is_cut or start < 5)
    assert ("The loss axis leaves out the first 10 % of the iterations" in caption_of(figure)) == is_cut


@pytest.mark.parametrize("shift", range(4))
def test_no_line_of_a_caption_begins_with_a_unit(shift):
    figure, _ = _page.new_figure(1, 1, height=1)
    _page.arrange(figure, [], "i" * shift + " 1 %" * 400, columns=1)
    assert not any(line.startswith("%") for line in figure.texts[-1].get_text().split("\n"))


def test_no_word_of_a_title_stands_alone_in_the_last_line():
    """The 16 words of five letters take one and a bit of a line."""
    figure, _ = _page.new_figure(1, 1, height=1)
    _page.arrange(figure, [], "a caption", 3, " ".join(["words"] * 16))
    first, second = (line.split() for line in figure.texts[0].get_text().split("\n"))
    assert abs(len(first) - len(second)) <= 2


def test_a_legend_of_long_names_takes_fewer_columns_and_stays_inside():
    """All styles at once do not fit in the four columns that are allowed."""
    figure, _ = _page.new_figure(1, 1, height=1)
    _page.arrange(figure, [_page.line_entry(look) for look in styles.STYLES.values()], "a caption", columns=4)
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert figure.legends[0]._ncols < 4
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y0 >= figure.axes[0].bbox.y1


# Names


def test_every_label_and_workload_of_every_tier_has_a_name_and_a_look_of_its_own():
    labels = {
        label_of(entry)
        for file in (CONFIG / "experiments").glob("*.yaml")
        for blocks in read_mapping(file)["tiers"].values()
        for block in blocks
        for entry in block["optimizers"]
    }
    assert len(labels) > 10
    # A label without a look of its own is named as it is written.
    assert {label for label in labels if styles.style_of(label).name == label.replace("_", " ")} == set()
    assert set(NAMES) <= set(styles.WORKLOADS)
