"""The verdict on every claim of the paper: confirmed, refuted, no difference, inconclusive, or not tested.

Each ``decide_*`` is a pure function from tidy frames and the thresholds in ``workflow/paper/claims.csv`` to a
`Decision`. Results of a small tier are evidence about a claim's direction, never a reproduction of its number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import pandas as pd

from workflow.bench.analysis import wording
from workflow.bench.analysis.estimates import Estimate, looks
from workflow.bench.analysis.finetuning_scores import pretraining_experiment
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.claims import (
    factor_share,
    finetuning,
    numerics,
    periods,
    pretraining,
    rank1,
    sensitivity,
    switching,
    time_to_target,
    timing,
)
from workflow.bench.claims.decision import Decision, not_tested
from workflow.bench.claims.swept import Trained
from workflow.bench.claims.verdicts import Condition, parse_conditions
from workflow.bench.results.tables import Results, published

COLUMNS: Final = (
    "id",
    "verdict",
    "claim",
    "quantity",
    "published",
    "measured",
    "interval",
    "measured_interval",
    "confirmed_if",
    "published_inside",
    "smallest_visible",
    "seeds",
    "evidence",
    "why",
    "details",
    "disputed",
    "source",
    "tier",
    "look",
    "data",
)
PART_COLUMNS: Final = (
    "id",
    "part",
    "verdict",
    "value",
    "low",
    "high",
    "statistic",
    "interval_method",
    "n",
    "is_ratio",
    "comparison",
    "threshold",
    "bound",
    "margin",
    "published",
)
Rule = Callable[[Results, Sequence[Condition]], Decision]
"""A function from results and a claim's thresholds to a decision."""
Judge = Callable[[pd.DataFrame, Sequence[Condition]], Decision]
"""A function from a probe's rows and a claim's thresholds to a decision."""


def _of_probe(name: str, judge: Judge, results: Results, conditions: Sequence[Condition]) -> Decision:
    """Decide a claim by the rows of one probe.

    Rounds of seeds add no rows to it, so that all looks are one, and its intervals have the level of one.
    """
    rows = results.probe(name)
    if rows.empty:
        return not_tested(f"The probe {name} has not run.")
    with looks(1):
        return judge(rows, conditions)


def _half_precision(results: Results, _: Sequence[Condition]) -> Decision:
    """Decide C22, whose entry has no threshold."""
    rows = results.probe("half_precision")
    return numerics.decide_half_precision(rows) if len(rows) else not_tested("The probe half_precision has not run.")


def _scaling(results: Results, conditions: Sequence[Condition]) -> Decision:
    times, model = results.probe("scaling"), results.probe("projection")
    if times.empty:
        return not_tested("The probe scaling has not run.")
    return timing.decide_scaling(times, model, conditions)


def _sensitivity(results: Results, conditions: Sequence[Condition]) -> Decision:
    return sensitivity.decide_sensitivity(Trained.of(results, "resnet_cifar10_lr"), conditions)


def _carriers(results: Results) -> pretraining.Evidence:
    """Return the results that carry the claims about training with LAMB as base."""
    bert, autoencoder, squad = (
        Trained.of(results, name) for name in ("bert_pretraining", "autoencoder_lamb", "bert_squad")
    )
    return pretraining.Evidence(bert, autoencoder, squad, StepTimes(results.probe("step_time")))


def _hybrid_time(results: Results, conditions: Sequence[Condition], *, rival: str) -> Decision:
    return pretraining.decide_hybrid_time(_carriers(results), conditions, rival=rival)


def _iterations(results: Results, conditions: Sequence[Condition]) -> Decision:
    return pretraining.decide_iterations_to_target(_carriers(results), conditions)


def _glue_average(results: Results, conditions: Sequence[Condition], *, contender: str) -> Decision:
    return finetuning.decide_glue_average(
        results.metrics("bert_glue"), results.runs("bert_glue"), conditions, contender=contender
    )


def _switch(results: Results, conditions: Sequence[Condition]) -> Decision:
    autoencoder, glue = (Trained.of(results, name) for name in ("autoencoder_lamb", "bert_glue"))
    pretraining = Trained.of(results, pretraining_experiment(results, glue.runs))
    return switching.decide_switch(pretraining, autoencoder, glue, conditions)


