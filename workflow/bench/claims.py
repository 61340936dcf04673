"""Every claim of the paper and what the runs say of it: confirmed, refuted, inconclusive, or not tested.

Each ``decide_*`` is a pure function from tidy frames and the thresholds in ``workflow/paper/claims.csv`` to a
`Decision`.  What a small tier shows is evidence about a claim's direction, never a reproduction of its number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from workflow.bench.captions import number, spans
from workflow.bench.results import NoDataError, Results, by_seed, last_common_values, published
from workflow.bench.statistics import (
    Condition,
    Estimate,
    Verdict,
    agreement,
    all_of,
    extreme,
    paired_difference,
    paired_ratio,
    parse_conditions,
    to_target,
)

PROBE_COLUMNS: Final = {
    "iteration_time": ("workload", "optimizer", "inverse_update_period", "repeat", "iteration_ms"),
    "numerics": ("check", "update_rule", "dtype", "dimension", "trial", "value"),
}
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
    "data",
)

NOT_TESTED: Final[dict[str, str]] = {
    "C01": "Needs MKOR-H and fine-tuning on SQuAD from pre-trained checkpoints; BERT is only pre-trained here.",
    "C02": "Needs MKOR-H and the time to LAMB's SQuAD F1; BERT is only pre-trained here.",
    "C04": "Needs fine-tuning on the eight GLUE tasks; BERT is only pre-trained here.",
    "C05": "Needs fine-tuning on the eight GLUE tasks; BERT is only pre-trained here.",
    "C06": "Needs ResNet-50 trained to 75.9 % on ImageNet; no convolutional network is trained here.",
    "C07": "Needs ResNet-50 trained to 75.9 % on ImageNet; no convolutional network is trained here.",
    "C10": "Needs the factor, precondition and update times of a step measured apart, HyLo's too.",
    "C11": "Needs the factor update timed over layer widths d = 256 to 4096, with fitted slopes.",
    "C12": "Needs the bytes of collectives counted on two or more processes over layer widths.",
    "C13": "Needs the memory probe: peak and state bytes of each optimizer over its base.",
    "C14": "Needs the covariances of every layer and their best rank-1 approximations over training.",
    "C15": "Needs the rank-1 errors of the mean vectors beside the best rank-1 ones in every layer.",
    "C16": "Needs the rank-1 errors followed over training.",
    "C17": "Needs the spectra of KFAC's right factors followed over training.",
    "C18": "Needs the grid of four learning rates on a ResNet for MKOR, KAISA, HyLo and SGD.",
    "C19": "Needs AlexNet on CIFAR-100 with HyLo-KIS among the rivals.",
    "C22": "Needs factors kept in half precision compared with float64 over 10,000 updates.",
    "C24": "Needs 64 GPUs, or fewer workers and a model labelled as one.",
    "C25": "Needs MKOR-H and the GLUE average.",
}


@dataclass(frozen=True)
class Decision:
    """What the runs say of one claim, with the numbers and where they come from."""

    verdict: Verdict
    why: str
    measured: str = ""
    interval: str = ""
    seeds: str = ""
    evidence: str = ""
    data: str = ""


def _not_tested(why: str) -> Decision:
    return Decision("not tested", why)


def _interval(estimate: Estimate) -> str:
    """``[low, high]``, or why there is none."""
    if not estimate.has_interval:
        return "none (one value)" if estimate.n == 1 else "none (censored runs)"
    return f"[{number(estimate.low)}, {number(estimate.high)}]"


def _how(estimates: Iterable[Estimate]) -> str:
    """How the estimates summarise and what their intervals are, once each."""
    return "; ".join(dict.fromkeys(f"{estimate.statistic}, 95 % {estimate.method} interval" for estimate in estimates))


def _runs_of(file: str, frame: pd.DataFrame) -> str:
    """Where a number comes from: the CSV and the ids of the runs."""
    return f"{file}: runs {', '.join(dict.fromkeys(frame['run'].astype(str)))}"


def decide_iterations_to_target(runs: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C03: iterations to the target, MKOR's over LAMB's, paired by seed, from ``bert_pretraining.runs.csv``."""
    labels = ("lamb", "mkor", "mkor_released")
    steps = {label: to_target(runs[runs["optimizer"] == label], "steps") for label in labels}
    for label in ("lamb", "mkor"):
        if not steps[label]:
            return _not_tested(f"No run of {label} in bert_pretraining has ended.")
    if runs["target"].dropna().empty:
        return _not_tested("bert_pretraining sets no target.")
    used = runs[runs["optimizer"].isin(("lamb", "mkor"))]
    data = _runs_of("bert_pretraining.runs.csv", used)
    shared = sorted(steps["lamb"].keys() & steps["mkor"].keys())
    ratio = paired_ratio(steps["mkor"], steps["lamb"])
    if ratio is None:
        return Decision(
            "inconclusive",
            "Neither LAMB nor MKOR reached the target of the validation loss within the steps of a run.",
            seeds=spans(shared),
            data=data,
        )
    counts = {label: ", ".join(number(steps[label][seed]) for seed in shared) for label in ("mkor", "lamb")}
    why = (
        f"Iterations to the target of the validation loss ({_how([ratio])}): MKOR with the exact rule "
        f"{counts['mkor']}; LAMB {counts['lamb']}."
    )
    released = paired_ratio(steps["mkor_released"], steps["lamb"])
    if released is not None:
        why += f" With the released rule the ratio is {number(released.value)} {_interval(released)}."
    # Iterations are known to the next evaluation only: a tie in every seed may hide either order.
    tied = all(steps["mkor"][seed] == steps["lamb"][seed] for seed in shared)
    if tied:
        why += " They tie in every seed, as finely as the runs are evaluated."
    return Decision(
        "inconclusive" if tied else conditions[0].judge(ratio),
        f"{why} The paper's number is of SQuAD F1 after pre-training BERT-Large.",
        measured=number(ratio.value),
        interval=_interval(ratio),
        seeds=spans(shared),
        data=data,
    )


