"""Experiment files: checked, and expanded to runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from workflow.bench import workloads
from workflow.bench.plan.hyperparameters import TUNED, accepted, check_space, check_value, resolved
from workflow.bench.plan.optimizer_signatures import REQUIRED, Signature, read_signatures
from workflow.bench.plan.runs import PLAIN_PRECISION, Contender, Experiment, Job, Planned, Run, Trial
from workflow.bench.plan.targets import Target
from workflow.bench.plan.tuning_space import Space, trial_values
from workflow.bench.support.config import (
    ConfigError,
    check,
    did_you_mean,
    error,
    read_mapping,
    read_yaml,
    schema,
    shown_path,
    with_defaults,
)

Key = tuple[str | int, ...]


class Experiments:
    """All experiment files of a configuration folder, checked; expanded for one tier.

    precision: what the tier computes in where a block says nothing.
    for_tuning: leave out what waits for tuned values that are not there yet, instead of refusing it.

    Raises `ConfigError`, in one line, on the first mistake, whatever the tier that it stands under.
    """

    def __init__(
        self, folder: Path, tier: str, tiers: Sequence[str], *, precision: str, for_tuning: bool = False
    ) -> None:
        self.notes: list[str] = []
        self._folder = folder
        self._tier = tier
        self._precision = precision
        self._for_tuning = for_tuning
        self._signatures = read_signatures()
        self._files = {file.stem: file for file in sorted((folder / "experiments").glob("*.yaml"))}
        self._contents = {name: _read(file, tiers, self._signatures) for name, file in self._files.items()}
        self._expanded: dict[str, Experiment] = {}
        self._expanding: list[str] = []

    def expand(self) -> dict[str, Experiment]:
        """Return the tier's experiments by name, in alphabetical order."""
        for name in sorted(set(self._contents) - set(self._here())):
            self.notes.append(f"{name}: left out, it has no tier '{self._tier}'")
        return {name: self._experiment(name) for name in self._here()}

    def _here(self) -> list[str]:
        return [name for name, content in self._contents.items() if self._tier in content["tiers"]]

    def _experiment(self, name: str) -> Experiment:
        if name in self._expanded:
            return self._expanded[name]
        if name in self._expanding:
            circle = [*self._expanding[self._expanding.index(name) :], name]
            where = shown_path(self._files[name])
            raise ConfigError(f"{where}: start_from goes in a circle: {' -> '.join(circle)}")
        self._expanding.append(name)
        content, file = self._contents[name], self._files[name]
        tuned = _Tuned(self._folder / "tuned" / self._tier / f"{name}.yaml", self._signatures)
        planned: dict[str, list[Planned]] = {}
        upstream: dict[str, dict[tuple[str, str], None]] = {}
        contenders: list[Contender] = []
        for index, given in enumerate(content["tiers"][self._tier]):
            key = ("tiers", self._tier, index)
            start = partial(self._start, file, (*key, "start_from"), given.get("start_from"))
            block = _Block.make(self._tier, self._precision, given, start, self._signatures)
            for position, entry in enumerate(given["optimizers"]):
                label = label_of(entry)
                contender = block.contender(entry)
                if contender:
                    contenders.append(contender)
                chosen = tuned.values(entry, block.workload, contender)
                if chosen is None and not self._for_tuning:
                    raise tuned.missing(file, (*key, "optimizers", position, "hyperparameters"), entry)
                if chosen is None:
                    continue
                planned.setdefault(label, []).extend(block.planned(entry, chosen))
                sources = (start(label, seed) for seed in block.seeds)
                upstream.setdefault(label, {}).update({source.job: None for source in sources if source})
        self.notes.extend(tuned.notes)
        jobs = {label: Job(name, label, tuple(found), tuple(upstream[label])) for label, found in planned.items()}
        for job in jobs.values():
            if len(set(job.run_ids)) < len(job.run_ids):
                raise ConfigError(f"{shown_path(file)}: label '{job.label}': a run stands twice in its blocks")
        self._expanding.pop()
        self._expanded[name] = Experiment(name, content["title"], content["paper"], jobs, tuple(contenders))
        return self._expanded[name]

    def _start(self, file: Path, key: Key, given: Mapping[str, Any] | None, label: str, seed: int) -> _Source | None:
        """Return what ``start_from`` means for a run of ``label`` and ``seed``; None where it says nothing."""
        if given is None:
            return None
        name, label, seed = given["experiment"], given.get("optimizer", label), given.get("seed", seed)
        if name not in self._here():
            must = f"unknown experiment at tier '{self._tier}'; {did_you_mean(name, self._here())}"
            raise error(file, (*key, "experiment"), name, must)
        jobs = self._experiment(name).jobs
        if label not in jobs:
            must = f"unknown label of experiment '{name}'; {did_you_mean(label, jobs)}"
            raise error(file, (*key, "optimizer"), label, must)
        runs = [run for run in jobs[label].runs if run.seed == seed]
        if len(runs) != 1:
            must = f"must mean one run; experiment '{name}' has {len(runs)} of '{label}' with this seed"
            raise error(file, (*key, "seed"), seed, must)
        return _Source((name, label), runs[0])


