"""Comparison of machines: step times at any period, projections, matched workloads, and the command."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.synthetic import iteration_times
from tests.support.synthetic_claims import swept, write_swept
from tests.support.synthetic_hardware import REACHES, STEPS, step_breakdown, write_machine
from tests.support.synthetic_probes import step_time, write_probe
from workflow.bench import compare, plan
from workflow.bench.analysis.estimates import t_interval
from workflow.bench.analysis.machines import (
    TIMED_MODELS,
    Machine,
    TargetTime,
    gather,
    project,
    projection_check,
    target_times,
)
from workflow.bench.analysis.machines import describe as in_words
from workflow.bench.analysis.time_to_target import reaching
from workflow.bench.claims.overheads import overheads
from workflow.bench.plan import Plan
from workflow.bench.plan.artefacts import compared, describe, inputs, planned_artefacts
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.support.config import ConfigError

BERT = TIMED_MODELS["bert_pretraining", "bert_pretraining"]
SLOWER = (1.0, 1.01, 1.02)
REPEATED = geometric_mean(SLOWER)
"""The mean over repeats that are 0, 1 and 2 % slower."""


@pytest.fixture(autouse=True)
def _no_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not depend on the reference results in the repository."""
    monkeypatch.setattr(plan.plan, "REFERENCE", tmp_path / "results" / "reference")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return write_machine(tmp_path / "results", "test-cpu")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A machine twice as fast, with step times alone."""
    return write_machine(tmp_path / "elsewhere", "fast-cpu", speed=2, runs=False)


@pytest.fixture
def _table_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command makes the table, and not the figure, which takes seconds."""
    monkeypatch.setattr(compare, "ARTEFACTS", (("tables", "hardware"),))


def _machine(root: Path) -> Machine:
    return Machine(Results(root), "")


def _compared(here: Path, *others: Path) -> dict[tuple[str, str], TargetTime]:
    machines, _ = gather(Results(here, compared=others))
    return {(time.machine, time.configuration.optimizer): time for time in target_times(machines)}


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's interval of the logarithms."""
    low, high = t_interval(np.log(values))
    return math.exp(low), math.exp(high)


PERIODS = [(1, 60.0), (5, (60 + 4 * 22) / 5), (10, (60 + 9 * 22) / 10)]


@pytest.mark.parametrize(
    ("optimizer", "period", "truth"), [*(("kaisa", *each) for each in PERIODS), ("eva", math.nan, 24.0)]
)
def test_a_step_time_at_any_period_is_that_of_one_refresh_in_so_many_steps(here, optimizer, period, truth):
    """Eva has no period, and so one step time."""
    found = _machine(here).step_time(BERT, optimizer, period)
    assert found is not None
    assert found.took.value == pytest.approx(REPEATED * truth)
    assert (found.probe, found.took.n) == ("step_breakdown", 3)
    assert str(found.data) == f"probes/step_breakdown.csv: workload=bert, optimizer={optimizer}, workers=1"
    assert _machine(here).step_time(BERT, "unknown", period) is None


def test_a_step_is_the_sum_of_the_phases_that_were_timed_in_every_repeat(here):
    """Truth: one phase of the two, three quarters of a step."""
    rows = step_breakdown("test-cpu")
    write_probe(here, "step_breakdown", rows[rows["phase"] == "backward"])
    found = _machine(here).step_time(BERT, "kaisa", 1)
    assert found is not None
    assert found.took.value == pytest.approx(REPEATED * 60 * 0.75)
    rows.loc[(rows["optimizer"] == "kaisa") & (rows["repeat"] == 2), "refresh_ms"] = None
    write_probe(here, "step_breakdown", rows)
    assert _machine(here).step_time(BERT, "kaisa", 5) is None
    assert _machine(here).step_time(BERT, "mkor", 5) is not None


def test_runs_of_two_experiments_are_told_apart(here):
    runs = pd.read_csv(here / "bert_pretraining.runs.csv")
    again = runs.assign(experiment="update_rules", run="again " + runs["run"])
    again.to_csv(here / "update_rules.runs.csv", index=False)
    goals = list(_machine(here).goals())
    assert len(goals) == 2 * len(REACHES)
    assert {(len(rows), iterations.took.n) for _, rows, iterations in goals} == {(3, 3)}


