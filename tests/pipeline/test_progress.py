"""The line of progress that ``make reproduce`` prints in place of Snakemake's log."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake_interface_logger_plugins.common import LogEvent

import workflow.plugins.snakemake_logger_plugin_progress as progress
from workflow.bench.plan import Plan
from workflow.bench.results.costs import expected_core_seconds, kept_costs


@pytest.fixture(params=[True, False], ids=["terminal", "file"])
def handler(request, monkeypatch):
    """A handler of a run of three jobs, which take 1, 2 and 5 core-seconds on one core."""
    monkeypatch.setattr(progress, "_expected", {})
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: request.param, raising=False)
    progress.expect({1: 1.0, 2: 2.0, 3: 5.0}, cores=1)
    made = progress.LogHandler(SimpleNamespace(), None)
    yield made
    made.close()


def tell(handler, event, level=logging.INFO, message=None, **fields):
    """Hand the handler a record, as Snakemake makes them."""
    record = logging.LogRecord("snakemake", level, "", 0, message, None, None)
    vars(record).update(fields, event=event)
    handler.emit(record)


def test_a_line_has_the_share_the_jobs_and_the_time_left(handler, capsys):
    tell(handler, LogEvent.RUN_INFO, stats={"total": 3})
    for job in (1, 2, 3):
        tell(handler, LogEvent.JOB_INFO, jobid=job, rule_name=f"rule{job}", threads=1)
        tell(handler, LogEvent.JOB_FINISHED, job_id=job)
    shown = capsys.readouterr().err
    for share, ended, rest in ((0, 0, 8), (12, 1, 7), (38, 2, 5)):
        assert f"{share:3}%, {ended} of 3 jobs, {rest} s left" in shown
    assert "100%, 3 jobs in 0 s\n" in shown
    overwritten = shown.count("\r")
    # A terminal shows each event on the same line, with what is running; a file gets a line where the share has grown.
    assert (shown.count("\n"), overwritten > 0) == ((1, True) if handler._overwrites else (4, False))
    assert ("rule2" in shown) == handler._overwrites


def test_a_running_job_counts_by_its_time_and_never_as_done(handler, monkeypatch):
    """Truth: by hand. On one core at the expected pace a job of 5 core-seconds is 2 s old, 4.75 at most."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    tell(handler, LogEvent.RUN_INFO, stats={"total": 3})
    tell(handler, LogEvent.JOB_INFO, jobid=3, rule_name="rule3", threads=1)
    for age, done in ((0, 0.0), (2, 2.0 * 60 / 62), (60, 4.75)):
        assert handler._done_now(100.0 + age) == pytest.approx(done)
    clock[0] = 105.0
    tell(handler, LogEvent.JOB_FINISHED, job_id=3)
    assert handler._done_now(200.0) == 5.0


def test_a_run_that_is_broken_off_ends_the_line_of_its_terminal(handler, capsys):
    tell(handler, LogEvent.RUN_INFO, stats={"total": 3})
    tell(handler, LogEvent.JOB_INFO, jobid=1, rule_name="rule1", threads=1)
    handler.close()
    assert capsys.readouterr().err.endswith("\n")


@pytest.mark.parametrize("event", [LogEvent.JOB_ERROR, LogEvent.ERROR, None])
def test_errors_and_warnings_are_shown_on_lines_that_fit(handler, capsys, event):
    message = f"rule train failed\nsee its log\n{'x' * 500}"
    tell(handler, event, logging.WARNING if event is None else logging.ERROR, message)
    assert capsys.readouterr().err.endswith(f"rule train failed\nsee its log\n{'x' * 117}...\n")


def test_a_long_message_keeps_its_ends_and_says_what_is_left_out():
    lines = progress.shortened("\n".join(["first", *("more" for _ in range(98)), "last"])).splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("first", "last", 41)
    assert "... 60 more lines in .snakemake/log ..." in lines


def test_a_message_without_need_is_not_shown_and_a_run_without_work_says_so(handler, capsys):
    tell(handler, None, message="Select jobs to execute...")
    assert capsys.readouterr().err == ""
    tell(handler, None, message=progress.NOTHING_TO_BE_DONE_MSG)
    assert "Nothing to be done" in capsys.readouterr().err


@given(done=st.floats(0, 1e5), rest=st.floats(1, 1e5), slower=st.floats(0.1, 10), cores=st.integers(1, 64))
def test_the_time_left_lies_between_the_expected_and_the_observed_pace(done, rest, slower, cores):
    """Truth: all jobs take ``slower`` times as long as expected."""
    elapsed = done * slower / cores
    estimate = progress.left(done, done + rest, elapsed, cores)
    bounds = sorted((rest / cores, rest * slower / cores))
    assert bounds[0] * (1 - 1e-6) <= estimate <= bounds[1] * (1 + 1e-6)


def test_jobs_share_what_their_experiments_took_elsewhere_by_runs():
    plan = Plan.load(tier="embedded")
    costs = kept_costs(plan)
    assert costs, "no costs are kept for the embedded tier"
    expected = expected_core_seconds(plan, cores=2)
    for name, experiment in plan.experiments.items():
        labels = [expected[f"{name}/{label}"] for label in experiment.jobs]
        runs = {run for job in experiment.jobs.values() for run in job.run_ids}
        assert sum(labels) == pytest.approx(costs[name].core_seconds * len(runs) / costs[name].runs)
        assert min(labels) > 0
    alone = {name: cost for name, cost in costs.items() if cost.seconds_alone}
    assert alone, "no probe needs the machine for itself"
    assert {name: expected[name] for name in alone} == {name: 2 * cost.seconds_alone for name, cost in alone.items()}
