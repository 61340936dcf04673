"""The tuned values of an experiment's optimizers, read from the file that ``tune`` writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow.bench.plan.experiment_files import label_of
from workflow.bench.plan.hyperparameters import TUNED, Key, accepted, check_value
from workflow.bench.plan.optimizer_signatures import Signature
from workflow.bench.plan.runs import TunedOptimizer
from workflow.bench.support.config import ConfigError, check, error, read_yaml, schema, shown_path


class TunedValues:
    """The file config/tuned/<tier>/<experiment>.yaml; empty if it does not exist.

    Raises:
        ConfigError: the file breaks its schema.
    """

    def __init__(self, file: Path, signatures: Mapping[str, Signature]) -> None:
        self.notes: list[str] = []
        """Values that were tuned with another block than today's."""
        self._file = file
        self._signatures = signatures
        self._records: list[dict[str, Any]] = []
        if file.is_file():
            self._records = read_yaml(file)
            check(self._records, schema("tuned"), file)

    def values(
        self, entry: Mapping[str, Any], workload: Mapping[str, Any], tuned_optimizer: TunedOptimizer | None
    ) -> dict[str, Any] | None:
        """Return the values of an entry's hyperparameters that are given as ``tuned``; None if the file lacks one.

        Raises:
            ConfigError: a value is out of range.
        """
        names = [name for name, value in entry["hyperparameters"].items() if value == TUNED]
        if not names:
            return {}
        for index, record in enumerate(self._records):
            same_workload = all(workload.get(name) == value for name, value in record["workload"].items())
            if not same_workload or record["label"] != label_of(entry):
                continue
            values = record["hyperparameters"]
            if not values.keys() >= set(names):
                return None
            known = accepted(entry["name"], entry["hyperparameters"].get("base"), self._signatures)
            for name in names:
                key = (index, "hyperparameters", name)
                check_value(self._file, key, entry["name"], known, name, values[name])
            if tuned_optimizer and [trial.run.id for trial in tuned_optimizer.trials] != record["trials"]:
                where = f"{shown_path(self._file)}: {workload['name']}, {label_of(entry)}"
                self.notes.append(f"{where}: tuned with an older version of its block")
            return {name: values[name] for name in names}
        return None

    def missing(self, file: Path, key: Key, entry: Mapping[str, Any]) -> ConfigError:
        """Return the error of an entry, at ``key`` of an experiment file, whose tuned values are missing."""
        must = (
            f"{shown_path(self._file)} contains no value for this workload and label: "
            f"run python -m workflow.bench.tune {self._file.stem}, or give a number"
        )
        name = next(name for name, value in entry["hyperparameters"].items() if value == TUNED)
        return error(file, (*key, name), TUNED, must)
