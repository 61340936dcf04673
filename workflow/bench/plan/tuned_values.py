"""The tuned values of an experiment's optimizers, read from the file that ``tune`` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow.bench.plan.experiment_files import label_of
from workflow.bench.plan.hyperparameters import TUNED, Key, accepted, check_value
from workflow.bench.plan.optimizer_signatures import Signature
from workflow.bench.plan.runs import TunedOptimizer
from workflow.bench.support.config import ConfigError, check, error, read_yaml, schema, shown_path


class TunedValues:
    """The file config/tuned/<tier>/<experiment>.yaml; empty if it does not exist.

    like: the same experiment's file of another tier, for entries that this one lacks.

    Raises:
        ConfigError: a file breaks its schema.
    """

    def __init__(self, file: Path, signatures: Mapping[str, Signature], like: Path | None = None) -> None:
        self._file = file
        self._signatures = signatures
        self._records: list[dict[str, Any]] = []
        self._like = TunedValues(like, signatures) if like is not None else None
        self._outdated: list[str] = []
        self._resized: dict[str, None] = {}
        """The workloads whose values in `_like` were tuned with other parameters, such as sizes."""
        if file.is_file():
            self._records = read_yaml(file)
            check(self._records, schema("tuned"), file)

    @property
    def notes(self) -> list[str]:
        """Values that were tuned with another block than today's, or with another workload at another tier."""
        notes = list(self._outdated)
        if self._like is not None and self._resized:
            names = ", ".join(self._resized)
            notes.append(
                f"{self._file.stem}: takes values of {shown_path(self._like._file)}, of another size of {names}"
            )
        return notes

    def values(
        self, entry: Mapping[str, Any], workload: Mapping[str, Any], tuned_optimizer: TunedOptimizer | None
    ) -> dict[str, Any] | None:
        """Return the values of an entry's hyperparameters that are given as ``tuned``; None if no file has them.

        Raises:
            ConfigError: a value is out of range.
        """
        names = [name for name, value in entry["hyperparameters"].items() if value == TUNED]
        if not names:
            return {}
        index = self._find(entry, names, workload)
        if index is not None:
            if tuned_optimizer and [trial.run.id for trial in tuned_optimizer.trials] != self._records[index]["trials"]:
                where = f"{shown_path(self._file)}: {workload['name']}, {label_of(entry)}"
                self._outdated.append(f"{where}: tuned with an older version of its block")
            return self._checked(entry, names, index)
        return self._values_of_like(entry, names, workload)

    def _values_of_like(
        self, entry: Mapping[str, Any], names: Sequence[str], workload: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        if self._like is None:
            return None
        index = self._like._find(entry, names, workload)
        if index is None:
            index = self._like._find(entry, names, workload, by=("name",))
            if index is None:
                return None
            self._resized[workload["name"]] = None
        return self._like._checked(entry, names, index)

    def _find(
        self, entry: Mapping[str, Any], names: Sequence[str], workload: Mapping[str, Any], by: Sequence[str] = ()
    ) -> int | None:
        """Return the index of the first record with an entry's label and values that was tuned with a workload.

        by: the workload's parameters that decide; by default all that the record states.
        """
        for index, record in enumerate(self._records):
            recorded = record["workload"]
            same = all(workload.get(name) == recorded.get(name) for name in by or recorded)
            if same and record["label"] == label_of(entry) and record["hyperparameters"].keys() >= set(names):
                return index
        return None

    def _checked(self, entry: Mapping[str, Any], names: Sequence[str], index: int) -> dict[str, Any]:
        """Return values of a record, or raise `ConfigError` if one is out of range."""
        values = self._records[index]["hyperparameters"]
        known = accepted(entry["name"], entry["hyperparameters"].get("base"), self._signatures)
        for name in names:
            check_value(self._file, (index, "hyperparameters", name), entry["name"], known, name, values[name])
        return {name: values[name] for name in names}

    def missing(self, file: Path, key: Key, entry: Mapping[str, Any]) -> ConfigError:
        """Return the error of an entry, at ``key`` of an experiment file, whose tuned values are missing."""
        must = (
            f"{shown_path(self._file)} contains no value for this workload and label: "
            f"run python -m workflow.bench.tune {self._file.stem}, or give a number"
        )
        name = next(name for name, value in entry["hyperparameters"].items() if value == TUNED)
        return error(file, (*key, name), TUNED, must)
