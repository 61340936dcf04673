"""Every part of every claim, recomputed: claims on training here, those of probes in `probes`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, log, nan
from typing import NamedTuple

import numpy as np
import pandas as pd

from tests.recomputation import probes
from tests.recomputation.probes import Part, judged
from tests.recomputation.reading import Condition, Experiment, Folder, claims
from tests.recomputation.statistics import Found, difference, median, of_all, verdict
from tests.recomputation.targets import Clock, Compared, arrivals, compared, is_inert, keys_of, own_lengths

CARRIERS = {
    "BERT": ("bert_pretraining", "bert_horizons"),
    "autoencoder": ("autoencoder_lamb", "autoencoder_horizons"),
}
SPEEDUPS = {
    "C06": ("resnet50_imagenet", ["sgd"]),
    "C07": ("resnet50_imagenet", ["kaisa"]),
    "C19": ("alexnet_cifar100", ["sgd", "hylo", "kaisa"]),
}
RATES_OF = {"KAISA with clip": "kaisa", "KAISA without clip": "kaisa_no_clip", "HyLo": "hylo", "SGD": "sgd"}


def swept(name: str, one: Compared, condition: Condition) -> Part:
    """Return the part that a ratio at final quality decides."""
    if one.found is None:
        return Part(name, "inconclusive")
    part = judged(name, one.found, condition)
    tied = one.found.low == one.found.high == 1
    short = part.verdict == "no difference" and one.unreached > 0.1
    return part._replace(verdict="inconclusive") if tied or short else part


def over_lamb(folder: Folder, given: list[Condition], rival: str | None) -> list[Part]:
    """C01, C02 (a rival's seconds over MKOR-H's) and C03 (MKOR's steps over LAMB's)."""
    clock = Clock(folder.probe("step_time")) if rival else None
    parts = []
    for name, (judged_by, lengths) in CARRIERS.items():
        trained, own = folder.experiment(judged_by), folder.experiment(lengths)
        above, below = (rival, "mkor_h") if rival else (folder.experiment("bert_pretraining").mkor(), "lamb")
        if trained.goal is None:
            # Only at the paper's tier, which nobody has run, the fine-tuning's target stands for the pre-training's.
            if folder.experiment("bert_squad").goal is not None and name == "BERT" and len(trained.runs):
                raise NotImplementedError("Pre-trainings judged by the F1 after fine-tuning are not recomputed.")
            continue
        one = None
        if trained.has("lamb", above, below) and not is_inert(trained, above if rival else below):
            one = _to_final_quality(trained, own, (above, below), folder.level, clock)
        parts.append(swept(name, one, given[0]) if one else Part(name, "not tested"))
    return [] if of_all([part.verdict for part in parts]) == "not tested" else parts


def _to_final_quality(
    trained: Experiment, own: Experiment, pair: tuple[str, str], level: float, clock: Clock | None
) -> Compared | None:
    table = arrivals(trained, "lamb")
    if table is None or (one := compared(table, *pair, level, clock)) is None:
        return None
    if own.has("lamb", *pair):
        lengths = own_lengths(own, trained.goal, "lamb", trained.name)
        if lengths is not None:
            return compared(lengths, *pair, level, clock)
    return one


def speedup(folder: Folder, given: list[Condition], experiment: str, rivals: list[str]) -> list[Part]:
    """C06, C07, C19: a rival's seconds over MKOR's; with a second condition MKOR's steps over the rival's."""
    trained, clock = folder.experiment(experiment), Clock(folder.probe("step_time"))
    mkor = trained.mkor()
    table = arrivals(trained, "sgd") if trained.has("sgd", mkor, *rivals) else None
    if table is None:
        return []
    timed = [key for label in (mkor, *rivals) for key in keys_of(table[table["optimizer"] == label])]
    if clock.blocks(list(dict.fromkeys(timed))) is None:
        return []
    prefix = "time " if len(given) > 1 else ""
    asked = [(f"{prefix}{rival}/{mkor}", rival, (rival, mkor), given[0], clock) for rival in rivals]
    if len(given) > 1:
        asked += [(f"iterations {mkor}/{rival}", rival, (mkor, rival), given[1], None) for rival in rivals]
    parts = []
    for name, rival, pair, condition, ticking in asked:
        one = None if is_inert(trained, rival) else compared(table, *pair, folder.level, ticking)
        parts.append(swept(name, one, condition) if one else Part(name, "not tested"))
    return parts


def averages(glue: Experiment, label: str) -> pd.Series:
    """Return a label's average score over the tasks by seed, minus infinity if a run broke down."""
    runs = glue.ended[glue.ended["optimizer"] == label]
    last = {
        run: float(rows.sort_values("step", kind="stable")["value"].iloc[-1])
        for run, rows in glue.curves("validation", "score").items()
    }
    scores = runs["run"].map(last).astype(float).where(runs["status"] == "finished").fillna(-inf)
    tasks = glue.runs["dataset"].dropna().unique()
    by_task = pd.DataFrame({"seed": runs["seed"], "task": runs["dataset"], "score": scores})
    # A mean of -inf and a number is -inf, and a seed that lacks a task has NaN.
    wide = by_task.pivot_table(index="seed", columns="task", values="score", aggfunc="last").reindex(columns=tasks)
    return wide.sum(axis=1, skipna=False).dropna() / len(tasks)


