"""What the Triton kernels launch and move at BERT-Large, from the launched grids; counting needs no Triton."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from baselines import KAISA, Eva
from benchmarks import host_time, kernels
from benchmarks.kernels import METHODS, bytes_of, launches, timed
from mkor_core import MKOR, MKORH, Preconditioner
from mkor_core.engines.in_kernels import form_of
from mkor_core.kernels.fused import FusedAdamW
from mkor_core.method import RankOne, Windowed
from workflow.bench.support.config import ROOT


@pytest.mark.parametrize(("label", "most_kernels", "most_gb"), [("mkor_w4", 12, 4.0), ("eva", 4, 3.8)])
def test_a_plain_step_stays_below_its_ceilings(label: str, most_kernels: int, most_gb: float):
    """The floor of window 4 is 3.7 GB: D read twice and written once."""
    found = launches(METHODS[label])
    assert 0 < len(found) <= most_kernels
    assert 3.6 < sum(map(bytes_of, found)) / 1e9 <= most_gb


def test_a_step_of_adamw_with_windows_reads_the_gradient_once_more():
    added = {step.path: step.gigabytes for step in kernels.counted(["mkor_w4"])}
    assert 1.2 < added["mkor_w4 in AdamW, beyond AdamW's own"] <= 1.7


def test_every_group_is_launched_at_once_whatever_the_shapes():
    """The same launches for 146 layers of three shapes and for one layer."""
    model = torch.nn.Linear(8, 8, device="meta")
    found = []
    with kernels.grouped.recorded(found.append):
        optimizer = FusedAdamW(model.parameters(), lr=1e-3)
        Preconditioner(model, MKOR(window=4), kernels="triton").attach(optimizer)
        model(torch.empty(4, 8, device="meta")).sum().backward()
        optimizer.step()
    assert [launch.kernel for launch in found] == [launch.kernel for launch in launches(METHODS["mkor_w4"], FusedAdamW)]


def test_what_has_no_kernels_is_refused_in_one_line():
    model = torch.nn.Linear(8, 8)
    with kernels.grouped.recorded(lambda launch: None), pytest.raises(ValueError, match="there are none for this MKOR"):
        Preconditioner(model, MKOR(), kernels="triton")
    with pytest.raises(ValueError, match="kernels='fast' must be one of"):
        Preconditioner(model, MKOR(window=4), kernels="fast")


def test_a_subclass_with_another_update_has_no_kernels():
    class Longer(MKOR):
        def apply(self, state, grad, known):
            super().apply(state, grad, known)
            grad.multiply_(torch.tensor(2.0))

    assert form_of(MKORH(window=4)) == form_of(MKOR(window=4)) == Windowed(rescale=True)
    assert form_of(Eva(damping=0.5)) == RankOne(0.5)
    assert form_of(MKOR()) is form_of(Longer(window=4)) is form_of(KAISA()) is None


def test_times_are_taken_in_turns(monkeypatch: pytest.MonkeyPatch):
    """The device is a stand-in, on which a path's step takes as many milliseconds as its place says."""
    paths = kernels._timed_paths()
    places = iter(range(1, 1 + len(paths)))
    turns: list[int] = []
    monkeypatch.setattr(kernels, "_stepper", lambda device, *path: next(places))

    def elapsed(place: int, device: torch.device) -> float:
        turns.append(place)
        return float(place)

    monkeypatch.setattr(kernels, "elapsed_ms", elapsed)
    found = list(timed(torch.device("cpu"), rounds=3))
    rounds = [turns[start : start + len(paths)] for start in range(0, len(turns), len(paths))]
    assert [sorted(each) for each in rounds] == [[*range(1, 1 + len(paths))]] * 4
    assert [time.ms for time in found] == [*range(1, 1 + len(paths))]
    assert found[2].of_adamw == 3.0


def test_the_reference_has_no_kernel_that_spills():
    """Made by ``python -m benchmarks.kernels --check``, as `make test-kernels` checks it."""
    table = pd.read_csv(ROOT / "results/reference/kernels.csv")
    compiled = table.dropna(subset="arch")
    assert set(compiled.arch) == {"sm_80", "sm_90"}
    assert {name.split()[0] for name in compiled.kernel} == {
        *("project", "reduce", "windowed", "finish", "measure", "correct", "rank_one", "step")
    }
    assert (compiled.spill_bytes == 0).all()
    assert (compiled.registers <= kernels.MOST_REGISTERS).all()


def test_gradients_that_lie_elsewhere_in_the_next_step_are_pointed_to():
    """Only their addresses are sent again; those of the states stay."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    tables: list[torch.Tensor] = []
    with kernels.grouped.recorded(lambda launch: tables.append(launch.arguments[0].clone())):
        preconditioner = Preconditioner(model, MKOR(window=4, inverse_update_period=10), kernels="triton")
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = None
            kept = torch.empty(64)  # takes the memory of a gradient that was freed
            model(torch.ones(4, 8)).sum().backward()
            preconditioner.step()
            own = [[layer.weight.grad.data_ptr(), layer.bias.grad.data_ptr()] for layer in model]
            assert tables[-1][:, :2].tolist() == own
            del kept
    assert torch.equal(tables[0][:, 2:], tables[-1][:, 2:])


def test_the_hosts_time_is_measured_beside_a_model_without_a_preconditioner(capsys: pytest.CaptureFixture[str]):
    assert host_time.main(["--rounds", "10"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("the model's own forward and backward pass: ")
    assert [line.split()[:2] for line in others] == [["none", "again"], ["mkor_w4", "hooks"], ["eva", "hooks"]]
    assert host_time.main(["--rounds", "1"]) == 1
