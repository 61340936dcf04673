"""The base class's defaults. Truth: rows averaged and joined by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.testing import assert_close

from baselines import HyLo
from mkor_core.capture import ROWS, Rows, Statistic
from mkor_core.method import LayerShape


def test_the_rows_of_all_calls_are_joined_with_a_convolutions_averaged_over_its_locations():
    generator = torch.Generator().manual_seed(0)
    x, g = torch.randn(6, 4, generator=generator), torch.randn(6, 2, generator=generator)
    joined = HyLo().condense([Rows(x, g, 3), Rows(x, g, 1)], step=0)
    for rows, original in ((joined.x, x), (joined.g, g)):
        averaged = torch.stack([original[:3].mean(0), original[3:].mean(0)])
        assert_close(rows, torch.cat([averaged, original]))
    assert joined.number == 8


@dataclass(frozen=True, kw_only=True)
class Undecided(HyLo):
    """A method on rows that neither gathers them nor gives the shapes of sums."""

    gathers_rows = False

    @property
    def statistic(self) -> Statistic:
        return ROWS


def test_a_method_on_rows_must_choose_what_ranks_exchange():
    with pytest.raises(NotImplementedError, match="Undecided reduces rows: set gathers_rows = True, or define"):
        Undecided().sum_shapes(LayerShape(2, 3))
