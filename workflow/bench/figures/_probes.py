"""The workloads of a probe in the order of all figures."""

from __future__ import annotations

import pandas as pd

_ORDER = ("bert", "resnet", "autoencoder")


def workloads(rows: pd.DataFrame) -> list[str]:
    """Return the workloads of a probe's rows in the order of all figures."""
    timed = set(rows["workload"].dropna().astype(str))
    return [name for name in _ORDER if name in timed] + sorted(timed - set(_ORDER))
