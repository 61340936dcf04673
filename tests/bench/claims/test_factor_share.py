"""The claim about the share of factor work (C10) on hand-made rows."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.support.synthetic_claims import conditions, step_breakdown
from workflow.bench.claims.factor_share import decide_factor_share


@pytest.mark.parametrize(("mkor", "verdict"), [(0.1, "confirmed"), (0.5, "refuted")])
def test_c10_share_of_factor_work(mkor, verdict):
    """Truth: the shares are 0.8 and ``mkor`` of a step of one millisecond."""
    decision = decide_factor_share(step_breakdown({"mkor": mkor, "kaisa": 0.8, "hylo": 0.3}), conditions("C10"))
    assert decision.verdict == verdict
    assert f"bert without capture: {mkor / 0.8:.3g}" in decision.measured
    assert "at the paper's periods (mkor 10, kaisa 50, hylo 50):" in decision.why
    assert f"without capture mkor {mkor:g}, kaisa 0.8, hylo 0.3" in decision.details
    assert decision.details.startswith("Geometric mean, 95 % t interval. Shares: bert: without capture")
    assert str(decision.data) == "probes/step_breakdown.csv: workers=1, optimizer=mkor, kaisa, hylo"


def test_c10_needs_both_treatments_of_capture_to_agree():
    """Truth: KAISA's share is 0.3 without what its hooks capture and 3.3 / 4 with it, MKOR's 0.1 both times."""
    decision = decide_factor_share(step_breakdown({"mkor": 0.1, "kaisa": 0.3}, capture=3.0), conditions("C10"))
    assert decision.verdict == "inconclusive"
    assert "bert without capture: 0.333; bert with capture: 0.121" in decision.measured
    assert "bert without capture refuted; bert with capture confirmed" in decision.why


def test_c10_reports_equal_periods_beside_the_papers():
    times = step_breakdown({"mkor": 0.1, "kaisa": 0.8})
    rare = (times["optimizer"] == "kaisa") & (times["inverse_update_period"] == 50) & (times["phase"] == "factor")
    times.loc[rare, "ms"] /= 100
    decision = decide_factor_share(times, conditions("C10"))
    assert decision.verdict == "refuted"
    assert "With KAISA at MKOR's period: bert without capture 0.125 [0.125, 0.125] confirmed" in decision.details


def test_c10_compares_at_equal_periods_the_longest_of_mkor():
    """Truth: MKOR's longest period is 10, at which KAISA was timed; nobody timed KAISA at MKOR's other one."""
    times = step_breakdown({"mkor": 0.1, "kaisa": 0.8})
    often = times[times["optimizer"] == "mkor"].assign(inverse_update_period=2)
    decision = decide_factor_share(pd.concat([times, often]), conditions("C10"))
    assert "With KAISA at MKOR's period: bert without capture 0.125 [0.125, 0.125] confirmed" in decision.details


def test_c10_without_factor_work_of_either_is_decided_by_capture():
    """Truth: 0 / 0 is no ratio of shares, 0 / 0.75 is one."""
    decision = decide_factor_share(step_breakdown({"mkor": 0.0, "kaisa": 0.0}, capture=3.0), conditions("C10"))
    assert decision.measured == "bert with capture: 0; resnet with capture: 0"


def test_c10_without_a_rival_or_on_several_processes_only_is_not_tested():
    times = step_breakdown({"mkor": 0.1, "kaisa": 0.8})
    assert decide_factor_share(times[times["optimizer"] == "mkor"], conditions("C10")).verdict == "not tested"
    assert decide_factor_share(times.assign(workers=2), conditions("C10")).verdict == "not tested"
