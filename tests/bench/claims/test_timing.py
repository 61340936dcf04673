"""Claims about a step's cost (C08, C11 to C13, C24) on hand-made rows: every verdict, and rows that say nothing."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.support.synthetic import iteration_times
from tests.support.synthetic_claims import communication, conditions, cost_scaling, memory, projection, scaling
from workflow.bench.claims.costs import (
    decide_bytes,
    decide_memory,
    decide_period_cost,
    decide_scaling,
    decide_update_cost,
)


@pytest.mark.parametrize(
    ("kaisa", "mkor", "verdict"),
    [(12.0, 1.2, "confirmed"), (1.2, 1.4, "refuted")],
)
def test_c08_period_cost(kaisa, mkor, verdict):
    decision = decide_period_cost(iteration_times(kaisa, mkor), conditions("C08"))
    assert decision.verdict == verdict
    assert decision.measured == f"autoencoder: {kaisa / mkor:.3g}; bert: {kaisa / mkor:.3g}"
    assert f"Each alone: autoencoder kaisa {kaisa:g}, mkor {mkor:g}; bert kaisa" in decision.details
    assert "Autoencoder: KAISA 21.2, MKOR 1.57; BERT-Large-Uncased: KAISA 24.8, MKOR 1.35" in decision.details


def test_c08_sees_no_difference_within_the_margin():
    """Truth: the ratios scatter by 2 % around 1."""
    times = iteration_times(1.2, 1.2)
    kaisa = (times["optimizer"] == "kaisa") & (times["inverse_update_period"] == 1)
    times.loc[kaisa, "iteration_ms"] *= 1 + 0.01 * (times.loc[kaisa, "repeat"] - 1)
    assert decide_period_cost(times, conditions("C08")).verdict == "no difference"


def test_c08_is_refuted_by_one_workload():
    times = iteration_times(12.0, 1.2)
    bert = (times["workload"] == "bert") & (times["optimizer"] == "kaisa") & (times["inverse_update_period"] == 1)
    times.loc[bert, "iteration_ms"] /= 12
    decision = decide_period_cost(times, conditions("C08"))
    assert decision.verdict == "refuted"
    assert "autoencoder confirmed; bert refuted" in decision.why


def test_c08_names_the_fewest_repeats():
    times = iteration_times(repeats=4)
    lost = (times["workload"] == "bert") & (times["inverse_update_period"] == 1) & (times["repeat"] > 1)
    assert decide_period_cost(times, conditions("C08")).seeds == "4 repeats"
    assert decide_period_cost(times[~lost], conditions("C08")).seeds == "2 repeats"


def test_c08_with_scattered_or_missing_repeats():
    times = iteration_times(3.0, 1.2)
    assert decide_period_cost(times, conditions("C08")).verdict == "confirmed"
    once = times[times["repeat"] == 0]
    assert decide_period_cost(once, conditions("C08")).verdict == "inconclusive"
    lacking = times[(times["workload"] == "bert") | (times["optimizer"] == "mkor")]
    assert decide_period_cost(lacking, conditions("C08")).measured == "bert: 2.5"
    without = times[times["optimizer"] == "mkor"]
    assert decide_period_cost(without, conditions("C08")).verdict == "not tested"


@pytest.mark.parametrize(
    ("mkor", "kaisa", "verdict"), [(2.05, 2.9, "confirmed"), (2.9, 2.9, "refuted"), (2.05, 2.3, "refuted")]
)
def test_c11_slopes(mkor, kaisa, verdict):
    decision = decide_update_cost(cost_scaling(mkor=mkor, kaisa=kaisa), conditions("C11"))
    assert decision.verdict == verdict
    assert decision.measured == f"MKOR: {mkor:g}; KAISA: {kaisa:g}"
    assert "KAISA was timed once at d = 1024: its interval lacks the noise there." in decision.details
    assert "The slope of the floor, a copy of the matrix, is 2." in decision.details
    assert f"From one width to the next MKOR's is {mkor:.2g}, {mkor:.2g}." in decision.details
    assert decision.seeds == "3 repeats"


def test_c11_can_refute_a_method_whose_update_costs_what_kaisas_does():
    """Whatever the floor does: its slope, on a machine with caches, may be that of a cubic cost."""
    assert decide_update_cost(cost_scaling(mkor=2.79, floor=2.64, kaisa=2.79), conditions("C11")).verdict == "refuted"


def test_c11_needs_both_methods_and_two_widths():
    times = cost_scaling()
    assert decide_update_cost(times[times["optimizer"] != "copy"], conditions("C11")).verdict == "confirmed"
    assert decide_update_cost(times[times["optimizer"] != "kaisa"], conditions("C11")).verdict == "not tested"
    assert decide_update_cost(times[times["dimension"] == 256], conditions("C11")).verdict == "not tested"


@pytest.mark.parametrize(
    ("mkor", "kaisa", "verdict"), [(1.0, 2.0, "confirmed"), (1.5, 2.0, "refuted"), (1.0, 1.5, "refuted")]
)
def test_c12_slopes_of_bytes(mkor, kaisa, verdict):
    decision = decide_bytes(communication(mkor, kaisa), conditions("C12"))
    assert decision.verdict == verdict
    assert decision.measured == f"MKOR: {mkor:g}; KAISA: {kaisa:g}"


def test_c12_judges_the_worst_number_of_workers():
    sent = communication()
    sent.loc[(sent["workers"] == 4) & (sent["optimizer"] == "mkor") & (sent["dimension"] == 1024), "bytes"] *= 10
    decision = decide_bytes(sent, conditions("C12"))
    assert decision.verdict == "refuted"
    assert "MKOR: [1, " in decision.interval


def test_c12_needs_two_widths():
    sent = communication()
    two = decide_bytes(sent[sent["dimension"] < 1024], conditions("C12"))
    assert (two.verdict, two.measured) == ("confirmed", "MKOR: 1; KAISA: 2")
    one = decide_bytes(sent[sent["dimension"] == 64], conditions("C12"))
    assert one.why == "The probe communication has no two widths of MKOR."


def test_c12_without_an_optimizer_is_not_tested():
    sent = communication()
    decision = decide_bytes(sent[sent["optimizer"] == "mkor"], conditions("C12"))
    assert (decision.verdict, "KAISA" in decision.why) == ("not tested", True)


@pytest.mark.parametrize(("kaisa", "verdict"), [(2_000_000, "confirmed"), (900_000, "refuted"), (10**11, "confirmed")])
def test_c13_memory_overhead(kaisa, verdict):
    decision = decide_memory(memory(kaisa=kaisa), conditions("C13"))
    assert decision.verdict == verdict
    assert decision.measured == f"{kaisa / 1e6:g}"
    assert f"bert KAISA {kaisa / 1e6:.1f} MB, MKOR 1.0 MB" in decision.details
    assert decision.details.startswith(f"By workload: bert {kaisa / 1e6:g}, resnet {kaisa / 1e6:g}. Peak memory")


def test_c13_states_factors_in_half_precision_too():
    """Truth: half of the bytes of MKOR's factors in float32, which are half of KAISA's."""
    sizes = memory()
    halved = sizes[sizes["optimizer"] == "mkor"].assign(
        optimizer="mkor_bfloat16", bytes=lambda rows: rows["bytes"] // 2
    )
    decision = decide_memory(pd.concat([sizes, halved[halved["workload"] == "bert"]]), conditions("C13"))
    assert decision.measured == "2"
    assert "By workload: bert 2, resnet 2. With MKOR's factors in bfloat16: bert 4. Peak" in decision.details


def test_c13_judges_the_smallest_ratio_and_states_the_papers_own():
    """Truth: (5.83 - 3.01) / (3.88 - 3.01) and (29.97 - 12.80) / (23.34 - 12.80) from the paper's table."""
    sizes = memory()
    sizes.loc[(sizes["workload"] == "resnet") & (sizes["optimizer"] == "kaisa"), "bytes"] //= 4
    decision = decide_memory(sizes, conditions("C13"))
    assert (decision.verdict, decision.measured) == ("refuted", "0.5")
    assert decision.interval == "[0.5, 2] over workloads"
    assert "ResNet-50 3.24, BERT-Large-Uncased 1.63" in decision.details