def _iteration_times(root: Path, times: dict[int, float]) -> Machine:
    """Return a machine on which KAISA was timed at these periods."""
    rows = iteration_times()
    chosen = (rows["workload"] == "bert") & (rows["optimizer"] == "kaisa")
    rows.loc[chosen, "iteration_ms"] = rows.loc[chosen, "inverse_update_period"].astype(int).map(times)
    write_probe(root, "iteration_time", rows)
    return _machine(root)


def test_between_measured_periods_the_mean_of_a_cycle_is_linear_in_its_inverse(tmp_path):
    """Truth: cycles of one refresh of 50 ms and other steps of 5 ms, at a period that was not timed."""
    times = {period: (50 + (period - 1) * 5) / period for period in (1, 10, 100, 1000)}
    machine = _iteration_times(tmp_path / "test-cpu" / "embedded", times)
    for period in (1.0, 5.0, 10.0, 40.0, 1000.0):
        found = machine.step_time(BERT, "kaisa", period)
        assert found is not None
        assert found.took.value == pytest.approx((50 + (period - 1) * 5) / period)
    assert machine.step_time(BERT, "kaisa", 2000) is None
    assert machine.step_time(BERT, "kaisa", math.nan) is None


def test_a_step_time_between_measured_periods_is_that_of_the_nearest(tmp_path):
    """Truth: 1/40 is a sixth of the way from 1/100 to 1/10; the times at 1 and at 1000 do not count."""
    machine = _iteration_times(tmp_path / "test-cpu" / "embedded", {1: 90.0, 10: 12.0, 100: 6.0, 1000: 1.0})
    found = machine.step_time(BERT, "kaisa", 40)
    assert found is not None
    assert found.took.value == pytest.approx(7.0)
    assert str(found.data) == "probes/iteration_time.csv: workload=bert, optimizer=kaisa"


def test_a_projection_is_iterations_measured_elsewhere_times_the_step_time_here(here, bare):
    found = _compared(here, bare)
    kaisa = found["fast-cpu", "kaisa"]
    step = REPEATED * (60 + 4 * 22) / 5 / 2
    assert kaisa.projected
    assert (kaisa.iterations_from, kaisa.iterations.reached) == ("test-cpu", 3)
    took = [70, 71, 72]  # steps, by seed
    assert kaisa.seconds.value == pytest.approx(geometric_mean(took) * step / 1e3)
    own_bounds, step_bounds = _bounds(took), _bounds([step * more / REPEATED for more in SLOWER])
    assert kaisa.seconds.low == pytest.approx(own_bounds[0] * step_bounds[0] / 1e3)
    assert kaisa.seconds.high == pytest.approx(own_bounds[1] * step_bounds[1] / 1e3)
    own = found["test-cpu", "kaisa"]
    assert not own.projected
    assert own.seconds.value == pytest.approx(0.03 * geometric_mean(took))
    # No step of SGD on BERT was timed there.
    assert {label for machine, label in found if machine == "fast-cpu"} == {"lamb", "kaisa", "mkor"}
    assert {label for machine, label in found if machine == "test-cpu"} == set(REACHES)


def _goal_of_mkor(machine: Machine) -> Any:
    return next(goal for goal in machine.goals() if goal[0].optimizer == "mkor")


@pytest.mark.parametrize(("speeds", "took"), [((1, 1.01, 1.02), (1, 60, 120)), ((1, 20, 40), (70, 71, 72))])
def test_a_projection_of_noisy_factors_stays_above_zero(here, speeds, took):
    """Truth: Student's interval of the iterations, or of the steps, would reach below 0; that of logarithms cannot."""
    assert min(t_interval(speeds)[0], t_interval(took)[0]) < 0
    rows = step_breakdown("test-cpu", repeats=1)
    noisy = [
        rows.assign(repeat=repeat, **{name: rows[name] * times for name in ("ms", "refresh_ms", "other_ms")})
        for repeat, times in enumerate(speeds)
    ]
    write_probe(here, "step_breakdown", pd.concat(noisy))
    machine = _machine(here)
    configuration, runs, _ = _goal_of_mkor(machine)
    found = project(machine, configuration, runs, reaching(dict(enumerate(map(float, took)))))
    assert found is not None
    assert found[0].high > found[0].value > found[0].low > 0