@dataclass(frozen=True)
class _Source:
    """A run whose final weights another one starts from, and its job (experiment, label)."""

    job: tuple[str, str]
    run: Run


def label_of(entry: Mapping[str, Any]) -> str:
    """Return the label of an optimizer entry: given, or its name."""
    return entry.get("label", entry["name"])


@dataclass(frozen=True)
class _Block:
    """One workload of an experiment with what its optimizers share: checked, its defaults filled in."""

    shared: Mapping[str, Any]
    """The part of the specs that all its runs have in common."""
    start: Callable[[str, int], _Source | None]
    """What a run starts from, by its label and seed."""
    seeds: Sequence[int]
    target: Target | None
    tuning: Mapping[str, Any] | None
    signatures: Mapping[str, Signature]

    @classmethod
    def make(
        cls,
        tier: str,
        precision: str,
        given: Mapping[str, Any],
        start: Callable[[str, int], _Source | None],
        signatures: Mapping[str, Signature],
    ) -> _Block:
        workload = dict(given["workload"])
        name = workload.pop("name")
        workload = with_defaults(workload, workloads.parameters(name))
        schedule = given.get("schedule", _CONSTANT)
        shared = {
            "tier": tier,
            "workload": {"name": name, **workload},
            "data_version": workloads.data_version(name, **workload),
            "steps": given["steps"],
            "evaluate_every": given["evaluate_every"],
            "schedule": with_defaults(schedule, _schedule_schema(schedule)),
            **_numerics(given, precision, workload),
        }
        target = Target.parse(given["target"]) if given.get("target") else None
        return cls(shared, start, given["seeds"], target, given.get("tuning"), signatures)

    @property
    def workload(self) -> Mapping[str, Any]:
        return self.shared["workload"]

    def planned(self, entry: Mapping[str, Any], tuned: Mapping[str, Any]) -> list[Planned]:
        """Return an entry's runs, every combination of its sweep with every seed, at its tuned values."""
        sweep = entry.get("sweep", {})
        return [
            Planned(
                self._run(entry, {**tuned, **dict(zip(sweep, combination, strict=True))}, seed),
                self.target,
                bool(tuned),
            )
            for combination in itertools.product(*sweep.values())
            for seed in self.seeds
        ]

    def contender(self, entry: Mapping[str, Any]) -> Contender | None:
        """Return an entry with its trials, None where nothing of it is tuned.

        A swept hyperparameter is tuned at its first value.
        """
        space = _space(entry, self.tuning)
        if self.tuning is None or not space:
            return None
        first = {name: values[0] for name, values in entry.get("sweep", {}).items()}
        trials = tuple(
            Trial(self._run(entry, {**first, **values}, self.tuning["seed"]), values)
            for values in trial_values(space, self.tuning["trials"])
        )
        metric = {"best": "lowest", **self.tuning["metric"]}
        given = tuple(name for name in space if entry["hyperparameters"].get(name, TUNED) != TUNED)
        return Contender(label_of(entry), self.workload, metric, trials, given)

    def _run(self, entry: Mapping[str, Any], values: Mapping[str, Any], seed: int) -> Run:
        given = {**entry["hyperparameters"], **values}
        hyperparameters = resolved(given, entry["name"], self.signatures)
        optimizer = {"name": entry["name"], "hyperparameters": hyperparameters}
        source = self.start(label_of(entry), seed)
        upstream = source.run if source else None
        start_from = upstream.id if upstream else None
        return Run({**self.shared, "start_from": start_from, "seed": seed, "optimizer": optimizer}, upstream)


