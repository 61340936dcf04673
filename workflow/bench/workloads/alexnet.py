"""AlexNet for images of 32 x 32 pixels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn
from typing_extensions import override

from workflow.bench.data.images import FACTS
from workflow.bench.workloads.base import ONE_PROCESS, Team
from workflow.bench.workloads.image_classifier import ImageClassifier

SIZE = 32
_WIDTHS = (3, 6, 4, 4)  # channels of the second to fifth convolution, in multiples of the first one's


class AlexNet(ImageClassifier):
    """AlexNet (Krizhevsky 2014, one column) with 3 x 3 kernels, since images have 32 pixels a side instead of 224.

    Five convolutions and three fully connected layers. With 64 channels, 4,096 hidden units and 100 classes it has
    20.5 million parameters. Its weights are initialized as in He et al. (ICCV 2015): with PyTorch's default, the
    signal fades before the last layer, and the loss does not fall in the first hundreds of steps.
    """

    @override
    @classmethod
    def architecture(cls, parameters: Mapping[str, Any]) -> nn.Module:
        facts = FACTS[parameters["dataset"]]
        width, hidden, dropout = parameters["channels"], parameters["hidden"], parameters["dropout"]
        second, third, fourth, fifth = (width * times for times in _WIDTHS)
        model = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(facts.channels, width, 3, stride=2, padding=1),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(width, second, 3, padding=1),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                conv3=nn.Conv2d(second, third, 3, padding=1),
                relu3=nn.ReLU(),
                conv4=nn.Conv2d(third, fourth, 3, padding=1),
                relu4=nn.ReLU(),
                conv5=nn.Conv2d(fourth, fifth, 3, padding=1),
                relu5=nn.ReLU(),
                pool5=nn.MaxPool2d(2),
                average=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                dropout6=nn.Dropout(dropout),
                fc6=nn.Linear(fifth, hidden),
                relu6=nn.ReLU(),
                dropout7=nn.Dropout(dropout),
                fc7=nn.Linear(hidden, hidden),
                relu7=nn.ReLU(),
                fc8=nn.Linear(hidden, facts.classes),
            )
        )
        for module in model:
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        return model

    @override
    @classmethod
    def image_size(cls, parameters: Mapping[str, Any]) -> int:
        return SIZE

    @override
    @classmethod
    def model_title(cls, parameters: Mapping[str, Any]) -> str:
        channels, hidden = parameters["channels"], parameters["hidden"]
        if (channels, hidden) == (64, 4096):
            return "AlexNet for 32 x 32"
        return f"AlexNet for 32 x 32, {channels} channels, {hidden} hidden"

    @override
    def evaluate_training(self, model: nn.Module, team: Team = ONE_PROCESS) -> dict[str, float]:
        """Return ``accuracy`` on as many training images as there are validation images, in evaluation mode."""
        rows = team.part(min(self.validation_examples, self.train_examples))
        return {"accuracy": self._measure(model, self._images.training(rows), team)["accuracy"]}
