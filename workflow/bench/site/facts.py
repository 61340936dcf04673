"""What was run, where, and with which code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from workflow.bench.analysis.wording import integer_ranges
from workflow.bench.results.rows import read_csv


def runs_of(results: Path) -> list[dict[str, str]]:
    """Return the rows of all ``<experiment>.runs.csv`` of a results folder."""
    return [row for file in sorted(results.glob("*.runs.csv")) for row in read_csv(file)]


def facts(results: Path, tier_title: str, runs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the tier, the hardware, the commits, the runs by status, and the seeds."""
    by_id = {row["run"]: row for row in runs}  # experiments may share a run
    statuses = Counter(row["status"].replace("_", " ") for row in by_id.values())
    commits = sorted({row["git_commit"][:9] for row in by_id.values() if row["git_commit"]})
    return {
        "Tier": tier_title,
        "Hardware": results.resolve().parent.name,
        "Commit": ", ".join(commits) or "no run",
        "Runs": ", ".join(f"{number} {status}" for status, number in statuses.most_common()) or "none",
        "Seeds": integer_ranges(int(row["seed"]) for row in by_id.values()) or "none",
    }
