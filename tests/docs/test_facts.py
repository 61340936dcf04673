"""What a target of make takes, and how much is tuned and trained, is said alike on all pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from workflow.bench.plan.tiers import FIELD
from workflow.bench.site.front_page import Facts
from workflow.bench.support.config import CONFIG, ROOT, read_mapping

FACTS = Facts.read()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TIERS = ("embedded", "evidence")
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
QUANTITY = r"(\d[\d.]*) (minutes|hours|hour|core-hours|core-hour)"


def stated(target: str) -> set[str]:
    """Return what a target may be said to take: ``13 minutes``."""
    takes = {found[0] for text in FACTS.takes.get(target, ()) for found in re.finditer(QUANTITY, text)}
    return takes | ({f"{FACTS.measured[target]} minutes"} if target in FACTS.measured else set())


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page, rows and items apart; numbers up to ten are digits."""
    # The lines of a block of commands are sentences, too.
    apart = re.sub(r"```.*?```", lambda block: block[0].replace("\n", "\n\n"), text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=[|*-]|\d+\. |[\w-]+:.*##)", apart):
        joined = " ".join(paragraph.split())
        for place, word in enumerate(WORDS, 1):
            joined = re.sub(rf"\b{word}\b", f"{place}", joined)
        yield from re.split(r"(?<=\.) ", joined)


def test_no_two_pages_disagree_on_what_a_target_takes():
    wrong, found = [], set()
    for page in [*PAGES, ROOT / "Makefile"]:
        for sentence in sentences(page.read_text()):
            named = re.match(r"([\w-]+): ", sentence) if page.name == "Makefile" else None
            targets = {named[1]} if named else set(re.findall(r"make ([a-z][a-z-]*)", sentence))
            for quantity in re.finditer(QUANTITY, sentence):
                allowed = set().union(*map(stated, targets))
                found |= {f"{target} {quantity[0]}" for target in targets if quantity[0] in stated(target)}
                if targets and quantity[0] not in allowed:
                    wrong.append(f"{page.name}: {sentence}")
    assert wrong == []
    assert {f"{name} {FACTS.measured[name]} minutes" for name in ("reproduce", "test")} <= found
    assert {target for target in FACTS.takes if any(one.startswith(f"{target} ") for one in found)} == set(FACTS.takes)


@pytest.mark.parametrize(
    ("quantity", "pages"),
    [(r"([\d.]+) GB (?:of memory )?for each core", 2), (r"(?:and |Disk \| )([\d.]+) GB (?:of disk|with a CPU)", 2)],
)
def test_memory_and_disk_are_said_alike(quantity, pages):
    """README and docs/artifact.md say them."""
    found = [number for page in PAGES for number in re.findall(quantity, page.read_text())]
    assert len(found) == pages
    assert len(set(found)) == 1


@cache
def blocks(experiment: str, tier: str) -> list[dict[str, Any]]:
    """Return an experiment's blocks at a tier."""
    found: Any = read_mapping(CONFIG / "experiments" / f"{experiment}.yaml")["tiers"].get(tier, [])
    return found if isinstance(found, list) else [found]


def test_the_page_of_the_evidence_tier_counts_seeds_studies_and_trials():
    """Truth: the files of the experiments."""
    page = (ROOT / "docs" / "evidence.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.split("## What is in it")[1].splitlines() if line.startswith("| ")][
        1:
    ]
    stated: dict[str, set[int]] = {}
    for names, _, cell in rows:
        for name in re.findall(r"`(\w+)`", names):
            stated[name] = set(map(int, re.findall(r"\d+", cell)))
    planned = {name: {len(block["seeds"]) for block in blocks(name, "evidence")} for name in stated}
    assert len(stated) >= 11
    for name, seeds in stated.items():
        # A row of two experiments states the seeds of both.
        assert planned[name], name
        assert planned[name] <= seeds, name
        assert seeds <= set().union(*(planned[other] for other in stated if stated[other] == seeds)), name

    names = [file.stem for file in (CONFIG / "experiments").glob("*.yaml")]
    tuned = {tier: [(n, b["tuning"]) for n in names for b in blocks(n, tier) if "tuning" in b] for tier in TIERS}
    several = [one for tier in TIERS for one in tuned[tier] if one[1].get("studies", 1) > 1]
    evidence = [one for one in several if one in tuned["evidence"]]
    assert {own["studies"] for name, own in evidence if name != "bert_pretraining"} == {8}
    assert {own["studies"] for name, own in evidence if name == "bert_pretraining"} == {4}
    assert {own["trials"] for _, own in evidence} == {8, 10}
    assert {(own["studies"], own["trials"]) for one in several if (own := one[1]) and one not in evidence} == {(3, 20)}
    assert (
        "have eight of them here, `bert_pretraining` four, with 8 or 10 trials each, in place of 3 studies of 20."
        in page
    )


def test_the_page_of_the_field_counts_what_its_experiments_plan():
    """Truth: the files of the experiments: entries, trials of every study, and seeds."""
    labels = trials = runs = 0
    for name in FIELD:
        for block in blocks(name, "field"):
            entries, tuning = len(block["optimizers"]), block["tuning"]
            labels += entries
            trials += entries * tuning["trials"] * tuning["studies"]
            runs += entries * len(block["seeds"])
    page = (ROOT / "docs" / "field.md").read_text()
    assert f"The first six experiments have {labels} labels, {trials:,} trials and {runs} runs." in page
