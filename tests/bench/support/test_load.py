"""The share of the cores that other processes take."""

from __future__ import annotations

import sys

import pytest

from workflow.bench.support.load import BUSY, OtherLoad, Reading, cpu_time, is_busy, share_of_others

STAT = """cpu  400 0 100 1000 0 0 0 0 0 0
cpu0 100 10 50 300 40 5 5 90 7 0
cpu1 300 0 50 700 0 0 0 0 0 0
intr 12345
"""


def test_cpu_times_are_those_of_this_process_s_cores():
    """Truth: by hand, with 100 ticks a second. Waiting for a disk is idle; time stolen by other machines is busy."""
    assert cpu_time(STAT, [0], 100) == pytest.approx((2.6, 6.0))
    assert cpu_time(STAT, [0, 1], 100) == pytest.approx((6.1, 16.5))


@pytest.mark.parametrize(
    ("busy", "total", "own", "share"), [(3.0, 4.0, 1.0, 0.5), (1.0, 4.0, 1.2, 0.0), (0.0, 0.0, 0.0, None)]
)
def test_what_others_take_is_what_this_process_does_not(busy, total, own, share):
    assert share_of_others(Reading(7.0, 20.0, 3.0), Reading(7.0 + busy, 20.0 + total, 3.0 + own)) == share


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/stat")
def test_the_load_of_this_machine_is_a_share():
    load = OtherLoad()
    sum(range(3_000_000))
    share = load.share()
    assert share is None or 0 <= share <= 1


@pytest.mark.parametrize(("share", "busy"), [(None, False), (BUSY - 0.01, False), (BUSY, True), (1.0, True)])
def test_a_machine_is_busy_from_a_tenth_of_its_cores_on(share, busy):
    assert is_busy(share) is busy
