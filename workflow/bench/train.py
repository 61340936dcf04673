"""Train the runs of one optimizer in one experiment, and publish their metrics as one CSV."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from workflow.bench.plan import MOST_THREADS, add_arguments, load_from
from workflow.bench.results.columns import EVALUATION_COLUMNS
from workflow.bench.results.rows import evaluation_rows, write_csv
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.training import launcher
from workflow.bench.training.stop_signals import EXIT_RESUMABLE, Stop


def main(arguments: list[str] | None = None) -> int:
    """Train an experiment's runs of one optimizer: those that are done are kept, those begun go on.

    Asked to stop (SIGTERM, SIGUSR1, Ctrl-C, --minutes), it saves a checkpoint and exits with code 75: the same command
    goes on.  Started as several processes, by torchrun, mpiexec or srun, these train each run together.
    """
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.train", description=main.__doc__)
    parser.add_argument("experiment", help="a file of <config>/experiments")
    parser.add_argument("label", help="an optimizer's label in it")
    parser.add_argument("--seed", type=int, nargs="+", help="train only these seeds, and publish nothing")
    parser.add_argument("--out", type=Path, help="where to publish (default: <results>/EXPERIMENT/LABEL.csv)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: the tier's)")
    parser.add_argument("--minutes", type=float, help="save and stop after so many minutes, with exit code 75")
    add_arguments(parser)
    given = parser.parse_args(arguments)
    place = launcher.Place()
    try:
        place = launcher.place()
        plan = load_from(given)
        job = plan.job(given.experiment, given.label)
        runs = [run for run in job.runs if given.seed is None or run.seed in given.seed]
        if given.threads is not None and not 1 <= given.threads <= MOST_THREADS:
            raise ConfigError(f"--threads = {given.threads}: must be from 1 to {MOST_THREADS}")
        if given.minutes is not None and not (math.isfinite(given.minutes) and given.minutes > 0):
            raise ConfigError(f"--minutes = {given.minutes}: must be greater than 0")
        for seed in given.seed or []:
            if all(run.seed != seed for run in runs):
                known = sorted({run.seed for run in job.runs})
                raise ConfigError(f"--seed = {seed}: no seed of {job.experiment}/{job.label}; known: {known}")
        launcher.prepare(place)
        stop = Stop(None if given.minutes is None else 60 * given.minutes, launched=place.size > 1)
        with stop.listening():
            # Here and not above: torch takes seconds, and a mistake should be told at once.
            from workflow.bench.training.ranks import joined
            from workflow.bench.training.runner import Runner, refuse_absent_device

            refuse_absent_device(plan)
            with joined(place, plan.tier.device) as ranks:
                runner = Runner(plan, given.threads, stop=stop, ranks=ranks)
                is_done = runner.train(runs)
                if is_done and given.seed is None and ranks.is_first:
                    file = given.out or plan.csv_of(job)
                    write_csv(file, EVALUATION_COLUMNS, evaluation_rows(plan, job))
                    print(shown_path(file))
        if not is_done and place.rank == 0:  # the job's exit code is the first rank's
            if given.minutes is not None and not runner.has_moved:
                raise ConfigError(f"--minutes = {given.minutes}: over before a step was trained; give it more")
            print("interrupted and saved; the same command goes on", file=sys.stderr)
            return EXIT_RESUMABLE
    except (ConfigError, OSError) as problem:
        if place.rank == 0 or isinstance(problem, launcher.MeetingError):  # of others the ranks say the same
            print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
