"""Synthetic machines to compare: step times by phase, and runs with an inverse update period."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tests.support.synthetic import run_rows, write_experiment
from tests.support.synthetic_probes import ORIGIN, combinations, write_probe

PERIOD = 10
STEPS: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "bert": {"lamb": (20.0,), "kaisa": (60.0, 22.0), "mkor": (30.0, 20.0), "eva": (24.0,)},
    "resnet": {"sgd": (10.0,), "kaisa": (40.0, 12.0), "mkor": (14.0, 11.0)},
    "autoencoder": {"sgd": (1.0,), "kaisa": (9.0, 1.5), "mkor": (2.0, 1.2)},
}
"""Milliseconds of a step with a refresh and of one without, by workload and label; one number without refreshes."""
REACHES: Mapping[str, float | None] = {"lamb": 120.0, "kaisa": 70.0, "mkor": 80.0, "sgd": None}
"""Iterations to the target of bert_pretraining in seed 0; each further seed takes one more."""


def step_breakdown(hardware: str, speed: float = 1.0, repeats: int = 3) -> pd.DataFrame:
    """Return rows of probes/step_breakdown.csv: `STEPS` divided by the speed, and 1 % more in each repeat."""
    rows = []
    settings = [(workload, label, times) for workload, of in STEPS.items() for label, times in of.items()]
    phases = {"forward": 0.25, "backward": 0.75}
    for at in combinations(setting=settings, repeat=range(repeats), phase=phases, workers=(1, 2)):
        workload, label, times = at.pop("setting")
        refresh, other = ((1 + 0.01 * at["repeat"]) / speed * times[index] for index in (0, -1))
        has_period, share = len(times) == 2, phases[at["phase"]] * at["workers"]
        took = {"ms": share * (refresh + (PERIOD - 1) * other) / PERIOD, "other_ms": share * other}
        took |= {"refresh_ms": share * refresh if has_period else None}
        about = {"workload": workload, "optimizer": label, "inverse_update_period": PERIOD if has_period else None}
        about |= {"update_rule": "sherman_morrison" if label == "mkor" else None}
        rows.append({**about, **at, **took, "steps": 10, "estimate": "measured", **ORIGIN, "hardware": hardware})
    return pd.DataFrame(rows)


def write_machine(folder: Path, name: str, *, speed: float = 1.0, runs: bool = True, period: int = 5) -> Path:
    """Write ``folder/<name>/embedded`` with step times and, optionally, runs of bert_pretraining; return it."""
    root = folder / name / "embedded"
    write_probe(root, "step_breakdown", step_breakdown(name, speed))
    if runs:
        shared: dict[str, Any] = {"seeds": range(3), "period": period, "target": 4.2, "base": "lamb"}
        parts = [
            run_rows("bert_pretraining", "bert_pretraining", label, reaches=at, **shared)
            for label, at in REACHES.items()
        ]
        for _, rows in parts:
            for row in rows:
                given = dict(row["hyperparameters"])
                if row["inverse_update_period"] is not None:
                    given["inverse_update_period"] = row["inverse_update_period"]
                row |= {"hyperparameters": given, "hardware": name}
                if row["crossing_seconds"] is not None:
                    row["crossing_seconds"] /= speed
        write_experiment(root, "bert_pretraining", parts)
    return root