def _by_repeat(times: pd.DataFrame, period: int) -> Mapping[int, float]:
    rows = times[times["inverse_update_period"] == period]
    return {int(repeat): float(ms) for repeat, ms in zip(rows["repeat"], rows["iteration_ms"], strict=True)}


def _published_period_ratios() -> str:
    """The same ratios from the paper's own times."""
    times = published("iteration_time_ms")
    table = times.pivot_table(index=["model", "optimizer"], columns="inverse_update_period", values="iteration_ms")
    ratios = table[1] / table[100]
    return "; ".join(
        f"{model}: KAISA {number(ratios[model, 'KAISA'])}, MKOR {number(ratios[model, 'MKOR'])}"
        for model in dict.fromkeys(times["model"])
    )


def decide_period_cost(times: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C08: mean iteration time at period 1 over that at 100, KAISA's and MKOR's, from ``iteration_time.csv``.

    A workload confirms where both optimizers hold; the claim needs the workloads to agree.
    """
    measured, intervals, verdicts = [], [], []
    estimates: list[Estimate] = []
    for workload, rows in times.groupby("workload"):
        ratios: dict[str, Estimate] = {}
        for condition in conditions:
            of_optimizer = rows[rows["optimizer"] == condition.subject.lower()]
            ratio = paired_ratio(_by_repeat(of_optimizer, 1), _by_repeat(of_optimizer, 100))
            if ratio is not None:
                ratios[condition.subject] = ratio
        if len(ratios) < len(conditions):
            continue
        verdict = all_of([condition.judge(ratios[condition.subject]) for condition in conditions])
        verdicts.append((str(workload), verdict))
        measured.append(f"{workload}: " + ", ".join(f"{who} {number(ratio.value)}" for who, ratio in ratios.items()))
        intervals.append(f"{workload}: " + ", ".join(f"{who} {_interval(ratio)}" for who, ratio in ratios.items()))
        estimates += ratios.values()
    if not verdicts:
        return _not_tested("The probe iteration_time has no pair of periods 1 and 100 of both KAISA and MKOR.")
    repeats = int(times.groupby(["workload", "optimizer", "inverse_update_period"])["repeat"].nunique().min())
    each = "; ".join(f"{workload} {verdict}" for workload, verdict in verdicts)
    return Decision(
        agreement([verdict for _, verdict in verdicts]),
        f"By workload: {each} ({_how(estimates)}). MKOR is the exact rule. The paper's own times give "
        f"{_published_period_ratios()}.",
        measured="; ".join(measured),
        interval="; ".join(intervals),
        seeds=f"{repeats} repeats",
        data="probes/iteration_time.csv: optimizer kaisa and mkor, periods 1 and 100",
    )


@dataclass(frozen=True)
class _Contrast:
    """One optimizer's loss at a rare update period minus that at a frequent one, on one workload."""

    name: str
    workload: str
    difference: Estimate
    verdict: Verdict
    seeds: frozenset[int]
    unfinished: int
    data: str


def _contrast(experiment: str, rows: pd.DataFrame, condition: Condition, rare: int, often: int) -> _Contrast | None:
    """The contrast of one optimizer's rows, or None where one of the periods has no finished run to pair."""
    try:
        last, step = last_common_values(rows)
    except NoDataError:
        return None
    by_period = {period: by_seed(at) for period, at in last.groupby("inverse_update_period")}
    if set(by_period) != {rare, often}:
        return None
    difference = paired_difference(by_period[rare], by_period[often])
    if difference is None:
        return None
    workload = str(last["workload"].iloc[0])
    unfinished = int(np.isinf(last["value"].astype(float)).sum())
    return _Contrast(
        name=f"{workload} {last['optimizer'].iloc[0]} after {step:g}",
        workload=workload,
        difference=difference,
        # Leaving out the runs that failed would make the period at which they failed look good.
        verdict="inconclusive" if unfinished else condition.judge(difference),
        seeds=frozenset(by_period[rare].keys() & by_period[often].keys()),
        unfinished=unfinished,
        data=_runs_of(f"{experiment}.csv", last),
    )


def decide_period_loss(
    metrics: Mapping[str, pd.DataFrame], conditions: Sequence[Condition], *, rare: int = 100, often: int = 10
) -> Decision:
    """C09: test loss at period ``rare`` minus that at ``often``, at equal iterations, paired by seed.

    ``metrics`` holds ``{experiment: rows of <experiment>.csv}``; every workload and optimizer is a contrast of
    its own, and the claim needs them to agree.
    """
    contrasts: list[_Contrast] = []
    for experiment, rows in metrics.items():
        losses = rows[
            (((rows["split"] == "validation") & (rows["metric"] == "loss")) | rows["split"].isna())
            & rows["inverse_update_period"].isin((rare, often))
        ]
        found = (
            _contrast(experiment, of_label, conditions[0], rare, often) for _, of_label in losses.groupby("optimizer")
        )
        contrasts += [contrast for contrast in found if contrast is not None]
    if not contrasts:
        return _not_tested(
            f"No finished pair of periods {often} and {rare} in {' or '.join(metrics) or 'any experiment'}."
        )
    each = "; ".join(f"{contrast.name} {contrast.verdict}" for contrast in contrasts)
    why = f"Each at its last iteration ({_how(contrast.difference for contrast in contrasts)}): {each}."
    failed = [f"{contrast.unfinished} of {contrast.name}" for contrast in contrasts if contrast.unfinished]
    if failed:
        why += f" Runs that did not finish: {', '.join(failed)}."
    seeds = {
        contrast.workload: frozenset[int]().union(*(c.seeds for c in contrasts if c.workload == contrast.workload))
        for contrast in contrasts
    }
    return Decision(
        agreement([contrast.verdict for contrast in contrasts]),
        why,
        measured="; ".join(f"{contrast.name}: {number(contrast.difference.value)}" for contrast in contrasts),
        interval="; ".join(f"{contrast.name}: {_interval(contrast.difference)}" for contrast in contrasts),
        seeds="; ".join(f"{workload} {spans(of_workload)}" for workload, of_workload in seeds.items()),
        data="; ".join(contrast.data for contrast in contrasts),
    )


def _check(numerics: pd.DataFrame, name: str, rule: str | None, dtype: str | None = None) -> pd.DataFrame:
    rows = numerics[numerics["check"] == name]
    if rule is not None:
        rows = rows[rows["update_rule"] == rule]
    return rows if dtype is None else rows[rows["dtype"] == dtype]


def _by_rule(rows: pd.DataFrame, which: str) -> str:
    """The worst value of each rule in words."""
    worst = rows.groupby("update_rule")["value"].agg("min" if which == "smallest" else "max")
    return ", ".join(f"{rule} {number(value)}" for rule, value in worst.items())


def decide_positive_definite(numerics: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C20: the smallest eigenvalue of the published rule's factor over random sequences of updates, float64."""
    rows = _check(numerics, "C20", "published", "float64")
    if rows.empty:
        return _not_tested("The probe numerics has no float64 eigenvalues of the published rule.")
    smallest = extreme(rows["value"].to_numpy(float), "minimum")
    why = (
        "The printed rule adds a positive multiple of (Jv)(Jv)^T to gamma J, so by mathematics no update can "
        f"cost positive definiteness; smallest eigenvalue of all {smallest.n} float64 sequences."
    )
    if {"updates", "of"} <= set(rows.columns):
        cut = int((rows["updates"] < rows["of"]).sum())
        if cut:
            why += (
                f" {cut} of them grew without bound and were followed only as far as float64 can tell an "
                "eigenvalue from rounding."
            )
    others = _check(numerics, "C20", None, "float64")
    return Decision(
        conditions[0].judge(smallest),
        f"{why} By rule: {_by_rule(others, 'smallest')}.",
        measured=number(smallest.value),
        interval=f"[{number(smallest.value)}, {number(float(rows['value'].max()))}] over all sequences",
        seeds=f"{smallest.n} sequences",
        evidence="mathematics and numerics, the same at every tier",
        data="probes/numerics.csv: check C20, update_rule published, float64",
    )


def decide_inverse(numerics: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C21: the residual of the published rule as the inverse of the averaged factor, float64."""
    rows = _check(numerics, "C21", "published", "float64")
    if rows.empty:
        return _not_tested("The probe numerics has no float64 residuals of the published rule.")
    largest = extreme(rows["value"].to_numpy(float), "maximum")
    why = (
        "Sherman-Morrison subtracts the rank-1 term and divides by gamma; the printed rule adds it and "
        f"multiplies by gamma. Largest residual by rule: {_by_rule(_check(numerics, 'C21', None), 'largest')}."
    )
    return Decision(
        conditions[0].judge(largest),
        why,
        measured=number(largest.value),
        interval=f"[{number(float(rows['value'].min()))}, {number(largest.value)}] over all trials",
        seeds=f"{largest.n} trials",
        evidence="mathematics and numerics, the same at every tier",
        data="probes/numerics.csv: check C21, update_rule published, float64",
    )


def decide_descent(numerics: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C23: the smallest cosine between the gradient and the preconditioned gradient in any training step."""
    rows = _check(numerics, "C23", None)
    if rows.empty:
        return _not_tested("The probe numerics followed no training.")
    smallest = extreme(rows["value"].to_numpy(float), "minimum")
    rules = ", ".join(dict.fromkeys(rows["update_rule"]))
    return Decision(
        conditions[0].judge(smallest),
        f"Smallest cosine between gradient and preconditioned gradient in every step of a training on digits, rules "
        f"{rules}: {_by_rule(rows, 'smallest')}.",
        measured=number(smallest.value),
        interval=f"[{number(smallest.value)}, {number(float(rows['value'].max()))}] over all steps",
        seeds=f"{rows['trial'].nunique()} steps a rule",
        data="probes/numerics.csv: check C23",
    )


def _decide(results: Results, identity: str, conditions: Sequence[Condition]) -> Decision:
    """The decision on one claim from a folder of results."""
    numerics: Mapping[str, Callable[[pd.DataFrame, Sequence[Condition]], Decision]] = {
        "C20": decide_positive_definite,
        "C21": decide_inverse,
        "C23": decide_descent,
    }
    if identity in numerics:
        return numerics[identity](results.probe("numerics", PROBE_COLUMNS["numerics"]), conditions)
    if identity == "C03":
        return decide_iterations_to_target(results.runs("bert_pretraining"), conditions)
    if identity == "C08":
        return decide_period_cost(results.probe("iteration_time", PROBE_COLUMNS["iteration_time"]), conditions)
    if identity == "C09":
        names = ("autoencoder_inversion", "bert_inversion")
        return decide_period_loss({name: results.metrics(name) for name in names}, conditions)
    return _not_tested(NOT_TESTED[identity])


def decide_all(results: Results) -> pd.DataFrame:
    """One row a claim, in the paper's order, with the columns `COLUMNS`."""
    rows = []
    for claim in published("claims").to_dict("records"):
        decision = (
            _not_tested(NOT_TESTED[claim["id"]])
            if claim["id"] in NOT_TESTED
            else _decide(results, claim["id"], parse_conditions(claim["holds_when"]))
        )
        tested = decision.verdict != "not tested"
        evidence = decision.evidence or (f"{results.tier} evidence" if tested and results.tier != "paper" else "")
        why = decision.why
        if evidence == f"{results.tier} evidence":
            why = f"{evidence[:1].upper()}{evidence[1:]}, no reproduction of the paper's number. {why}"
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
                "data": decision.data,
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))
