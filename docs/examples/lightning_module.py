"""MKOR in a LightningModule: `configure_optimizers` attaches it, the Lightning Trainer does the rest.

Classifies scikit-learn's 8x8 digits. Run from the repository: ``python -m docs.examples.lightning_module``
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from mkor_core import torchvision_operators  # noqa: F401  (where torchvision's wheel does not fit a CPU-only torch)

# isort: split
import lightning
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, Sampler, TensorDataset

from mkor_core import MKOR, Preconditioner

BATCH, MICRO_BATCHES = 128, 2


class Digits(lightning.LightningModule):
    """A classifier of 8x8 digits, trained with MKOR."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_index: int) -> Tensor:
        """Return the loss of a micro-batch."""
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        """Return SGD with MKOR attached, and a learning-rate schedule."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        self.preconditioner = Preconditioner(
            self,
            MKOR(inverse_update_period=5),
            accumulation_steps=self.trainer.accumulate_grad_batches,
            grad_scale=getattr(self.trainer.precision_plugin, "scaler", None) or 1.0,  # with precision="16-mixed"
        ).attach(optimizer)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def train(checkpoint: Path, epochs: int) -> lightning.Trainer:
    """Train until the end of an epoch, from the checkpoint if it exists; save it again and return the Trainer."""
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    lightning.seed_everything(0, verbose=False)
    model = Digits()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        accumulate_grad_batches=MICRO_BATCHES,
        gradient_clip_val=1.0,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
    )
    # The sampler's order depends only on the epoch, so a resumed run gets the same batches as an uninterrupted one.
    sampler: Sampler[int] = DistributedSampler(data, num_replicas=1, rank=0)
    batches = DataLoader(data, BATCH // MICRO_BATCHES, sampler=sampler, drop_last=True)
    trainer.fit(model, batches, ckpt_path=checkpoint if checkpoint.exists() else None, weights_only=True)
    trainer.save_checkpoint(checkpoint)
    return trainer


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "last.ckpt"
        for epochs in (3, 6):
            print(f"loss in epoch {epochs}: {train(file, epochs).callback_metrics['loss']:.3f}")
