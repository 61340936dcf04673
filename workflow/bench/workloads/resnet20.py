"""ResNet-20, the residual network for small images."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from workflow.bench.data.images import FACTS
from workflow.bench.workloads.image_classifier import ImageClassifier

_STAGES, _BLOCKS = 3, 3  # stages, and blocks in each of them


class ResNet20(ImageClassifier):
    """ResNet-20 (He et al., CVPR 2016, section 4.2): 19 convolutions of 3 x 3, shortcuts without parameters."""

    @override
    @classmethod
    def architecture(cls, parameters: Mapping[str, Any]) -> nn.Module:
        """Return a ResNet-20 with He's initialization."""
        facts, width = FACTS[parameters["dataset"]], parameters["width"]
        layers: dict[str, nn.Module] = {
            "conv": nn.Conv2d(facts.channels, width, 3, padding=1, bias=False),
            "norm": nn.BatchNorm2d(width),
            "relu": nn.ReLU(),
        }
        channels = width
        for stage in range(_STAGES):
            for block in range(_BLOCKS):
                # The first block of a later stage doubles the channels and halves the sides.
                channels_out = width * 2**stage
                layers[f"stage{stage + 1}_block{block + 1}"] = ResidualBlock(channels, channels_out)
                channels = channels_out
        layers |= {
            "average": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(channels, facts.classes),
        }
        model = nn.Sequential(OrderedDict(layers))
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        return model

    @override
    @classmethod
    def model_title(cls, parameters: Mapping[str, Any]) -> str:
        return "ResNet-20" if parameters["width"] == 16 else f"ResNet-20, width {parameters['width']}"


class ResidualBlock(nn.Module):
    """Two convolutions with a shortcut around them (He et al.'s option A, which has no parameters).

    Maps ``[n, channels_in, size, size]`` to ``[n, channels_out, size', size']``. If the numbers of channels differ,
    size' is half of size: the shortcut keeps every second pixel, and its added channels are zero.
    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self._stride = 1 if channels_in == channels_out else 2
        self._added = channels_out - channels_in
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride=self._stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``relu(shortcut(inputs) + residual(inputs))``."""
        residual = functional.relu(self.norm1(self.conv1(inputs)))
        residual = self.norm2(self.conv2(residual))
        shortcut = inputs
        if self._added:
            shortcut = functional.pad(inputs[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, 0, self._added))
        return functional.relu(shortcut + residual)
