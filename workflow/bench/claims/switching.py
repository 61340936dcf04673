"""The claim about MKOR-H, which switches to its base optimizer: C25.

Two comparisons with MKOR of the same rule and steps may be its parts: the scores after fine-tuning from BERT's
pre-training, and the final loss of an autoencoder. The autoencoder carries the claim where it has runs; the fine-tuning
does where it has not, or where the pre-training has a target, which says that methods separate at that size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pandas as pd

from workflow.bench.analysis.curves import by_seed, fall_of, last_common_values
from workflow.bench.analysis.estimates import difference_over_studies, studies_of
from workflow.bench.analysis.wording import integer_ranges, number
from workflow.bench.claims.decision import (
    Condition,
    Decision,
    Part,
    Trained,
    left_out,
    not_tested,
    part_verdicts,
    sentences,
    statistics_used,
)
from workflow.bench.claims.finetuning import average_difference
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import NO_SOURCES, from_runs
from workflow.bench.results.tables import NoDataError

GLUE: Final = "average score"
AUTOENCODER: Final = "autoencoder's final loss"
"""The names of the parts."""
_FORM: Final = ("update_rule", "gradient_norm", "gradient_scale", "window", "sides")
"""Hyperparameters in which MKOR-H and the MKOR that it is compared with must agree."""


@dataclass(frozen=True)
class _Switch:
    """MKOR-H's runs in one experiment: those that switched, and the label to compare them with."""

    switched: pd.DataFrame
    partner: str
    sentence: str
    """How many of its runs switched, and when."""


def _switch(trained: Trained) -> _Switch | str:
    """Return what MKOR-H did in an experiment, or a sentence on why it cannot be compared."""
    if lacks := trained.lacking("mkor_h"):
        return lacks
    ended = trained.of_labels("mkor_h")
    ended = ended[ended["status"].isin(ENDED)]
    switched = ended[ended["switch_step"].notna()]
    budget = integer_ranges(ended["steps"])
    if switched.empty:
        return f"MKOR-H switched to its base in none of {len(ended)} runs of {budget} steps in {trained.name}."
    # A budget sets the decay of the rate: MKOR with other steps is another training.
    candidates = trained.runs[(trained.runs["method"] == "mkor") & trained.runs["steps"].isin(ended["steps"])]
    # MKOR with both sides acting is no MKOR-H without its switch.
    form = _form(ended["hyperparameters"].iloc[0])
    partners = candidates.loc[[_form(given) == form for given in candidates["hyperparameters"]], "optimizer"].unique()
    if len(partners) == 0:
        return f"{trained.name} has no MKOR with the rule and the steps of MKOR-H."
    sentence = (
        f"In {trained.name} MKOR-H switched in {len(switched)} of {len(ended)} runs, at step "
        f"{integer_ranges(switched['switch_step'])} of {budget}; these are compared."
    )
    return _Switch(switched, str(partners[0]), sentence)


def _form(hyperparameters: Mapping[str, object]) -> list[object]:
    return [hyperparameters.get(name) for name in _FORM]


def _scores(pretraining: Trained, glue: Trained, condition: Condition) -> Decision:
    """Compare the average over the fine-tuning tasks."""
    switch = _switch(pretraining)
    if isinstance(switch, str):
        return _untested(GLUE, switch)
    compared = replace(glue, runs=glue.runs[glue.runs["seed"].isin(switch.switched["seed"])])
    decision = average_difference(compared, condition, "mkor_h", switch.partner, GLUE)
    if decision.verdict == "not tested":
        return _untested(GLUE, decision.why)
    data = decision.data + from_runs(f"{pretraining.name}.runs.csv", pretraining.of_labels("mkor_h"))
    return replace(decision, details=sentences(switch.sentence, decision.details), data=data)


def _untested(name: str, why: str) -> Decision:
    return Decision((Part(name, "not tested", ""),), why, details=why)


