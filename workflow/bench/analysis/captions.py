"""The line under every figure and table: tier, hardware, seeds, which MKOR ran, and every run that is not in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import pandas as pd

from workflow.bench.analysis.wording import integer_ranges
from workflow.bench.results.columns import WITHOUT_VALUES
from workflow.bench.results.tables import Results

_WITH_REASON: Final = ("failed", "skipped")


#: So many optimizers of a workload are named each though none of its runs finished.
_NAMED: Final = 3


def _sentence(text: str) -> str:
    """Text with a capital letter and no full stop yet."""
    return text[:1].upper() + text[1:].rstrip(".")


def _unique(runs: pd.DataFrame, column: str) -> list[str]:
    if column not in runs:
        return []
    return sorted({str(value) for value in runs[column].dropna()})


def _is_true(column: pd.Series) -> pd.Series:
    return column.astype("boolean").fillna(False).astype(bool)


def _mkor(runs: pd.DataFrame) -> list[str]:
    """Which update rule and period each MKOR label had."""
    mkor = runs[runs["update_rule"].notna()]
    if mkor.empty:
        return []
    rules = [f"{label} = {'/'.join(_unique(rows, 'update_rule'))}" for label, rows in mkor.groupby("optimizer")]
    periods = integer_ranges(mkor["inverse_update_period"].dropna())
    return [f"MKOR's update rule: {', '.join(rules)}; inverse update period {periods}"]


def _tuned(runs: pd.DataFrame) -> list[str]:
    """Which optimizers had a hyperparameter tuned."""
    if "tuned" not in runs:
        return []
    tuned = runs[_is_true(runs["tuned"])]
    if tuned.empty:
        return []
    who = "all optimizers" if len(tuned) == len(runs) else ", ".join(_unique(tuned, "optimizer"))
    return [f"Tuned with equal trials: {who}"]


def _unfinished(runs: pd.DataFrame) -> list[str]:
    """One phrase a status: which runs did not finish, by experiment and workload."""
    unfinished = runs[runs["status"] != "finished"]
    phrases: dict[str, list[str]] = {}
    for (status, experiment, workload), rows in unfinished.groupby(["status", "experiment", "workload"], dropna=False):
        whole = runs[(runs["workload"] == workload) & (runs["experiment"] == experiment)]
        shared = runs.loc[runs["workload"] == workload, "experiment"].nunique() > 1
        names = []
        for label, of_label in rows.groupby("optimizer"):
            periods = of_label["inverse_update_period"].dropna()
            differs = whole.loc[whole["optimizer"] == label, "inverse_update_period"].nunique() > 1
            at = f" (period {integer_ranges(periods)})" if differs and not periods.empty else ""
            names.append(f"{label}{at} seed {integer_ranges(of_label['seed'].dropna())}")
        if len(rows) == len(whole) and len(names) > _NAMED:
            names = [f"all {len(rows)} runs"]
        reasons = _unique(rows, "reason")
        because = f" [{'; '.join(reasons)}]" if reasons and status in _WITH_REASON else ""
        place = f"{experiment} {workload}" if shared else str(workload)
        phrases.setdefault(str(status).replace("_", " "), []).append(f"{place} {', '.join(names)}{because}")
    return [f"{status}: {'; '.join(places)}" for status, places in phrases.items()]


def _missing(runs: pd.DataFrame) -> list[str]:
    """Which seeds one label of a workload lacks though another one has them."""
    phrases = []
    for (experiment, workload), rows in runs.groupby(["experiment", "workload"], dropna=False):
        seeds = set(rows["seed"].dropna())
        for label, of_label in rows.groupby("optimizer"):
            for period, at_period in of_label.groupby("inverse_update_period", dropna=False):
                absent = seeds - set(at_period["seed"].dropna())
                if absent:
                    at = (
                        f" (period {period:g})"
                        if of_label["inverse_update_period"].nunique() > 1 and isinstance(period, float)
                        else ""
                    )
                    phrases.append(f"{experiment} {workload} {label}{at} seed {integer_ranges(absent)}")
    return [f"missing: {'; '.join(phrases)}"] if phrases else []


def _seeds(runs: pd.DataFrame, *, summarised: bool) -> str:
    """Seeds by workload, with the statistic that so many carry where the artefact summarises over them.

    Where no run has values, the seeds that are planned.
    """
    trained = runs[~runs["status"].isin(WITHOUT_VALUES)]
    by_seeds: dict[str, list[str]] = {}
    for workload, rows in (runs if trained.empty else trained).groupby("workload"):
        seeds = rows["seed"].dropna()
        how = (
            "median, 95 % bootstrap interval"
            if seeds.nunique() >= 6
            else "mean, 95 % t interval"
            if seeds.nunique() >= 2
            else "one run, no interval"
        )
        text = f"{integer_ranges(seeds)} ({how})" if summarised else integer_ranges(seeds)
        by_seeds.setdefault(text, []).append(str(workload))
    if len(by_seeds) == 1:
        return f"seeds {next(iter(by_seeds))}"
    return "; ".join(f"{', '.join(workloads)} seeds {seeds}" for seeds, workloads in by_seeds.items())


def _code(runs: pd.DataFrame) -> list[str]:
    """Which commit the runs come from, and how many were made by older code."""
    phrases: list[str] = []
    commits = [commit[:9] for commit in _unique(runs, "git_commit")]
    if commits:
        dirty = " with uncommitted changes" if "git_dirty" in runs and _is_true(runs["git_dirty"]).any() else ""
        phrases.append(f"commit {', '.join(commits)}{dirty}")
    if "code_current" in runs:
        known = runs[runs["code_current"].notna()]
        older = int((~_is_true(known["code_current"])).sum())
        if older:
            phrases.append(f"{older} of {len(known)} runs made by older code")
    return ["; ".join(phrases)] if phrases else []


def caption(
    results: Results,
    runs: pd.DataFrame,
    *,
    notes: Iterable[str] = (),
    absent: Iterable[str] = (),
    summarised: bool = True,
) -> str:
    """The caption of an artefact made from ``runs`` (rows of ``<experiment>.runs.csv``, several may be joined).

    ``notes`` are further sentences; ``absent`` names experiments or probes that the artefact would show but that
    have no results; ``summarised`` tells whether it shows intervals over seeds.
    """
    tier = results.tier_title or f"{results.tier} tier"
    if results.tier != "paper":
        tier += ", no reproduction of the paper's numbers"
    if runs.empty:
        parts = [f"{tier}; {results.hardware}", *notes]
    else:
        parts = [f"{tier}; {results.hardware}; {_seeds(runs, summarised=summarised)}"]
        parts += [*_mkor(runs), *_tuned(runs), *notes, *_unfinished(runs), *_missing(runs)]
    if names := list(absent):
        parts.append(f"no results yet: {', '.join(names)}")
    return ". ".join(map(_sentence, parts + _code(runs))) + "."


def as_rst(text: str) -> str:
    """A caption as one paragraph of reStructuredText, for the report."""
    return re.sub(r"([\\*`|_])", r"\\\1", text) + "\n"


def footer(results: Results, rows: pd.DataFrame, *, notes: Iterable[str], absent: Iterable[str] = ()) -> str:
    """The caption of an artefact made from a probe's ``rows``: tier, hardware, seeds, ``notes``, what is absent."""
    seeds = [f"seeds {integer_ranges(rows['seed'].dropna())}"] if "seed" in rows else []
    rules = []
    if "update_rule" in rows and rows["update_rule"].notna().any():
        pairs = rows.dropna(subset="update_rule")[["optimizer", "update_rule"]].drop_duplicates()
        rules = ["MKOR's update rule: " + ", ".join(f"{label} = {rule}" for label, rule in pairs.to_numpy())]
    commits = sorted({str(commit)[:9] for commit in rows.get("git_commit", pd.Series(dtype=str)).dropna()})
    code = [f"commit {', '.join(commits)}"] if commits else []
    none = pd.DataFrame()  # a probe's rows are no runs
    return caption(results, none, notes=[*seeds, *rules, *notes, *code], absent=absent)
