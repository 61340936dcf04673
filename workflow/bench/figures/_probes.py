"""What the figures of probes share: reading one, its workloads in order, and the caption of rows that are no runs."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from workflow.bench.captions import caption, spans
from workflow.bench.results import NoDataError, Results

_ORDER = ("bert", "resnet", "autoencoder")


def read(results: Results, probe: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """Rows of a probe.  Raises NoDataError where it has none."""
    rows = results.probe(probe, columns)
    if rows.empty:
        raise NoDataError(f"no rows in {results.root / 'probes' / probe}.csv: run the probe {probe} first.")
    return rows


def workloads(rows: pd.DataFrame) -> list[str]:
    """The workloads of a probe's rows in the order in which all figures show them."""
    found = set(rows["workload"].dropna().astype(str))
    return [name for name in _ORDER if name in found] + sorted(found - set(_ORDER))


def footer(results: Results, rows: pd.DataFrame, *, notes: Iterable[str], absent: Iterable[str] = ()) -> str:
    """The caption of a figure made from a probe's ``rows``: tier, hardware, seeds, ``notes``, what is absent."""
    seeds = [f"seeds {spans(rows['seed'].dropna())}"] if "seed" in rows else []
    rules = []
    if "update_rule" in rows and rows["update_rule"].notna().any():
        pairs = rows.dropna(subset="update_rule")[["optimizer", "update_rule"]].drop_duplicates()
        rules = ["MKOR's update rule: " + ", ".join(f"{label} = {rule}" for label, rule in pairs.to_numpy())]
    commits = sorted({str(commit)[:9] for commit in rows.get("git_commit", pd.Series(dtype=str)).dropna()})
    code = [f"commit {', '.join(commits)}"] if commits else []
    none = pd.DataFrame()  # a probe's rows are no runs
    return caption(results, none, notes=[*seeds, *rules, *notes, *code], absent=absent)
