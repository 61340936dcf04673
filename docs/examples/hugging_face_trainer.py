"""MKOR in the Hugging Face Trainer: `create_optimizer` attaches it to the optimizer that the Trainer makes.

Trains a tiny BERT with masked words on the descriptions of scikit-learn's data sets. From the repository:
``python -m docs.examples.hugging_face_trainer``
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn import datasets

from baselines import _torchvision_operators  # noqa: F401  (where torchvision's wheel does not fit a CPU-only torch)

# isort: split
from tokenizers import BertWordPieceTokenizer
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

from mkor_core import MKOR, Preconditioner

LENGTH, WORDS = 32, 500


class MKORTrainer(Trainer):
    """The Trainer with MKOR before its optimizer."""

    preconditioner: Preconditioner | None = None

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Return the optimizer that `TrainingArguments` ask for, with MKOR attached."""
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


def sentences() -> tuple[BertTokenizerFast, list[dict[str, Any]]]:
    """Return a tokenizer trained on the descriptions, and their text in pieces of one length."""
    loaders = ("iris", "digits", "wine", "breast_cancer", "diabetes", "linnerud")
    texts = [getattr(datasets, f"load_{name}")().DESCR for name in loaders]
    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(texts, vocab_size=WORDS, show_progress=False)
    tokenizer = BertTokenizerFast(tokenizer_object=pieces._tokenizer)
    tokens = [token for text in texts for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    starts = range(0, len(tokens) - LENGTH, LENGTH)
    return tokenizer, [{"input_ids": tokens[start : start + LENGTH]} for start in starts]


def train(folder: Path, steps: int, checkpoint: Path | None = None) -> MKORTrainer:
    """Train up to a step, from a checkpoint if one is given; a checkpoint is left in the folder at the end."""
    tokenizer, data = sentences()
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        optim="sgd",
        learning_rate=0.1,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        save_steps=steps,
        logging_steps=5,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForMaskedLM(BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **shape))
    masking = DataCollatorForLanguageModeling(tokenizer)
    trainer = MKORTrainer(model, arguments, train_dataset=data, data_collator=masking)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return trainer


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        first = train(Path(folder), 10)
        train(Path(folder), 20, Path(folder) / "checkpoint-10")
