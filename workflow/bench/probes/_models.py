"""The models that probes measure: small ones of the experiments on a CPU, true sizes on a GPU.

On a GPU the models are the paper's, BERT-Large-Uncased and ResNet-50, on random tokens and images: time, memory and
bytes do not depend on the data. Rank-1 errors and spectra there are those of random data at initialization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from workflow.bench import workloads
from workflow.bench.data.batches import Batch, temporary_seed
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import PLAIN_PRECISION, Run
from workflow.bench.workloads.base import to_device_of

EXPERIMENTS: Final = {
    "bert": "bert_pretraining",
    "resnet": "resnet50_imagenet",
    "autoencoder": "autoencoder_inversion",
    "alexnet": "alexnet_cifar100",
}
"""The models by name, and their experiments: whose precision they have and, on a CPU, whose workload."""
PREDICTIONS: Final = 80
"""Masked tokens of a sequence in the second phase of BERT's pre-training."""


class TrainingData(Protocol):
    """The part of a `workflow.bench.workloads.base.Workload` that the probes need."""

    exclude: tuple[str, ...]
    batch_size: int

    def model(self, seed: int) -> nn.Module:
        """Return a new model, fixed by ``seed``."""

    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches without end."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""


@dataclass(frozen=True, eq=False)
class ProbeModel:
    """A model with its batches and the first-order optimizer that trains it."""

    name: str
    """The model's name in all probes, figures, tables and claims."""
    data: TrainingData
    base: str
    """The first-order optimizer, by its file's name."""
    lr: float
    """A learning rate at which the base optimizer trains."""
    precision: str = PLAIN_PRECISION
    """The precision of training: that of the model's experiment at the tier (`training.precision`)."""


class RandomTokens(TrainingData):
    """BERT's pre-training on random tokens: ``sequence_length`` tokens a sequence, `PREDICTIONS` of them predicted.

    config: BertConfig's arguments.
    """

    exclude: tuple[str, ...] = (r"cls\.predictions",)

    def __init__(self, *, batch_size: int, sequence_length: int, **config: Any) -> None:
        self.batch_size = batch_size
        self._length = sequence_length
        self._config = config

    def architecture(self) -> nn.Module:
        """Return a BERT with its two pre-training heads, on the default device."""
        from workflow.bench.workloads.bert import BertConfig, BertForPreTraining

        return BertForPreTraining(BertConfig(**self._config)).train()

    @override
    def model(self, seed: int) -> nn.Module:
        with temporary_seed(seed):
            return self.architecture()

    @override
    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        vocabulary = self._config["vocab_size"]
        for k in count(start):
            generator = _generator(seed, k)
            shape = (self.batch_size, self._length)
            tokens = torch.randint(vocabulary, shape, generator=generator)
            order = torch.rand(shape, generator=generator).argsort(1)
            yield {
                "input_ids": tokens,
                # -100 is ignored by the cross-entropy.
                "labels": torch.where(order < min(PREDICTIONS, self._length), tokens, -100),
                "next_sentence_label": torch.randint(2, shape[:1], generator=generator),
            }

    @override
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = model(**to_device_of(model, batch)).loss  # the sum of both heads' mean cross-entropies
        return loss


class RandomImages(TrainingData):
    """Classification of random images ``[3, size, size]`` by the model that ``make`` returns."""

    exclude: tuple[str, ...] = ()

    def __init__(self, make: Callable[[], nn.Module], *, batch_size: int, size: int, classes: int) -> None:
        self.batch_size = batch_size
        self._make = make
        self._size = size
        self._classes = classes

    @override
    def model(self, seed: int) -> nn.Module:
        with temporary_seed(seed):
            return self._make().train()

    @override
    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        for k in count(start):
            generator = _generator(seed, k)
            yield {
                "images": torch.randn(self.batch_size, 3, self._size, self._size, generator=generator),
                "classes": torch.randint(self._classes, (self.batch_size,), generator=generator),
            }

    @override
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        on_device = to_device_of(model, batch)
        return functional.cross_entropy(model(on_device["images"]), on_device["classes"])


def resnet50() -> nn.Module:
    """Return torchvision's ResNet-50 for 1,000 classes, 25.6 M parameters."""
    from workflow.bench.data import vision

    model: nn.Module = vision.models.resnet50()
    return model


def bert_large(batch_size: int, sequence_length: int = 512) -> RandomTokens:
    """Return BERT-Large-Uncased, 335.1 M parameters and the two heads', on random tokens."""
    return RandomTokens(
        batch_size=batch_size,
        sequence_length=sequence_length,
        vocab_size=30522,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        max_position_embeddings=sequence_length,
    )


def probe_models(plan: Plan) -> list[ProbeModel]:
    """Return the models of a plan's tier: its experiments' workloads on a CPU, the true sizes on a GPU."""
    if plan.tier.device == "cuda":
        return [
            ProbeModel("bert", bert_large(batch_size=8), "lamb", 4e-3, precision_of(plan, "bert")),
            ProbeModel(
                "resnet",
                RandomImages(resnet50, batch_size=64, size=224, classes=1000),
                "sgd",
                0.1,
                precision_of(plan, "resnet"),
            ),
        ]
    bases = {"bert": ("lamb", 0.01), "resnet": ("sgd", 0.1), "autoencoder": ("sgd", 10.0)}
    return [
        ProbeModel(name, workloads.create(**parameters), *base, precision_of(plan, name))
        for name, base in bases.items()
        if (parameters := workload_of(plan, name))
    ]


def alexnet(plan: Plan) -> list[ProbeModel]:
    """Return AlexNet, which probes of time and memory leave out, on a CPU; none if the plan lacks its experiment."""
    parameters = workload_of(plan, "alexnet") if plan.tier.device == "cpu" else {}
    data = [workloads.create(**parameters)] if parameters else []
    return [ProbeModel("alexnet", workload, "sgd", 0.01, precision_of(plan, "alexnet")) for workload in data]


def workload_of(plan: Plan, name: str) -> dict[str, Any]:
    """Return the workload of a model on a CPU, with its parameters; empty if the plan lacks its experiment."""
    run = _first_run(plan, name)
    return {} if run is None else dict(run.spec["workload"])


def precision_of(plan: Plan, name: str) -> str:
    """Return the precision in which a tier trains a model; the tier's own if the plan lacks the model's experiment."""
    run = _first_run(plan, name)
    return plan.tier.precision if run is None else run.precision


def _first_run(plan: Plan, name: str) -> Run | None:
    experiment = plan.experiments.get(EXPERIMENTS[name])
    jobs = [] if experiment is None else list(experiment.jobs.values())
    return jobs[0].runs[0] if jobs else None


def wide_autoencoder(plan: Plan, hidden: Sequence[int], lr: float, **parameters: Any) -> ProbeModel:
    """Return the plan's autoencoder with other hidden layers.

    The paper's layers are wide. In the experiments' narrow ones, the cost of a method hides behind the rest of a step.

    parameters: Further parameters of the workload to replace.
    """
    given = {"name": "autoencoder", **workload_of(plan, "autoencoder"), "hidden": list(hidden), **parameters}
    return ProbeModel("wide_autoencoder", workloads.create(**given), "sgd", lr, precision_of(plan, "autoencoder"))


def _generator(seed: int, k: int) -> torch.Generator:
    """Return a generator for batch ``k``, so that a batch depends on seed and number alone."""
    state = np.random.SeedSequence([seed, k]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))
