"""Claims about the update rule that follow from mathematics and are checked numerically: C20 to C23."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import pandas as pd

from workflow.bench.analysis.estimates import extreme
from workflow.bench.analysis.wording import number
from workflow.bench.claims.decision import Condition, Decision, Part, Verdict, extent, not_tested, position, sentences
from workflow.bench.results.sources import from_rows

EVERY_TIER: Final = "mathematics and numerics, the same at every tier"


def _rows(numerics: pd.DataFrame, name: str, rule: str | None, dtype: str | None = None) -> pd.DataFrame:
    rows = numerics[numerics["check"] == name]
    if rule is not None:
        rows = rows[rows["update_rule"] == rule]
    return rows if dtype is None else rows[rows["dtype"] == dtype]


def _by_rule(rows: pd.DataFrame, worst: Literal["min", "max"]) -> str:
    """Return the worst value of each update rule in words."""
    return ", ".join(
        f"{rule} {number(value)}" for rule, value in rows.groupby("update_rule")["value"].agg(worst).items()
    )


def decide_positive_definite(numerics: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C20: the smallest eigenvalue of the published rule's factor over random update sequences in float64."""
    rows = _rows(numerics, "C20", "published", "float64")
    if rows.empty:
        return not_tested("The probe numerics has no float64 eigenvalues of the published rule.")
    # In float32 rounding alone can turn an eigenvalue negative, which says nothing of the lemma.
    smallest = extreme(rows["value"].to_numpy(float), "minimum")
    part = Part.judged("", smallest, conditions[0], interval=f"{extent(rows['value'])} over all sequences")
    why = (
        "The printed rule adds a positive multiple of (Jv)(Jv)ᵀ to γJ, which keeps J positive definite, and the "
        f"smallest eigenvalue of {smallest.n} random sequences in float64 agrees."
        if part.verdict == "confirmed"
        else f"An eigenvalue of {smallest.n} random sequences in float64 is not above 0, although the printed rule "
        "keeps J positive definite."
    )
    # The printed rule multiplies J by up to γ + 1/γ³ in a step: beyond float64's digits every eigenvalue is rounding.
    cut = int((rows["updates"] < rows["of"]).sum())
    grown = (
        f"{cut} of the sequences grew without bound and were followed only while float64 can distinguish an "
        "eigenvalue from rounding."
    )
    all_rules = _rows(numerics, "C20", None, "float64")
    return Decision(
        (part,),
        why,
        sentences(f"Smallest eigenvalue by rule: {_by_rule(all_rules, 'min')}.", grown if cut else ""),
        seeds=f"{smallest.n} sequences",
        evidence=EVERY_TIER,
        data=from_rows("probes/numerics.csv", check="C20", update_rule="published", dtype="float64"),
    )


