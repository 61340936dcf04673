"""MKOR in the Hugging Face Trainer: `create_optimizer` attaches it to the Trainer's optimizer.

Trains a tiny BERT on masked words in the descriptions of scikit-learn's data sets. Run from the repository:
``python -m docs.examples.hugging_face_trainer``
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path

import torch
from sklearn import datasets

from mkor_core import torchvision_operators  # noqa: F401  (where torchvision's wheel does not fit a CPU-only torch)

# isort: split
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

from mkor_core import MKOR, Preconditioner

LENGTH, WORDS = 32, 500
UNKNOWN, MASK, IGNORED = 0, 1, -100
SAVED = 33  # a step in the middle of an epoch and between two updates of the factors


class MKORTrainer(Trainer):
    """A Trainer whose gradients are preconditioned by MKOR."""

    # BERT's head returns the mean loss of its micro-batch and ignores the number of items in the step. So the Trainer
    # must divide it by the number of micro-batches, and not multiply it by the ranks (average_tokens_across_devices).
    loss_is_scaled_for_ga = False
    preconditioner: Preconditioner | None = None

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Return the optimizer that `TrainingArguments` choose, with MKOR attached."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if self.preconditioner is None:
            self.preconditioner = Preconditioner(
                self.model,
                MKOR(inverse_update_period=5),
                exclude=r"^cls\.",  # the head over the vocabulary
                accumulation_steps=self.args.gradient_accumulation_steps,
                grad_scale=self.accelerator.scaler or 1.0,  # with fp16=True
            ).attach(optimizer)
        return optimizer


def masked_words() -> list[dict[str, Tensor]]:
    """Return the descriptions as sequences of `LENGTH` word ids, 15 % of them masked."""
    loaders = ("iris", "digits", "wine", "breast_cancer", "diabetes", "linnerud")
    text = " ".join(getattr(datasets, f"load_{name}")().DESCR for name in loaders).lower()
    words = re.findall(r"[a-z]+|[^a-z\s]", text)
    vocabulary = [word for word, _ in Counter(words).most_common(WORDS - 2)]
    numbers = {word: number for number, word in enumerate(vocabulary, start=2)}
    tokens = torch.tensor([numbers.get(word, UNKNOWN) for word in words])
    masked = torch.rand(len(tokens), generator=torch.Generator().manual_seed(0)) < 0.15
    inputs, labels = tokens.masked_fill(masked, MASK), tokens.masked_fill(~masked, IGNORED)
    columns = zip(inputs.split(LENGTH)[:-1], labels.split(LENGTH)[:-1], strict=True)
    return [{"input_ids": piece, "labels": truth} for piece, truth in columns]


def make_trainer(folder: Path, steps: int) -> MKORTrainer:
    """Return a trainer that trains up to a step and saves a checkpoint in the folder every `SAVED` steps."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        average_tokens_across_devices=False,
        save_steps=SAVED,
        logging_steps=5,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForMaskedLM(BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **shape))
    base = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
    return MKORTrainer(model, arguments, train_dataset=masked_words(), optimizer_cls_and_kwargs=base)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make_trainer(Path(folder), SAVED).train()
        make_trainer(Path(folder), 60).train(resume_from_checkpoint=True)
