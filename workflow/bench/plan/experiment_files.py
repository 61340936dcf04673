"""Reading and checking of experiment files.

The checks follow the structure of a file: blocks of a tier, then a block's optimizers. They raise `ConfigError` with
the file, the key, the value and what it must be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from workflow.bench import workloads
from workflow.bench.plan.hyperparameters import (
    REQUIRED,
    TUNED,
    Hyperparameter,
    Key,
    Signature,
    accepted,
    check_space,
    check_value,
)
from workflow.bench.plan.rounds import seeds_of
from workflow.bench.plan.targets import Target
from workflow.bench.plan.tiers import Tier
from workflow.bench.plan.tuning import Ranking, Space
from workflow.bench.support.config import (
    ConfigError,
    check,
    did_you_mean,
    error,
    read_mapping,
    require_known,
    schema,
    schema_file,
    shown_path,
    with_defaults,
)

MAX_RUNS: Final = 10_000
"""The largest number of runs and trials of an experiment at a tier."""


def read_experiment(file: Path, tiers: Mapping[str, Tier], signatures: Mapping[str, Signature]) -> dict[str, Any]:
    """Return the content of an experiment file.

    Raises:
        ConfigError: the first mistake at any tier.
    """
    content = read_mapping(file)
    check(content, schema("experiment"), file)
    for tier, blocks in content["tiers"].items():
        if tier not in tiers:
            raise error(file, ("tiers", tier), blocks, f"unknown tier; {did_you_mean(tier, tiers)}")
        _check_number_of_runs(file, tier, blocks)
        for index, block in enumerate(blocks):
            _check_block(file, ("tiers", tier, index), block, signatures, takes_values="tuned_from" in content)
            _check_rounds(file, ("tiers", tier, index, "rounds"), block, tiers[tier])
    return content


def _check_number_of_runs(file: Path, tier: str, blocks: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ConfigError` if an experiment has too many runs and trials at a tier. Counting them expands nothing."""
    # Counted before anything is expanded: a sweep of millions would take minutes and all memory to be refused.
    number = 0
    for block in blocks:
        tuning = block.get("tuning", {})
        trials = tuning.get("trials", 0) * tuning.get("studies", 1)
        for entry in block["optimizers"]:
            sweep = entry.get("sweep", {})
            swept = len(sweep) if isinstance(sweep, list) else math.prod(map(len, sweep.values()))
            number += len(all_seeds(block)) * swept + trials
    if number > MAX_RUNS:
        shown = f"{number:,}" if number < 10**12 else "more than 10^12"
        must = f"makes {shown} runs and trials; an experiment may make at most {MAX_RUNS:,} at a tier"
        raise ConfigError(f"{shown_path(file)}: tiers.{tier}: {must}")


def _check_rounds(file: Path, key: Key, block: Mapping[str, Any], tier: Tier) -> None:
    """Raise `ConfigError` if a block may have more rounds of seeds than its tier has looks, or seeds out of range."""
    # The intervals of verdicts are widened for so many looks: more rounds than looks would break what they promise.
    most = block.get("rounds", {}).get("most", 1)
    if most > tier.looks:
        must = f"must be at most {tier.looks}, the 'looks' of tier '{tier.name}'"
        raise error(file, (*key, "most"), most, must)
    if (last := max(all_seeds(block))) > (largest := schema("experiment")["$defs"]["seed"]["maximum"]):
        raise error(file, key, block["rounds"], f"reaches the seed {last}; seeds must be at most {largest}")


def all_seeds(block: Mapping[str, Any]) -> list[int]:
    """Return the seeds of a block after its last round."""
    return seeds_of(block, block.get("rounds", {}).get("most", 1))


def label_of(entry: Mapping[str, Any]) -> str:
    """Return the label of an optimizer entry; by default its name."""
    return entry.get("label", entry["name"])


