"""AlexNet for images of 32 x 32 pixels."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

from workflow.bench.data.images import FACTS
from workflow.bench.workloads.image_classifier import ImageClassifier

SIZE = 32
_WIDTHS = (3, 6, 4, 4)  # channels of the further convolutions, over the first one's


class AlexNet(ImageClassifier):
    """AlexNet (Krizhevsky 2014, one column) with 3 x 3 kernels, since images have 32 pixels a side, not 224.

    Five convolutions and three fully connected layers.  With 64 channels, 4,096 hidden units and 100 classes it has
    20.5 million parameters.  Its weights start as He et al. (ICCV 2015) have them: with PyTorch's own start, the
    signal has faded before the last layer, and the loss does not fall in the first hundreds of steps.

    dataset: "digits", scikit-learn's, enlarged, "cifar10" or "cifar100".
    batch_size: images a step.  channels: of the first convolution; the others have 3, 6, 4 and 4 times as many.
    hidden: units of the two hidden fully connected layers.  dropout: share of their inputs that is dropped.
    """

    def __init__(self, *, dataset: str, batch_size: int, channels: int, hidden: int, dropout: float) -> None:
        super().__init__(dataset=dataset, batch_size=batch_size, channels=channels, hidden=hidden, dropout=dropout)

    @classmethod
    def architecture(cls, **parameters: Any) -> nn.Module:
        """Return an AlexNet in He's initialisation."""
        known = FACTS[parameters["dataset"]]
        width, hidden, dropout = parameters["channels"], parameters["hidden"], parameters["dropout"]
        second, third, fourth, fifth = (width * times for times in _WIDTHS)
        model = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(known.channels, width, 3, stride=2, padding=1),
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
                fc8=nn.Linear(hidden, known.classes),
            )
        )
        for module in model:
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        return model

    @classmethod
    def image_size(cls, **parameters: Any) -> int:  # noqa: ARG003  (the same for all)
        """Return 32."""
        return SIZE

    @classmethod
    def named(cls, **parameters: Any) -> str:
        """Return AlexNet, with its widths where they are not the original's."""
        if (parameters["channels"], parameters["hidden"]) == (64, 4096):
            return "AlexNet for 32 x 32"
        return f"AlexNet for 32 x 32, {parameters['channels']} channels, {parameters['hidden']} hidden"

    def evaluate_training(self, model: nn.Module) -> dict[str, float]:
        """Return ``accuracy`` on as many training images as there are validation images, in evaluation mode."""
        return {"accuracy": self._measure(model, self._images.training(self.validation_examples))["accuracy"]}
