"""What the figures of probes share: reading one, and its workloads in order."""

from __future__ import annotations

import pandas as pd

from workflow.bench.results.tables import NoDataError, Results

_ORDER = ("bert", "resnet", "autoencoder")


def read(results: Results, probe: str) -> pd.DataFrame:
    """Rows of a probe.  Raises NoDataError where it has none."""
    rows = results.probe(probe)
    if rows.empty:
        raise NoDataError(f"no rows in {results.root / 'probes' / probe}.csv: run the probe {probe} first.")
    return rows


def workloads(rows: pd.DataFrame) -> list[str]:
    """The workloads of a probe's rows in the order in which all figures show them."""
    found = set(rows["workload"].dropna().astype(str))
    return [name for name in _ORDER if name in found] + sorted(found - set(_ORDER))
