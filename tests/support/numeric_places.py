"""Every place of the configuration where a number is due: the numbers in examples that have all keys of the schemas."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from workflow.bench import workloads
from workflow.bench.plan.hyperparameters import accepted, read_signatures
from workflow.bench.support.config import with_defaults

Keys = tuple[str | int, ...]

_MARK = "<number>"
_LOSS = {"split": "validation", "metric": "loss"}
BLOCK: dict[str, Any] = {
    "workload": {"name": "autoencoder", "batch_size": 128, "hidden": [8, 4]},
    "steps": 4,
    "evaluate_every": 2,
    "seeds": [0, 1],
    "schedule": {"name": "linear", "warmup": 0.25},
    "target": {**_LOSS, "below": 0.2, "trivial": 0.5},
    "optimizers": [
        {"name": "sgd", "hyperparameters": {"lr": "tuned", "momentum": 0.9}},
        {"name": "mkor", "hyperparameters": {"lr": 0.1}, "sweep": {"inverse_update_period": [1, 2]}},
    ],
    "tuning": {"trials": 3, "seed": 9, "metric": _LOSS, "space": {"lr": {"log": [0.1, 10]}}},
}
FURTHER: tuple[tuple[str, Any], ...] = (
    ("rounds", {"seeds": 1, "most": 1}),
    ("micro_batch_size", 64),
    ("target", {**_LOSS, "above": 0.2}),
    ("start_from", {"experiment": "first", "optimizer": "sgd", "seed": 0}),
    ("tuning", {**BLOCK["tuning"], "steps": 4, "studies": 1, "space": {"lr": {"linear": [0.1, 10]}}}),
    ("optimizers", [{"name": "sgd", "hyperparameters": {"lr": "tuned"}, "space": {"lr": {"log": [0.1, 10]}}}]),
    ("optimizers", [{"name": "sgd", "hyperparameters": {"lr": "tuned"}, "space": {"lr": {"linear": [0.1, 10]}}}]),
    ("schedule", {"name": "constant", "warmup": 0.25}),
    ("schedule", {"name": "polynomial", "warmup": 0.25, "power": 0.5}),
    ("schedule", {"name": "step", "warmup": 0.25, "milestones": [1], "factor": 0.5}),
)
"""What a block may have besides, or in place of, its other keys."""
TIER_CONTENT = {
    "title": "small",
    "device": "cpu",
    "threads": 1,
    "checkpoint_minutes": 1,
    "ranks": 1,
    "checkpoint_steps": 1,
    "runs_per_job": 1,
    "looks": 1,
}
TUNED = [
    {
        # All parameters: a record of another workload is not read.
        "workload": {**BLOCK["workload"], "dataset": "digits"},
        "label": "sgd",
        "studies": [
            {"hyperparameters": {"lr": 0.5}, "trials": ["0123456789abcdef"], "score": 0.1, "steps_to_target": 1.0}
        ],
    }
]
_NEED = {"nodes": 1, "minutes": 60, "queue": "short"}
CLUSTER = {
    "gpus_per_node": 4,
    "cores_per_node": 32,
    "margin_minutes": 5,
    "gpu_gigabytes": 40,
    "queues": {"short": [{"nodes": [1, 4], "minutes": 60}]},
    "training": {
        "default": {**_NEED, "ranks_per_node": 1, "step_seconds": 0.1, "gigabytes": 1, "row_megabytes": 1},
    },
    "probes": {"default": _NEED},
    "pilot": _NEED,
}
TRIAL, TIER, TUNED_FILE, CLUSTER_FILE = (
    "experiments/trial.yaml",
    "tiers/embedded.yaml",
    "tuned/embedded/trial.yaml",
    "cluster/cluster.yaml",
)


class Place(NamedTuple):
    """A place of a number in a file of the configuration."""

    file: str
    """The file, relative to the configuration folder."""
    path: Keys
    """The keys on the way to it."""
    text: str
    """The file's text, with a mark for the number."""
    trains: bool
    """Whether runs with any number that the plan accepts are small, if they have few steps."""

    def written(self, number: str) -> str:
        """Return the file's text with a number in place."""
        return self.text.replace(_MARK, number)


