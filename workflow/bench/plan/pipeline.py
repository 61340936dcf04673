"""Run Snakemake for a plan from a command of the bench."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from workflow.bench.plan.plan import Plan
from workflow.bench.support.config import CONFIG, ROOT


def run_pipeline(plan: Plan, options: argparse.Namespace, targets: Sequence[str]) -> int:
    """Run Snakemake for a plan, and return its exit status.

    options: those of `add_arguments`, with ``cores`` for Snakemake's option of that name.
    targets: the names of rules or files, and further options of Snakemake; none for everything.
    """
    # Only what differs from the defaults: another command line would be another reason to make files anew.
    settings = {"tier": plan.tier.name, "results": options.results, "hardware": options.hardware}
    if options.config_dir != CONFIG:
        settings["config_dir"] = options.config_dir
    command = [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", options.cores),
        *targets,
        *("--config", *(f"{key}={value}" for key, value in settings.items() if value is not None)),
        *("--logger", "progress"),
    ]
    # Snakemake imports the bench and the logger from here, whatever folder the user is in.
    paths = os.pathsep.join([str(ROOT), str(ROOT / "workflow" / "plugins")])
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}) as pipeline, forwarding(pipeline):
        return abs(pipeline.wait())


@contextmanager
def forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave a request to stop to a process, which saves its work: Ctrl-C reaches it anyway, SIGTERM is passed on."""

    def forward(number: int, _: FrameType | None) -> None:
        if number == signal.SIGTERM:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
