"""Count what a training step of each workload of the large tiers takes, for the model of its seconds.

``python -m workflow.bench.count_workloads`` writes ``workflow/workloads.csv``, one row for each model and input shape
of the tiers ``paper`` and ``single_gpu``. `workflow.cluster.step_seconds` reads it without torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.plan.step_costs import COLUMNS, FILE, shape_of
from workflow.bench.probes._counting import META, Counting
from workflow.bench.probes.sizes import count
from workflow.bench.results.rows import write_csv
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import shown_path
from workflow.bench.workloads.alexnet import SIZE

TIERS: Final = ("paper", "single_gpu")
PREDICTIONS: Final = 80
"""Masked tokens of a sequence in the second phase of BERT's pre-training."""


def forward_of(spec: Mapping[str, Any], network: nn.Module, examples: int) -> Callable[[], Any]:
    """Return a function that passes examples through a workload's model, on the default device."""
    if "sequence_length" in spec:
        tokens = torch.zeros(examples, spec["sequence_length"], dtype=torch.long)
        if spec["name"] != "bert_pretraining":
            return lambda: network(input_ids=tokens)
        predicted = torch.zeros(examples * PREDICTIONS, dtype=torch.long)
        return lambda: network(tokens, tokens, predicted, predicted, tokens[:, 0])
    if spec["name"] == "autoencoder":
        return lambda: network(torch.empty(examples, network[0].in_features))  # type: ignore[index]
    size = spec.get("image_size", SIZE)
    return lambda: network(torch.empty(examples, 3, size, size))


def counted(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return a workload's parameters, and the operations and kernels of one example's forward and backward pass."""
    examples = 2  # batch normalization needs more than one value
    with META:
        network = workloads.architecture(**spec).train()
        forward = forward_of(spec, network, examples)
        with Counting(META) as counts:
            result = forward()
            outputs = [result] if isinstance(result, Tensor) else [x for x in result.values() if isinstance(x, Tensor)]
            sum((output.float().sum() for output in outputs), start=torch.zeros(())).backward()
    return {
        "parameters": count(network),
        "operations": round(counts.operations / examples),
        "kernels": counts.kernels,
    }


def rows(tiers: Sequence[str] = TIERS) -> Iterator[dict[str, str | int]]:
    """Yield the rows of all models and input shapes of some tiers, sorted."""
    runs = [run for tier in tiers for job in Plan.load(tier=tier, hardware="none").jobs for run in job.runs]
    specs = {shape_of(run.spec["workload"]): run.spec["workload"] for run in runs}
    for shape in sorted(specs):
        yield {"shape": shape, **counted(specs[shape])}


def main(arguments: Sequence[str] | None = None) -> int:
    """Count operations and kernels of the large tiers' workloads without a GPU, and write workflow/workloads.csv."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.count_workloads", description=main.__doc__)

    def work(_: argparse.Namespace) -> None:
        write_csv(FILE, COLUMNS, rows())
        print(shown_path(FILE))

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
