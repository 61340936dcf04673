"""Claims about the cost of a step in time, bytes and memory: C08, C10 to C13 and C24."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final

import pandas as pd

from workflow.bench.analysis import fits
from workflow.bench.analysis.estimates import Estimate, estimate, extreme, paired_ratio, wider_half
from workflow.bench.analysis.wording import capital, integer_ranges, number
from workflow.bench.claims.decision import (
    Condition,
    Decision,
    Part,
    extent,
    not_tested,
    part_verdicts,
    position,
    sentences,
    statistics_used,
    with_interval,
)
from workflow.bench.results.sources import from_rows
from workflow.bench.results.tables import published


def _by_repeat(times: pd.DataFrame, period: int) -> Mapping[int, float]:
    rows = times[times["inverse_update_period"] == period]
    return {int(repeat): float(ms) for repeat, ms in zip(rows["repeat"], rows["iteration_ms"], strict=True)}


def _published_period_ratios() -> str:
    """Return the same ratios from the paper's own times."""
    times = published("iteration_time_ms")
    table = times.pivot_table(index=["model", "optimizer"], columns="inverse_update_period", values="iteration_ms")
    ratios = table[1] / table[100]
    return "; ".join(
        f"{model}: KAISA {number(ratios[model, 'KAISA'])}, MKOR {number(ratios[model, 'MKOR'])}"
        for model in dict.fromkeys(times["model"])
    )


