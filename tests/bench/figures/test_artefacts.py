"""Figures and tables from synthetic results: their files, their contents, and their messages about missing data."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tests.support.experiments import block, load, make_folder, optimizer, write
from tests.support.figures import (
    below,
    caption_of,
    figure_of,
    is_inside,
    legend_of,
    lines_of,
    reaching_parts,
    remember,
    texts_in,
    title_of,
    xs,
    ys,
)
from tests.support.synthetic import iteration_times, reaching, run_rows, write_experiment, write_results, write_rows
from tests.support.synthetic_claims import swept
from tests.support.synthetic_field import write_field
from tests.support.synthetic_ladder import write_batch_sizes, write_ladder, write_widths
from tests.support.synthetic_probes import STEP_MS, step_time, write_probe
from tests.support.synthetic_tables import write_tables
from tests.support.synthetic_training import write_training
from tests.support.synthetic_trials import tables_of_trials
from workflow.bench.analysis import styles
from workflow.bench.analysis.captions import from_rst
from workflow.bench.analysis.descriptions import described
from workflow.bench.analysis.estimates import estimate, mean_ratio
from workflow.bench.analysis.target_sweep import SHARES
from workflow.bench.analysis.wording import signed
from workflow.bench.figures import _page
from workflow.bench.figures import fig13_update_rules as fig13
from workflow.bench.figures import fig20_target_sweep as fig20
from workflow.bench.figures._forest import FinalChange
from workflow.bench.figures.fig17_ratios_appendix import cut
from workflow.bench.make_artefact import main
from workflow.bench.plan import Plan, artefacts
from workflow.bench.plan.artefacts import (
    BENCH,
    Artefact,
    available,
    describe,
    inputs,
    planned_artefacts,
    sources,
    workloads_of,
)
from workflow.bench.plan.tiers import FIELD
from workflow.bench.results.columns import EVALUATION_COLUMNS, RUN_COLUMNS
from workflow.bench.results.tables import Results, published
from workflow.bench.support.config import CONFIG, ROOT
from workflow.bench.tables.claims import NARROW

FIGURES = available("figures")
OF_TRIALS = [name for name in FIGURES if describe("figures", name).trials]
MEASURED = [
    name
    for name in FIGURES
    if name not in OF_TRIALS and (describe("figures", name).experiments or describe("figures", name).probes)
]
OF_PROBES = [name for name in MEASURED if not describe("figures", name).experiments]
TABLES = available("tables")
OVER_STUDIES = (
    "fig17_families_appendix",
    "fig17_field",
    "fig17_ratios_appendix",
    "fig21_ladder",
    "fig22_batch_size",
    "fig23_width",
)
"""Figures whose intervals are over tuning studies, which their notes say."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_results(tmp_path_factory.mktemp("results") / "test-cpu" / "embedded")
    return write_widths(write_batch_sizes(write_ladder(write_field(write_tables(write_training(root))))))


@pytest.fixture(scope="module")
def drawn(results: Path) -> Iterator[dict[str, Figure]]:
    """Every figure of the complete synthetic results, as the command makes it in a folder beside them, still open."""
    figures: dict[str, Figure] = {}
    trials = [str(file) for file in tables_of_trials(results)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plt.rcParams, "figure.max_open_warning", 0)  # all of them stay open
        for name in FIGURES:
            patch.setattr(plt, "close", partial(figures.__setitem__, name))
            out = ["--out-dir", str(results.with_name("figures") / name)]
            assert main([name, "--results", str(results), *out, "--trials", *trials]) == 0
            remember(figures[name], from_rst((results.with_name("figures") / name / f"{name}.rst").read_text()))
    yield figures
    plt.close("all")


@pytest.fixture
def copied(results: Path, tmp_path: Path) -> Path:
    """A copy of the results that a test may change."""
    return Path(shutil.copytree(results, tmp_path / "test-cpu" / "embedded"))


def _write(root: Path, *labels: dict[str, Any], experiment: str = "update_rules") -> Path:
    write_experiment(root, experiment, [run_rows(experiment, **label) for label in labels])
    return root


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_written_as_pdf_and_png(name, results, drawn):
    assert name in drawn
    written = {path.name: path.read_bytes() for path in (results.with_name("figures") / name).iterdir()}
    assert sorted(written) == [f"{name}.pdf", f"{name}.png", f"{name}.rst"]
    assert written[f"{name}.pdf"].startswith(b"%PDF")
    assert written[f"{name}.png"].startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["fig02_bert_loss", "fig05_rank1_error"])
