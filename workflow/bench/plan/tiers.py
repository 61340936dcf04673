"""The tiers of a configuration folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workflow.bench.support.config import check, checked_stem, read_mapping, require_known, schema, with_defaults

FIELD: Final = (
    "field_autoencoder",
    "field_autoencoder_lamb",
    "field_alexnet",
    "field_language_model",
    "krona",
    "kronecker_rnn",
)
"""The experiments of the field tier, which compares all optimizers."""
MOST_LOOKS: Final = 20
"""The most looks that a tier may have, as in its schema."""


@dataclass(frozen=True)
class Tier:
    """A tier's file: its title in captions, and how its runs compute."""

    name: str
    title: str
    device: str
    threads: int
    checkpoint_minutes: float
    precision: str
    """The dtype of forward passes, for blocks that give none."""
    deterministic: bool = False
    """Whether torch may use only algorithms that give the same bits each time."""
    checkpoint_steps: int | None = None
    """Steps between two checkpoints, besides those by `checkpoint_minutes`; None adds none."""
    ranks: int = 1
    """Processes that train a large run together; for estimates where no cluster is named."""
    runs_per_job: int = 1
    """About how many runs of an experiment one Snakemake job trains, if those of one label are fewer."""
    tuned_like: str | None = None
    """Another tier, whose tuned values the entries without values of their own take."""
    looks: int = 1
    """How often verdicts may be made while seeds are added by rounds."""


def read_tiers(folder: Path) -> dict[str, Tier]:
    """Return all tiers of a folder by name.

    Raises:
        ConfigError: the first mistake in any file, in one line.
    """
    tiers = {checked_stem(file, "tier"): _read(file) for file in sorted(folder.glob("*.yaml"))}
    for tier in tiers.values():
        # Checked when all are read: a tier may be like one that comes after it.
        others = [name for name in tiers if name != tier.name]
        if tier.tuned_like is not None:
            file = folder / f"{tier.name}.yaml"
            require_known(file, ("tuned_like",), tier.tuned_like, "must be another tier", others)
    return tiers


def _read(file: Path) -> Tier:
    content = read_mapping(file)
    check(content, schema("tier"), file)
    return Tier(name=file.stem, **with_defaults(content, schema("tier")))
