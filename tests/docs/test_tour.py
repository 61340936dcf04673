"""The tour runs from its first line to its last, in a copy of the repository, and shows what it says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from baselines import available
from tests.docs.test_adding import COPIED, copy_with, run
from workflow.bench.support.config import ROOT

TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
FILES = re.findall(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)```", TOUR, re.DOTALL | re.MULTILINE)
STEPS = [
    (language, text)
    for language, text in re.findall(r"^```(python|sh)\n(.*?)```", TOUR, re.DOTALL | re.MULTILINE)
    if text not in [content for _, content in FILES]
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each step of the tour prints."""
    folder = copy_with(tmp_path_factory.mktemp("tour"), TOUR, (*COPIED, "results/reference"))
    printed, names = [], dict[str, Any]()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for language, text in STEPS:
            lines: list[str] = []
            if language == "sh":
                lines = run(folder, text).splitlines()
            else:
                names["print"] = lambda *words, to=lines: to.extend(" ".join(map(str, words)).splitlines())
                exec(text, names)
            printed.append("\n".join(lines))
    return printed


def test_the_tour_gives_its_two_files_and_its_steps():
    assert [file for file, _ in FILES] == ["baselines/rmsprop.py", "config/experiments/tour.yaml"]
    assert [language for language, _ in STEPS] == ["python"] * 5 + ["sh", "python"]


def test_the_loop_learns_with_every_optimizer_and_mkor_covers_the_network(said):
    """Truth: chance on ten classes is log 10 = 2.3."""
    losses = {
        name: float(loss) for text in said[:3] for name, loss in re.findall(r"^(.*): loss ([\d.]+)", text, re.MULTILINE)
    }
    assert list(losses) == ["SGD", "MKOR over SGD", "KFAC over SGD", "NorMuon"]
    assert max(losses.values()) < 0.7, losses
    assert "with MKOR(): 2 layers" in said[1]
    assert f"{len(available())} optimizers in all" in said[2]
    assert f"choose among {len(available())} optimizers" in TOUR


def test_the_verdict_is_the_one_that_is_kept_and_can_be_checked_by_hand(said):
    assert "verdict: refuted" in said[3]
    residuals = {rule: float(size) for rule, size in re.findall(r"^(\w+): .* = (\S+)$", said[4], re.MULTILINE)}
    assert residuals["published"] > 0.1
    assert residuals["sherman_morrison"] < 1e-12


def test_the_added_optimizer_is_compared(said):
    assert "tour/rmsprop: 3 runs" in said[5]
    rows = dict(re.findall(r"^(\w+): validation loss ([\d.]+) to [\d.]+, 3 seeds$", said[6], re.MULTILINE))
    assert set(rows) == {"sgd", "mkor", "rmsprop"}


def test_what_undoes_the_tour_names_the_files_that_it_added(said):
    (undo,) = re.findall(r"`(rm .*)`\.", TOUR)
    assert undo.split("; ")[0].split()[1:] == [file for file, _ in FILES]
    assert undo.split("; ")[1] == "rm -r results/*/embedded/tour*"
