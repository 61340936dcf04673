"""The verdict on every claim of the paper: confirmed, refuted, no difference, inconclusive, or not tested.

Each ``decide_*`` is a pure function from tidy frames and the thresholds in ``workflow/paper/claims.csv`` to a
`Decision`. Results of a small tier are evidence about a claim's direction, never a reproduction of its number.
"""

from __future__ import annotations

import dataclasses
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
    costs,
    finetuning,
    hyperparameters,
    numerics,
    over_lamb,
    rank1,
    switching,
    time_to_target,
)
from workflow.bench.claims.decision import Condition, Decision, Trained, listed, not_tested, parse_conditions
from workflow.bench.claims.over_lamb import Evidence
from workflow.bench.claims.proxies import BESIDE, OWN_TIER, proxies_of, threshold_of, worded
from workflow.bench.results.tables import Results, published
from workflow.bench.support.load import is_busy

PART_COLUMNS: Final = (
    *("id", "part", "verdict", "value", "low", "high", "statistic", "interval_method", "n", "is_ratio"),
    *("comparison", "threshold", "bound", "margin", "published"),
)
Rule = Callable[[Results, Sequence[Condition]], Decision]
"""A function from results and a claim's thresholds to a decision."""
Judge = Callable[[pd.DataFrame, Sequence[Condition]], Decision]
"""A function from a probe's rows and a claim's thresholds to a decision."""


def _of_probe(name: str, judge: Judge, results: Results, conditions: Sequence[Condition]) -> Decision:
    """Decide a claim by the rows of one probe."""
    rows = results.probe(name)
    if rows.empty:
        return not_tested(f"The probe {name} has not run.")
    if "busy_share" in rows and (busy := rows["busy_share"].astype(float).map(is_busy)).any():
        return not_tested(
            f"The machine was busy: other processes took up to {rows['busy_share'].max():.0%} of the cores in "
            f"{busy.sum()} of {len(rows)} rows of {name}.csv."
        )
    return _at_one_look(judge, rows, conditions)


def _at_one_look(judge: Callable[..., Decision], *given: Any) -> Decision:
    # Rounds of seeds add no rows to a probe, so that all looks are one, and its intervals have the level of one.
    with looks(1):
        return judge(*given)


def _scaling(results: Results, conditions: Sequence[Condition]) -> Decision:
    # Both are read, so that a damaged or outdated projection is named even where nothing was measured yet.
    times, model = results.probe("scaling"), results.probe("projection")
    if times.empty:
        return not_tested("The probe scaling has not run.")
    return _at_one_look(costs.decide_scaling, times, model, conditions)


def _switch(results: Results, conditions: Sequence[Condition]) -> Decision:
    # At small tiers another pre-training stands in: the fine-tuning's runs say which they started from.
    autoencoder, glue = (Trained.of(results, name) for name in ("autoencoder_lamb", "bert_glue"))
    pretrained = Trained.of(results, pretraining_experiment(results, glue.runs))
    return switching.decide_switch(pretrained, autoencoder, glue, conditions)


def _speedup(claim: str, results: Results, conditions: Sequence[Condition]) -> Decision:
    experiment, rivals = time_to_target.SPEEDUPS[claim]
    times = StepTimes(results.probe("step_time"))
    return time_to_target.decide_speedup(Trained.of(results, experiment), times, conditions, *rivals)


def _glue(claim: str, contender: str, results: Results, conditions: Sequence[Condition]) -> Decision:
    stated = published_sizes(str(published("claims", as_text=True).set_index("id").loc[claim, "published"]))
    return finetuning.decide_glue_average(Trained.of(results, "bert_glue"), conditions, contender, *stated)


RULES: Final[Mapping[str, Rule]] = {
    # The abstract compares times with LAMB and KAISA, table 2 iterations with LAMB, table 3 scores.
    "C01": lambda results, given: over_lamb.decide_hybrid_time(Evidence.of(results), given, over_lamb.RIVALS["C01"]),
    "C02": lambda results, given: over_lamb.decide_hybrid_time(Evidence.of(results), given, over_lamb.RIVALS["C02"]),
    "C03": lambda results, given: over_lamb.decide_iterations_to_target(Evidence.of(results), given),
    "C04": partial(_glue, "C04", "mkor"),
    "C05": partial(_glue, "C05", "kaisa"),
    "C06": partial(_speedup, "C06"),
    "C07": partial(_speedup, "C07"),
    "C08": partial(_of_probe, "iteration_time", costs.decide_period_cost),
    "C09": lambda results, given: hyperparameters.decide_period_loss(
        Trained.of(results, "autoencoder_inversion"), given
    ),
    "C10": partial(_of_probe, "cost_scaling", costs.decide_factor_share),
    "C11": partial(_of_probe, "cost_scaling", costs.decide_update_cost),
    "C12": partial(_of_probe, "communication", costs.decide_bytes),
    "C13": partial(_of_probe, "memory", costs.decide_memory),
    "C14": partial(_of_probe, "rank1_error", rank1.decide_rank1_error),
    "C15": partial(_of_probe, "rank1_error", rank1.decide_mean_vector),
    "C16": partial(_of_probe, "rank1_error", rank1.decide_decay),
    "C17": partial(_of_probe, "spectra", rank1.decide_singular_factors),
    "C18": lambda results, given: hyperparameters.decide_sensitivity(Trained.of(results, "resnet_cifar10_lr"), given),
    "C19": partial(_speedup, "C19"),
    "C20": partial(_of_probe, "numerics", numerics.decide_positive_definite),
    "C21": partial(_of_probe, "numerics", numerics.decide_inverse),
    "C22": partial(_of_probe, "half_precision", lambda rows, _: numerics.decide_half_precision(rows)),
    "C23": partial(_of_probe, "numerics", numerics.decide_descent),
    "C24": _scaling,
    "C25": _switch,
}
"""The rule of each claim in ``workflow/paper/claims.csv``, with what it reads."""


