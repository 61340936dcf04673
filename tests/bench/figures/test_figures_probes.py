"""Figures of probes: they draw the values of the probes' rows, and name the probes that are absent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from tests.support import synthetic_probes
from tests.support.figures import below, caption_of, figure_of, legend_of, lines_of, texts_in, title_of, xs, ys
from tests.support.synthetic_probes import COUNTED, PHASE_MS, PROJECTED, REFRESH, SLOPES, write_probes
from workflow.bench.analysis import styles
from workflow.bench.figures import fig03_step_breakdown as fig03
from workflow.bench.figures import fig08_kfac_spectra as fig08
from workflow.bench.figures import fig10_rank1_over_training as fig10
from workflow.bench.figures import fig15_communication as fig15
from workflow.bench.figures import fig18_factors as fig18
from workflow.bench.figures._panels import amount
from workflow.bench.figures.fig09_speedup_appendix import speedups
from workflow.bench.results.tables import NoDataError, Results

Draw = Callable[..., Figure]


@pytest.fixture(scope="module")
def draw(tmp_path_factory: pytest.TempPathFactory) -> Draw:
    """Return a function that draws a figure by name from synthetic probes, some of which it may replace.

    A figure of the usual probes is drawn once.
    """
    usual: dict[str, Figure] = {}

    def drawn(name: str, **instead: pd.DataFrame) -> Figure:
        if name in usual and not instead:
            return usual[name]
        root = write_probes(tmp_path_factory.mktemp("results") / "test-cpu" / "embedded", **instead)
        figure = figure_of(name, Results(root))
        figure.canvas.draw()
        plt.close(figure)  # its artists can still be read
        if not instead:
            usual[name] = figure
        return figure

    return drawn


def lines(axes: Axes, label: str, *, hollow: bool = False, dashed: bool = False) -> list[Line2D]:
    """Return a method's lines with filled or hollow markers, or its dashed lines."""
    if dashed:
        return [line for line in lines_of(axes, label) if line.get_linestyle() == "--"]
    marked = [line for line in lines_of(axes, label) if line.get_linestyle() == "None"]
    return [line for line in marked if (line.get_markerfacecolor() == "none") == hollow]


def bar_ends(axes: Axes) -> list[float]:
    """Return the x at which each horizontal stack ends, from top to bottom."""
    ends: dict[float, float] = {}
    for bar in axes.patches:
        assert isinstance(bar, Rectangle)
        place = round(bar.get_y(), 6)
        ends[place] = max(ends.get(place, 0.0), bar.get_x() + bar.get_width())
    return [ends[place] for place in sorted(ends)]


def test_fig03_stacks_the_optimizers_phases_up_to_their_sum(draw):
    """Truth: the sum of the phases except forward and backward, times the repeats' mean factor of 1.1."""
    figure = draw("fig03_step_breakdown")
    own = sum(ms for phase, ms in PHASE_MS.items() if phase not in fig03.REFERENCE)
    # Base, KAISA at both periods, Eva, MKOR, each with one and two workers.
    average = [PHASE_MS["update"]] * 2 + [own] * 6 + [own + PHASE_MS["factor"]] * 2
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert bar_ends(axes) == pytest.approx([1.1 * ms for ms in average])
    assert "Eva, every step" in texts_in(figure.axes[0])
    kfac, mkor = (f"{1.1 * ms:.1f}" for ms in (own, own + PHASE_MS["factor"]))
    each = [f"KFAC {kfac}, MKOR {mkor} ms ({name})" for name in ("BERT", "ResNet")]
    assert title_of(figure).endswith(f"on one worker: {'; '.join(each)}")
    grows = PHASE_MS["capture"] + PHASE_MS["factor"] + PHASE_MS["communication"]
    refreshing = own + (REFRESH - 1) * grows
    of_mkor = refreshing + REFRESH * PHASE_MS["factor"]
    assert f"BERT KFAC {refreshing:.1f}, BERT MKOR {of_mkor:.1f}, ResNet KFAC" in caption_of(figure)


