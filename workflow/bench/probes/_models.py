"""What probes measure: models by tier, and optimizers by label.

On a CPU the models are small ones of the experiments. On a GPU they are the paper's, BERT-Large-Uncased and ResNet-50,
on random tokens and images: time, memory and bytes do not depend on the data. Rank-1 errors and spectra there are those
of random data at initialization.

An optimizer's label is the name of a file in ``baselines/`` (or mkor, mkor_h), `BASE`, or a key of `VARIANTS`. Each
probe lists the labels that it measures by default in its ``OPTIMIZERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from baselines import limits, method_class
from mkor_core import Method
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


class _RandomData(TrainingData):
    """Models and batches that depend on a seed alone; make: returns a new model on the default device."""

    def __init__(self, make: Callable[[], nn.Module], batch_size: int) -> None:
        self.make, self.batch_size = make, batch_size

    @override
    def model(self, seed: int) -> nn.Module:
        with temporary_seed(seed):
            return self.make().train()

    @override
    def batches(self, seed: int, start: int = 0) -> Iterator[Batch]:
        for k in count(start):
            # A generator for each batch, which then depends on seed and number alone, wherever one starts.
            state = np.random.SeedSequence([seed, k]).generate_state(1, np.uint64)
            yield self.batch(torch.Generator().manual_seed(int(state[0])))

    def batch(self, generator: torch.Generator) -> Batch:
        """Return a batch of random examples."""
        raise NotImplementedError


class RandomTokens(_RandomData):
    """BERT's pre-training on random tokens: ``sequence_length`` tokens a sequence, `PREDICTIONS` of them predicted.

    config: BertConfig's arguments.
    """

    exclude: tuple[str, ...] = (r"cls\.predictions",)

    def __init__(self, *, batch_size: int, sequence_length: int, **config: Any) -> None:
        super().__init__(partial(_bert, config), batch_size)
        self._length, self._vocabulary = sequence_length, config["vocab_size"]

    @override
    def batch(self, generator: torch.Generator) -> Batch:
        shape = (self.batch_size, self._length)
        tokens = torch.randint(self._vocabulary, shape, generator=generator)
        order = torch.rand(shape, generator=generator).argsort(1)
        # -100 is ignored by the cross-entropy.
        labels = torch.where(order < min(PREDICTIONS, self._length), tokens, -100)
        follows = torch.randint(2, shape[:1], generator=generator)
        return {"input_ids": tokens, "labels": labels, "next_sentence_label": follows}

    @override
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = model(**to_device_of(model, batch)).loss  # the sum of both heads' mean cross-entropies
        return loss


class RandomImages(_RandomData):
    """Classification of random images ``[3, size, size]`` by the model that ``make`` returns."""

    exclude: tuple[str, ...] = ()

    def __init__(self, make: Callable[[], nn.Module], *, batch_size: int, size: int, classes: int) -> None:
        super().__init__(make, batch_size)
        self._size, self._classes = size, classes

    @override
    def batch(self, generator: torch.Generator) -> Batch:
        images = torch.randn(self.batch_size, 3, self._size, self._size, generator=generator)
        return {"images": images, "classes": torch.randint(self._classes, (self.batch_size,), generator=generator)}

    @override
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        on_device = to_device_of(model, batch)
        return functional.cross_entropy(model(on_device["images"]), on_device["classes"])


def _bert(config: Mapping[str, Any]) -> nn.Module:
    from workflow.bench.workloads.bert import BertConfig, BertForPreTraining

    return BertForPreTraining(BertConfig(**config))


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
        images = RandomImages(resnet50, batch_size=64, size=224, classes=1000)
        return [
            ProbeModel("bert", bert_large(batch_size=8), "lamb", 4e-3, precision_of(plan, "bert")),
            ProbeModel("resnet", images, "sgd", 0.1, precision_of(plan, "resnet")),
        ]
    known = (("bert", "lamb", 0.01), ("resnet", "sgd", 0.1), ("autoencoder", "sgd", 10.0))
    return [model for each in known for model in _of_experiment(plan, *each)]


def alexnet(plan: Plan) -> list[ProbeModel]:
    """Return AlexNet, which probes of time and memory leave out, on a CPU; none if the plan lacks its experiment."""
    return _of_experiment(plan, "alexnet", "sgd", 0.01) if plan.tier.device == "cpu" else []


def _of_experiment(plan: Plan, name: str, base: str, lr: float) -> list[ProbeModel]:
    """Return a model with its experiment's workload; none if the plan lacks the experiment."""
    parameters = workload_of(plan, name)
    return [ProbeModel(name, workloads.create(**parameters), base, lr, precision_of(plan, name))] if parameters else []


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
    """Return the plan's autoencoder with other hidden layers, and further parameters of the workload replaced.

    The paper's layers are wide. In the experiments' narrow ones, the cost of a method hides behind the rest of a step.
    """
    given = {"name": "autoencoder", **workload_of(plan, "autoencoder"), "hidden": list(hidden), **parameters}
    return ProbeModel("wide_autoencoder", workloads.create(**given), "sgd", lr, precision_of(plan, "autoencoder"))


