"""torchmetrics' metrics of the fine-tuning tasks.

torchmetrics imports torchvision, so the operators that torchvision's wheel may lack must be declared first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mkor_core import torchvision_operators  # noqa: F401  (must run before torchmetrics is imported)

# isort: split
from torch import Tensor
from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef
from torchmetrics.functional.classification import accuracy, binary_f1_score, binary_matthews_corrcoef
from torchmetrics.functional.text import squad


def score_metrics(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the correlations ``pearson`` and ``spearman``, NaN if all predictions are equal.

    Args:
        logits: ``[n, 1]``, the predicted scores.
        labels: ``[n]``, the true scores.
    """
    predicted = logits.squeeze(1)
    return {"pearson": pearson_corrcoef(predicted, labels), "spearman": spearman_corrcoef(predicted, labels)}


def class_metrics(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return ``accuracy``, and for two classes ``f1`` (of class 1) and the correlation ``matthews``.

    Args:
        logits: ``[n, classes]``.
        labels: ``[n]``, the true classes.
    """
    classes, predicted = logits.shape[1], logits.argmax(1)
    metrics = {"accuracy": accuracy(predicted, labels, task="multiclass", num_classes=classes, average="micro")}
    if classes == 2:
        metrics["f1"] = binary_f1_score(predicted, labels)
        metrics["matthews"] = binary_matthews_corrcoef(predicted, labels)
    return metrics


def answer_metrics(predicted: Sequence[str], correct: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return SQuAD's ``exact_match`` and ``f1``, from 0 to 1.

    Args:
        predicted: an answer for each question.
        correct: the correct answers to each question; the best match counts.
    """
    predictions = [{"prediction_text": text, "id": str(number)} for number, text in enumerate(predicted)]
    targets: list[dict[str, Any]] = [
        {"answers": {"text": list(texts), "answer_start": [0] * len(texts)}, "id": str(number)}
        for number, texts in enumerate(correct)
    ]
    percent = squad(predictions, targets)
    return {name: percent[name].item() / 100 for name in ("exact_match", "f1")}