def test_fig03_gives_the_span_of_forward_and_backward(draw):
    """The passes are not the same for every optimizer: a step that captures takes longer in them, too."""
    rows = synthetic_probes.step_breakdown()
    is_pass = rows["phase"].isin(fig03.REFERENCE)
    slow = is_pass & (rows["optimizer"] == "eva") & (rows["workload"] == "bert")
    rows.loc[slow, "ms"] *= 2
    rows.loc[is_pass, "refresh_ms"] *= 1.5
    figure = draw("fig03_step_breakdown", step_breakdown=rows)
    usual = 1.1 * (PHASE_MS["forward"] + PHASE_MS["backward"])
    for axes, span in zip(figure.axes, (f"{usual:.0f} to {2 * usual:.0f} ms", f"{usual:.0f} ms"), strict=True):
        assert f"not drawn: forward + backward, {span}" in texts_in(axes)
    assert "backward of a step with an update take 1.50 times as long as those of the others" in caption_of(figure)
    assert "same for every optimizer" not in caption_of(figure)


def test_fig03_names_what_was_not_timed(draw):
    figure = draw("fig03_step_breakdown")
    assert "Also timed, not drawn: Autoencoder." in caption_of(figure)
    assert "MKOR's update rule: exact (Sherman-Morrison)" in caption_of(figure)
    rows = synthetic_probes.step_breakdown()
    figure = draw("fig03_step_breakdown", step_breakdown=rows[rows["workload"] != "resnet"])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["BERT"]
    assert "No results yet: resnet in probe step_breakdown." in caption_of(figure)


def test_fig03_gives_several_base_optimizers_rows_of_their_own():
    rows = synthetic_probes.step_breakdown()
    assert fig03.bases(rows) == synthetic_probes.WORKLOADS
    more = rows[(rows["workload"] == "bert") & (rows["optimizer"] == "lamb")].assign(optimizer="adamw")
    assert fig03.bases(pd.concat([rows, more])) == {}


def test_fig05_draws_every_error_and_reaches_above_one(draw):
    rows = synthetic_probes.rank1_error(highest=1.4)
    figure = draw("fig05_rank1_error", rank1_error=rows)
    drawn = sorted(
        float(height)
        for axes in figure.axes
        for dots in axes.collections
        for height in np.ma.getdata(dots.get_offsets())[:, 1]
    )
    assert drawn == pytest.approx(sorted(rows["error"]))
    assert figure.axes[0].get_ylim()[1] > 1.4
    titles = ["BERT, 3 layers", "ResNet, 3 layers", "Autoencoder, 3 layers"]
    assert [axes.get_title() for axes in figure.axes] == titles
    assert title_of(figure).startswith(
        "BERT, ResNet and Autoencoder: median errors of MKOR's rank-1 matrix of activations"
    )
    # Moments that are zero are counted.
    zero = (rows["layer"] == "first") & (rows["step"] == 0) & (rows["side"] == "gradient") & (rows["seed"] == 0)
    figure = draw("fig05_rank1_error", rank1_error=rows.assign(error=rows["error"].mask(zero)))
    assert "Left out: 3 moments that are zero" in caption_of(figure)


def test_fig10_means_are_over_layers_and_seeds(draw):
    rows = synthetic_probes.rank1_error()
    figure = draw("fig10_rank1_over_training")
    of_bert = rows[(rows["workload"] == "bert")].groupby(["side", "approximation", "step"])["error"]
    for (side, approximation), look in fig10.LINES.items():
        (line,) = (line for line in figure.axes[0].lines if line.get_marker() == look.marker)
        assert ys(line) == pytest.approx(of_bert.mean()[side, approximation].tolist())
        assert xs(line) == list(synthetic_probes.STEPS)
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    heights = [sorted(set(band[band[:, 0] == step][:, 1])) for step in synthetic_probes.STEPS]
    quartiles = [of_bert.quantile(share)["activation", "mean"] for share in (0.25, 0.75)]
    assert np.asarray(heights) == pytest.approx(np.transpose(quartiles))


def test_fig10s_title_is_of_gradients(draw):
    rows = synthetic_probes.rank1_error()
    last = rows[(rows["step"] == rows["step"].max()) & (rows["workload"] == "bert") & (rows["side"] == "gradient")]
    means = last.groupby("approximation")["error"].mean()
    title = title_of(draw("fig10_rank1_over_training", rank1_error=rows[rows["workload"] == "bert"]))
    assert title.endswith(f"gradients has an error of {means['mean']:.2f}, the best one {means['best']:.2f}")


