"""Claims that probes decide (C08, C10 to C17, C20 to C24) on hand-made rows: verdicts, and rows that say nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from tests.support.synthetic import iteration_times, numerics
from tests.support.synthetic_claims import (
    communication,
    conditions,
    cost_scaling,
    half_precision,
    memory,
    projection,
    rank1_error,
    scaling,
    spectra,
)
from workflow.bench.claims import costs, rank1
from workflow.bench.claims.decision import Decision
from workflow.bench.claims.numerics import (
    decide_descent,
    decide_half_precision,
    decide_inverse,
    decide_positive_definite,
)

JUDGES: dict[str, Callable[..., Decision]] = {
    "C08": costs.decide_period_cost,
    "C10": costs.decide_factor_share,
    "C11": costs.decide_update_cost,
    "C12": costs.decide_bytes,
    "C13": costs.decide_memory,
    "C14": rank1.decide_rank1_error,
    "C15": rank1.decide_mean_vector,
    "C16": rank1.decide_decay,
    "C17": rank1.decide_singular_factors,
    "C20": decide_positive_definite,
    "C21": decide_inverse,
    "C23": decide_descent,
}


def decide(claim: str, rows: pd.DataFrame) -> Decision:
    return JUDGES[claim](rows, conditions(claim))


ONE_SIDE_WORSE = {"activation": 0.2, "gradient": 0.8}


@pytest.mark.parametrize(
    ("claim", "rows", "verdict", "measured"),
    [
        ("C08", iteration_times(12.0, 1.2), "confirmed", "autoencoder: 10; bert: 10"),
        ("C08", iteration_times(1.2, 1.4), "refuted", "autoencoder: 0.857; bert: 0.857"),
        ("C08", iteration_times(3.0, 1.2), "confirmed", "autoencoder: 2.5; bert: 2.5"),
        ("C10", cost_scaling(), "confirmed", "MKOR, d = 512: 0.02; MKOR, d = 1024: 0.02; KAISA, d = 512: 0.6;"),
        ("C10", cost_scaling(shares={"mkor": 0.4}), "refuted", "MKOR, d = 512: 0.4; MKOR, d = 1024: 0.4;"),
        # MKOR's share is small, but the rival's does not dominate: half of the claim is false.
        ("C10", cost_scaling(shares={"kaisa": 0.1}), "refuted", "MKOR, d = 512: 0.02;"),
        ("C10", cost_scaling(shares={"hylo": 0.4}), "refuted", "MKOR, d = 512: 0.02;"),
        ("C11", cost_scaling(mkor=2.05, kaisa=2.9), "confirmed", "MKOR: 2.05; KAISA: 2.9"),
        ("C11", cost_scaling(mkor=2.9, kaisa=2.9), "refuted", "MKOR: 2.9; KAISA: 2.9"),
        ("C11", cost_scaling(mkor=2.05, kaisa=2.3), "refuted", "MKOR: 2.05; KAISA: 2.3"),
        # Whatever the floor does: its slope, on a machine with caches, may be that of a cubic cost.
        ("C11", cost_scaling(mkor=2.79, floor=2.64, kaisa=2.79), "refuted", "MKOR: 2.79; KAISA: 2.79"),
        ("C12", communication(1.0, 2.0), "confirmed", "MKOR: 1; KAISA: 2"),
        ("C12", communication(1.5, 2.0), "refuted", "MKOR: 1.5; KAISA: 2"),
        ("C12", communication(1.0, 1.5), "refuted", "MKOR: 1; KAISA: 1.5"),
        ("C13", memory(kaisa=2_000_000), "confirmed", "2"),
        ("C13", memory(kaisa=900_000), "refuted", "0.9"),
        ("C13", memory(kaisa=10**11), "confirmed", "100000"),
        ("C14", rank1_error(best=0.2), "confirmed", "bert activations: 0.18; bert gradients: 0.18;"),
        ("C14", rank1_error(best=0.8), "refuted", "bert activations: 0.78;"),
        ("C14", rank1_error(best=ONE_SIDE_WORSE), "refuted", "bert activations: 0.18; bert gradients: 0.78;"),
        ("C15", rank1_error(share=0.95), "confirmed", "bert activations: 0.95; bert gradients: 0.95;"),
        ("C15", rank1_error(share=0.5), "refuted", "bert activations: 0.5; bert gradients: 0.5;"),
        ("C15", rank1_error(share={"activation": 0.95, "gradient": 0.3}), "refuted", "bert activations: 0.95;"),
        # Every layer changes by the same, so that pairing leaves an interval without width.
        ("C16", rank1_error(change=-0.05), "confirmed", "resnet activations: -0.05; resnet gradients: -0.05"),
        ("C16", rank1_error(change=0.05), "refuted", "resnet activations: 0.05; resnet gradients: 0.05"),
        ("C16", rank1_error(change=0.0), "refuted", "resnet activations: 0; resnet gradients: 0"),
        # The factors of the batches double in both cases.
        ("C17", spectra((1.0, 100.0)), "confirmed", "bert: 100 (0 of 6 layers singular at the end); resnet"),
        ("C17", spectra((1.0, 5.0)), "refuted", "bert: 5 (0 of 6 layers singular at the end); resnet"),
        ("C17", spectra(singular=6), "confirmed", "bert: infinite (6 of 6 layers singular at the end)"),
        ("C20", numerics(eigenvalue=0.01), "confirmed", "0.01"),
        ("C20", numerics(eigenvalue=-1e-3), "refuted", "-0.004"),
        ("C20", numerics(eigenvalue=math.nan), "refuted", "-infinite"),
        ("C21", numerics(published_residual=0.5), "refuted", "0.5"),
        ("C21", numerics(published_residual=1e-12), "confirmed", "1e-12"),
        ("C23", numerics(cosine=0.2), "confirmed", "0.2"),
        ("C23", numerics(cosine=-0.2), "refuted", "-0.26"),
    ],
)
def test_the_verdict_is_that_of_the_planted_law(claim, rows, verdict, measured):
    decision = decide(claim, rows)
    assert decision.verdict == verdict
    assert decision.measured.startswith(measured)


@pytest.mark.parametrize(
    ("claim", "rows", "why"),
    [
        ("C08", iteration_times().query("optimizer == 'mkor'"), "has no pair of periods 1 and 100"),
        ("C10", cost_scaling().query("dimension < 512"), "no times of MKOR from width 512 on."),
        ("C10", cost_scaling().query("optimizer != 'hylo'"), "no times of HyLo from width 512 on."),
        ("C11", cost_scaling().query("optimizer != 'kaisa'"), "lacks two widths"),
        ("C11", cost_scaling().query("dimension == 256"), "lacks two widths"),
        ("C12", communication().query("dimension == 64"), "has no two widths of MKOR."),
        ("C12", communication().query("optimizer == 'mkor'"), "has no two widths of KAISA."),
        ("C13", memory().query("optimizer != 'kaisa'"), "state of both KAISA and MKOR"),
        ("C14", rank1_error().assign(error=np.nan), "no errors to compare"),
        ("C16", rank1_error().query("step == 0"), "no errors to compare"),
        ("C17", spectra().query("step == 0"), "fewer than two steps"),
        ("C20", numerics().head(0), "no float64 eigenvalues"),
        ("C21", numerics().head(0), "no float64 residuals"),
        ("C23", numerics().head(0), "no cosines"),
    ],
)
def test_rows_that_lack_a_side_of_the_comparison_do_not_test_the_claim(claim, rows, why):
    decision = decide(claim, rows)
    assert (decision.verdict, decision.measured) == ("not tested", "")
    assert why in decision.why


@pytest.mark.parametrize(
    ("claim", "rows", "texts"),
    [
        (
            "C08",
            iteration_times(12.0, 1.2),
            (
                "Each alone: autoencoder kaisa 12, mkor 1.2; bert kaisa",
                "Autoencoder: KAISA 21.2, MKOR 1.57; BERT-Large-Uncased: KAISA 24.8, MKOR 1.35",
            ),
        ),
        # Truth: of 2 F / 50 and P, where 2 F / 50 is .6 of both, 2 F is 75 / 76.
        (
            "C10",
            cost_scaling(),
            ("In a step that updates the factors, d = 512, 1024: MKOR 0.169, 0.169; KAISA 0.987,",),
        ),
        (
            "C11",
            cost_scaling(mkor=2.05),
            (
                "The slope of the floor, a copy of the matrix, is 2.",
                "From one width to the next, from d = 256 on, MKOR's is 2, 2.",
            ),
        ),
        (
            "C13",
            memory(kaisa=2_000_000),
            ("By workload: bert 2, resnet 2. Peak memory", "bert KAISA 2.0 MB, MKOR 1.0 MB"),
        ),
        ("C14", rank1_error(best=0.2), ("6 of bert, 6 of resnet", "Medians over layers: bert activations 0.178;")),
        ("C16", rank1_error(change=-0.05), ("Not in the paper: bert activations -0.05",)),
        ("C17", spectra(), ("The factors of single batches: bert 2 [2, 2], 0 of 6 layers singular at both ends",)),
        # The values rise with the trials, from 0.01 and from 0.2.
        ("C20", numerics(), ("Smallest eigenvalue by rule: published 0.01, released 0.01, sherman_morrison 0.01.",)),
        ("C20", numerics().assign(updates=50, of=200), ("4 of the sequences grew without bound",)),
        ("C21", numerics(), ("sherman_morrison 1e-12",)),
        ("C23", numerics(), ("Smallest by rule: published 0.2, released 0.2, sherman_morrison 0.2.",)),
    ],
)
def test_details_state_what_the_verdict_does_not_rest_on(claim, rows, texts):
    """Truth: the planted numbers, and the paper's own times."""
    details = decide(claim, rows).details
    assert [text for text in texts if text not in details] == []


