"""Expansion of experiment files to runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final, NamedTuple

from workflow.bench import workloads
from workflow.bench.plan.experiment_files import (
    combinations,
    label_of,
    read_experiment,
    schedule_schema,
    space_of,
    study_seeds,
)
from workflow.bench.plan.hyperparameters import TUNED, Key, Signature, read_signatures, resolved
from workflow.bench.plan.rounds import Rounds, most_rounds, seeds_of
from workflow.bench.plan.runs import PLAIN_PRECISION, Experiment, Job, PlannedRun, Run, Trial, TunedOptimizer
from workflow.bench.plan.targets import Target
from workflow.bench.plan.tiers import Tier
from workflow.bench.plan.tuned_values import TunedValues, UnfinishedError
from workflow.bench.plan.tuning import Ranking, trial_values
from workflow.bench.support.config import ConfigError, checked_stem, error, require_known, shown_path, with_defaults

MAX_CHAIN: Final = 100
"""The largest number of experiments that start from one another in a row."""


class Experiments:
    """The experiment files of a configuration folder, checked at all tiers and expanded for one.

    Args:
        folder: the configuration folder.
        tier: the tier to expand.
        tiers: all tiers by name.
        for_tuning: leave out entries whose tuned values are missing, and what starts from them, instead of their
            experiments.

    Raises:
        ConfigError: the first mistake in any file, at any tier, in one line.
    """

    def __init__(self, folder: Path, tier: Tier, tiers: Mapping[str, Tier], *, for_tuning: bool = False) -> None:
        self.noted: list[tuple[str, str]] = []
        """Notes, each after its experiment: that `expand` left it out, or that its tuned values may be outdated."""
        self.unfinished: dict[str, str] = {}
        """Experiments that `expand` left out because tuned values are missing, each with the message that says so."""
        self._folder = folder
        self._tier = tier
        self._for_tuning = for_tuning
        self._signatures = read_signatures()
        self._files = {
            checked_stem(file, "experiment"): file for file in sorted((folder / "experiments").glob("*.yaml"))
        }
        self._contents = {name: read_experiment(file, tiers, self._signatures) for name, file in self._files.items()}
        self._names = [name for name, content in self._contents.items() if tier.name in content["tiers"]]
        self._expanded: dict[str, Experiment] = {}
        self._waiting: dict[tuple[str, str], UnfinishedError] = {}
        """The errors of the labels (experiment, label) that are left out for tuning."""

    def expand(self, rounds: Rounds) -> dict[str, Experiment]:
        """Return the tier's experiments by name, in alphabetical order, with the seeds of their rounds."""
        # Said, so that nobody looks for an experiment that another tier has.
        for name in sorted(set(self._contents) - set(self._names)):
            self.noted.append((name, f"{name}: left out, it has no tier '{self._tier.name}'"))
        for name in self._order():
            try:
                self._expanded[name] = self._expand(name, rounds.of(name))
            except UnfinishedError as problem:
                self.unfinished[name] = str(problem)
        # What starts from an unfinished experiment has its problem, which is told once.
        first = {problem: name for name, problem in reversed(self.unfinished.items())}
        told = dict.fromkeys(self.unfinished.values())
        self.noted.extend((first[problem], f"left out, not tuned: {problem}") for problem in told)
        return {name: self._expanded[name] for name in self._names if name in self._expanded}

    def _order(self) -> list[str]:
        """Return the tier's experiments, each after those that its runs start from.

        Raises:
            ConfigError: an experiment starts from an unknown one or, directly or not, from itself, or a chain is too
                long.
        """
        sources = {name: self._sources(name) for name in self._names}
        try:
            order = list(TopologicalSorter(sources).static_order())
        except CycleError as problem:
            cycle = problem.args[1][::-1]  # each of its names starts from the next one
            where = shown_path(self._files[cycle[0]])
            raise ConfigError(f"{where}: start_from forms a cycle: {_shown_chain(cycle)}") from None
        # The lineage of a run is as long as its chain, and is hashed for every run at its end.
        longest: dict[str, list[str]] = {}
        for name in order:
            upstream = max((longest[source] for source in sources[name]), key=len, default=[])
            longest[name] = [name, *upstream]
            if len(longest[name]) > MAX_CHAIN:
                where = f"{shown_path(self._files[name])}: start_from: at most {MAX_CHAIN} experiments may form a chain"
                raise ConfigError(f"{where}: {_shown_chain(longest[name])}")
        return order

    def _sources(self, name: str) -> list[str]:
        """Return the experiments that the runs of an experiment start from."""
        sources: list[str] = []
        for index, block in enumerate(self._contents[name]["tiers"][self._tier.name]):
            source = (block.get("start_from") or {}).get("experiment")
            if source is not None:
                key = ("tiers", self._tier.name, index, "start_from", "experiment")
                # The weights of another tier's model would not fit.
                what = f"unknown experiment at tier '{self._tier.name}'"
                require_known(self._files[name], key, source, what, self._names)
                sources.append(source)
        return sources

    def _expand(self, name: str, rounds: int) -> Experiment:
        file, content = self._files[name], self._contents[name]
        tuned = self._tuned_values(name, content.get("tuned_from", name))
        tuned_optimizers: list[TunedOptimizer] = []
        # By label, since an optimizer may appear in several blocks. The inner keys of upstream are an ordered set of
        # jobs.
        planned: dict[str, list[PlannedRun]] = {}
        upstream: dict[str, dict[tuple[str, str], None]] = {}
        for index, first_round in enumerate(content["tiers"][self._tier.name]):
            key = ("tiers", self._tier.name, index)
            given = {**first_round, "seeds": seeds_of(first_round, rounds)}
            find_source = partial(self._source, file, (*key, "start_from"), given.get("start_from"))
            block = _Block(self._tier, given, find_source, self._signatures)
            for position, entry in enumerate(given["optimizers"]):
                label = label_of(entry)
                tuned_optimizer = block.tuned_optimizer(entry)
                if tuned_optimizer:
                    tuned_optimizers.append(tuned_optimizer)
                values = tuned.values(entry, block.workload, tuned_optimizer)
                # The trials themselves need no tuned values; the runs that wait for them do.
                if values is None:
                    missing = tuned.missing(file, (*key, "optimizers", position, "hyperparameters"), entry)
                    if self._for_tuning:
                        self._waiting[name, label] = missing
                        continue
                    raise missing
                planned.setdefault(label, []).extend(block.planned_runs(entry, values))
                sources = (find_source(label, seed) for seed in given["seeds"])
                upstream.setdefault(label, {}).update({source.job: None for source in sources if source})
        self.noted.extend((name, note) for note in tuned.notes)
        jobs = {label: Job(name, label, tuple(runs), tuple(upstream[label])) for label, runs in planned.items()}
        for job in jobs.values():
            # Its seed would count twice in every mean.
            if len(set(job.run_ids)) < len(job.run_ids):
                raise ConfigError(f"{shown_path(file)}: label '{job.label}': two of its blocks contain the same run")
        most = most_rounds(content["tiers"][self._tier.name])
        return Experiment(name, content["title"], content["paper"], jobs, tuple(tuned_optimizers), most)

    def _tuned_values(self, name: str, like: str) -> TunedValues:
        """Return an experiment's tuned values. like: the experiment whose values are taken, at this tier or another."""
        require_known(self._files[name], ("tuned_from",), like, "unknown experiment", self._contents)
        tuned = self._folder / "tuned"
        of_another = tuned / self._tier.tuned_like / f"{like}.yaml" if self._tier.tuned_like else None
        own, of_this = (tuned / self._tier.name / f"{one}.yaml" for one in (name, like))
        return TunedValues(own, self._signatures, beside=of_this if like != name else None, like=of_another)

    def _source(
        self, file: Path, key: Key, start_from: Mapping[str, Any] | None, label: str, seed: int
    ) -> _Source | None:
        """Return the run that the run with this label and seed starts from; None if the block has no ``start_from``.

        If ``start_from`` gives no optimizer or no seed, the run with the same label or seed is meant: fine-tuning of
        (mkor, seed 1) starts from the pre-training of (mkor, seed 1).
        """
        if start_from is None:
            return None
        name, label, seed = start_from["experiment"], start_from.get("optimizer", label), start_from.get("seed", seed)
        # What starts from an experiment that waits for tuned values waits with it.
        if name in self.unfinished:
            raise UnfinishedError(self.unfinished[name])
        if (name, label) in self._waiting:
            raise self._waiting[name, label]
        jobs = self._expanded[name].jobs
        require_known(file, (*key, "optimizer"), label, f"unknown label of experiment '{name}'", jobs)
        planned = [one for one in jobs[label].planned if one.run.seed == seed]
        # A sweep has several runs of a seed: which one is meant, the file must say by another label.
        if len(planned) != 1:
            must = f"must select one run; experiment '{name}' has {len(planned)} of '{label}' with this seed"
            raise error(file, (*key, "seed"), seed, must)
        return _Source((name, label), planned[0].run, planned[0].study)


