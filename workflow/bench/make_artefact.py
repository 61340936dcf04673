"""``python -m workflow.bench.make_artefact NAME --results R``: make one figure or table from the tidy CSV files."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import pandas as pd

from workflow.bench.analysis.estimates import looks
from workflow.bench.plan.artefacts import Kind, available, describe
from workflow.bench.plan.rounds import read_rounds
from workflow.bench.plan.tiers import MOST_LOOKS, read_tiers
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.support.command_line import FAILURES, check_option, run_command, whole
from workflow.bench.support.config import CONFIG, ConfigError, did_you_mean, shown_value
from workflow.bench.support.cost_line import exit_with_cost


def make(kind: Kind, name: str, results: Results, folder: Path) -> list[Path]:
    """Make one artefact in ``folder`` and return its files.

    Its intervals are those of the results' number of looks. If every run of a figure's experiments was skipped because
    its data set is absent, the figure says so.

    Raises:
        NoDataError: there is no data to make the artefact from.
        OSError: a file cannot be written.
    """
    module = import_module(f"workflow.bench.{kind}.{name}")
    try:
        # Each look at growing results has its part of the 5 % by which an interval may err.
        with looks(results.looks):
            files: list[Path] = module.make(results, folder)
    except NoDataError:
        runs = results.skipped(describe(kind, name).experiments) if kind == "figures" else None
        if runs is None:
            raise
        files = _draw_skipped(results, folder, name, runs)
    return files


def _draw_skipped(results: Results, folder: Path, name: str, runs: pd.DataFrame) -> list[Path]:
    """Draw a figure without data; its caption names the skipped ``runs`` and the reason."""
    # Matplotlib takes a second to import, which tables do not need.
    from workflow.bench.figures import _page as page
    from workflow.bench.figures._panels import explain_empty

    figure, axes = page.new_figure(1, 1, height=0.6)
    axes[0, 0].set_axis_off()
    explain_empty(axes[0, 0], "every run was skipped")
    caption, reasons = page.caption(results, runs, summarized=False), runs["reason"].dropna()
    reading = f"{reasons.iloc[0]}." if len(reasons) else ""
    return page.save(figure, folder, name, legend=[], caption=caption, reading=reading)


def _results(options: argparse.Namespace) -> Results:
    """Return the results of a command line; what it does not say of their tier is as in the project's configuration.

    Raises:
        ConfigError: an option is out of range, or a file of the configuration or the folder's rounds are damaged.
    """
    look, most, title = options.look, options.looks, options.tier_title
    # The pipeline gives all three, by a configuration that may be another one.
    is_whole = None not in (look, most, title)
    tier = None if is_whole else read_tiers(CONFIG / "tiers").get(options.results.resolve().name)
    if tier is not None:
        look = read_rounds(options.results, tier).look if look is None else look
        most = tier.looks if most is None else most
        title = title or tier.title
    look, most = (1 if given is None else given for given in (look, most))
    check_option("--looks", most, 1, MOST_LOOKS)
    check_option("--look", look, 1, most)
    compared, trials = tuple(options.compare), tuple(options.trials)
    return Results(options.results, title, compared, look=look, looks=most, trial_tables=trials)


def main(arguments: list[str] | None = None) -> int:
    """Make one figure or table from the CSV files of one machine and tier."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.make_artefact", description=main.__doc__)
    parser.add_argument("name", metavar="NAME", help="a file of workflow/bench/figures or .../tables, without .py")
    parser.add_argument("--results", type=Path, required=True, help="folder results/<hardware>/<tier>")
    parser.add_argument("--out-dir", type=Path, help="folder to write to (default: <results>/figures or .../tables)")
    parser.add_argument("--tier-title", help="name of the tier in captions (default: as in config/tiers)")
    parser.add_argument("--look", type=whole, help="number of this look at the results (default: as in rounds.yaml)")
    parser.add_argument("--looks", type=whole, help="the most looks of the tier (default: as in config/tiers)")
    parser.add_argument(
        "--compare",
        type=Path,
        nargs="*",
        default=[],
        metavar="FOLDER",
        help="folders <hardware>/<tier> of other machines, for artefacts that compare hardware",
    )
    parser.add_argument(
        "--trials", type=Path, nargs="*", default=[], metavar="FILE", help="config/tuned/<tier>/<experiment>.trials.csv"
    )

    def work(options: argparse.Namespace) -> None:
        kinds: dict[str, Kind] = {name: kind for kind in ("figures", "tables") for name in available(kind)}
        if options.name not in kinds:
            near = did_you_mean(options.name, kinds)
            raise ConfigError(f"name = {shown_value(options.name)}: unknown artefact; {near}")
        kind = kinds[options.name]
        results = _results(options)
        try:
            files = make(kind, options.name, results, options.out_dir or options.results / kind)
        except (NoDataError, OSError) as problem:
            raise NoDataError(f"{options.name}: {problem}") from problem
        print(*files, sep="\n")

    return run_command(parser, work, arguments, failures=(*FAILURES, NoDataError))


if __name__ == "__main__":
    exit_with_cost(main())