def score_difference(
    glue: Experiment, given: list[Condition], level: float, contender: str, reference: str = "lamb"
) -> list[Part]:
    """C04, C05: average scores over the fine-tuning tasks."""
    if not glue.has(contender, reference):
        return []
    # The study of a seed is that of its pre-training, the same for every task.
    studies = glue.ended[glue.ended["optimizer"] == contender].groupby("seed")["study"].first()
    found = difference(averages(glue, contender), averages(glue, reference), level, studies)
    return [judged("", found, given[0])] if found else []


def switch(folder: Folder, given: list[Condition]) -> list[Part]:
    """C25: the average score, MKOR-H's minus MKOR's, for seeds whose pre-training switched, if it was early enough."""
    glue = folder.experiment("bert_glue")
    if not len(glue.runs):
        return []
    starts = set(glue.runs["start_from"].dropna())
    names = ("bert_pretraining", "bert_pretraining_small")
    pretrainings = [folder.experiment(name) for name in names]
    chosen = next((one for one in pretrainings if len(one.runs) and starts & set(one.runs["run"])), pretrainings[0])
    if not chosen.has("mkor_h"):
        return []
    hybrid = chosen.ended[chosen.ended["optimizer"] == "mkor_h"]
    switched = hybrid.dropna(subset="switch_step")
    if switched.empty or (switched["switch_step"] / switched["steps"]).median() > 0.75:
        return []
    form = ("update_rule", "gradient_norm", "gradient_scale", "window", "sides")
    wanted = [hybrid["hyperparameters"].iloc[0].get(name) for name in form]
    alike = np.array([[one.get(name) for name in form] == wanted for one in chosen.runs["hyperparameters"]])
    partners = chosen.runs[alike & (chosen.runs["method"] == "mkor") & chosen.runs["steps"].isin(hybrid["steps"])]
    if partners.empty:
        return []
    used = Experiment(glue.name, glue.runs[glue.runs["seed"].isin(switched["seed"])], glue.evaluations)
    return score_difference(used, given, folder.level, "mkor_h", partners["optimizer"].iloc[0])


def period_loss(folder: Folder, given: list[Condition]) -> list[Part]:
    """C09: the mean loss over training at a period minus that at the next shorter one, and the ends."""
    trained = folder.experiment("autoencoder_inversion")
    if not len(trained.ended):
        return []
    losses, parts = trained.curves("validation", "loss"), []
    runs = trained.ended.dropna(subset="inverse_update_period")
    evaluated = set(trained.evaluations["run"])
    # A run that broke down, or was evaluated once, is the worst.
    area = {
        run: np.trapezoid(rows["value"], rows["step"]) / np.ptp(rows["step"])
        for run, rows in losses.items()
        if len(rows) > 1
    }
    runs = runs[runs["run"].isin(losses.keys()) | ~runs["run"].isin(evaluated)]
    runs = runs.assign(mean=runs["run"].map(area).astype(float).where(runs["status"] == "finished").fillna(inf))
    for label, of_label in runs.groupby("optimizer"):
        decay = [
            one.get("factor_decay") for one in trained.runs.loc[trained.runs["optimizer"] == label, "hyperparameters"]
        ]
        period = [
            one.get("inverse_update_period")
            for one in trained.runs.loc[trained.runs["optimizer"] == label, "hyperparameters"]
        ]
        # Factors have to remember equally many steps at all periods.
        if not all(decay) or not all(period):
            continue
        memory = [steps / -log(weight) for steps, weight in zip(period, decay, strict=True)]
        if max(memory) > 1.01 * min(memory):
            continue
        finished = of_label.loc[of_label["status"] == "finished", "run"]
        fall = float(np.mean([losses[run]["value"].iloc[0] - losses[run]["value"].iloc[-1] for run in finished]))
        means = of_label.pivot_table(index="inverse_update_period", columns="seed", values="mean", aggfunc="last")
        ends = [(means.index[0], means.index[-1])] if len(means) > 2 else []
        for shorter, longer in [*zip(means.index, means.index[1:], strict=False), *ends]:
            found = difference(means.loc[longer].dropna(), means.loc[shorter].dropna(), folder.level)
            if found:
                parts.append(judged(f"{label}, period {longer:g} minus period {shorter:g}", found, given[0], fall))
    return parts


