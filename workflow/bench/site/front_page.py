"""What README takes from tables: time and memory, a picture, the claims, findings, and which optimizer to use.

``docs/facts.yaml`` names the folders of results and holds what no table has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from workflow.bench.analysis.wording import number
from workflow.bench.claims import published_sizes
from workflow.bench.plan.artefacts import describe
from workflow.bench.results.rows import read_csv
from workflow.bench.results.tables import published
from workflow.bench.site.findings import FIRST, findings
from workflow.bench.site.kept import Kept
from workflow.bench.site.leaders import own_base
from workflow.bench.support.config import ROOT, ConfigError, read_mapping, shown_path

README: Final = ROOT / "README.md"
FACTS: Final = ROOT / "docs" / "facts.yaml"
MEASURED: Final = ("machine", "date", "reproduce", "test", "disk")
"""What was measured by hand."""
PICTURES: Final = {
    "fig13_update_rules": "Validation loss of MKOR by update rule beside its base optimizer and KAISA",
    "fig14_cost_scaling": "Time of a factor update and of preconditioning over a layer's width: MKOR, KAISA, Eva",
}
"""The pictures for the front page, the better first, with what they show."""
WORKLOADS: Final = {
    "field_language_model": "language model",
    "field_alexnet": "AlexNet",
    "field_autoencoder": "autoencoder",
}
"""The experiments of the field that rank optimizers; costs are those of the first one."""
_BEST: Final = 4
_ALWAYS: Final = ("nadamw", "mkor", "kaisa")
"""Optimizers that are listed whatever their rank: today's first-order floor, the paper's method, and its rival."""
_GROUPS: Final = 3
"""The most values that a claim's row lists."""
Row = Mapping[str, str]


@dataclass(frozen=True)
class Facts:
    """The content of ``docs/facts.yaml``."""

    measured: Mapping[str, Any]
    """Minutes, gigabytes, and the machine, measured by hand."""
    takes: Mapping[str, Sequence[str]]
    """By target of make, what pages may say that it takes."""
    evidence: Path
    """The reference behind claims, findings and picture."""
    field: Path
    """The reference behind the table of optimizers."""

    @classmethod
    def read(cls, file: Path = FACTS) -> Facts:
        """Read the file.

        Raises:
            ConfigError: it lacks an entry, or a folder that it names has no table.
        """
        content = read_mapping(file)
        try:
            evidence, field = (ROOT / content["references"][tier] for tier in ("evidence", "field"))
            # Templates read these, too: a missing one is named here.
            _ = [content["measured"][name] for name in MEASURED], content["takes"]["evidence"]
            facts = cls(content["measured"], content["takes"], evidence, field)
        except KeyError as missing:
            raise ConfigError(f"{shown_path(file)}: lacks the entry {missing}") from None
        for folder, table in ((facts.evidence, "claims"), (facts.field, "field_results")):
            if not (folder / "tables" / f"{table}.csv").is_file():
                raise ConfigError(f"{shown_path(file)}: {shown_path(folder)} has no tables/{table}.csv")
        return facts


def pages(facts: Facts, memory: str) -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """Return the texts of all blocks, by page and name, and remarks for who runs the command.

    memory: gigabytes of a core (docs/artifact.md).
    """
    found, left_out = findings(Kept(facts.evidence, facts.field))
    texts = [f"**{headline}** {text}" for headline, text in found.items()]
    first = [f"{place}. {text}" for place, text in enumerate(texts[:FIRST], 1)]
    # Seen from docs, a page there has no folder.
    others = [f"- {text}".replace("](docs/", "](") for text in texts[FIRST:]]
    chosen, passed_over = picture(facts.evidence)
    readme = {
        "needs": [needs(facts, memory)],
        "picture": chosen,
        "claims": [about_claims(facts), "", *claims_table(facts.evidence)],
        "findings": first,
        "optimizers": list(optimizers_table(facts.field)),
    }
    remarks = [f"Left out: {headline} ({why})" for headline, why in left_out.items()] + passed_over
    return {"README.md": readme, "docs/evidence.md": {"further findings": others}}, remarks


def needs(facts: Facts, memory: str) -> str:
    """Return the sentences on what a machine needs, and how long it takes."""
    measured = facts.measured
    return (
        f"You need Linux, Python 3.11 or newer with its `venv` module, `make`, a package index, {memory} GB of memory "
        f"for each core and {measured['disk']} GB of disk. On {measured['machine']} `make reproduce` takes "
        f"{measured['reproduce']} minutes and `make test` {measured['test']} minutes ({measured['date']}; allow three "
        "times as much)."
    )


def picture(reference: Path) -> tuple[list[str], list[str]]:
    """Return the Markdown of the first of `PICTURES` that can be shown, and remarks on those passed over."""
    remarks = []
    for name, about in PICTURES.items():
        file = reference / "figures" / f"{name}.png"
        if why := "it was not kept" if not file.is_file() else _cannot_show(reference, name):
            remarks.append(f"Not the first picture: {name} ({why})")
            continue
        return [f"![{about}]({file.relative_to(ROOT).as_posix()})"], remarks
    raise ConfigError(f"{shown_path(reference)}: none of {', '.join(PICTURES)} can be the first picture")


