"""ResNet-50, as torchvision has it."""

from __future__ import annotations

from typing import Any

from baselines import _torchvision_operators  # noqa: F401  (before torchvision)

# isort: split
from torch import nn
from torchvision.models import resnet50

from workflow.bench.data.images import FACTS
from workflow.bench.workloads.image_classifier import ImageClassifier


class ResNet50(ImageClassifier):
    """ResNet-50 (He et al., CVPR 2016) of torchvision, from scratch: 25.6 million parameters at 1,000 classes.

    dataset: "imagenet" or "cifar10".  image_size: pixels a side that images
    are cut or scaled to.  batch_size: images a step.  label_smoothing: share of the label that is spread over all
    classes, in training.
    """

    def __init__(self, *, dataset: str, image_size: int, batch_size: int, label_smoothing: float) -> None:
        super().__init__(label_smoothing, dataset=dataset, image_size=image_size, batch_size=batch_size)

    @classmethod
    def architecture(cls, **parameters: Any) -> nn.Module:
        """Return a ResNet-50 in torchvision's initialisation, which is He's."""
        return resnet50(weights=None, num_classes=FACTS[parameters["dataset"]].classes)

    @classmethod
    def image_size(cls, **parameters: Any) -> int:
        """Return the parameter of this name."""
        size: int = parameters["image_size"]
        return size

    @classmethod
    def named(cls, **parameters: Any) -> str:  # noqa: ARG003  (the same for all)
        """Return ResNet-50."""
        return "ResNet-50"
