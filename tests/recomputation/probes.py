"""The parts of claims that probes decide, at a level of 95 %: rounds of seeds add no rows to a probe."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np
import pandas as pd

from tests.recomputation.reading import Condition, Folder
from tests.recomputation.statistics import Found, extreme, ratio, summary, verdict

LEVEL = 0.95
NARROWEST = 512
PERIODS = {"MKOR": 10, "KAISA": 50, "HyLo": 50}
CALLS = {"MKOR": 2, "KAISA": 2, "HyLo": 1}
"""Updates of the probe in that of a layer: HyLo's is of both sides."""
GPUS = 64
BUSY = 0.1
"""The share of the cores, taken by other processes in any row, from which times decide nothing."""


class Part(NamedTuple):
    """One part of a claim."""

    name: str
    verdict: str
    found: Found | None = None


def judged(name: str, found: Found, condition: Condition, fall: float = 1.0) -> Part:
    """Return the part that an interval decides."""
    return Part(name, verdict(found, condition, fall), found)


def period_cost(rows: pd.DataFrame, given: list[Condition]) -> list[Part]:
    """C08: iteration time at period 1 over that at 100, KAISA's over MKOR's, by repeat."""
    parts = []
    for workload, of_workload in rows.groupby("workload"):
        wide = of_workload.pivot_table(
            index="repeat", columns=["optimizer", "inverse_update_period"], values="iteration_ms"
        )
        if {(name, period) for name in ("kaisa", "mkor") for period in (1, 100)} <= set(wide.columns):
            kaisa, mkor = ((wide[name, 1] / wide[name, 100]).dropna() for name in ("kaisa", "mkor"))
            if (found := ratio(kaisa, mkor, LEVEL)) is not None:
                parts.append(judged(str(workload), found, given[0]))
    return parts


def factor_share(rows: pd.DataFrame, given: list[Condition]) -> list[Part]:
    """C10: the share of the factors' update in the work on a layer, at each width from 512 on."""
    parts = []
    for name, condition in zip(PERIODS, given, strict=True):
        of_name = rows[(rows["optimizer"] == name.lower()) & (rows["dimension"] >= NARROWEST)]
        wide = of_name.pivot_table(index=["dimension", "repeat"], columns="part", values="ms")
        wide = wide.reindex(columns=["factor", "precondition"]).dropna()
        if wide.empty:
            return []
        share = 1 / (1 + wide["precondition"] * PERIODS[name] / (CALLS[name] * wide["factor"]))
        parts += [
            judged(f"{name}, d = {width:g}", summary(values.to_numpy(), LEVEL), condition)
            for width, values in share.groupby(level="dimension")
        ]
    return parts


