"""How many parameters every model of a tier has, whether or not its data or a GPU are at hand.

``python -m workflow.bench.probes.sizes --tier T --out sizes.csv`` makes the models on PyTorch's ``meta`` device, which
has shapes and no memory, and writes one row an experiment and workload. Published sizes of BERT count different parts:
BERT-Large-Uncased's 335.1 M is the encoder with its pooler, BERT-Base-Cased's 108.9 M has both pre-training heads
besides. So a row of a BERT has three numbers: of the model that is trained, of its encoder with the pooler, and of that
with the pre-training heads.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from workflow.bench import workloads
from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.probes._rows import write_rows
from workflow.bench.support.config import ConfigError

EXPERIMENTS: Final = ("*",)


class Row(NamedTuple):
    """One workload of one experiment."""

    experiment: str
    workload: str
    batch_size: int
    model: str
    dataset: str
    parameters: int
    encoder_parameters: int | None
    pretraining_parameters: int | None


def count(model: nn.Module) -> int:
    """Return a model's number of parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def parts_of_bert(model: nn.Module) -> tuple[int | None, int | None]:
    """Return the sizes of the encoder with its pooler, and of that with both pre-training heads; None for no BERT."""
    configuration = getattr(model, "config", None)
    if configuration is None:
        return None, None
    from workflow.bench.workloads.bert import BertConfig, BertForPreTraining

    if not isinstance(configuration, BertConfig):
        return None, None
    whole = BertForPreTraining(configuration)
    return count(whole.bert), count(whole)


def measure(plan: Plan) -> Iterator[Row]:
    """Yield the rows of a tier, by experiment, in the order of the files."""
    for name, experiment in plan.experiments.items():
        specs = (run.spec["workload"] for job in experiment.jobs.values() for run in job.runs)
        for text in dict.fromkeys(json.dumps(spec) for spec in specs):
            yield _row(name, json.loads(text))


def _row(experiment: str, workload: Mapping[str, Any]) -> Row:
    with torch.device("meta"):
        model = workloads.architecture(**workload)
        encoder, with_heads = parts_of_bert(model)
    title, dataset = workloads.display_names(**workload)
    return Row(experiment, workload["name"], workload["batch_size"], title, dataset, count(model), encoder, with_heads)


def main(arguments: list[str] | None = None) -> int:
    """Count the parameters of every model of a tier, and write them as CSV."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.probes.sizes", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    add_arguments(parser)
    given = parser.parse_args(arguments)
    try:
        write_rows(given.out, measure(load_from(given)))
    except (ConfigError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