class _Source(NamedTuple):
    """A run whose final weights another run starts from, and its job (experiment, label)."""

    job: tuple[str, str]
    run: Run
    study: int | None
    """Its `PlannedRun.study`."""


class _Block:
    """One block of an experiment file: a workload and the settings that its optimizers share.

    Args:
        tier: the tier of the runs.
        given: the checked block, with the seeds of all its rounds.
        find_source: returns the run that the run with a label and seed starts from.
        signatures: the hyperparameters of all optimizers.
    """

    def __init__(
        self,
        tier: Tier,
        given: Mapping[str, Any],
        find_source: Callable[[str, int], _Source | None],
        signatures: Mapping[str, Signature],
    ) -> None:
        self._given, self._find_source, self._signatures = given, find_source, signatures
        self._target = Target.parse(given["target"]) if given.get("target") else None
        parameters = dict(given["workload"])
        name = parameters.pop("name")
        parameters = with_defaults(parameters, workloads.parameters(name))
        self.workload = {"name": name, **parameters}
        schedule = given.get("schedule", {"name": "constant"})
        # The part of the specs that all runs of the block have in common.
        self._shared = {
            "tier": tier.name,
            "workload": self.workload,
            "data_version": workloads.data_version(name, **parameters),
            "steps": given["steps"],
            "evaluate_every": given["evaluate_every"],
            "schedule": with_defaults(schedule, schedule_schema(schedule)),
        }
        # Plain values are left out: runs that were made before these keys existed keep their ids.
        size, precision = given.get("micro_batch_size"), given.get("precision", tier.precision)
        if precision != PLAIN_PRECISION:
            self._shared["precision"] = precision
        if tier.deterministic:
            self._shared["deterministic"] = True
        if size and size != parameters["batch_size"]:
            self._shared["micro_batch_size"] = size

    def planned_runs(self, entry: Mapping[str, Any], studies: Sequence[Mapping[str, Any]]) -> list[PlannedRun]:
        """Return an entry's runs: each combination of its sweep with each seed.

        studies: the tuned values that each study chose. The i-th seed takes those of study ``i % len(studies)``.
            Without any, a run is of the study of the run that it starts from.
        """
        planned = []
        for swept in combinations(entry):
            for index, seed in enumerate(self._given["seeds"]):
                source = self._find_source(label_of(entry), seed)
                if studies:
                    study: int | None = index % len(studies)
                    tuned = studies[index % len(studies)]
                else:
                    study, tuned = source.study if source else None, {}
                run = self._run(entry, {**tuned, **swept}, seed, source)
                planned.append(PlannedRun(run, self._target, study))
        return planned

    def tuned_optimizer(self, entry: Mapping[str, Any]) -> TunedOptimizer | None:
        """Return an entry's trials; None if no hyperparameter of it is tuned.

        Trials take the first combination of swept hyperparameters.
        """
        tuning = self._given.get("tuning")
        space = space_of(entry, tuning)
        if tuning is None or not space:
            return None
        first = combinations(entry)[0]
        studies = []
        for seed in study_seeds(tuning):
            tried, source = trial_values(space, tuning["trials"], seed), self._find_source(label_of(entry), seed)
            runs = [self._run(entry, {**first, **values}, seed, source, tuning) for values in tried]
            studies.append(tuple(map(Trial, runs, tried)))
        given = tuple(name for name in space if entry["hyperparameters"].get(name, TUNED) != TUNED)
        ranking = Ranking.parse(tuning["metric"], self._target)
        return TunedOptimizer(label_of(entry), self.workload, space, ranking, tuple(studies), given)

    def _run(
        self,
        entry: Mapping[str, Any],
        values: Mapping[str, Any],
        seed: int,
        source: _Source | None,
        tuning: Mapping[str, Any] | None = None,
    ) -> Run:
        """Return an entry's run with these hyperparameters, seed and source; a trial of ``tuning``, if it is given."""
        hyperparameters = resolved({**entry["hyperparameters"], **values}, entry["name"], self._signatures)
        spec = {
            **self._shared,
            "start_from": source.run.id if source else None,
            "seed": seed,
            "optimizer": {"name": entry["name"], "hyperparameters": hyperparameters},
        }
        if tuning is not None:
            # Trials are validated on a part of the training data, so that no tuned value has seen the validation data.
            spec["workload"] = {**self.workload, "for_tuning": True}
            spec["steps"] = tuning.get("steps", spec["steps"])
        return Run(spec, source.run if source else None)


def _shown_chain(names: Sequence[str]) -> str:
    shown = names if len(names) <= 6 else [*names[:3], "...", *names[-3:]]
    return " -> ".join(shown)
