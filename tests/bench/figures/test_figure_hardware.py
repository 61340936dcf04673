"""Figure 16: bars by machine, hatched projections, and the text of panels without data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.support.figures import caption_of, figure_of, legend_of, texts_in
from tests.support.synthetic import iteration_times
from tests.support.synthetic_hardware import REACHES, STEPS, write_machine
from tests.support.synthetic_probes import STEP_MS, step_time, write_probe
from workflow.bench.analysis import styles
from workflow.bench.figures import fig16_hardware
from workflow.bench.results.tables import NoDataError, Results

WHITE = "#ffffff"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return write_machine(tmp_path / "results", "test-cpu")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def _draw(root: Path, *others: Path) -> Figure:
    return figure_of("fig16_hardware", Results(root, "embedded tier", others))


def _bars(figure: Figure, panel: int) -> list[tuple[str, bool, float]]:
    """Return the color, the hatching and the length of a panel's bars, from top to bottom."""
    bars = [bar for bar in figure.axes[panel].patches if isinstance(bar, Rectangle)]
    bars.sort(key=lambda bar: bar.get_y())
    return [(to_hex(bar.get_edgecolor()), bar.get_hatch() is not None, bar.get_width()) for bar in bars]


def test_every_step_time_is_a_bar_in_its_methods_color(here):
    """Truth: the synthetic milliseconds of a cycle of 10 steps, for each of the three models."""
    figure = _draw(here)
    assert not any(hatched for panel in range(len(figure.axes)) for _, hatched, _ in _bars(figure, panel))
    assert "projected" not in legend_of(figure)
    assert "rojected" not in caption_of(figure)
    # Without a second machine no machine is named.
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == [styles.style_of(label).name for label in styles.in_order({*STEPS["bert"], "sgd"})]
    assert [axes.get_title() for axes in figure.axes[:3]] == ["BERT", "ResNet", "Autoencoder"]
    for panel, subject in enumerate(("bert", "resnet", "autoencoder")):
        truth = []
        for label in styles.in_order(STEPS[subject]):
            times = STEPS[subject][label]
            mean = (times[0] + 9 * times[-1]) / 10
            # The repeats are a little apart, of which a geometric mean is drawn.
            truth.append((styles.style_of(label).color.lower(), False, pytest.approx(1.01 * mean, rel=1e-3)))
        assert _bars(figure, panel) == truth
        assert figure.axes[panel].get_xlabel() == "ms"


def test_without_the_breakdown_the_cycles_of_one_period_are_shown(here):
    """Truth: the synthetic milliseconds at period 10, one of four timed periods."""
    (here / "probes" / "step_breakdown.csv").unlink()
    times = iteration_times()
    write_probe(here, "iteration_time", times)
    figure = _draw(here)
    assert [axes.get_title() for axes in figure.axes[:2]] == ["BERT", "Autoencoder"]
    for panel, workload in enumerate(("bert", "autoencoder")):
        chosen = times[(times["workload"] == workload) & (times["inverse_update_period"] == 10)]
        means = chosen.groupby("optimizer")["iteration_ms"].agg(geometric_mean)
        assert [width for *_, width in _bars(figure, panel)] == [
            pytest.approx(means[label]) for label in styles.in_order(means.index)
        ]


def test_a_machine_without_runs_gets_hatched_projections_and_the_others_none(here, tmp_path):
    figure = _draw(here, write_machine(tmp_path / "elsewhere", "fast-cpu", speed=2, runs=False))
    bars = _bars(figure, 3)
    assert [hatched for _, hatched, _ in bars] == [False] * 3 + [True] * 3
    assert all(
        (to_hex(bar.get_facecolor()) == WHITE) == (bar.get_hatch() is not None) for bar in figure.axes[3].patches
    )
    assert "projected" in legend_of(figure)
    assert "Projected: iterations to the target measured on another machine" in caption_of(figure)
    assert "Compared with fast-cpu: step times only, no runs." in caption_of(figure)
    assert figure.axes[3].get_title() == "BERT\nvalidation loss ≤ 4.2"


