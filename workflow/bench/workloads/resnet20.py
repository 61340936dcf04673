"""ResNet-20, the residual network for small images."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from workflow.bench.data.images import FACTS
from workflow.bench.workloads.image_classifier import ImageClassifier

_BLOCKS = 3  # in each of three stages


class ResNet20(ImageClassifier):
    """ResNet-20 (He et al., CVPR 2016, section 4.2): 19 convolutions of 3 x 3, shortcuts without parameters.

    dataset: "digits", scikit-learn's, "cifar10" or "cifar100".
    image_size: pixels a side that images are scaled to.  batch_size: images a step.  width: channels of the first
    stage, 16 in the original; the others have twice and four times as many.  label_smoothing: share of the label
    that is spread over all classes, in training.
    """

    def __init__(self, *, dataset: str, image_size: int, batch_size: int, width: int, label_smoothing: float) -> None:
        super().__init__(label_smoothing, dataset=dataset, image_size=image_size, batch_size=batch_size, width=width)

    @classmethod
    def architecture(cls, **parameters: Any) -> nn.Module:
        """Return a ResNet-20 in He's initialisation."""
        known, width = FACTS[parameters["dataset"]], parameters["width"]
        layers: dict[str, nn.Module] = {
            "conv": nn.Conv2d(known.channels, width, 3, padding=1, bias=False),
            "norm": nn.BatchNorm2d(width),
            "relu": nn.ReLU(),
        }
        channels = width
        for stage in range(3):
            for block in range(_BLOCKS):
                after = width * 2**stage
                layers[f"stage{stage + 1}_block{block + 1}"] = Block(channels, after)
                channels = after
        layers |= {
            "average": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(channels, known.classes),
        }
        model = nn.Sequential(OrderedDict(layers))
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        return model

    @classmethod
    def image_size(cls, **parameters: Any) -> int:
        """Return the parameter of this name."""
        size: int = parameters["image_size"]
        return size

    @classmethod
    def named(cls, **parameters: Any) -> str:
        """Return ResNet-20, with its width where it is not the original's."""
        return "ResNet-20" if parameters["width"] == 16 else f"ResNet-20, width {parameters['width']}"


class Block(nn.Module):
    """Two convolutions beside a shortcut, which drops every second pixel and adds empty channels where widths differ.

    ``[n, before, size, size]`` becomes ``[n, after, size', size']``, size' half of size if ``after > before``.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self._stride = 1 if before == after else 2
        self._added = after - before
        self.conv1 = nn.Conv2d(before, after, 3, stride=self._stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``relu(shortcut(inputs) + residual(inputs))``."""
        residual = functional.relu(self.norm1(self.conv1(inputs)))
        residual = self.norm2(self.conv2(residual))
        shortcut = inputs
        if self._added:
            shortcut = functional.pad(inputs[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, 0, self._added))
        return functional.relu(shortcut + residual)
