"""What an optimizer trains, and how a script is run on it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SCRIPT = "<reproducer>"
PROCESS_LIMIT = 240
"""Seconds after which a script that starts processes is stopped."""

End = tuple[Literal["held", "false", "raised"], str]
"""How a script ended: with nothing, a false assertion or another error; and the message."""


@dataclass(frozen=True)
class Task:
    """What an optimizer trains: a model, a batch that a step's number draws, and the loss, as texts of Python."""

    name: str
    model: str
    batch: str
    loss: str


DENSE_BATCH = "torch.randn(16, 6, generator=torch.manual_seed(step), dtype=next(model.parameters()).dtype)"
DENSE_LOSS = "(model(x) - x[:, :4]).square().mean()"
TASKS = (
    Task(
        "two linear layers",
        "torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))",
        DENSE_BATCH,
        DENSE_LOSS,
    ),
    Task(
        "two matrices",
        "torch.nn.Sequential(torch.nn.Linear(6, 8, False), torch.nn.Tanh(), torch.nn.Linear(8, 4, False))",
        DENSE_BATCH,
        DENSE_LOSS,
    ),
    Task(
        "an embedding with sparse gradients",
        "torch.nn.Embedding(6, 4, sparse=True)",
        "torch.randint(6, (16,), generator=torch.manual_seed(step))",
        "(model(x) - 1).square().mean()",
    ),
)
"""Tried in this order: the first that the optimizer takes is used."""
CONVOLUTION = Task(
    "a convolution",
    "torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.Flatten(), torch.nn.Linear(12, 4))",
    DENSE_BATCH,
    "(model(x.repeat(1, 4).view(-1, 1, 4, 6)[..., :4]) - x[:, :4]).square().mean()",
)
NORM = Task(
    "a layer norm",
    "torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4))",
    DENSE_BATCH,
    DENSE_LOSS,
)


def here(script: str) -> End:
    """Execute a script in this process."""
    try:
        exec(compile(script, SCRIPT, "exec"), {"__name__": "__main__"})
    except AssertionError as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        # torch's own functions raise AssertionErrors, too.
        own = trace is not None and trace.tb_frame.f_code.co_filename == SCRIPT
        return ("false" if own else "raised"), one_line(error)
    except SystemExit:
        return "held", ""
    except Exception as error:  # noqa: BLE001  (what the optimizer raises is what is asked)
        return "raised", f"{type(error).__name__}: {one_line(error)}"
    return "held", ""


def in_process(script: str) -> End:
    """Execute a script in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "reproducer.py")
        path.write_text(script)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-W", "ignore", str(path)]
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=PROCESS_LIMIT, env=environment, check=False
            )
        except subprocess.TimeoutExpired:
            return "raised", f"no end within {PROCESS_LIMIT} s"
    if run.returncode == 0:
        return "held", ""
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith((" ", "W", "E", "[")) and "Error" in line.partition(":")[0]]
    last = said[-1] if said else (lines or ["no message"])[-1]
    trace = "".join(lines[-6:])
    if last.startswith("AssertionError: ") and "reproducer.py" in trace:
        return "false", last.removeprefix("AssertionError: ")
    return "raised", last


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message without colors of a terminal, or its name."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300]