def test_censored_runs_are_counted_beside_their_bar_and_adopted_ones_have_none(here):
    """The seconds of adopted runs are those of the machine that trained them."""
    file = here / "bert_pretraining.runs.csv"
    runs = pd.read_csv(file)
    runs.loc[(runs["optimizer"] == "mkor") & (runs["seed"] == 2), ["crossing_step", "crossing_seconds"]] = None
    runs.to_csv(file, index=False)
    figure = _draw(here)
    assert sorted(text for text in texts_in(figure.axes[3]) if text) == ["0 of 3", "2 of 3"]
    assert len(_bars(figure, 3)) == len(REACHES) - 1
    runs.loc[runs["optimizer"] == "lamb", "hardware"] = "far-cpu"
    runs.to_csv(file, index=False)
    assert len(_bars(_draw(here), 3)) == len(REACHES) - 2


def test_other_workloads_of_an_experiment_are_in_no_panel(here):
    """The autoencoder has no panel of another model's runs of the same experiment, and no empty one."""
    for suffix in (".csv", ".runs.csv"):
        table = pd.read_csv(here / f"bert_pretraining{suffix}").assign(experiment="update_rules", workload="alexnet")
        table.to_csv(here / f"update_rules{suffix}", index=False)
    figure = _draw(here)
    assert [axes.get_title().split("\n")[0] for axes in figure.axes] == ["BERT", "ResNet", "Autoencoder", "BERT"]
    assert all(_bars(figure, panel) for panel in range(4))


def test_times_to_target_are_iterations_times_the_probes_time_of_a_step(here):
    """Truth: REACHES and two more seeds, at 50 ms a step of KAISA and 30 of LAMB."""
    assert "the runs' own seconds" in caption_of(_draw(here))
    runs = Results(here).runs("bert_pretraining")
    write_probe(here, "step_time", step_time(runs))
    figure = _draw(here)
    assert "Time: iterations times the time of a step" in caption_of(figure)
    found = {color: width for color, _, width in _bars(figure, 3)}
    for label in ("kaisa", "lamb"):
        crossings = runs.loc[runs["optimizer"] == label, "crossing_step"]
        truth = geometric_mean(crossings) * STEP_MS.get(label, 30.0) / 1000
        assert found[styles.style_of(label).color.lower()] == pytest.approx(truth)


def test_a_machine_without_data_for_a_panel_is_marked(here, tmp_path):
    other = write_machine(tmp_path / "elsewhere", "fast-cpu", speed=2)
    (other / "probes" / "step_breakdown.csv").unlink()
    figure = _draw(here, other)
    assert texts_in(figure.axes[0]) == ["no data"]
    assert len(figure.axes) == 4  # neither machine has runs of the other two models
    assert "No results yet: resnet50_imagenet, update_rules, probe iteration_time, probe step_time." in caption_of(
        figure
    )


def test_long_names_and_many_machines_stay_inside(here, tmp_path):
    names = ("intel-xeon-platinum-8480-224-cores", "8x-nvidia-h200-141gb-hbm3e", "a-third-machine")
    others = [write_machine(tmp_path / "elsewhere", name, speed=2 + place) for place, name in enumerate(names)]
    figure = _draw(here, *others)
    figure.canvas.draw()
    inside = figure.bbox
    for axes in figure.axes:
        labels = [label for label in axes.get_yticklabels() if label.get_text()]
        boxes = [label.get_window_extent() for label in labels] + [text.get_window_extent() for text in axes.texts]
        for box in boxes:
            assert box.x0 >= inside.x0 - 1
            assert box.x1 <= inside.x1 + 1
        heights = [label.get_window_extent() for label in labels]
        assert not any(one.overlaps(two) for index, one in enumerate(heights) for two in heights[index + 1 :])


def test_without_this_machines_results_the_others_are_drawn(here, tmp_path):
    figure = _draw(tmp_path / "results" / "new-cpu" / "embedded", here)
    assert len(_bars(figure, 0)) == len(STEPS["bert"])
    assert "No step time and no run of new-cpu yet." in caption_of(figure)


def test_runs_of_other_experiments_alone_are_no_figure(here):
    (here / "probes" / "step_breakdown.csv").unlink()
    for suffix in (".csv", ".runs.csv"):
        table = pd.read_csv(here / f"bert_pretraining{suffix}").assign(experiment="bert_imdb")
        table.to_csv(here / f"bert_imdb{suffix}", index=False)
        (here / f"bert_pretraining{suffix}").unlink()
    with pytest.raises(NoDataError, match=r"run python -m workflow\.bench\.timing --tier embedded first"):
        fig16_hardware.make(Results(here), here / "figures")
