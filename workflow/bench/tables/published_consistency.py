"""Consistency of the published numbers: those that the paper states, and those that its other numbers imply.

Nothing here is measured. A printed number stands for all numbers that round to it, so a derived number has a range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import truediv
from pathlib import Path
from typing import Final
from unicodedata import digit

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.claims.decision import parse_conditions
from workflow.bench.results.sources import NO_SOURCES, Sources, from_rows
from workflow.bench.results.tables import Results, published
from workflow.bench.tables._files import write_table

PUBLISHED = (
    "claims",
    "complexity",
    "glue",
    "iteration_time_ms",
    "lr_sensitivity_resnet50_cifar10",
    "memory_gb",
    "resnet50_imagenet",
    "squad",
    "training_speedups",
)

COLUMNS: Final = (
    *("quantity", "where in the paper", "stated", "implied", "range of the implied"),
    *("from", "agrees", "data"),
)
VERDICTS: Final = {
    "yes": "the implied number rounds to the stated one",
    "within rounding": "unrounded inputs could give the stated number",
    "no, cut off": "the stated number is the implied one, truncated instead of rounded",
    "no": "no rounding explains the stated number",
}
"""Values of the column ``agrees`` and their meaning."""
_SCORE: Final = re.compile(r".*_(acc|f1|mcc|corr)")
"""Columns with the metrics of tasks."""

Row = tuple[str | Sources, ...]
"""The cells of `COLUMNS`."""

# Numbers as printed


@dataclass(frozen=True)
class Printed:
    """A number as printed, which stands for all numbers that round to it; a whole number is exact."""

    text: str

    @property
    def value(self) -> float:
        """The number."""
        return float(self.text)

    @property
    def digits(self) -> int:
        """Number of digits after the decimal point."""
        return len(self.text.partition(".")[2])

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest number that round to it."""
        half = 0.5 * 10**-self.digits if self.digits else 0.0
        return self.value - half, self.value + half


@dataclass(frozen=True)
class Derived:
    """A number computed from printed ones, and its range over all inputs that round to them."""

    value: float
    low: float
    high: float

    def shown(self, digits: int) -> tuple[str, str]:
        """Return the texts of the number and of its range, with this many digits."""
        return f"{self.value:.{digits}f}", f"[{self.low:.{digits}f}, {self.high:.{digits}f}]"


def derive(formula: Callable[..., float], *inputs: Printed) -> Derived:
    """Return ``formula`` of printed numbers, with its range over their ranges.

    The formula must be monotonic in each number, so that the corners of their ranges bound it.
    """
    corners = [formula(*corner) for corner in product(*(printed.range for printed in inputs))]
    return Derived(formula(*(printed.value for printed in inputs)), min(corners), max(corners))


def compare(stated: Printed, implied: Derived) -> str:
    """Return which of `VERDICTS` a stated number gets."""
    unit = 10**stated.digits
    # Ties are rounded up, as by hand. 1e-9 is for ties that binary fractions miss, such as (0.8022 + 0.8023) / 2.
    if math.isclose(math.floor(implied.value * unit + 0.5 + 1e-9), stated.value * unit):
        return "yes"
    low, high = stated.range
    # Ranges that only touch have no number in common, since the number between them rounds up into one of them.
    if min(high, implied.high) - max(low, implied.low) > 1e-9:
        return "within rounding"
    return "no, cut off" if math.isclose(math.floor(implied.value * unit + 1e-9), stated.value * unit) else "no"


def compare_bound(stated: Printed, implied: Derived) -> str:
    """Return which of `VERDICTS` an upper bound gets."""
    return "yes" if implied.value <= stated.range[1] else "within rounding" if implied.low <= stated.range[1] else "no"


# Rows


def _mean(*values: float) -> float:
    return sum(values) / len(values)


def _files(*names: str) -> Sources:
    """Return the paper's files as sources."""
    return sum((from_rows(f"workflow/paper/{name}.csv") for name in names), NO_SOURCES)