def sensitivity(folder: Folder, given: list[Condition]) -> list[Part]:
    """C18: the best accuracy, its mean over the learning rates, MKOR's minus each rival's; open if counts disagree."""
    trained = folder.experiment("resnet_cifar10_lr")
    mkor = trained.mkor()
    labels = [mkor, *RATES_OF.values()]
    if not trained.has(*labels) or trained.goal is None:
        return []
    runs = trained.ended[trained.ended["optimizer"].isin(labels)].dropna(subset="target")
    runs = runs.assign(lr=[one.get("lr") for one in runs["hyperparameters"]]).dropna(subset="lr")
    sign = 1 if "above" in trained.goal else -1
    rows = [
        sign * one.sort_values("step")["value"].dropna().astype(float).rename(run)
        for run, one in trained.curves(trained.goal["split"], trained.goal["metric"]).items()
        if run in set(runs["run"])
    ]
    best, first = ({one.name: value(one) for one in rows if len(one)} for value in (max, lambda one: one.iloc[0]))
    score = runs["run"].map(best).astype(float).where(runs["status"] == "finished", min(first.values()))
    grid = runs.assign(score=score).pivot_table(
        index=["optimizer", "seed"], columns="lr", values="score", aggfunc="mean"
    )
    means = grid.dropna().mean(axis=1)
    if set(means.index.get_level_values("optimizer")) < set(labels):
        return []
    arrived = ((runs["status"] == "finished") & runs["steps_to_target"].notna()).groupby(
        [runs["optimizer"], runs["seed"]]
    )
    counts = arrived.sum().reindex(means.index).astype(float)
    parts = []
    for name, rival in RATES_OF.items():
        found = difference(means[mkor], means[rival], folder.level)
        if found is None:
            return []
        part = judged(name, found, given[0])
        apart = counts.unstack("optimizer")[[mkor, rival]].dropna()
        counted = median((apart[mkor] - apart[rival]).to_numpy(float), folder.level)
        tied = part.verdict == "no difference" and counted and counted.low <= 0 <= counted.high
        if counted and not tied and verdict(counted, given[0]._replace(margin=None)) != part.verdict:
            part = part._replace(verdict="inconclusive")
        parts.append(Part(name, "not tested") if is_inert(trained, rival) else part)
    return parts


def _scores(claim: str, folder: Folder, given: list[Condition]) -> list[Part]:
    glue = folder.experiment("bert_glue")
    return score_difference(glue, given, folder.level, glue.mkor() if claim == "C04" else "kaisa")


RULES: dict[str, Callable[[Folder, list[Condition]], list[Part]]] = {
    "C01": partial(over_lamb, rival="lamb"),
    "C02": partial(over_lamb, rival="kaisa"),
    "C03": partial(over_lamb, rival=None),
    **{claim: partial(_scores, claim) for claim in ("C04", "C05")},
    **{claim: partial(speedup, experiment=name, rivals=rivals) for claim, (name, rivals) in SPEEDUPS.items()},
    "C09": period_loss,
    "C18": sensitivity,
    "C25": switch,
    **probes.RULES,
}


class Recomputed(NamedTuple):
    """The verdicts on the claims, and the numbers behind them."""

    verdicts: dict[str, str]
    parts: pd.DataFrame
    """Columns ``id, part, verdict, value, low, high``."""


def recompute(folder: Folder, thresholds: dict[str, list[Condition]] | None = None) -> Recomputed:
    """Decide every claim, or those with the given thresholds, by the files of a results folder."""
    verdicts, rows = {}, []
    for claim, given in (thresholds or claims()).items():
        parts = RULES[claim](folder, given)
        verdicts[claim] = of_all([part.verdict for part in parts])
        rows += [(claim, part.name, part.verdict, *(part.found or Found(nan))) for part in parts]
    return Recomputed(verdicts, pd.DataFrame(rows, columns=["id", "part", "verdict", "value", "low", "high"]))


def disagreements(recomputed: Recomputed, verdicts: dict[str, str], parts: pd.DataFrame) -> list[str]:
    """Return one line for each verdict, and each number of a part to three digits, that differs from the harness's.

    verdicts, parts: those of ``tables/claims.csv`` and ``tables/claim_parts.csv``.
    """
    found = [
        f"{claim}: {verdicts[claim]}, recomputed {verdict}"
        for claim, verdict in recomputed.verdicts.items()
        if verdicts[claim] != verdict
    ]
    columns = ["verdict", "value", "low", "high"]
    theirs, ours = (
        {(row.id, row.part): tuple(getattr(row, name) for name in columns) for row in table.itertuples()}
        for table in (parts[parts["id"].isin(recomputed.verdicts)], recomputed.parts)
    )
    for key in sorted(theirs.keys() | ours.keys()):
        given, own = theirs.get(key), ours.get(key)
        if not (given and own and given[0] == own[0]):
            found.append(f"{key}: {given}, recomputed {own}")
        elif not np.allclose(np.array(given[1:], float), np.array(own[1:], float), rtol=5e-4, atol=0, equal_nan=True):
            found.append(f"{key}: {given[1:]}, recomputed {own[1:]}")
    return found
