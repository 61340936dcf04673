"""What a dry run says of a plan's cost: seconds of steps and their sources, the pilot, and what seeds can decide."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.support import experiments
from tests.support.pbs.cluster import PROFILE, ROOT
from workflow.bench import count_workloads
from workflow.bench.claims import RULES
from workflow.bench.downloads import needs
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.plan.step_costs import FILE, shape_of, step_costs
from workflow.bench.probes import _links, projection
from workflow.bench.support.config import ConfigError
from workflow.cluster import claim_costs, pilot, preflight
from workflow.cluster.settings import Cluster
from workflow.cluster.step_seconds import PILOT, MeasuredSteps, papers_step, read_pilot, step_seconds


@pytest.fixture
def paper(tmp_path: Path) -> tuple[Plan, Cluster]:
    plan = Plan.load(tier="paper", hardware="test", results=str(tmp_path))
    return plan, Cluster.load("polaris", plan)


def with_training(cluster: Cluster, name: str, **changes: object) -> Cluster:
    """Return a cluster with changes of one experiment's resources."""
    changed = replace(cluster.training(name), **changes)
    return replace(cluster, trainings={**cluster.trainings, name: changed})


def measured(plan: Plan, experiment: str, **changes: object) -> MeasuredSteps:
    """Return a row of the pilot for an experiment of a plan, on 8 ranks."""
    run = plan.experiments[experiment].jobs["lamb"].runs[0]
    row = MeasuredSteps(
        experiment, "lamb", shape_of(run.spec["workload"]), 512, 8, 5, 6.5, "2026-11-23", "polaris", "NVIDIA A100"
    )
    return row._replace(**changes)


def test_seconds_come_from_the_pilot_the_file_or_the_model_in_this_order(paper):
    plan, cluster = paper
    name = "bert_pretraining"
    stated = step_seconds(plan, cluster)[name]
    assert (stated.seconds, stated.kind) == (20, "file")
    assert "Table 2" in stated.source
    guessed = step_seconds(plan, with_training(cluster, name, step_source=None))[name]
    assert (guessed.seconds, guessed.kind, guessed.is_doubtful) == (20, "guess", True)
    modelled = step_seconds(plan, with_training(cluster, name, step_source=None, step_seconds=None))[name]
    assert (modelled.seconds, modelled.kind) == (stated.model, "model")
    pilot.write_row(plan.results / PILOT, measured(plan, name))
    found = step_seconds(plan, cluster)[name]
    assert (found.seconds, found.kind) == (6.5, "pilot")
    assert found.source == "measured pilot, 2026-11-23, 8 ranks of NVIDIA A100, lamb"
    (estimate,) = [each for each in preflight.cost_estimates(plan, cluster) if each.experiment == name]
    assert estimate.step_seconds == pytest.approx(6.5 + estimate.shared_seconds)


@pytest.mark.parametrize("changes", [{"examples": 256}, {"workload": "another"}, {"step_seconds": -1.0}])
def test_a_measurement_of_other_work_is_not_taken(paper, changes):
    plan, cluster = paper
    pilot.write_row(plan.results / PILOT, measured(plan, "bert_pretraining", **changes))
    assert step_seconds(plan, cluster)["bert_pretraining"].kind == "file"


def test_a_damaged_file_of_the_pilot_is_as_none(tmp_path):
    (tmp_path / PILOT).write_text("experiment,label\nit,sgd\n")
    assert read_pilot(tmp_path / PILOT) == {} == read_pilot(tmp_path / "absent")


def test_the_pilot_replaces_the_row_of_its_experiment_alone(paper):
    plan, _ = paper
    file = plan.results / PILOT
    rows = [measured(plan, name) for name in ("bert_pretraining", "bert_phase1")]
    for row in (*rows, rows[0]._replace(step_seconds=7.0)):
        pilot.write_row(file, row)
    assert {name: row.step_seconds for name, row in read_pilot(file).items()} == {
        "bert_phase1": 6.5,
        "bert_pretraining": 7.0,
    }


def test_the_models_seconds_by_hand(paper):
    """Truth: 1.02e12 operations a sequence at 40 % of 312e12, 512 sequences a rank; the paper's Table 2: 7.97 h."""
    plan, cluster = paper
    step = papers_step(plan, cluster)
    assert step is not None
    operations = step_costs()[shape_of(plan.job("bert_pretraining", "lamb").runs[0].spec["workload"])].operations
    assert step.seconds == pytest.approx(7.97 * 3600 / 1536)
    assert step.share_of_peak == pytest.approx(512 * operations / step.seconds / 312e12)
    assert round(100 * step.share_of_peak) == 9
    compute = 512 * operations / (0.4 * 312e12)
    # Gradients over Slingshot and the update take the rest.
    assert compute < step.model < compute + 0.1
    # The projection multiplies every token with the vocabulary, the harness only those that are predicted.
    whole = projection.compute_ms(projection.bert_large(), _links.systems()[0], 64) / 1000
    assert compute < whole < 1.1 * compute


