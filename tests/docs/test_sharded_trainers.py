"""What accelerate and Lightning save of FSDP2 on two ranks. Truth: the uninterrupted run, bit for bit."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.support import trainer_ranks as ranks
from tests.support.rank_processes import run_ranks


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Any]:
    """The weights at the end, uninterrupted and resumed, by trainer, method and form of the checkpoint."""
    folder = tmp_path_factory.mktemp("trainers")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run_ranks(ranks.RANKS, ranks.run, str(folder), port)
    results: dict[tuple[str, str, str], Any] = torch.load(folder / "results.pt")
    return results


@pytest.mark.parametrize("form", ranks.FORMS)
@pytest.mark.parametrize("name", ranks.METHODS)
@pytest.mark.parametrize("trainer", ["accelerate", "lightning"])
def test_a_resumed_run_is_the_uninterrupted_one(ends, trainer, name, form):
    """Sharded and full checkpoints; of dense MKOR and KAISA each rank keeps some layers alone."""
    whole, resumed = ends[trainer, name, form]
    tolerance = 1e-12 if name == "kaisa" else 0  # whose matrices come back by rows
    assert_close(resumed, whole, rtol=tolerance, atol=tolerance)