def test_fig08_draws_singular_factors_at_the_limit_of_float32(draw):
    rows = fig08.resolved(synthetic_probes.spectra())
    singular = rows["unresolved"]
    assert (rows.loc[singular, "layer"] == "second").all()
    assert (rows.loc[singular, "smallest"] == 1e-4).all()
    assert (rows.loc[singular, "limit_share"] == 1).all()
    # The condition number of 1e4 is a tenth of 10 / 1e-4, the largest that float32 resolves.
    regular = rows[(rows["factor"] == "batch") & ~singular]
    assert regular["limit_share"].tolist() == pytest.approx([0.1] * len(regular))
    figure = draw("fig08_kfac_spectra")
    assert "0 of 18 running, 9 of 18 batch factors" in caption_of(figure)
    assert title_of(figure).endswith("0 of 2 (BERT), 0 of 2 (ResNet), 0 of 2 (Autoencoder)")
    assert max(max(ys(line)) for line in figure.axes[0].lines if ys(line)) == 1


def test_fig08_has_one_line_for_singular_factors_whatever_their_sizes(draw):
    """Layers of other sizes have other limits: a share of each layer's own puts all singular factors on one line."""
    rows = synthetic_probes.spectra()
    larger = rows.assign(layer=rows["layer"] + ", larger", resolution=4 * rows["resolution"])
    figure = draw("fig08_kfac_spectra", spectra=pd.concat([rows, larger]))
    unresolved = fig08.resolved(pd.concat([rows, larger])).query("unresolved and workload == 'bert'")
    assert unresolved["smallest"].nunique() == 2
    thin = [line for line in figure.axes[0].lines if line.get_linewidth() == 0.4]
    at_limit = [y for line in thin for y in ys(line) if y == 1]
    assert len(at_limit) == len(unresolved)


def test_fig08_appendix_marks_what_float32_does_not_resolve(draw):
    smallest = draw("fig08_kfac_spectra_appendix").axes[3]
    (at_most,) = (line for line in smallest.lines if line.get_marker() == "v")
    assert ys(at_most) == [1e-4] * len(synthetic_probes.STEPS)
    # The weight of the start, the identity.
    (weight,) = (line for line in smallest.lines if line.get_color() == "#000000")
    assert weight.get_linestyle() == "--"
    assert ys(weight) == pytest.approx([0.95 ** (step + 1) for step in synthetic_probes.STEPS])


def test_fig09_speedups_are_paired_by_repeat(draw):
    """Truth: the step of p workers takes 1 / p ** 0.5 of the step of one worker in every repeat."""
    figure = draw("fig09_speedup_appendix")
    (panel,) = figure.axes
    for label in ("sgd", "mkor", "kaisa"):
        markers = [line for line in lines(panel, label) if line.get_marker() != "."]
        dots = [line for line in lines(panel, label) if line.get_marker() == "."]
        assert [ys(line)[0] for line in markers] == pytest.approx([2**0.5, 2])
        # The repeats stand beside the marker, which would hide them.
        for marker, beside in zip(markers, dots, strict=True):
            assert ys(beside) == pytest.approx(ys(marker) * 3)
            assert min(xs(beside)) > xs(marker)[0] + 0.03
    assert title_of(figure) == "Wide autoencoder, measured: speedup of 2 workers SGD 1.41, KFAC 1.41, MKOR 1.41"
    assert "on a machine of 2 cores" in caption_of(figure)


def test_fig09_names_the_means_that_it_draws_and_not_the_extremes(draw):
    """The title once had the least and the most of single repeats, which no marker showed."""
    rows = synthetic_probes.scaling()
    rows.loc[(rows["workers"] == 2) & (rows["repeat"] == 0), "value"] *= 2
    figure = draw("fig09_speedup_appendix", scaling=rows)
    drawn = {f"{ys(lines(figure.axes[0], label)[0])[0]:.2f}" for label in ("sgd", "mkor", "kaisa")}
    assert drawn == {f"{2**0.5 / 2 ** (1 / 3):.2f}"}
    assert title_of(figure).endswith(f"MKOR {drawn.pop()} (undecided)")


def test_fig09_leaves_a_repeat_without_its_pair_out():
    steps = pd.DataFrame({"workers": [1, 2, 2], "repeat": [0, 0, 1], "value": [8.0, 5.0, 1.0]})
    assert speedups(steps) == {1: {0: 1.0}, 2: {0: 1.6}}
    assert speedups(steps[steps["workers"] == 2]) == {}


