"""Seconds that ranks save by sharing work: the model, the paper tier's table, and the measurements behind it."""

from __future__ import annotations

import pytest

from workflow.bench.plan import Plan, rank_shares
from workflow.bench.plan.__main__ import main
from workflow.bench.plan.rank_shares import Allocation, ExampleSeconds
from workflow.bench.results.rows import read_csv

COSTS = {
    ("draw", "bert_pretraining", 512): ExampleSeconds(1e-6, 30e-6),
    ("evaluate", "resnet50", 224): ExampleSeconds(0.0, 3.5e-3),
}
PAPER = Allocation(ranks=64, cores=8)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan.load(tier="paper", hardware="test")


def test_savings_are_those_reckoned_by_hand(plan: Plan):
    """32,768 pairs a step; 50,000 images by seven readers, after 60, 55 and 90 epochs' evaluations and at the start."""
    found = {(each.experiment, each.work): each for each in rank_shares.savings(plan, lambda _: PAPER, COSTS)}
    assert set(found) == {("bert_pretraining", "draw"), ("bert_inversion", "draw"), ("resnet50_imagenet", "evaluate")}
    drawn, read = found["bert_pretraining", "draw"], found["resnet50_imagenet", "evaluate"]
    assert drawn.alone == pytest.approx(32768 * 31e-6)
    assert drawn.shared == pytest.approx(32768 * (1e-6 + 30e-6 / 64))
    assert drawn.times == 5 * 1563 + 4 * 1000 + 4 * 600
    assert read.alone == pytest.approx(50000 * 3.5e-3 / 7)
    assert read.shared == pytest.approx(read.alone / 64)
    assert read.times == 2 * 61 + 3 * 56 + 91
    assert read.steps == 2 * 37500 + 3 * 34375 + 56250
    assert read.step_seconds == pytest.approx(read.shared * read.times / read.steps)
    assert drawn.step_seconds == pytest.approx(drawn.shared)
    assert read.hours == pytest.approx((read.alone - read.shared) * read.times / 3600)


def test_jobs_that_are_left_out_and_experiments_of_one_rank_save_nothing(plan: Plan):
    hylo = plan.job("bert_pretraining", "hylo")
    (drawn,) = rank_shares.savings(
        plan, lambda name: PAPER if name == "bert_pretraining" else Allocation(1, 8), COSTS, without=[hylo]
    )
    assert drawn.times == 4 * 1563 + 4 * 1000 + 4 * 600


def test_the_model_passes_through_what_was_measured():
    """The committed times of one rank, and of the part of one of 64; those of two lie between."""
    file, costs = rank_shares.measured()
    assert file is not None
    rows = {(row["work"], row["workload"], int(row["size"]), row["contender"]): row for row in read_csv(file)}
    for key, cost in costs.items():
        whole, shared, part = (rows[*key, contender] for contender in ("whole", "shared", "part"))
        for row in (whole, part):
            found = cost.seconds(int(row["examples"]), int(row["ranks"]))
            assert found == pytest.approx(float(row["seconds"]))
            assert int(row["cores"]) == 1
        assert float(part["seconds"]) < float(shared["seconds"]) < float(whole["seconds"])


def test_the_plan_of_the_paper_tier_alone_shows_the_table(capsys: pytest.CaptureFixture[str]):
    assert main(["--tier", "paper", "--hardware", "test"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    heads, *rows = lines
    assert heads[-5:] == ["shared", "saved", "times", "hours", "saved"]
    assert {row[0] for row in rows} == {"bert_inversion", "bert_phase1", "bert_pretraining", "resnet50_imagenet"}
    for row in rows:
        alone, shared, saved = map(float, row[-5:-2])
        assert row[-7:-5] == ["64", "8"]
        assert saved == pytest.approx(alone - shared, abs=0.011)
        assert saved > 0.5 * alone
    assert main(["--tier", "embedded", "--hardware", "test"]) == 0
    assert "seconds that ranks save" not in capsys.readouterr().out
