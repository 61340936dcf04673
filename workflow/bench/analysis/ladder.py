"""The ladder from one mean input to KFAC: shares of KFAC's gain, and the prediction that was declared before the runs.

docs/experiments/ladder.md states the rules in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Final, Literal

import pandas as pd

from workflow.bench.analysis.estimates import Estimate, current_level, ratio_of_means
from workflow.bench.analysis.study_ratios import log_ratios, nothing_to_compare
from workflow.bench.analysis.target_sweep import FINAL, NoSweepError, TargetSweep, target_sweep
from workflow.bench.results.columns import ENDED
from workflow.bench.results.tables import Results

EXPERIMENT: Final = "ladder"
BASES: Final[Mapping[str, str]] = {"sgd": "", "adamw": "_adamw"}
"""The suffix of the labels over each base optimizer."""
CENTRING: Final = "centred"
"""The base optimizer itself on centred inputs, as a rung of the ladder with plain ones."""
RUNGS: Final[Mapping[str, str]] = {
    CENTRING: "centring alone",
    "mac": "MAC",
    "one_vector": "one vector",
    "one_side": "one side",
    "mkor": "MKOR",
    "both_sides": "both sides acting",
    "foof": "FOOF",
    "kfac": "KFAC",
}
"""The rungs, from the one that keeps least of a layer, with their names."""
TOP: Final = "kfac"
STEPS: Final[Mapping[str, tuple[str, str]]] = {
    "MKOR's left factor": ("mkor", "one_side"),
    "MKOR's memory": ("one_side", "one_vector"),
    "MKOR in place of centring": ("mkor", CENTRING),
}
"""What may be worth something: the rung that has it, and the one that it is compared with."""
NAMES: Final = {"sgd": "SGD", "adamw": "AdamW"}
NO_GAIN: Final = "no gain of KFAC shown"
HALF: Final = 0.5
"""The prediction says that less than this share of MKOR's gain remains where inputs are centred."""
_MOST_FAIL: Final = 1
_LEAST_HOLD: Final = 3

Decision = Literal["holds", "fails", "open", "not tested"]


@dataclass(frozen=True)
class Ladder:
    """One workload over one base optimizer, with plain or centred inputs: its runs and their sweep of targets."""

    workload: str
    base: str
    centred: bool
    runs: pd.DataFrame
    """Its rows of ``ladder.runs.csv`` that have ended; with plain inputs those of the rung `CENTRING`, too."""
    sweep: TargetSweep

    @property
    def rungs(self) -> list[str]:
        """The rungs that have runs."""
        return [rung for rung in RUNGS if self.label(rung) in self.sweep.courses]

    def label(self, rung: str) -> str:
        """Return the label of a rung."""
        return f"{rung}{BASES[self.base]}"

    def ratio(self, rung: str) -> Estimate | None:
        """Return the iterations of a rung over those of the base optimizer; None if it has no runs to compare."""
        return self.compared(self.label(rung), self.base)

    def at_final_quality(self, rung: str) -> Estimate | None:
        """Return the iterations to the base's final quality, the target at `FINAL` of its steps, over the base's."""
        label = self.label(rung)
        if label not in self.sweep.courses or FINAL not in self.sweep.targets:
            return None
        return self.sweep.at(FINAL).steps_ratio(label, self.base).estimate

    def compared(self, above: str, below: str) -> Estimate | None:
        """Return the iterations of one label over those of another; None if one of them has no runs to compare."""
        known = self.sweep.courses
        return self.sweep.steps_ratio(above, below).estimate if above in known and below in known else None

    def missed(self, rung: str) -> str:
        """Return in how many pairs with the base's run, of those that count, one of the two missed the target."""
        swept = self.sweep.steps_ratio(self.label(rung), self.base)
        return f"{swept.unreached} of {swept.pairs}"

    @cached_property
    def gains(self) -> Mapping[str, Mapping[int, float]]:
        """Minus the logarithms of the rungs' iterations over the base's, by rung and study."""
        return {
            rung: {study: -ratio for study, ratio in log_ratios(self.sweep, self.label(rung), self.base).items()}
            for rung in self.rungs
        }

    def share(self, rung: str) -> Estimate | None:
        """Return the share of KFAC's gain that a rung keeps; None for the reason that `no_share` gives."""
        return ratio_of_means(self.gains.get(rung, {}), self.gains.get(TOP, {}))

    def no_share(self, rung: str) -> str:
        """Return why a rung has no `share`; empty if it has one."""
        if self.share(rung) is not None:
            return ""
        if TOP not in self.gains:
            return "no runs of KFAC"
        shared = self.gains.get(rung, {}).keys() & self.gains[TOP].keys()
        return NO_GAIN if len(shared) > 1 else "fewer than two studies"