def _derived(
    quantity: str,
    where: str,
    stated: str,
    formula: Callable[..., float],
    inputs: Sequence[str],
    derivation: str,
    data: Sources,
    judge: Callable[[Printed, Derived], str] = compare,
) -> Row:
    """Return a row with a stated number and the value of ``formula`` of the printed ``inputs``.

    stated: maybe with words before the number (``up to 1.5``); derivation: the formula in words, ``{}`` for each input.
    """
    number = Printed(stated.split()[-1])
    implied = derive(formula, *map(Printed, inputs))
    shown = implied.shown(number.digits + 2)
    return quantity, where, stated, *shown, derivation.format(*inputs), judge(number, implied), data


def _same(quantity: str, where: str, stated: str, implied: str, derivation: str, data: Sources) -> Row:
    """Return a row of two texts that should be the same."""
    return quantity, where, stated, implied, "", derivation, "yes" if stated == implied else "no", data


def _records(name: str) -> list[dict[str, str]]:
    """Return the rows of a file of the paper's numbers, as printed."""
    rows = published(name, as_text=True).to_dict("records")
    return [{str(column): str(text) for column, text in row.items()} for row in rows]


def _by(records: Sequence[Mapping[str, str]], key: str, value: str) -> dict[str, str]:
    """Return ``{key: value}`` of two columns, from the first record of each key."""
    return {record[key]: record[value] for record in reversed(records)}


def _claim(name: str) -> dict[str, str]:
    return next(claim for claim in _records("claims") if claim["id"] == name)


def _about(name: str) -> tuple[str, str, str]:
    """Return the first cells of a claim's row: quantity, place in the paper, stated number."""
    claim = _claim(name)
    return f"{name}: {claim['quantity']}", claim["source"], claim["published"]


def speedups(name: str, where: str) -> Iterator[Row]:
    """Yield the speedups over LAMB that Tables 2 and 3 print."""
    runs = _records(name)
    lamb = _by(runs, "optimizer", "time_h")["LAMB"]
    for run in runs:
        quantity = f"{name}: speedup of {run['optimizer']}, {run['iterations']} iterations"
        yield _derived(quantity, where, run["speedup"], truediv, (lamb, run["time_h"]), "{} h / {} h", _files(name))


def glue_averages() -> Iterator[Row]:
    """Yield the averages of the eight metrics that Tables 3 and 4 print."""
    for run in _records("glue"):
        scores = [value for column, value in run.items() if _SCORE.fullmatch(column)]
        quantity = f"glue: average of {run['optimizer']}, {run['iterations']} iterations"
        derivation = f"mean of {', '.join(['{}'] * len(scores))}"
        yield _derived(quantity, "Tables 3 and 4", run["average"], _mean, scores, derivation, _files("glue"))


def collapsed() -> Iterator[Row]:
    """Yield LAMB's F1 on MRPC beside that of a classifier that always says yes, and averages without that task.

    279 of the 408 validation pairs are paraphrases. A fine-tuning that learned nothing carries C04.
    """
    runs = {(run["optimizer"], run["iterations"]): run for run in _records("glue")}
    yield _derived(
        "glue: MRPC F1 of LAMB, that of an answer that is always yes",
        "Table 4",
        runs["LAMB", "1563"]["MRPC_f1"],
        lambda positive, pairs: 2 * positive / (positive + pairs),  # all positives found, all negatives wrong
        ("279", "408"),
        "{} positive of {} pairs",
        _files("glue"),
    )
    others = [column for column in runs["LAMB", "1563"] if _SCORE.fullmatch(column) and column != "MRPC_f1"]
    lamb = derive(_mean, *(Printed(runs["LAMB", "1563"][column]) for column in others))
    for optimizer, steps in (("MKOR", "1500"), ("MKOR", "600"), ("MKOR-H", "600"), ("Eva", "1000")):
        mean = derive(_mean, *(Printed(runs[optimizer, steps][column]) for column in others))
        yield (
            f"glue: average without MRPC of {optimizer}, {steps} iterations, above LAMB's",
            "Table 4",
            f"> {lamb.shown(4)[0]}",
            *mean.shown(4),
            "mean of seven scores; LAMB's too",
            "yes" if mean.value > lamb.value else "no",
            _files("glue"),
        )