def _losses(trained: Trained, condition: Condition) -> Decision:
    """Compare the final validation loss of the autoencoder, with a margin that is a share of the base's fall."""
    switch = _switch(trained)
    if isinstance(switch, str):
        return _untested(AUTOENCODER, switch)
    base = str(switch.switched["hyperparameters"].iloc[0].get("base"))
    if lacks := trained.lacking(base, switch.partner):
        return _untested(AUTOENCODER, lacks)
    losses = trained.validation_losses()
    try:
        last, _ = last_common_values(losses[losses["optimizer"].isin(("mkor_h", switch.partner))])
    except NoDataError:
        return _untested(AUTOENCODER, f"No run of mkor_h or {switch.partner} in {trained.name} has finished.")
    partners = trained.of_labels(switch.partner)
    hybrid, partner = (by_seed(last[last["run"].isin(rows["run"])]) for rows in (switch.switched, partners))
    # Seeds of one tuning study share its rates, and the error of their choice.
    difference = difference_over_studies(hybrid, partner, studies_of(switch.switched, partners))
    if difference is None:
        return _untested(AUTOENCODER, f"No seed of {trained.name} has finished with both mkor_h and {switch.partner}.")
    fall = fall_of(losses[losses["optimizer"] == base])
    if math.isnan(fall):
        return _untested(AUTOENCODER, f"No run of {base} in {trained.name} has finished.")
    part = Part.judged(AUTOENCODER, difference, condition, fall)
    seeds = sorted(hybrid.keys() & partner.keys())
    broken = sum(math.isinf(of_label[seed]) for seed in seeds for of_label in (hybrid, partner))
    if broken:  # without those runs, the label whose runs broke down would look better than it is
        part = replace(part, verdict="inconclusive")
    labels = (base, "mkor_h", switch.partner)
    details = sentences(
        switch.sentence,
        f"mkor_h's final validation loss minus {switch.partner}'s ({statistics_used([difference])}); {base}'s falls by "
        f"{number(fall)}.",
        f"{broken} runs broke down." if broken else "",
        left_out(trained.of_labels(*labels)),
    )
    return Decision((part,), "", details, integer_ranges(seeds), data=trained.sources(*labels))


def decide_switch(
    pretraining: Trained, autoencoder: Trained, glue: Trained, conditions: Sequence[Condition]
) -> Decision:
    """Decide C25: MKOR-H's average score minus MKOR's, its final loss minus MKOR's, or both.

    Only seeds in which MKOR-H switched count, because without a switch it is MKOR.

    Args:
        pretraining: the experiment that the fine-tuning starts from.
        autoencoder: ``autoencoder_lamb``.
        glue: ``bert_glue``.
        conditions: the claim's thresholds: of the score, and of the loss.
    """
    of_score, of_loss = conditions
    scores = _scores(pretraining, glue, of_score)
    judged, beside = [scores], []
    # A pre-training without a target separates no methods at its size, so that its scores are no evidence.
    if not autoencoder.runs.empty:
        judged = [_losses(autoencoder, of_loss)]
        if pretraining.has_target:
            judged.insert(0, scores)
        elif scores.verdict != "not tested":
            beside = [scores]
    tested = [side for side in judged if side.verdict != "not tested"]
    if not tested:
        return not_tested(" ".join(side.why for side in judged))
    parts = [side.parts[0] for side in judged]
    return Decision(
        tuple(parts),
        f"After its switch, MKOR-H minus MKOR: {part_verdicts(parts)}.",
        sentences(
            *(side.details for side in judged),
            *(f"Not judged: {GLUE} {part.measured} {part.interval}." for side in beside for part in side.parts),
        ),
        "; ".join(dict.fromkeys(side.seeds for side in tested)),
        data=sum((side.data for side in (*tested, *beside)), NO_SOURCES),
        # The paper states scores; the loss stands in for them where no scores separate the methods.
        published_of=(GLUE,),
    )