def ladders(results: Results) -> tuple[list[Ladder], list[str]]:
    """Return the ladders that have runs, and for each one without a sweep of targets why it has none, a clause.

    Raises:
        NoDataError: there is no run of the experiment, or no ladder.
    """
    runs, metrics = results.some_runs(EXPERIMENT), results.metrics(EXPERIMENT)
    runs = runs[runs["status"].isin(ENDED)]
    centred = _is_centred(runs)
    found: list[Ladder] = []
    left_out: list[str] = []
    for workload in dict.fromkeys(runs["workload"].astype(str)):
        for base, suffix in BASES.items():
            labels = [base, *(f"{rung}{suffix}" for rung in RUNGS)]
            for inputs in (False, True):
                here = runs["workload"] == workload
                rows = runs[here & (centred == inputs) & runs["optimizer"].isin(labels)]
                if rows.empty:
                    continue
                if not inputs:
                    of_base = runs[here & centred & (runs["optimizer"] == base)]
                    rows = pd.concat([rows, of_base.assign(optimizer=f"{CENTRING}{suffix}")])
                of_runs = metrics[metrics["run"].isin(rows["run"])]
                try:
                    found.append(Ladder(workload, base, inputs, rows, target_sweep(rows, of_runs, base)))
                except NoSweepError as problem:
                    left_out.append(f"{workload} over {base}, {inputs_name(centred=inputs)} inputs, {problem}")
    if not found:
        raise nothing_to_compare(results, EXPERIMENT, left_out)
    return found, left_out


def runs_of(found: Iterable[Ladder]) -> pd.DataFrame:
    """Return the runs of all ladders, each once under its own label; centred inputs make a workload of its own."""
    own = {f"{CENTRING}{suffix}": base for base, suffix in BASES.items()}
    runs = pd.concat([ladder.runs for ladder in found], ignore_index=True)
    # A base optimizer's runs with centred inputs are in two ladders.
    runs = runs.replace({"optimizer": own}).drop_duplicates("run", ignore_index=True)
    return runs.assign(workload=runs["workload"].mask(_is_centred(runs), runs["workload"] + " with centred inputs"))


def _is_centred(runs: pd.DataFrame) -> pd.Series[bool]:
    return runs["workload_parameters"].map(lambda given: bool(given.get("centred_inputs"))).astype(bool)


def inputs_name(*, centred: bool) -> str:
    """Return the word for a ladder's inputs."""
    return "centred" if centred else "plain"


@dataclass(frozen=True)
class Prediction:
    """The prediction on one workload and base: MKOR's gain vanishes where inputs are centred."""

    workload: str
    base: str
    plain: Estimate | None
    """MKOR's iterations over the base's with plain inputs."""
    centred: Estimate | None
    """Those with centred inputs."""
    kept: Estimate | None
    """MKOR's gain with centred inputs over that with plain ones; None without a plain gain."""

    @property
    def decision(self) -> Decision:
        """What the runs say, by the rules that were declared before them."""
        plain, centred, kept = self.plain, self.centred, self.kept
        # Without a gain there is nothing that could vanish.
        if plain is None or not plain.has_interval or plain.high >= 1:
            return "not tested"
        if centred is None or not centred.has_interval:
            return "open"
        if not centred.contains(1):
            return "fails"
        if kept is None or kept.low < HALF <= kept.high:
            return "open"
        return "fails" if kept.low >= HALF else "holds"

    @property
    def said(self) -> str:
        """The decision; of one that fails also which way, since a gain that remains and a loss both do."""
        if self.decision != "fails":
            return self.decision
        return f"fails, {'slower' if self.centred and self.centred.low > 1 else 'gain left'}"


def predictions(found: Iterable[Ladder]) -> list[Prediction]:
    """Return the prediction for each workload and base that has runs of MKOR with plain or centred inputs."""
    by_place: dict[tuple[str, str], dict[bool, Ladder]] = {}
    for ladder in found:
        by_place.setdefault((ladder.workload, ladder.base), {})[ladder.centred] = ladder
    made = []
    for place, pair in by_place.items():
        plain, centred = (pair[inputs].ratio("mkor") if inputs in pair else None for inputs in (False, True))
        gain, left = (pair[inputs].gains.get("mkor", {}) if inputs in pair else {} for inputs in (False, True))
        made.append(Prediction(*place, plain, centred, ratio_of_means(left, gain)))
    return made


