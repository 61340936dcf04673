"""The claim about the share of factor work (C10) on hand-made rows."""

from __future__ import annotations

import pytest

from tests.support.synthetic_claims import conditions, cost_scaling
from workflow.bench.claims.costs import decide_factor_share


@pytest.mark.parametrize(("mkor", "verdict"), [(0.02, "confirmed"), (0.4, "refuted")])
def test_c10_share_of_factor_work(mkor, verdict):
    """Truth: the shares are 0.5 and ``mkor`` at the paper's periods, at every width."""
    decision = decide_factor_share(cost_scaling(shares={"mkor": mkor, "kaisa": 0.5}), conditions("C10"))
    assert decision.verdict == verdict
    assert decision.measured == f"d = 512: {mkor / 0.5:.3g}; d = 1024: {mkor / 0.5:.3g}"
    assert "at the paper's periods (mkor 10, kaisa 50):" in decision.why
    assert f"d = 512: mkor {mkor:g}, kaisa 0.5" in decision.details
    assert str(decision.data) == (
        "probes/cost_scaling.csv: optimizer=mkor, kaisa, part=factor, precondition, dimension=512, 1024"
    )


def test_c10_is_refuted_by_one_width():
    rows = cost_scaling()
    slow = (rows["optimizer"] == "mkor") & (rows["part"] == "factor") & (rows["dimension"] == 1024)
    rows.loc[slow, "ms"] *= 1000
    decision = decide_factor_share(rows, conditions("C10"))
    assert decision.verdict == "refuted"
    assert "d = 512 confirmed; d = 1024 refuted" in decision.why


def test_c10_takes_a_share_that_was_measured_once_for_every_repeat():
    rows = cost_scaling()
    of_kaisa = rows["optimizer"] == "kaisa"
    once = rows[~of_kaisa | (rows["repeat"] == 0)]
    decision = decide_factor_share(once, conditions("C10"))
    assert decision.verdict == "confirmed"
    assert decision.interval.count("[") == 2


def test_c10_is_not_tested_in_narrow_layers_or_without_a_rival():
    rows = cost_scaling()
    narrow = decide_factor_share(rows[rows["dimension"] < 512], conditions("C10"))
    assert narrow.verdict == "not tested"
    assert "no width of at least 512" in narrow.why
    assert decide_factor_share(rows[rows["optimizer"] == "mkor"], conditions("C10")).verdict == "not tested"
