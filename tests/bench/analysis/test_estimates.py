"""Statistics on hand-made numbers: intervals, censoring, pairing, verdicts."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workflow.bench.analysis.curves import by_seed, curve, last_common_values
from workflow.bench.analysis.estimates import (
    Estimate,
    estimate,
    extreme,
    looks,
    mean_of_units,
    median_interval,
    paired_difference,
    paired_ratio,
    ratio_of_means,
    t_interval,
)
from workflow.bench.claims.decision import Condition, Margin, all_of, parse_conditions, parse_margin
from workflow.bench.results.tables import NoDataError

INF, NAN = math.inf, math.nan
FINITE = st.floats(-1e6, 1e6)


def test_t_interval_is_students():
    """Truth: scipy's own interval of the mean."""
    values = [1.0, 2.5, 2.0]
    truth = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert t_interval(values) == pytest.approx(truth)


@pytest.mark.parametrize("n", [6, 7, 8, 9, 12, 20])
def test_the_medians_interval_covers_it_as_often_as_it_says(n):
    """Truth: 4,000 samples of a skewed distribution, whose median is log 2; interpolation costs at most .8 %."""
    rng = np.random.default_rng(7)
    intervals = [median_interval(rng.exponential(size=n)) for _ in range(4000)]
    hits = sum(low <= math.log(2) <= high for low, high in intervals)
    assert 0.935 <= hits / 4000 <= 0.965


def test_the_medians_interval_lies_between_the_order_statistics_that_enclose_its_level():
    """Truth: by hand. Of 6 values the range covers the median with 1 - 2 / 64, all but the ends with 1 - 14 / 64."""
    excess = (1 - 2 / 64 - 0.95) / (12 / 64)
    share = 5 * excess / (1 + 4 * excess)
    assert median_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == pytest.approx((1 + share, 6 - share))


def test_the_medians_interval_may_end_at_an_infinite_value():
    low, high = median_interval([1.0, 2.0, 3.0, 4.0, math.inf, math.inf])
    assert math.isfinite(low)
    assert high == math.inf


@given(st.lists(FINITE, min_size=6, max_size=40))
def test_the_medians_interval_holds_it_and_lies_in_the_sample(values):
    low, high = median_interval(values)
    margin = 1e-6 * max(map(abs, values))
    assert min(values) - margin <= low <= np.median(values) + margin
    assert np.median(values) - margin <= high <= max(values) + margin


@given(st.lists(FINITE, min_size=1, max_size=12))
def test_an_estimate_lies_in_its_own_interval(values):
    result = estimate(values)
    assert result.n == len(values)
    if result.has_interval:
        assert result.low <= result.value + 1e-6 * abs(result.value)
        assert result.value <= result.high + 1e-6 * abs(result.value)


@pytest.mark.parametrize(
    ("values", "statistic", "method"),
    [
        ([3.0], "single value", "none"),
        ([1.0, 2.0], "mean", "t"),
        ([1.0] * 5, "mean", "t"),
        ([1.0] * 6, "median", "order-statistics"),
    ],
)
def test_how_many_values_decide_what_is_said(values, statistic, method):
    result = estimate(values)
    assert (result.statistic, result.interval_method) == (statistic, method)
    assert result.has_interval == (method != "none")


DOUBLE = {seed: 2.0 + 2 * seed for seed in range(3)}
SEEDS = {seed: 1.0 + seed for seed in range(3)}
SIX = dict.fromkeys(range(6), 5.0)
SOME_CENSORED = {seed: 10.0 if seed < 4 else INF for seed in range(6)}


