"""Figures 21 to 23 and their tables, from results set by hand."""

from __future__ import annotations

import math
import shutil
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from tests.support.figures import caption_of, figure_of, legend_of, lines_of, title_of, xs, ys
from tests.support.synthetic import write_rows
from tests.support.synthetic_ladder import (
    CENTRED,
    ITERATIONS,
    LADDER,
    SIZES,
    SPEEDUPS,
    STEPS,
    WIDTHS,
    iterations,
    write_batch_sizes,
    write_ladder,
    write_widths,
)
from workflow.bench.analysis import styles
from workflow.bench.analysis.ladder import BASES, CENTRING, NO_GAIN, RUNGS
from workflow.bench.analysis.widths import HELD_OUT, PLACES
from workflow.bench.figures.fig21_ladder import _LOOKS, _ROWS
from workflow.bench.make_artefact import main
from workflow.bench.results.columns import RUN_COLUMNS
from workflow.bench.results.tables import Results


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results") / "test-cpu" / "evidence"
    return write_widths(write_batch_sizes(write_ladder(root)))


@pytest.fixture(scope="module")
def draw(root: Path):
    """Draw a figure, the first time that a test asks for it."""
    yield cache(lambda name: figure_of(name, Results(root)))
    plt.close("all")


def markers(axes: Axes, base: str) -> dict[float, float]:
    """Return the values of a base optimizer's markers by row."""
    look = _LOOKS[base]
    chosen = [line for line in axes.lines if line.get_marker() == look.marker]
    return {ys(line)[0]: xs(line)[0] for line in chosen if to_rgb(line.get_color()) == to_rgb(look.color)}


def test_fig21_draws_iterations_over_the_base_s_in_a_row_for_each_rung(draw):
    """Truth: the speeds. Over three studies deviations add up to 0."""
    figure = draw("fig21_ladder")
    autoencoder, alexnet = figure.axes
    assert [panel.get_title().replace("\n", " ") for panel in figure.axes] == [
        "Autoencoder data (Autoencoder)",
        "Alexnet data (AlexNet)",
    ]
    speeds = {CENTRING: CENTRED, **LADDER["autoencoder", "sgd", False]}
    shown = markers(autoencoder, "sgd")
    truth = {[*_ROWS].index((rung, False)): 1 / speeds[rung] for rung in RUNGS}
    assert {round(row): value for row, value in shown.items() if row < len(RUNGS) - 0.5} == pytest.approx(
        truth, rel=0.01
    )
    assert [label.get_text() for label in autoencoder.get_yticklabels()] == [*_ROWS.values()]
    assert [*_ROWS][round(min(markers(alexnet, "sgd")))] == (CENTRING, False)
    # MKOR is faster than each of the three bases, and centring, too; of the centred ones MKOR is faster than AlexNet's.
    assert title_of(figure) == (
        "MKOR saves iterations in 3 of 3 pairs of workload and base, on centred inputs in 1 of 3, centring alone saves "
        "them in 3 of 3"
    )


def test_fig21_sets_centred_inputs_below_plain_ones(draw):
    """Truth: the speeds. MKOR takes 1 / 2.6 of SGD's iterations on the autoencoder, and as many with centred inputs."""
    figure = draw("fig21_ladder")
    shown = {row: value for row, value in markers(figure.axes[0], "sgd").items() if row > len(RUNGS) - 0.5}
    assert [*shown.values()] == pytest.approx([1 / speed for speed in (1.0, 2.0)], rel=0.01)
    assert [[*_ROWS.values()][round(row)] for row in shown] == ["MKOR, centred inputs", "KFAC, centred inputs"]


def test_fig21_has_a_legend_entry_for_each_kind_of_marker_and_no_other(draw):
    figure = draw("fig21_ladder")
    looks = {
        (line.get_marker(), to_rgb(line.get_color()))
        for panel in figure.axes
        for line in panel.lines
        if line.get_marker() != "None"
    }
    entries = [line for line in figure.legends[0].get_lines() if line.get_marker() != "None"]
    assert looks == {(line.get_marker(), to_rgb(line.get_color())) for line in entries}


def test_fig21_says_what_the_runs_decide(draw):
    caption = caption_of(draw("fig21_ladder"))
    assert "Declared before the runs: MKOR's gain vanishes where inputs are centred" in caption
    assert "In general: open (holds: Autoencoder; fails: AlexNet)" in caption
    assert (
        "MKOR's left factor (mkor against one_side) saves iterations on 1 of 2 workloads with SGD as base (AlexNet)"
        in caption
    )


def test_fig21_differs_in_marker_where_it_differs_in_color():
    assert len({look.marker for look in _LOOKS.values()}) == len(BASES)


