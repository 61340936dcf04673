"""The list of columns agrees with what the code writes."""

from __future__ import annotations

from importlib import import_module
from typing import get_args, get_type_hints

import pytest

from workflow.bench.plan.artefacts import Artefact, available
from workflow.bench.results.columns import PROBE_PROVENANCE, probe_columns


@pytest.mark.parametrize("name", available("probes"))
def test_the_columns_of_a_probe_are_the_fields_of_its_row(name):
    """Truth: the class itself, imported."""
    fields = get_type_hints(import_module(f"workflow.bench.probes.{name}").Row)
    types = {field: (get_args(kind) or (kind,))[0] for field, kind in fields.items()}
    assert probe_columns(name) == types | PROBE_PROVENANCE
    assert list(probe_columns(name)) == [*fields, *PROBE_PROVENANCE]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("class Rows: pass", "has no class Row"),
        ("class Row:\n    sizes: list[int]", "Row.sizes: list\\[int\\]: the type"),
    ],
)
def test_a_probe_without_readable_columns_is_named(source, problem, tmp_path, monkeypatch):
    (tmp_path / "made_up.py").write_text(source)
    monkeypatch.setattr(Artefact, "module", property(lambda artefact: tmp_path / f"{artefact.name}.py"))
    with pytest.raises(ValueError, match=problem):
        probe_columns("made_up")