BASE: Final = "base"
"""The label of a model's own first-order optimizer."""
PERIOD: Final = 10
"""Steps between refreshes, for every method that has such a period; the paper's for MKOR."""
PERIOD_FIELDS: Final = ("inverse_update_period", "update_period")
"""The hyperparameters that are such a period; a method has at most one of them."""


class Variant(NamedTuple):
    """A method's file name, and the hyperparameters that differ from its defaults."""

    method: str
    hyperparameters: Mapping[str, Any]


VARIANTS: Final[Mapping[str, Variant]] = {
    "mkor": Variant("mkor", {"update_rule": "sherman_morrison"}),
    "mkor_released": Variant("mkor", {"update_rule": "released"}),
    "mkor_bfloat16": Variant("mkor", {"update_rule": "sherman_morrison", "factor_dtype": torch.bfloat16}),
    "mkor_windowed": Variant("mkor", {"update_rule": "sherman_morrison", "window": 4}),
    # None updates the factors with every decomposition.
    "kaisa": Variant("kaisa", {"factor_update_period": None}),
    "kaisa_inverse": Variant("kaisa", {"factor_update_period": None, "compute_method": "inverse"}),
    # MEM-OPT: max(1, ranks * fraction) = 1 gradient worker for each layer.
    "kaisa_mem_opt": Variant("kaisa", {"factor_update_period": None, "grad_worker_fraction": 1e-9}),
}
"""Labels with hyperparameters that differ from a method's defaults. Other labels, names of files, mean the defaults."""


@dataclass(frozen=True)
class TimedOptimizer:
    """An optimizer with all its hyperparameters."""

    label: str
    method: str
    """The name of its file."""
    hyperparameters: Mapping[str, Any]

    @property
    def update_rule(self) -> str | None:
        """MKOR's update rule; None for any other method."""
        rule: str | None = self.hyperparameters.get("update_rule")
        return rule

    @property
    def period(self) -> int | None:
        """Steps between refreshes; None if the method has no such period."""
        periods = (self.hyperparameters[name] for name in PERIOD_FIELDS if name in self.hyperparameters)
        return next(periods, None)

    def runs_on(self, workers: int) -> bool:
        """Return whether the optimizer can train on this number of ranks."""
        return workers == 1 or "data_parallel" not in limits(self.method)


def variant_of(label: str) -> Variant:
    """Return the variant that a label stands for."""
    return VARIANTS.get(label, Variant(label, {}))


def method_of(label: str, period: int | None = None) -> Method | None:
    """Return the second-order method of a label; None for a first-order optimizer.

    period: of its refreshes, if it has such a period; None leaves the method's default.
    """
    variant = variant_of(label)
    cls = None if label == BASE else method_class(variant.method)
    return None if cls is None else cls(**variant.hyperparameters, **_period_given(variant.method, period))


def _period_given(method: str, period: int | None) -> dict[str, int]:
    name = period_field(method)
    return {} if name is None or period is None else {name: period}


def period_field(method: str) -> str | None:
    """Return the name of a second-order method's refresh period; None if it has none or is first-order."""
    cls = method_class(method)
    names = [] if cls is None else [field.name for field in fields(cls)]
    return next((name for name in PERIOD_FIELDS if name in names), None)


def optimizers(
    model: ProbeModel, lr: float, labels: Iterable[str], period: int | None = PERIOD
) -> list[TimedOptimizer]:
    """Return the optimizers of a model; second-order methods wrap its base optimizer and refresh every ``period``.

    period: None leaves each method's default.
    """
    base = {"lr": lr, **({"momentum": 0.9} if model.base == "sgd" else {})}
    found = []
    for label in labels:
        method, changes = variant_of(label)
        if label in (BASE, model.base):
            found.append(TimedOptimizer(model.base, model.base, base))
        elif method_class(method) is None:
            found.append(TimedOptimizer(label, method, {"lr": lr, **changes}))
        else:
            values = {"base": model.base, **base, **changes, **_period_given(method, period)}
            found.append(TimedOptimizer(label, method, values))
    return found