def test_the_counts_of_workloads_are_those_of_the_code():
    """Truth: the models on meta tensors, and published sizes; the table has every workload of the large tiers."""
    specs = {
        shape_of(run.spec["workload"]): run.spec["workload"]
        for tier in count_workloads.TIERS
        for job in Plan.load(tier=tier, hardware="none").jobs
        for run in job.runs
    }
    assert sorted(specs) == [row["shape"] for row in csv.DictReader(FILE.open())]
    for shape, spec in specs.items():
        if spec["name"] in ("autoencoder", "alexnet", "resnet50"):
            assert count_workloads.counted(spec) == step_costs()[shape]._asdict(), shape
    bert = next(cost for shape, cost in step_costs().items() if "pretraining" in shape and shape.endswith("=512"))
    assert bert.parameters == projection.bert_large().parameters


def test_a_cluster_without_a_system_must_state_seconds(tmp_path):
    plan = Plan.load(tier="paper", hardware="test")
    content = yaml.safe_load((PROFILE / "cluster.yaml").read_text())
    without = {key: value for key, value in content.items() if key != "system"}
    for changed, says in (
        (without, "training.bert_phase1.step_seconds = null: must be given"),
        ({**content, "system": "Polarised"}, "unknown; did you mean 'Polaris'"),
    ):
        (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
        with pytest.raises(ConfigError, match=re.escape(says)):
            Cluster.load(str(tmp_path), plan)


def said(plan: Plan, cluster: Cluster) -> list[str]:
    return list(preflight.cost_lines(plan, cluster, preflight.cost_estimates(plan, cluster)))


def test_a_guess_far_from_the_model_is_warned_of(paper):
    plan, cluster = paper
    far, near = (with_training(cluster, "bert_phase1", step_seconds=seconds) for seconds in (5.0, 4.0))
    stated, (warning,), none = (
        [line for line in said(plan, each) if line.startswith("warning")] for each in (cluster, far, near)
    )
    assert stated == none == [], "the profile states its sources"
    assert "more than 2 times off the model's: bert_phase1 5 (2.1)" in warning


def test_claims_that_seeds_cannot_decide_are_announced_where_they_cost_much(paper):
    plan, cluster = paper
    lines = said(plan, cluster)
    answers = {line.split()[0]: line for line in lines if line.startswith("  C")}
    assert list(answers) == [f"C{number:02}" for number in (1, 2, 3, 4, 5, 6, 7, 9, 18, 19, 25)]
    assert {claim for claim, line in answers.items() if " no: one seed has no interval " in line} == {
        *("C01", "C02", "C03", "C04", "C05", "C06", "C07", "C25")
    }
    announced = [line for line in lines if line.startswith(("NOT DECIDED", "no claim rests"))]
    hours = {each.experiment: each.node_hours for each in preflight.cost_estimates(plan, cluster)}
    whole = sum(hours[name] for name in ("bert_phase1", "bert_pretraining", "bert_squad"))
    assert announced[0] == (
        f"NOT DECIDED: C01, C02, C03: {whole:,.0f} node-hours of bert_phase1, bert_pretraining, bert_squad reproduce "
        "Figure 2, Table 2; Table 2 and decide nothing"
    )
    assert [line.partition(":")[2].split()[0] for line in announced[1:3]] == ["C04,", "C06,"]
    assert announced[3].startswith("no claim rests on bert_inversion")
    assert any("overheads weigh 4.4 times what the paper's did" in line for line in lines)


def with_seeds(plan: Plan, experiment: str, seeds: list[int], *, in_one: bool = True) -> Plan:
    """Return a plan in which every run of an experiment has some seeds, in one micro-batch or in several."""
    jobs = {}
    for label, job in plan.experiments[experiment].jobs.items():
        spec = {key: value for key, value in job.runs[0].spec.items() if not (in_one and key == "micro_batch_size")}
        planned = tuple(replace(job.planned[0], run=Run({**spec, "seed": seed})) for seed in seeds)
        jobs[label] = replace(job, planned=planned)
    changed = {**plan.experiments, experiment: replace(plan.experiments[experiment], jobs=jobs)}
    return replace(plan, experiments=changed)


def answer(plan: Plan, claim: str) -> str:
    return next(cost.answer for cost in claim_costs.claim_costs(plan, {}) if cost.claim == claim)


def test_more_seeds_can_decide_but_not_what_cannot_be_timed(paper):
    """Truth: Student's half lengths by hand, 12.71 / sqrt 2 and 4.303 / sqrt 3; C01 is about seconds, C03 is not."""
    plan, _ = paper
    for seeds, says in (
        ([0], "no: one seed"),
        ([0, 1], "hardly: interval of ± 9 s.d."),
        ([0, 1, 2], "yes: interval of ± 2.5 s.d."),
    ):
        assert answer(with_seeds(plan, "resnet50_imagenet", seeds), "C06").startswith(says)
    more = with_seeds(plan, "bert_squad", [0, 1, 2])
    assert answer(with_seeds(more, "bert_pretraining", [0, 1, 2]), "C01").startswith("yes")
    accumulated = with_seeds(more, "bert_pretraining", [0, 1, 2], in_one=False)
    assert answer(accumulated, "C01") == "no: its steps are not timed, as micro-batches are accumulated"
    assert answer(accumulated, "C03").startswith("yes")


def test_every_claim_is_of_the_table_or_of_a_probe():
    """Truth: the rules' own probes, and the experiments that they name."""
    functions = {claim: getattr(rule, "func", rule).__name__ for claim, rule in RULES.items()}
    of_probes = {claim for claim, name in functions.items() if name in ("_of_probe", "_half_precision", "_scaling")}
    assert {*claim_costs.NEEDS} == RULES.keys() - of_probes
    for claim, rule in RULES.items():
        given = getattr(rule, "keywords", {})
        if "experiment" in given:
            assert claim_costs.NEEDS[claim].experiments == (given["experiment"],)
            assert set(given["rivals"]) < set(claim_costs.NEEDS[claim].labels)


def test_without_a_cluster_data_is_missed_and_the_paper_tier_is_estimated_on_polaris(paper, tmp_path, monkeypatch):
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "data"))
    plan, cluster = paper
    assert list(preflight.lines_without_cluster(plan)) == [*needs.lines(plan), *said(plan, cluster)]
    single = Plan.load(tier="single_gpu", hardware="test", results=str(tmp_path))
    assert list(preflight.lines_without_cluster(single)) == list(needs.lines(single))
    assert list(preflight.lines_without_cluster(Plan.load(hardware="test"))) == []