@pytest.mark.parametrize(
    ("pair", "left", "right", "bounds", "n"),
    [
        # (3 - 1, 5 - 2) for seeds 1 and 2; seeds 0 and 9 have no partner.
        (paired_difference, {0: 9.0, 1: 3.0, 2: 5.0}, {1: 1.0, 2: 2.0, 9: 0.0}, (2.5, *t_interval([2.0, 3.0])), 2),
        # Pairing removes what seeds have in common: here everything but a constant.
        (paired_difference, {0: 1.0, 1: 11.0, 2: 21.0}, {0: 0.0, 1: 10.0, 2: 20.0}, (1.0, 1.0, 1.0), 3),
        # A run that diverged is the worst; a pair of which both did says nothing.
        (paired_difference, {0: INF, 1: 3.0, 2: 4.0}, dict.fromkeys(range(3), 1.0), (3.0, NAN, NAN), 3),
        (paired_difference, {0: INF, 1: 3.0}, {0: INF, 1: 1.0}, (2.0, NAN, NAN), 1),
        (paired_difference, SIX, dict.fromkeys(range(5), 4.0) | {5: INF}, (1.0, -INF, 1.0), 6),
        (paired_ratio, DOUBLE, SEEDS, (2.0, 2.0, 2.0), 3),
        # 0 / 0 is left out; 0 against a number is infinitely fast, and no logarithm of it is taken.
        (paired_ratio, {0: 0.0, 1: 6.0}, {0: 0.0, 1: 3.0}, (2.0, NAN, NAN), 1),
        (paired_ratio, {0: 0.5}, {0: 0.0}, (INF, NAN, NAN), 1),
        (paired_ratio, {0: 0.0}, {0: 0.5}, (0.0, NAN, NAN), 1),
        (paired_ratio, {0: 5.0, 1: 6.0, 2: 8.0}, {0: 0.0, 1: 3.0, 2: 4.0}, (2.0, NAN, NAN), 3),
        # One side censored makes the ratio infinite or 0.
        (paired_ratio, {0: 10.0, 1: 20.0, 2: INF}, dict.fromkeys(range(3), 10.0), (2.0, NAN, NAN), 3),
        (paired_ratio, dict.fromkeys(range(3), 10.0), {0: 10.0, 1: 20.0, 2: INF}, (0.5, NAN, NAN), 3),
        (paired_ratio, SIX, SOME_CENSORED, (0.5, 0.0, 0.5), 6),
    ],
)
def test_values_are_paired_by_seed(pair, left, right, bounds, n):
    """Truth: by hand."""
    found = pair(left, right)
    assert (found.value, found.low, found.high) == pytest.approx(bounds, nan_ok=True)
    assert (found.n, found.has_interval) == (n, not math.isnan(bounds[1]))


@pytest.mark.parametrize(
    ("pair", "left", "right"),
    [
        (paired_difference, {0: INF}, {0: INF}),
        (paired_difference, {0: 1.0}, {1: 1.0}),
        (paired_ratio, {0: INF, 1: INF}, {0: INF, 1: INF}),
        (paired_ratio, {0: 0.0, 1: 0.0}, {0: 0.0, 1: 0.0}),
    ],
)
def test_pairs_that_say_nothing_give_no_estimate(pair, left, right):
    assert pair(left, right) is None