def _changed(rows: pd.DataFrame, query: str, column: str, factor: float) -> pd.DataFrame:
    """Return rows in which a column is multiplied where a query holds."""
    return rows.assign(**{column: rows[column] * np.where(rows.eval(query), factor, 1.0)})


@pytest.mark.parametrize(
    ("claim", "rows", "why"),
    [
        (
            "C08",
            _changed(
                iteration_times(12.0, 1.2),
                "workload == 'bert' and optimizer == 'kaisa' and inverse_update_period == 1",
                "iteration_ms",
                1 / 12,
            ),
            "autoencoder confirmed; bert refuted",
        ),
        (
            "C10",
            _changed(cost_scaling(), "optimizer == 'mkor' and part == 'factor' and dimension == 1024", "ms", 1000),
            "MKOR, d = 512 confirmed; MKOR, d = 1024 refuted; KAISA, d = 512 confirmed",
        ),
        (
            "C14",
            _changed(rank1_error(best=0.2), "layer == 'layer 2' and workload == 'resnet'", "error", 4),
            "bert gradients confirmed; resnet activations refuted",
        ),
        (
            "C17",
            _changed(spectra(), "workload == 'resnet' and step == 100", "smallest", 10),
            "bert confirmed; resnet refuted",
        ),
    ],
)
def test_one_part_that_fails_refutes_the_claim(claim, rows, why):
    decision = decide(claim, rows)
    assert decision.verdict == "refuted"
    assert why in decision.why


