"""Write docs/reproduction.md, docs/artifact.md, and what README and docs/evidence.md take from tables.

They are made from results/reference and docs/facts.yaml. The first page is a summary of the reproduction in the form
of reviews, with answers to the questions of REFORMS; the second says what the artifact takes in time, memory and disk;
README has the claims, findings and optimizers of the references that docs/facts.yaml names.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, get_args

from workflow.bench.claims.decision import Verdict
from workflow.bench.plan import REFERENCE, Plan
from workflow.bench.plan.artefacts import Artefact, inputs, planned_artefacts
from workflow.bench.results.costs import ARTEFACTS, FILE, JobCost, read_costs, summed
from workflow.bench.results.rows import read_csv
from workflow.bench.results.verification import refuse_links_in
from workflow.bench.site import front_page
from workflow.bench.site.front_page import Facts
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ROOT, ConfigError, shown_path
from workflow.bench.support.files import write_atomically
from workflow.bench.support.pages import filled
from workflow.bench.support.reading import read_text
from workflow.bench.support.templates import render

_TIER: Final = "embedded"
"""The tier of `make reproduce`, on which the artifact's page rests."""
_CORES: Final = 2
Rows = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Reference:
    """The kept results of one machine and tier."""

    folder: Path

    @property
    def name(self) -> str:
        """Tier and machine."""
        return f"{self.folder.name} tier, {self.folder.parent.name}"

    @property
    def link(self) -> str:
        """The table of claims, seen from docs."""
        return f"../{self.folder.relative_to(ROOT).as_posix()}/tables/claims.md"

    def table(self, name: str) -> Rows:
        """Return the rows of a table; none without it."""
        file = self.folder / "tables" / f"{name}.csv"
        return read_csv(file) if file.is_file() else []

    @cached_property
    def runs(self) -> Rows:
        """The rows of all experiments' tables of runs, each run once."""
        # Experiments share runs, and each has a row of its own for them.
        rows = (row for file in sorted(self.folder.glob("*.runs.csv")) for row in read_csv(file))
        return list({row["run"]: row for row in rows}.values())

    @cached_property
    def verdicts(self) -> Mapping[str, str]:
        """The verdict on each claim, by its id."""
        return {row["id"]: row["verdict"] for row in self.table("claims")}

    def distinct(self, column: str) -> list[str]:
        """Return the values of a column of `runs` but for empty ones, sorted."""
        return sorted({row[column] for row in self.runs} - {""})


def references(folder: Path = REFERENCE) -> list[Reference]:
    """Return the references with verdicts, those of `_TIER` first.

    Raises:
        ConfigError: there is none at `_TIER`.
        UnreadableError: one holds a link.
    """
    found = [Reference(file.parents[1]) for file in sorted(folder.glob("*/*/tables/claims.csv"))]
    found.sort(key=lambda reference: (reference.folder.name != _TIER, reference.folder.parts))
    if not found or found[0].folder.name != _TIER:
        raise ConfigError(f"{shown_path(folder)}: has no <hardware>/{_TIER}/tables/claims.csv; merge a run first")
    for reference in found:
        refuse_links_in(reference.folder)
    return found


def reproduction(kept: Sequence[Reference]) -> str:
    """Return the text of the summary of the reproduction, with answers to the modules of REFORMS."""
    first = kept[0]
    seeds = Counter(label for label, _ in {((row["experiment"], row["optimizer"]), row["seed"]) for row in first.runs})
    consistency, aa_test = first.table("published_consistency"), first.table("aa_test")
    return render(
        "reproduction.md.j2",
        first=first,
        references=kept,
        models=_models(first),
        verdicts={verdict: [counted(reference, verdict) for reference in kept] for verdict in get_args(Verdict)},
        stated=len(consistency),
        disagreeing=sum(row["agrees"].startswith("no") for row in consistency),
        seeds=max(seeds.values()),
        intervals=sum(int(row["intervals"]) for row in aa_test),
        excluding=sum(int(row["excluding_1"]) for row in aa_test),
        statuses=Counter(row["status"].replace("_", " ") for row in first.runs).most_common(),
        gpus=sorted({gpu for reference in kept for gpu in reference.distinct("gpu")}),
        untested=[claim for claim, verdict in first.verdicts.items() if verdict == "not tested"],
    )


