"""The plan: resolved specs, ids that change exactly if the numbers can change, and no import of torch."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import MISSING, fields, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import available, method_class, module_of
from tests.support.calls import counted
from tests.support.experiments import block, load, make_folder, optimizer, options, write
from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.plan.__main__ import main
from workflow.bench.plan.artefacts import describe, inputs, workloads_of
from workflow.bench.plan.experiment_files import MAX_RUNS
from workflow.bench.plan.experiments import MAX_CHAIN
from workflow.bench.plan.hyperparameters import COMPUTED, REQUIRED, accepted, read_signatures
from workflow.bench.plan.runs import Run, run_id
from workflow.bench.plan.tiers import FIELD
from workflow.bench.support import config
from workflow.bench.support.config import ROOT, ConfigError, with_defaults

RELEASED = optimizer("mkor", "mkor_released", lr=1, update_rule="released")
SWEPT = {"sweep": {"inverse_update_period": [1, 10]}}
BLOCK = block(optimizer("sgd", momentum=0.9), {**RELEASED, **SWEPT}, seeds=[0, 1])


def test_a_sweep_may_link_hyperparameters_and_leaves_the_ids_of_a_product_as_they_are(folder):
    """Truth: the pairs that are listed, and not all four; a run is its values, however they were written."""
    pairs = [{"inverse_update_period": 1, "weight_decay": 0.1}, {"inverse_update_period": 10, "weight_decay": 0.2}]
    linked = {**RELEASED, "sweep": pairs}
    product = {**RELEASED, "sweep": {name: [pair[name] for pair in pairs] for name in pairs[0]}}
    ids = {}
    for name, entry in (("linked", linked), ("product", product)):
        write(folder, name, block(entry, seeds=[0, 1]))
        ids[name] = load(folder).job(name, "mkor_released").run_ids
    assert (len(ids["linked"]), len(ids["product"])) == (4, 8)
    assert set(ids["linked"]) < set(ids["product"])
    values = [run.spec["optimizer"]["hyperparameters"] for run in load(folder).job("linked", "mkor_released").runs]
    assert [{name: one[name] for name in pairs[0]} for one in values[::2]] == pairs


def test_plan_imports_no_torch_and_is_quick():
    """Snakemake loads the plan at every start, and login nodes must not import torch."""
    code = (
        "import sys\nfrom tests.support.calls import counted\nwith counted() as calls:\n"
        " from workflow.bench.plan import Plan; plan = Plan.load(results=sys.argv[1], hardware='test')\n"
        "heavy = {'torch', 'transformers', 'pandas', 'sklearn', 'scipy', 'matplotlib'} & set(sys.modules);"
        "assert not heavy, heavy; assert plan.jobs; print(calls())"
    )
    called = subprocess.run(
        [sys.executable, "-c", code, "/nonexistent"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert called.returncode == 0, called.stderr
    assert int(called.stdout) < 4_500_000  # about two seconds of a slow core, half of Snakemake's budget


def test_a_spec_is_resolved_and_its_id_is_its_hash(folder: Path):
    write(folder, "one", BLOCK)
    job = load(folder).job("one", "mkor_released")
    swept = [(run.seed, run.hyperparameters["inverse_update_period"]) for run in job.runs]
    assert swept == [(0, 1), (1, 1), (0, 10), (1, 10)]
    run = job.runs[0]
    keys = "tier workload data_version steps evaluate_every seed schedule start_from optimizer"
    assert run.spec.keys() == set(keys.split())
    assert run.spec["tier"] == "embedded"
    assert "scikit-learn" in run.spec["data_version"]
    assert run.spec["workload"]["dataset"] == "digits"  # a default
    assert run.spec["schedule"] == {"name": "constant", "warmup": 0.0}  # a default
    assert run.hyperparameters["base"] == "sgd"  # a default
    assert run.hyperparameters["momentum"] == 0.9  # a default of the base
    assert run.hyperparameters["update_rule"] == "released"
    assert run.hyperparameters["lr"] == 1.0
    assert isinstance(run.hyperparameters["lr"], float)
    assert run.id == run_id(json.loads(json.dumps(run.spec)))
    assert len(run.id) == 16
    assert set(run.id) <= set("0123456789abcdef")


def test_writing_a_default_out_changes_no_id_and_changing_a_number_changes_its_job_only(folder: Path):
    write(folder, "one", BLOCK)
    before = load(folder)
    spelled = {**BLOCK, "schedule": {"name": "constant"}, "workload": {**BLOCK["workload"], "dataset": "digits"}}
    write(folder, "one", spelled)
    assert list(load(folder).runs) == list(before.runs)

    changed = json.loads(json.dumps(BLOCK))
    changed["optimizers"][0]["hyperparameters"]["lr"] = 0.2
    write(folder, "one", changed)
    after = load(folder)
    assert not set(before.job("one", "sgd").run_ids) & set(after.job("one", "sgd").run_ids)
    assert before.job("one", "mkor_released").run_ids == after.job("one", "mkor_released").run_ids


def test_experiments_share_runs_whatever_their_targets(folder: Path):
    write(folder, "one", BLOCK)
    target = {"split": "validation", "metric": "loss", "below": 0.1}
    write(folder, "two", {**BLOCK, "target": target})
    plan = load(folder)
    assert plan.job("one", "sgd").run_ids == plan.job("two", "sgd").run_ids
    assert len(plan.runs) == 6
    found = plan.job("two", "sgd").planned[0].target
    assert found is not None
    assert found.as_dict() == target
    assert plan.job("one", "sgd").planned[0].target is None


def test_start_from_enters_the_spec_and_orders_the_jobs(folder: Path):
    write(folder, "first", BLOCK)
    write(folder, "after", {**BLOCK, "start_from": {"experiment": "first", "optimizer": "sgd", "seed": 1}})
    plan = load(folder)
    source = plan.job("first", "sgd").runs[1]
    job = plan.job("after", "sgd")
    assert job.upstream == (("first", "sgd"),)
    assert {run.start_from for run in job.runs} == {source.id}
    assert [run.lineage for run in job.runs] == [(run.spec, source.spec) for run in job.runs]
    assert plan.started_from == {source.id}

    # Another learning rate of the first experiment changes the runs that start from it.
    changed = json.loads(json.dumps(BLOCK))
    changed["optimizers"][0]["hyperparameters"]["lr"] = 0.2
    write(folder, "first", changed)
    assert not set(load(folder).job("after", "sgd").run_ids) & set(job.run_ids)


def test_without_optimizer_and_seed_each_run_starts_from_its_own(folder: Path):
    both = block(optimizer("sgd"), optimizer("sgd", "faster"), seeds=[0, 1])
    write(folder, "first", both)
    write(folder, "after", {**both, "start_from": {"experiment": "first"}})
    plan = load(folder)
    for label in ("sgd", "faster"):
        job = plan.job("after", label)
        assert job.upstream == (("first", label),)
        sources = {run.seed: run.id for run in plan.job("first", label).runs}
        assert {run.seed: run.start_from for run in job.runs} == sources

    write(folder, "after", {**both, "seeds": [0, 7], "start_from": {"experiment": "first"}})
    with pytest.raises(config.ConfigError, match=r"start_from\.seed = 7: must select one run; .* has 0 of 'sgd'"):
        load(folder)
    write(folder, "after", block(optimizer("sgd", "other"), start_from={"experiment": "first"}))
    with pytest.raises(config.ConfigError, match=r'start_from\.optimizer = "other": unknown label of experiment'):
        load(folder)


def _chain(folder: Path, links: int) -> None:
    small = {**BLOCK, "seeds": [0], "optimizers": BLOCK["optimizers"][:1]}
    write(folder, "e000", small)
    for link in range(1, links):
        write(folder, f"e{link:03}", {**small, "start_from": {"experiment": f"e{link - 1:03}"}})


def test_a_chain_of_experiments_is_limited_and_planned_without_recursion(folder: Path):
    _chain(folder, MAX_CHAIN)
    (last,) = load(folder).job(f"e{MAX_CHAIN - 1:03}", "sgd").runs
    assert len(last.lineage) == MAX_CHAIN
    _chain(folder, MAX_CHAIN + 1)
    said = "e100.yaml: start_from: at most 100 experiments may form a chain: e100 -> e099 -> e098 -> ... -> e002 -> "
    with pytest.raises(config.ConfigError, match=said):
        load(folder)


def test_a_cycle_of_experiments_is_named(folder: Path):
    for name, source in (("a", "b"), ("b", "c"), ("c", "b")):
        write(folder, name, {**BLOCK, "start_from": {"experiment": source, "optimizer": "sgd", "seed": 0}})
    with pytest.raises(config.ConfigError, match=r"\w\.yaml: start_from forms a cycle: (b -> c -> b|c -> b -> c)$"):
        load(folder)


def test_the_most_runs_are_planned_in_a_few_seconds(folder: Path):
    """No step of the plan takes time that grows with the square of the number of runs."""
    swept = {**BLOCK["optimizers"][0], "sweep": {"weight_decay": [k / 1000 for k in range(10)]}}
    write(folder, "one", {**BLOCK, "seeds": list(range(MAX_RUNS // 10)), "optimizers": [swept]})
    with counted() as calls:
        assert len(load(folder).runs) == MAX_RUNS
    assert calls() < 2_000_000


@pytest.mark.parametrize(("batch", "parts"), [(1, 1), (12, 1), (12, 4), (60, 6), (97, 1), (64, 64)])
def test_ranks_divide_batches_as_counted_one_by_one(batch: int, parts: int):
    """Truth: a search through all numbers of ranks."""
    micro = {"micro_batch_size": batch // parts} if parts > 1 else {}
    run = Run({"workload": {"batch_size": batch}, **micro})
    fits = [n for n in range(1, batch + 1) if batch % n == 0 and (parts % n == 0 or n % parts == 0)]
    for ranks in range(1, 2 * batch + 2):
        problem = run.split_problem(ranks)
        assert (problem is None) == (ranks in fits)
        near = [str(max(n for n in fits if n < ranks))] if problem else []
        near += [str(min(n for n in fits if n > ranks))] if problem and ranks < batch else []
        assert problem is None or problem.endswith(f"; {' or '.join(near)} can")


def test_an_experiment_without_the_tier_is_left_out_with_a_note(folder: Path):
    shutil.copy(folder / "tiers" / "embedded.yaml", folder / "tiers" / "other.yaml")
    write(folder, "one", BLOCK)
    write(folder, "two", BLOCK, tier="other")
    plan = load(folder)
    assert list(plan.experiments) == ["one"]
    assert plan.notes == ("two: left out, it has no tier 'embedded'",)
    assert list(load(folder, tier="other").experiments) == ["two"]


TUNING = {
    "trials": 3,
    "seed": 9,
    "metric": {"split": "validation", "metric": "loss"},
    "space": {"lr": {"log": [0.1, 10]}},
}
TUNED = {**BLOCK, "optimizers": [{"name": "sgd", "hyperparameters": {"lr": "tuned"}}]}
"""A block that takes tuned values, from another experiment or with a `TUNING` of its own."""


def keep_tuned(folder: Path, tier: str, rates: dict[int | None, float]) -> Path:
    """Write the learning rates that were tuned for autoencoders of some width at a tier."""
    file = folder / "tuned" / tier / "one.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    records = []
    for width, lr in rates.items():
        given = {} if width is None else {"hidden": [width]}
        workload = {"name": "autoencoder", **with_defaults(given, workloads.parameters("autoencoder"))}
        study = {"hyperparameters": {"lr": lr}, "trials": ["none"], "score": 0.1}
        records.append({"workload": workload, "label": "sgd", "studies": [study]})
    file.write_text(yaml.safe_dump(records))
    return file


def test_a_tier_may_take_the_tuned_values_of_another_whose_workload_has_another_size(folder: Path):
    blocks = [{**TUNED, "tuning": TUNING, "workload": {"name": "autoencoder", "hidden": [width]}} for width in (4, 8)]
    write(folder, "one", *blocks, tier="evidence")
    assert load(folder, tier="evidence", for_tuning=True).experiments["one"].jobs == {}

    def rates() -> list[float]:
        runs = load(folder, tier="evidence").job("one", "sgd").runs
        return [run.hyperparameters["lr"] for run in runs if run.seed == 0]

    keep_tuned(folder, "embedded", {4: 0.5})
    assert rates() == [0.5, 0.5]
    (note,) = load(folder, tier="evidence").notes
    assert note.endswith("embedded/one.yaml, tuned with other parameters of autoencoder")
    embedded = keep_tuned(folder, "embedded", {4: 0.5, 8: 0.25})
    assert rates() == [0.5, 0.25]
    assert load(folder, tier="evidence").notes == ()
    keep_tuned(folder, "evidence", {8: 2.0})
    assert rates() == [0.5, 2.0]
    embedded.unlink()
    with pytest.raises(ConfigError, match=r"evidence/one\.yaml contains no value"):
        rates()


def test_an_experiment_may_take_the_tuned_values_of_another(folder: Path):
    write(folder, "one", BLOCK)
    write(folder, "two", TUNED, tier="evidence")
    file = folder / "experiments" / "two.yaml"
    with pytest.raises(ConfigError, match="needs a 'tuning' in this block"):
        load(folder, tier="evidence")
    content = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**content, "tuned_from": "own"}))
    with pytest.raises(ConfigError, match=r"two\.yaml: tuned_from = \"own\": unknown experiment; did you mean 'one'"):
        load(folder, tier="evidence")
    file.write_text(yaml.safe_dump({**content, "tuned_from": "one"}))
    with pytest.raises(ConfigError, match=r"evidence/two\.yaml contains no value"):
        load(folder, tier="evidence").experiment("two")
    keep_tuned(folder, "embedded", {None: 0.5})
    plan = load(folder, tier="evidence")
    assert {run.hyperparameters["lr"] for run in plan.job("two", "sgd").runs} == {0.5}
    assert plan.notes == ("one: left out, it has no tier 'evidence'",)
    # Those of this tier come first, if they were tuned with this very workload.
    keep_tuned(folder, "evidence", {None: 2.0})
    assert {run.hyperparameters["lr"] for run in load(folder, tier="evidence").job("two", "sgd").runs} == {2.0}
    keep_tuned(folder, "evidence", {8: 2.0})
    assert {run.hyperparameters["lr"] for run in load(folder, tier="evidence").job("two", "sgd").runs} == {0.5}


def test_an_experiment_without_its_tuned_values_leaves_the_others_in_the_plan(folder: Path, capsys):
    write(folder, "one", BLOCK)
    write(folder, "two", {**TUNED, "tuning": TUNING})
    write(folder, "three", {**BLOCK, "start_from": {"experiment": "two"}})
    plan = load(folder)
    assert list(plan.experiments) == ["one"]
    message = "two.yaml contains no value for this workload and label: run python -m workflow.bench.tune two, or give"
    assert [message in note for note in plan.notes] == [True]
    for name in ("two", "three"):  # the runs of three start from those of two
        with pytest.raises(ConfigError, match=re.escape(message)):
            plan.experiment(name)
    # A listing of some experiments has the notes on these alone.
    write(folder, "four", BLOCK, tier="evidence")
    for asked, told in (([], {"two", "four"}), (["one"], set())):
        assert main([*asked, *options(folder)]) == 0
        said = capsys.readouterr().out
        notes = {"two": message, "four": "four: left out"}
        assert {name for name, note in notes.items() if note in said} == told
    (folder / "experiments" / "four.yaml").unlink()
    # Its trials can be planned, and the plan of them lacks what starts from its runs.
    searching = load(folder, for_tuning=True)
    assert list(searching.experiments) == ["one", "two"]
    assert searching.experiment("two").tuned_optimizers
    table = describe("tables", "table6_settings")  # of all experiments that can be trained
    measured = inputs(table, plan)["measured"]
    assert [name for name in ("one", "two", "three") if f"{plan.results}/{name}.csv" in measured] == ["one"]
    assert workloads_of(table, plan)


@pytest.mark.parametrize("other", ["evidence", "embeded"])
def test_a_tier_that_takes_values_from_no_other_tier_is_refused(folder: Path, other: str):
    file = folder / "tiers" / "evidence.yaml"
    file.write_text(file.read_text().replace("tuned_like: embedded", f"tuned_like: {other}"))
    with pytest.raises(ConfigError, match=r"evidence\.yaml: tuned_like = .*: must be another tier"):
        load(folder)


SMALL = {"autoencoder_lamb", "factor_variants"}
"""Experiments that only the tiers of small models have."""


@pytest.mark.parametrize("tier", ["embedded", "single_gpu", "paper"])
def test_the_committed_experiments_are_planned_in_full(tier: str):
    """Figures and claims find their labels, and all optimizers of a block share seeds and the number of trials."""
    plan = Plan.load(tier=tier, hardware="test")
    left_out = {
        *FIELD,
        "bert_pretraining_small",
        "autoencoder_horizons",
        "bert_horizons",
        "ladder",
        "batch_size",
        "width",
        *(SMALL if tier != "embedded" else ()),
    }
    assert list(plan.notes) == [f"{name}: left out, it has no tier '{tier}'" for name in sorted(left_out)]
    files = {file.stem for file in (config.CONFIG / "experiments").glob("*.yaml")}
    assert set(plan.experiments) | left_out == files
    rivals = {"lamb", "kaisa", "mkor", "mkor_released", "mkor_h", "eva", "hylo"}
    assert rivals <= set(plan.experiments["bert_pretraining"].jobs)
    rules = {"sgd", "mkor", "mkor_published", "mkor_released", "mkor_windowed", "mkor_normalized", "kaisa"}
    assert set(plan.experiments["update_rules"].jobs) - {"lamb"} == rules
    for experiment in plan.experiments.values():
        by_workload: dict[str, set[tuple[int, ...]]] = {}
        for job in experiment.jobs.values():
            for run in job.runs:
                seeds = tuple(sorted({other.seed for other in job.runs if other.workload == run.workload}))
                by_workload.setdefault(run.workload, set()).add(seeds)
        assert all(len(seeds) == 1 for seeds in by_workload.values())
        trials = {(c.workload["name"], tuple(map(len, c.studies))) for c in experiment.tuned_optimizers}
        assert len(trials) == len({workload for workload, _ in trials})
    for job in plan.jobs:
        named = {"mkor_published": "published", "mkor_released": "released"}
        rule = next((rule for name, rule in named.items() if job.label.startswith(name)), "sherman_morrison")
        assert all(run.hyperparameters["update_rule"] == rule for run in job.runs if run.method == "mkor")


def test_signatures_read_from_the_source_are_those_that_run():
    """Truth: inspect and dataclasses on the imported code."""
    read = read_signatures()
    assert tuple(sorted(read)) == available()
    for name, planned in read.items():
        cls = method_class(name)
        truth: dict[str, Any]
        if cls is None:
            assert planned.order == "first"
            module = module_of(name)
            make = getattr(module, "optimizer", None) or module.optimizer_for
            truth = {
                parameter.name: REQUIRED if parameter.default is Parameter.empty else parameter.default
                for parameter in signature(make).parameters.values()
                if parameter.kind is Parameter.KEYWORD_ONLY
            }
        else:
            assert planned.order == "second"
            truth = {field.name: REQUIRED if field.default is MISSING else field.default for field in fields(cls)}
        assert list(planned.hyperparameters) == list(truth)
        for parameter, default in truth.items():
            found = planned.hyperparameters[parameter].default
            if isinstance(default, torch.dtype):
                default = str(default).removeprefix("torch.")
            assert found is COMPUTED or found == default, (name, parameter)


def test_every_number_has_a_range_that_the_plan_checks():
    """A bad value must be refused before anything runs."""
    for name, planned in read_signatures().items():
        for parameter, hyperparameter in planned.hyperparameters.items():
            if {float, int} & set(hyperparameter.domain.types):
                assert hyperparameter.domain.limit is not None, f"{name}: {parameter} is annotated with no range"


def test_a_second_order_optimizer_takes_its_bases_hyperparameters():
    read = read_signatures()
    assert "max_grad_norm" in accepted("mkor", "lamb", read)
    assert "max_grad_norm" not in accepted("mkor", "sgd", read)
    assert accepted("mkor", None, read).keys() == accepted("mkor", "sgd", read).keys()
    assert "base" not in accepted("sgd", None, read)


def test_runs_are_told_apart_by_their_id():
    spec = {"a": 1, "b": {"c": [1.0, None]}}
    same = {"b": {"c": [1.0, None]}, "a": 1}
    assert Run(spec) == Run(same)
    assert len({Run(spec), Run(same), Run({**spec, "a": 2})}) == 2


def test_the_command_prints_jobs_and_runs(folder: Path, capsys: pytest.CaptureFixture[str]):
    write(folder, "first", BLOCK)
    write(folder, "after", {**BLOCK, "start_from": {"experiment": "first", "optimizer": "sgd", "seed": 1}})
    options = ["--config-dir", str(folder), "--results", "r", "--hardware", "test"]
    assert main(options) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "tier embedded, 4 jobs, 12 runs, results in r/test/embedded"
    assert "after/sgd: 2 runs, after first/sgd" in out
    assert main(["first", *options]) == 0
    assert "autoencoder sgd lr=0.1 seed=1" in capsys.readouterr().out
    assert not Path("r").exists()


MOST_LABELS = 7


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan of two experiments: one with `MOST_LABELS` labels of two runs, and one with a single label."""
    folder = make_folder(tmp_path_factory.mktemp("grouped") / "config")
    write(folder, "many", block(*(optimizer("sgd", f"sgd_{index}") for index in range(MOST_LABELS)), seeds=[0, 1]))
    write(folder, "one", block(optimizer("sgd")))
    return load(folder)


@given(most=st.integers(1, 2 * MOST_LABELS + 1), without=st.sets(st.integers(0, MOST_LABELS)))
@settings(max_examples=50)
def test_groups_hold_every_job_once_and_are_as_equal_as_can_be(whole, most, without):
    """One Snakemake job trains a group. With labels left out, "many" has every number of labels up to all."""
    left_out = [job for index, job in enumerate(whole.jobs) if index in without]
    groups = replace(whole, tier=replace(whole.tier, runs_per_job=most)).grouped(left_out)
    assert [job for group in groups for job in group] == [job for job in whole.jobs if job not in left_out]
    assert all(len({job.experiment for job in group}) == 1 for group in groups)
    sizes = [len(group) for group in groups if group[0].experiment == "many"]
    assert len(sizes) == min(sum(sizes), math.ceil(2 * sum(sizes) / most))
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