def test_a_projection_from_one_repeat_has_the_interval_of_the_iterations(here):
    rows = step_breakdown("test-cpu")
    write_probe(here, "step_breakdown", rows[rows["repeat"] == 0])
    machine = _machine(here)
    found = project(machine, *_goal_of_mkor(machine))
    assert found is not None
    step = (30 + 4 * 20) / 5 / 1e3
    low, high = _bounds([80, 81, 82])
    middle = geometric_mean([80, 81, 82])
    assert (found[0].low, found[0].value, found[0].high) == pytest.approx((low * step, middle * step, high * step))


def test_the_sources_of_a_projection_are_traced_on_both_machines(here, bare):
    data = _compared(here, bare)["fast-cpu", "mkor"].data
    runs, step = str(data).split("; ")
    file, ids = runs.split(": runs ")
    known = pd.read_csv(here / file)
    assert sorted(ids.split(", ")) == sorted(known.loc[known["optimizer"] == "mkor", "run"])
    assert (here / step.split(": ")[0]).samefile(bare / "probes" / "step_breakdown.csv")


def test_what_a_machine_measured_is_never_projected(here, tmp_path):
    other = write_machine(tmp_path / "elsewhere", "slow-cpu", speed=0.5)
    found = _compared(here, other)
    assert not any(time.projected for time in found.values())
    assert found["slow-cpu", "mkor"].seconds.value == pytest.approx(2 * found["test-cpu", "mkor"].seconds.value)


def test_runs_of_other_settings_are_no_peers(here, tmp_path):
    """At another period KAISA and MKOR are other settings, so each machine's step times project the other's."""
    other = write_machine(tmp_path / "elsewhere", "slow-cpu", speed=0.5, period=10)
    machines, _ = gather(Results(here, compared=(other,)))
    times = [time for time in target_times(machines) if time.configuration.optimizer == "mkor"]
    assert [(time.machine, time.configuration.period, time.projected) for time in times] == [
        ("test-cpu", 5, False),
        ("slow-cpu", 5, True),
        ("test-cpu", 10, True),
        ("slow-cpu", 10, False),
    ]


