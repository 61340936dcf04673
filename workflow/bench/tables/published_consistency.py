"""What the published numbers imply against what they state: everything that can be derived from workflow/paper.

Nothing here is measured.  A printed number stands for all numbers that round to it, so a derived one has a range: what
the rounding of its inputs leaves open.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.claims.verdicts import parse_conditions
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
    "quantity",
    "where in the paper",
    "stated",
    "implied",
    "range of the implied",
    "from",
    "agrees",
    "data",
)
#: What `agrees` says, and what it means.
VERDICTS: Final = {
    "yes": "the implied number, rounded, is the stated one",
    "within rounding": "unrounded inputs could give it",
    "no, cut off": "it is the implied number with its further digits cut off, not rounded",
    "no": "no rounding explains it",
}
_SECONDS_PER_HOUR: Final = 3600


@dataclass(frozen=True)
class Printed:
    """A number as printed, which stands for all that round to it; a whole number is exact."""

    text: str

    @property
    def value(self) -> float:
        """The number itself."""
        return float(self.text)

    @property
    def digits(self) -> int:
        """Digits after the decimal point."""
        return len(self.text.partition(".")[2])

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest number that round to it."""
        half = 0.5 * 10**-self.digits if self.digits else 0.0
        return self.value - half, self.value + half


@dataclass(frozen=True)
class Derived:
    """A number computed from printed ones, and the range that their rounding leaves open."""

    value: float
    low: float
    high: float

    def shown(self, digits: int) -> tuple[str, str]:
        """The number and its range with so many digits."""
        return f"{self.value:.{digits}f}", f"[{self.low:.{digits}f}, {self.high:.{digits}f}]"


def derive(formula: Callable[..., float], *inputs: Printed) -> Derived:
    """Compute ``formula`` of printed numbers; it must rise or fall with each of them, so that the corners bound it."""
    corners = [formula(*corner) for corner in product(*(printed.range for printed in inputs))]
    return Derived(formula(*(printed.value for printed in inputs)), min(corners), max(corners))


def compare(stated: Printed, implied: Derived) -> str:
    """Which of `VERDICTS` a stated number gets beside what others imply."""
    unit = 10**stated.digits
    # Ties go up, as people round them; the small term is for sums that binary fractions miss.
    if math.isclose(math.floor(implied.value * unit + 0.5 + 1e-9), stated.value * unit):
        return "yes"
    low, high = stated.range
    # Ranges that only touch share no number: the one between them rounds up, away from the one or the other.
    if min(high, implied.high) - max(low, implied.low) > 1e-9:
        return "within rounding"
    return "no, cut off" if math.isclose(math.floor(implied.value * unit + 1e-9), stated.value * unit) else "no"


def _at_most(stated: Printed, implied: Derived) -> str:
    """Which of `VERDICTS` an upper bound gets."""
    return "yes" if implied.value <= stated.range[1] else "within rounding" if implied.low <= stated.range[1] else "no"


def _ratio(above: float, below: float) -> float:
    return above / below


def _mean(*values: float) -> float:
    return sum(values) / len(values)


Row = dict[str, str | Sources]


def _row(*cells: str | Sources) -> Row:
    return dict(zip(COLUMNS, cells, strict=True))


def _file(name: str) -> Sources:
    return from_rows(f"workflow/paper/{name}.csv")


def _derived(
    quantity: str,
    where: str,
    stated: str,
    formula: Callable[..., float],
    inputs: Sequence[str],
    how: str,
    data: Sources,
    judge: Callable[[Printed, Derived], str] = compare,
) -> Row:
    """A row: a stated number beside what ``formula`` makes of the inputs; ``how`` says it, with ``{}`` for each.

    A word before the number (``up to 1.5``) is kept.
    """
    number = Printed(stated.split()[-1])
    implied = derive(formula, *map(Printed, inputs))
    value, left_open = implied.shown(number.digits + 2)
    return _row(quantity, where, stated, value, left_open, how.format(*inputs), judge(number, implied), data)


def _same(quantity: str, where: str, stated: str, implied: str, how: str, data: Sources) -> Row:
    """A row of two texts that should be the same."""
    return _row(quantity, where, stated, implied, "", how, "yes" if stated == implied else "no", data)


Records = list[dict[str, str]]


def _records(name: str) -> Records:
    """The rows of a file of the paper's numbers, as printed."""
    return [
        {str(column): str(text) for column, text in row.items()} for _, row in published(name, as_text=True).iterrows()
    ]


def _by(records: Records, key: str, value: str) -> dict[str, str]:
    """One column of records by another; the first row of each key."""
    return {record[key]: record[value] for record in reversed(records)}


