"""Captions of figures and tables: tier, hardware, seeds, update rules, and every run that they do not show."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

import pandas as pd

from workflow.bench.analysis.estimates import median_minimum, shown_level
from workflow.bench.analysis.wording import capital, integer_ranges, named_seeds
from workflow.bench.plan.runs import PLAIN_PRECISION
from workflow.bench.results.columns import WITHOUT_VALUES
from workflow.bench.results.tables import Results, is_true
from workflow.bench.support.errors import one_line

_WITH_REASON: Final = ("failed", "skipped")
"""Statuses whose reason a caption gives."""

INERT: Final = 0.999
"""A method whose median cosine between update and gradient reaches this is inert: it is its base at another rate."""

_NAMED: Final = 3
"""If no run of a workload finished, the most optimizers that a caption names; more are "all runs"."""


@dataclass(frozen=True)
class Names:
    """How a caption names what its artefact shows; by default by label, as the tables do."""

    optimizer: Callable[[str], str] = str
    workload: Callable[[str], str] = str
    rules: Callable[[Mapping[str, str]], str] = lambda rules: ", ".join(map(" = ".join, rules.items()))
    """The text on MKOR's update rules, by label."""
    shows_runs: bool = False
    """Whether the artefact shows each run in place of the interval of fewer than `median_minimum` runs."""


_LABELS: Final = Names()


def _unique(runs: pd.DataFrame, column: str) -> list[str]:
    return sorted({str(value) for value in runs[column].dropna()})


def _mkor(runs: pd.DataFrame, names: Names) -> str:
    """Return a sentence on the update rules and periods of the MKOR labels; empty without any."""
    mkor = runs[runs["update_rule"].notna()]
    if mkor.empty:
        return ""
    rules = {str(label): "/".join(_unique(rows, "update_rule")) for label, rows in mkor.groupby("optimizer")}
    periods = integer_ranges(mkor["inverse_update_period"].dropna())
    return f"MKOR's update rule: {names.rules(rules)}{f'; inverse update period {periods}' if periods else ''}"


def _tuned(runs: pd.DataFrame, names: Names) -> str:
    """Return a sentence on the optimizers with a tuned hyperparameter; empty without any."""
    tuned = runs[is_true(runs["tuned"])]
    if tuned.empty:
        return ""
    some = ", ".join(map(names.optimizer, _unique(tuned, "optimizer")))
    return f"Tuned: {'all optimizers' if len(tuned) == len(runs) else some}"


def inert_labels(cosines: Iterable[tuple[str, float]]) -> list[str]:
    """Return the labels whose median cosine is `INERT` or more, sorted.

    cosines: the label and the column ``direction_cosine`` of runs of one experiment on one workload.
    """
    of_label: dict[str, list[float]] = {}
    for label, cosine in cosines:
        of_label.setdefault(label, []).append(cosine)
    return sorted(label for label, values in of_label.items() if median(values) >= INERT)


def _inert(runs: pd.DataFrame, names: Names) -> str:
    """Return a sentence on the preconditioners that hardly change the gradient's direction; empty without any."""
    phrases = []
    for (experiment, workload), rows in runs.dropna(subset=["direction_cosine"]).groupby(["experiment", "workload"]):
        if labels := inert_labels(zip(rows["optimizer"], rows["direction_cosine"], strict=True)):
            place = _place(runs, experiment, workload, names)
            phrases.append(f"{', '.join(map(names.optimizer, labels))} on {place}")
    return f"inert (median cosine of update and gradient {INERT:g} or more): {'; '.join(phrases)}" if phrases else ""


def _place(runs: pd.DataFrame, experiment: object, workload: object, names: Names) -> str:
    """Return the name of a workload, after that of its experiment if another one has the workload, too."""
    # Two experiments on one workload are told apart; a single one is known by its workload.
    shared = runs.loc[runs["workload"] == workload, "experiment"].nunique() > 1
    return f"{experiment} {names.workload(str(workload))}" if shared else names.workload(str(workload))


