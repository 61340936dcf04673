"""What the probes measure on: models with batches, small ones of the experiments on a CPU, true sizes on a GPU.

On a GPU the models are the paper's, BERT-Large-Uncased and ResNet-50, on random tokens and images, since time, memory
and bytes do not depend on the data; rank-1 errors and spectra there are those of random data at initialisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from workflow.bench import workloads
from workflow.bench.data.batches import Batch, temporary_seed
from workflow.bench.plan import Plan
from workflow.bench.workloads.base import to_device_of

EXPERIMENTS: Final = {
    "bert": "bert_pretraining",
    "resnet": "resnet50_imagenet",
    "autoencoder": "autoencoder_inversion",
}
"""Subjects, and the experiments whose workloads they are on a CPU."""
PERIOD: Final = 10
"""Steps between refreshes, for every method that has such a period (MKOR's in the paper)."""
PREDICTIONS: Final = 80
"""Masked tokens a sequence in the second phase of BERT's pre-training."""


class Trainable(Protocol):
    """What the probes need of a workload; see `workflow.bench.workloads.base.Workload`."""

    exclude: tuple[str, ...]
    batch_size: int

    def model(self, seed: int) -> nn.Module:
        """Return a new model, fixed by ``seed``."""

    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches without end."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with its batches and the first-order optimizer that trains it."""

    name: str
    data: Trainable
    base: str
    """The first-order optimizer by its file's name."""
    lr: float
    """A rate at which the base optimizer trains."""


@dataclass(frozen=True)
class Contender:
    """An optimizer with all its hyperparameters."""

    label: str
    method: str
    hyperparameters: Mapping[str, Any]

    @property
    def update_rule(self) -> str | None:
        """MKOR's rule; None for any other."""
        rule: str | None = self.hyperparameters.get("update_rule")
        return rule


class RandomTokens:
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

    def model(self, seed: int) -> nn.Module:
        """Return a new model."""
        with temporary_seed(seed):
            return self.architecture()

    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches of BERT's inputs and labels."""
        vocabulary = self._config["vocab_size"]
        for k in count(start):
            generator = _generator(seed, k)
            shape = (self.batch_size, self._length)
            tokens = torch.randint(vocabulary, shape, generator=generator)
            order = torch.rand(shape, generator=generator).argsort(1)
            yield {
                "input_ids": tokens,
                "attention_mask": torch.ones(shape, dtype=torch.int64),
                "labels": torch.where(order < min(PREDICTIONS, self._length), tokens, -100),
                "next_sentence_label": torch.randint(2, shape[:1], generator=generator),
            }

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of both heads' mean cross-entropies."""
        loss: Tensor = model(**to_device_of(model, batch)).loss
        return loss


class RandomImages:
    """Classification of random images ``[3, size, size]`` by ``make()``."""

    exclude: tuple[str, ...] = ()

    def __init__(self, make: Callable[[], nn.Module], *, batch_size: int, size: int, classes: int) -> None:
        self.batch_size = batch_size
        self._make = make
        self._size = size
        self._classes = classes

    def model(self, seed: int) -> nn.Module:
        """Return a new model."""
        with temporary_seed(seed):
            return self._make().train()

    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield images and their classes."""
        for k in count(start):
            generator = _generator(seed, k)
            yield {
                "images": torch.randn(self.batch_size, 3, self._size, self._size, generator=generator),
                "classes": torch.randint(self._classes, (self.batch_size,), generator=generator),
            }

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy."""
        here = to_device_of(model, batch)
        return functional.cross_entropy(model(here["images"]), here["classes"])


def resnet50() -> nn.Module:
    """Return torchvision's ResNet-50 for 1,000 classes, 25.6 M parameters."""
    from workflow.bench.data import vision

    model: nn.Module = vision.models.resnet50()
    return model


def subjects(plan: Plan) -> list[Subject]:
    """Return what is measured at a plan's tier: on a CPU the workloads of its experiments, on a GPU the true sizes."""
    if plan.tier.device == "cuda":
        return [
            Subject("bert", bert_large(batch_size=8), "lamb", 4e-3),
            Subject("resnet", RandomImages(resnet50, batch_size=64, size=224, classes=1000), "sgd", 0.1),
        ]
    settings = {"bert": ("lamb", 0.01), "resnet": ("sgd", 0.1), "autoencoder": ("sgd", 10.0)}
    found = {name: workload_of(plan, name) for name in settings}
    return [
        Subject(name, workloads.create(**found[name]), *setting) for name, setting in settings.items() if found[name]
    ]


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


def workload_of(plan: Plan, name: str) -> dict[str, Any]:
    """Return the workload, with its parameters, that a subject has in a plan; empty where the plan has none."""
    experiment = plan.experiments.get(EXPERIMENTS[name])
    jobs = [] if experiment is None else list(experiment.jobs.values())
    return dict(jobs[0].runs[0].spec["workload"]) if jobs else {}


def contenders(subject: Subject, lr: float, *names: str, period: int = PERIOD) -> list[Contender]:
    """Return optimizers of a subject by label: its base, and methods on that base which refresh every ``period``.

    names: labels of `VARIANTS`; none takes the base and every method in its plain form.
    """
    base = {"momentum": 0.9} if subject.base == "sgd" else {}
    plain = Contender(subject.base, subject.base, {"lr": lr, **base})
    chosen = names or (subject.base, "mkor", "kaisa", "eva", "hylo")
    found = []
    for label in chosen:
        if label == subject.base:
            found.append(plain)
            continue
        method, own, period_name = VARIANTS[label]
        periods = {period_name: period} if period_name else {}
        found.append(Contender(label, method, {"base": subject.base, "lr": lr, **base, **own, **periods}))
    return found


VARIANTS: Final[Mapping[str, tuple[str, Mapping[str, Any], str | None]]] = {
    "mkor": ("mkor", {"update_rule": "sherman_morrison"}, "inverse_update_period"),
    "mkor_released": ("mkor", {"update_rule": "released"}, "inverse_update_period"),
    "mkor_bfloat16": (
        "mkor",
        {"update_rule": "sherman_morrison", "factor_dtype": "bfloat16"},
        "inverse_update_period",
    ),
    "mkor_windowed": ("mkor", {"update_rule": "sherman_morrison", "window": 16}, "inverse_update_period"),
    "kaisa": ("kaisa", {"factor_update_period": None}, "inverse_update_period"),
    "kaisa_inverse": (
        "kaisa",
        {"factor_update_period": None, "compute_method": "inverse"},
        "inverse_update_period",
    ),
    "eva": ("eva", {}, None),
    "hylo": ("hylo", {}, "update_period"),
}
"""Labels of methods, with the hyperparameters that make them and the name of their period, if they have one."""


def _generator(seed: int, k: int) -> torch.Generator:
    state = np.random.SeedSequence([seed, k]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))