@cache
def places() -> tuple[Place, ...]:
    """Return all places."""
    files = ((TIER, TIER_CONTENT), (CLUSTER_FILE, CLUSTER), (TUNED_FILE, TUNED))
    # Not those of the record's workload, which only say whose values it has.
    found = [(file, path, content) for file, content in files for path in paths(content) if "workload" not in path]
    return (*_block_places(), *(_marked(*place, trains=place[0] == TIER) for place in found))


def paths(value: Any, *before: str | int) -> Iterator[Keys]:
    """Yield the keys on the way to every number in a value; of a list of numbers, to the first."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield before
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        if key == 0 or not (isinstance(value, list) and isinstance(inner, int | float)):
            yield from paths(inner, *before, key)


def _marked(file: str, path: Keys, content: Any, *, trains: bool = False) -> Place:
    marked = holder = copy.deepcopy(content)
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = _MARK
    return Place(file, path, yaml.safe_dump(marked, default_flow_style=False, sort_keys=False), trains)


def _block_places() -> Iterator[Place]:
    def places_in(block: dict[str, Any], *within: str | int) -> Iterator[Place]:
        """Yield the places below some keys of a block."""
        content, before = _experiment(block), ("tiers", "embedded", 0, *within)
        for path in paths(content):
            if path[: len(before)] == before:
                heavy = {"optimizers", "tuning", "workload"} & set(path)
                yield _marked(TRIAL, path, content, trains=not heavy)

    yield from places_in(BLOCK)
    for key, value in FURTHER:
        yield from places_in({**BLOCK, key: value}, key)
    for name in workloads.NAMES:
        workload = {"name": name, **with_defaults({}, workloads.parameters(name))}
        untuned = [{"name": "sgd", "hyperparameters": {"lr": 0.1}}]
        yield from places_in({**BLOCK, "workload": workload, "optimizers": untuned}, "workload")
    signatures = read_signatures()
    for name, signature in signatures.items():
        known = accepted(name, None, signatures)
        for key in signature.hyperparameters:
            if {int, float} & set(known[key].domain.types):
                rate = {} if key == "lr" else {"lr": 0.1}
                other = 0.25 if float in known[key].domain.types else 3
                for within, entry in (
                    (("hyperparameters", key), {"hyperparameters": {**rate, key: 0.1}}),
                    (("sweep",), {"hyperparameters": rate, "sweep": {key: [0]}}),
                    (
                        ("space",),
                        {"hyperparameters": {"lr": 0.1, key: other}, "space": {key: {"choices": [0, other]}}},
                    ),
                ):
                    block = {**BLOCK, "optimizers": [{"name": name, **entry}]}
                    yield from places_in(block, "optimizers", 0, *within)


def write_folder(folder: Path) -> None:
    """Write a configuration that has all the places, with valid numbers in them."""
    first = {**BLOCK, "optimizers": [{"name": name, "hyperparameters": {"lr": 0.1}} for name in ("sgd", "mkor")]}
    contents = {
        "config.yaml": {"tier": "embedded", "results": "results", "hardware": "test"},
        "experiments/first.yaml": _experiment({key: value for key, value in first.items() if key != "tuning"}),
        TRIAL: _experiment(BLOCK),
        TUNED_FILE: TUNED,
        CLUSTER_FILE: CLUSTER,
        TIER: TIER_CONTENT,
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(yaml.safe_dump(content))


def _experiment(block: dict[str, Any]) -> dict[str, Any]:
    return {"title": "A test", "paper": "none", "tiers": {"embedded": [block]}}


def numbers_of(shape: Mapping[str, Any], root: Mapping[str, Any], *before: str) -> Iterator[tuple[str, ...]]:
    """Yield the keys on the way to every number of a schema, without indices of lists and names that are free."""
    while "$ref" in shape:
        inner: Any = root
        for part in shape["$ref"].removeprefix("#/").split("/"):
            inner = inner[part]
        shape = inner
    if {"integer", "number"} & set([shape["type"]] if isinstance(shape.get("type"), str) else shape.get("type", [])):
        yield before
    for key, inner in shape.get("properties", {}).items():
        yield from numbers_of(inner, root, *before, key)
    for key in ("additionalProperties", "items"):
        if isinstance(shape.get(key), dict):
            yield from numbers_of(shape[key], root, *before)
