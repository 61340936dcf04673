"""What a tier's runs read from the data folder, which of it is missing, and the command that brings it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workflow.bench.data.folder import data_folder
from workflow.bench.data.shards import MANIFEST, shards_folder
from workflow.bench.downloads import catalogue
from workflow.bench.downloads.catalogue import DownloadableSet
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.support.config import shown_path

COMMAND: Final = "python -m workflow.bench.fetch"
CORPUS: Final = "wikipedia"
"""The set of text of which the shards of pre-training are made."""
VOCABULARY: Final = "bert-uncased"
"""The set of the vocabulary of the shards."""
_TEXT: Final = "text"  # the data set of pre-training, which is made from the corpus


@dataclass(frozen=True)
class Need:
    """A folder that runs read."""

    what: str
    """The value of the option ``--what`` that brings it."""
    name: str
    """Its name in ``workflow/datasets.yaml``, or that of the shards' folder."""
    path: Path
    holds: tuple[str, ...]
    experiments: tuple[str, ...]
    sequence_length: int | None = None
    """Tokens of a pair, of shards, which are made of the corpus."""

    @property
    def is_here(self) -> bool:
        """Whether the folder holds all that its reader looks for."""
        return catalogue.is_here(self.path, self.holds)


def needs(plan: Plan, experiments: Collection[str] | None = None) -> list[Need]:
    """Return all folders that the runs of a plan, or of some of its experiments, read beside what packages carry."""
    users: dict[tuple[str, int | None], list[str]] = {}
    for job in plan.jobs:
        if experiments is None or job.experiment in experiments:
            for key in (key for run in job.runs for key in _read_by(run)):
                found = users.setdefault(key, [])
                if job.experiment not in found:
                    found.append(job.experiment)
    return [_need(name, length, tuple(users[name, length])) for name, length in users]


def _read_by(run: Run) -> Iterator[tuple[str, int | None]]:
    """Yield the sets that a run reads, by name, and the length of shards."""
    workload = run.spec["workload"]
    dataset = workload.get("dataset")
    if dataset == _TEXT:
        yield dataset, workload["sequence_length"]
    elif dataset in catalogue.sets():
        yield dataset, None
        if "cased" in workload:
            yield ("bert-cased" if workload["cased"] else "bert-uncased"), None
    if pretrained := workload.get("pretrained"):
        yield pretrained, None


def _need(name: str, length: int | None, experiments: tuple[str, ...]) -> Need:
    if length is None:
        wanted = catalogue.sets()[name]
        return Need(wanted.what, name, wanted.path, wanted.holds, experiments)
    what, path = catalogue.sets()[CORPUS].what, shards_folder(VOCABULARY, length)
    return Need(what, f"shards of {length} tokens", path, (MANIFEST,), experiments, length)


def folders(found: Collection[Need]) -> tuple[str, ...]:
    """Return the names of the folders at the top of the data folder that hold needs."""
    return tuple(dict.fromkeys(need.path.relative_to(data_folder()).parts[0] for need in found))


def downloads(found: Collection[Need]) -> list[DownloadableSet]:
    """Return the sets to download for needs, in the order of ``workflow/datasets.yaml``.

    Shards that are missing need their text and vocabulary.
    """
    names = {need.name for need in found}
    if any(need.sequence_length and not need.is_here for need in found):
        names |= {CORPUS, VOCABULARY}
    return [each for name, each in catalogue.sets().items() if name in names]


def lines(plan: Plan, experiments: Collection[str] | None = None) -> Iterator[str]:
    """Yield what is missing in the data folder, for whose runs, and the command that brings it.

    Nothing for a tier whose data comes with the packages.

    experiments: those that still have runs to train; all by default.
    """
    found = needs(plan, experiments)
    folder = shown_path(data_folder())
    if not (missing := [need for need in found if not need.is_here]):
        yield from [f"data: all in {folder}"] if found else []
        return
    for what in dict.fromkeys(need.what for need in missing):
        of_kind = [need for need in missing if need.what == what]
        users = dict.fromkeys(name for need in of_kind for name in need.experiments)
        is_all = len(of_kind) == sum(need.what == what for need in found)
        names = "" if is_all else f" ({', '.join(need.name for need in of_kind)})"
        yield f"data: {what}{names}: not in {folder}; runs of {', '.join(users)} will be skipped"
    yield f"data: {COMMAND} --tier {plan.tier.name} brings what can be downloaded; --dry-run lists sizes and licenses"