class Verdicts(NamedTuple):
    """The verdicts on all claims, in the paper's order."""

    claims: pd.DataFrame
    """One row a claim, with the keys of `_row` as columns."""
    parts: pd.DataFrame
    """One row for each part of each claim, with the columns `PART_COLUMNS`: the numbers behind the verdicts."""


def decide_all(results: Results) -> Verdicts:
    """Decide every claim."""
    claims: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    # As text: '0.8214 vs 0.8023' is no number, and an empty entry must stay empty.
    for claim in published("claims", as_text=True).to_dict("records"):
        decision = RULES[claim["id"]](results, conditions_of(claim))
        claims.append(_row(claim, decision, results))
        parts += _part_rows(claim, decision)
    numbers = pd.DataFrame(parts, columns=list(PART_COLUMNS)).astype({"n": "Int64"})
    return Verdicts(pd.DataFrame(claims), numbers)


def conditions_of(claim: Mapping[Hashable, Any]) -> tuple[Condition, ...]:
    """Return the thresholds of a row of ``workflow/paper/claims.csv``; none if it sets no number."""
    holds_when = claim["holds_when"]
    return parse_conditions(holds_when, claim["margin"]) if re.search(r"[<>]", holds_when) else ()


def published_sizes(text: str) -> list[float]:
    """Return the effects that a claim's ``published`` entry states: ``2.57``, ``0.82 vs 0.80`` or ``1.3 / 1.2 / 1.6``.

    Empty if it states none that can be compared, such as an order of growth.
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
    # One number, such as an average over models, is held against every part; else each part has its own.
    if len(sizes) == 1:
        sizes *= len(names)
    return dict(zip(names, sizes, strict=True)) if len(sizes) == len(names) else {}


def _published_inside(text: str, decision: Decision) -> str:
    """Return whether the published effects lie inside the intervals, part by part; empty if that cannot be told."""
    sizes, estimates = _published_by_part(text, decision), decision.estimates
    # A yes for some parts and nothing for others would read as a yes for all.
    if not all(estimates[name].has_interval for name in sizes):
        return ""
    inside = {name: estimates[name].contains(size) for name, size in sizes.items()}
    return listed({name: "yes" if is_inside else "no" for name, is_inside in inside.items()})


def _part_rows(claim: Mapping[Hashable, Any], decision: Decision) -> Iterator[dict[str, Any]]:
    sizes = _published_by_part(claim["published"], decision)
    for part in decision.parts:
        row: dict[str, Any] = {"id": claim["id"], "part": part.name, "verdict": part.verdict}
        if (estimate := part.estimate) is not None:
            row |= dataclasses.asdict(estimate)
        if (condition := part.condition) is not None:
            row |= {"comparison": condition.comparison, "threshold": condition.threshold}
            row |= {"bound": condition.bound(part.fall), "margin": str(condition.margin or "")}
        yield row | {"published": sizes.get(part.name)}


def _smallest_visible(decision: Decision) -> str:
    """Return the smallest effects that an undecided claim's intervals could have seen; empty for other claims."""
    if decision.verdict not in ("inconclusive", "no difference"):
        return ""
    return listed({name: _effect(estimate) for name, estimate in decision.estimates.items()})


def _effect(estimate: Estimate) -> str:
    size = estimate.smallest_visible
    if size is None:
        return ""
    return f"{100 * (size - 1):.2g} %" if estimate.is_ratio else wording.number(size)


def _row(claim: Mapping[Hashable, Any], decision: Decision, results: Results) -> dict[str, Any]:
    tier, is_tested = results.tier, decision.verdict != "not tested"
    holds_when, margin = claim["holds_when"].replace(">=", "≥").replace("<=", "≤"), claim["margin"]
    evidence = decision.evidence
    proxy = proxies_of(claim["id"], str(decision.data), results, BESIDE.get(claim["id"], ""))
    # A small tier is evidence about a claim's direction; only mathematics is the same at every tier.
    if is_tested and not evidence and tier != OWN_TIER:
        evidence = f"measured at the {tier} tier, no reproduction of the paper's number"
    return {
        "id": claim["id"],
        "verdict": decision.verdict,
        "claim": claim["claim"],
        "proxy": proxy,
        "quantity": claim["quantity"],
        "unit": claim["unit"],
        "threshold": threshold_of(claim["holds_when"]),
        "wording": worded(decision.parts, proxy, tier, claim["concedes"]),
        "published": claim["published"],
        "measured": decision.measured,
        "interval": decision.interval,
        "measured_interval": listed({part.name: f"{part.measured} {part.interval}".strip() for part in decision.parts}),
        "confirmed_if": f"{holds_when} (margin {margin})" if margin else holds_when,
        "published_inside": _published_inside(claim["published"], decision),
        "smallest_visible": _smallest_visible(decision),
        "seeds": decision.seeds,
        "evidence": evidence,
        "why": decision.why,
        "details": decision.details,
        "source": claim["source"],
        "tier": tier if is_tested else "",
        "look": f"{results.look} of {results.looks}",
        "data": decision.data,
    }
