"""What a download shows: a bar on a terminal, lines in a log."""

from __future__ import annotations

import io
import sys

import pytest

from workflow.bench.downloads import meter
from workflow.bench.downloads.meter import Meter, in_words


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (84_125_825, "84.1 MB"), (147_897_477_120, "147.9 GB")],
)
def test_bytes_in_words(number, text):
    assert in_words(number) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("total", [4_000_000, None])
def test_a_log_gets_a_line_every_ten_seconds(monkeypatch, capsys, total):
    now = [0.0]
    monkeypatch.setattr(meter.time, "monotonic", lambda: now[0])
    with Meter("a.zip", 0, total) as shown:
        for second in range(25):
            now[0] = float(second)
            shown.add(100_000)
    of = " of 4.0 MB" if total else ""
    assert capsys.readouterr().err == f"a.zip: 1.1 MB{of}\na.zip: 2.1 MB{of}\n"


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Meter("a.zip", 1_000_000, 4_000_000) as shown:
        shown.add(3_000_000)
    last = sys.stderr.getvalue().split("\r")[-1]
    assert last.startswith("a.zip: 100%")
    assert "4.00M/4.00M" in last