def speedups(name: str, where: str) -> Iterator[Row]:
    """Tables 2 and 3: the printed speedups over LAMB."""
    runs = _records(name)
    lamb = _by(runs, "optimizer", "time_h")["LAMB"]
    for run in runs:
        what = f"{name}: speedup of {run['optimizer']}, {run['iterations']} iterations"
        yield _derived(what, where, run["speedup"], _ratio, (lamb, run["time_h"]), "{} h / {} h", _file(name))


def glue_averages() -> Iterator[Row]:
    """Tables 3 and 4: the printed averages of the eight metrics."""
    for run in _records("glue"):
        scores = [value for column, value in run.items() if re.search("_(acc|f1|mcc|corr)$", column)]
        what = f"glue: average of {run['optimizer']}, {run['iterations']} iterations"
        how = f"mean of {', '.join(['{}'] * len(scores))}"
        yield _derived(what, "Tables 3 and 4", run["average"], _mean, scores, how, _file("glue"))


def iterations() -> Iterator[Row]:
    """Tables 2 and 3 tell of one pre-training: LAMB's iterations, and each optimizer's seconds an iteration."""
    runs = [
        run | {"where": where} for name, where in (("squad", "Table 2"), ("glue", "Table 3")) for run in _records(name)
    ]
    data = _file("squad") + _file("glue")
    one, other = (run for run in runs if run["optimizer"] == "LAMB")
    hours = f"{one['time_h']} h and {other['time_h']} h"
    yield _same("iterations of LAMB", "Table 2 against Table 3", one["iterations"], other["iterations"], hours, data)
    first: dict[str, tuple[Derived, str]] = {}
    for run in runs:
        found = derive(_seconds_an_iteration, Printed(run["time_h"]), Printed(run["iterations"]))
        how = f"{run['time_h']} h / {run['iterations']} ({run['where']})"
        if run["optimizer"] not in first:
            first[run["optimizer"]] = found, how
            continue
        before, said = first[run["optimizer"]]
        agrees = "within rounding" if found.low <= before.high and before.low <= found.high else "no"
        what = f"seconds an iteration of {run['optimizer']}"
        yield _row(what, "Tables 2 and 3", before.shown(2)[0], *found.shown(2), f"{said} against {how}", agrees, data)


def _seconds_an_iteration(hours: float, steps: float) -> float:
    return hours * _SECONDS_PER_HOUR / steps


def _claims() -> dict[str, dict[str, str]]:
    return {claim["id"]: claim for claim in _records("claims")}


def _about(claim: dict[str, str]) -> tuple[str, str, str]:
    """The first cells of a row about a claim."""
    return f"{claim['id']}: {claim['quantity']}", claim["source"], claim["published"]


def ratios() -> Iterator[Row]:
    """What abstract and text state as ratios, against the tables."""
    claims = _claims()
    hours, steps = (_by(_records("squad"), "optimizer", column) for column in ("time_h", "iterations"))
    seconds = _by(_records("resnet50_imagenet"), "optimizer", "time_to_target_s")
    others = _by(_records("glue"), "optimizer", "iterations")
    for name, above, below, how, files in (
        ("C01", hours["LAMB"], hours["MKOR-H"], "{} h / {} h", ("squad",)),
        ("C02", hours["KAISA"], hours["MKOR-H"], "{} h / {} h", ("squad",)),
        ("C03", steps["MKOR"], steps["LAMB"], "{} / {}, LAMB's of Table 2", ("squad",)),
        ("C03", steps["MKOR"], others["LAMB"], "{} / {}, LAMB's of Table 3", ("squad", "glue")),
        ("C06", seconds["SGD"], seconds["MKOR"], "{} s / {} s", ("resnet50_imagenet",)),
        ("C07", seconds["KAISA"], seconds["MKOR"], "{} s / {} s", ("resnet50_imagenet",)),
    ):
        data = sum(map(_file, ("claims", *files)), NO_SOURCES)
        yield _derived(*_about(claims[name]), _ratio, (above, below), how, data)


