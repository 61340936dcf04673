"""What accelerate and Lightning save of FSDP2 on two ranks. Truth: the uninterrupted run, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.support import trainer_ranks as ranks
from tests.support.rank_processes import run_ranks
from tests.support.train_ranks import free_port


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Any]:
    """The weights at the end, uninterrupted and resumed, by trainer, method and form of the checkpoint."""
    folder = tmp_path_factory.mktemp("trainers")
    run_ranks(ranks.RANKS, ranks.run, str(folder), free_port())
    results: dict[tuple[str, str, str], Any] = torch.load(folder / "results.pt")
    return results


@pytest.mark.parametrize("form", ranks.FORMS)
@pytest.mark.parametrize("name", ranks.METHODS)
@pytest.mark.parametrize("trainer", ["accelerate", "lightning"])
def test_a_resumed_run_is_the_uninterrupted_one(ends, trainer, name, form):
    """Sharded and full checkpoints; of dense MKOR and KAISA each rank keeps some layers alone."""
    whole, resumed = ends[trainer, name, form]
    assert_close(resumed, whole, rtol=0, atol=0)