def _speedup(
    results: Results, conditions: Sequence[Condition], *, experiment: str, rivals: tuple[str, ...]
) -> Decision:
    trained, times = Trained.of(results, experiment), StepTimes(results.probe("step_time"))
    return time_to_target.decide_speedup(trained, times, conditions, base="sgd", rivals=rivals)


def _period_loss(results: Results, conditions: Sequence[Condition]) -> Decision:
    return periods.decide_period_loss(results.metrics("autoencoder_inversion"), conditions)


RULES: Final[Mapping[str, Rule]] = {
    "C01": partial(_hybrid_time, rival="lamb"),
    "C02": partial(_hybrid_time, rival="kaisa"),
    "C03": _iterations,
    "C04": partial(_glue_average, contender="mkor"),
    "C05": partial(_glue_average, contender="kaisa"),
    "C06": partial(_speedup, experiment="resnet50_imagenet", rivals=("sgd",)),
    "C07": partial(_speedup, experiment="resnet50_imagenet", rivals=("kaisa",)),
    "C08": partial(_of_probe, "iteration_time", timing.decide_period_cost),
    "C09": _period_loss,
    "C10": partial(_of_probe, "cost_scaling", factor_share.decide_factor_share),
    "C11": partial(_of_probe, "cost_scaling", timing.decide_update_cost),
    "C12": partial(_of_probe, "communication", timing.decide_bytes),
    "C13": partial(_of_probe, "memory", timing.decide_memory),
    "C14": partial(_of_probe, "rank1_error", rank1.decide_rank1_error),
    "C15": partial(_of_probe, "rank1_error", rank1.decide_mean_vector),
    "C16": partial(_of_probe, "rank1_error", rank1.decide_decay),
    "C17": partial(_of_probe, "spectra", rank1.decide_singular_factors),
    "C18": _sensitivity,
    "C19": partial(_speedup, experiment="alexnet_cifar100", rivals=("sgd", "hylo", "kaisa")),
    "C20": partial(_of_probe, "numerics", numerics.decide_positive_definite),
    "C21": partial(_of_probe, "numerics", numerics.decide_inverse),
    "C22": _half_precision,
    "C23": partial(_of_probe, "numerics", numerics.decide_descent),
    "C24": _scaling,
    "C25": _switch,
}
"""The rule of each claim in ``workflow/paper/claims.csv``."""

DISPUTED: Final[Mapping[str, str]] = {
    "C01": "most of its targets are passed before the model predicts better than a constant does",
    "C02": "KFAC's damping was not tuned on BERT and MKOR-H had no trials there; targets are as in C01",
    "C06": "the interval ends close to 1, and SGD chose the lowest momentum of its space in most studies",
    "C07": "KFAC leaves the direction of ResNet's gradients unchanged here, so that SGD at another rate is compared",
    "C09": "KFAC's factors fade with each update, so that a longer period also remembers more steps",
    "C10": "only MKOR's share is judged, not that the factors' work dominates the steps of KAISA and HyLo",
    "C18": "KFAC leaves the direction of ResNet's gradients unchanged here, and the grid cuts off HyLo's range",
}
"""Why a reviewer could dispute the rule of a claim; the verdicts carry a mark until the rules are settled."""
MARK: Final = "†"
"""Follows a disputed verdict."""


class Verdicts(NamedTuple):
    """The verdicts on all claims, in the paper's order."""

    claims: pd.DataFrame
    """One row a claim, with the columns `COLUMNS`."""
    parts: pd.DataFrame
    """One row for each part of each claim, with the columns `PART_COLUMNS`: the numbers behind the verdicts."""


def decide_all(results: Results) -> Verdicts:
    """Decide every claim."""
    claims: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for claim in published("claims", as_text=True).to_dict("records"):
        decision = RULES[claim["id"]](results, conditions_of(claim))
        claims.append(_row(claim, decision, results))
        parts += _part_rows(claim, decision)
    numbers = pd.DataFrame(parts, columns=list(PART_COLUMNS)).astype({"n": "Int64"})
    return Verdicts(pd.DataFrame(claims, columns=list(COLUMNS)), numbers)


def conditions_of(claim: Mapping[Hashable, Any]) -> tuple[Condition, ...]:
    """Return the thresholds of a row of ``workflow/paper/claims.csv``; none if it sets no number."""
    holds_when = claim["holds_when"]
    return parse_conditions(holds_when, claim["margin"]) if re.search(r"[<>]", holds_when) else ()


