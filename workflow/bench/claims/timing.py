"""Claims about what a step costs, in time, bytes and memory: C08, C10 to C13 and C24."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final

import pandas as pd

from workflow.bench.analysis import fits
from workflow.bench.analysis.estimates import Estimate, estimate, extreme, paired_difference, paired_ratio
from workflow.bench.analysis.wording import number, spans
from workflow.bench.claims.decision import (
    Decision,
    Part,
    capital,
    decided,
    how,
    not_tested,
    sentences,
    shown,
    side,
    span,
    verdicts,
)
from workflow.bench.claims.verdicts import Condition, agreement, all_of
from workflow.bench.results.sources import from_rows
from workflow.bench.results.tables import published


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
    parts: list[Part] = []
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
        measured = ", ".join(f"{who} {number(ratio.value)}" for who, ratio in ratios.items())
        interval = ", ".join(f"{who} {span(ratio)}" for who, ratio in ratios.items())
        parts.append(Part(str(workload), verdict, measured, interval))
        estimates += ratios.values()
    if not parts:
        return not_tested("The probe iteration_time has no pair of periods 1 and 100 of both KAISA and MKOR.")
    repeats = int(times.groupby(["workload", "optimizer", "inverse_update_period"])["repeat"].nunique().min())
    return decided(
        parts,
        agreement,
        f"Mean iteration time at period 1 over that at 100, by workload: {verdicts(parts)}.",
        f"{capital(how(estimates))}. MKOR is the exact rule. The paper's own times give {_published_period_ratios()}.",
        seeds=f"{repeats} repeats",
        data=from_rows("probes/iteration_time.csv", optimizer="kaisa, mkor", inverse_update_period="1, 100"),
    )


_WITHOUT_CAPTURE: Final = ("factor",)
_WITH_CAPTURE: Final = ("factor", "capture")
_REST: Final = ("precondition", "communication", "update")
_TREATMENTS: Final = {"without capture": _WITHOUT_CAPTURE, "with capture": _WITH_CAPTURE}


def _shares(rows: pd.DataFrame, work: Sequence[str]) -> dict[int, float]:
    """The share of ``work`` in the optimizer's part of a step, of one optimizer's rows at one period.

    By repeat; one that lacks a phase has no share.
    """
    phases = rows.pivot_table(index="repeat", columns="phase", values="ms", aggfunc="first")
    table = phases.reindex(columns=[*work, *_REST]).dropna()
    factor = table[list(work)].sum(axis=1)
    share = factor / (factor + table[list(_REST)].sum(axis=1))
    return {int(str(repeat)): float(value) for repeat, value in share.items()}


def decide_factor_share(times: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C10: the share of factor work in the optimizer's part of a step, MKOR's over KAISA's (``step_breakdown.csv``).

    The optimizer's part is factor, precondition, communication and update, on one process.  What the hooks capture
    (KAISA's moments, MKOR's mean vectors) is counted once as none of it and once as factor work; the verdict needs
    both to agree, and the workloads.  Each method has the longest period it was timed at, which is the paper's; the
    ratio at one period for all stands beside it, HyLo's shares too.
    """
    alone = times[times["workers"] == 1]
    parts: list[Part] = []
    estimates: list[Estimate] = []
    equal, rivals = [], []
    for workload, rows in alone.groupby("workload"):
        chosen_rows: dict[str, pd.DataFrame] = {}
        at_mkors: dict[str, pd.DataFrame] = {}
        periods = {name: own["inverse_update_period"].dropna() for name, own in rows.groupby("optimizer")}
        if not {"mkor", "kaisa"} <= {name for name, own in periods.items() if len(own)}:
            continue
        for name in ("mkor", "kaisa", "hylo"):
            own = rows[rows["optimizer"] == name]
            if not own.empty:
                chosen_rows[name] = own[own["inverse_update_period"] == periods[name].max()]
                at_mkors[name] = own[own["inverse_update_period"] == periods["mkor"].max()]
        shares_here = []
        for treatment, work in _TREATMENTS.items():
            shares = {name: _shares(own, work) for name, own in chosen_rows.items()}
            ratio = paired_ratio(shares["mkor"], shares["kaisa"])
            if ratio is None:
                continue
            estimates.append(ratio)
            name = f"{workload} {treatment}"
            parts.append(Part(name, conditions[0].judge(ratio), number(ratio.value), span(ratio)))
            means = (f"{who} {number(fmean(found.values()))}" for who, found in shares.items() if found)
            shares_here.append(f"{treatment} {', '.join(means)}")
            if not at_mkors["kaisa"].empty:
                same = paired_ratio(_shares(at_mkors["mkor"], work), _shares(at_mkors["kaisa"], work))
                if same is not None:
                    equal.append(f"{name} {shown(same)} {conditions[0].judge(same)}")
        rivals.append(f"{workload}: {'; '.join(shares_here)}")
    if not parts:
        return not_tested("The probe step_breakdown has no times of both KAISA and MKOR on one process.")
    longest = alone.groupby("optimizer")["inverse_update_period"].max().dropna()
    at = ", ".join(f"{name} {longest[name]:g}" for name in ("mkor", "kaisa", "hylo") if name in longest)
    repeats = alone["repeat"].nunique()
    return decided(
        parts,
        agreement,
        f"Share of factor work in the optimizer's part of a step, MKOR's over KAISA's, at the paper's periods ({at}): "
        f"{verdicts(parts)}.",
        f"{capital(how(estimates))}. Shares: {'. '.join(rivals)}. With KAISA at MKOR's period: "
        f"{'; '.join(equal) or 'not timed'}.",
        seeds=f"{repeats} repeats",
        data=from_rows("probes/step_breakdown.csv", workers=1, optimizer="mkor, kaisa, hylo"),
    )


