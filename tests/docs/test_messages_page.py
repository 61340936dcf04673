"""docs/messages.md: its bytes and errors are those of the first step of its example, and its Python runs."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from baselines import KAISA
from docs.examples import compressed
from mkor_core import Codec, Preconditioner, Schedule
from workflow.bench.support.config import ROOT

PAGE = (ROOT / "docs" / "messages.md").read_text()
START_METHOD = "spawn" if torch.accelerator.is_available() else "fork"


def test_the_pages_bytes_and_errors_are_those_of_the_first_step():
    """Whether an entry is dropped, and how one is rounded, can depend on the machine's last digits."""
    lines = PAGE.split("<!-- codecs -->\n")[1].split("\n<!-- end of codecs -->")[0].splitlines()
    measured = compressed.measure(steps=1, start_method=START_METHOD)
    computed = compressed.table(measured)
    assert lines[:2] == computed[:2]
    of_page, of_example = (
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in t[2:]] for t in (lines, computed)
    )
    assert len(of_page) == len(of_example) == len(compressed.METHODS) * len(compressed.CODECS)
    for page, example in zip(of_page, of_example, strict=True):
        assert page[:3] == example[:3]
        sent, counted = (int(cells[3].replace(",", "")) for cells in (page, example))
        assert sent == (pytest.approx(counted, rel=0.1) if "dropped" in page[1] else counted)
        assert float(page[4]) == pytest.approx(float(example[4]), rel=0.05)
        assert float(page[5]) == pytest.approx(float(example[5]), rel=0.3)


def test_the_pages_python_makes_preconditioners():
    snippets = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        model = nn.Linear(3, 2)
        names = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
        exec(snippet, {**names, "KAISA": KAISA, "Preconditioner": Preconditioner, "Codec": Codec, "Schedule": Schedule})