def test_a_study_in_which_either_side_misses_once_leaves_no_interval():
    """The mean of a run that never arrived and of one whose base never did is unknown; three studies agree."""
    base = dict.fromkeys(range(8), 1.0) | {0: math.inf}
    ours = {seed: 0.5 + 0.01 * seed for seed in range(8)} | {1: math.inf}
    studies = {seed: float(seed // 2) for seed in range(8)}
    found = paired_ratio(ours, base, studies)
    assert found is not None
    assert not found.has_interval
    assert (found.n, found.value) == (4, pytest.approx(0.545))
    others = {seed: value for seed, value in ours.items() if seed > 1}
    assert paired_ratio(others, base, studies).has_interval


def test_the_statistic_of_few_ratios_is_the_geometric_mean_or_with_censored_runs_the_median():
    assert paired_ratio(DOUBLE, SEEDS).statistic == "geometric mean"
    censored_one = paired_ratio({**DOUBLE, 2: INF}, SEEDS)
    assert (censored_one.statistic, censored_one.interval_method) == ("median", "none")


def test_infinite_values_count_as_the_worst_and_never_as_nan():
    six = estimate([1.0, 2.0, 3.0, 4.0, INF, INF])
    assert (six.value, six.high) == (3.5, INF)
    three = estimate([1.0, 2.0, INF])
    assert (three.value, three.has_interval) == (2.0, False)
    assert extreme([3.0, 1.0, 2.0], "minimum").value == 1.0
    assert extreme([3.0, NAN], "minimum").value == -INF
    assert extreme([3.0, NAN], "maximum").value == INF


def test_half_an_interval_is_none_and_another_unit_scales_all_of_it():
    assert not Estimate(1.0, 0.5, NAN, 6, "median", "order-statistics").has_interval
    assert not Estimate(1.0, NAN, 1.5, 6, "median", "order-statistics").has_interval
    scaled = estimate([1.0, 2.0, 3.0]).scaled(1e-3)
    assert (scaled.value, scaled.n, scaled.interval_method) == (0.002, 3, "t")
    assert (scaled.low, scaled.high) == pytest.approx([bound / 1e3 for bound in t_interval([1.0, 2.0, 3.0])])


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: estimate([]), "at least one value"),
        (lambda: estimate([1.0, NAN]), "NaN"),
        (lambda: extreme([], "minimum"), "at least one value"),
        (lambda: parse_conditions("MKOR's count is the largest"), "no comparison"),
        (lambda: parse_conditions("> 1", "0.01 and 5 %"), "one margin, or one for each"),
        (lambda: parse_margin("five"), "margin='five' is none of"),
    ],
)
def test_what_has_no_meaning_is_refused(refused, message):
    with pytest.raises(ValueError, match=message):
        refused()


def test_margins_are_read_as_they_are_declared():
    assert parse_margin("5 %") == Margin(0.05, "ratio")
    assert parse_margin("0.01") == Margin(0.01, "difference")
    assert parse_margin("2 % of the fall") == Margin(0.02, "fall")


@given(st.dictionaries(st.integers(0, 9), st.floats(0.1, 100), min_size=2, max_size=5))
def test_a_ratio_and_its_inverse_agree(times):
    other = {seed: 1.0 + seed for seed in times}
    ratio, inverse = paired_ratio(times, other), paired_ratio(other, times)
    assert ratio.value == pytest.approx(1 / inverse.value)
    assert ratio.low == pytest.approx(1 / inverse.high)


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("> 1", [("", ">", 1.0)]),
        ("< 1e-6 in float64", [("", "<", 1e-6)]),
        ("KAISA >= 3 and MKOR <= 1.5", [("KAISA", ">=", 3.0), ("MKOR", "<=", 1.5)]),
        ("> 0 in every step", [("", ">", 0.0)]),
    ],
)
def test_parse_conditions_reads_the_claims_file(text, conditions):
    assert [(c.subject, c.comparison, c.threshold) for c in parse_conditions(text)] == conditions


def test_conditions_have_one_margin_or_one_each():
    both = [condition.margin for condition in parse_conditions("> 1 and < 2", "5 %")]
    assert both == [parse_margin("5 %")] * 2
    each = [condition.margin for condition in parse_conditions("a >= 0 and b <= 0", "0.01 and 2 % of the fall")]
    assert each == [parse_margin("0.01"), parse_margin("2 % of the fall")]


def _between(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high, 6, "median", "order-statistics")