def _edit_runs(folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    file = folder / "bert_pretraining.runs.csv"
    change(pd.read_csv(file)).to_csv(file, index=False)


def test_runs_on_a_gpu_project_nothing(here, bare):
    _edit_runs(here, lambda runs: runs.assign(gpu=np.where(runs["seed"] == 1, "Some GPU", None)))
    assert not any(time.projected for time in _compared(here, bare).values())


def test_a_target_that_most_runs_miss_is_projected_as_never(here, bare):
    crossing = ["crossing_step", "crossing_seconds"]
    missed = "optimizer == 'mkor' and seed > 0"
    _edit_runs(here, lambda runs: runs.assign(**{name: runs[name].mask(runs.eval(missed)) for name in crossing}))
    mkor = _compared(here, bare)["fast-cpu", "mkor"]
    assert math.isinf(mkor.seconds.value)
    assert (mkor.iterations.reached, mkor.iterations.censored) == (1, 2)


def test_the_check_of_projections_compares_both_where_a_machine_has_both(here):
    """Truth: the probe's step times over the runs' 30 ms a step."""
    ratios = [REPEATED * step / 30 for step in (20, (60 + 4 * 22) / 5, (30 + 4 * 20) / 5)]
    found = projection_check([_machine(here)])
    assert found == pytest.approx((min(ratios), max(ratios)))
    assert projection_check([]) is None


def test_a_second_folder_of_a_machine_has_the_name_of_its_place(here, tmp_path):
    second = write_machine(tmp_path / "elsewhere", "test-cpu", speed=3)
    third = write_machine(tmp_path / "x" / "elsewhere", "test-cpu", speed=3)
    machines, notes = gather(Results(here, compared=(second, third)))
    assert [(machine.name, machine.results.root) for machine in machines] == [
        ("test-cpu", here),
        ("test-cpu (elsewhere)", second),
    ]
    assert len(machines[1].runs) == len(machines[0].runs) > 0
    assert notes == ["a second folder of test-cpu (elsewhere) is not shown"]


def test_without_results_here_the_others_are_compared_and_without_any_it_is_said(bare, tmp_path):
    nothing = tmp_path / "results" / "test-cpu" / "embedded"
    machines, notes = gather(Results(nothing, compared=(bare,)))
    assert [machine.name for machine in machines] == ["fast-cpu"]
    assert notes == ["no step time and no run of test-cpu yet"]
    with pytest.raises(NoDataError, match=r"workflow\.bench\.timing --tier embedded"):
        gather(Results(nothing))


def test_the_probes_step_what_the_projected_experiments_train():
    """Truth: the specs of the embedded plan, and the workloads that the probes choose."""
    from workflow.bench.probes import iteration_time
    from workflow.bench.probes._models import workload_of

    embedded = Plan.load(tier="embedded", hardware="test-cpu")
    named = {}
    for experiment in iteration_time.EXPERIMENTS:
        workload = embedded.experiments[experiment].jobs["mkor"].runs[0].spec["workload"]
        named[iteration_time.EXPERIMENTS[experiment]] = workload
    for (experiment, workload), model in TIMED_MODELS.items():
        jobs = embedded.experiments[experiment].jobs.values()
        trained = [run.spec["workload"] for job in jobs for run in job.runs if run.workload == workload]
        assert trained
        for spec in trained:
            assert spec == workload_of(embedded, model)
            assert spec == named.get(model, spec)


def test_the_table_holds_every_machine_and_measured_or_projected_never_both(here, bare, tmp_path):
    from workflow.bench.tables import hardware

    hardware.make(Results(here, compared=(bare,)), tmp_path / "tables")
    table = pd.read_csv(tmp_path / "tables" / "hardware.csv")
    assert table.columns[-1] == "data"
    assert (table["measured"].notna() ^ table["projected"].notna()).all()
    assert table["data"].notna().all()
    steps = table[table["quantity"] == "ms a step (step_breakdown)"]
    assert len(steps) == 2 * sum(map(len, STEPS.values()))
    assert set(steps["machine"]) == {"test-cpu", "fast-cpu"}
    targets = table[table["quantity"] == "seconds to target"]
    assert set(targets.loc[targets["projected"].notna(), "machine"]) == {"fast-cpu"}
    assert set(targets.loc[targets["projected"].notna(), "iterations measured on"]) == {"test-cpu"}
    caption = (tmp_path / "tables" / "hardware.md").read_text().splitlines()[-1]
    assert "compared with fast-cpu: step times only, no runs" in caption.lower()
    assert "iterations times the probed step time is" in caption


def test_the_runs_of_another_machine_are_counted_by_status(here, tmp_path):
    other = write_machine(tmp_path / "elsewhere", "slow-cpu")
    _edit_runs(other, lambda runs: runs.assign(status=runs["status"].mask(runs["optimizer"] == "sgd", "out_of_memory")))
    machines, _ = gather(Results(here, compared=(other,)))
    assert in_words(machines)[0] == "compared with slow-cpu: 12 runs, 9 finished, 3 out of memory"
    assert in_words(machines, ["update_rules"])[0] == "compared with slow-cpu: step times only, no runs"


def test_code_is_compared_where_machines_share_a_measurement(here, bare):
    """Truth: step_breakdown by different code, iteration_time by equal code, and runs of one machine alone."""
    for root, code in ((here, "0123456789abcdef"), (bare, "fedcba9876543210")):
        write_probe(root, "step_breakdown", step_breakdown("test-cpu").assign(code_fingerprint=code))
        write_probe(root, "iteration_time", iteration_times().assign(code_fingerprint="0123456789abcdef"))
    _edit_runs(here, lambda runs: runs.assign(code_fingerprint="0123456789abcdef"))
    machines, _ = gather(Results(here, compared=(bare,)))
    sentence = "different code measured 1 of the 2 runs and probes that machines share"
    assert in_words(machines) == ["compared with fast-cpu: step times only, no runs", sentence]
    write_probe(bare, "step_breakdown", step_breakdown("test-cpu"))
    machines, _ = gather(Results(here, compared=(bare,)))
    assert in_words(machines) == ["compared with fast-cpu: step times only, no runs"]


def _options(here: Path) -> list[str]:
    return [f"--results={here.parents[1]}", "--hardware=test-cpu"]


def test_the_command_makes_figure_and_table_of_all_folders(here, bare, capsys):
    assert compare.main([str(bare), *_options(here)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1].endswith("compare: fig16_hardware.pdf, hardware.csv, verdicts.csv")
    assert (here / "compare" / "fig16_hardware.png").is_file()
    assert "fast-cpu" in (here / "compare" / "hardware.csv").read_text()


@pytest.mark.usefixtures("_table_alone")
def test_the_command_prints_step_times_as_multiples_of_the_first_order_optimizer(here, bare, capsys):
    """Truth: by hand from `STEPS`; the cycle has one refresh of ten steps."""
    assert compare.main([str(bare), *_options(here)]) == 0
    rows = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()]
    assert ["bert", "test-cpu", "lamb", "20.2", "kaisa 1.29, mkor 1.05, eva 1.2"] in rows
    assert ["bert", "fast-cpu", "lamb", "10.1", "kaisa 1.29, mkor 1.05, eva 1.2"] in rows
    assert sum(row[:1] == ["autoencoder"] for row in rows) == 2


def put_verdicts(folder: Path, **verdicts: str) -> None:
    (folder / "tables").mkdir(exist_ok=True)
    rows = "".join(f"{claim},{claim} holds,{verdict}\n" for claim, verdict in verdicts.items())
    (folder / "tables" / "claims.csv").write_text(f"id,claim,verdict\n{rows}")


@pytest.mark.usefixtures("_table_alone")
def test_the_command_prints_the_claims_whose_verdict_is_another_elsewhere(here, bare, capsys):
    kept = write_machine(plan.plan.REFERENCE, "test-cpu")
    assert compare.main([str(bare), *_options(here)]) == 0
    assert "claims: no verdicts of this machine yet" in capsys.readouterr().out
    put_verdicts(here, C01="confirmed", C02="refuted", C03="inconclusive")
    assert compare.main([str(bare), *_options(here)]) == 0
    assert "claims: no other machine has verdicts" in capsys.readouterr().out
    put_verdicts(bare, C01="confirmed", C02="confirmed")
    put_verdicts(kept, C01="confirmed", C02="refuted", C03="inconclusive")
    assert compare.main([str(bare), *_options(here)]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    start = said.index("claims: 1 of 2 verdicts are those of fast-cpu")
    assert said[start + 1 : start + 5] == [
        "claims: 3 of 3 verdicts are those of test-cpu (reference)",
        "claim here fast-cpu test-cpu (reference)",
        "C02 refuted confirmed refuted C02 holds",
        "",
    ]
    table = pd.read_csv(here / "compare" / "verdicts.csv", keep_default_na=False)
    assert table.columns.to_list() == ["id", "claim", "test-cpu", "fast-cpu", "test-cpu (reference)"]
    assert table.loc[2].to_list() == ["C03", "C03 holds", "inconclusive", "", "inconclusive"]


@pytest.mark.usefixtures("_table_alone")
def test_a_damaged_table_of_claims_is_named(here, bare, capsys):
    put_verdicts(here, C01="confirmed")
    put_verdicts(bare)
    file = bare / "tables" / "claims.csv"
    file.write_text("id,claim\nC01,it holds\n")
    assert compare.main([str(bare), *_options(here)]) == 1
    assert capsys.readouterr().err == f"{file}: damaged: it lacks one of the columns id, claim, verdict\n"


def test_the_pipeline_leaves_out_the_reference_of_this_machine(here):
    """It is an earlier run of the same machine; only the command shows it."""
    own, other = (write_machine(plan.plan.REFERENCE, name) for name in ("test-cpu", "kept-cpu"))
    chosen = Plan.load(results=str(here.parents[1]), hardware="test-cpu")
    assert chosen.compared == (other, own)
    assert compared(describe("figures", "fig16_hardware"), chosen) == [str(other)]


@pytest.mark.parametrize(
    "folder", ["nowhere/embedded", "elsewhere/fast-cpu", "results/test-cpu/single_gpu", "results/test-cpu/embedded"]
)
def test_a_folder_that_is_none_is_refused_in_one_line(here, bare, tmp_path, capsys, folder):
    (tmp_path / "results" / "test-cpu" / "single_gpu").mkdir()
    assert compare.main([str(tmp_path / folder), *_options(here)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("folder = ")
    assert "config.yaml" not in said
    assert ("results/<hardware>/embedded" in said) is not ("this machine's own" in said)
    assert not (here / "compare").exists()


def test_nothing_to_compare_is_one_line(tmp_path, capsys):
    assert compare.main([f"--results={tmp_path / 'results'}", "--hardware=test-cpu"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "workflow.bench.timing --tier embedded" in said


def test_the_pipeline_makes_both_again_when_another_machine_changes(here, bare, tmp_path):
    """Only their inputs include the existing files of other machines."""
    kept = write_machine(tmp_path / "results" / "reference", "kept-cpu")
    chosen = Plan.load(results=str(here.parents[1]), hardware="test-cpu", compare=[str(bare)])
    assert chosen.compared == (bare, kept)
    figure = describe("figures", "fig16_hardware")
    files = {Path(file) for file in inputs(figure, chosen)["compared"]}
    probes = {folder / "probes" / "step_breakdown.csv" for folder in (bare, kept)}
    assert files == {*probes, kept / "bert_pretraining.runs.csv"}
    assert compared(figure, chosen) == [str(bare), str(kept)]
    for kind in ("figures", "tables"):
        showing = {
            artefact.name for artefact in planned_artefacts(chosen, kind) if inputs(artefact, chosen)["compared"]
        }
        assert showing == {"fig16_hardware" if kind == "figures" else "hardware"}
    with pytest.raises(ConfigError, match=r"compare\[0\]"):
        Plan.load(results=str(here.parents[1]), hardware="test-cpu", compare=[str(tmp_path / "nowhere")])


@pytest.mark.usefixtures("_table_alone")
def test_a_folder_with_a_link_is_not_compared(here, bare, tmp_path, capsys):
    (bare / "tables").mkdir(exist_ok=True)
    (bare / "tables" / "claims.csv").symlink_to(tmp_path / "private")
    chosen = ["--hardware=test-cpu", f"--results={tmp_path / 'results'}", f"--out-dir={tmp_path / 'out'}"]
    assert compare.main([str(bare), *chosen]) == 1
    assert capsys.readouterr().err.startswith(f"{bare}/tables/claims.csv: is a link, to ")
    assert not (tmp_path / "out").exists()


def _claimed(root: Path, ms: Mapping[str, float], *, runs: bool = True) -> Path:
    """Write runs of ResNet in which MKOR takes 60 steps where SGD takes 100, if they are asked for, and step times."""
    trained = swept("resnet50_imagenet", {"sgd": [100.0, 110.0], "mkor": [60.0, 66.0], "kaisa": [90.0, 99.0]})
    if runs:
        write_swept(root, trained)
    write_probe(root, "step_time", step_time(trained.runs, ms))
    return root


def test_what_a_step_may_cost_is_set_against_what_each_machine_measured(tmp_path):
    """Truth: MKOR's step may cost 1.67 times SGD's, on a machine without runs as well; 30 ms are those of SGD."""
    first = _claimed(tmp_path / "a" / "embedded", {"mkor": 45.0, "kaisa": 60.0})
    second = _claimed(tmp_path / "b" / "embedded", {"mkor": 60.0}, runs=False)
    machines = {root.parent.name: Results(root) for root in (first, second, tmp_path / "c" / "embedded")}
    found = {(one.claim, one.rival): one for one in overheads(machines)}
    assert set(found) == {("C06", "sgd"), ("C07", "kaisa")}
    to_sgd = found["C06", "sgd"]
    assert {machine: limit.needs for machine, limit in to_sgd.by_machine.items()} == dict.fromkeys(
        "abc", "< 1.67 [1.67, 1.67]"
    )
    assert {machine: limit.here for machine, limit in to_sgd.by_machine.items()} == {
        "a": "1.5: wins",
        "b": "2: loses",
        "c": "not timed",
    }
    assert found["C07", "kaisa"].by_machine["a"].here == "0.75: wins"
