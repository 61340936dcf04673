"""Every place of the configuration where a number is due, found from the schemas and the optimizers' annotations."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from workflow.bench import workloads
from workflow.bench.plan.hyperparameters import accepted
from workflow.bench.plan.optimizer_signatures import read_signatures
from workflow.bench.support.config import schema, with_defaults

Schema = Mapping[str, Any]
Path_ = tuple[str | int, ...]

_MARK = "<number>"
_NAMES = {"tiers": "embedded", "queues": "short", "training": "default", "probes": "default", "space": "lr"}
"""Keys of mappings whose keys are free, by the mapping's own key."""
_TEXTS = {"experiment": "first", "optimizer": "sgd", "split": "validation", "metric": "loss", "queue": "short"}
"""Values of required text, by key."""

BLOCK: dict[str, Any] = {
    "workload": {"name": "autoencoder", "batch_size": 128, "hidden": [8, 4]},
    "steps": 4,
    "evaluate_every": 2,
    "seeds": [0, 1],
    "schedule": {"name": "linear", "warmup": 0.25},
    "target": {"split": "validation", "metric": "loss", "below": 0.2},
    "optimizers": [
        {"name": "sgd", "hyperparameters": {"lr": "tuned", "momentum": 0.9}},
        {"name": "mkor", "hyperparameters": {"lr": 0.1}, "sweep": {"inverse_update_period": [1, 2]}},
    ],
    "tuning": {
        "trials": 3,
        "seed": 9,
        "metric": {"split": "validation", "metric": "loss"},
        "space": {"lr": {"log": [0.1, 10]}},
    },
}
TUNED = [
    {
        "workload": {"name": "autoencoder"},
        "label": "sgd",
        "studies": [{"hyperparameters": {"lr": 0.5}, "trials": ["0123456789abcdef"], "score": 0.1}],
    }
]
CLUSTER = {
    "gpus_per_node": 4,
    "cores_per_node": 32,
    "margin_minutes": 5,
    "queues": {"short": [{"nodes": [1, 4], "minutes": 60}]},
    "training": {"default": {"nodes": 1, "ranks_per_node": 1, "minutes": 60, "queue": "short", "step_seconds": 0.1}},
    "probes": {"default": {"nodes": 1, "minutes": 30, "queue": "short"}},
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
    path: Path_
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
    found = [
        *_experiment_places(),
        *(_place(TIER, schema("tier"), path, _tier(), trains=True) for path in _numbers(schema("tier"))),
        *(_place(CLUSTER_FILE, schema("cluster"), path, CLUSTER) for path in _numbers(schema("cluster"))),
        *(_place(TUNED_FILE, schema("tuned"), path, TUNED) for path in _numbers(schema("tuned"))),
        _place(TUNED_FILE, {}, (0, "studies", 0, "hyperparameters", "lr"), TUNED),
    ]
    return tuple(found)


def write_folder(folder: Path) -> None:
    """Write a configuration that has all the places, with valid numbers in them."""
    first = {**BLOCK, "optimizers": [{"name": name, "hyperparameters": {"lr": 0.1}} for name in ("sgd", "mkor")]}
    contents = {
        "config.yaml": {"tier": "embedded", "results": "results", "hardware": "test"},
        "experiments/first.yaml": _experiment({key: value for key, value in first.items() if key != "tuning"}),
        TRIAL: _experiment(BLOCK),
        TUNED_FILE: TUNED,
        CLUSTER_FILE: CLUSTER,
        TIER: _tier(),
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(yaml.safe_dump(content))


def _experiment(block: dict[str, Any]) -> dict[str, Any]:
    return {"title": "A test", "paper": "none", "tiers": {"embedded": [block]}}


def _tier() -> dict[str, Any]:
    return {"title": "small", "device": "cpu", "threads": 1, "checkpoint_minutes": 1}


def _experiment_places() -> Iterator[Place]:
    whole, block = schema("experiment"), ("tiers", "embedded", 0)
    for path in _numbers(whole):
        heavy = "optimizers" in path or "tuning" in path
        yield _place(TRIAL, whole, path, _experiment(BLOCK), trains=not heavy)
    for name, shape in whole["$defs"]["schedules"].items():
        base = _experiment({**BLOCK, "schedule": {**_example(shape, whole, ""), "name": name}})
        for path in _numbers(shape):
            yield _place(TRIAL, {}, (*block, "schedule", *path), base, trains=True)
    for name in workloads.NAMES:
        parameters = workloads.parameters(name)
        untuned = [{"name": "sgd", "hyperparameters": {"lr": 0.1}}]
        workload = {"name": name, **with_defaults({}, parameters)}
        base = _experiment({**BLOCK, "workload": workload, "optimizers": untuned})
        for path in _numbers(parameters):
            yield _place(TRIAL, {}, (*block, "workload", *path), base)
    signatures = read_signatures()
    for name, signature in signatures.items():
        known = accepted(name, None, signatures)
        for key in signature.hyperparameters:
            if not {int, float} & set(known[key].domain.types):
                continue
            given = {"hyperparameters": {} if key == "lr" else {"lr": 0.1}}
            other = 0.25 if float in known[key].domain.types else 3
            for keys, added in (
                (("hyperparameters", key), {"hyperparameters": {"lr": 0.1, key: 0.1}}),
                (("sweep", key, 0), {**given, "sweep": {key: [0]}}),
                (
                    ("space", key, "choices", 0),
                    {"hyperparameters": {"lr": 0.1, key: other}, "space": {key: {"choices": [0, other]}}},
                ),
            ):
                base = _experiment({**BLOCK, "optimizers": [{"name": name, **added}]})
                yield _place(TRIAL, {}, (*block, "optimizers", 0, *keys), base)


def _numbers(shape: Schema, root: Schema | None = None, own_key: str = "") -> Iterator[Path_]:
    """Yield the paths of all numbers in values of a schema."""
    root = root or shape
    shape = _resolved(shape, root)
    if {"integer", "number"} & set(_types(shape)):
        yield ()
    for key, inner in shape.get("properties", {}).items():
        for path in _numbers(inner, root, key):
            yield (key, *path)
    free = shape.get("additionalProperties")
    if isinstance(free, dict):
        key = _NAMES.get(own_key, "lr")
        if key not in shape.get("properties", {}):
            for path in _numbers(free, root, key):
                yield (key, *path)
    if "items" in shape:
        for path in _numbers(shape["items"], root, own_key):
            yield (0, *path)


def _types(shape: Schema) -> list[str]:
    types = shape.get("type", [])
    return [types] if isinstance(types, str) else types


def _resolved(shape: Schema, root: Schema) -> Schema:
    while "$ref" in shape:
        inner: Any = root
        for part in shape["$ref"].removeprefix("#/").split("/"):
            inner = inner[part]
        shape = inner
    return shape


def _example(shape: Schema, root: Schema, key: str) -> Any:
    """Return a small value of a schema."""
    shape = _resolved(shape, root)
    if "default" in shape:
        return shape["default"]
    if "enum" in shape:
        return shape["enum"][0]
    match _types(shape)[0]:
        case "object":
            inner = shape.get("properties", {})
            return {name: _example(inner.get(name, {}), root, name) for name in shape.get("required", [])}
        case "array":
            return [_example(shape.get("items", {}), root, key) for _ in range(shape.get("minItems", 1))]
        case "string":
            return _TEXTS.get(key, "text")
        case _:
            return max(shape.get("minimum", 0), 0) or (0.5 if "number" in _types(shape) else 1)


def _place(file: str, shape: Schema, path: Path_, base: Any, *, trains: bool = False) -> Place:
    content = copy.deepcopy(base)
    _plant(content, path, shape, shape)
    return Place(file, path, yaml.safe_dump(content, default_flow_style=False, sort_keys=False), trains)


def _plant(holder: Any, path: Path_, shape: Schema, root: Schema) -> None:
    """Put the mark at a path, making the containers on the way that the value lacks."""
    key, rest = path[0], path[1:]
    shape = _resolved(shape, root)
    if isinstance(holder, dict):
        excluded = _excluded(shape, key)
        for name in [name for name in holder if name in excluded]:
            del holder[name]
    inner = shape.get("properties", {}).get(key) or shape.get("additionalProperties") or shape.get("items") or {}
    inner = inner if isinstance(inner, dict) else {}
    if isinstance(holder, list) and not holder:
        holder.append(None)
    if not rest:
        holder[key] = _MARK
        return
    if isinstance(holder, list) or holder.get(key) is None:
        present = holder[key] if isinstance(holder, list) else None
        holder[key] = present or (_example(inner, root, str(key)) if inner else ([] if rest[0] == 0 else {}))
    _plant(holder[key], rest, inner, root)


def _excluded(shape: Schema, key: str | int) -> set[str]:
    """Return the keys of a mapping that ``key`` excludes: the others of an interval, or of a choice of one."""
    if shape.get("maxProperties") == 1:
        return set(shape.get("properties", {})) - {key}
    names = {name for choice in shape.get("oneOf", []) for name in choice["required"]}
    return names - {key} if key in names else set()