@pytest.mark.parametrize(
    ("comparison", "low", "high", "verdict"),
    [
        (">", 1.1, 2.0, "confirmed"),
        (">", 0.2, 0.9, "refuted"),
        (">", 0.9, 1.1, "inconclusive"),
        (">", 1.0, 1.1, "inconclusive"),
        (">=", 1.0, 1.1, "confirmed"),
        ("<", 0.2, 0.9, "confirmed"),
        ("<", 1.0, 2.0, "refuted"),
        ("<=", 0.5, 1.0, "confirmed"),
        (">", math.nan, math.nan, "inconclusive"),
        (">", 1.1, INF, "confirmed"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(comparison, low, high, verdict):
    assert Condition("", comparison, 1.0).judge(_between(low, high)) == verdict


def test_verdicts_of_parts_and_of_places():
    assert all_of(["confirmed", "confirmed"]) == "confirmed"
    assert all_of(["confirmed", "refuted", "inconclusive"]) == "refuted"
    assert all_of(["confirmed", "inconclusive"]) == "inconclusive"
    assert all_of([]) == all_of(["not tested", "not tested"]) == "not tested"
    assert all_of(["confirmed", "not tested"]) == "inconclusive"
    assert all_of(["confirmed", "no difference"]) == all_of(["no difference"]) == "no difference"
    assert all_of(["no difference", "inconclusive"]) == "inconclusive"


@pytest.mark.parametrize(
    ("margin", "comparison", "threshold", "low", "high", "verdict"),
    [
        ("5 %", ">", 1.0, 0.97, 1.04, "no difference"),
        ("5 %", "<", 1.0, 0.97, 1.04, "no difference"),
        ("5 %", ">", 1.0, 0.94, 1.04, "inconclusive"),
        ("5 %", ">", 1.0, 1.001, 1.04, "no difference"),
        ("5 %", ">", 1.0, 0.96, 0.99, "no difference"),
        ("5 %", ">", 1.0, 1.001, 1.06, "confirmed"),
        ("5 %", ">", 1.0, 0.9, 0.99, "refuted"),
        ("0.01", ">=", 0.0, -0.009, 0.03, "confirmed"),
        ("0.01", ">=", 0.0, -0.011, 0.03, "inconclusive"),
        ("0.01", ">=", 0.0, -0.05, -0.011, "refuted"),
        ("0.01", "<=", 0.0, -0.05, 0.009, "confirmed"),
        ("2 % of the fall", ">", 0.0, -0.05, 0.05, "no difference"),
        ("2 % of the fall", ">", 0.0, -0.07, 0.05, "inconclusive"),
        ("", ">", 1.0, 0.999, 1.001, "inconclusive"),
    ],
)
def test_a_margin_tells_no_difference_and_no_worse(margin, comparison, threshold, low, high, verdict):
    """The loss falls by 3, of which 2 % are 0.06."""
    condition = Condition("", comparison, threshold, parse_margin(margin))
    assert condition.judge(_between(low, high), fall=3.0) == verdict


@pytest.mark.parametrize("seeds", [3, 5, 6, 8, 12])
@pytest.mark.parametrize("truth", [0.9, 1.0, 1.1])
def test_planted_truths_are_judged_falsely_in_at_most_five_percent(seeds, truth):
    """Ratios of one effect whose logarithms deviate by .055: a verdict on the wrong side of 1, or any at 1, is false.

    2,000 draws: five percent are 100, with a standard deviation of 10.
    """
    rng, condition = np.random.default_rng(0), Condition("", ">", 1.0, parse_margin("5 %"))
    found: dict[str, int] = {}
    for _ in range(2000):
        logs = math.log(truth) + 0.055 * rng.standard_normal(seeds)
        ratio = paired_ratio(dict(enumerate(np.exp(logs))), dict.fromkeys(range(seeds), 1.0))
        verdict = condition.judge(ratio)
        found[verdict] = found.get(verdict, 0) + 1
    false = {0.9: ("confirmed", "no difference"), 1.0: ("confirmed", "refuted"), 1.1: ("refuted", "no difference")}
    assert sum(found.get(verdict, 0) for verdict in false[truth]) <= 130
    right = {0.9: "refuted", 1.0: "no difference", 1.1: "confirmed"}[truth]
    assert seeds < 6 or found.get(right, 0) > 200, "a rule must be able to decide"


def test_the_smallest_visible_effect_is_half_of_the_interval():
    """Truth: the t interval of three log ratios that deviate by .055 is 4.303 / sqrt(3) of that: 14 %."""
    steps = {seed: math.exp(0.055 * sign) for seed, sign in enumerate((-1, 0, 1))}
    ratio = paired_ratio(steps, dict.fromkeys(steps, 1.0))
    assert ratio.smallest_visible == pytest.approx(math.exp(4.303 * 0.055 / math.sqrt(3)), rel=1e-3)
    assert estimate([1.0, 2.0, 3.0]).smallest_visible == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert estimate([1.0]).smallest_visible is None


def _metrics(losses: dict[int, list[float]], status: dict[int, str] | None = None) -> pd.DataFrame:
    rows = [
        (seed, (status or {}).get(seed, "finished"), 10 * index, value, float(index + seed))
        for seed, values in losses.items()
        for index, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["seed", "status", "step", "value", "train_seconds"])


def test_curve_summarises_over_seeds_and_averages_time():
    """Truth: by hand, the median of three, and of six with the interval of order statistics."""
    result = curve(_metrics({0: [5.0, 1.0], 1: [5.0, 2.0], 2: [5.0, 6.0]}))
    assert result["step"].tolist() == [0.0, 10.0]
    assert result["value"].tolist() == [5.0, 2.0]
    assert result["train_seconds"].tolist() == [1.0, 2.0]
    assert result[["low", "high"]].isna().all(axis=None)
    six = curve(_metrics({seed: [float(seed)] for seed in range(6)}))
    assert (six["value"][0], six["low"][0], six["high"][0]) == (2.5, *median_interval(np.arange(6.0)))


def test_curve_never_becomes_the_survivors_average():
    """A diverged run counts as infinitely bad in a median, and of three runs the curve is that of the second best."""
    six = {seed: [5.0, 1.0 + seed] for seed in range(5)} | {5: [5.0]}
    result = curve(_metrics(six, {5: "diverged"}))
    assert result["value"].tolist() == [5.0, 3.5]
    assert result["high"][1] == INF
    three = curve(_metrics({0: [5.0, 1.0, 1.0], 1: [5.0, 2.0, 1.5], 2: [5.0, 1e9]}, {2: "diverged"}))
    assert three["value"].tolist() == [5.0, 2.0, 1.5]
    two = curve(_metrics({0: [5.0, 1.0], 1: [5.0]}, {1: "diverged"}))
    assert two["value"].tolist() == [5.0, INF]


def test_curve_shows_only_steps_that_every_seed_has():
    """An interrupted run is no diverged one: its later losses are unknown, not bad."""
    result = curve(_metrics({0: [5.0, 1.0], 1: [5.0]}, {1: "interrupted"}))
    assert result["step"].tolist() == [0.0]
    metrics = _metrics({0: [5.0, 1.0, 1.0], 1: [5.0, 2.0, 2.0]})
    seldom = metrics[(metrics["seed"] == 0) | (metrics["step"] != 10)]
    assert curve(seldom)["step"].tolist() == [0.0, 20.0]


def test_curve_of_a_loss_that_is_not_a_number():
    """The run counts as the worst, even if a later loss is a number."""
    six = curve(_metrics({seed: [5.0 + seed] for seed in range(5)} | {5: [math.nan]}, {5: "diverged"}))
    assert (six["n"].tolist(), six["value"].tolist(), six["high"].tolist()) == ([6], [7.5], [INF])
    three = curve(_metrics({0: [5.0] * 3, 1: [5.0] * 3, 2: [5.0, math.nan, 6.0]}, {2: "diverged"}))
    assert three["value"].tolist() == [5.0, 5.0, 5.0]


def test_without_a_finished_run_no_step_is_common():
    """A run that broke down has no last step with which another could be compared."""
    broken = _metrics({0: [5.0, 1.0]}, {0: "diverged"}).assign(run="a")
    with pytest.raises(NoDataError, match="No run finished"):
        last_common_values(broken)


def test_the_last_common_step_is_that_of_the_shortest_finished_run():
    """Truth: runs of 3, 2 and 4 evaluations, every 10 steps; the one that broke down after 1 is infinitely bad."""
    metrics = _metrics({0: [5.0, 4.0, 3.0], 1: [5.0, 2.0], 2: [5.0, 3.0, 2.0, 1.0], 3: [5.0]}, {3: "diverged"})
    kept, step = last_common_values(metrics.assign(run=metrics["seed"].astype(str)))
    assert (step, by_seed(kept)) == (10.0, {0: 4.0, 1: 2.0, 2: 3.0, 3: INF})


def test_fiellers_interval_holds_the_ratios_that_a_t_test_does_not_reject():
    """Truth: scipy's t test of the mean of ``x - r y`` at the bounds, and on both sides of them."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(0.4, 0.2, 8), rng.normal(1.0, 0.3, 8)
    found = ratio_of_means(dict(enumerate(x)), dict(enumerate(y)))
    assert found.value == pytest.approx(x.mean() / y.mean())
    for bound in (found.low, found.high):
        assert stats.ttest_1samp(x - bound * y, 0).pvalue == pytest.approx(0.05)
    assert stats.ttest_1samp(x - (found.high + 0.01) * y, 0).pvalue < 0.05
    assert stats.ttest_1samp(x - (found.high - 0.01) * y, 0).pvalue > 0.05


def test_a_ratio_to_a_mean_that_may_be_0_is_undefined():
    """Truth: scipy's t interval of the denominators' mean."""
    units = {0: 1.0, 1: 2.0, 2: 3.0}
    for denominator in ({0: 0.1, 1: 0.9, 2: 1.4}, {0: -0.9, 1: -1.0, 2: -1.1}):
        low, high = stats.t.interval(0.95, 2, np.mean([*denominator.values()]), stats.sem([*denominator.values()]))
        assert low <= 0 or high < 0
        assert ratio_of_means(units, denominator) is None
    assert ratio_of_means(units, {0: 0.9, 1: 1.0, 2: 1.1}) is not None
    assert ratio_of_means(units, {0: 1.0}) is None  # one unit has no interval
    with looks(20):
        assert ratio_of_means(units, {0: 0.5, 1: 1.0, 2: 1.1}) is None
    assert ratio_of_means(units, {0: 0.8, 1: 1.0, 2: 1.1}) is not None


@pytest.mark.parametrize(("share", "spread"), [(0.2, 0.1), (1.0, 0.3), (0.2, 0.6)])
def test_fiellers_interval_covers_the_ratio_as_often_as_it_says(share, spread):
    """Truth: 2,000 draws of eight studies; the standard error of their share is .5 %."""
    rng = np.random.default_rng(5)
    hits = []
    for z in rng.normal(size=(2000, 2, 8)):
        y, x = 1 + spread * z[0], share + spread * (z[0] + math.sqrt(3) * z[1]) / 2
        if (found := ratio_of_means(dict(enumerate(x)), dict(enumerate(y)))) is not None:
            hits.append(found.low <= share <= found.high)
    assert len(hits) > 1900
    assert 0.935 <= np.mean(hits) <= 0.965


def test_a_mean_of_units_is_a_mean_however_many_they_are():
    values = [0.1, 0.2, 0.4, 0.5, 0.7, 0.9, 5.0]
    found = mean_of_units(values)
    assert found.value == pytest.approx(np.mean(values))
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 6, found.value, stats.sem(values)))
    assert not mean_of_units([0.3]).has_interval
