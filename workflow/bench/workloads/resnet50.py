"""torchvision's ResNet-50."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from typing_extensions import override

from workflow.bench.data import vision
from workflow.bench.data.images import FACTS
from workflow.bench.workloads.image_classifier import ImageClassifier


class ResNet50(ImageClassifier):
    """ResNet-50 (He et al., CVPR 2016) as in torchvision: 25.6 million parameters with 1,000 classes."""

    @override
    @classmethod
    def architecture(cls, parameters: Mapping[str, Any]) -> nn.Module:
        """Return a ResNet-50 with torchvision's initialization, which is He's."""
        model: nn.Module = vision.models.resnet50(weights=None, num_classes=FACTS[parameters["dataset"]].classes)
        return model

    @override
    @classmethod
    def model_title(cls, parameters: Mapping[str, Any]) -> str:
        return "ResNet-50"