def test_fig09_has_the_model_where_few_workers_were_measured(draw):
    figures = [draw("fig09_scalability"), draw("fig09_scalability", scaling=synthetic_probes.scaling().head(0))]
    for figure in figures:
        assert [axes.get_ylabel() for axes in figure.axes] == ["step ÷ base's"]
        assert "one repeat" not in legend_of(figure)
    assert [("probe scaling" in caption_of(figure)) for figure in figures] == [False, True]


@pytest.mark.parametrize(("cores", "is_measured"), [(16, True), (2, False)])
def test_fig09_has_the_measured_speedup_where_many_workers_with_a_core_each_were_measured(draw, cores, is_measured):
    """Truth: an efficiency of 1 / p ** 0.5, so that 16 workers are 4 times as fast as one."""
    rows = synthetic_probes.scaling(cores=cores)
    many = rows[rows["workers"] == 4].assign(workers=16, batch=64)
    figure = draw("fig09_scalability", scaling=pd.concat([rows, many.assign(value=many["value"] / 2)]))
    assert (figure.axes[0].get_ylabel() == "speedup over one worker") == is_measured
    expected = "Wide autoencoder, measured: speedup of 16 workers SGD 4.00, KFAC 4.00, MKOR 4.00"
    assert (title_of(figure) == expected) == is_measured
    assert len(figure.axes) == 1


def test_fig09_of_one_worker_has_no_speedup(draw):
    """A GPU alone is one worker, of which the probe measures a step without others."""
    rows = synthetic_probes.scaling()
    with pytest.raises(NoDataError, match="no more than one worker"):
        draw("fig09_speedup_appendix", scaling=rows[rows["workers"] == 1])


def test_fig09_draws_the_model_dashed_and_labels_it(draw):
    """Truth: `COUNTED`; a sharded base keeps 1e11 bytes over the ranks, a method 1e10 more on each."""
    figure, appendix = draw("fig09_scalability"), draw("fig09_model_appendix")
    (small,), (steps, memory, sent) = figure.axes, appendix.axes
    for label, factor in COUNTED.items():
        if label != "mkor_windowed":
            assert [ys(line) for line in lines(small, label, dashed=True)] == [pytest.approx([factor] * 3)]
        assert [ys(line) for line in lines(steps, label, dashed=True)] == [pytest.approx([factor] * 3)]
        kept = [1e11 / gpus + 1e10 for gpus in (8, 64, 1024)]
        assert [ys(line) for line in lines(memory, label, dashed=True)] == [pytest.approx(kept)]
        assert ys(lines(sent, label, dashed=True)[0]) == pytest.approx([1e8] * 3)
    assert not lines(small, "mkor_windowed", dashed=True)
    assert "a step takes 1.60 (MKOR) and 2.50 (KFAC) times the base optimizer's" in title_of(figure)
    assert "All of it is computed by a model" in " ".join(below(figure))
    assert "at the floor, by formulas, BERT-Large's on 1,024 GPUs take MKOR (exact rule) 1.50" in caption_of(figure)
    assert "at 64 GPUs over 8: LAMB 1, MKOR (exact rule) 1" in caption_of(figure)
    assert "Under DistributedDataParallel a rank would keep: AdamW 100 GB, MKOR 110 GB." in caption_of(appendix)


def test_fig09_has_no_step_of_what_a_gpus_memory_does_not_hold(draw):
    rows = synthetic_probes.projection()
    few = (rows["optimizer"] == "kaisa_sharded") & (rows["workers"] == 8)
    steps, memory, _ = draw(
        "fig09_model_appendix", projection=rows.assign(memory_bytes=rows["memory_bytes"].mask(few, 9e10))
    ).axes
    assert xs(lines(steps, "kaisa", dashed=True)[0]) == [64, 1024]
    assert ys(lines(memory, "kaisa", dashed=True)[0])[0] == 9e10


def test_fig09_models_legend_has_the_lines_that_are_drawn(draw):
    figure = draw("fig09_model_appendix")
    entries = figure.legends[0].get_lines()
    assert {entry.get_color() for entry in entries if entry.get_linestyle() == "--"} == {
        line.get_color() for axes in figure.axes for line in axes.lines if line.get_marker() != "None"
    }