def _models(reference: Reference) -> list[dict[str, str]]:
    """Return the models and data of a reference's runs, each once, with the paper's model where there is one."""
    models: dict[tuple[str, str], dict[str, str]] = {}
    for row in reference.table("table6_settings"):
        model = models.setdefault((row["model here"], row["data here"]), {"paper": ""})
        model |= {
            "here": row["model here"],
            "parameters": f"{float(row['parameters here (M)']) * 1e6:,.0f}",
            "data": row["data here"],
            "train": f"{int(row['train here']):,}",
            "test": f"{int(row['test here']):,}",
            "paper": model["paper"] or row["model in the paper"],
        }
    return list(models.values())


def counted(reference: Reference, verdict: str) -> str:
    """Return how many claims have a verdict, and which."""
    claims = [claim for claim, found in reference.verdicts.items() if found == verdict]
    return f"{len(claims)}: {', '.join(claims)}" if claims else "none"


def memory(plan: Plan) -> str:
    """Return the gigabytes that the largest process of a reference with costs takes; each core runs one."""
    return f"{(summed(read_costs(plan.results / FILE)).peak_mb or 0) / 1000:.1f}"


def artifact(plan: Plan, facts: Facts) -> str:
    """Return the text of the artifact's page; ``plan`` is that of a reference with costs."""
    costs = {cost.name: cost for cost in read_costs(plan.results / FILE)}
    every = summed(list(costs.values()))
    artefacts = []
    for kind in ARTEFACTS:
        listed = planned_artefacts(plan, kind)
        for made in listed:
            parts = [costs[name] for name in made_from(made, plan) if name in costs]
            artefacts.append(alone(made.name, parts, costs.get(kind), len(listed)))
    return render(
        "artifact.md.j2",
        minutes=f"{(every.seconds_on(_CORES) or 0) / 60:.0f}",
        memory=memory(plan),
        measured=facts.measured,
        takes=facts.takes,
        machine=plan.hardware,
        artefacts=artefacts,
    )


def made_from(made: Artefact, plan: Plan) -> list[str]:
    """Return the experiments and probes that an artefact needs, those that experiments start from among them."""
    files = [Path(file).name.removesuffix(".csv").removesuffix(".runs") for file in inputs(made, plan)["measured"]]
    needed = dict.fromkeys(name for name in files if not name.endswith(".trials"))
    waiting = [name for name in needed if name in plan.experiments]
    while waiting:
        jobs = plan.experiments[waiting.pop()].jobs.values()
        new = sorted({source for job in jobs for source, _ in job.upstream} - needed.keys())
        needed |= dict.fromkeys(new)
        waiting += new
    return list(needed)


def alone(name: str, parts: Sequence[JobCost], drawing: JobCost | None, number: int) -> dict[str, str]:
    """Return what an artefact takes alone, its share of what ``number`` of its kind took to draw included."""
    own = [JobCost("", None, (drawing.core_seconds or 0) / number, None, drawing.peak_mb)] if drawing else []
    whole = summed([*parts, *own])
    peak = "" if whole.peak_mb is None else f"{whole.peak_mb:,.0f}"
    if peak and any(part.peak_mb is None for part in (*parts, *own)):
        peak = f"≥ {peak}"
    return {"name": name, "seconds": f"{whole.seconds_on(_CORES) or 0:,.0f}", "peak": peak}


def pages(folder: Path = REFERENCE) -> tuple[dict[str, str], list[str]]:
    """Return the text of all pages by path, and what the references do not support.

    Raises:
        ConfigError: there is no reference to write them from, a page lacks a place, or a table is damaged.
        UnreadableError: a table cannot be read.
    """
    kept, facts = references(folder), Facts.read()
    plan = Plan.load(tier=_TIER, hardware=kept[0].folder.parent.name, results=str(folder))
    blocks, remarks = front_page.pages(facts, memory(plan))
    texts = {"docs/reproduction.md": reproduction(kept), "docs/artifact.md": artifact(plan, facts)}
    for page, of_page in blocks.items():
        texts[page] = read_text(ROOT / page)
        for name, lines in of_page.items():
            texts[page] = filled(ROOT / page, texts[page], name, lines)
    return texts, remarks


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages that take their numbers from the tables in results/reference and from docs/facts.yaml."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.summarize", description=main.__doc__)
    parser.add_argument("--out-dir", type=Path, default=ROOT, help="where to write README.md and docs/ (default: here)")

    def work(options: argparse.Namespace) -> None:
        texts, remarks = pages()
        for name, text in texts.items():
            write_atomically(options.out_dir / name, text)
            print(shown_path(options.out_dir / name))
        for remark in remarks:
            print(remark)

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