def decide_inverse(numerics: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C21: the residual of the published rule's factor as the inverse of the averaged factor, in float64."""
    rows = _rows(numerics, "C21", "published", "float64")
    if rows.empty:
        return not_tested("The probe numerics has no float64 residuals of the published rule.")
    # An inverse has a residual of rounding, about 1e-12; a wrong formula misses the threshold by orders.
    largest = extreme(rows["value"].to_numpy(float), "maximum")
    part = Part.judged("", largest, conditions[0], interval=f"{extent(rows['value'])} over all trials")
    because = (
        ": Sherman-Morrison subtracts the rank-1 term and divides by γ, the printed rule adds it and multiplies by γ"
        if part.verdict == "refuted"
        else ""
    )
    return Decision(
        (part,),
        f"The largest residual {position(largest, conditions[0])}{because}.",
        f"Largest residual by rule: {_by_rule(_rows(numerics, 'C21', None), 'max')}.",
        seeds=f"{largest.n} trials",
        evidence=EVERY_TIER,
        data=from_rows("probes/numerics.csv", check="C21", update_rule="published", dtype="float64"),
    )


def decide_half_precision(rows: pd.DataFrame) -> Decision:
    """Decide C22: whether the printed rule in half precision stays below Lemma 3.2's bound, and finite.

    The claim sets no number. An error is within the bound if it is at most the lemma's expression with the constant 1;
    a sequence stays finite if all of its updates are finite (``value == bound``). The claim needs both. An update of
    a factor that is no longer finite has no bound and is left out of the errors; the sequences count it. An error that
    is not finite, of a factor that still is, counts as infinite. rows: those of ``half_precision.csv``.
    """
    errors, followed = (rows[rows["check"] == check] for check in ("error", "finite"))
    # Lemma 3.2 bounds one update of a finite factor: it says nothing of what follows an overflow.
    bounded = errors[np.isfinite(errors["bound"].astype(float))]
    if not ((bounded["update_rule"] == "published").any() and (followed["update_rule"] == "published").any()):
        return not_tested("The probe half_precision has no errors or no sequences of the published rule.")
    # The other rules tell what half precision does from what the printed rule does.
    by_rule = {str(rule): _in_half_precision(bounded, followed, str(rule)) for rule in bounded["update_rule"].unique()}
    comparison = "; ".join(
        f"the {rule} rule: error {parts[0].measured}, {parts[1].measured}"
        for rule, parts in by_rule.items()
        if rule != "published"
    )
    parts = by_rule["published"]
    why = (
        f"The printed rule's error is {'always' if parts[0].verdict == 'confirmed' else 'not always'} below the "
        "lemma's expression with the constant 1 and half the spacing at 1 as eps; with its factors kept in float16 and "
        f"bfloat16 without damping, {parts[1].measured}."
    )
    return Decision(
        tuple(parts),
        why,
        sentences(f"For comparison, {comparison}." if comparison else "", _blends(rows[rows["check"] == "blend"])),
        seeds=f"{int((bounded['update_rule'] == 'published').sum())} updates, "
        f"{int((followed['update_rule'] == 'published').sum())} sequences",
        evidence="numerics, the same at every tier",
        data=from_rows("probes/half_precision.csv", update_rule="published"),
    )


def _blends(rows: pd.DataFrame) -> str:
    """Return a sentence on the stabilizer's blends at which all sequences of the printed rule stay finite."""
    if rows.empty:
        return ""
    stays = (rows["value"] >= rows["bound"]).groupby(rows["blend"]).all()
    finite, others = (", ".join(f"{blend:g}" for blend in stays.index[stays == kind]) for kind in (True, False))
    return (
        f"With the stabilizer's blend at {finite or 'no tested value'} all sequences of {rows['bound'].max():,g} "
        f"updates stay finite, at {others or 'no tested value'} some do not. Along a persistent mean the printed rule "
        "multiplies a factor by γ + 1/γ³, which a blend of at most γ³ / (1 + γ⁴), 0.44 for 0.9, "
        "outweighs."
    )


def _in_half_precision(errors: pd.DataFrame, followed: pd.DataFrame, rule: str) -> list[Part]:
    """Return one rule's parts: its errors over their bounds, and the sequences that stay finite."""
    of_rule = errors[errors["update_rule"] == rule]
    ratios = (of_rule["value"] / of_rule["bound"]).to_numpy(float)
    largest = extreme(ratios, "maximum")
    finite = np.asarray(ratios)[np.isfinite(ratios)]
    error = f"{number(largest.value)} of the bound"
    if math.isinf(largest.value):
        error = f"not finite in {len(ratios) - len(finite)} of {len(ratios)} updates from a finite factor"
    sequences = followed[followed["update_rule"] == rule]
    # The bound of a sequence is the number of updates for which it was followed.
    whole = int((sequences["value"] >= sequences["bound"]).sum())
    first = sequences["value"].min()
    text = f"{whole} of {len(sequences)} sequences stay finite"
    if whole < len(sequences):
        text += f", the first to fail after {first:g} updates"
    stays: Verdict = "confirmed" if whole == len(sequences) else "refuted"
    # The lemma is of order, so that any constant could be defended: 1 is the strictest.
    bound = Condition("", "<=", 1.0)
    shares = f"{extent(finite)} where finite" if len(finite) else ""
    return [
        Part("error", bound.judge(largest), error, shares, largest, bound),
        Part(f"{sequences['bound'].max():,g} updates", stays, text),
    ]


def decide_descent(numerics: pd.DataFrame, conditions: Sequence[Condition]) -> Decision:
    """Decide C23: the smallest cosine between the gradient and the preconditioned gradient in any training step."""
    rows = _rows(numerics, "C23", None)
    if rows.empty:
        return not_tested("The probe numerics has no cosines of a training.")
    # A descent direction has a positive cosine: one negative step of any layer is a counterexample.
    smallest = extreme(rows["value"].to_numpy(float), "minimum")
    return Decision(
        (Part.judged("", smallest, conditions[0], interval=f"{extent(rows['value'])} over all steps"),),
        "The smallest cosine of any layer between gradient and preconditioned gradient, over all steps of a training "
        f"on digits, {position(smallest, conditions[0])}.",
        f"Smallest by rule: {_by_rule(rows, 'min')}.",
        seeds=f"{rows['trial'].nunique()} steps a rule",
        data=from_rows("probes/numerics.csv", check="C23"),
    )