def slopes(sizes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The log-log slopes of ``values [n, sizes]``."""
    x = np.log(sizes) - np.log(sizes).mean()
    return np.log(values) @ x / (x @ x)


def update_cost(rows: pd.DataFrame, given: list[Condition]) -> list[Part]:
    """C11: the slope of a factor update's time over the wider half of the widths, by repeat."""
    widths, parts = np.unique(rows["dimension"]), []
    wide = rows[rows["dimension"].isin(widths[len(widths) // 2 :]) & (rows["part"] == "factor")]
    for name, condition in zip(("mkor", "kaisa"), given, strict=True):
        times = wide[wide["optimizer"] == name].pivot_table(
            index="repeat", columns="dimension", values="ms", aggfunc="first"
        )
        # A width that was timed once counts in every repeat.
        times = times.apply(lambda ms: ms.fillna(ms.max()) if ms.count() == 1 else ms).dropna()
        if times.shape[1] < 2:
            return []
        parts.append(
            judged(name.upper(), summary(slopes(times.columns.to_numpy(float), times.to_numpy()), LEVEL), condition)
        )
    return parts


def sent_bytes(rows: pd.DataFrame, given: list[Condition]) -> list[Part]:
    """C12: the slope of all ranks' bytes over the width; the worst number of workers decides."""
    parts = []
    for name, condition in zip(("MKOR", "KAISA"), given, strict=True):
        of_name = rows[rows["optimizer"] == name.lower()]
        total = of_name.pivot_table(index="workers", columns="dimension", values="bytes", aggfunc="sum")
        if total.shape[1] < 2:
            return []
        by_workers = slopes(total.columns.to_numpy(float), total.to_numpy(float))
        parts.append(judged(name, extreme(by_workers, inf if condition.comparison[0] == "<" else -inf), condition))
    return parts


def memory(rows: pd.DataFrame, given: list[Condition]) -> list[Part]:
    """C13: the bytes that KAISA keeps over those that MKOR keeps, the smallest of all workloads."""
    state = rows[rows["quantity"] == "preconditioner_state"]
    kept = state.pivot_table(index="workload", columns="optimizer", values="bytes", aggfunc="sum")
    kept = kept.reindex(columns=["kaisa", "mkor"]).dropna()
    return [judged("", extreme(kept["kaisa"] / kept["mkor"], -inf), given[0])] if len(kept) else []


def _sides(rows: pd.DataFrame, given: list[Condition], value: Callable[[pd.DataFrame], Found | None]) -> list[Part]:
    """Judge each side of every workload; ``value`` gets errors by ``seed, step, layer`` and approximation."""
    parts = []
    for (workload, side), of_side in rows.groupby(["workload", "side"]):
        errors = of_side.dropna(subset="error").pivot_table(
            index=["seed", "step", "layer"], columns="approximation", values="error", aggfunc="first"
        )
        if (found := value(errors)) is not None:
            parts.append(judged(f"{workload} {side}s", found, given[0]))
    return parts


def _over_nets(values: pd.Series) -> Found | None:
    """Summarize nets, each the median over its layers of the medians over steps."""
    nets = values.dropna().groupby(level=["seed", "layer"]).median().groupby(level="seed").median()
    return summary(nets.to_numpy(), LEVEL) if len(nets) else None


def best_rank1(rows: pd.DataFrame, given: list[Condition]) -> list[Part]:
    """C14: the largest error of any layer's best rank-1 matrix."""
    return _sides(rows, given, lambda errors: extreme(errors["best"].dropna().groupby(level="layer").median(), inf))


def mean_vector(rows: pd.DataFrame, given: list[Condition]) -> list[Part]:
    """C15: the share of the best rank-1 matrix's energy that the mean's captures."""

    def share(errors: pd.DataFrame) -> Found | None:
        energy = 1 - errors[["scaled_mean", "best"]] ** 2
        found = _over_nets((energy["scaled_mean"] / energy["best"])[energy["best"] > 0])
        return found and found._replace(low=max(found.low, 0.0), high=min(found.high, 1.0))

    return _sides(rows, given, share)


def decay(rows: pd.DataFrame, given: list[Condition]) -> list[Part]:
    """C16: the best rank-1 error late minus early, on ResNet."""

    def change(errors: pd.DataFrame) -> Found | None:
        best = errors["best"].dropna().unstack("step")
        return _over_nets(best.iloc[:, -1] - best.iloc[:, 0]) if best.shape[1] > 1 else None

    return _sides(rows[rows["workload"].str.startswith("resnet")], given, change)


def singular(rows: pd.DataFrame, given: list[Condition]) -> list[Part]:
    """C17: the condition number of the running right factor without the identity over the first batch's, by layer."""
    parts = []
    for workload, of_workload in rows.groupby("workload"):
        ends = [of_workload["step"].min(), of_workload["step"].max()]
        if ends[0] == ends[1]:
            continue
        kinds = zip(("batch", "running"), ends, strict=True)
        first, last = (
            of_workload[(of_workload["factor"] == factor) & (of_workload["step"] == step)].set_index("layer")
            for factor, step in kinds
        )
        # An eigenvalue within rounding carries nothing: the matrix is singular.
        at_end, at_start = (
            ((one["largest"] - one["start_weight"]) / (one["smallest"] - one["start_weight"]))
            .mask(one["smallest"] - one["start_weight"] <= one["resolution"], inf)
            .groupby(level=0)
            .median()
            for one in (last, first)
        )
        unknown = (np.isinf(at_end) & np.isinf(at_start)).mean()
        found = ratio(at_end, at_start, LEVEL) if unknown < 0.5 else None
        parts.append(judged(str(workload), found, given[0]) if found else Part(str(workload), "not tested"))
    return parts


def _worst_check(check: str, worst: float, **only: str) -> Callable[[pd.DataFrame, list[Condition]], list[Part]]:
    def rule(rows: pd.DataFrame, given: list[Condition]) -> list[Part]:
        chosen = rows[rows["check"] == check]
        for column, value in only.items():
            chosen = chosen[chosen[column] == value]
        return [judged("", extreme(chosen["value"], worst), given[0])] if len(chosen) else []

    return rule


def half_precision(rows: pd.DataFrame, _given: list[Condition]) -> list[Part]:
    """C22: errors of updates of finite factors over their bounds, and whether sequences stay finite, printed rule."""
    printed = rows[rows["update_rule"] == "published"]
    errors, sequences = printed[printed["check"] == "error"], printed[printed["check"] == "finite"]
    errors = errors[np.isfinite(errors["bound"])]
    if errors.empty or sequences.empty:
        return []
    largest = extreme(errors["value"] / errors["bound"], inf)
    name = f"{sequences['bound'].max():,g} updates"
    stay = "confirmed" if (sequences["value"] >= sequences["bound"]).all() else "refuted"
    return [judged("error", largest, Condition("<=", 1.0, None, "")), Part(name, stay)]


def scaling(rows: pd.DataFrame, given: list[Condition]) -> list[Part]:
    """C24: the measured efficiency of MKOR's step at 64 workers; not tested without them."""
    chosen = (rows["quantity"] == "step_ms") & (rows["optimizer"] == "mkor") & (rows["source"] == "measured")
    times = rows[chosen].pivot_table(index="repeat", columns="workers", values="value")
    if not {1, GPUS} <= set(times.columns):
        return []
    found = ratio(times[1].dropna(), GPUS * times[GPUS].dropna(), LEVEL)
    return [judged("", found, given[0])] if found else []


_OF_PROBES: dict[str, tuple[str, Callable[[pd.DataFrame, list[Condition]], list[Part]]]] = {
    "C08": ("iteration_time", period_cost),
    "C10": ("cost_scaling", factor_share),
    "C11": ("cost_scaling", update_cost),
    "C12": ("communication", sent_bytes),
    "C13": ("memory", memory),
    "C14": ("rank1_error", best_rank1),
    "C15": ("rank1_error", mean_vector),
    "C16": ("rank1_error", decay),
    "C17": ("spectra", singular),
    "C20": ("numerics", _worst_check("C20", -inf, update_rule="published", dtype="float64")),
    "C21": ("numerics", _worst_check("C21", inf, update_rule="published", dtype="float64")),
    "C22": ("half_precision", half_precision),
    "C23": ("numerics", _worst_check("C23", -inf)),
    "C24": ("scaling", scaling),
}


def _of_probe(claim: str, folder: Folder, given: list[Condition]) -> list[Part]:
    name, rule = _OF_PROBES[claim]
    rows = folder.probe(name)
    idle = "busy_share" not in rows or not (rows["busy_share"].astype(float) >= BUSY).any()
    return rule(rows, given) if len(rows) and idle else []


RULES = {claim: partial(_of_probe, claim) for claim in _OF_PROBES}
