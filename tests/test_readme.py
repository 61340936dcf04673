"""What the README says can be typed, can be typed."""

from __future__ import annotations

import copy
import re

import torch
from torch import nn

from mkor_core import MKOR, Preconditioner
from workflow.bench.artefacts import available
from workflow.bench.config import ROOT

README = (ROOT / "README.md").read_text()


def test_the_training_loop_trains():
    """The snippet's weights are those of preconditioning by hand."""

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    truth = copy.deepcopy(model)
    rows = torch.randn(8, 4)

    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    before, after = snippet.split("loss.backward()")
    names = {"model": model}
    exec(before, names)
    names["loss"] = model(rows).square().mean()
    exec("loss.backward()" + after, names)

    by_hand = Preconditioner(truth, MKOR(inverse_update_period=10))
    truth(rows).square().mean().backward()
    by_hand.step()
    torch.optim.SGD(truth.parameters(), lr=0.1, momentum=0.9).step()
    for ours, theirs in zip(model.parameters(), truth.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)", README)) - {"it"}
    assert named
    assert named <= targets


def test_every_artefact_is_listed_and_no_other():
    listed = set(re.findall(r"^\| `(fig\w+|table\w+|time_to_target|claims)` \|", README, re.MULTILINE))
    assert listed == {*available("figures"), *available("tables")}


def test_paths_of_the_layout_exist():
    table = README.split("## Layout")[1].split("##")[0]
    paths = re.findall(
        r"`([\w./]+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    )
    assert len(paths) >= 8
    assert [path for path in paths if not (ROOT / path).exists()] == []