def test_c08_sees_no_difference_within_the_margin():
    """Truth: the ratios scatter by 2 % around 1."""
    times = iteration_times(1.2, 1.2)
    kaisa = (times["optimizer"] == "kaisa") & (times["inverse_update_period"] == 1)
    times.loc[kaisa, "iteration_ms"] *= 1 + 0.01 * (times.loc[kaisa, "repeat"] - 1)
    assert decide("C08", times).verdict == "no difference"


def test_c08_names_the_fewest_repeats_and_needs_two():
    times = iteration_times(3.0, 1.2, repeats=4)
    lost = (times["workload"] == "bert") & (times["inverse_update_period"] == 1) & (times["repeat"] > 1)
    assert decide("C08", times).seeds == "4 repeats"
    assert decide("C08", times[~lost]).seeds == "2 repeats"
    assert decide("C08", times[times["repeat"] == 0]).verdict == "inconclusive"
    lacking = times[(times["workload"] == "bert") | (times["optimizer"] == "mkor")]
    assert decide("C08", lacking).measured == "bert: 2.5"


def test_c10_names_periods_and_sources_and_needs_two_repeats():
    rows = cost_scaling()
    decision = decide("C10", rows)
    assert "at the paper's periods (mkor 10, kaisa 50, hylo 50):" in decision.why
    assert str(decision.data) == (
        "probes/cost_scaling.csv: optimizer=mkor, kaisa, hylo, part=factor, precondition, dimension=512, 1024"
    )
    once = decide("C10", rows[(rows["optimizer"] != "kaisa") | (rows["repeat"] == 0)])
    assert (once.verdict, once.interval.count("none (one value)")) == ("inconclusive", 2)