def test_c13_without_a_method_is_not_tested():
    sizes = memory()
    assert decide_memory(sizes[sizes["optimizer"] != "kaisa"], conditions("C13")).verdict == "not tested"


NO_MODEL = projection().head(0)


@pytest.mark.parametrize(("share", "verdict"), [(0.9, "confirmed"), (0.5, "refuted")])
def test_c24_at_64_measured_workers(share, verdict):
    decision = decide_scaling(scaling({2: 0.95, 64: share}), NO_MODEL, conditions("C24"))
    assert decision.verdict == verdict
    assert decision.measured == f"{share:g}"


def test_c24_never_takes_a_model_for_a_measurement():
    decision = decide_scaling(scaling({2: 0.95, 4: 0.9}), projection(0.98), conditions("C24"))
    assert decision.verdict == "not tested"
    assert decision.measured == ""
    assert decision.why == "Needs 64 measured GPUs; here at most 4 worker processes on 2 cores were measured."
    assert "Efficiency measured: 0.95 [0.95, 0.95] at 2, 0.9 [0.9, 0.9] at 4." in decision.details
    assert "which is no measurement, gives 0.98 on A, 0.49 on B at 64 GPUs over 8." in decision.details
    assert "probes/projection.csv: workload=bert_large, optimizer=mkor" in str(decision.data)
    model = projection(0.98).assign(step_ms_counted=lambda rows: rows["step_ms"] + 100 * (rows["workers"] == 64))
    counted = decide_scaling(scaling({2: 0.95, 4: 0.9}), model, conditions("C24"))
    assert "over 8; with the bytes that the code moves 0.495 on A, 0.329 on B." in counted.details


def test_c24_is_about_the_step_of_mkor():
    """Rows of another quantity and of another optimizer stand in the same file."""
    times = scaling({2: 0.95, 64: 0.9})
    others = [times.assign(quantity="bytes", value=1.0), times.assign(optimizer="kaisa", value=1.0)]
    alone = decide_scaling(times, NO_MODEL, conditions("C24"))
    assert decide_scaling(pd.concat([times, *others]), NO_MODEL, conditions("C24")) == alone
    assert "model" not in alone.details
    assert "projection" not in str(alone.data)


def test_c24_on_one_worker_is_not_tested():
    decision = decide_scaling(scaling({}), NO_MODEL, conditions("C24"))
    assert decision.verdict == "not tested"
    assert decision.why == "Needs 64 measured GPUs; the probe scaling has no more than one worker of MKOR."