def iterations() -> Iterator[Row]:
    """Yield LAMB's iterations and each optimizer's seconds per iteration: Tables 2 and 3 are of one pre-training."""
    runs = [
        run | {"where": where} for name, where in (("squad", "Table 2"), ("glue", "Table 3")) for run in _records(name)
    ]
    data = _files("squad", "glue")
    one, other = (run for run in runs if run["optimizer"] == "LAMB")
    hours = f"{one['time_h']} h and {other['time_h']} h"
    yield _same("iterations of LAMB", "Table 2 against Table 3", one["iterations"], other["iterations"], hours, data)
    first: dict[str, tuple[Derived, str]] = {}
    for run in runs:
        seconds = derive(lambda hours, steps: hours * 3600 / steps, Printed(run["time_h"]), Printed(run["iterations"]))
        derivation = f"{run['time_h']} h / {run['iterations']} ({run['where']})"
        before, derivation_before = first.setdefault(run["optimizer"], (seconds, derivation))
        if before is seconds:
            continue
        yield (
            f"seconds an iteration of {run['optimizer']}",
            "Tables 2 and 3",
            before.shown(2)[0],
            *seconds.shown(2),
            f"{derivation_before} against {derivation}",
            "within rounding" if seconds.low <= before.high and before.low <= seconds.high else "no",
            data,
        )


def ratios() -> Iterator[Row]:
    """Yield the ratios that abstract and text state, derived from the tables."""
    hours, steps = (_by(_records("squad"), "optimizer", column) for column in ("time_h", "iterations"))
    seconds = _by(_records("resnet50_imagenet"), "optimizer", "time_to_target_s")
    glue_steps = _by(_records("glue"), "optimizer", "iterations")
    for name, above, below, derivation, files in (
        ("C01", hours["LAMB"], hours["MKOR-H"], "{} h / {} h", ("squad",)),
        ("C02", hours["KAISA"], hours["MKOR-H"], "{} h / {} h", ("squad",)),
        ("C03", steps["MKOR"], steps["LAMB"], "{} / {}, LAMB's of Table 2", ("squad",)),
        ("C03", steps["MKOR"], glue_steps["LAMB"], "{} / {}, LAMB's of Table 3", ("squad", "glue")),
        ("C06", seconds["SGD"], seconds["MKOR"], "{} s / {} s", ("resnet50_imagenet",)),
        ("C07", seconds["KAISA"], seconds["MKOR"], "{} s / {} s", ("resnet50_imagenet",)),
    ):
        data = _files("claims", *files)
        yield _derived(*_about(name), truediv, (above, below), derivation, data)


def repeated() -> Iterator[Row]:
    """Yield the numbers of the tables that the text repeats, which should be the same."""
    average = {(run["optimizer"], run["iterations"]): run["average"] for run in _records("glue")}
    pairs = (
        ("C04", ("MKOR", "1500"), ("LAMB", "1563")),
        ("C05", ("KAISA", "1563"), ("LAMB", "1563")),
        ("C25", ("MKOR-H", "600"), ("MKOR", "600")),
    )
    rates = [run["outcome"] for run in _records("lr_sensitivity_resnet50_cifar10") if run["optimizer"] == "MKOR"]
    alexnet = [run for run in _records("training_speedups") if run["experiment"] == "AlexNet/CIFAR-100"]
    speedup = _by(alexnet, "baseline", "speedup")
    orders = {run["optimizer"]: run for run in _records("complexity")}
    both = [orders[optimizer] for optimizer in ("MKOR", "KAISA")]
    converged = f"{rates.count('converged')} of {len(rates)} rates converge"
    rivals = " / ".join(speedup[rival] for rival in ("SGD", "HyLo-KIS", "KAISA"))
    powers = (str(max(map(digit, re.findall(r"(?<=d)[²³]", run["computation"])))) for run in both)
    for name, implied, derivation, file in (
        *((name, f"{average[left]} vs {average[right]}", "averages of Table 3", "glue") for name, left, right in pairs),
        ("C18", converged, "MKOR's rows of the appendix's table", "lr_sensitivity_resnet50_cifar10"),
        ("C19", rivals, "over SGD, HyLo-KIS and KAISA, in the claim's order", "training_speedups"),
        ("C12", " and ".join(run["communication"] for run in both), "Table 1", "complexity"),
        ("C11", " and ".join(powers), "leading powers of d in Table 1", "complexity"),
    ):
        yield _same(*_about(name), implied, derivation, _files("claims", file))


