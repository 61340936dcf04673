"""The page of hyperparameters is the one that the command writes, and says what the code does."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Literal, get_type_hints

import pytest

from baselines.kfac.kaisa import KAISA
from mkor_core.ranges import AT_LEAST_1, DECAY, FRACTION, Domain, OneOf, Range
from workflow.bench import list_hyperparameters
from workflow.bench.plan.hyperparameters import ranges


def test_the_command_writes_the_page(tmp_path):
    """Run `python -m workflow.bench.list_hyperparameters` after a change of hyperparameters."""
    assert list_hyperparameters.main([f"--out={tmp_path / 'page.md'}"]) == 0
    assert (tmp_path / "page.md").read_text() == list_hyperparameters.PAGE.read_text()


def test_every_field_of_a_method_has_a_row():
    section = list_hyperparameters.PAGE.read_text().split("### kaisa\n")[1].split("### ")[0]
    rows = {row.split("`")[1]: row for row in section.splitlines() if row.startswith("| `")}
    assert list(rows) == [field.name for field in fields(KAISA)]
    # A field is described by its annotation and its docstring.
    told = get_type_hints(KAISA, include_extras=True)["damping"].__metadata__[1]
    assert told == "the number added to the eigenvalues"
    assert rows["damping"] == (
        "| `damping` | a number > 0 | `0.001` | The number added to the eigenvalues. "
        "Added to both factors (`inverse`), or to the products of their eigenvalues (`eigen`) |"
    )


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (float, "a number"),
        (bool, "`true` or `false`"),
        (Literal["eigen", "inverse"], "`eigen` or `inverse`"),
        (Annotated[float, FRACTION], "a number > 0 and ≤ 1"),
        (Annotated[float | None, DECAY], "a number ≥ 0 and < 1 or `null`"),
        (Annotated[int, AT_LEAST_1], "an integer ≥ 1"),
        (Annotated[int, Range(at_least=2, largest=1024)], "an integer ≥ 2 and ≤ 1024"),
        (Annotated[float, Range(at_least=0, finite=False)], "a number ≥ 0, also infinite"),
        (Annotated[str, OneOf(("a", "b", "c"))], "`a`, `b` or `c`"),
    ],
)
def test_values_are_told_in_words(annotation, words, monkeypatch):
    # The plan loads the module of ranges a second time, since importing mkor_core would import torch.
    monkeypatch.setattr(ranges, "OneOf", OneOf)
    assert list_hyperparameters.values(Domain.of(annotation)) == words