def _confirmed_if(claim: Mapping[Hashable, Any]) -> str:
    """Return what would confirm a claim: ``> 1 (margin 5 %)``."""
    condition = claim["holds_when"].replace(">=", "≥").replace("<=", "≤")
    return f"{condition} (margin {claim['margin']})" if claim["margin"] else condition


def published_sizes(text: str) -> list[float]:
    """Return the effects that a claim's ``published`` entry states: ``2.57``, ``0.82 vs 0.80`` or ``1.3 / 1.2 / 1.6``.

    None if it states none that can be compared, such as an order of growth.
    """
    number = r"\d+(?:\.\d+)?"
    if match := re.fullmatch(rf"({number}) vs ({number})", text):
        return [float(match[1]) - float(match[2])]
    return [float(part) for part in text.split(" / ")] if re.fullmatch(rf"{number}(?: / {number})*", text) else []


def _published_by_part(text: str, decision: Decision) -> dict[str, float]:
    """Return the published effect that each part is compared with; a single one is compared with every part."""
    named = decision.estimates if decision.published_of is None else decision.published_of
    names = [name for name in named if name in decision.estimates]
    sizes = published_sizes(text)
    if len(sizes) == 1:
        sizes *= len(names)
    return dict(zip(names, sizes, strict=True)) if len(sizes) == len(names) else {}


def _published_inside(text: str, decision: Decision) -> str:
    """Return whether the published effects lie inside the intervals, part by part; empty if that cannot be told."""
    sizes, estimates = _published_by_part(text, decision), decision.estimates
    if not all(estimates[name].has_interval for name in sizes):
        return ""
    inside = {name: estimates[name].low <= size <= estimates[name].high for name, size in sizes.items()}
    return _listed({name: "yes" if is_inside else "no" for name, is_inside in inside.items()})


def _part_rows(claim: Mapping[Hashable, Any], decision: Decision) -> Iterator[dict[str, Any]]:
    sizes = _published_by_part(claim["published"], decision)
    for part in decision.parts:
        row: dict[str, Any] = {"id": claim["id"], "part": part.name, "verdict": part.verdict}
        if (estimate := part.estimate) is not None:
            row |= {name: getattr(estimate, name) for name in ("value", "low", "high", "n", "is_ratio")}
            row |= {"statistic": estimate.statistic, "interval_method": estimate.interval_method}
        if (condition := part.condition) is not None:
            row |= {"comparison": condition.comparison, "threshold": condition.threshold}
            row |= {"bound": condition.bound(part.fall), "margin": str(condition.margin or "")}
        yield row | {"published": sizes.get(part.name)}


def _smallest_visible(decision: Decision) -> str:
    """Return the smallest effects that an undecided claim's intervals could have seen; empty for other claims."""
    if decision.verdict not in ("inconclusive", "no difference"):
        return ""
    visible = {name: _effect(estimate) for name, estimate in decision.estimates.items()}
    return _listed({name: effect for name, effect in visible.items() if effect})


def _effect(estimate: Estimate) -> str:
    size = estimate.smallest_visible
    if size is None:
        return ""
    return f"{100 * (size - 1):.2g} %" if estimate.is_ratio else wording.number(size)


def _listed(by_part: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {text}" if name else text for name, text in by_part.items())


def _row(claim: Mapping[Hashable, Any], decision: Decision, results: Results) -> dict[str, Any]:
    tier, is_tested = results.tier, decision.verdict != "not tested"
    evidence = decision.evidence
    if is_tested and not evidence and tier != "paper":
        evidence = f"measured at the {tier} tier, no reproduction of the paper's number"
    return {
        "id": claim["id"],
        "verdict": decision.verdict,
        "claim": claim["claim"],
        "quantity": claim["quantity"],
        "published": claim["published"],
        "measured": decision.measured,
        "interval": decision.interval,
        "measured_interval": decision.with_intervals,
        "confirmed_if": _confirmed_if(claim),
        "published_inside": _published_inside(claim["published"], decision),
        "smallest_visible": _smallest_visible(decision),
        "seeds": decision.seeds,
        "evidence": evidence,
        "why": decision.why,
        "details": decision.details,
        "disputed": DISPUTED.get(claim["id"], "") if is_tested else "",
        "source": claim["source"],
        "tier": tier if is_tested else "",
        "look": f"{results.look} of {results.looks}",
        "data": decision.data,
    }