def test_the_same_data_gives_the_same_picture(name, results, drawn, tmp_path, capsys):
    """Figure 5 scatters its dots at random."""
    main([name, "--results", str(results), "--out-dir", str(tmp_path)])
    assert f"{name}.png" in capsys.readouterr().out
    assert name in drawn
    first = results.with_name("figures") / name / f"{name}.png"
    assert (tmp_path / f"{name}.png").read_bytes() == first.read_bytes()


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_of_a_figure_is_cut_off_or_overlaps(name, drawn):
    """Every text, also beside panels, lies inside the figure; every value of a probe lies inside its panel."""
    figure = drawn[name]
    figure.canvas.draw()
    texts = [*figure.texts]
    for axes in figure.axes:
        low, high = sorted(axes.get_xlim())
        ticks = [text for text in axes.get_xticklabels() if low <= text.get_position()[0] <= high]
        low, high = sorted(axes.get_ylim())
        ticks += [text for text in axes.get_yticklabels() if low <= text.get_position()[1] <= high]
        texts += [axes.xaxis.label, axes.yaxis.label, axes.title, *ticks, *axes.texts]
        for line in axes.lines if name in OF_PROBES else []:
            if line.get_transform() is axes.transData:
                assert all(min(axes.get_ylim()) <= y <= max(axes.get_ylim()) for y in ys(line) if np.isfinite(y))
    for part in (*figure.legends, *(text for text in texts if text.get_text() and text.get_visible())):
        assert is_inside(part.get_window_extent(), figure.bbox), part
    for part in (*figure.legends, figure.texts[-1]):
        assert not any(part.get_window_extent().overlaps(axes.bbox) for axes in figure.axes)


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_has_a_title_and_at_most_two_lines_below(name, drawn):
    """The settings stand in the caption beside the picture; the tier must not be lost with it."""
    figure = drawn[name]
    lines = below(figure)
    assert 1 <= len(lines) <= 2, lines
    assert len(title_of(figure)) < 150
    assert lines[0].startswith(f"Figure {int(name[3:5])}")
    text = " ".join(lines)
    if name in MEASURED or name in OF_TRIALS:
        assert "mbedded tier, no reproduction of the paper's numbers; test-cpu" in text


@pytest.mark.parametrize("name", [name for name in FIGURES if not name.endswith("_appendix")])
def test_the_title_of_a_figure_is_its_message(name, drawn):
    """Truth: the description, whose title names the subject; from other data another message follows."""
    described_as = described(name)
    assert described_as is not None
    assert title_of(drawn[name]) not in described_as.title


@pytest.mark.parametrize("name", MEASURED)
def test_a_figure_carries_tier_hardware_seeds_and_commit(name, drawn):
    """Figures of probes alone have no seeds."""
    caption = caption_of(drawn[name])
    tier = "Embedded tier (small models on a CPU, real data)"
    assert caption.startswith(f"{tier}, no reproduction of the paper's numbers; test-cpu")
    assert caption.endswith("Commit 012345678.")
    if name in OVER_STUDIES:
        assert "seeds 0-2. " in caption
        assert "over studies" in caption
    elif describe("figures", name).experiments:
        assert any(f"0-2 ({shown})" in caption for shown in ("median, every run shown", "mean, 95 % t interval"))
    if describe("figures", name).experiments:
        assert "MKOR's update rule: exact (Sherman-Morrison)" in caption


