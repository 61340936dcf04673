"""The trivial predictors that experiment files declare beside their targets. Truth: a constant model, evaluated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from tests.support import trivial
from workflow.bench import workloads
from workflow.bench.data.folder import DataNotFound
from workflow.bench.support.config import ROOT


def _declared() -> Iterator[Any]:
    """Yield the workload, split, metric and trivial predictor of every block with a target, each once, and its name."""
    seen = set()
    for file in sorted((ROOT / "config" / "experiments").glob("*.yaml")):
        for tier, blocks in yaml.safe_load(file.read_text())["tiers"].items():
            for block in blocks:
                if not (target := block.get("target")):
                    continue
                given = json.dumps(block["workload"], sort_keys=True)
                values = given, target["split"], target["metric"], target.get("trivial")
                if values not in seen:
                    seen.add(values)
                    yield pytest.param(*values, id=f"{file.stem}-{tier}-{block['workload']['name']}")


@cache
def _measured(given: str) -> dict[str, dict[str, float]] | None:
    """Return the metrics of the constant model by split; None if the data would have to be downloaded."""
    name = (parameters := json.loads(given)).pop("name")
    try:
        return trivial.evaluated(workloads.create(name, **parameters))
    except DataNotFound:
        return None


@pytest.mark.parametrize(("given", "split", "metric", "declared"), [*_declared()])
def test_a_declared_trivial_predictor_is_that_of_the_data(given, split, metric, declared):
    """To three digits; none is declared where nobody could check it."""
    measured = _measured(given)
    if measured is None:
        assert declared is None
    else:
        assert declared == pytest.approx(measured[split][metric], rel=1e-3)