def test_c11_counts_repeats_needs_no_floor_and_says_what_was_timed_once():
    times = cost_scaling()
    assert decide("C11", times).seeds == "3 repeats"
    assert decide("C11", times[times["optimizer"] != "copy"]).verdict == "confirmed"
    later = (times["optimizer"] == "kaisa") & (times["dimension"] == 1024) & (times["repeat"] > 0)
    assert "KAISA was timed once at d = 1024: its interval lacks" in decide("C11", times[~later]).details


def test_c11_leaves_out_narrow_layers_where_calls_cost_more_than_their_work():
    """Truth: a slope of 2.5, flattened to 1.6 over all widths by calls that take equally long in the narrow half."""
    widths = (256, 512, 1024, 2048, 4096)
    of_call = {d: 1024**2.5 if d < 1024 else d**2.5 for d in widths}
    template = cost_scaling().query("dimension == 256")
    times = pd.concat([template.assign(dimension=d, ms=template["ms"] * of_call[d] / 256**2.05) for d in widths])
    decision = decide("C11", times)
    assert decision.estimates["MKOR"].value == pytest.approx(2.5)
    assert decision.verdict == "refuted"
    assert "d = 1024 to 4096, the wider half of the widths" in decision.why


def test_c12_judges_the_worst_number_of_workers_over_two_widths_or_more():
    sent = communication()
    worse = decide("C12", _changed(sent, "workers == 4 and optimizer == 'mkor' and dimension == 1024", "bytes", 10))
    assert worse.verdict == "refuted"
    assert "MKOR: [1, " in worse.interval
    assert decide("C12", sent[sent["dimension"] < 1024]).measured == "MKOR: 1; KAISA: 2"


