"""Figure 16: bars by machine, hatched projections, and the text of panels without data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.support.figures import caption_of, figure_of, legend_of, texts_in
from tests.support.synthetic import iteration_times
from tests.support.synthetic_hardware import REACHES, STEPS, write_machine
from tests.support.synthetic_probes import write_probe
from workflow.bench.figures import _style as style
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
    assert [axes.get_title() for axes in figure.axes[:3]] == ["BERT", "ResNet", "Autoencoder"]
    for panel, subject in enumerate(("bert", "resnet", "autoencoder")):
        truth = []
        for label in style.in_order(STEPS[subject]):
            times = STEPS[subject][label]
            mean = (times[0] + 9 * times[-1]) / 10
            truth.append((style.style_of(label).color.lower(), False, pytest.approx(1.01 * mean)))
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
        means = chosen.groupby("optimizer")["iteration_ms"].mean()
        assert [width for *_, width in _bars(figure, panel)] == [
            pytest.approx(means[label]) for label in style.in_order(means.index)
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
    assert figure.axes[3].get_title() == "validation loss ≤ 4.2"


def test_one_machine_alone_has_no_projection(here):
    figure = _draw(here)
    assert not any(hatched for panel in range(6) for _, hatched, _ in _bars(figure, panel))
    assert "projected" not in legend_of(figure)
    assert "rojected" not in caption_of(figure)


def test_adopted_runs_took_no_time_on_this_machine(here):
    """Their seconds are those of the machine that trained them."""
    file = here / "bert_pretraining.runs.csv"
    runs = pd.read_csv(file)
    runs.loc[runs["optimizer"] == "mkor", "hardware"] = "far-cpu"
    runs.to_csv(file, index=False)
    figure = _draw(here)
    assert len(_bars(figure, 3)) == 2


def test_censored_runs_are_counted_beside_their_bar(here):
    file = here / "bert_pretraining.runs.csv"
    runs = pd.read_csv(file)
    runs.loc[(runs["optimizer"] == "mkor") & (runs["seed"] == 2), ["crossing_step", "crossing_seconds"]] = None
    runs.to_csv(file, index=False)
    figure = _draw(here)
    assert sorted(text for text in texts_in(figure.axes[3]) if text) == ["0 of 3 reached", "2 of 3 reached"]
    assert len(_bars(figure, 3)) == len(REACHES) - 1


def test_a_machine_without_data_for_a_panel_is_marked(here, tmp_path):
    other = write_machine(tmp_path / "elsewhere", "fast-cpu", speed=2)
    (other / "probes" / "step_breakdown.csv").unlink()
    figure = _draw(here, other)
    assert texts_in(figure.axes[0]) == ["no data"]
    assert texts_in(figure.axes[4]) == ["no data", "no data"]
    assert "No results yet: resnet50_imagenet, update_rules, probe iteration_time." in caption_of(figure)


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
    with pytest.raises(NoDataError, match="make timing"):
        fig16_hardware.make(Results(here), here / "figures")
