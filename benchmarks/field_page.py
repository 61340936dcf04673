"""Fill docs/field.md with what `make field` found: leaders, a text for each label, missed targets, and luck.

``python -m benchmarks.field_page results/<hardware>/field`` reads field_results.csv and field_costs.csv in the folder's
tables. The page has a place for each label, between ``<!-- label -->`` and ``<!-- end of label -->``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.field import NO_CLOCK
from workflow.bench.results.rows import read_csv
from workflow.bench.site.leaders import leaders
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ROOT, ConfigError
from workflow.bench.support.pages import fill

PAGE: Final = ROOT / "docs" / "field.md"
NAMES: Final = {
    "field_autoencoder": "autoencoder",
    "field_autoencoder_lamb": "autoencoder over LAMB",
    "field_alexnet": "AlexNet",
    "field_language_model": "language model",
    "krona": "Kronecker adapters",
    "kronecker_rnn": "Kronecker RNN",
}
SHOWN: Final = "field_language_model"
"""The experiment whose costs are shown; of a label that it lacks, those of its first one."""
LEADERS: Final = 4
COSTS: Final = {
    "state / parameters": "{} times the parameters in state",
    "work (Mflop)": "{} Mflop",
    "kernels": "{} kernels",
    "sent (kB)": "{} kB sent",
    "ms a step": "{} ms",
}


def text(results: pd.DataFrame, costs: pd.DataFrame, label: str) -> str:
    """Return a label's text: steps and time over those of its base, what a step costs, and whether it earned it."""
    rows = results[results["optimizer"] == label]
    if rows.empty:
        return "Not run yet."
    own = _records(rows[rows["base"] != label])
    parts = ["It is the base of others."] if len(own) < len(rows) else []
    for quantity in ("steps", "time"):
        cells = [f"{NAMES[row['experiment']]} {_shown(row, quantity)}" for row in own if _known(row, quantity)]
        if cells:
            parts.append(f"{quantity.capitalize()} over its base's: {', '.join(cells)}.")
    parts += [*_cost(_records(costs[costs["optimizer"] == label])), *_earned(own, label)]
    return " ".join(parts)


def lead(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table of the leaders of each experiment, and MKOR's places among all."""
    yield "| workload | base | fewest iterations, over the base's | least time, over the base's | MKOR's place |"
    yield "|---|---|---|---|---|"
    steps, time = (leaders(rows, quantity, most=len(rows)) for quantity in ("steps", "time"))
    for experiment, base in steps:
        ranked = steps[experiment, base], time.get((experiment, base), ())
        shown = (
            [f"`{one.optimizer}` {one.iterations}" for one in ranked[0][:LEADERS]],
            [f"`{one.optimizer}` {one.time}" for one in ranked[1][:LEADERS]],
        )
        places = (
            f"{1 + [one.optimizer for one in order].index('mkor')} of {len(order)}"
            for order in ranked
            if any(one.optimizer == "mkor" for one in order)
        )
        yield f"| {NAMES[experiment]} | `{base}` | {' | '.join(', '.join(cell) for cell in (*shown, places))} |"


def luck(results: pd.DataFrame) -> Iterator[str]:
    """Yield the lines of a Markdown table of labels over the labels of the same rule (`field.CONTROLS`)."""
    controlled = results[results["control"].notna()]
    if controlled.empty:
        yield "Not run yet."
        return
    yield "| workload | label | its control | iterations over the control's |"
    yield "|---|---|---|---|"
    for row in _records(controlled):
        low, high = (row[f"steps / control, {end}"] for end in ("low", "high"))
        said = "" if pd.isna(low) else " contains 1" if low <= 1 <= high else " excludes 1"
        ratio = f"{_shown(row, 'steps', 'control')}{said}"
        yield f"| {NAMES[row['experiment']]} | `{row['optimizer']}` | `{row['control']}` | {ratio} |"


def missed(results: pd.DataFrame) -> Iterator[str]:
    """Yield the lines of a Markdown table of the labels whose runs did not all reach their target."""
    yield "| workload | label | target | runs that reached it |"
    yield "|---|---|---|---|"
    for row in _records(results[results["reached"] < results["runs"]]):
        where, reached = NAMES[row["experiment"]], f"{row['reached']} of {row['runs']}"
        yield f"| {where} | `{row['optimizer']}` | {row['target']} | {reached} |"


def _records(rows: pd.DataFrame) -> list[dict[Any, Any]]:
    return rows.to_dict("records")


def _known(row: dict[Any, Any], quantity: str) -> bool:
    return not pd.isna(row[f"{quantity} / base"])


def _shown(row: dict[Any, Any], quantity: str, below: str = "base") -> str:
    name = f"{quantity} / {below}"
    value, low, high = (f"{float(row[key]):.2f}" for key in (name, f"{name}, low", f"{name}, high"))
    return f"{value} [{low}, {high}]" if low != "nan" else value


def _cost(rows: list[dict[Any, Any]]) -> Iterator[str]:
    """Yield a sentence on the costs of a label's step, if they were counted."""
    if rows:
        row = next((row for row in rows if row["experiment"] == SHOWN), rows[0])
        phrases = [form.format(f"{row[key]:g}") for key, form in COSTS.items() if not pd.isna(row[key])]
        yield f"A step on the {NAMES[row['experiment']]}: {', '.join(phrases)}."


def _earned(rows: list[dict[Any, Any]], label: str) -> Iterator[str]:
    """Yield whether a label saved steps and time; a workload counts where the interval lies on one side of 1."""
    for quantity in ("steps", "time"):
        known = [row for row in rows if _known(row, quantity)]
        if not known:
            continue
        fewer = [NAMES[row["experiment"]] for row in known if row[f"{quantity} / base, high"] < 1]
        more = [NAMES[row["experiment"]] for row in known if row[f"{quantity} / base, low"] > 1]
        phrases = [f"saved {quantity} on {', '.join(fewer)}" if fewer else f"saved no {quantity}"]
        phrases += [f"lost {quantity} on {', '.join(more)}"] if more else []
        yield f"It {' and '.join(phrases)}."
    if label in NO_CLOCK:
        yield "Its wall clock is no evidence."


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the page; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.field_page", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("results", type=Path, help="the folder of the field tier's results, or of its reference")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page (default: docs/field.md)")

    def work(options: argparse.Namespace) -> None:
        tables = {name: options.results / "tables" / f"{name}.csv" for name in ("field_results", "field_costs")}
        for file in tables.values():
            if not file.is_file():
                raise ConfigError(f"{file}: missing; run make field first")
        results, costs = (pd.read_csv(file) for file in tables.values())
        fill(options.page, "leaders", lead(read_csv(tables["field_results"])))
        for label in dict.fromkeys(results["optimizer"]):
            fill(options.page, str(label), [text(results, costs, str(label))])
        fill(options.page, "luck", luck(results))
        fill(options.page, "missed", missed(results))

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