def _cannot_show(reference: Path, figure: str) -> str:
    """Return why a figure is no first picture: its caption would name uncommitted changes, or a panel lacks a rule."""
    for experiment in describe("figures", figure).experiments:
        runs = read_csv(reference / f"{experiment}.runs.csv")
        if any(row["git_dirty"].lower() == "true" for row in runs):
            return f"runs of {experiment} were made with uncommitted changes"
        rules: dict[str, set[str]] = {}
        for row in runs:
            rules.setdefault(row["workload"], set()).add(row["update_rule"])
        for workload, found in rules.items():
            if lacks := sorted(set().union(*rules.values()) - found - {""}):
                return f"{workload} lacks the rule {', '.join(lacks)}"
    return ""


def about_claims(facts: Facts) -> str:
    """Return the sentences above the table of claims."""
    folder = facts.evidence.relative_to(ROOT).as_posix()
    sentences = (
        "In the table a verdict names the proxy.",
        f"Intervals, margins and reasons are in the reference's [claims.md]({folder}/tables/claims.md);",
        "[how to read a verdict](docs/results.md#how-to-read-a-verdict).",
    )
    return " ".join(sentences)


def claims_table(reference: Path) -> Iterator[str]:
    """Yield the lines of the compact table of claims."""
    texts = {row["id"]: row for row in published("claims", as_text=True).to_dict("records")}
    parts: dict[str, list[Row]] = {}
    for part in read_csv(reference / "tables" / "claim_parts.csv"):
        parts.setdefault(part["id"], []).append(part)
    yield "| | claim (published) | tested on | quantity (unit; threshold): here | verdict |"
    yield "|---|---|---|---|---|"
    for row in read_csv(reference / "tables" / "claims.csv"):
        text, own = texts[row["id"]], parts.get(row["id"], [])
        # An order of growth or a formula is part of the claim already.
        claim = f"{text['short']} ({row['published']})" if published_sizes(row["published"]) else text["short"]
        # There the unit is among the words of the quantity.
        quantity = f"{row['quantity']} ({row['unit']}; {row['threshold']})" if row["unit"] else row["quantity"]
        measured = _measured(row, own)
        cells = (row["id"], claim, row["proxy"] or "–", f"{quantity}: {measured}" if measured else "–", row["wording"])
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _measured(row: Row, parts: Sequence[Row]) -> str:
    """Return a claim's values: one for each part, or the range of many, by the word that their names begin with."""
    values = {part["part"]: float(part["value"]) for part in parts if part["value"]}
    if len(values) == 1 == len(parts):
        ((name, value),) = values.items()
        return f"{name} {number(value, infinity='infinite')}".strip()
    if len(values) < len(parts) or any(map(math.isinf, values.values())):
        # Without the remarks in brackets that follow some values.
        return "; ".join(part.partition(" (")[0] for part in row["measured"].split("; "))
    groups: dict[str, list[float]] = {}
    for name, value in values.items():
        groups.setdefault(name if len(values) <= _GROUPS else name.partition(", ")[0], []).append(value)
    if len(groups) > _GROUPS:
        return f"{number(min(values.values()))} to {number(max(values.values()))} ({len(values)} parts)"
    ends = {name: dict.fromkeys((number(min(group)), number(max(group)))) for name, group in groups.items()}
    return "; ".join(f"{name} {' to '.join(extent)}" for name, extent in ends.items())


def optimizers_table(folder: Path) -> Iterator[str]:
    """Yield the lines of the table: the `_BEST` by iterations in the mean, those of `_ALWAYS`, and the bases."""
    results, costs = (
        {(row["experiment"], row["optimizer"]): row for row in read_csv(folder / "tables" / f"{name}.csv")}
        for name in ("field_results", "field_costs")
    )
    base_of = {experiment: own_base(results.values(), experiment) for experiment in WORKLOADS}

    def ratios(label: str, quantity: str) -> list[float]:
        """Return the ratios over the base by workload, 1 for the base itself, NaN for a method without one."""
        found = []
        for experiment, base in base_of.items():
            row = results.get((experiment, label), {})
            text = row.get(f"{quantity} / base", "") if row.get("base") == base else ""
            found.append(float(text) if text else 1.0 if label == base else math.nan)
        return found

    first, *_ = WORKLOADS
    # The labels that are the names of methods, which `baselines.build` takes.
    methods = {row["optimizer"] for row in read_csv(folder / f"{first}.runs.csv") if row["optimizer"] == row["method"]}
    mean = {label: fmean(map(math.log, ratios(label, "steps"))) for label in sorted(methods)}
    ranked = sorted((label for label, value in mean.items() if not math.isnan(value)), key=lambda label: mean[label])
    bases = sorted(set(base_of.values()))
    chosen = [label for label in ranked if label in (*ranked[:_BEST], *_ALWAYS) and label not in bases]
    step = float(costs[first, base_of[first]]["ms a step"])
    where = ", ".join(WORKLOADS.values())
    step_of = f"{WORKLOADS[first]}: a step / {base_of[first]}'s | {WORKLOADS[first]}: state / weights"
    yield f"| optimizer | iterations / base: {where} | time / base: as before | {step_of} |"
    yield "|---|---|---|---|---|"
    for label in [*chosen, *bases]:
        cost = costs.get((first, label), {})
        ms, state = cost.get("ms a step", ""), cost.get("state / parameters", "")
        cells = (
            f"`{label}`",
            *(", ".join(map(_ratio, ratios(label, quantity))) for quantity in ("steps", "time")),
            f"{float(ms) / step:.2f}" if ms else "–",
            f"{float(state):.1f}" if state else "–",
        )
        yield f"| {' | '.join(cells)} |"


def _ratio(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