def repeated() -> Iterator[Row]:
    """What the text repeats of the tables, which should be the same."""
    claims = _claims()
    average = {(run["optimizer"], run["iterations"]): run["average"] for run in _records("glue")}
    for name, left, right in (
        ("C04", ("MKOR", "1500"), ("LAMB", "1563")),
        ("C05", ("KAISA", "1563"), ("LAMB", "1563")),
        ("C25", ("MKOR-H", "600"), ("MKOR", "600")),
    ):
        data = _file("claims") + _file("glue")
        yield _same(*_about(claims[name]), f"{average[left]} vs {average[right]}", "averages of Table 3", data)
    rates = [run["outcome"] for run in _records("lr_sensitivity_resnet50_cifar10") if run["optimizer"] == "MKOR"]
    alexnet = [run for run in _records("training_speedups") if run["experiment"] == "AlexNet/CIFAR-100"]
    speedup = _by(alexnet, "baseline", "speedup")
    orders = {run["optimizer"]: run for run in _records("complexity")}
    both = [orders[optimizer] for optimizer in ("MKOR", "KAISA")]
    for name, implied, how, file in (
        (
            "C18",
            f"{rates.count('converged')} of {len(rates)} rates converge",
            "MKOR's rows of the appendix's table",
            "lr_sensitivity_resnet50_cifar10",
        ),
        (
            "C19",
            " / ".join(speedup[rival] for rival in ("SGD", "HyLo-KIS", "KAISA")),
            "over SGD, HyLo-KIS and KAISA, in the claim's order",
            "training_speedups",
        ),
        ("C12", " and ".join(run["communication"].replace("*", "") for run in both), "Table 1", "complexity"),
        (
            "C11",
            " and ".join(max(re.findall(r"d\^(\d)", run["computation"])) for run in both),
            "leading powers of d in Table 1",
            "complexity",
        ),
    ):
        yield _same(*_about(claims[name]), implied, how, _file("claims") + _file(file))


def period_costs() -> Iterator[Row]:
    """Figure 4a: time at period 1 over that at 100, against the thresholds by which C08 is judged."""
    claim = _claims()["C08"]
    times = {
        (run["model"], run["optimizer"], run["inverse_update_period"]): run["iteration_ms"]
        for run in _records("iteration_time_ms")
    }
    for model in dict.fromkeys(model for model, _, _ in times):
        for condition in parse_conditions(claim["holds_when"]):
            often, rare = (times[model, condition.subject, period] for period in ("1", "100"))
            implied = derive(_ratio, Printed(often), Printed(rare))
            yield _row(
                f"C08: time of {condition.subject} at period 1 over that at 100, {model}",
                claim["source"],
                f"{condition.comparison} {condition.threshold:g} (this project's threshold)",
                *implied.shown(2),
                f"{often} ms / {rare} ms",
                "yes" if condition.holds(implied.value) else "no",
                _file("claims") + _file("iteration_time_ms"),
            )


def memory() -> Iterator[Row]:
    """The memory table: KAISA's memory over MKOR's, whole and over the first-order optimizer, against C13's number."""
    runs = _records("memory_gb")
    data = _file("claims") + _file("memory_gb")
    _, where, stated = _about(_claims()["C13"])
    for model in dict.fromkeys(run["model"] for run in runs):
        size = _by([run for run in runs if run["model"] == model], "optimizer", "memory_gb")
        (base,) = size.keys() - {"KAISA", "MKOR"}
        whole = f"C13: KAISA's whole memory over MKOR's, {model}"
        pair = (size["KAISA"], size["MKOR"])
        yield _derived(whole, where, stated, _ratio, pair, "{} GB / {} GB", data, _at_most)
        over = f"C13: KAISA's overhead over MKOR's, {base}'s memory taken off, {model}"
        how = "({0} - {2}) GB / ({1} - {2}) GB"
        yield _derived(over, where, stated, _ratio_of_overheads, (*pair, size[base]), how, data, _at_most)


def _ratio_of_overheads(above: float, below: float, base: float) -> float:
    return (above - base) / (below - base)


def rows() -> Iterator[Row]:
    """Every row of the table."""
    yield from speedups("squad", "Table 2")
    yield from speedups("glue", "Table 3")
    yield from glue_averages()
    yield from iterations()
    yield from ratios()
    yield from repeated()
    yield from period_costs()
    yield from memory()


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row a derived number; it needs no result, and is the same on every machine."""
    table = pd.DataFrame(rows(), columns=list(COLUMNS))
    counts = table["agrees"].value_counts()
    notes = [
        "Nothing here is measured: every number is the paper's, or follows from the paper's",
        "Agrees: "
        + "; ".join(f"{name} ({counts.get(name, 0)} of {len(table)}): {means}" for name, means in VERDICTS.items()),
        "The range is what the rounding of the inputs leaves open; whole numbers are taken as exact",
    ]
    return write_table(
        table,
        folder,
        "published_consistency",
        title="What the published numbers imply against what they state",
        caption=caption(results, pd.DataFrame(), notes=notes),
    )
