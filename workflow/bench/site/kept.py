"""The kept results that findings are about, read from the tables and records of a reference."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from workflow.bench.analysis.wording import number
from workflow.bench.results.archive import SUFFIX, read_archive
from workflow.bench.results.rows import read_csv

Row = Mapping[str, str]


class UnsupportedError(Exception):
    """Raised where a reference does not support a finding; the message says why."""


def need(condition: object, why: str) -> None:
    """Raise `UnsupportedError` unless a condition holds."""
    if not condition:
        raise UnsupportedError(why)


class Measured(NamedTuple):
    """A number with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.value)} [{number(self.low)}, {number(self.high)}]"


@dataclass(frozen=True)
class Kept:
    """The kept results that findings are about."""

    evidence: Path
    """``results/reference/<hardware>/evidence``."""
    field: Path
    """``results/reference/<hardware>/field``."""

    def rows(self, name: str, tier: str = "evidence") -> list[dict[str, str]]:
        """Return the rows of ``<name>.csv`` at a tier."""
        file = (self.field if tier == "field" else self.evidence) / f"{name}.csv"
        need(file.is_file(), f"{file.name} was not kept")
        return read_csv(file)

    @cached_property
    def claims(self) -> dict[str, dict[str, str]]:
        """The rows of the table of claims by id."""
        return {row["id"]: row for row in self.rows("tables/claims")}

    @cached_property
    def parts(self) -> dict[str, dict[str, Measured]]:
        """The numbers behind each claim by the name of the part; of parts without an interval its ends are missing."""
        found: dict[str, dict[str, Measured]] = {}
        for row in self.rows("tables/claim_parts"):
            if row["value"] and row["low"]:
                numbers = Measured(*(float(row[name]) for name in ("value", "low", "high")))
                found.setdefault(row["id"], {})[row["part"]] = numbers
        return found

    def claim(self, claim: str) -> dict[str, str]:
        """Return the row of a claim."""
        need(claim in self.claims, f"the table of claims has no {claim}")
        return self.claims[claim]

    def of_claim(self, claim: str, *names: str) -> list[Measured]:
        """Return some parts of a claim, or all, in order."""
        parts = self.parts.get(claim, {})
        absent = [name for name in names if name not in parts]
        need(parts and not absent, f"{claim} has no interval of {', '.join(absent) or 'any part'}")
        return [parts[name] for name in names or parts]

    def times(self, experiment: str, *labels: str) -> list[dict[str, str]]:
        """Return rows of time_to_target by label, each cell without its interval."""
        rows = {row["optimizer"]: row for row in self.rows("tables/time_to_target") if row["experiment"] == experiment}
        absent = [label for label in labels if label not in rows]
        need(not absent, f"time_to_target has no {', '.join(absent)} of {experiment}")
        return [{name: cell.partition(" [")[0] for name, cell in rows[label].items()} for label in labels]

    def cost(self, optimizer: str, part: str, dimension: int) -> float:
        """Return the mean milliseconds of one part of a step on a layer of a width."""
        rows = self.rows("probes/cost_scaling")
        chosen = [row for row in rows if (row["optimizer"], row["part"]) == (optimizer, part) and row["ms"]]
        times = [float(row["ms"]) for row in chosen if int(row["dimension"]) == dimension]
        need(times, f"cost_scaling has no {part} of {optimizer} at {dimension}")
        return fmean(times)

    def in_field(self, experiment: str, optimizer: str, quantity: str = "steps / base") -> Measured:
        """Return a quantity of a label of the field, by default its steps over its base's."""
        rows = self.rows("tables/field_results", "field")
        chosen = [row for row in rows if (row["experiment"], row["optimizer"]) == (experiment, optimizer)]
        cells = [chosen[0][f"{quantity}{end}"] for end in ("", ", low", ", high")] if chosen else [""]
        need(all(cells), f"field_results has no interval of {optimizer} in {experiment}")
        return Measured(*map(float, cells))

    def last_losses(self, experiment: str) -> dict[str, float]:
        """Return the median over seeds of the last validation loss by label, from the records of the runs."""
        found: dict[str, list[float]] = {}
        labels = {row["run"]: row["optimizer"] for row in self.rows(f"{experiment}.runs")}
        for file in sorted(self.evidence.parents[1].glob(f"*/{self.evidence.name}/{experiment}{SUFFIX}")):
            for run, kept in read_archive(file).runs.items():
                rows = csv.DictReader(io.StringIO(kept.metrics))
                losses = [
                    float(row["value"]) for row in rows if (row["split"], row["metric"]) == ("validation", "loss")
                ]
                if losses and run in labels:
                    found.setdefault(labels[run], []).append(losses[-1])
        return {label: median(losses) for label, losses in found.items()}
