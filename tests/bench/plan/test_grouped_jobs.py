"""The groups of jobs that one Snakemake job trains."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.experiments import block, load, make_folder, optimizer, write
from workflow.bench.plan import Plan

MOST_LABELS = 7


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[Plan]:
    """Plans of two experiments: one with 1 to `MOST_LABELS` labels, and one with a single label."""
    plans = []
    for labels in range(1, MOST_LABELS + 1):
        folder = make_folder(tmp_path_factory.mktemp("grouped") / "config")
        write(folder, "many", block(*(optimizer("sgd", f"sgd_{index}") for index in range(labels))))
        write(folder, "one", block(optimizer("sgd")))
        plans.append(load(folder))
    return plans


@given(
    labels=st.integers(1, MOST_LABELS),
    most=st.integers(1, MOST_LABELS + 1),
    without=st.sets(st.integers(0, MOST_LABELS)),
)
@settings(max_examples=50)
def test_groups_hold_every_job_once_and_are_as_equal_as_can_be(plans, labels, most, without):
    plan = plans[labels - 1]
    left_out = [job for index, job in enumerate(plan.jobs) if index in without]
    groups = replace(plan, tier=replace(plan.tier, optimizers_per_job=most)).grouped(left_out)
    assert [job for group in groups for job in group] == [job for job in plan.jobs if job not in left_out]
    assert all(len({job.experiment for job in group}) == 1 for group in groups)
    sizes = [len(group) for group in groups if group[0].experiment == "many"]
    assert len(sizes) == math.ceil(sum(sizes) / most)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