def _unfinished(runs: pd.DataFrame, names: Names) -> list[str]:
    """Return one sentence a status on the runs that did not finish, by experiment and workload."""
    unfinished = runs[runs["status"] != "finished"]
    phrases: dict[str, list[str]] = {}
    for (status, experiment, workload), rows in unfinished.groupby(["status", "experiment", "workload"]):
        whole = runs[(runs["workload"] == workload) & (runs["experiment"] == experiment)]
        parts = []
        for label, of_label in rows.groupby("optimizer"):
            periods = of_label["inverse_update_period"].dropna()
            differs = whole.loc[whole["optimizer"] == label, "inverse_update_period"].nunique() > 1
            at = f" (period {integer_ranges(periods)})" if differs and not periods.empty else ""
            parts.append(f"{names.optimizer(str(label))}{at} {named_seeds(of_label['seed'].dropna())}")
        # A tier without the data set would list every label and seed, and hide the one reason.
        if len(rows) == len(whole) and len(parts) > _NAMED:
            parts = [f"all {len(rows)} runs"]
        reasons = _unique(rows, "reason")
        because = f" [{'; '.join(reasons)}]" if reasons and status in _WITH_REASON else ""
        place = _place(runs, experiment, workload, names)
        phrases.setdefault(str(status).replace("_", " "), []).append(f"{place} {', '.join(parts)}{because}")
    return [f"{status}: {'; '.join(places)}" for status, places in phrases.items()]


def _missing(runs: pd.DataFrame, names: Names) -> str:
    """Return a sentence on the seeds that a label of a workload lacks and another label has; empty without any."""
    phrases = []
    for (experiment, workload), rows in runs.groupby(["experiment", "workload"]):
        seeds = set(rows["seed"].dropna())
        by_seeds: dict[str, list[str]] = {}
        for label, of_label in rows.groupby("optimizer"):
            differs = of_label["inverse_update_period"].nunique() > 1
            for period, at_period in of_label.groupby("inverse_update_period", dropna=False):
                if absent := seeds - set(at_period["seed"].dropna()):
                    at = f" (period {period:g})" if differs else ""
                    by_seeds.setdefault(named_seeds(absent), []).append(f"{names.optimizer(str(label))}{at}")
        place = _place(runs, experiment, workload, names)
        phrases += [f"{place} {', '.join(labels)} {absent}" for absent, labels in by_seeds.items()]
    return f"missing: {'; '.join(phrases)}" if phrases else ""


def _seeds(runs: pd.DataFrame, names: Names, *, summarized: bool) -> str:
    """Return the seeds by workload, with the statistic of that many seeds if the artefact summarizes them.

    If no run has values, these are the seeds that are planned.
    """
    # A planned seed adds nothing to a mean, and must not seem to.
    trained = runs[~runs["status"].isin(WITHOUT_VALUES)]
    by_seeds: dict[str, list[str]] = {}
    for workload, rows in (runs if trained.empty else trained).groupby("workload"):
        seeds = rows["seed"].dropna()
        text = named_seeds(seeds) + (f" ({_statistic(seeds.nunique(), names)})" if summarized else "")
        by_seeds.setdefault(text, []).append(names.workload(str(workload)))
    if len(by_seeds) == 1:
        return next(iter(by_seeds))
    return "; ".join(f"{', '.join(workloads)} {seeds}" for seeds, workloads in by_seeds.items())


def _statistic(seeds: int, names: Names) -> str:
    """Return the statistic of a number of seeds (`estimates.estimate`), and whether its interval or its runs stand."""
    if names.shows_runs and 2 <= seeds < median_minimum():
        return "median, every run shown"
    if seeds >= median_minimum():
        return f"median, {shown_level()} order-statistics interval"
    return f"mean, {shown_level()} t interval" if seeds >= 2 else "one run, no interval"


def _machines(results: Results, runs: pd.DataFrame) -> str:
    """Return a sentence on the runs that other machines trained; empty without any."""
    others = runs[runs["hardware"].notna() & (runs["hardware"] != results.hardware)]
    phrases = ", ".join(
        f"{experiment} {named_seeds(rows['seed'])} on {hardware}"
        for (experiment, hardware), rows in others.groupby(["experiment", "hardware"])
    )
    return f"trained elsewhere, adopted: {phrases}; times of steps are of {results.hardware}" if phrases else ""


def _code(runs: pd.DataFrame) -> str:
    """Return a sentence on the runs' commits and the number of runs made by older code."""
    dirty = " with uncommitted changes" if is_true(runs["git_dirty"]).any() else ""
    known = runs[runs["code_current"].notna()]
    older = int((~is_true(known["code_current"])).sum())
    phrases = [f"{_commits(runs)}{dirty}"] if _commits(runs) else []
    phrases += [f"{older} of {len(known)} runs made by older code"] if older else []
    return "; ".join(phrases)


