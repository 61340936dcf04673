"""The command that makes one artefact: the number of looks reaches the intervals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from workflow.bench import make_artefact
from workflow.bench.analysis.estimates import current_level
from workflow.bench.plan.rounds import Rounds, write_rounds
from workflow.bench.results.tables import Results


def test_an_artefacts_intervals_are_those_of_the_tiers_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = record_levels(monkeypatch)
    assert make_artefact.main(["claims", f"--results={tmp_path}"]) == 0
    assert make_artefact.main(["claims", f"--results={tmp_path}", "--look=2", "--looks=4"]) == 0
    assert made == [(1, 0.95), (2, pytest.approx(0.9875))]
    assert current_level() == 0.95


def test_without_options_they_are_those_of_the_folder_and_the_tier_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made, folder = record_levels(monkeypatch), tmp_path / "evidence"
    folder.mkdir()
    assert make_artefact.main(["claims", f"--results={folder}"]) == 0
    write_rounds(folder, Rounds(look=2))
    assert make_artefact.main(["claims", f"--results={folder}"]) == 0
    # Two looks share the 5 % by which an interval may err.
    assert [look for look, _ in made] == [1, 2]
    assert [level for _, level in made] == pytest.approx([0.975, 0.975])


def record_levels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """Let the command make nothing; return a list that gets each call's look and the level of its intervals."""
    made: list[tuple[int, float]] = []

    def make(results: Results, _: Path) -> list[Path]:
        made.append((results.look, current_level()))
        return []

    monkeypatch.setattr(make_artefact, "import_module", lambda _: SimpleNamespace(make=make))
    return made


@pytest.mark.parametrize("options", [["--look=2"], ["--looks=21"], ["--look=0", "--looks=2"]])
def test_looks_out_of_range_are_refused(tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]):
    assert make_artefact.main(["claims", f"--results={tmp_path}", *options]) == 1
    assert "must be from 1 to" in capsys.readouterr().err
