"""Rows of a probe, and its workloads in the order of all figures."""

from __future__ import annotations

import pandas as pd

from workflow.bench.results.tables import NoDataError, Results

_ORDER = ("bert", "resnet", "autoencoder")


def read(results: Results, probe: str) -> pd.DataFrame:
    """Return the rows of a probe.

    Raises:
        NoDataError: the probe has no rows.
    """
    rows = results.probe(probe)
    if rows.empty:
        raise NoDataError(f"no rows in {results.root / 'probes' / probe}.csv: run the probe {probe} first.")
    return rows


def workloads(rows: pd.DataFrame) -> list[str]:
    """Return the workloads of a probe's rows in the order of all figures."""
    timed = set(rows["workload"].dropna().astype(str))
    return [name for name in _ORDER if name in timed] + sorted(timed - set(_ORDER))
