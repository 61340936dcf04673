"""Figure 16: times of steps over the base's by machine, on one clock, and the break-even of each optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.support.figures import below, caption_of, figure_of, legend_of, lines_of, texts_in, title_of, xs
from tests.support.synthetic import iteration_times
from tests.support.synthetic_hardware import REACHES, STEPS, write_machine
from tests.support.synthetic_probes import STEP_MS, step_time, write_probe
from workflow.bench.analysis import styles
from workflow.bench.figures import fig16_hardware
from workflow.bench.results.tables import NoDataError, Results


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return write_machine(tmp_path / "results", "test-cpu")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def _draw(root: Path, *others: Path) -> Figure:
    return figure_of("fig16_hardware", Results(root, "embedded tier", others))


def _time_steps(root: Path, speed: float = 1.0) -> None:
    """Time the steps of a machine's runs: 50 ms with KAISA, 30 with LAMB, both divided by the speed, 40 with MKOR."""
    ms = {label: STEP_MS.get(label, 30.0) / speed for label in REACHES} | {"mkor": 40.0}
    write_probe(root, "step_time", step_time(Results(root).runs("bert_pretraining"), ms))


def _marker(panel: Axes, label: str) -> float:
    """Return the place of a label's marker."""
    (line,) = lines_of(panel, label, styles.style_of(label).marker)
    return xs(line)[0]


def _rows(panel: Axes) -> list[str]:
    return [text.get_text() for text in panel.get_yticklabels()]


def test_a_step_is_shown_over_the_bases_of_the_same_clock(here):
    """Truth: 50 and 40 ms over 30. The other probe, whose waits lengthen steps, gives other ratios and is not mixed in.

    No row is empty: Eva, which only the other probe has timed, has none.
    """
    _time_steps(here)
    figure = _draw(here)
    (panel,) = figure.axes
    assert (panel.get_title(), panel.get_xlabel()) == ("BERT", "times LAMB's\nstep time")
    assert _rows(panel) == ["KFAC, every 5", "MKOR, every 5"]
    assert _marker(panel, "kaisa") == pytest.approx(50 / 30)
    assert _marker(panel, "mkor") == pytest.approx(40 / 30)
    assert title_of(figure) == "A step's time over the base optimizer's: MKOR 1.33, KFAC 1.67"
    assert "the probe step_time" in caption_of(figure)


def test_the_break_even_is_the_bases_iterations_over_the_optimizers(here):
    """Truth: REACHES and two more seeds, one step later each; SGD, which never arrives, is no row."""
    _time_steps(here)
    figure = _draw(here)
    ticks = [xs(line)[0] for line in figure.axes[0].lines if line.get_marker() == "D" and line.get_markersize() == 3.5]
    truth = [np.exp(np.mean([np.log((120 + seed) / (at + seed)) for seed in range(3)])) for at in (70, 80)]
    assert ticks == pytest.approx(truth)
    assert "break-even" in legend_of(figure)
    assert "with that step the target takes as long as with the base. Every 10" in " ".join(below(figure))


def test_without_the_turns_the_phases_of_all_models_are_shown(here):
    """Truth: the synthetic milliseconds of a cycle of 10 steps, for each of the three models."""
    figure = _draw(here)
    assert "the probe step_breakdown" in caption_of(figure)
    titles = ["BERT", "ResNet\n(no break-even known)", "Autoencoder\n(no break-even known)"]
    assert [axes.get_title() for axes in figure.axes] == titles
    assert _rows(figure.axes[0]) == ["KFAC, every 10", "Eva", "MKOR, every 10"]
    for panel, (model, base) in zip(
        figure.axes, (("bert", "lamb"), ("resnet", "sgd"), ("autoencoder", "sgd")), strict=True
    ):
        for label in ("kaisa", "mkor"):
            refresh, other = STEPS[model][label]
            assert _marker(panel, label) == pytest.approx((refresh + 9 * other) / 10 / STEPS[model][base][0])


def test_every_machine_has_a_row_of_panels(here, tmp_path):
    """Truth: a machine twice as fast but for MKOR has twice MKOR's ratio; one without the clock is named."""
    other = write_machine(tmp_path / "elsewhere", "fast-cpu", speed=2)
    without = write_machine(tmp_path / "elsewhere", "bare-cpu", runs=False)
    _time_steps(here)
    _time_steps(other, speed=2)
    figure = _draw(here, other, without)
    assert [axes.get_ylabel() for axes in figure.axes] == ["test-cpu", "fast-cpu"]
    assert [_marker(axes, "mkor") for axes in figure.axes] == pytest.approx([40 / 30, 80 / 30])
    assert title_of(figure).startswith("A step's time over the base optimizer's on 2 machines: MKOR 1.33 to 2.67")
    assert "Bare-cpu has no step times to compare." in caption_of(figure)
    assert "Compared with fast-cpu: 12 runs, 12 finished." in caption_of(figure)


def test_a_busy_machine_has_no_ratio_and_says_why(here):
    runs = Results(here).runs("bert_pretraining")
    write_probe(here, "step_time", step_time(runs, busy=range(45)))
    with pytest.raises(NoDataError, match="no time of a step"):
        fig16_hardware.make(Results(here), here / "figures")
    other = write_machine(here.parents[2] / "elsewhere", "idle-cpu")
    _time_steps(other)
    assert "Test-cpu: the machine was busy" in caption_of(_draw(here, other))


def test_a_machine_without_a_model_says_so(here, tmp_path):
    other = write_machine(tmp_path / "elsewhere", "fast-cpu", speed=2)
    rows = pd.read_csv(other / "probes" / "step_breakdown.csv")
    write_probe(other, "step_breakdown", rows[rows["workload"] != "resnet"])
    figure = _draw(here, other)
    assert texts_in(figure.axes[4]) == ["not timed"]
    assert "No results yet: resnet50_imagenet, update_rules, probe step_time." in caption_of(figure)


def test_long_names_and_many_machines_stay_inside(here, tmp_path):
    names = ("intel-xeon-platinum-8480-224-cores", "8x-nvidia-h200-141gb-hbm3e", "a-third-machine")
    others = [write_machine(tmp_path / "elsewhere", name, speed=2 + place) for place, name in enumerate(names)]
    figure = _draw(here, *others)
    figure.canvas.draw()
    for axes in figure.axes:
        labels = [label for label in axes.get_yticklabels() if label.get_text()]
        boxes = [text.get_window_extent() for text in (*labels, axes.xaxis.label, axes.yaxis.label) if text.get_text()]
        assert all(box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1 for box in boxes)
    names_of_rows = [axes.yaxis.label.get_window_extent() for axes in figure.axes if axes.get_ylabel()]
    assert len(names_of_rows) == 4
    assert not any(one.overlaps(two) for index, one in enumerate(names_of_rows) for two in names_of_rows[index + 1 :])


def test_without_this_machines_results_the_others_are_drawn(here, tmp_path):
    figure = _draw(tmp_path / "results" / "new-cpu" / "embedded", here)
    assert _marker(figure.axes[0], "kaisa") > 1
    assert "No step time and no run of new-cpu yet." in caption_of(figure)


def test_runs_and_another_clock_alone_are_no_figure(here):
    """Cycles at several periods (iteration_time) have no turns of the base optimizer beside them."""
    (here / "probes" / "step_breakdown.csv").unlink()
    write_probe(here, "iteration_time", iteration_times())
    with pytest.raises(NoDataError, match=r"run python -m workflow\.bench\.timing --tier embedded first"):
        fig16_hardware.make(Results(here), here / "figures")