@pytest.mark.parametrize("kind", ["figures", "tables"])
def test_no_data_at_all_is_one_clear_line(kind, tmp_path, capsys):
    """Diagrams and the consistency of the published numbers need no data; without data no claim is tested."""
    for name in available(kind):
        artefact = describe(kind, name)
        needs_data = name != "claims" and bool(artefact.experiments or artefact.probes or artefact.trials)
        code = main([name, "--results", str(tmp_path / "none"), "--out-dir", str(tmp_path / name)])
        error = capsys.readouterr().err
        assert (tmp_path / name).exists() is not needs_data
        if needs_data:
            assert (code, error.count("\n")) == (1, 1)
            assert error.startswith(f"{name}: ")
            if not (artefact.experiments or artefact.trials or len(artefact.probes) > 1):
                assert f"run the probe {artefact.probes[0]} first" in error
        else:
            assert (code, error) == (0, "")


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "\x00\xff"])
def test_a_broken_csv_is_one_clear_line(content, copied, capsys):
    (copied / "update_rules.csv").write_text(content, encoding="latin-1")
    assert main(["fig13_update_rules", "--results", str(copied)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "update_rules.csv" in error


def test_fig02_has_few_curves_and_a_row_for_every_optimizer(results, drawn):
    """Truth: iterations times the milliseconds of a step in the synthetic probe, not the runs' own seconds."""
    figure = drawn["fig02_bert_loss"]
    by_time, rows, _ = figure.axes
    labels = ("sgd", "adamw", "lamb", "kaisa", "mkor", "mkor_released")
    assert [text.get_text() for text in rows.get_yticklabels()] == [styles.style_of(label).name for label in labels]
    assert legend_of(figure)[:3] == [styles.style_of(label).name for label in ("lamb", "kaisa", "mkor")]
    assert not lines_of(by_time, "adamw")
    assert "training time (s)" in by_time.get_xlabel()
    kaisa = lines_of(by_time, "kaisa")[0]
    metrics = Results(results).metrics("bert_pretraining")
    steps = sorted(metrics.loc[metrics["optimizer"] == "kaisa", "step"].unique())
    assert xs(kaisa) == pytest.approx([step * STEP_MS["kaisa"] / 1000 for step in steps])
    assert "Time: iterations times the time of a step" in caption_of(figure)
    assert any(set(ys(line)) == {4.2} for line in by_time.lines)


def test_every_linear_axis_has_three_ticks(drawn):
    """From one or two ticks a scale cannot be read; ticks that a figure sets itself are its own."""
    counted = 0
    for name, figure in drawn.items():
        for panel in figure.axes:
            for axis in (panel.xaxis, panel.yaxis):
                if isinstance(axis.get_major_locator(), MaxNLocator) and panel.has_data():
                    low, high = sorted(axis.get_view_interval())
                    inside = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
                    assert len(inside) >= 3, (name, panel.get_title(), inside)
                    counted += 1
    assert counted > 50


def test_fig04_overlays_every_published_time(drawn):
    figure = drawn["fig04_inversion_frequency"]
    times = published("iteration_time_ms")
    for axes, model in zip(figure.axes[::2], ("Autoencoder", "BERT-Large-Uncased"), strict=True):
        hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
        values = sorted(value for line in hollow for value in ys(line))
        assert values == sorted(times.loc[times["model"] == model, "iteration_ms"])
    kfac, mkor = (styles.style_of(label) for label in ("kaisa", "mkor"))
    papers = [f"{look.short}, the paper's GPUs" for look in (kfac, mkor)]
    assert legend_of(figure)[:4] == [kfac.name, mkor.name, *papers]


def test_fig04_compares_losses_of_equal_memory_where_there_are_any(copied):
    """KFAC with one decay for all periods remembers the fewest steps at period 1, which no period explains."""
    rows = []
    floors = {"kaisa": 0.05, "kaisa_equal_memory": 0.01, "mkor_equal_memory": 0.02}
    for label, period in product(floors, (1, 10, 100)):
        floor = floors[label] * (2 if period == 1 else 1)
        about: dict[str, Any] = {"period": period, "steps": 400, "start": 0.2, "floor": floor}
        of_label = run_rows("autoencoder_inversion", "autoencoder", label, range(6), **about)
        for row in (*of_label[0], *of_label[1]):
            row["inverse_update_period"] = period
        rows.append(of_label)
    write_experiment(copied, "autoencoder_inversion", rows)
    for file in copied.glob("bert_inversion*"):
        file.unlink()
    times = iteration_times()
    write_probe(copied, "iteration_time", times[times["workload"] == "autoencoder"])
    figure = figure_of("fig04_inversion_frequency", Results(copied))
    _, losses = figure.axes
    assert (losses.get_title(), losses.get_ylabel()) == ("(b) last loss, paired by seed", "loss ÷ that at period 100")
    frame = pd.read_csv(copied / "autoencoder_inversion.csv")
    chosen = (frame["split"] == "validation") & (frame["metric"] == "loss") & (frame["step"] == 400)
    last = frame[chosen].pivot_table(index="seed", columns=["optimizer", "inverse_update_period"], values="value")
    for label in ("kaisa", "mkor"):
        of_label = last[f"{label}_equal_memory"]
        truth = [(of_label[period] / of_label[100]).median() for period in (1, 10, 100)]
        (line,) = lines_of(losses, label)
        assert ys(line) == pytest.approx(truth)
        assert truth[0] > 1.3 > truth[2]
    # Nothing of the axis lies beyond the longest period with losses.
    assert losses.get_xlim()[1] < 200
    assert title_of(figure) == (
        "An update in every step, not in one of 100, makes an iteration 12.00 times as long with KFAC and 1.20 times "
        "as long with MKOR"
    )
    assert "Autoencoder after 400 iterations, equal memory in steps." in caption_of(figure)
    assert not any("equal memory" in name for name in legend_of(figure))


def test_fig04_without_losses_has_the_times_alone(copied):
    """Truth: a tier that timed iterations up to period 1,000, and whose runs have not been made."""
    for file in copied.glob("*_inversion*"):
        file.unlink()
    figure = figure_of("fig04_inversion_frequency", Results(copied))
    assert {panel.get_ylabel() for panel in figure.axes} == {"iteration time (ms)"}
    assert title_of(figure).startswith("An update in every step, not in one of 1,000, makes an iteration ")


def test_fig04_leaves_other_workloads_out_and_names_what_is_absent(copied):
    times = iteration_times()
    wide = times[times["workload"] == "autoencoder"].assign(workload="wide_autoencoder", iteration_ms=1e6)
    write_probe(copied, "iteration_time", pd.concat([times, wide]))
    figure = figure_of("fig04_inversion_frequency", Results(copied))
    assert max(max(ys(line)) for axes in figure.axes[::2] for line in axes.lines) < 1e6
    for file in (copied / "probes" / "iteration_time.csv", *copied.glob("bert_inversion*")):
        file.unlink()
    figure = figure_of("fig04_inversion_frequency", Results(copied))
    assert "No results yet: probe iteration_time, bert_inversion." in caption_of(figure)
    assert "Autoencoder after 400 iterations, one decay for all periods" in caption_of(figure)
    titles = ["(a) Autoencoder data (Autoencoder)", "(b) last loss, paired by seed"]
    assert [panel.get_title() for panel in figure.axes] == titles


def test_fig13_pairs_each_method_with_its_base(results, drawn):
    """Truth: the median paired change from LAMB's to MKOR's last loss in the CSV file, in per cent."""
    figure = drawn["fig13_update_rules"]
    losses = Results(results).metrics("update_rules")
    bert = losses[(losses["workload"] == "bert_pretraining") & (losses["step"] == 150)]
    table = bert.pivot_table(index="seed", columns="optimizer", values="value")
    truth = 100 * (table["mkor"] / table["lamb"] - 1).median()
    (axes,) = [axes for axes in figure.axes if "LAMB" in axes.get_xlabel()]
    marks = [line for line in axes.lines if line.get_marker() == "o" and len(ys(line)) == 1]
    assert xs(marks[0])[0] == pytest.approx(truth)


def test_fig13_has_no_row_of_a_workload_on_which_one_rule_ran_and_none_of_other_variants(tmp_path):
    """Truth: two rules and KFAC on the autoencoder, and one rule on AlexNet."""
    ran = {"autoencoder": ("sgd", "kaisa", "mkor", "mkor_windowed", "mkor_published"), "alexnet": ("sgd", "mkor")}
    shared = {"seeds": range(3), "period": 10}
    labels = [{"workload": name, "label": label} | shared for name, of_name in ran.items() for label in of_name]
    figure = figure_of("fig13_update_rules", Results(_write(tmp_path / "test-cpu" / "embedded", *labels)))
    curves, differences = figure.axes
    names = [styles.style_of(label).name for label in ("kaisa", "mkor", "mkor_published")]
    assert [text.get_text() for text in differences.get_yticklabels()] == names
    assert not lines_of(curves, "mkor_windowed")
    assert "AlexNet" not in caption_of(figure)
    assert "; KFAC " in title_of(figure)


def test_fig13s_title_says_what_is_undecided():
    """Of two changes one has 0 in its interval; one value has no interval."""
    changes = {"mkor": change_of([-20.0, -22.0, -21.0]), "mkor_released": change_of([-20.0, -10.0, 40.0])}
    title = fig13.message(
        changes | {"kaisa": change_of([-50.0])}, pd.DataFrame({"workload": ["x"], "dataset": ["y"]}), "sgd"
    )
    assert title.endswith("exact rule −21 %, released rule −10 % (undecided); KFAC −50 % (undecided)")


def change_of(values: list[float]) -> FinalChange:
    return FinalChange(dict(enumerate(values)), estimate(values))


@pytest.mark.parametrize("spread", [1.0, 0.3, 0.052, 0.023, 0.004])
def test_fig13s_ticks_do_not_touch(spread):
    """Truth: the boxes of the labels, in panels as narrow as those of a workload."""
    changes = {"mkor": change_of([-26 * spread, -20 * spread, 14 * spread])}
    figure, (axes,) = _page.new_figure(1, 2, height=2.3)
    for panel in axes:
        fig13.draw_differences(panel, changes, ["mkor"])
    _page.arrange(figure, [], "a caption", 3)
    figure.canvas.draw()
    for panel in axes:
        boxes = [label.get_window_extent() for label in panel.get_xticklabels() if label.get_text()]
        assert len(boxes) >= 2
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_a_run_far_outside_is_a_triangle_at_the_edge_and_moves_no_axis():
    """Of three seeds of which one ends at fifty times the base's loss, the other two stay apart."""
    changes = {"mkor": change_of([-20.0, -10.0, 4900.0]), "kaisa": change_of([-30.0, -25.0, -20.0])}
    _, ((axes,),) = _page.new_figure(1, 1, height=2.0)
    fig13.draw_differences(axes, changes, ["kaisa", "mkor"])
    low, high = axes.get_xlim()
    assert -60 < low < -30 < -10 < high < 60
    assert xs(lines_of(axes, "mkor", ".")[0]) == pytest.approx([-20, -10])
    (beyond,) = lines_of(axes, "mkor", ">")
    assert xs(beyond) == [high]
    assert not lines_of(axes, "kaisa", ">")


def test_the_message_of_fig13_is_computed_from_the_final_losses(tmp_path):
    """Truth: the losses of the rows; another final loss makes another title."""
    shared = {"workload": "autoencoder", "seeds": range(3), "period": 10}
    titles = []
    for rule in ("mkor", "mkor_published"):
        root = _write(tmp_path / rule / "test-cpu" / "embedded", *(shared | {"label": name} for name in ("sgd", rule)))
        figure = figure_of("fig13_update_rules", Results(root))
        losses = Results(root).metrics("update_rules")
        last = losses[losses["step"] == losses["step"].max()].pivot_table(
            index="seed", columns="optimizer", values="value"
        )
        change = 100 * (last[rule] / last["sgd"] - 1).median()
        assert signed(change) in title_of(figure)
        titles.append(title_of(figure))
    assert titles[0] != titles[1]


def test_a_panel_is_named_by_the_data_of_its_runs():
    """On a slide the name of the paper's experiment would say that digits are ImageNet."""
    runs = pd.DataFrame({"workload": ["resnet20"], "dataset": ["scikit-learn's digits, at 16 x 16"]})
    assert styles.data_title(runs) == "Digits (ResNet-20)"
    assert styles.data_title(runs, width=12) == "Digits\n(ResNet-20)"
    titles = styles.data_titles([("resnet50_imagenet", runs), ("update_rules", runs)])
    assert titles == ["Digits (ResNet-20)\nresnet50_imagenet", "Digits (ResNet-20)\nupdate_rules"]
    assert styles.data_titles([("resnet50_imagenet", runs)]) == ["Digits (ResNet-20)"]


def test_fig17_names_all_leaders_that_no_interval_sets_apart(drawn):
    """Truth: Muon and MKOR-Muon take as many iterations, the geometric mean of 2 / 5, 2 / 6 and 2 / 8 of the base's."""
    title = title_of(drawn["fig17_field"])
    assert title.startswith("Muon and MKOR-Muon lead 5 optimizers at 0.32 times the base's iterations; MKOR ranks 4 at")


def test_an_interval_that_leaves_a_panel_has_an_arrow():
    ratio = mean_ratio(np.log([0.2, 1.0, 5.0]))
    assert 0.1 > ratio.low > 0
    assert (cut(ratio, 0.1, 100.0).low, cut(ratio, 0.1, 100.0).high) == (0.0, ratio.high)
    assert (cut(ratio, 0.01, 10.0).low, cut(ratio, 0.01, 10.0).high) == (ratio.low, math.inf)


def test_fig17s_appendices_tell_curves_apart_without_color(drawn):
    """Names stand beside the markers and dashes of their lines, and bands have an entry."""
    profiles = drawn["fig17_families_appendix"]
    named = [text.get_text() for text in profiles.axes[1].get_legend().get_texts()]
    assert named == ["Muon", "MKOR-Muon"]
    assert [line.get_marker() for line in profiles.axes[1].get_legend().get_lines()] == ["*", "o"]
    assert legend_of(profiles) == ["95 % interval of the family's first", "the other families"]
    assert legend_of(drawn["fig17_curves_appendix"]) == ["AdamW", "Muon", "MKOR (exact rule)", "one run"]


def test_fig20_draws_iterations_to_eight_targets_and_profiles(tmp_path):
    """Truth: MKOR takes half of LAMB's iterations to every target; KAISA, as slow as LAMB, stops after three."""
    root = tmp_path / "test-cpu" / "embedded"
    steps = dict.fromkeys(("lamb", "mkor", "kaisa", "eva"), [300.0] * 2) | {"mkor": [150.0] * 2}
    trained = swept("autoencoder_lamb", steps, workload="x")
    given = [{"base": "lamb"} for _ in trained.runs.index]
    # At half of the steps the loss is 7.1, the third target; KAISA's falls no further than 7, and Eva's does not fall.
    label, losses = trained.metrics["optimizer"], trained.metrics["value"]
    losses = losses.mask(label == "kaisa", losses.clip(lower=7.0)).mask(label == "eva", losses.max())
    metrics = trained.metrics.assign(value=losses)
    root.mkdir(parents=True)
    for name in ("autoencoder_lamb", "update_rules"):  # the same runs, which stand in two experiments
        write_rows(root / f"{name}.csv", EVALUATION_COLUMNS, metrics.assign(experiment=name))
        runs = trained.runs.assign(hyperparameters=given, experiment=name)
        write_rows(root / f"{name}.runs.csv", RUN_COLUMNS, runs)
    above, below = (figure_of(f"fig20_{name}_appendix", Results(root)) for name in ("steps", "profiles"))
    (upper, _), (lower, _) = above.axes, below.axes
    assert ("Eva" in legend_of(above), "Eva" in legend_of(below)) == (False, True)  # it has no curve above
    for label, steps in (("mkor", 150), ("lamb", 300)):
        assert ys(lines_of(upper, label)[-1]) == pytest.approx([steps * share for share in SHARES])
    mkor, kaisa = (ys(lines_of(lower, label)[-1]) for label in ("mkor", "kaisa"))
    assert mkor[1] > 0
    assert (max(mkor), max(kaisa)) == (1, pytest.approx(3 / 8))
    figure = figure_of("fig20_target_sweep", Results(root))
    (middle,) = (line for line in figure.axes[0].lines if line.get_linewidth() > 2)
    assert ys(middle) == pytest.approx([0.5] * 8)
    assert [line.get_marker() for line in figure.axes[0].lines].count("o") == 1  # one experiment, under two names
    assert legend_of(figure) == ["median of experiments", "Autoencoder_lamb data (x), over LAMB"]
    assert title_of(figure) == (
        "To the base's quality at 100 % of its run MKOR takes 0.50 and KFAC 1.00 of its iterations (one experiment)"
    )


def test_fig20_compares_medians_of_the_same_experiments():
    """MKOR's third experiment, in which KFAC did not run, stands in no median."""
    ratios = {"mkor": {"a": {1.0: 0.4}, "b": {1.0: 0.8}, "c": {1.0: 0.1}}, "kaisa": {"a": {1.0: 0.6}, "b": {1.0: 0.7}}}
    kept = fig20.shared(ratios)
    assert kept == {"mkor": {"a": {1.0: 0.4}, "b": {1.0: 0.8}}, "kaisa": ratios["kaisa"]}
    assert fig20.message(kept) == (
        "To the base's quality at 100 % of its run MKOR takes 0.60 and KFAC 0.65 of its iterations (median of 2 "
        "experiments); MKOR fewer than KFAC in 1 of 2"
    )
    assert fig20.shared({"mkor": ratios["mkor"], "kaisa": {}}) == {"mkor": ratios["mkor"], "kaisa": {}}


def test_fig20_without_a_target_says_so(tmp_path):
    root = _write(tmp_path / "test-cpu" / "embedded", {"workload": "x", "label": "sgd", "seeds": [0]})
    assert "no experiment has runs with a target" in texts_in(figure_of("fig20_target_sweep", Results(root)).axes[0])[0]


def test_fig20_names_experiments_without_a_sweep(results, drawn):
    """Only experiments with targets can have one."""
    aimed = [name for name in Results(results).experiments() if Results(results).runs(name)["target"].notna().any()]
    without = {"batch_size", "ladder", "resnet_cifar10_lr", "width"}
    workloads = sum(Results(results).runs(name)["workload"].nunique() for name in aimed if name not in without)
    assert sum(bool(panel.get_title()) for panel in drawn["fig20_steps_appendix"].axes) == workloads
    caption = caption_of(drawn["fig20_target_sweep"])
    for name in ("batch_size", "ladder", "resnet_cifar10_lr", "width"):
        assert f"{name} has several runs of a label and seed" in caption


def test_fig13_marks_a_diverged_run_and_counts_it(drawn):
    figure = drawn["fig13_update_rules"]
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert crosses == lines_of(figure.axes[0], "mkor_published", "x")
    assert len(crosses) == 1
    assert texts_in(figure.axes[1]) == ["5 of 6", "finished"]
    assert "Diverged: Autoencoder MKOR (published rule) seed 4." in caption_of(figure)


@pytest.mark.parametrize(
    ("labels", "texts"),
    [
        ([{"label": "sgd"}, {"label": "mkor_published", "failed": (0, 1, 2)}], ["0 of 3", "finished"]),
        ([{"label": "mkor"}], ["the base optimizer has no run to pair with"]),
    ],
)
def test_fig13_says_why_a_rule_has_no_difference(labels, texts, tmp_path):
    shared = {"workload": "autoencoder", "seeds": range(3), "period": 10}
    root = _write(tmp_path / "test-cpu" / "embedded", *(shared | label for label in labels))
    assert texts_in(figure_of("fig13_update_rules", Results(root)).axes[1]) == texts


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_written_as_csv_markdown_and_html_and_names_its_sources(name, results, tmp_path):
    assert main([name, "--results", str(results), "--out-dir", str(tmp_path)]) == 0
    frame = pd.read_csv(tmp_path / f"{name}.csv", keep_default_na=False)
    assert frame.columns[-1] == "data"
    assert len(frame)
    for data in frame["data"]:
        assert data or name == "claims"  # one that is not tested has none
        for source in filter(None, data.split("; ")):
            file, _, which = source.partition(": ")
            path = (ROOT if file.startswith("workflow/") else results) / file
            assert path.is_file(), source
            if which.startswith("runs "):
                assert {*which.removeprefix("runs ").split(", ")} <= {*pd.read_csv(path, dtype=str)["run"]}, source
    # The columns of claims that do not fit on a page stand below the table, claim by claim.
    above, *below = (tmp_path / f"{name}.md").read_text().split("\n## ")
    lines = above.splitlines()
    # The sources of the rows stand in the CSV alone.
    columns = len(NARROW) if name == "claims" else len(frame.columns.drop("data"))
    assert next(line for line in lines if line.startswith("| ")).count("|") == columns + 1
    assert len([line for line in lines if line.startswith("| ")]) == len(frame) + 2
    page = (tmp_path / f"{name}.html").read_text()
    assert page.count("<tr") == len(frame) + 1
    assert "test-cpu" in lines[-1]
    assert "test-cpu" in page
    if name == "claims":
        combined = {"unit", "measured", "interval"}  # with others in one column of the page
        for section, row in zip(below, frame.drop(columns=[*NARROW, *combined]).to_dict("records"), strict=True):
            told = [line[2:].partition(":")[0] for line in section.splitlines() if line.startswith("- ")]
            assert told == [column for column, value in row.items() if value != ""]
        assert [section.partition("\n")[0] for section in below] == list(frame["id"])
    else:
        assert below == []


@pytest.mark.parametrize(
    ("ordered", "said"), [(["0.5"], "0.5"), (["0.5", "0.5"], "0.5"), (["0.1", "0.3", "0.5"], "0.1 to 0.5")]
)
def test_numbers_are_told_by_the_first_and_the_last(ordered, said):
    assert _page.span(ordered) == said


@pytest.mark.parametrize(
    ("seconds", "unit"), [(0.02, "ms"), (3, "s"), (119, "s"), (600, "min"), (8000, "h"), (3 * 86400, "d")]
)
def test_time_unit(seconds, unit):
    assert _page.time_unit(seconds)[1] == unit


def test_the_plan_of_an_artefact_names_its_data_and_its_code():
    plan = Plan.load()
    fig04 = describe("figures", "fig04_inversion_frequency")
    needed = inputs(fig04, plan)
    assert f"{plan.results}/probes/iteration_time.csv" in needed["measured"]
    assert f"{plan.results}/bert_inversion.csv" in needed["measured"]
    assert needed["published"] == ["workflow/paper/iteration_time_ms.csv"]
    assert {"workflow/bench/figures/_page.py", "workflow/bench/analysis/captions.py"} <= set(needed["code"])
    assert all(Path(file).is_file() for file in needed["code"] + needed["published"])
    # These figures are of the evidence and field tiers' experiments.
    of_field = {"fig17_curves_appendix", "fig17_families_appendix", "fig17_field", "fig17_ratios_appendix"}
    elsewhere = of_field | {"fig21_ladder", "fig22_batch_size", "fig23_width"}
    assert {artefact.name for artefact in planned_artefacts(plan, "figures")} == {*FIGURES} - elsewhere
    budget = describe("figures", "fig19_tuning_budget")
    tables = sorted((CONFIG / "tuned" / "embedded").glob("*.trials.csv"))
    assert inputs(budget, plan)["trials"] == [str(table.relative_to(Path.cwd())) for table in tables]
    assert budget.name not in {artefact.name for artefact in planned_artefacts(Plan.load(tier="paper"), "figures")}
    assert len(workloads_of(describe("probes", "iteration_time"), plan)) == 2


def test_an_artefact_reads_no_more_than_its_file_declares():
    """Every published file and probe that a module reads is in the lists of its inputs."""
    for kind in ("figures", "tables"):
        for name in available(kind):
            artefact = describe(kind, name)
            text = "".join(
                file.read_text() for file in sources(artefact.module) if name in (file.stem, file.parent.name)
            )
            for published_file in (BENCH.parent / "paper").glob("*.csv"):
                if f'published("{published_file.stem}")' in text:
                    assert published_file.stem in artefact.published, (name, published_file.stem)
            for probe in ("iteration_time", "numerics"):
                if f'probe("{probe}"' in text:
                    assert probe in artefact.probes, (name, probe)


def test_inputs_are_literals_or_imported_from_where_they_are(tmp_path, monkeypatch):
    file = tmp_path / "figures" / "fig99_odd.py"
    file.parent.mkdir()
    monkeypatch.setattr(artefacts, "BENCH", tmp_path)
    for text in ("EXPERIMENTS = tuple(some_call())\n", "from typing import Final as NAMES\nEXPERIMENTS = NAMES\n"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"fig99_odd.py: EXPERIMENTS must be a literal"):
            describe("figures", "fig99_odd")
    file.write_text(
        "from workflow.bench.plan.tiers import FIELD as NAMES\nEXPERIMENTS = NAMES\nPROBES = ('field_steps',)\n"
    )
    assert describe("figures", "fig99_odd") == Artefact("figures", "fig99_odd", FIELD, ("field_steps",))


def test_the_probe_and_the_artefacts_of_the_field_name_the_same_experiments():
    """The probe's module states its own: its syntax decides which of its rows are current."""
    made = {"field_steps": "probes", "fig17_field": "figures", "field_results": "tables", "field_costs": "tables"}
    assert {describe(kind, name).experiments for name, kind in made.items()} == {FIELD}


def test_time_to_target_counts_the_censored_and_compares_by_seed(tmp_path):
    """Truth: by hand. MKOR takes two thirds of LAMB's steps; KAISA reaches the target on one seed of three."""
    parts = reaching_parts(lamb=120.0, mkor=80.0, kaisa=90.0)
    for run, steps in zip(parts[1][1], (80.0, 242 / 3, 244 / 3), strict=True):  # LAMB's 120, 121, 122
        run["crossing_step"] = steps
    for run in parts[2][1][1:]:
        run |= reaching(None, 0.03)
    write_experiment(tmp_path, "bert_pretraining", parts)
    table = _times_to_target(tmp_path)
    assert list(table["reached"]) == [3, 3, 1]
    assert table.loc["mkor", "target"] == "validation loss ≤ 4.2"
    assert table.loc["mkor", "fewer iterations than its base"] == "1.5 [1.5, 1.5]"
    assert table.loc["kaisa", "iterations"] == "not reached"
    assert table.loc["lamb", "iterations"] == "121 (120, 121, 122)"
    assert table.loc["lamb", "fewer iterations than its base"] == table.loc["kaisa", "less time than kaisa"] == ""
    # A step takes 30 ms, MKOR's 20 and KAISA's 50.
    assert table.loc["mkor", "ms a step"] == 20
    assert table.loc["mkor", "training seconds"].startswith("1.61 (")
    assert table.loc["mkor", "less time than its base"] == "2.25 [2.25, 2.25]"
    # The rival did not reach the target on two seeds, so that the ratio has no upper bound.
    assert table.loc["mkor", "fewer iterations than kaisa"] == "∞"


def test_a_run_that_was_too_short_gives_no_ratio(tmp_path):
    """Truth: by hand. On seed 1 LAMB ended after 70 steps, on seed 2 it diverged there; MKOR takes 80, 81 and 82."""
    lamb, mkor = reaching_parts(lamb=120.0, mkor=80.0)
    for run, status in zip(lamb[1][1:], ("finished", "diverged"), strict=True):
        run.update(reaching(None, 0.03), status=status, steps_done=70, train_seconds=2.1)
    write_experiment(tmp_path, "bert_pretraining", [lamb, mkor])
    table = _times_to_target(tmp_path, mkor=30.0)
    assert table.loc["mkor", "fewer iterations than its base"] == "1 of 3 too short to tell"
    assert table.loc["mkor", "less time than its base"] == "1 of 3 too short to tell"
    # If MKOR's steps are shorter, it is there before LAMB's 70 steps are over.
    assert _times_to_target(tmp_path, mkor=20.0).loc["mkor", "less time than its base"] == "∞"


def _times_to_target(root: Path, mkor: float = 20.0) -> pd.DataFrame:
    """Make the table with steps of ``mkor`` ms of MKOR, 50 of KAISA and 30 of others, and return it by label."""
    write_probe(root, "step_time", step_time(Results(root).runs("bert_pretraining"), {"mkor": mkor, "kaisa": 50.0}))
    assert main(["time_to_target", "--results", str(root)]) == 0
    return pd.read_csv(root / "tables" / "time_to_target.csv", keep_default_na=False).set_index("optimizer")


@pytest.mark.parametrize(
    ("rounds", "reason"),
    [(None, "step_time.csv is missing or empty"), (range(45), "the machine was busy: other processes slowed 45 of 45")],
)
def test_without_times_of_steps_the_iterations_stand_and_times_are_not_tested(tmp_path, rounds, reason):
    write_experiment(tmp_path, "bert_pretraining", reaching_parts(lamb=120.0, mkor=80.0))
    if rounds is not None:
        write_probe(tmp_path, "step_time", step_time(Results(tmp_path).runs("bert_pretraining"), busy=rounds))
    assert main(["time_to_target", "--results", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "tables" / "time_to_target.csv", keep_default_na=False).set_index("optimizer")
    assert table.loc["mkor", "fewer iterations than its base"].startswith("1.49 [")
    columns = ["ms a step", "training seconds", "less time than its base"]
    assert table.loc["mkor", columns].tolist() == ["not tested"] * 3
    assert f"Not tested: {reason}" in (tmp_path / "tables" / "time_to_target.md").read_text()


def test_a_probe_of_all_experiments_plans_no_table_of_absent_ones(tmp_path):
    """step_time measures what experiments train: the table of fine-tuning needs the fine-tuning."""
    config = make_folder(tmp_path / "config")
    write(config, "update_rules", block(optimizer("sgd")))
    planned = {artefact.name for artefact in planned_artefacts(load(config), "tables")}
    assert {"aa_test", "time_to_target", "claims"} <= planned
    assert not {"table2_squad", "table3_glue_average", "table4_glue_tasks"} & planned


def test_time_to_target_without_a_target_is_a_table_without_rows(tmp_path):
    _write(tmp_path, {"workload": "autoencoder", "label": "sgd", "seeds": range(2)})
    assert main(["time_to_target", "--results", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "tables" / "time_to_target.csv")
    assert table.empty
    assert "reached" in table


def test_a_figure_of_skipped_runs_is_made_with_their_reason(tmp_path, capsys, monkeypatch):
    """Runs without their data set are skipped; the figure of the experiment is still made."""
    _write(tmp_path, {"workload": "autoencoder", "label": "sgd", "seeds": range(2)})
    runs = pd.read_csv(tmp_path / "update_rules.runs.csv").assign(
        status="skipped", reason="CIFAR-100 not found at data"
    )
    runs.to_csv(tmp_path / "update_rules.runs.csv", index=False)
    metrics = pd.read_csv(tmp_path / "update_rules.csv").drop_duplicates("run").assign(status="skipped")
    metrics = metrics.assign(**dict.fromkeys(("step", "split", "metric", "value", "train_seconds")))
    metrics.to_csv(tmp_path / "update_rules.csv", index=False)
    drawn: list[Figure] = []
    monkeypatch.setattr(plt, "close", drawn.append)
    assert main(["fig13_update_rules", "--results", str(tmp_path)]) == 0
    assert texts_in(drawn[0].axes[0]) == ["every run was skipped"]
    caption = from_rst((tmp_path / "figures" / "fig13_update_rules.rst").read_text())
    assert "Skipped: Autoencoder SGD seeds 0-1 [CIFAR-100 not found at data]." in caption
    assert "CIFAR-100 not found at data" in " ".join(below(drawn[0]))
    assert (tmp_path / "figures" / "fig13_update_rules.pdf").stat().st_size > 0
    # Runs that broke down in training are not skipped.
    runs.assign(status="diverged").to_csv(tmp_path / "update_rules.runs.csv", index=False)
    assert main(["fig13_update_rules", "--results", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("fig13_update_rules: ")


def test_an_unknown_artefact_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]):
    assert main(["fig13_update_rule", "--results=x"]) == 1
    assert capsys.readouterr().err == (
        "name = \"fig13_update_rule\": unknown artefact; did you mean 'fig13_update_rules'?\n"
    )