def on_workload(decisions: Sequence[Decision]) -> Decision:
    """Return the decision on a workload from those over its base optimizers."""
    if "fails" in decisions:
        return "fails"
    tested = [decision for decision in decisions if decision != "not tested"]
    if not tested:
        return "not tested"
    return "open" if "open" in tested else "holds"


def in_general(by_workload: Mapping[str, Decision]) -> Decision:
    """Return the decision over all workloads."""
    numbers = Counter(by_workload.values())
    if numbers["fails"] > _MOST_FAIL:
        return "fails"
    return "holds" if numbers["holds"] >= _LEAST_HOLD and not numbers["fails"] else "open"


def decisions_by_workload(found: Iterable[Prediction]) -> dict[str, Decision]:
    """Return the decision on each workload."""
    by_workload: dict[str, list[Decision]] = {}
    for prediction in found:
        by_workload.setdefault(prediction.workload, []).append(prediction.decision)
    return {workload: on_workload(decisions) for workload, decisions in by_workload.items()}


def sentences(found: Sequence[Ladder], name: Callable[[str], str]) -> list[str]:
    """Return what the runs say of the prediction, and of what MKOR's parts are worth, a sentence each.

    name: returns a workload's name.
    """
    declared = predictions(found)
    by_workload = decisions_by_workload(declared)
    places = "; ".join(
        f"{decision}: {', '.join(name(workload) for workload, of_it in by_workload.items() if of_it == decision)}"
        for decision in dict.fromkeys(by_workload.values())
    )
    said = [
        "Declared before the runs: MKOR's gain vanishes where inputs are centred, so that the interval of its "
        "iterations over the base's contains 1 and less than half of its gain is left. In general: "
        f"{in_general(by_workload)} ({places})"
    ]
    worths = [*_worths(found, name)]
    by_chance = (
        f"Each such comparison stands alone: where nothing differs, {50 * (1 - current_level()):.3g} % of them save"
    )
    beside = [f"{by_chance} iterations by chance"] if worths else []
    return [*said, *worths, *beside, *_precision(found, name), *_dropped(found, name)]


def _precision(found: Iterable[Ladder], name: Callable[[str], str]) -> Iterator[str]:
    """Yield how far intervals of shares of KFAC's gain reach, in points: the least and the most of each ladder."""
    clauses = []
    for ladder in found:
        shares = [share for rung in ladder.rungs if rung != TOP and (share := ladder.share(rung)) is not None]
        reach = sorted(100 * max(share.high - share.value, share.value - share.low) for share in shares)
        if reach and not ladder.centred:
            clauses.append(f"{name(ladder.workload)} with {NAMES[ladder.base]} {reach[0]:.0f} to {reach[-1]:.0f}")
    if clauses:
        yield f"The intervals of shares reach so many points to one side: {', '.join(clauses)}"


def _dropped(found: Iterable[Ladder], name: Callable[[str], str]) -> Iterator[str]:
    """Yield which targets of a ladder's sweep were dropped, if any were."""
    for ladder in found:
        if remarks := ladder.sweep.remarks():
            yield f"{name(ladder.workload)} with {inputs_name(centred=ladder.centred)} inputs: {remarks}"


def _worths(found: Sequence[Ladder], name: Callable[[str], str]) -> Iterator[str]:
    """Yield on which workloads with plain inputs each entry of `STEPS` saves iterations, by base, or costs some.

    It does where the whole interval of the ratio of its two rungs' iterations lies on one side of 1.
    """
    for (part, (rung, compared_with)), base in product(STEPS.items(), BASES):
        ratios = {
            ladder.workload: ratio
            for ladder in found
            if (ladder.base, ladder.centred) == (base, False)
            and (ratio := ladder.compared(ladder.label(rung), ladder.label(compared_with))) is not None
        }
        saves = [name(workload) for workload, ratio in ratios.items() if ratio.high < 1]
        costs = [name(workload) for workload, ratio in ratios.items() if ratio.low > 1]
        where = f" ({', '.join(saves)})" if saves else ""
        beside = f", and costs iterations on {', '.join(costs)}" if costs else ""
        if ratios:
            yield (
                f"{part} ({rung} against {compared_with}) saves iterations on {len(saves)} of {len(ratios)} workloads "
                f"with {NAMES[base]} as base{where}{beside}"
            )
