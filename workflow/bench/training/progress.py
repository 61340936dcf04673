"""Progress of training: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
from typing import TextIO

from tqdm import tqdm


class Progress:
    """Shows the current run and step, with loss, throughput and remaining time.

    runs: number of runs to train.
    stream: standard error by default.
    done: number of runs that other objects have shown before.
    as_log: print lines on a terminal too, as several processes cannot share its bar.
    """

    def __init__(self, runs: int, stream: TextIO | None = None, *, done: int = 0, as_log: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._on_terminal = self._stream.isatty() and not as_log
        self._runs = runs
        self._run = done
        self._title = ""
        self._bar: tqdm[None] | None = None
        self.interval_ns = 500_000_000 if self._on_terminal else 10_000_000_000
        """Shortest useful time between two calls of `show`, in nanoseconds."""

    def note(self, text: str) -> None:
        """Print a line."""
        if self._bar is not None:
            self._bar.clear()
        print(text, file=self._stream, flush=True)

    def start(self, name: str, steps: int, done: int) -> None:
        """Begin the next run, of which ``done`` of ``steps`` steps were done in earlier slices."""
        self._run += 1
        self._title = f"run {self._run} of {self._runs}: {name}"
        if self._on_terminal:
            self._bar = tqdm(total=steps, initial=done, desc=self._title, unit="step", file=self._stream, leave=False)
        elif done:
            self.note(f"{self._title}: resuming from step {done}")

    def show(self, step: int, steps: int, loss: float, steps_per_second: float) -> None:
        """Show the state of the current run; the caller limits how often."""
        if self._bar is not None:
            self._bar.n = step
            self._bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
            self._bar.refresh()
            return
        left = (steps - step) / steps_per_second if steps_per_second else float("inf")
        self.note(
            f"{self._title}: step {step} of {steps}, loss {loss:.4g}, {steps_per_second:.3g} steps/s, "
            f"{duration(left)} left"
        )

    def end(self, outcome: str) -> None:
        """End the current run with a line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self.note(f"{self._title}: {outcome}")

    def skip(self, name: str, reason: str) -> None:
        """Count a run that needs no training, and print why."""
        self._run += 1
        self.note(f"run {self._run} of {self._runs}: {name}: {reason}")


def duration(seconds: float) -> str:
    """Return seconds in words: hours and minutes, minutes and seconds, or seconds."""
    if seconds == float("inf"):
        return "unknown time"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
