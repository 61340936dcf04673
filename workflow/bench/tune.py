"""Tune every optimizer of an experiment with the same number of trials, on seeds and data that no result uses."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from multiprocessing.sharedctypes import Synchronized
from typing import Final

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.runs import Experiment, Run, TunedOptimizer
from workflow.bench.plan.tuned_values import current_record, read_records
from workflow.bench.results.trials import publish
from workflow.bench.support.command_line import (
    FAILURES,
    check_option,
    one_line_warnings,
    refuse_unwritable,
    run_command,
    whole,
)
from workflow.bench.support.config import ConfigError, did_you_mean, shown_path
from workflow.bench.training import launcher
from workflow.bench.training.record import RunFolder, is_done
from workflow.bench.training.stop_signals import EXIT_RESUMABLE, Stop

MAX_JOBS: Final = 1024
"""The most processes that `main` starts."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune the optimizers of experiments that have a 'tuning', and write config/tuned/<tier>/<experiment>.yaml.

    Finished trials are skipped. When asked to stop, it saves checkpoints, writes what is complete, and exits with code
    75; the same command resumes it. On another machine --missing goes on with the optimizers that are not complete.
    """
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.tune", description=main.__doc__)
    parser.add_argument("experiment", nargs="*", help="names of files in <config>/experiments (default: all to tune)")
    parser.add_argument("--label", nargs="+", help="tune only these labels; the others keep their values")
    parser.add_argument(
        "--missing", action="store_true", help="skip optimizers whose values in config/tuned are of today's trials"
    )
    parser.add_argument(
        "--jobs", type=whole, help="number of processes (default: as many as this machine has room for)"
    )
    add_arguments(parser)
    return run_command(parser, _tune, arguments)


def _tune(options: argparse.Namespace) -> int | None:
    plan = load_from(options, for_tuning=True)
    experiments = _chosen(plan, options.experiment)
    labels = _labels(experiments, options.label)
    jobs = plan.runs_at_a_time if options.jobs is None else options.jobs
    check_option("--jobs", jobs, 1, MAX_JOBS)
    folder = options.config_dir / "tuned" / plan.tier.name
    for experiment in experiments:
        refuse_unwritable("file of tuned values", folder / f"{experiment.name}.yaml")
    for experiment in experiments:
        known = read_records(folder / f"{experiment.name}.yaml") if options.missing else []
        optimizers = [
            optimizer
            for optimizer in experiment.tuned_optimizers
            if optimizer.label in labels and current_record(known, optimizer) is None
        ]
        trials = list(dict.fromkeys(trial.run for optimizer in optimizers for trial in optimizer.trials))
        print(_announced(plan, experiment, optimizers, trials, jobs), flush=True)
        all_ended = _train(plan, trials, jobs)
        for remark in publish(plan, experiment, folder):
            print(remark)
        print(shown_path(folder / f"{experiment.name}.yaml"), flush=True)
        if not all_ended:
            print("interrupted and saved; the same command resumes it", file=sys.stderr)
            return EXIT_RESUMABLE
    return None


def _announced(
    plan: Plan, experiment: Experiment, optimizers: Sequence[TunedOptimizer], trials: Sequence[Run], jobs: int
) -> str:
    """Return what is about to be trained, and how much of it is done."""
    if not optimizers:
        return f"{experiment.name} at tier {plan.tier.name}: nothing to tune"
    done = sum(is_done(RunFolder.of(plan.results, run.id), run, needs_weights=False) for run in trials)
    studies = sorted({len(optimizer.studies) for optimizer in optimizers})
    processes = "1 process" if jobs == 1 else f"{jobs} processes"
    tuned = "1 optimizer" if len(optimizers) == 1 else f"{len(optimizers)} optimizers"
    return (
        f"{experiment.name} at tier {plan.tier.name}: {len(trials)} trials of {tuned} in "
        f"{' or '.join(map(str, studies))} {'study' if studies == [1] else 'studies'}, {done} done; {processes}"
    )


def _chosen(plan: Plan, names: Sequence[str]) -> list[Experiment]:
    """Return the named experiments, by default all that have a tuning."""
    if not names:
        return [experiment for experiment in plan.experiments.values() if experiment.tuned_optimizers]
    for name in names:
        if not plan.experiment(name).tuned_optimizers:
            raise ConfigError(f"experiment = '{name}': has no 'tuning' with a 'space' at this tier")
    return [plan.experiment(name) for name in names]


def _labels(experiments: Sequence[Experiment], names: Sequence[str] | None) -> set[str]:
    """Return the labels to tune, by default all."""
    known = {optimizer.label for experiment in experiments for optimizer in experiment.tuned_optimizers}
    for name in names or ():
        if name not in known:
            raise ConfigError(f"--label = '{name}': no label to tune in these experiments; {did_you_mean(name, known)}")
    return set(names or known)


def _train(plan: Plan, trials: Sequence[Run], jobs: int) -> bool:
    """Train the trials that are not done, in ``jobs`` processes; return whether all have ended."""
    if jobs == 1 or len(trials) <= 1:
        # Imported here because torch takes seconds to import, and mistakes in the options should be reported at once.
        launcher.prepare(launcher.LaunchedRank(), deterministic=plan.tier.deterministic)
        from workflow.bench.training.runner import Runner

        return Runner(plan).train(trials)
    context = multiprocessing.get_context("spawn")
    following = context.Value("i", 0)
    workers = [context.Process(target=_work, args=(plan, trials, following)) for _ in range(min(jobs, len(trials)))]

    def end() -> None:
        for worker in workers:
            if worker.pid is not None:
                worker.terminate()  # it saves its work

    with Stop(launched=True, then=end).listening() as stop:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if stop.asked:
        return False
    for code in {worker.exitcode for worker in workers} - {0}:
        raise ConfigError(f"a process that trains trials ended with exit code {code}; the same command resumes it")
    return True


def _work(plan: Plan, trials: Sequence[Run], following: Synchronized[int]) -> None:
    """Train the next trial until none is left; the main function of a process, which exits like the command."""
    stop, parent = Stop(), multiprocessing.parent_process()
    with stop.listening(), one_line_warnings():
        launcher.prepare(launcher.LaunchedRank(), deterministic=plan.tier.deterministic)
        from workflow.bench.training.progress import Progress
        from workflow.bench.training.runner import Runner

        try:
            runner = Runner(plan, stop=stop)
            while not stop() and (parent is None or parent.is_alive()):
                with following.get_lock():
                    number, following.value = following.value, following.value + 1
                if number >= len(trials):
                    return
                runner.train([trials[number]], Progress(len(trials), done=number, as_log=True))
        except FAILURES as problem:
            print(problem, file=sys.stderr)
            sys.exit(1)
    sys.exit(EXIT_RESUMABLE)


if __name__ == "__main__":
    sys.exit(main())