def test_data_of_experiments_that_are_done_is_not_missed(paper, tmp_path, monkeypatch):
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "data"))
    plan, cluster = paper
    left = {"resnet50_imagenet"}
    done = {run.id for job in plan.jobs if job.experiment not in left for run in job.runs}
    monkeypatch.setattr(preflight, "_steps_left", lambda _, run: 0 if run.id in done else 1)
    expected = list(needs.lines(plan, left))
    assert expected[0].startswith("data: imagenet: ")
    for lines in (preflight.lines(plan, cluster), preflight.lines_without_cluster(plan)):
        assert [line for line in lines if line.startswith("data: ")] == expected


def test_a_cluster_copies_what_the_runs_read_where_its_file_says_so(paper):
    """Truth: bert_phase1's shards; ImageNet, which the file says is not copied."""
    _, cluster = paper
    assert cluster.training("bert_phase1").staged == ("pretraining",)
    assert " --stage pretraining" in cluster.launch(cluster.training("bert_phase1"), 1)
    assert cluster.training("resnet50_imagenet").staged == ()
    assert "--stage" not in cluster.launch(cluster.training("resnet50_imagenet"), 1)


def test_the_pages_state_the_node_hours_of_the_estimate(paper):
    plan, cluster = paper
    page = (ROOT / "docs" / "clusters.md").read_text()
    hours = {each.experiment: each.node_hours for each in preflight.cost_estimates(plan, cluster)}
    assert f"{sum(hours.values()):,.0f} node-hours" in page
    assert f"{hours['bert_pretraining']:,.0f} of them" in page
    step = papers_step(plan, cluster)
    assert step is not None
    assert f"{step.model:.1f} s by the model, {step.seconds:.1f} s in the paper" in " ".join(page.split())


def the_runs(folder: Path) -> list[str]:
    """Write an experiment of a second-order and a first-order optimizer; return the options that choose its plan."""
    path = experiments.make_folder(folder / "config")
    experiments.write(path, "it", experiments.block(experiments.optimizer("mkor"), experiments.optimizer("sgd")))
    absent = {"name": "alexnet", "dataset": "cifar100", "batch_size": 128}
    experiments.write(path, "absent", experiments.block(experiments.optimizer("sgd"), workload=absent))
    return experiments.options(path)


def test_the_pilot_measures_the_base_optimizer_and_names_what_it_cannot(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "data"))
    options = the_runs(tmp_path)
    assert pilot.main(["--steps", "2", *options]) == 0
    (row,) = read_pilot(tmp_path / "results" / "test" / "embedded" / PILOT).values()
    assert (row.experiment, row.label, row.examples, row.ranks, row.steps) == ("it", "sgd", 128, 1, 2)
    assert 0 < row.step_seconds < 10
    assert "absent: not measured: " in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "results").rglob("*") if file.is_file()] == [PILOT]
    assert pilot.main(["it", "--minutes", "1e-9", *options]) == 0
    assert "it: not measured: the 1e-09 minutes are over" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("micro", "planned", "ranks", "batch", "kept"),
    [(16, 64, 8, 4096, 16), (None, 4, 8, 65536, None), (1024, 64, 8, 4096, None), (16, 64, 1, 512, 16)],
)
def test_a_rank_has_as_many_examples_and_micro_batches_as_planned(micro, planned, ranks, batch, kept):
    """Truth by hand, for a batch of 32,768."""
    spec = {"workload": {"name": "x", "batch_size": 32768}, **({"micro_batch_size": micro} if micro else {})}
    run = pilot.scaled(Run(spec), planned, ranks, 5)
    assert (run.spec["workload"]["batch_size"], run.spec.get("micro_batch_size")) == (batch, kept)
    assert run.split_problem(ranks) is None
    if kept:
        assert run.accumulation_steps / ranks == 32768 / micro / planned
