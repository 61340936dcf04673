"""Train the runs of optimizers in one experiment, and publish the metrics of each optimizer as one CSV."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from workflow.bench.plan import MAX_THREADS, Plan, add_arguments, load_from
from workflow.bench.plan.runs import Job
from workflow.bench.results.columns import EVALUATION_COLUMNS
from workflow.bench.results.rows import evaluation_rows, write_csv
from workflow.bench.support.command_line import check_option, real, refuse_unwritable, run_command, whole
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.cost_line import exit_with_cost
from workflow.bench.training import launcher
from workflow.bench.training.stop_signals import EXIT_RESUMABLE, Stop, leave_mark

MAX_MINUTES: Final = 525600


def main(arguments: Sequence[str] | None = None) -> int:
    """Train an experiment's runs of one or several optimizers. Finished runs are skipped, interrupted ones resumed.

    On SIGTERM, SIGUSR1, Ctrl-C or after --minutes, it saves a checkpoint and exits with code 75; the same command
    resumes the training. Processes started together by torchrun, mpiexec or srun share the batches of each run.
    """
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.train", description=main.__doc__)
    parser.add_argument("experiment", help="name of a file in <config>/experiments")
    parser.add_argument("label", nargs="+", help="label of an optimizer in that file")
    parser.add_argument("--seed", type=whole, nargs="+", help="train only these seeds and publish no CSV")
    parser.add_argument("--out", type=Path, help="CSV to publish (default: <results>/EXPERIMENT/LABEL.csv)")
    parser.add_argument("--threads", type=whole, help="CPU threads (default: the tier's)")
    parser.add_argument("--minutes", type=real, help="save and exit with code 75 after so many minutes")
    add_arguments(parser)
    return run_command(parser, _work, arguments)


def _work(options: argparse.Namespace) -> int | None:
    place = launcher.launched_rank()
    try:
        plan = load_from(options)
        jobs = [plan.job(options.experiment, label) for label in dict.fromkeys(options.label)]
        _check_options(options, jobs)
        if options.seed is None:
            for job in jobs:
                refuse_unwritable("--out" if options.out else "results", options.out or plan.csv_of(job))
        return _train(plan, jobs, options, place)
    except (ConfigError, OSError) as problem:
        # All ranks fail alike, so the first one's message is enough; but rank 0 may be the one that is missing.
        if place.rank == 0 or isinstance(problem, launcher.MeetingError):
            raise
        return 1


def _check_options(options: argparse.Namespace, jobs: Sequence[Job]) -> None:
    """Raise `ConfigError` on the first option that is out of range."""
    if options.out and len(jobs) > 1:
        raise ConfigError("--out: takes the CSV of one label; leave it out, or train one label at a time")
    if options.threads is not None:
        check_option("--threads", options.threads, 1, MAX_THREADS)
    if options.minutes is not None and not (math.isfinite(options.minutes) and options.minutes > 0):
        raise ConfigError(f"--minutes = {options.minutes}: must be greater than 0")
    if options.minutes is not None and options.minutes > MAX_MINUTES:
        raise ConfigError(f"--minutes = {options.minutes}: must be at most {MAX_MINUTES}, a year")
    for job in jobs:
        seeds = sorted({run.seed for run in job.runs})
        for seed in options.seed or []:
            if seed not in seeds:
                raise ConfigError(f"--seed = {seed}: no seed of {job.experiment}/{job.label}; known: {seeds}")


def _train(plan: Plan, jobs: Sequence[Job], options: argparse.Namespace, place: launcher.LaunchedRank) -> int | None:
    """Train the chosen runs and publish each job's CSV; return the exit status."""
    launcher.prepare(place, deterministic=plan.tier.deterministic)
    stop = Stop(None if options.minutes is None else 60 * options.minutes, launched=place.size > 1)
    with stop.listening():
        # Imported here because torch takes seconds to import, and mistakes in the options should be reported at once.
        from workflow.bench.training.ranks import joined
        from workflow.bench.training.runner import Runner, refuse_absent_device

        refuse_absent_device(plan)
        with joined(place, plan.tier.device) as ranks:
            runner = Runner(plan, options.threads, stop=stop, ranks=ranks)
            chosen = [run for job in jobs for run in job.runs if options.seed is None or run.seed in options.seed]
            all_done = runner.train(chosen)
            if all_done and options.seed is None and ranks.is_first:
                for job in jobs:
                    file = options.out or plan.csv_of(job)
                    write_csv(file, EVALUATION_COLUMNS, evaluation_rows(plan, job))
                    print(shown_path(file))
    if all_done or place.rank != 0:  # the exit status of the first rank is the job's
        return None
    if options.minutes is not None and not runner.has_moved:
        raise ConfigError(f"--minutes = {options.minutes}: over before a step was trained; give it more")
    leave_mark()
    print("interrupted and saved; the same command resumes it", file=sys.stderr)
    return EXIT_RESUMABLE


if __name__ == "__main__":
    exit_with_cost(main(), worked=(0, EXIT_RESUMABLE))
