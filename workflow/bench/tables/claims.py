"""Every claim of the paper with its verdict."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.finetuning_scores import PRETRAININGS
from workflow.bench.claims import decide_all
from workflow.bench.results.tables import Results
from workflow.bench.tables._files import write_table

EXPERIMENTS = (
    "bert_pretraining",
    "bert_pretraining_small",
    "bert_squad",
    "bert_glue",
    "resnet50_imagenet",
    "resnet_cifar10_lr",
    "alexnet_cifar100",
    "autoencoder_inversion",
    "autoencoder_lamb",
)
PROBES = (
    "iteration_time",
    "cost_scaling",
    "communication",
    "memory",
    "rank1_error",
    "spectra",
    "numerics",
    "half_precision",
    "scaling",
    "step_time",
    "projection",
)
PUBLISHED = ("claims", "iteration_time_ms", "memory_gb")


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per claim with its verdict, which is *not tested* for a claim without data."""
    runs = [results.runs(experiment) for experiment in EXPERIMENTS]
    all_runs = pd.concat([frame for frame in runs if not frame.empty] or runs[:1], ignore_index=True)
    table = decide_all(results)
    counts = table["verdict"].value_counts()
    notes = [", ".join(f"{count} {verdict}" for verdict, count in counts.items())]
    absent = [
        name for name, frame in zip(EXPERIMENTS, runs, strict=True) if frame.empty and name not in PRETRAININGS[1:]
    ]
    absent += [f"probe {name}" for name in PROBES if not (results.root / "probes" / f"{name}.csv").exists()]
    title = "The paper's claims and their verdicts from these runs"
    return write_table(
        table, folder, "claims", title=title, caption=caption(results, all_runs, notes=notes, absent=absent)
    )
