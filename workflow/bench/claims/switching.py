"""The claim about MKOR-H, which switches to its base optimizer: C25.

The paper states scores: those after fine-tuning from MKOR-H's pre-training are compared with those from MKOR's of the
same rule and steps. The final loss of an autoencoder stands beside, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pandas as pd

from workflow.bench.analysis.curves import by_seed, fall_of, last_common_values
from workflow.bench.analysis.estimates import paired_difference, studies_of
from workflow.bench.analysis.wording import integer_ranges, number
from workflow.bench.claims.decision import (
    Condition,
    Decision,
    Trained,
    not_tested,
    sentences,
    statistics_used,
    with_interval,
)
from workflow.bench.claims.finetuning import average_difference
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import NO_SOURCES, Sources, from_runs
from workflow.bench.results.tables import NoDataError

LATEST: Final = 0.75
"""The share of the steps after which a switch tests nothing: a decaying rate has left little to change."""
_FORM: Final = ("update_rule", "gradient_norm", "gradient_scale", "window", "sides")
"""Hyperparameters in which MKOR-H and the MKOR that it is compared with must agree."""


@dataclass(frozen=True)
class _Switch:
    """MKOR-H's runs in one experiment: those that switched, and the label to compare them with."""

    switched: pd.DataFrame
    partner: str
    share: float
    """The median share of the steps after which they switched."""
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
    share = float((switched["switch_step"] / switched["steps"]).astype(float).median())
    sentence = (
        f"In {trained.name} MKOR-H switched in {len(switched)} of {len(ended)} runs, at step "
        f"{integer_ranges(switched['switch_step'])} of {budget}, {100 * share:.0f} % of the run in the median; these "
        "are compared."
    )
    return _Switch(switched, str(partners[0]), share, sentence)


def _form(hyperparameters: Mapping[str, object]) -> list[object]:
    return [hyperparameters.get(name) for name in _FORM]


def _final_losses(trained: Trained) -> tuple[str, Sources]:
    """Return a sentence on the final validation loss of an experiment, MKOR-H's minus MKOR's, and its sources."""
    switch = _switch(trained)
    if isinstance(switch, str):
        return "", NO_SOURCES
    losses, partners = trained.validation_losses(), trained.of_labels(switch.partner)
    try:
        last, _ = last_common_values(losses[losses["optimizer"].isin(("mkor_h", switch.partner))])
    except NoDataError:
        return "", NO_SOURCES
    hybrid, partner = (by_seed(last[last["run"].isin(rows["run"])]) for rows in (switch.switched, partners))
    # Seeds of one tuning study share its rates, and the error of their choice.
    difference = paired_difference(hybrid, partner, studies_of(switch.switched, partners))
    if difference is None:
        return "", NO_SOURCES
    fall = fall_of(losses[losses["optimizer"] == switch.partner])
    text = sentences(
        f"Not judged: the final validation loss in {trained.name}, mkor_h's minus {switch.partner}'s, is "
        f"{with_interval(difference)} ({statistics_used([difference])}); {switch.partner}'s falls by {number(fall)}.",
        switch.sentence,
    )
    return text, trained.sources("mkor_h", switch.partner)


def decide_switch(
    pretraining: Trained, autoencoder: Trained, glue: Trained, conditions: Sequence[Condition]
) -> Decision:
    """Decide C25: the average score after fine-tuning, MKOR-H's minus MKOR's.

    Only seeds in which MKOR-H switched count, because without a switch it is MKOR. It is not tested if the switch came
    after `LATEST` of the steps.

    Args:
        pretraining: the experiment that the fine-tuning starts from.
        autoencoder: ``autoencoder_lamb``, whose losses stand in the details.
        glue: ``bert_glue``.
        conditions: the claim's threshold.
    """
    beside, data = _final_losses(autoencoder)
    switch = _switch(pretraining)
    if isinstance(switch, str):
        return not_tested(switch, beside, data)
    if switch.share > LATEST:
        return not_tested(f"It came too late to test anything: {switch.sentence}", beside, data)
    compared = replace(glue, runs=glue.runs[glue.runs["seed"].isin(switch.switched["seed"])])
    decision = average_difference(compared, conditions[0], "mkor_h", switch.partner)
    if decision.verdict == "not tested":
        return not_tested(decision.why, beside, data)
    data += decision.data + from_runs(f"{pretraining.name}.runs.csv", pretraining.of_labels("mkor_h"))
    return replace(decision, details=sentences(switch.sentence, decision.details, beside), data=data)
