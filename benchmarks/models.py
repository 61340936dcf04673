"""The layers whose steps the benchmarks time and count: of BERT, AlexNet and ResNet-50, at several widths.

They need no package but PyTorch. Weights are random and so is the data: the time of a step depends on neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override


class EncoderLayer(nn.Module):
    """The linear layers of a transformer's encoder layer; what lies between them is left out or a sum."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return rows ``[examples, tokens, width]`` for such rows; query, key and value share their input."""
        attended: Tensor = self.output(self.query(x) + self.key(x) + self.value(x))
        result: Tensor = self.down(self.up(attended))
        return result


class Encoder(nn.Module):
    """The preconditioned layers of BERT, with their biases: those of the encoder, the pooler, the head's transform."""

    def __init__(self, layers: int = 24, width: int = 1024, inner: int = 4096) -> None:
        super().__init__()
        self.encoder = nn.Sequential(*(EncoderLayer(width, inner) for _ in range(layers)))
        self.pooler, self.transform = nn.Linear(width, width), nn.Linear(width, width)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return a scalar for rows ``[examples, tokens, width]``."""
        x = self.encoder(x)
        total: Tensor = self.pooler(x[:, 0]).sum() + self.transform(x).sum()
        return total


class Bottleneck(nn.Module):
    """ResNet-50's block: 1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return ``[examples, 4 width, height / stride, width / stride]``."""
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet50(width: int = 64, classes: int = 1000, depths: Sequence[int] = (3, 4, 6, 3)) -> nn.Module:
    """Return ResNet-50 with ``width`` channels in the first layer; 64 is the published one, of 25.6 M parameters.

    depths: the number of blocks in each stage.
    """
    blocks: list[nn.Module] = []
    channels = width
    for stage, number in enumerate(depths):
        for index in range(number):
            blocks.append(Bottleneck(channels, width * 2**stage, 2 if stage and index == 0 else 1))
            channels = 4 * width * 2**stage
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )


def alexnet_head(width: int) -> nn.Module:
    """Return AlexNet's three fully connected layers for 100 classes of 32 x 32 images; the published width is 4,096."""
    return nn.Sequential(
        nn.Linear(width // 16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 100)
    )


Inputs = Callable[[int], Tensor]
"""Returns random inputs for a width."""


@dataclass(frozen=True)
class EncoderBlock:
    """Some layers, at a width that can be chosen."""

    name: str
    title: str
    widths: tuple[int, ...]
    """Ascending; the last is the true one."""
    make: Callable[[int], nn.Module]
    few: Inputs
    """A small batch: it gives statistics and gradients before a step."""
    batch: Inputs
    """The batch whose forward and backward pass a step is compared with."""
    weight: float = 1.0
    """The share of the time that the block has beside the others'."""


BLOCKS: Final = (
    EncoderBlock(
        "bert",
        "BERT-Large block",
        (256, 512, 1024),
        lambda width: EncoderLayer(width, 4 * width),
        lambda width: torch.randn(4, 8, width),
        lambda width: torch.randn(4, 128, width),
    ),
    EncoderBlock(
        "alexnet",
        "AlexNet head",
        (1024, 2048, 4096),
        alexnet_head,
        lambda width: torch.randn(32, width // 16),
        lambda width: torch.randn(128, width // 16),
        weight=1.4,
    ),
    EncoderBlock(
        "resnet",
        "ResNet-50 layers",
        (32, 64),  # narrower ones would time the host's work for each layer
        resnet50,
        lambda _width: torch.randn(4, 3, 32, 32),
        lambda _width: torch.randn(4, 3, 64, 64),
    ),
)


def narrowed(block: EncoderBlock, factor: int) -> EncoderBlock:
    """Return a block at two widths, ``factor`` and twice ``factor`` times narrower than its narrowest, for a trial."""
    least = block.widths[0]
    return replace(block, widths=(least // (2 * factor), least // factor))
