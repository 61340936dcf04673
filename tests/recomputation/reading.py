"""Results folders and the thresholds of claims, read with nothing but csv, json and gzip."""

from __future__ import annotations

import gzip
import io
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

ROOT = Path(__file__).parents[2]
ENDED = ("finished", "diverged", "out_of_memory")


def table(path: Path) -> pd.DataFrame:
    """Return a CSV file's rows, none of a file that does not exist."""
    return pd.read_csv(path, keep_default_na=False, na_values=[""]) if path.exists() else pd.DataFrame()


def true(column: pd.Series) -> pd.Series:
    """Return whether the truth values of a column are true; an empty one is not."""
    return column.astype(str).str.lower() == "true"


@dataclass
class Experiment:
    """The runs of one experiment, and their evaluations ``run, step, split, metric, value``."""

    name: str
    runs: pd.DataFrame
    evaluations: pd.DataFrame

    @cached_property
    def ended(self) -> pd.DataFrame:
        """The runs that another attempt would only repeat."""
        return self.runs[self.runs["status"].isin(ENDED)] if len(self.runs) else self.runs

    def has(self, *labels: str) -> bool:
        """Whether every label has a run that ended."""
        return len(self.ended) > 0 and set(labels) <= set(self.ended["optimizer"])

    def curves(self, split: str, metric: str) -> dict[str, pd.DataFrame]:
        """Return the evaluations of one metric by run."""
        rows = self.evaluations[(self.evaluations["split"] == split) & (self.evaluations["metric"] == metric)]
        return {str(run): of_run for run, of_run in rows.groupby("run")}

    @property
    def goal(self) -> dict[str, Any] | None:
        """The first target that a run declares."""
        declared = list(self.runs["target"].dropna()) if len(self.runs) else []
        return dict(declared[0]) if declared else None

    def mkor(self) -> str:
        """The rule that claims on training are about: at the paper's tier the released one, else the exact one."""
        at_paper = set(self.runs.loc[self.runs["tier"] == "paper", "optimizer"]) if len(self.runs) else set()
        return "mkor_released" if "mkor_released" in at_paper else "mkor"


@dataclass
class Folder:
    """``results/<hardware>/<tier>``; evaluations of runs that another machine trained come from that one's records."""

    root: Path
    looks: int
    read: dict[str, Any] = field(default_factory=dict)
    """Probes and experiments by name, as far as they were read."""

    @classmethod
    def of(cls, root: Path) -> Folder:
        """Read the number of looks that the tier's file allows, beside the name of the folder."""
        tier = ROOT / "config" / "tiers" / f"{root.resolve().name}.yaml"
        stated = re.search(r"^looks: (\d+)", tier.read_text() if tier.exists() else "", re.MULTILINE)
        return cls(root, int(stated[1]) if stated else 1)

    @property
    def level(self) -> float:
        """The level of intervals over runs."""
        return 1 - 0.05 / self.looks

    def probe(self, name: str) -> pd.DataFrame:
        """Return the rows of a probe, none of one that has not run."""
        if name not in self.read:
            self.read[name] = table(self.root / "probes" / f"{name}.csv")
        return self.read[name]

    def experiment(self, name: str) -> Experiment:
        """Return an experiment, without runs if it has not run."""
        if name not in self.read:
            runs = table(self.root / f"{name}.runs.csv")
            for column in ("hyperparameters", "target") if len(runs) else ():
                runs[column] = [None if pd.isna(text) else json.loads(text) for text in runs[column]]
            self.read[name] = Experiment(name, runs, self._evaluations(name, runs))
        return self.read[name]

    def _evaluations(self, name: str, runs: pd.DataFrame) -> pd.DataFrame:
        columns = ["run", "step", "split", "metric", "value"]
        file = self.root / f"{name}.csv"
        if file.exists():
            return pd.read_csv(file, usecols=columns).dropna(subset=["metric"])
        frames = [pd.DataFrame(columns=columns)]
        for machine in runs["hardware"].dropna().unique() if len(runs) else ():
            records = self.root.resolve().parents[1] / machine / self.root.resolve().name / f"{name}.records.json.gz"
            if records.exists():
                kept = json.loads(gzip.decompress(records.read_bytes()))["runs"]
                used = {run: kept[run]["metrics.csv"] for run in runs["run"] if run in kept}
                frames += [_of_record(run, text) for run, text in used.items()]
        return pd.concat([frame for frame in frames if len(frame)] or frames, ignore_index=True)[columns]


def _of_record(run: str, text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text), usecols=["step", "split", "metric", "value"]).assign(run=run)


class Condition(NamedTuple):
    """A threshold with its margin: its size, and ``%`` (of a ratio), ``fall`` (a share of it), or nothing."""

    comparison: str
    threshold: float
    margin: float | None
    kind: str


def claims() -> dict[str, list[Condition]]:
    """Return the thresholds of every claim in ``workflow/paper/claims.csv``."""
    rows = pd.read_csv(ROOT / "workflow" / "paper" / "claims.csv", dtype=str, keep_default_na=False)
    found = {}
    for claim, holds_when, text in rows[["id", "holds_when", "margin"]].to_numpy(str).tolist():
        margin, kind = None, ""
        if text:
            kind = "fall" if "fall" in text else "%" if "%" in text else ""
            margin = float(text.split()[0]) / (100 if kind else 1)
        stated = re.findall(r"([<>]=?) ?([-\d.]+(?:e-?\d+)?)", holds_when)
        found[claim] = [Condition(sign, float(number), margin, kind) for sign, number in stated]
    return found