def _steps(times: pd.DataFrame) -> Iterator[str]:
    """The slope from each width to the next, which shows how well one power law fits them all."""
    for pair in pairwise(sorted(times["dimension"].unique())):
        law = fits.width_law(times[times["dimension"].isin(pair)])
        assert law is not None  # of two widths
        yield number(law.exponent, 2)


def decide_update_cost(times: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C11: the slope of a factor update's time over the width d, from ``cost_scaling.csv``.

    MKOR's minus the memory floor's (a copy of a ``[d, d]``), and KAISA's; the claim needs both.  A repeat's times have
    one slope (`fits.width_laws`); figure 14 and table 1 show the mean of these too.
    """
    laws = {
        name: fits.width_laws(times[(times["optimizer"] == name) & (times["part"] == part)])
        for name, part in (("mkor", "factor"), ("copy", "floor"), ("kaisa", "factor"))
    }
    found = {name: {repeat: law.exponent for repeat, law in of_name.items()} for name, of_name in laws.items()}
    over_floor = paired_difference(found["mkor"], found["copy"])
    if over_floor is None or not found["kaisa"]:
        return not_tested("The probe cost_scaling lacks two widths of MKOR, KAISA or the copy that is the floor.")
    slopes = {name: estimate(list(by_repeat.values())) for name, by_repeat in found.items()}
    parts = [
        Part("MKOR - floor", conditions[0].judge(over_floor), number(over_floor.value), span(over_floor)),
        Part("KAISA", conditions[1].judge(slopes["kaisa"]), number(slopes["kaisa"].value), span(slopes["kaisa"])),
    ]
    of_mkor = times[(times["optimizer"] == "mkor") & (times["part"] == "factor")]
    widths = times["dimension"]
    timed = (
        times[(times["optimizer"] == "kaisa") & (times["part"] == "factor")].groupby("dimension")["repeat"].nunique()
    )
    once = ", ".join(f"{width:g}" for width, repeats in timed.items() if repeats == 1)
    timed_once = f"KAISA was timed once at d = {once}: its interval lacks the noise there." if once else ""
    return decided(
        parts,
        all_of,
        f"Slope of log time over log d, d = {widths.min():g} to {widths.max():g}: {verdicts(parts)}.",
        sentences(
            f"{capital(how([over_floor, slopes['kaisa']]))} over repeats.",
            f"MKOR's own slope is {number(slopes['mkor'].value)}, the floor's, a copy of the matrix, "
            f"{number(slopes['copy'].value)}; from one width to the next MKOR's is {', '.join(_steps(of_mkor))}.",
            timed_once,
        ),
        seeds=f"{over_floor.n} repeats",
        data=from_rows("probes/cost_scaling.csv", optimizer="mkor, copy, kaisa", part="factor, floor"),
    )


def decide_bytes(sent: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C12: the slope over d of the bytes that all ranks send in a factor update, from ``communication.csv``.

    Bytes are counted, so that the interval is the range over numbers of workers, and the worst of them is judged.
    """
    parts = []
    for condition in conditions:
        own = sent[sent["optimizer"] == condition.subject.lower()]
        totals = own.groupby(["workers", "dimension"])["bytes"].sum()
        slopes = [
            fits.power_law(list(by_width.index.get_level_values("dimension")), list(by_width)).exponent
            for _, by_width in totals.groupby(level="workers")
            if len(by_width) > 1
        ]
        if not slopes:
            return not_tested(f"The probe communication has no two widths of {condition.subject}.")
        worst = extreme(slopes, "maximum" if condition.comparison.startswith("<") else "minimum")
        interval = f"[{number(min(slopes))}, {number(max(slopes))}]"
        parts.append(Part(condition.subject, condition.judge(worst), number(worst.value), interval))
    widths, workers = sent["dimension"], sent["workers"]
    return decided(
        parts,
        all_of,
        f"Slope of log bytes over log d, d = {widths.min():g} to {widths.max():g}, counted in the collectives: "
        f"{verdicts(parts)}.",
        f"Of {spans(workers)} processes, over whose numbers the interval is the range; the worst is judged.",
        seeds=f"{workers.nunique()} numbers of workers",
        data=from_rows("probes/communication.csv", optimizer=", ".join(part.name.lower() for part in parts)),
    )


def decide_memory(sizes: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C13: the bytes of KAISA's state over those of MKOR's, beside the base optimizer's, from ``memory.csv``.

    The overhead is what the preconditioner keeps, measured tensor by tensor; the smallest ratio of all workloads is
    judged.  The same of the peaks, each less that of the base, stands beside it: resident memory on a CPU, and noise
    where the model is small.
    """
    state = sizes[sizes["quantity"] == "preconditioner_state"].groupby(["workload", "optimizer"])["bytes"].sum()
    overhead = state.unstack("optimizer")
    if not {"mkor", "kaisa"} <= set(overhead.columns) or overhead[["mkor", "kaisa"]].dropna().empty:
        return not_tested("The probe memory has no workload with the state of both KAISA and MKOR.")
    overhead = overhead.dropna(subset=["mkor", "kaisa"])
    ratios = (overhead["kaisa"] / overhead["mkor"]).astype(float)
    smallest = extreme(ratios.to_list(), "minimum")
    half = ""
    if "mkor_bfloat16" in overhead:
        halved = (overhead["kaisa"] / overhead["mkor_bfloat16"]).dropna()
        half = f"With MKOR's factors in bfloat16: {_listed(halved)}."
    return Decision(
        conditions[0].judge(smallest),
        "Bytes that KAISA keeps beside the base optimizer over those that MKOR keeps, in float32: the smallest ratio "
        f"of all workloads {side(smallest, conditions[0])}.",
        details=sentences(
            f"By workload: {_listed(ratios)}.",
            half,
            f"Peak memory over the base optimizer's: {'; '.join(_peaks(sizes)) or 'not measured'}.",
            f"The paper's own table gives {_published_overheads()}; its 1.5 compares whole memories.",
        ),
        measured=number(smallest.value),
        interval=f"[{number(float(ratios.min()))}, {number(float(ratios.max()))}] over workloads",
        seeds=f"{len(ratios)} workloads",
        data=from_rows("probes/memory.csv", quantity="preconditioner_state", optimizer="kaisa, mkor"),
    )


def _listed(ratios: pd.Series) -> str:
    return ", ".join(f"{workload} {number(ratio)}" for workload, ratio in ratios.items())


def _peaks(sizes: pd.DataFrame) -> Iterator[str]:
    """Peak memory over the base optimizer's, KAISA's and MKOR's, by workload, in MB."""
    peaks = sizes[sizes["quantity"] == "peak_over_start"]
    for workload, rows in peaks.groupby("workload"):
        own = rows.set_index("optimizer")["bytes"]
        base = [name for name in ("sgd", "lamb", "adamw") if name in own]
        if base and {"kaisa", "mkor"} <= set(own.index):
            over = {name: (float(own[name]) - float(own[base[0]])) / 1e6 for name in ("kaisa", "mkor")}
            yield f"{workload} KAISA {over['kaisa']:.1f} MB, MKOR {over['mkor']:.1f} MB"


def _published_overheads() -> str:
    """The paper's overheads over the first-order optimizer, KAISA's over MKOR's."""
    found = []
    for model, rows in published("memory_gb").groupby("model", sort=False):
        memory = rows.set_index("optimizer")["memory_gb"]
        base = float(memory.drop(["KAISA", "MKOR"]).iloc[0])
        found.append(f"{model} {number((float(memory['KAISA']) - base) / (float(memory['MKOR']) - base))}")
    return ", ".join(found)


GPUS: Final = 64
"""Workers at which the claim is made."""


def decide_scaling(times: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """C24: MKOR's efficiency at 64 workers, ``t(1) / (64 t(64))``, measured, from ``scaling.csv``.

    A model is no measurement: without 64 measured workers the claim is not tested, and the reason states what the
    largest measured number and the model give.
    """
    steps = times[(times["quantity"] == "step_ms") & (times["optimizer"] == "mkor")]
    measured = steps[steps["source"] == "measured"]
    by_workers = {
        int(str(workers)): dict(zip(rows["repeat"].astype(int), rows["value"].astype(float), strict=True))
        for workers, rows in measured.groupby("workers")
    }
    if not by_workers.keys() - {1} or 1 not in by_workers:
        return not_tested(f"Needs {GPUS} measured GPUs; the probe scaling has no more than one worker of MKOR.")
    speedups = {workers: paired_ratio(by_workers[1], found) for workers, found in by_workers.items()}
    efficiencies = {
        workers: speedup.scaled(1 / workers) for workers, speedup in speedups.items() if speedup is not None
    }
    beside = ", ".join(f"{shown(found)} at {workers}" for workers, found in efficiencies.items() if workers > 1)
    model = steps[steps["source"] == "model"].set_index("workers")["value"].astype(float)
    modelled = (
        f"The model of this machine's links, which is no measurement, gives "
        f"{number(float(model[1] / (GPUS * model[GPUS])))} at {GPUS}."
        if {1, GPUS} <= set(model.index)
        else ""
    )
    data = from_rows("probes/scaling.csv", quantity="step_ms", optimizer="mkor")
    if GPUS not in efficiencies:
        return not_tested(
            f"Needs {GPUS} measured GPUs; here at most {max(efficiencies)} worker processes on "
            f"{spans(measured['cores'])} cores were measured.",
            sentences(f"Efficiency measured: {beside}.", modelled),
            data,
        )
    found = efficiencies[GPUS]
    return Decision(
        conditions[0].judge(found),
        f"The measured efficiency of MKOR's step on {GPUS} workers {side(found, conditions[0])}.",
        details=sentences(f"t(1) / (p t(p)), {how([found])}: {beside}.", modelled),
        measured=number(found.value),
        interval=span(found),
        seeds=f"{found.n} repeats",
        data=data,
    )