def test_fig22_draws_speedups_over_an_optimizer_that_always_arrives(draw):
    """Truth: the powers by which iterations fall; deviations of three studies add up to 0."""
    figure = draw("fig22_batch_size")
    named = [panel.get_ylabel().replace("\n", " ") for panel in figure.axes]
    assert named == ["speedup in iterations over NadamW", "speedup in iterations over AdamW"]
    powers = ITERATIONS["autoencoder"]
    for label in ("mkor", "kaisa", "muon"):
        (line,) = lines_of(figure.axes[0], label, styles.style_of(label).marker)
        truth = [iterations(powers["nadamw"], size) / iterations(powers[label], size) for size in SIZES]
        assert ys(line) == pytest.approx(truth)
        assert np.round(np.log2(xs(line))).tolist() == np.log2(SIZES).tolist()
    assert figure.axes[0].get_title() == "Autoencoder data (Autoencoder)\nvalidation loss ≤ 0.8"
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == [str(size) for size in SIZES]
    most = iterations(powers["nadamw"], SIZES[-1]) / iterations(powers["mkor"], SIZES[-1])
    said = f"Autoencoder: NadamW needs 1.00 to {most:.2f} times MKOR's iterations (undecided at batch 32); that grows"
    assert title_of(figure) == said
    caption = caption_of(figure)
    assert "MKOR (exact rule) holds (-0.25" in caption
    assert "KFAC (KAISA) not tested" in caption


def test_fig22_draws_what_a_speedup_is_at_most_where_a_run_did_not_arrive(draw):
    """Truth: KFAC never reaches the target on the language model and ends after its budget."""
    figure = draw("fig22_batch_size")
    panel = figure.axes[1]
    lines = lines_of(panel, "kaisa", styles.style_of("kaisa").marker)
    bounds = [line for line in lines if line.get_markerfacecolor() == "white"]
    truth = [iterations(ITERATIONS["language_model"]["adamw"], size) / STEPS for size in SIZES]
    assert [ys(line)[0] for line in bounds] == pytest.approx(truth)
    assert "at most: a run missed the target" in legend_of(figure)
    (line,) = (one for one in lines if one not in bounds)
    assert np.isnan(ys(line)).all()


def test_fig22_breaks_a_line_at_a_size_where_a_run_missed_the_target(tmp_path: Path):
    """A line drawn through the gap would show a speedup that nobody measured."""
    root = write_batch_sizes(tmp_path / "test-cpu" / "field")
    runs = Results(root).runs("batch_size")
    misses = (runs["optimizer"] == "mkor") & runs["workload_parameters"].map(lambda given: given["batch_size"] == 512)
    columns = ["steps_to_target", "seconds_to_target", "crossing_step", "crossing_seconds"]
    runs.loc[misses, columns] = np.nan
    write_rows(root / "batch_size.runs.csv", RUN_COLUMNS, runs)
    lines = lines_of(figure_of("fig22_batch_size", Results(root)).axes[0], "mkor", "o")
    (line,) = (one for one in lines if one.get_markerfacecolor() != "white")
    assert np.isnan(ys(line)).tolist() == [size == 512 for size in SIZES]


def test_fig23_draws_speedups_and_the_predicted_one(draw):
    """Truth: the speeds; the line through the first two has s(128)^2 / s(64) at the third width."""
    figure = draw("fig23_width")
    for panel, title in zip(figure.axes[:2], ("at the final quality", "over the sweep"), strict=True):
        assert panel.get_title() == title
        for label, speeds in SPEEDUPS.items():
            (measured,) = (ys(line) for line in lines_of(panel, label, styles.style_of(label).marker) if len(xs(line)))
            (predicted,) = (ys(line) for line in lines_of(panel, label, "_"))
            assert measured == pytest.approx(speeds)
            assert predicted == pytest.approx([speeds[1] ** 2 / speeds[0]])


def test_fig23_says_whether_the_prediction_held(draw):
    """Truth: KFAC's speedup falls from 1.8 to 1.2 where 2.16 was predicted; the others keep to their line."""
    figure = draw("fig23_width")
    said = "at width 256 the predicted speedup over AdamW fails for KFAC (KAISA), holds for 4 of 5 optimizers"
    assert title_of(figure) == f"Language_model data (Language model): {said}"
    assert "Declared before the runs: at width 256" in caption_of(figure)


def test_fig23_draws_predictions_around_the_tick(draw):
    """Those of all labels together stand no further from the largest width than a tenth of it."""
    panel = draw("fig23_width").axes[0]
    dashes = [line for line in panel.lines if line.get_marker() == "_"]
    assert len(dashes) == len(SPEEDUPS)
    assert np.mean([math.log(xs(line)[0] / HELD_OUT) for line in dashes]) == pytest.approx(0, abs=0.1)


