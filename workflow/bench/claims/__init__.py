"""Every claim of the paper and what the runs say of it: confirmed, refuted, inconclusive, or not tested.

Each ``decide_*`` is a pure function from tidy frames and the thresholds in ``workflow/paper/claims.csv`` to a
`Decision`.  What a small tier shows is evidence about a claim's direction, never a reproduction of its number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import pandas as pd

from workflow.bench.claims import numerics, rank1, timing, training
from workflow.bench.claims.decision import Decision, capital, not_tested
from workflow.bench.claims.verdicts import Condition, parse_conditions
from workflow.bench.results.tables import Results, published

COLUMNS: Final = (
    "id",
    "source",
    "claim",
    "published",
    "measured",
    "interval",
    "seeds",
    "tier",
    "verdict",
    "evidence",
    "why",
    "details",
    "data",
)
Rule = Callable[[Results, str], Decision]
"""From results and a claim's ``holds_when`` to a decision."""
Judge = Callable[[pd.DataFrame, Sequence[Condition]], Decision]


def _of_probe(name: str, judge: Judge) -> Rule:
    """A claim decided by one probe."""

    def rule(results: Results, holds_when: str) -> Decision:
        rows = results.probe(name)
        if rows.empty:
            return not_tested(f"The probe {name} has not run.")
        return judge(rows, parse_conditions(holds_when))

    return rule


def _half_precision(results: Results, _: str) -> Decision:
    """C22; its entry sets no number."""
    rows = results.probe("half_precision")
    return numerics.decide_half_precision(rows) if len(rows) else not_tested("The probe half_precision has not run.")


def _sensitivity(results: Results, _: str) -> Decision:
    """C18; its entry sets no number."""
    return training.decide_sensitivity(results.runs("resnet_cifar10_lr"))


def _hybrid_time(results: Results, holds_when: str, *, rival: str) -> Decision:
    return training.decide_hybrid_time(
        results.runs("bert_pretraining"),
        results.runs("bert_squad"),
        results.metrics("bert_squad"),
        parse_conditions(holds_when),
        rival=rival,
    )


def _iterations(results: Results, holds_when: str) -> Decision:
    return training.decide_iterations_to_target(
        results.runs("bert_pretraining"), results.runs("bert_squad"), parse_conditions(holds_when)
    )


def _glue_average(results: Results, holds_when: str, *, contender: str) -> Decision:
    return training.decide_glue_average(
        results.metrics("bert_glue"), results.runs("bert_glue"), parse_conditions(holds_when), contender=contender
    )


def _switch(results: Results, holds_when: str) -> Decision:
    return training.decide_switch(
        results.metrics("bert_glue"),
        results.runs("bert_glue"),
        results.runs("bert_pretraining"),
        parse_conditions(holds_when),
    )


def _speedup(results: Results, holds_when: str, *, experiment: str, rivals: tuple[str, ...]) -> Decision:
    return training.decide_speedup(experiment, results.runs(experiment), parse_conditions(holds_when), rivals=rivals)


def _period_loss(results: Results, holds_when: str) -> Decision:
    names = ("autoencoder_inversion", "bert_inversion")
    return training.decide_period_loss({name: results.metrics(name) for name in names}, parse_conditions(holds_when))


RULES: Final[Mapping[str, Rule]] = {
    "C01": partial(_hybrid_time, rival="lamb"),
    "C02": partial(_hybrid_time, rival="kaisa"),
    "C03": _iterations,
    "C04": partial(_glue_average, contender="mkor"),
    "C05": partial(_glue_average, contender="kaisa"),
    "C06": partial(_speedup, experiment="resnet50_imagenet", rivals=("sgd",)),
    "C07": partial(_speedup, experiment="resnet50_imagenet", rivals=("kaisa",)),
    "C08": _of_probe("iteration_time", timing.decide_period_cost),
    "C09": _period_loss,
    "C10": _of_probe("step_breakdown", timing.decide_factor_share),
    "C11": _of_probe("cost_scaling", timing.decide_update_cost),
    "C12": _of_probe("communication", timing.decide_bytes),
    "C13": _of_probe("memory", timing.decide_memory),
    "C14": _of_probe("rank1_error", rank1.decide_rank1_error),
    "C15": _of_probe("rank1_error", rank1.decide_mean_vector),
    "C16": _of_probe("rank1_error", rank1.decide_decay),
    "C17": _of_probe("spectra", rank1.decide_singular_factors),
    "C18": _sensitivity,
    "C19": partial(_speedup, experiment="alexnet_cifar100", rivals=("sgd", "hylo", "kaisa")),
    "C20": _of_probe("numerics", numerics.decide_positive_definite),
    "C21": _of_probe("numerics", numerics.decide_inverse),
    "C22": _half_precision,
    "C23": _of_probe("numerics", numerics.decide_descent),
    "C24": _of_probe("scaling", timing.decide_scaling),
    "C25": _switch,
}
"""What decides each claim of ``workflow/paper/claims.csv``."""


def decide_all(results: Results) -> pd.DataFrame:
    """One row a claim, in the paper's order, with the columns `COLUMNS`."""
    rows = []
    for claim in published("claims").to_dict("records"):
        decision = RULES[claim["id"]](results, claim["holds_when"])
        tested = decision.verdict != "not tested"
        evidence = decision.evidence or (f"{results.tier} evidence" if tested and results.tier != "paper" else "")
        why = decision.why
        if evidence == f"{results.tier} evidence":
            why = f"{capital(evidence)}, no reproduction of the paper's number: {why}"
        value = claim["published"]
        rows.append(
            {
                "id": claim["id"],
                "source": claim["source"],
                "claim": claim["claim"],
                "published": "" if isinstance(value, float) and math.isnan(value) else value,
                "measured": decision.measured,
                "interval": decision.interval,
                "seeds": decision.seeds,
                "tier": results.tier if tested else "",
                "verdict": decision.verdict,
                "evidence": evidence,
                "why": why,
                "details": decision.details,
                "data": decision.data,
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))