def period_costs() -> Iterator[Row]:
    """Yield KAISA's time at period 1 over that at 100 over MKOR's in Figure 4a, compared with claim C08."""
    claim = _claim("C08")
    times = {
        (run["model"], run["optimizer"], run["inverse_update_period"]): run["iteration_ms"]
        for run in _records("iteration_time_ms")
    }
    (condition,) = parse_conditions(claim["holds_when"])
    for model in dict.fromkeys(model for model, _, _ in times):
        stated = [times[model, name, period] for name in ("KAISA", "MKOR") for period in ("1", "100")]
        implied = derive(lambda a, b, c, d: a / b / (c / d), *map(Printed, stated))
        yield (
            f"C08: time at period 1 over that at 100, KAISA's over MKOR's, {model}",
            claim["source"],
            f"{condition.comparison} {condition.threshold:g} (this project's threshold)",
            *implied.shown(2),
            "({} ms / {} ms) / ({} ms / {} ms)".format(*stated),
            "yes" if condition.holds(implied.value) else "no",
            _files("claims", "iteration_time_ms"),
        )


def memory() -> Iterator[Row]:
    """Yield KAISA's memory and overhead over MKOR's in the memory table, compared with claim C13."""
    runs = _records("memory_gb")
    data = _files("claims", "memory_gb")
    _, where, stated = _about("C13")
    for model in dict.fromkeys(run["model"] for run in runs):
        size = _by([run for run in runs if run["model"] == model], "optimizer", "memory_gb")
        (base,) = size.keys() - {"KAISA", "MKOR"}
        whole = f"C13: KAISA's whole memory over MKOR's, {model}"
        pair = (size["KAISA"], size["MKOR"])
        yield _derived(whole, where, stated, truediv, pair, "{} GB / {} GB", data, compare_bound)
        over = f"C13: KAISA's overhead over MKOR's, {base}'s memory taken off, {model}"
        derivation = "({0} - {2}) GB / ({1} - {2}) GB"
        inputs = (*pair, size[base])
        yield _derived(over, where, stated, lambda a, b, c: (a - c) / (b - c), inputs, derivation, data, compare_bound)


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per derived number; the table needs no results and is the same on every machine."""
    parts = (glue_averages, collapsed, iterations, ratios, repeated, period_costs, memory)
    rows = [*speedups("squad", "Table 2"), *speedups("glue", "Table 3"), *(row for part in parts for row in part())]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    counts = table["agrees"].value_counts()
    agrees = "; ".join(f"{name} ({counts.get(name, 0)} of {len(table)}): {means}" for name, means in VERDICTS.items())
    notes = [
        "Nothing here is measured: every number is the paper's or follows from the paper's numbers",
        f"Agrees: {agrees}",
        "The range covers all inputs that round to the printed ones; whole numbers are taken as exact",
    ]
    title = "Published numbers: what the paper states and what its other numbers imply"
    text = caption(results, pd.DataFrame(), notes=notes)
    return write_table(table, folder, "published_consistency", title=title, caption=text)
