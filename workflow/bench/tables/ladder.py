"""The ladder from a mean input to KFAC: iterations over the base's, and shares of KFAC's gain."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.ladder import (
    CENTRING,
    STEPS,
    TOP,
    Ladder,
    inputs_name,
    ladders,
    predictions,
    runs_of,
    sentences,
)
from workflow.bench.analysis.wording import estimated
from workflow.bench.results.sources import Sources, from_runs
from workflow.bench.results.tables import Results
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("ladder",)

_NOTES: Final = (
    "Iterations over the base's are geometric means over the sweep's targets and seeds, below 1 in favor of the rung, "
    "with a t interval over tuning studies; those at the final quality are to the target that the base reaches after "
    "90 % of its steps. The base is trained with the same inputs, but for the rung centred, which is the base with "
    "centred inputs over itself with plain ones",
    "A gain is the logarithm of the base's iterations over the rung's. The share of KFAC's gain is the ratio of the "
    "means of both gains, with Fieller's interval over studies. It is undefined where the interval of KFAC's gain "
    "reaches 0. Gain left by centring: MKOR's gain with centred inputs over that with plain ones",
    "Mkor / one_side is what MKOR's left factor is worth, one_side / one_vector its memory, mkor / centred MKOR in "
    "place of centring: ratios of iterations with plain inputs, below 1 in favor of the first",
    "Missed: pairs of a run and the base's at a target that one of the two does not reach. That run counts with all of "
    "its steps, which draws the ratio toward 1",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row for each rung of each workload, base optimizer and kind of inputs."""
    found, left_out = ladders(results)
    declared = {(one.workload, one.base): one for one in predictions(found)}
    rows = []
    for ladder in found:
        for rung in ladder.rungs:
            row = _row(ladder, rung)
            if ladder.centred and rung == "mkor":
                prediction = declared[ladder.workload, ladder.base]
                row |= {"gain left by centring": estimated(prediction.kept), "prediction": prediction.said}
            rows.append(row | {"data": _data(ladder, rung, found)})
    notes = [*_NOTES, *sentences(found, str), *([f"Not shown: {'; '.join(left_out)}"] if left_out else [])]
    runs = runs_of(found)
    title, text = "The ladder from a mean input to KFAC", caption(results, runs, notes=notes, summarized=False)
    return write_table(pd.DataFrame(rows), folder, "ladder", title=title, caption=text)


def _row(ladder: Ladder, rung: str) -> dict[str, Any]:
    return {
        "workload": ladder.workload,
        "base": ladder.base,
        "inputs": inputs_name(centred=ladder.centred or rung == CENTRING),
        "label": ladder.label(rung),
        "targets": len(ladder.sweep.targets),
        "studies": len(ladder.gains[rung]),
        "iterations / base": estimated(ladder.ratio(rung)),
        "iterations / base, final quality": estimated(ladder.at_final_quality(rung)),
        "missed": ladder.missed(rung),
        "share of KFAC's gain": estimated(ladder.share(rung)) or ladder.no_share(rung),
        **{
            f"{above} / {below}": _compared(ladder, above, below) if above == rung else ""
            for above, below in STEPS.values()
        },
        "gain left by centring": "",
        "prediction": "",
    }


def _compared(ladder: Ladder, above: str, below: str) -> str:
    return estimated(ladder.compared(ladder.label(above), ladder.label(below)))


def _data(ladder: Ladder, rung: str, found: list[Ladder]) -> Sources:
    below = (compared_with for above, compared_with in STEPS.values() if above == rung)
    labels = [ladder.base, *map(ladder.label, (rung, TOP, *below))]
    rows = ladder.runs[ladder.runs["optimizer"].isin(labels)]
    if ladder.centred and rung == "mkor":  # the prediction compares its gain with the one that plain inputs have
        plain = [
            one.runs for one in found if (one.workload, one.base, one.centred) == (ladder.workload, ladder.base, False)
        ]
        rows = pd.concat([rows, *(runs[runs["optimizer"].isin((ladder.base, ladder.label(rung)))] for runs in plain)])
    return from_runs(f"{EXPERIMENTS[0]}.runs.csv", rows)