def test_fig23_draws_what_may_be_less_as_hollow(tmp_path: Path):
    """A run that missed counts with its budget; and who misses a third of its targets has no predicted speedup."""
    root = write_widths(tmp_path / "test-cpu" / "field")
    runs = Results(root).runs("width")
    missed = (runs["optimizer"] == "mkor") & (runs["seed"] == 0)
    missed &= runs["workload_parameters"].map(lambda given: given["hidden_size"]) == WIDTHS[1]
    status = runs["status"].mask(missed, "diverged")
    write_rows(root / "width.runs.csv", RUN_COLUMNS, runs.assign(status=status))
    figure = figure_of("fig23_width", Results(root))
    assert "at most: a run missed a target" in legend_of(figure)
    for panel in figure.axes[:2]:
        (bounds,) = (line for line in lines_of(panel, "mkor", "o") if line.get_markerfacecolor() == "white")
        assert [round(math.log2(x / WIDTHS[1])) for x in xs(bounds)] == [0]
        assert lines_of(panel, "mkor", "_") == []
        # Of what may be less the lower end is unknown.
        lines = [each for each in panel.collections if isinstance(each, LineCollection)]
        (bar,) = (bar for each in lines for bar in each.get_segments() if bar[0][0] == xs(bounds)[0])
        assert bar[0][1] == ys(bounds)[0] < bar[1][1]
        others = [line for line in panel.lines if line.get_markerfacecolor() == "white" and len(xs(line))]
        assert others == [bounds]


def test_fig23_calls_an_interval_around_1_undecided_before_the_largest_width_has_runs(tmp_path: Path):
    root = write_widths(tmp_path / "test-cpu" / "field")
    runs = Results(root).runs("width")
    small = runs["workload_parameters"].map(lambda given: given["hidden_size"]) < HELD_OUT
    mkor = runs["optimizer"] == "mkor"
    # One study in which MKOR never arrives makes its interval reach beyond 1.
    write_rows(
        root / "width.runs.csv",
        RUN_COLUMNS,
        runs[small].assign(status=runs["status"].mask(mkor & (runs["seed"] == 0), "diverged")),
    )
    title = title_of(figure_of("fig23_width", Results(root)))
    assert "at width 64 (undecided)" in title


