"""States kept by `torch.distributed.checkpoint`. Truth: the uninterrupted run on one process, in float64, to 1e-12."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.support import state_ranks as ranks
from tests.support.rank_processes import run_ranks


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, bool], dict[str, Any]]:
    """How every run ends, after legs on different numbers of ranks."""
    folder = tmp_path_factory.mktemp("legs")
    for leg, world in enumerate(ranks.WORLDS):
        run_ranks(world, ranks.run_leg, str(folder), leg)
    results: dict[tuple[str, str, bool], dict[str, Any]] = torch.load(folder / "ends.pt")
    return results


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    return {case: ranks.train_alone(case) for case in ranks.CASES}


@pytest.mark.parametrize(("kind", "case", "flat"), ranks.RUNS)
def test_a_run_that_goes_from_1_to_2_to_4_ranks_and_back_is_the_uninterrupted_one(ends, alone, kind, case, flat):
    """Saved and loaded through get_ and set_optimizer_state_dict, nested and flattened, and nothing else."""
    end, truth = dict(ends[kind, case, flat]), dict(alone[case])
    assert_close(end.pop("weights"), truth.pop("weights"), rtol=1e-12, atol=1e-12)
    end.pop("hyperparameters"), truth.pop("hyperparameters")  # KAISA's depend on the number of ranks
    assert end == truth
    assert (truth["switch_step"] is not None) == (case == "follows loss")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How runs on two ranks end that resume a full state dict of four, by who reads it; and what was refused."""
    folder = tmp_path_factory.mktemp("full")
    run_ranks(4, ranks.run_full_saving, str(folder))
    results: dict[str, Any] = {"refusals": torch.load(folder / "refusals.pt")}
    for broadcast in (False, True):
        (folder / str(broadcast)).mkdir()
        run_ranks(2, partial(ranks.run_full_loading, broadcast=broadcast), str(folder))
        results[f"broadcast={broadcast}"] = torch.load(folder / str(broadcast) / "ends.pt")
    return results


@pytest.mark.parametrize("reader", ["broadcast=False", "broadcast=True"])
@pytest.mark.parametrize("case", ranks.FULL_CASES)
@pytest.mark.parametrize("kind", ranks.FULL_KINDS)
def test_a_full_state_dict_has_what_other_ranks_keep(full, alone, kind, case, reader):
    """Layers' owners and KAISA's workers keep different parts."""
    end, truth = full[reader][kind, case], alone[case]
    assert_close(end["weights"], truth["weights"], rtol=1e-12, atol=1e-12)
    assert end["step"] == truth["step"]


def test_a_full_state_dict_that_would_lack_a_part_is_refused_in_a_line(full):
    """Where torch gathers nothing, ranks may call it alone, so that no collective call may be made for them."""
    for refusals in full["refusals"]:
        (line,) = refusals
        assert line.startswith("Other ranks keep parts of the preconditioner's state, which a full state dict lacks: ")
        assert "\n" not in line


def test_a_state_that_one_rank_saves_is_refused_by_the_others_unless_it_is_whole(alone, tmp_path):
    """Layers have owners; the first rank keeps its own, and the others' once it has gathered them."""
    run_ranks(2, ranks.run_plain, str(tmp_path))
    results = torch.load(tmp_path / "results.pt")
    first, second = (result["messages"] for result in results)
    assert first == []
    (line,) = second
    assert "which this rank keeps: call consolidate() on all ranks before one of them saves" in line
    for result in results:
        assert_close(result["end"]["weights"], alone["window by owners"]["weights"], rtol=1e-12, atol=1e-12)