def combinations(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the swept values of each of an optimizer entry's runs: one mapping, an empty one without a sweep."""
    sweep = entry.get("sweep", {})
    if isinstance(sweep, list):
        return sweep
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def space_of(entry: Mapping[str, Any], tuning: Mapping[str, Any] | None) -> Space:
    """Return the tuning space of an optimizer entry: its block's, with names added or replaced by its own."""
    return {**(tuning or {}).get("space", {}), **entry.get("space", {})}


def study_seeds(tuning: Mapping[str, Any]) -> range:
    """Return the seed of each study of a tuning."""
    return range(tuning["seed"], tuning["seed"] + tuning.get("studies", 1))


def schedule_schema(schedule: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a learning-rate schedule with this name."""
    return schema("experiment")["$defs"]["schedules"][schedule["name"]]


def _check_block(
    file: Path, key: Key, block: Mapping[str, Any], signatures: Mapping[str, Signature], *, takes_values: bool
) -> None:
    """Raise `ConfigError` for the first mistake. takes_values: whether tuned values come from another experiment."""
    workload = dict(block["workload"])
    name = workload.pop("name")
    require_known(file, (*key, "workload", "name"), name, "unknown workload", workloads.NAMES)
    # The workload's own schema is a user's file too: it may be that of a workload just added.
    own = f"workloads/{name}"
    check(schema(own), schema("workload"), schema_file(own))
    check(workload, workloads.parameters(name), file, (*key, "workload"))
    batch = with_defaults(workload, workloads.parameters(name))["batch_size"]
    examples = workloads.known_train_examples(name, **workload)  # None if that would mean to read the data
    if examples is not None and batch > examples:
        must = f"must be at most the number of training examples, {examples}"
        raise error(file, (*key, "workload", "batch_size"), batch, must)
    if block["evaluate_every"] > block["steps"]:
        must = f"must be at most the number of steps, {block['steps']}"
        raise error(file, (*key, "evaluate_every"), block["evaluate_every"], must)
    if schedule := block.get("schedule"):
        check(schedule, schedule_schema(schedule), file, (*key, "schedule"))
        for index, milestone in enumerate(schedule.get("milestones", [])):
            if milestone >= block["steps"]:
                must = f"must be less than the number of steps, {block['steps']}"
                raise error(file, (*key, "schedule", "milestones", index), milestone, must)
    size = block.get("micro_batch_size")
    if size is not None and batch % size:
        must = f"must divide the workload's batch_size, {batch}"
        raise error(file, (*key, "micro_batch_size"), size, must)
    if block.get("target"):
        _check_metric(file, (*key, "target"), name, block["target"])
    tuning = block.get("tuning")
    if tuning:
        _check_tuning(file, (*key, "tuning"), block, tuning)
    # A label names a job, a file and a line of a figure.
    labels: list[str] = []
    for index, entry in enumerate(block["optimizers"]):
        where = (*key, "optimizers", index)
        if label_of(entry) in labels:
            raise error(file, (*where, "label"), label_of(entry), "is used twice in this block; give another")
        labels.append(label_of(entry))
        _check_optimizer(file, where, entry, tuning, signatures, takes_values=takes_values)


def _check_tuning(file: Path, key: Key, block: Mapping[str, Any], tuning: Mapping[str, Any]) -> None:
    metric, seeds = tuning["metric"], study_seeds(tuning)
    if isinstance(metric, str):
        try:
            Ranking.parse(metric, Target.parse(block["target"]) if block.get("target") else None)
        except ValueError as problem:
            raise error(file, (*key, "metric"), metric, str(problem)) from None
    else:
        _check_metric(file, (*key, "metric"), block["workload"]["name"], metric)
    steps, milestones = tuning.get("steps", block["steps"]), block.get("schedule", {}).get("milestones", [])
    # A shorter trial would have no evaluation to be ranked by, or a schedule other than that of the runs.
    least = max([block["evaluate_every"], *(milestone + 1 for milestone in milestones)])
    if steps < least:
        must = f"must be at least {least}, for 'evaluate_every' and the schedule's milestones"
        raise error(file, (*key, "steps"), steps, must)
    among = f"the studies' seeds, {seeds[0]} to {seeds[-1]}, " if len(seeds) > 1 else ""
    # A trial with a seed that counts would have seen the very run that it is chosen for.
    if set(seeds) & set(all_seeds(block)):
        raise error(file, (*key, "seed"), tuning["seed"], f"{among}must differ from all of 'seeds'")
    if seeds[-1] > (largest := schema("experiment")["$defs"]["seed"]["maximum"]):
        raise error(file, (*key, "seed"), tuning["seed"], f"{among}must be at most {largest}")


def _check_metric(file: Path, key: Key, workload: str, given: Mapping[str, Any]) -> None:
    measured = schema(f"workloads/{workload}")
    # During training the loss is at hand in any case; other metrics cost time, and a workload names those it has.
    known = ["loss", *measured.get("training_metrics", [])] if given["split"] == "train" else measured["metrics"]
    what = f"unknown metric of {workload} on {given['split']}"
    require_known(file, (*key, "metric"), given["metric"], what, known)


def _check_optimizer(
    file: Path,
    key: Key,
    entry: Mapping[str, Any],
    tuning: Mapping[str, Any] | None,
    signatures: Mapping[str, Signature],
    *,
    takes_values: bool,
) -> None:
    name, given = entry["name"], entry["hyperparameters"]
    require_known(file, (*key, "name"), name, "unknown optimizer", signatures)
    known = accepted(name, given.get("base"), signatures)
    space = space_of(entry, tuning)
    # An experiment that takes another one's values (``tuned_from``) needs no space of its own.
    tunable = known if takes_values and not tuning else space if tuning else {}
    for parameter, value in given.items():
        where = (*key, "hyperparameters", parameter)
        if value == TUNED and parameter in known and parameter not in tunable:
            raise error(file, where, value, "needs a 'tuning' in this block, with a 'space' that contains this name")
        if value != TUNED or parameter not in tunable:
            check_value(file, where, name, known, parameter, value)
    swept = _check_sweep(file, (*key, "sweep"), entry, known)
    _check_spaces(file, key, entry, tuning, known)
    for parameter, hyperparameter in known.items():
        if hyperparameter.default is REQUIRED and parameter not in {*given, *swept}:
            must = f"the hyperparameter '{parameter}' of {name} is missing"
            raise error(file, (*key, "hyperparameters"), given, must)
    for parameter in space if tuning else ():
        if parameter not in {*given, *swept}:
            must = f"'{parameter}' is in the tuning space: write '{parameter}: tuned', or a value"
            raise error(file, (*key, "hyperparameters"), given, must)


def _check_sweep(
    file: Path, key: Key, entry: Mapping[str, Any], known: Mapping[str, Hyperparameter]
) -> Collection[str]:
    """Return the names that an optimizer entry sweeps, or raise `ConfigError` for the first mistake."""
    given, sweep = entry["hyperparameters"], entry.get("sweep", {})
    if isinstance(sweep, list):
        names = sweep[0].keys()
        for index, values in enumerate(sweep):
            # A name that one combination lacks would silently have its default there.
            if values.keys() != names:
                raise error(file, (*key, index), values, f"must give {', '.join(names)}, as the first one does")
        places = [((*key, index, name), name, values[name]) for index, values in enumerate(sweep) for name in names]
    else:
        names = sweep.keys()
        places = [((*key, name, index), name, value) for name in names for index, value in enumerate(sweep[name])]
    for name in names:
        where, shown = ((*key, name), sweep[name]) if isinstance(sweep, dict) else (key, sweep)
        # Another base has other hyperparameters, which the same entry could not give.
        if name == "base":
            raise error(file, where, shown, "cannot be swept; give an entry for each base")
        if name in given:
            raise error(file, where, shown, "is also given under 'hyperparameters'")
    for place, name, value in places:
        check_value(file, place, entry["name"], known, name, value)
    return names


def _check_spaces(
    file: Path,
    key: Key,
    entry: Mapping[str, Any],
    tuning: Mapping[str, Any] | None,
    known: Mapping[str, Hyperparameter],
) -> None:
    """Raise `ConfigError` unless the optimizer takes all values of its own tuning space and of its block's."""
    own, space = entry.get("space", {}), space_of(entry, tuning)
    check_space(file, (*key, "space"), entry["name"], known, own)
    shared = {parameter: values for parameter, values in space.items() if parameter not in own}
    check_space(file, (*key[:-2], "tuning", "space"), entry["name"], known, shared)
    for parameter, values in space.items():
        grid, where = values.get("grid", ()), (*key, "space", parameter, "grid")
        # A grid is for runs that are too long to be tried often: its product with others would be tried even less.
        if grid and len(space) > 1:
            must = f"must be the only tuned hyperparameter of {label_of(entry)}, which has {', '.join(space)}"
            raise error(file, where, grid, must)
        if tuning and len(grid) > tuning["trials"]:
            raise error(file, where, grid, f"must have at most {tuning['trials']} values, the trials")