def test_fig09_of_an_earlier_version_has_the_floor(draw):
    figure = draw("fig09_scalability", projection=synthetic_probes.projection().drop(columns="step_ms_counted"))
    assert ys(lines(figure.axes[0], "mkor", dashed=True)[0]) == pytest.approx([PROJECTED["mkor"]] * 3)
    assert "kernels move" not in caption_of(figure)


def test_fig09_draws_what_ranks_keep_and_send_and_counts_exact_formulas(draw):
    """Truth: 4 GB over the ranks where sharded, and 1 GB of state; a refresh in 10 steps sends 20 MB, others 2 MB."""
    figure = draw("fig09_ranks_appendix")
    memory, sent = figure.axes
    for label in ("sgd", "mkor_windowed"):
        state = 0.0 if label == "sgd" else 1e9
        whole, cut = [4e9 + state] * 2, [4e9 / ranks + state for ranks in (2, 4)]
        assert [ys(line) for line in lines(memory, label)] == [pytest.approx(whole), pytest.approx(cut)]
    assert [ys(line) for line in lines(sent, "mkor_windowed")] == [pytest.approx([(20e6 + 9 * 2e6) / 10] * 2)] * 2
    # Each marker is in its group, whose name says how many ranks there are.
    assert [tick.get_text() for tick in sent.get_xticklabels()] == ["2\nDDP", "4\nDDP", "2\nsharded", "4\nsharded"]
    assert [round(x) for line in lines(memory, "sgd") for x in xs(line)] == [0, 1, 2, 3]
    # One formula is wrong by 1 byte.
    assert title_of(figure).endswith("exactly in 107 of 108 counted cases")
    assert "Tensors that windowed MKOR makes in a sharded step: 3 MB at any time, beside 1 GB" in caption_of(figure)


def test_fig09_names_the_probe_that_has_not_run(draw):
    figure = draw("fig09_scalability", projection=synthetic_probes.projection().head(0))
    assert len(figure.axes) == 1
    assert "ideal speedup" in legend_of(figure)
    assert "No results yet: probe projection." in caption_of(figure)


def test_fig09_leaves_an_earlier_model_of_this_machines_links_out(draw):
    """Results of earlier versions have rows of a model beside those measured."""
    rows = synthetic_probes.scaling()
    model = rows[rows["repeat"] == 0].assign(source="model", workers=512, value=1.0)
    figure = draw("fig09_speedup_appendix", scaling=pd.concat([rows, model]))
    assert max(x for line in figure.axes[0].lines for x in xs(line)) < 8


def test_fig14_writes_the_fitted_exponents_beside_the_curves(draw):
    figure = draw("fig14_cost_scaling")
    for axes, part in zip(figure.axes, ("factor", "precondition"), strict=True):
        truth = {SLOPES[label, part] for label in ("mkor", "mkor_windowed", "kaisa", "eva")} | {2.0}
        assert set(texts_in(axes)) == {f"$d^{{{slope:.2f}}}$" for slope in truth}
        heights = sorted(text.get_window_extent().y0 for text in axes.texts)
        assert all(lower + 5 < upper for lower, upper in pairwise(heights))
        # Beside each exponent stands its method's marker, so that no color is needed.
        beside = [line for line in axes.lines if line.get_transform() == axes.transAxes]
        markers = {styles.style_of(label).marker for label in ("copy", "mkor", "mkor_windowed", "kaisa", "eva")}
        assert {line.get_marker() for line in beside} == markers
        assert sorted(ys(line)[0] for line in beside) == sorted(text.xy[1] for text in axes.texts)
    assert "Timed only once, because slow: KFAC (KAISA) factor update at 1024." in caption_of(figure)


def test_fig15_adds_the_collectives_of_the_busiest_rank(draw):
    sent = fig15.of_update(synthetic_probes.communication()).set_index(["optimizer", "dimension", "workers"])
    assert sent.loc[("kaisa", 64, 4), "bytes"] == 12 * 64**2
    assert sent.loc[("mkor", 128, 2), "bytes"] == 8 * 128
    figure = draw("fig15_communication")
    (by_width,) = figure.axes
    assert ys(lines(by_width, "kaisa")[0]) == [12 * d * d for d in (64, 128, 256)]
    assert ys(lines(by_width, "kaisa", hollow=True)[0]) == [16 * d * d for d in (64, 128, 256)]
    assert ys(lines(by_width, "mkor", dashed=True)[0]) == [8 * d for d in (64, 128, 256)]
    assert not lines(by_width, "kaisa_mem_opt")
    assert f"{styles.style_of('kaisa').name}, slope 2.00" in legend_of(figure)
    assert "exact in 24 of 24 cases" in caption_of(figure)
    # Cases in which the formula is wrong are counted.
    rows = synthetic_probes.communication()
    wrong = (rows["optimizer"] == "mkor") & (rows["dimension"] == 64)
    figure = draw("fig15_communication", communication=rows.assign(predicted_bytes=rows["predicted_bytes"] + 4 * wrong))
    assert "exact in 22 of 24 cases" in caption_of(figure)