class _Tuned:
    """The tuned values of one experiment, in the file config/tuned/<tier>/<experiment>.yaml that tune writes."""

    def __init__(self, file: Path, signatures: Mapping[str, Signature]) -> None:
        self.notes: list[str] = []
        self._file = file
        self._signatures = signatures
        self._entries: list[dict[str, Any]] = []
        if file.is_file():
            self._entries = read_yaml(file)
            check(self._entries, schema("tuned"), file)

    def values(
        self, entry: Mapping[str, Any], workload: Mapping[str, Any], contender: Contender | None
    ) -> dict[str, Any] | None:
        """Return the values for the hyperparameters of an entry that say ``tuned``, None where one is missing."""
        wanted = [name for name, value in entry["hyperparameters"].items() if value == TUNED]
        if not wanted:
            return {}
        for index, found in enumerate(self._entries):
            same = all(workload.get(name) == value for name, value in found["workload"].items())
            if not same or found["label"] != label_of(entry):
                continue
            values = found["hyperparameters"]
            if not values.keys() >= set(wanted):
                return None
            known = accepted(entry["name"], entry["hyperparameters"].get("base"), self._signatures)
            for name in wanted:
                where = (index, "hyperparameters", name)
                check_value(self._file, where, entry["name"], known, name, values[name])
            if contender and [trial.run.id for trial in contender.trials] != found["trials"]:
                who = f"{workload['name']}, {label_of(entry)}"
                self.notes.append(f"{shown_path(self._file)}: {who}: tuned on an older form of its block")
            return {name: values[name] for name in wanted}
        return None

    def missing(self, file: Path, key: Key, entry: Mapping[str, Any]) -> ConfigError:
        """Return the error of an entry without its tuned values."""
        must = (
            f"{shown_path(self._file)} holds no value for this workload and label: "
            f"run python -m workflow.bench.tune {self._file.stem}, or give a number"
        )
        name = next(name for name, value in entry["hyperparameters"].items() if value == TUNED)
        return error(file, (*key, name), TUNED, must)


_CONSTANT = {"name": "constant"}


