"""Small models with batches for tests of probes, importable by name so that other processes can unpickle them."""

from __future__ import annotations

from torch import nn

from workflow.bench import workloads
from workflow.bench.probes._models import ProbeModel, RandomImages, RandomTokens


def convolutional() -> nn.Module:
    """Return a network of two convolutions, one without a bias, and a linear layer, for images of 6 x 6."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(45, 3)
    )


def images(batch_size: int = 8) -> ProbeModel:
    return ProbeModel("images", RandomImages(convolutional, batch_size=batch_size, size=6, classes=3), "sgd", 0.01)


def tokens(batch_size: int = 4) -> ProbeModel:
    sizes = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    data = RandomTokens(batch_size=batch_size, sequence_length=6, intermediate_size=16, **sizes)
    return ProbeModel("tokens", data, "lamb", 0.001)


def autoencoder(batch_size: int = 16, hidden: tuple[int, ...] = (6, 4, 6)) -> ProbeModel:
    data = workloads.create("autoencoder", batch_size=batch_size, hidden=list(hidden))
    return ProbeModel("autoencoder", data, "sgd", 0.1)