def test_the_ladder_s_table_has_a_row_for_each_rung(root: Path, tmp_path: Path):
    """Truth: the speeds; all runs of the row's label, its base and KFAC are named."""
    assert main(["ladder", "--results", str(root), "--out-dir", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "ladder.csv", dtype=str, keep_default_na=False)
    rows = table.set_index(["workload", "base", "inputs", "label"])
    # A base optimizer with centred inputs is a rung over itself with plain ones.
    assert len(rows) == sum(map(len, LADDER.values())) + sum(centred for *_, centred in LADDER)
    alone = rows.loc["alexnet", "adamw", "centred", "centred_adamw"]
    assert alone["iterations / base"].startswith(f"{1 / CENTRED:.3g} [")
    assert len(alone["data"].removeprefix("ladder.runs.csv: runs ").split(", ")) == 9
    mac = rows.loc["autoencoder", "sgd", "plain", "mac"]
    assert mac["iterations / base"].startswith("0.5 [0.4")
    assert mac["share of KFAC's gain"].startswith("0.5 [0.")
    assert mac["studies"] == "3"
    assert len(mac["data"].removeprefix("ladder.runs.csv: runs ").split(", ")) == 9
    assert rows.loc["alexnet", "adamw", "plain", "mkor_adamw"]["share of KFAC's gain"] == NO_GAIN
    centred = rows.loc["alexnet", "sgd", "centred", "mkor"]
    assert centred["prediction"] == "fails, gain left"
    # The runs of MKOR and its base with plain inputs, too, which the gain that is left is compared with.
    assert len(centred["data"].removeprefix("ladder.runs.csv: runs ").split(", ")) == 9 + 6
    assert mac["missed"] == "0 of 24"
    mkor = rows.loc["alexnet", "sgd", "plain", "mkor"]
    assert value(mkor["mkor / one_side"]) == pytest.approx(1.5 / 1.8, rel=0.01)
    assert value(mkor["mkor / centred"]) == pytest.approx(CENTRED / 1.8, rel=0.01)
    assert (mkor["one_side / one_vector"], mac["mkor / one_side"], centred["mkor / centred"]) == ("", "", "")
    assert centred["gain left by centring"].startswith(f"{math.log(1.7) / math.log(1.8):.3g} [")
    assert set(table.loc[table["label"] != "mkor", "prediction"]) == {"", "holds"}
    text = (tmp_path / "ladder.md").read_text()
    assert "MKOR's memory (one_side against one_vector) saves iterations on 0 of 2 workloads with SGD as base" in text


def value(cell: object) -> float:
    """Return the number in front of a cell's interval."""
    return float(str(cell).partition(" [")[0])


def read_table(name: str, root: Path, tmp_path: Path) -> pd.DataFrame:
    assert main([name, "--results", str(root), "--out-dir", str(tmp_path)]) == 0
    return pd.read_csv(tmp_path / f"{name}.csv", dtype=str, keep_default_na=False)


def test_the_table_of_batch_sizes_has_a_row_for_each_label_and_size(root: Path, tmp_path: Path):
    """Truth: the powers; the largest size names the runs of all sizes, of the label and of the reference."""
    table = read_table("batch_size", root, tmp_path)
    assert len(table) == sum(map(len, ITERATIONS.values())) * len(SIZES)
    rows = table.set_index(["workload", "label", "batch size"])
    at = {size: rows.loc["autoencoder", "mkor", str(size)] for size in SIZES}
    for size in SIZES:
        assert value(at[size]["iterations"]) == pytest.approx(iterations(0.5, size), rel=0.005)
        ratio = iterations(0.5, size) / iterations(0.25, size)
        assert value(at[size]["iterations / reference"]) == pytest.approx(ratio, rel=0.005)
    assert (at[32]["reached"], at[32]["reference"], at[32]["slope"], at[32]["prediction"]) == (
        "3 of 3",
        "nadamw",
        "",
        "",
    )
    assert at[SIZES[-1]]["slope"].startswith("-0.25")
    assert at[SIZES[-1]]["prediction"] == "holds"
    named = [len(at[size]["data"].removeprefix("batch_size.runs.csv: runs ").split(", ")) for size in SIZES]
    assert named == [6, 6, 6, 24]
    missed = rows.loc["autoencoder", "sgd", str(SIZES[-1])]
    assert (missed["reached"], missed["iterations"], missed["iterations / reference"], missed["prediction"]) == (
        "0 of 3",
        str(STEPS),
        "",
        "not tested",
    )


def test_the_table_of_widths_has_the_prediction_beside_what_was_measured(root: Path, tmp_path: Path):
    """Truth: the speeds; the line through the first two has s(128)^2 / s(64) at the third width."""
    table = read_table("width", root, tmp_path)
    assert len(table) == len(SPEEDUPS) * len(WIDTHS) * len(PLACES)
    rows = table.set_index(["label", "where", "width"])
    for label, speeds in SPEEDUPS.items():
        for width, speed in zip(WIDTHS, speeds, strict=True):
            assert rows.loc[label, "over the sweep", str(width)]["speedup over AdamW"].startswith(f"{speed:.3g} [")
        last = rows.loc[label, "over the sweep", "256"]
        predicted = value(last["predicted"])
        assert predicted == pytest.approx(speeds[1] ** 2 / speeds[0], rel=0.005)
        ratio = value(last["measured / predicted"])
        assert ratio == pytest.approx(speeds[2] / predicted, rel=0.01)
    assert rows.loc["kaisa", "over the sweep", "256"]["prediction"] == "fails"
    assert rows.loc["kaisa", "over the sweep", "128"]["predicted"] == ""


def test_the_table_of_widths_predicts_the_largest_before_it_has_runs(root: Path, tmp_path: Path):
    runs = Results(root).runs("width")
    small = runs["workload_parameters"].map(lambda given: given["hidden_size"]) < HELD_OUT
    write_rows(tmp_path / "width.runs.csv", RUN_COLUMNS, runs[small])
    shutil.copy(root / "width.csv", tmp_path)
    rows = read_table("width", tmp_path, tmp_path / "out").set_index(["label", "where", "width"])
    row = rows.loc["muon", "at the final quality", "256"]
    assert (row["speedup over AdamW"], row["measured / predicted"], row["prediction"]) == ("", "", "not tested")
    assert value(row["predicted"]) == pytest.approx(2.5**2 / 2, rel=0.005)


@pytest.mark.parametrize(("name", "write"), [("fig22_batch_size", write_batch_sizes), ("fig23_width", write_widths)])
def test_single_runs_are_drawn_and_decide_nothing(name, write, tmp_path: Path):
    figure: Figure = figure_of(name, Results(write(tmp_path, range(1), 1)))
    caption = caption_of(figure)
    assert "MKOR (exact rule) open (" in caption
    assert not any(f" {decided} (" in caption for decided in ("holds", "fails"))


def test_the_hardware_table_tells_the_sizes_of_a_workload_apart(root: Path, tmp_path: Path):
    """Rows that differ in the batch size or the width alone had the same cells but for their numbers."""
    assert main(["hardware", "--results", str(root), "--out-dir", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "hardware.csv", dtype=str, keep_default_na=False)
    for experiment, parameter, sizes in (("batch_size", "batch_size", SIZES), ("width", "hidden_size", WIDTHS)):
        rows = table[(table["experiment"] == experiment) & (table["optimizer"] == "adamw")]
        assert {*rows["varied"]} == {f"{parameter}={size}" for size in sizes}
