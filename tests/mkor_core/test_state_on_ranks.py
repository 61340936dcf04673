"""States kept by `torch.distributed.checkpoint`. Truth: the uninterrupted run on one process, in float64, to 1e-12."""

from __future__ import annotations

from typing import Any

import pytest
from torch.testing import assert_close

from tests.support import state_ranks as ranks
from tests.support.rank_processes import results_of


@pytest.fixture(scope="module")
def legs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """All that ranks do in this file, by leg and rank: processes start once."""
    folder = str(tmp_path_factory.mktemp("legs"))
    return results_of(
        *((world, ranks.run_leg, (folder, leg)) for leg, world in enumerate(ranks.WORLDS)),
        (4, ranks.run_full_saving, (folder,)),
        *((2, ranks.run_full_loading, (folder, broadcast)) for broadcast in (False, True)),
        (2, ranks.run_plain, ()),
    )


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    return {case: ranks.train_alone(case) for case in ranks.CASES}


@pytest.mark.parametrize(("kind", "case", "flat"), ranks.RUNS)
def test_a_run_that_goes_from_1_to_2_to_4_ranks_and_back_is_the_uninterrupted_one(legs, alone, kind, case, flat):
    """Saved and loaded through get_ and set_optimizer_state_dict, nested and flattened, and nothing else."""
    last_leg = legs[len(ranks.WORLDS) - 1]
    end, truth = dict(last_leg[0][kind, case, flat]), dict(alone[case])
    assert_close(end.pop("weights"), truth.pop("weights"), rtol=1e-12, atol=1e-12)
    end.pop("hyperparameters"), truth.pop("hyperparameters")  # KAISA's depend on the number of ranks
    assert end == truth
    assert (truth["switch_step"] is not None) == (case == "follows loss")


@pytest.mark.parametrize("broadcast", [False, True])
@pytest.mark.parametrize("case", ranks.FULL_CASES)
@pytest.mark.parametrize("kind", ranks.FULL_KINDS)
def test_a_full_state_dict_has_what_other_ranks_keep(legs, alone, kind, case, broadcast):
    """Layers' owners and KAISA's workers keep different parts. On two ranks; the first reads it, or all."""
    end, truth = legs[-2 if broadcast else -3][0][kind, case], alone[case]
    assert_close(end["weights"], truth["weights"], rtol=1e-12, atol=1e-12)
    assert end["step"] == truth["step"]


def test_a_full_state_dict_that_would_lack_a_part_is_refused_in_a_line(legs):
    """Where torch gathers nothing, ranks may call it alone, so that no collective call may be made for them."""
    for refusals in legs[-4]:
        (line,) = refusals
        assert line.startswith("Other ranks keep parts of the preconditioner's state, which a full state dict lacks: ")
        assert "\n" not in line


def test_a_state_that_one_rank_saves_is_refused_by_the_others_unless_it_is_whole(legs, alone):
    """Layers have owners; the first rank keeps its own, and the others' once it has gathered them."""
    (first, _), (second, _) = legs[-1]
    assert first == []
    (line,) = second
    assert "which this rank keeps: call consolidate() on all ranks before one of them saves" in line
    for _, end in legs[-1]:
        assert_close(end["weights"], alone["window by owners"]["weights"], rtol=1e-12, atol=1e-12)