def test_c13_states_factors_in_half_precision_too():
    """Truth: half of the bytes of MKOR's factors in float32, which are half of KAISA's."""
    sizes = memory()
    halved = sizes[(sizes["optimizer"] == "mkor") & (sizes["workload"] == "bert")]
    halved = halved.assign(optimizer="mkor_bfloat16", bytes=halved["bytes"] // 2)
    decision = decide("C13", pd.concat([sizes, halved]))
    assert decision.measured == "2"
    assert "By workload: bert 2, resnet 2. With MKOR's factors in bfloat16: bert 4. Peak" in decision.details


def test_c13_judges_the_smallest_ratio_and_states_the_papers_own():
    """Truth: (5.83 - 3.01) / (3.88 - 3.01) and (29.97 - 12.80) / (23.34 - 12.80) from the paper's table."""
    decision = decide("C13", _changed(memory(), "workload == 'resnet' and optimizer == 'kaisa'", "bytes", 0.25))
    assert (decision.verdict, decision.measured) == ("refuted", "0.5")
    assert decision.interval == "[0.5, 2] over workloads"
    assert "ResNet-50 3.24, BERT-Large-Uncased 1.63" in decision.details


def test_c14_leaves_moments_out_that_are_zero():
    rows = rank1_error(best=0.2)
    rows.loc[rows["layer"] == "layer 0", "error"] = np.nan
    assert decide("C14", rows).verdict == "confirmed"
    rows.loc[rows["workload"] == "bert", "error"] = np.nan
    left = decide("C14", rows)
    assert (left.measured.startswith("resnet activations: "), left.seeds) == (True, "seeds 0-1")


@pytest.mark.parametrize(("claim", "measured"), [("C15", "bert activations"), ("C16", "resnet activations")])
def test_layers_of_one_net_are_no_further_nets(claim, measured):
    """Truth: an interval over nets of one seed does not exist, however many layers they have; of two it does."""
    rows = rank1_error()
    one = decide(claim, rows[rows["seed"] == 0])
    assert (one.verdict, one.estimates[measured].n) == ("inconclusive", 1)
    assert decide(claim, rows).estimates[measured].n == 2
    assert "interval over nets of different seeds" in decide(claim, rows).details


def test_the_interval_of_a_share_ends_at_0_and_at_1():
    """Student's interval of .95 and .5 reaches from -2.1 to 3.6."""
    rows = pd.concat([rank1_error(share=share).query(f"seed == {seed}") for seed, share in enumerate((0.95, 0.5))])
    estimates = decide("C15", rows).estimates.values()
    assert {(one.low, one.high) for one in estimates} == {(0.0, 1.0)}


def test_c16_is_paired_by_layer():
    assert decide("C16", rank1_error(change=-0.05)).interval.startswith("resnet activations: [-0.05, -0.05];")


def test_c17_counts_a_factor_below_the_resolution_of_float32_as_singular():
    """There an eigenvalue is rounding, whatever the condition number says."""
    rows = spectra()
    rows.loc[rows["step"] == 100, "smallest"] = rows["resolution"]
    assert "bert: infinite (6 of 6 layers" in decide("C17", rows).measured
    of_resnet = spectra().query("step == 0 or workload == 'resnet'")
    assert decide("C17", of_resnet).measured.startswith("resnet: 100 (0 of 6 layers")


def test_c17_does_not_take_the_fading_identity_for_growth():
    """Truth: by hand; 0.95 I + R becomes 0.005 I + R, of which R has a condition number of 100 at both steps."""
    rows = spectra((100.0, 100.0))
    running = rows[(rows["factor"] == "running") & (rows["layer"] == "layer 0")].groupby("step")["condition_number"]
    assert running.max()[100] > 30 * running.max()[0]
    decision = decide("C17", rows)
    assert (decision.verdict, decision.parts[0].estimate.value) == ("refuted", pytest.approx(1.0))


def test_c17_does_not_test_a_net_whose_first_factors_are_singular():
    rows = spectra()
    rows.loc[(rows["workload"] == "bert") & (rows["factor"] == "batch"), "smallest"] = 0.0
    rows.loc[(rows["workload"] == "bert") & (rows["step"] == 100), "smallest"] = 0.0
    decision = decide("C17", rows)
    assert decision.verdict == "inconclusive"
    assert (
        "bert not tested (singular in the first batch and in the last average in 6 of 6 layers); resnet confirmed"
        in decision.why
    )


def test_c17_takes_layers_for_its_sample_and_not_their_seeds():
    """Truth: the same numbers from three seeds say no more of the layers than those from one."""
    seeds = pd.concat([spectra().assign(seed=seed) for seed in range(3)])
    one, three = decide("C17", spectra()), decide("C17", seeds)
    assert (three.measured, three.interval, three.seeds) == (one.measured, one.interval, "seeds 0-2")


def test_c20_and_c21_give_the_mathematical_reason_and_are_the_same_at_every_tier():
    confirmed, refuted = (decide("C20", numerics(eigenvalue=value)) for value in (0.01, -1e-3))
    assert ("agrees" in confirmed.why, "agrees" in refuted.why) == (True, False)
    assert confirmed.evidence == "mathematics and numerics, the same at every tier"
    assert confirmed.interval == "[0.01, 0.04] over all sequences"
    assert "grew without bound" not in confirmed.details
    residuals = [decide("C21", numerics(published_residual=value)).why for value in (0.5, 1e-12)]
    assert ["the printed rule adds it" in why for why in residuals] == [True, False]


@pytest.mark.parametrize(
    ("error", "finite", "verdict"),
    [(0.1, 10_000, "confirmed"), (2.0, 10_000, "refuted"), (0.1, 12, "refuted"), (math.inf, 10_000, "refuted")],
)
def test_c22_needs_bounded_errors_and_finite_factors(error, finite, verdict):
    decision = decide_half_precision(half_precision({"published": error}, {"published": finite}))
    assert decision.verdict == verdict
    assert decision.evidence == "numerics, the same at every tier"


def test_c22_is_about_the_printed_rule_and_states_the_others():
    decision = decide_half_precision(half_precision({"sherman_morrison": 0.02}, {"published": 12}))
    assert decision.measured == (
        "error: 0.1 of the bound; 10,000 updates: 0 of 1 sequences stay finite, the first to fail after 12 updates"
    )
    assert decision.details == (
        "For comparison, the sherman_morrison rule: error 0.02 of the bound, 1 of 1 sequences stay finite."
    )


def test_c22_takes_errors_relative_to_their_bounds():
    """Truth: an error of 0.5 is a quarter of a bound of 2, and 0.1 a half of one of 0.2."""
    rows = half_precision()
    of_error = (rows["check"] == "error") & (rows["update_rule"] == "published") & rows["value"].notna()
    rows.loc[of_error, "value"], rows.loc[of_error, "bound"] = [0.5, 0.1], [2.0, 0.2]
    decision = decide_half_precision(rows)
    assert decision.measured == "error: 0.5 of the bound; 10,000 updates: 1 of 1 sequences stay finite"
    assert decision.interval == "error: [0.25, 0.5] where finite"


def test_c22_names_the_first_sequence_to_fail_and_the_blends_at_which_all_stay_finite():
    """Truth: by hand; a blend of 0.8 fails in one of two sequences."""
    rows = half_precision(finite={"published": 12})
    followed = rows[(rows["check"] == "finite") & (rows["update_rule"] == "published")]
    decision = decide_half_precision(pd.concat([rows, followed.assign(value=30)]))
    assert "0 of 2 sequences stay finite, the first to fail after 12 updates" in decision.measured
    assert "blend" not in decision.details
    of_blend = followed.assign(check="blend", bound=1000.0)
    swept = [of_blend.assign(blend=blend, value=value) for blend, value in ((0.4, 1000.0), (0.8, 1000.0), (0.8, 12.0))]
    details = decide_half_precision(pd.concat([rows, *swept])).details
    assert "With the stabilizer's blend at 0.4 all sequences of 1,000 updates stay finite, at 0.8 some do" in details


def test_c22_counts_an_update_that_overflows_and_not_one_from_an_overflowed_factor():
    """Truth: of three updates one starts beyond half precision, which has no bound, and one ends there."""
    decision = decide_half_precision(half_precision({"published": math.nan}))
    assert "not finite in 1 of 2 updates from a finite factor" in decision.measured
    assert decision.interval == "error: [0.01, 0.01] where finite"
    assert decision.seeds == "2 updates, 1 sequences"


@pytest.mark.parametrize("checks", [("error",), ("finite",), ("error", "finite")])
def test_c22_without_errors_or_sequences_of_the_printed_rule_is_not_tested(checks):
    rows = half_precision()
    lost = (rows["update_rule"] == "published") & rows["check"].isin(checks)
    assert decide_half_precision(rows[~lost]).verdict == "not tested"


NO_MODEL = projection().head(0)


@pytest.mark.parametrize(("share", "verdict"), [(0.9, "confirmed"), (0.5, "refuted")])
def test_c24_at_64_measured_workers(share, verdict):
    decision = costs.decide_scaling(scaling({2: 0.95, 64: share}), NO_MODEL, conditions("C24"))
    assert (decision.verdict, decision.measured) == (verdict, f"{share:g}")


def test_c24_never_takes_a_model_for_a_measurement():
    model = projection(0.98).assign(step_ms_counted=lambda rows: rows["step_ms"] + 100 * (rows["workers"] == 64))
    decision = costs.decide_scaling(scaling({2: 0.95, 4: 0.9}), model, conditions("C24"))
    assert (decision.verdict, decision.measured) == ("not tested", "")
    assert decision.why == "Needs 64 measured GPUs; here at most 4 worker processes on 2 cores were measured."
    assert "Efficiency measured: 0.95 [0.95, 0.95] at 2, 0.9 [0.9, 0.9] at 4." in decision.details
    assert "which is no measurement, gives 0.98 on A, 0.49 on B at 64 GPUs over 8; with the bytes" in decision.details
    assert "with the bytes that the code moves 0.495 on A, 0.329 on B." in decision.details
    assert "probes/projection.csv: workload=bert_large, optimizer=mkor" in str(decision.data)


def test_c24_is_about_the_step_of_mkor():
    """Rows of another quantity and of another optimizer stand in the same file."""
    times = scaling({2: 0.95, 64: 0.9})
    others = [times.assign(quantity="bytes", value=1.0), times.assign(optimizer="kaisa", value=1.0)]
    alone = costs.decide_scaling(times, NO_MODEL, conditions("C24"))
    assert costs.decide_scaling(pd.concat([times, *others]), NO_MODEL, conditions("C24")) == alone
    assert "model" not in alone.details
    assert "projection" not in str(alone.data)
    single = costs.decide_scaling(scaling({}), NO_MODEL, conditions("C24"))
    assert single.why == "Needs 64 measured GPUs; the probe scaling has no more than one worker of MKOR."
