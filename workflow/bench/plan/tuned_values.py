"""The tuned values of an experiment's optimizers, read from the file that ``tune`` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow.bench.plan.experiment_files import label_of
from workflow.bench.plan.hyperparameters import TUNED, Key, Signature, accepted, check_value
from workflow.bench.plan.runs import TunedOptimizer
from workflow.bench.support.config import ConfigError, check, error, read_yaml, schema, shown_path


def read_records(file: Path) -> list[dict[str, Any]]:
    """Return the records in config/tuned/<tier>/<experiment>.yaml; none if there is no such file.

    Raises:
        ConfigError: the file breaks its schema.
    """
    if not file.is_file():
        return []
    records: list[dict[str, Any]] = read_yaml(file)
    check(records, schema("tuned"), file)
    return records


def is_of(record: Mapping[str, Any], workload: Mapping[str, Any], label: str, by: Sequence[str] = ()) -> bool:
    """Return whether a record is that of a label on a workload.

    by: the workload's parameters that decide; by default all that either states.
    """
    recorded = record["workload"]
    same = all(workload.get(name) == recorded.get(name) for name in by or {*recorded, *workload})
    return same and bool(record["label"] == label)


def current_record(records: Sequence[Mapping[str, Any]], optimizer: TunedOptimizer) -> Mapping[str, Any] | None:
    """Return the record that an optimizer's trials of today made; None if there is none, or one of other trials."""
    for record in records:
        of_today = [study["trials"] for study in record["studies"]] == optimizer.trial_ids
        if of_today and is_of(record, optimizer.workload, optimizer.label):
            return record
    return None


class UnfinishedError(ConfigError):
    """An experiment needs tuned values that are not there yet."""


class TunedValues:
    """The file config/tuned/<tier>/<experiment>.yaml; empty if it does not exist.

    beside: the file of another experiment at the same tier, for entries that this one lacks.
    like: a file of another tier, for entries that neither has.

    Raises:
        ConfigError: a file breaks its schema.
    """

    def __init__(
        self,
        file: Path,
        signatures: Mapping[str, Signature],
        *,
        beside: Path | None = None,
        like: Path | None = None,
    ) -> None:
        self._file = file
        self._signatures = signatures
        self._records = read_records(file)
        self._beside = TunedValues(beside, signatures) if beside is not None else None
        self._like = TunedValues(like, signatures) if like is not None else None
        self._outdated: list[str] = []
        self._resized: dict[str, None] = {}
        """The workloads whose values in `_like` were tuned with other parameters, such as sizes."""

    @property
    def notes(self) -> list[str]:
        """Values that were tuned with another block than today's, or with another workload at another tier."""
        notes = list(self._outdated)
        if self._like is not None and self._resized:
            names = ", ".join(self._resized)
            source = shown_path(self._like._file)
            notes.append(f"{self._file.stem}: takes values of {source}, tuned with other parameters of {names}")
        return notes

    def values(
        self, entry: Mapping[str, Any], workload: Mapping[str, Any], tuned_optimizer: TunedOptimizer | None
    ) -> list[dict[str, Any]] | None:
        """Return what each study chose for an entry's hyperparameters that are given as ``tuned``.

        The list is empty if there are none; the result is None if no file has all their values.

        Raises:
            ConfigError: a value is out of range.
        """
        names = [name for name, value in entry["hyperparameters"].items() if value == TUNED]
        if not names:
            return []
        index = self._find(entry, names, workload)
        if index is not None:
            trials = [study["trials"] for study in self._records[index]["studies"]]
            # Trials with other ids are not those of today's block. Their values still serve, with a note.
            if tuned_optimizer and tuned_optimizer.trial_ids != trials:
                where = f"{shown_path(self._file)}: {workload['name']}, {label_of(entry)}"
                self._outdated.append(f"{where}: tuned with an older version of its block")
            return self._checked(entry, names, index)
        # Values of this workload at this tier come before any of another tier.
        if self._beside is not None and (index := self._beside._find(entry, names, workload)) is not None:
            return self._beside._checked(entry, names, index)
        if self._like is None:
            return None
        index = self._like._find(entry, names, workload)
        if index is None:
            # Values of a smaller model are better than none; a note tells the user.
            index = self._like._find(entry, names, workload, by=("name",))
            if index is None:
                return None
            self._resized[workload["name"]] = None
        return self._like._checked(entry, names, index)

    def _find(
        self, entry: Mapping[str, Any], names: Sequence[str], workload: Mapping[str, Any], by: Sequence[str] = ()
    ) -> int | None:
        """Return the index of the first record with an entry's label and values that was tuned with a workload.

        by: as in `is_of`.
        """
        for index, record in enumerate(self._records):
            complete = all(study["hyperparameters"].keys() >= set(names) for study in record["studies"])
            if complete and is_of(record, workload, label_of(entry), by):
                return index
        return None

    def _checked(self, entry: Mapping[str, Any], names: Sequence[str], index: int) -> list[dict[str, Any]]:
        """Return values of a record's studies, or raise `ConfigError` if one is out of range."""
        known = accepted(entry["name"], entry["hyperparameters"].get("base"), self._signatures)
        # The file may be older than a range, or edited by hand.
        studies = [study["hyperparameters"] for study in self._records[index]["studies"]]
        for number, values in enumerate(studies):
            for name in names:
                key = (index, "studies", number, "hyperparameters", name)
                check_value(self._file, key, entry["name"], known, name, values[name])
        return [{name: values[name] for name in names} for values in studies]

    def missing(self, file: Path, key: Key, entry: Mapping[str, Any]) -> UnfinishedError:
        """Return the error of an entry, at ``key`` of an experiment file, whose tuned values are missing."""
        must = (
            f"{shown_path(self._file)} contains no value for this workload and label: "
            f"run python -m workflow.bench.tune {self._file.stem}, or give a number"
        )
        name = next(name for name, value in entry["hyperparameters"].items() if value == TUNED)
        return UnfinishedError(str(error(file, (*key, name), TUNED, must)))
