"""Numbers of parameters of every model of a tier; needs neither its data nor a GPU.

``python -m workflow.bench.probes.sizes --tier T --out sizes.csv`` makes the models on PyTorch's ``meta`` device, which
has shapes but no memory, and writes one row for each experiment and workload. Published sizes of BERT count different
parts: BERT-Large-Uncased's 335.1 M is the encoder with its pooler, BERT-Base-Cased's 108.9 M includes both pre-training
heads. So a row of a BERT has three numbers: those of the trained model, of its encoder with the pooler, and of the
encoder with the pre-training heads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch import nn

from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.probes import _command

EXPERIMENTS: Final = ("*",)
USES_GPU: Final = False


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
    """Return the sizes of a BERT's encoder with its pooler, and with both pre-training heads; None for other models."""
    configuration = getattr(model, "config", None)
    if configuration is None:
        return None, None
    from workflow.bench.workloads.bert import BertConfig, BertForPreTraining

    if not isinstance(configuration, BertConfig):
        return None, None
    whole = BertForPreTraining(configuration)
    return count(whole.bert), count(whole)


def measure(plan: Plan) -> Iterator[Row]:
    """Yield the rows of a tier by experiment, in the order of the files."""
    for name, experiment in plan.experiments.items():
        specs = (run.spec["workload"] for job in experiment.jobs.values() for run in job.runs)
        for text in dict.fromkeys(json.dumps(spec) for spec in specs):
            workload = json.loads(text)
            with torch.device("meta"):
                model = workloads.architecture(**workload)
                parts = parts_of_bert(model)
            shown = workloads.display_names(**workload)
            yield Row(name, workload["name"], workload["batch_size"], *shown, count(model), *parts)


if __name__ == "__main__":
    sys.exit(_command.run("sizes", measure, uses_gpu=USES_GPU))