def _commits(rows: pd.DataFrame) -> str:
    """Return the commits of runs or of a probe's rows: ``commit 012345678, 89abcdef0``; empty without any."""
    commits = ", ".join(commit[:9] for commit in _unique(rows, "git_commit"))
    return f"commit {commits}" if commits else ""


def caption(
    results: Results,
    runs: pd.DataFrame,
    *,
    notes: Iterable[str] = (),
    absent: Iterable[str] = (),
    summarized: bool = True,
    names: Names = _LABELS,
) -> str:
    """Return the caption of an artefact made from runs, in one line whatever its runs' names and reasons hold.

    Args:
        results: the results that the artefact is made from.
        runs: rows of one or several ``<experiment>.runs.csv``.
        notes: further sentences.
        absent: experiments and probes that the artefact would show but that have no results.
        summarized: whether the artefact shows statistics over seeds.
        names: how optimizers and workloads are named.
    """
    tier = results.tier_title or f"{results.tier} tier"
    # A small tier's number must never be quoted as a reproduction, wherever its picture is pasted.
    if results.tier != "paper":
        tier += ", no reproduction of the paper's numbers"
    if runs.empty:
        parts = [f"{tier}; {results.hardware}", *notes]
    else:
        parts = [
            f"{tier}; {results.hardware}; {_seeds(runs, names, summarized=summarized)}",
            _machines(results, runs),
            _mkor(runs, names),
            _tuned(runs, names),
            _inert(runs, names),
            *notes,
            *_unfinished(runs, names),
            _missing(runs, names),
        ]
    if without := list(absent):
        parts.append(f"no results yet: {', '.join(without)}")
    if not runs.empty:
        # A probe's rows do not grow by rounds of seeds: its caption has no look.
        if results.looks > 1:
            spent = f"intervals of {shown_level()}, so that all looks together err in at most 5 % of cases"
            parts.append(f"look {results.look} of at most {results.looks}: {spent}")
        parts.append(_code(runs))
    return one_line(". ".join(capital(part).rstrip(".") for part in parts if part) + ".")


def as_rst(text: str) -> str:
    """Return a text as one line of reStructuredText that docutils shows as it is, for Snakemake's report.

    A backslash takes the meaning of the character behind it. All characters but letters, digits and spaces get one: a
    part of them has a meaning at the start of a line, others in addresses, and Jinja reads braces in the first page.
    """
    return re.sub(r"([^\w ]|_)", r"\\\1", one_line(text).strip()) + "\n"


def from_rst(text: str) -> str:
    """Return the line that `as_rst` wrote."""
    return re.sub(r"\\(.)", r"\1", text.removesuffix("\n"))


def footer(
    results: Results, rows: pd.DataFrame, *, notes: Iterable[str], absent: Iterable[str] = (), names: Names = _LABELS
) -> str:
    """Return the caption of an artefact made from a probe's rows. The arguments are those of `caption`."""
    seeds = [named_seeds(rows["seed"].dropna())] if "seed" in rows else []
    rules = []
    if "update_rule" in rows and rows["update_rule"].notna().any():
        pairs = rows.dropna(subset="update_rule")[["optimizer", "update_rule"]].drop_duplicates()
        rules = [f"MKOR's update rule: {names.rules(dict(pairs.to_numpy().tolist()))}"]
    about = [*seeds, *rules, *precisions(rows, names), *notes, _commits(rows)]
    return caption(results, pd.DataFrame(), notes=about, absent=absent)


def precisions(rows: pd.DataFrame, names: Names = _LABELS) -> list[str]:
    """Return a sentence on the workloads that a probe trains in less than float32, if there are any."""
    if "precision" not in rows:
        return []
    lower = rows[rows["precision"].notna() & (rows["precision"] != PLAIN_PRECISION)]
    phrases = [
        f"{', '.join(map(names.workload, sorted(workloads)))} in {precision}"
        for precision, workloads in lower.groupby("precision")["workload"].unique().items()
    ]
    return [f"trained with autocast: {'; '.join(phrases)}"] if phrases else []
