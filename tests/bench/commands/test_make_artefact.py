"""The command that makes one artefact: the number of looks reaches the intervals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from workflow.bench import make_artefact
from workflow.bench.analysis.estimates import current_level
from workflow.bench.results.tables import Results


def test_an_artefacts_intervals_are_those_of_the_tiers_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[tuple[int, float]] = []

    def make(results: Results, _: Path) -> list[Path]:
        made.append((results.look, current_level()))
        return []

    monkeypatch.setattr(make_artefact, "import_module", lambda _: SimpleNamespace(make=make))
    assert make_artefact.main(["claims", f"--results={tmp_path}"]) == 0
    assert make_artefact.main(["claims", f"--results={tmp_path}", "--look=2", "--looks=4"]) == 0
    assert made == [(1, 0.95), (2, pytest.approx(0.9875))]
    assert current_level() == 0.95


@pytest.mark.parametrize("options", [["--look=2"], ["--looks=21"], ["--look=0", "--looks=2"]])
def test_looks_out_of_range_are_refused(tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]):
    assert make_artefact.main(["claims", f"--results={tmp_path}", *options]) == 1
    assert "must be from 1 to" in capsys.readouterr().err