def _numerics(given: Mapping[str, Any], precision: str, workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a spec that says how a step is computed; only what is not plain, so that old ids stay."""
    size, chosen = given.get("micro_batch_size"), given.get("precision", precision)
    return {
        **({"precision": chosen} if chosen != PLAIN_PRECISION else {}),
        **({"micro_batch_size": size} if size and size != workload["batch_size"] else {}),
    }


def _schedule_schema(schedule: Mapping[str, Any]) -> Mapping[str, Any]:
    return schema("experiment")["$defs"]["schedules"][schedule["name"]]


def _space(entry: Mapping[str, Any], tuning: Mapping[str, Any] | None) -> Space | None:
    return entry.get("space", (tuning or {}).get("space"))


def _read(file: Path, tiers: Sequence[str], signatures: Mapping[str, Signature]) -> dict[str, Any]:
    """Return a file's content.  Raises `ConfigError`."""
    content = read_mapping(file)
    check(content, schema("experiment"), file)
    for tier, blocks in content["tiers"].items():
        if tier not in tiers:
            raise error(file, ("tiers", tier), blocks, f"unknown tier; {did_you_mean(tier, tiers)}")
        for index, block in enumerate(blocks):
            _check_block(file, ("tiers", tier, index), block, signatures)
    return content


def _check_block(file: Path, key: Key, block: Mapping[str, Any], signatures: Mapping[str, Signature]) -> None:
    workload = dict(block["workload"])
    name = workload.pop("name")
    if name not in workloads.NAMES:
        must = f"unknown workload; {did_you_mean(name, workloads.NAMES)}"
        raise error(file, (*key, "workload", "name"), name, must)
    check(workload, workloads.parameters(name), file, (*key, "workload"))
    if "schedule" in block:
        check(block["schedule"], _schedule_schema(block["schedule"]), file, (*key, "schedule"))
        for index, milestone in enumerate(block["schedule"].get("milestones", [])):
            if milestone >= block["steps"]:
                where = (*key, "schedule", "milestones", index)
                raise error(file, where, milestone, f"must be less than the number of steps, {block['steps']}")
    _check_micro_batches(file, key, block, workload)
    if block.get("target"):
        _check_metric(file, (*key, "target"), name, block["target"])
    tuning = block.get("tuning")
    if tuning:
        _check_metric(file, (*key, "tuning", "metric"), name, tuning["metric"])
    if tuning and tuning["seed"] in block["seeds"]:
        must = "must be a seed of its own, none of 'seeds'"
        raise error(file, (*key, "tuning", "seed"), tuning["seed"], must)
    labels: list[str] = []
    for index, entry in enumerate(block["optimizers"]):
        where = (*key, "optimizers", index)
        if label_of(entry) in labels:
            raise error(file, (*where, "label"), label_of(entry), "stands twice in this block; give another")
        labels.append(label_of(entry))
        _check_optimizer(file, where, entry, tuning, signatures)


def _check_micro_batches(file: Path, key: Key, block: Mapping[str, Any], workload: Mapping[str, Any]) -> None:
    size = block.get("micro_batch_size")
    if size is None:
        return
    batch = with_defaults(workload, workloads.parameters(block["workload"]["name"]))["batch_size"]
    if batch % size:
        raise error(file, (*key, "micro_batch_size"), size, f"must divide the workload's batch_size, {batch}")


def _check_metric(file: Path, key: Key, workload: str, given: Mapping[str, Any]) -> None:
    measured = schema(f"workloads/{workload}")
    known = ["loss", *measured.get("training_metrics", [])] if given["split"] == "train" else measured["metrics"]
    if given["metric"] not in known:
        must = f"unknown metric of {workload} on {given['split']}; {did_you_mean(given['metric'], known)}"
        raise error(file, (*key, "metric"), given["metric"], must)


def _check_optimizer(
    file: Path,
    key: Key,
    entry: Mapping[str, Any],
    tuning: Mapping[str, Any] | None,
    signatures: Mapping[str, Signature],
) -> None:
    name, given, sweep = entry["name"], entry["hyperparameters"], entry.get("sweep", {})
    if name not in signatures:
        raise error(file, (*key, "name"), name, f"unknown optimizer; {did_you_mean(name, signatures)}")
    known = accepted(name, given.get("base"), signatures)
    where = (*key, "hyperparameters")
    space = _space(entry, tuning)
    for parameter, value in given.items():
        if value == TUNED and tuning and parameter in (space or {}):
            continue
        if value == TUNED and parameter in known:
            must = "needs a 'tuning' in this block, with a 'space' that holds this name"
            raise error(file, (*where, parameter), value, must)
        check_value(file, (*where, parameter), name, known, parameter, value)
    for parameter, values in sweep.items():
        if parameter == "base":
            raise error(file, (*key, "sweep", parameter), values, "cannot be swept; give an entry for each base")
        if parameter in given:
            raise error(file, (*key, "sweep", parameter), values, "stands under 'hyperparameters' too")
        for index, value in enumerate(values):
            check_value(file, (*key, "sweep", parameter, index), name, known, parameter, value)
    if space:
        at = (*key, "space") if "space" in entry else (*key[:-2], "tuning", "space")
        check_space(file, at, name, known, space)
    for parameter, hyperparameter in known.items():
        if hyperparameter.default is REQUIRED and parameter not in {**given, **sweep}:
            raise error(file, where, given, f"the hyperparameter '{parameter}' of {name} is missing")