def decide_period_cost(times: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C08: mean iteration time at period 1 over that at 100, KAISA's over MKOR's, from ``iteration_time.csv``.

    Paired by repeat; the claim needs every workload.
    """
    parts: list[Part] = []
    alone: list[str] = []
    for workload, rows in times.groupby("workload"):
        ratios: dict[str, Mapping[int, float]] = {}
        for name in ("kaisa", "mkor"):
            of_optimizer = rows[rows["optimizer"] == name]
            # At period 1000 a probe holds no refresh: that time is combined from others, and measures nothing itself.
            often, rarely = _by_repeat(of_optimizer, 1), _by_repeat(of_optimizer, 100)
            ratios[name] = {repeat: often[repeat] / rarely[repeat] for repeat in sorted(often.keys() & rarely.keys())}
        # A machine that slows down between periods slows both: pairs of repeats share it.
        ratio = paired_ratio(ratios["kaisa"], ratios["mkor"])
        if ratio is not None:
            parts.append(Part.judged(str(workload), ratio, conditions[0]))
            means = (f"{name} {number(fmean(by_repeat.values()))}" for name, by_repeat in ratios.items())
            alone.append(f"{workload} {', '.join(means)}")
    if not parts:
        return not_tested("The probe iteration_time has no pair of periods 1 and 100 of both KAISA and MKOR.")
    # The fewest of any cell: what the weakest pair rests on.
    repeats = int(times.groupby(["workload", "optimizer", "inverse_update_period"])["repeat"].nunique().min())
    return Decision(
        tuple(parts),
        f"Mean iteration time at period 1 over that at 100, KAISA's over MKOR's, by workload: {part_verdicts(parts)}.",
        f"{capital(statistics_used(parts))}. MKOR is the exact rule. Each alone: {'; '.join(alone)}. The paper's "
        f"own times give {_published_period_ratios()}.",
        seeds=f"{repeats} repeats",
        data=from_rows("probes/iteration_time.csv", optimizer="kaisa, mkor", inverse_update_period="1, 100"),
    )


NARROWEST: Final = 512
"""The least width of a layer for which the claim is tested: in narrower ones calls cost more than their work."""
PERIODS: Final[Mapping[str, int]] = {"mkor": 10, "kaisa": 50, "hylo": 50}
"""Steps between two updates of the factors in the paper's comparisons."""
FACTORS: Final[Mapping[str, int]] = {"mkor": 2, "kaisa": 2, "hylo": 1}
"""Updates of the probe in that of a layer: one of each side, but HyLo's is of both."""


def _factor_shares(times: pd.DataFrame, optimizer: str, period: int) -> list[float]:
    """Return the share of its factors' update in the work on one layer, by repeat.

    times: rows of ``cost_scaling.csv`` at one width.
    """
    parts = times[times["optimizer"] == optimizer].pivot_table(index="repeat", columns="part", values="ms")
    table = parts.reindex(columns=["factor", "precondition"]).dropna()
    # Factors are updated once in a period, a gradient is preconditioned in every step.
    factor = FACTORS[optimizer] * table["factor"] / period
    return [float(share) for share in factor / (factor + table["precondition"])]


def decide_factor_share(times: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C10: the share of the factors' update in the work on a layer, from ``cost_scaling.csv``.

    The work is the update of the factors of both sides, divided by the paper's period, and the preconditioning of a
    gradient. The claim needs every width from `NARROWEST` on, and all conditions: a small share of MKOR, and shares of
    KAISA and HyLo that dominate.
    """
    parts: list[Part] = []
    often: list[str] = []
    for condition in conditions:
        name = condition.subject.lower()
        tested = times[(times["dimension"] >= NARROWEST) & (times["optimizer"] == name)]
        shares = {width: _factor_shares(rows, name, PERIODS[name]) for width, rows in tested.groupby("dimension")}
        found = [
            Part.judged(f"{condition.subject}, d = {float(str(width)):g}", estimate(values), condition)
            for width, values in shares.items()
            if values
        ]
        if not found:
            return not_tested(f"The probe cost_scaling has no times of {condition.subject} from width {NARROWEST} on.")
        parts += found
        every_step = (
            fmean(_factor_shares(rows, name, 1)) for width, rows in tested.groupby("dimension") if shares[width]
        )
        often.append(f"{condition.subject} {', '.join(map(number, every_step))}")
    periods = ", ".join(f"{name} {period}" for name, period in PERIODS.items())
    widths = integer_ranges(times.loc[times["dimension"] >= NARROWEST, "dimension"])
    return Decision(
        tuple(parts),
        f"Share of the factors' update in the work on a layer, at the paper's periods ({periods}): "
        f"{part_verdicts(parts)}.",
        f"{capital(statistics_used(parts))} over repeats. In a step that updates the factors, d = {widths}: "
        f"{'; '.join(often)}. Narrower layers are not tested: there the calls cost more than their work.",
        seeds=f"{times['repeat'].nunique()} repeats",
        data=from_rows(
            "probes/cost_scaling.csv", optimizer=", ".join(PERIODS), part="factor, precondition", dimension=widths
        ),
    )


def decide_update_cost(times: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C11: the slope of a factor update's time over the width d, from ``cost_scaling.csv``.

    The claim needs two conditions: on MKOR's slope and on KAISA's. Each repeat gives one slope (`fits.width_laws`) over
    the wider half of the widths: in narrow layers a call costs more than its work, which would flatten the slope. The
    condition on MKOR's is halfway between d^2 and d^3: where small matrices fit into the caches and large ones do not,
    work of d^2 has a slope above 2, on which runs of one machine differ by more than their intervals. The slope of the
    memory floor, a copy, over the same widths and the slopes from one width to the next stand in the details.
    """
    widths = sorted(times["dimension"].unique())
    wide = times[times["dimension"].isin(wider_half(widths))]
    of_parts = {
        name: wide[(wide["optimizer"] == name) & (wide["part"] == part)]
        for name, part in (("mkor", "factor"), ("copy", "floor"), ("kaisa", "factor"))
    }
    # One slope for each repeat: their scatter is the noise that a single fit over all repeats would hide.
    laws = {name: fits.width_laws(rows) for name, rows in of_parts.items()}
    slopes = {name: estimate([law.exponent for law in repeats.values()]) for name, repeats in laws.items() if repeats}
    if not {"mkor", "kaisa"} <= slopes.keys():
        return not_tested("The probe cost_scaling lacks two widths of MKOR or KAISA in the wider half.")
    parts = [
        Part.judged(name.upper(), slopes[name], condition)
        for name, condition in zip(("mkor", "kaisa"), conditions, strict=True)
    ]
    # From one width to the next, over all widths: how well one power law fits, and where it does not.
    of_mkor = times[(times["optimizer"] == "mkor") & (times["part"] == "factor")]
    local = (fits.width_law(of_mkor[of_mkor["dimension"].isin(pair)]) for pair in pairwise(widths))
    repeats = of_parts["kaisa"].groupby("dimension")["repeat"].nunique()
    once = ", ".join(f"{width:g}" for width in repeats.index[repeats == 1])
    floor, shown = slopes.get("copy"), wide["dimension"]
    return Decision(
        tuple(parts),
        f"Slope of log time over log d, d = {shown.min():g} to {shown.max():g}, the wider half of the widths: "
        f"{part_verdicts(parts)}.",
        sentences(
            f"{capital(statistics_used(parts))} over repeats.",
            f"The slope of the floor, a copy of the matrix, is {number(floor.value)}." if floor else "",
            f"From one width to the next, from d = {widths[0]:g} on, MKOR's is "
            f"{', '.join(number(law.exponent, 2) for law in local if law)}.",
            f"KAISA was timed once at d = {once}: its interval lacks the noise there." if once else "",
        ),
        seeds=f"{slopes['mkor'].n} repeats",
        data=from_rows(
            "probes/cost_scaling.csv",
            optimizer="mkor, copy, kaisa",
            part="factor, floor",
            dimension=integer_ranges(shown),
        ),
    )


def decide_bytes(sent: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C12: the slope over d of the bytes that all ranks send in a factor update, from ``communication.csv``.

    Bytes are counted exactly, so the interval is the range over numbers of workers; the worst of them decides.
    """
    parts = []
    for condition in conditions:
        # All ranks together: in KAISA the owner of a layer broadcasts what the others only receive.
        of_optimizer = sent[sent["optimizer"] == condition.subject.lower()]
        totals = of_optimizer.groupby(["workers", "dimension"])["bytes"].sum()
        slopes = [
            fits.power_law(list(by_width.index.get_level_values("dimension")), list(by_width)).exponent
            for _, by_width in totals.groupby(level="workers")
            if len(by_width) > 1
        ]
        if not slopes:
            return not_tested(f"The probe communication has no two widths of {condition.subject}.")
        # A count has no noise: what differs is the number of workers, and the claim must hold at each.
        worst = extreme(slopes, "maximum" if condition.comparison.startswith("<") else "minimum")
        parts.append(Part.judged(condition.subject, worst, condition, interval=extent(slopes)))
    widths, workers = sent["dimension"], sent["workers"]
    return Decision(
        tuple(parts),
        f"Slope of log bytes over log d, d = {widths.min():g} to {widths.max():g}, counted in the collectives: "
        f"{part_verdicts(parts)}.",
        f"With {integer_ranges(workers)} processes; the interval is the range over these numbers, and the worst "
        "decides.",
        seeds=f"{workers.nunique()} numbers of workers",
        data=from_rows("probes/communication.csv", optimizer=", ".join(part.name.lower() for part in parts)),
    )


def decide_memory(sizes: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C13: the bytes of KAISA's preconditioner state over those of MKOR's, from ``memory.csv``.

    The state is measured tensor by tensor, without the base optimizer's; the smallest ratio of all workloads decides.
    The details add peak memory over the base optimizer's, which on a CPU is resident memory and noisy for small
    models.
    """
    # Tensors kept between steps, counted one by one: a peak depends on the allocator and on the batch, too.
    state = sizes[sizes["quantity"] == "preconditioner_state"].groupby(["workload", "optimizer"])["bytes"].sum()
    overhead = state.unstack("optimizer")
    if not {"mkor", "kaisa"} <= set(overhead.columns) or overhead[["mkor", "kaisa"]].dropna().empty:
        return not_tested("The probe memory has no workload with the state of both KAISA and MKOR.")
    overhead = overhead.dropna(subset=["mkor", "kaisa"])
    ratios = (overhead["kaisa"] / overhead["mkor"]).astype(float)
    # The claim names no model, so that one on which MKOR keeps more refutes it.
    smallest = extreme(ratios.to_list(), "minimum")
    half = ""
    if "mkor_bfloat16" in overhead:
        halved = (overhead["kaisa"] / overhead["mkor_bfloat16"]).dropna()
        half = f"With MKOR's factors in bfloat16: {_by_workload(halved)}."
    return Decision(
        (Part.judged("", smallest, conditions[0], interval=f"{extent(ratios)} over workloads"),),
        "Bytes that KAISA keeps in addition to the base optimizer over those that MKOR keeps, in float32: the smallest "
        f"ratio of all workloads {position(smallest, conditions[0])}.",
        sentences(
            f"By workload: {_by_workload(ratios)}.",
            half,
            f"Peak memory over the base optimizer's: {'; '.join(_peaks(sizes)) or 'not measured'}.",
            f"The paper's own table gives {_published_overheads()}; its 1.5 compares total memory.",
        ),
        seeds=f"{len(ratios)} workloads",
        data=from_rows("probes/memory.csv", quantity="preconditioner_state", optimizer="kaisa, mkor"),
    )


def _by_workload(ratios: pd.Series) -> str:
    return ", ".join(f"{workload} {number(ratio)}" for workload, ratio in ratios.items())


def _peaks(sizes: pd.DataFrame) -> Iterator[str]:
    """Yield KAISA's and MKOR's peak memory minus the base optimizer's in MB, by workload."""
    peaks = sizes[sizes["quantity"] == "peak_over_start"]
    for workload, rows in peaks.groupby("workload"):
        peak = rows.set_index("optimizer")["bytes"]
        # The first-order optimizer below both methods, whichever the workload has.
        base = [name for name in ("sgd", "lamb", "adamw") if name in peak]
        if base and {"kaisa", "mkor"} <= set(peak.index):
            over = {name: (float(peak[name]) - float(peak[base[0]])) / 1e6 for name in ("kaisa", "mkor")}
            yield f"{workload} KAISA {over['kaisa']:.1f} MB, MKOR {over['mkor']:.1f} MB"


def _published_overheads() -> str:
    """Return KAISA's overhead over the first-order optimizer divided by MKOR's, from the paper's table."""
    ratios = []
    for model, rows in published("memory_gb").groupby("model", sort=False):
        memory = rows.set_index("optimizer")["memory_gb"]
        base = float(memory.drop(["KAISA", "MKOR"]).iloc[0])
        ratios.append(f"{model} {number((float(memory['KAISA']) - base) / (float(memory['MKOR']) - base))}")
    return ", ".join(ratios)


GPUS: Final = 64
"""The number of workers in the claim."""
MODELED: Final = "bert_large"
"""The model whose projected times the claim's details give."""


def decide_scaling(times: pd.DataFrame, model: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C24: MKOR's measured efficiency at 64 workers, ``t(1) / (64 t(64))``, from ``scaling.csv``.

    A model is no measurement: without 64 measured workers the claim is not tested, and the details give the
    efficiencies at the measured numbers of workers and, from ``projection.csv``, those of the model.
    """
    steps = times[(times["quantity"] == "step_ms") & (times["optimizer"] == "mkor")]
    measured = steps[steps["source"] == "measured"]
    efficiencies = _efficiencies(measured)
    if not efficiencies.keys() - {1}:
        return not_tested(f"Needs {GPUS} measured GPUs; the probe scaling has no more than one worker of MKOR.")
    at_others = ", ".join(
        f"{with_interval(share)} at {workers}" for workers, share in efficiencies.items() if workers > 1
    )
    # A reader wants to know what the model says, but a model cannot confirm a claim about measurements.
    modeled = _modeled_efficiency(model)
    data = from_rows("probes/scaling.csv", quantity="step_ms", source="measured", optimizer="mkor")
    if modeled:
        data += from_rows("probes/projection.csv", workload=MODELED, optimizer="mkor")
    # The claim is about 64: efficiencies at fewer workers say nothing of what congestion does there.
    if GPUS not in efficiencies:
        return not_tested(
            f"Needs {GPUS} measured GPUs; here at most {max(efficiencies)} worker processes on "
            f"{integer_ranges(measured['cores'])} cores were measured.",
            sentences(f"Efficiency measured: {at_others}.", modeled),
            data,
        )
    efficiency = efficiencies[GPUS]
    return Decision(
        (Part.judged("", efficiency, conditions[0]),),
        f"The measured efficiency of MKOR's step on {GPUS} workers {position(efficiency, conditions[0])}.",
        sentences(f"t(1) / (p t(p)), {statistics_used([efficiency])}: {at_others}.", modeled),
        seeds=f"{efficiency.n} repeats",
        data=data,
    )


def _efficiencies(measured: pd.DataFrame) -> dict[int, Estimate]:
    """Return ``t(1) / (p t(p))`` by number of workers p, paired by repeat; nothing without times of one worker."""
    by_workers = {
        int(str(workers)): dict(zip(rows["repeat"].astype(int), rows["value"].astype(float), strict=True))
        for workers, rows in measured.groupby("workers")
    }
    speedups = {workers: paired_ratio(by_workers.get(1, {}), by_repeat) for workers, by_repeat in by_workers.items()}
    return {workers: speedup.scaled(1 / workers) for workers, speedup in speedups.items() if speedup is not None}


def _modeled_efficiency(model: pd.DataFrame) -> str:
    """Return a sentence on the efficiencies by the model; empty without its times."""
    times = model[(model["workload"] == MODELED) & (model["optimizer"] == "mkor")]
    if GPUS not in set(times["workers"]):
        return ""
    # The model begins at a few GPUs, not at one: efficiency is relative to these.
    fewest = int(times["workers"].min())

    def efficiencies(column: str) -> str:
        steps = {gpus: rows.set_index("system")[column] for gpus, rows in times.groupby("workers")}
        shares = (fewest * steps[fewest] / (GPUS * steps[GPUS])).items()
        return ", ".join(f"{number(share)} on {system}" for system, share in shares)

    return (
        "A model of BERT-Large's training on published link speeds, which is no measurement, gives "
        f"{efficiencies('step_ms')} at {GPUS} GPUs over {fewest}; with the bytes that the code moves "
        f"{efficiencies('step_ms_counted')}."
    )