def test_fig15_hides_no_marker_and_says_that_mkor_sends_more_than_table_1(draw):
    """MKOR and Eva send the same, and Table 1's mark of MKOR is at half of that, where once a variant lay on it."""
    figure = draw("fig15_communication")
    (axes,) = figure.axes
    marked = [line for line in axes.lines if line.get_linestyle() == "None"]
    assert all(xs(line) == [64, 128, 256] for line in marked)
    filled = [line for line in marked if line.get_markerfacecolor() != "none"]
    looks = [(tuple(ys(line)), line.get_markersize()) for line in filled]
    assert len(set(looks)) == len(looks)
    (paper,) = lines(axes, "mkor", hollow=True)
    assert tuple(ys(paper)) not in {heights for heights, _ in looks}
    assert "Here MKOR sends float32, 2.0 times Table 1's half precision." in " ".join(below(figure))


def test_fig18_draws_the_median_of_the_layers(draw):
    """Truth: the layers change the direction by x and 1e-9 x, or by the rounding that is drawn for less."""
    figure = draw("fig18_factors")
    assert [axes.get_title() for axes in figure.axes[:4]] == [
        f"{styles.workload_name(name)},\n2 layers" for name in ("bert", "resnet", "autoencoder", "alexnet")
    ]
    expected = {
        look.marker: (change + max(1e-9 * change, fig18.ROUNDING)) / 2
        for look, change in zip(fig18.FACTORS.values(), (0.3, 1e-9, 0.2, 0.1), strict=True)
    }
    for axes in figure.axes:
        medians = {line.get_marker(): ys(line) for line in axes.lines if line.get_marker() != "None"}
        assert medians.keys() == expected.keys()
        for marker, values in medians.items():
            assert values == pytest.approx([expected[marker]] * 3)


def test_fig18_states_how_far_each_side_turns_the_gradient(draw):
    """The title's bounds are those of the drawn medians."""
    figure = draw("fig18_factors")
    text = caption_of(figure)
    assert "J_R, input side: 0.15, 0.3;" in text
    assert "J_L, output side, as in the paper: 5e-10, 1e-09;" in text
    of_input = "In the median layer MKOR's input side turns the gradient by up to 1−cos = 0.15"
    assert title_of(figure) == f"{of_input}, its output side by 5e-10; in one layer by 1e-09"


@pytest.mark.parametrize(
    ("value", "digits", "bound"), [(1.03e-9, 1, 2e-9), (1e-9, 1, 1e-9), (3e-5, 1, 3e-5), (0.431, 2, 0.44), (9.2, 1, 10)]
)
def test_fig18_rounds_a_bound_up(value, digits, bound):
    assert fig18.rounded_up(value, digits) == pytest.approx(bound, rel=1e-12)


def test_fig18s_appendix_draws_the_smallest_eigenvalue_over_the_largest(draw):
    """Nothing lies on the line of 1 but factors that scale all directions alike."""
    rows = synthetic_probes.factors()
    panel = draw("fig18_spectra_appendix").axes[0]
    right = rows[(rows["workload"] == "bert") & (rows["side"] == "right")]
    truth = (right["smallest"] / right["largest"]).groupby([right["step"], right["layer"]]).mean()
    (line,) = (line for line in panel.lines if line.get_marker() == "o")
    assert ys(line) == pytest.approx(truth.groupby("step").median().tolist())
    assert all(max(ys(line)) <= 1 for line in panel.lines)


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 B"), (1000, "1 kB"), (10**7, "10 MB"), (2 * 10**9, "2 GB"), (10**12, "1 TB")]
)
def test_amounts_of_bytes(size, text):
    assert amount(size) == text
