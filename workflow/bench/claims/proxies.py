"""What a claim was tested on, and words for its threshold and its verdict that cannot be taken for the paper's result.

A small model that stands for the paper's is a proxy: of it alone one can say that an effect was seen, or was not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Final

import pandas as pd

from workflow.bench.claims.decision import Part, Verdict, all_of
from workflow.bench.results.sources import read_sources
from workflow.bench.results.tables import Results

NO_MODEL: Final = "no model: random vectors"
"""The proxy of claims that are mathematics or numerics, the same at every size."""
OWN_TIER: Final = "paper"
"""The tier with the paper's models and data, on which nothing is a proxy."""
_STATED: Final = {**dict.fromkeys(("C20", "C21", "C22"), NO_MODEL), "C23": "autoencoder on digits"}
"""By claim, what the probes `numerics` and `half_precision` have no column for."""
BESIDE: Final = {**dict.fromkeys(("C01", "C02"), "bert_squad"), "C25": "autoencoder_lamb"}
"""By claim, the experiment whose numbers stand beside those that decide."""
_MODELS: Final = {
    "alexnet": "AlexNet",
    "autoencoder": "autoencoder",
    "bert": "BERT",
    "resnet": "ResNet-20",
    "wide_autoencoder": "wide autoencoder",
}
"""Names of the models of probes at tiers that have proxies."""
_SIGNS: Final = {">=": "at or above", "<=": "at or below", ">": "above", "<": "below"}
_SEEN: Final[dict[Verdict, str]] = {
    "confirmed": "seen",
    "refuted": "not seen",
    "no difference": "no difference",
    "inconclusive": "open",
}
_HOLDS: Final[dict[Verdict, str]] = {"confirmed": "holds", "refuted": "does not hold", "inconclusive": "open"}
BETTER: Final = "better than claimed"
"""The wording where MKOR does without what the paper concedes."""
_NAMED: Final = 2
"""The most parts that a wording names."""


def proxies_of(claim: str, data: str, results: Results, beside: str = "") -> str:
    """Return what a claim was tested on: ``BERT 4x128 on docstrings; autoencoder on digits``.

    Args:
        claim: its id.
        data: the files and rows that its numbers come from, as the column ``data`` names them.
        results: the folder that holds them.
        beside: an experiment among them that decides nothing (`BESIDE`).
    """
    if claim in _STATED:
        return _STATED[claim]
    found: list[str] = []
    for source in read_sources(data):
        name = PurePath(source.file).name.removesuffix(".csv").removesuffix(".runs")
        if name == beside:
            continue
        # Step times are those of the same models; a projection is a model of a cluster, and tests nothing.
        if source.file.startswith("probes/") and name not in ("step_time", "projection"):
            found += _of_probe(results.probe(name), "; ".join(source.where))
        elif "/" not in source.file:
            pairs = results.runs(name)[["model", "dataset"]].dropna().drop_duplicates()
            found += [f"{short_model(str(model))} on {short_data(str(data))}" for model, data in pairs.to_numpy()]
    return "; ".join(dict.fromkeys(found))


def _of_probe(rows: pd.DataFrame, where: str) -> Iterable[str]:
    """Return the models of a probe's rows, of those that ``workload=...`` in ``where`` names if it does."""
    if "workload" not in rows:
        widths = rows["dimension"]
        return [f"one layer, d = {widths.min():,.0f} to {widths.max():,.0f}"]
    named = re.search(r"workload=([^=]*?)(?:, \w+=|$)", where)
    present = rows["workload"].dropna().astype(str).unique()
    return [_MODELS.get(name, name) for name in present if named is None or name in named[1].split(", ")]


def short_model(model: str) -> str:
    """Return the name of a model without details: ``BERT, 4 layers x 128, 4 heads`` is ``BERT 4x128``."""
    if sized := re.match(r"(\w+), (\d+) layers x (\d+)", model):
        return f"{sized[1]} {sized[2]}x{sized[3]}"
    return re.split(r",| for | \d+-\d+", model)[0]


def short_data(data: str) -> str:
    """Return the name of a data set without details: ``scikit-learn's digits, 8 x 8`` is ``digits``."""
    name = re.split(r",|:| of ", data)[0]
    return name.rpartition("'s ")[2]


def threshold_of(holds_when: str) -> str:
    """Return a claim's threshold in words: ``> 0`` is ``holds above 0``."""

    def words(match: re.Match[str]) -> str:
        return f"{' is' if match.start() else ''} {_SIGNS[match[1]]} "

    text = re.sub(r"\s*(>=|<=|>|<)\s*", words, holds_when).strip()
    return f"holds {text}" if re.match(r"[<>]", holds_when) else f"holds if {text}"


def worded(parts: Sequence[Part], proxy: str, tier: str, concedes: str = "") -> str:
    """Return a claim's verdict in words that say on what it rests, and which parts decide if not all agree.

    Args:
        parts: those of the decision, none if the claim was not tested.
        proxy: what was tested (`proxies_of`).
        tier: the tier of the results.
        concedes: the beginning of the parts in which the paper concedes something. Where they alone are refuted, MKOR
            does better than claimed.
    """
    verdict = all_of([part.verdict for part in parts])
    if verdict == "not tested":
        return verdict
    if proxy == NO_MODEL:
        return f"{_HOLDS.get(verdict, verdict)} (mathematics)"
    where = "" if tier == OWN_TIER else " on the proxies" if "; " in proxy else " on the proxy"
    # One refuted part refutes a claim, however narrow another one is.
    hangs = all if verdict == "refuted" else any
    narrowly = ", narrowly" if hangs(part.narrowly for part in parts if part.verdict == verdict) else ""
    conceded = [part for part in parts if concedes and part.name.startswith(concedes)]
    others = {part.verdict for part in parts if part not in conceded}
    if conceded and others == {"confirmed"} and {part.verdict for part in conceded} == {"refuted"}:
        return f"{BETTER}{where}{narrowly}"
    said = f"{_SEEN[verdict]}{where}{narrowly}" if where else f"{verdict}{narrowly}"
    undecided = ("inconclusive", "not tested")
    deciding = [
        part.name for part in parts if part.verdict == verdict or (verdict in undecided and part.verdict in undecided)
    ]
    if len(deciding) == len(parts):
        return said
    return f"{said}: {', '.join(deciding) if len(deciding) <= _NAMED else f'{len(deciding)} of {len(parts)} parts'}"
