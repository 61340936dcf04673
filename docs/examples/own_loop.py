"""MKOR in your own training loop, with micro-batches, clipping, a schedule, and resuming from a checkpoint.

Classifies scikit-learn's 8x8 digits. Run from the repository: ``python -m docs.examples.own_loop``
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from mkor_core import MKOR, Preconditioner

BATCH, MICRO_BATCHES = 128, 2


def train(checkpoint: Path, epochs: int) -> list[float]:
    """Train until the end of an epoch, from the checkpoint if it exists; return the mean loss of each new epoch."""
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    Preconditioner(model, MKOR(inverse_update_period=5), accumulation_steps=MICRO_BATCHES).attach(optimizer)

    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # includes the preconditioner's state
        scheduler.load_state_dict(saved["scheduler"])
        start = saved["epochs"]

    losses = []
    for epoch in range(start, epochs):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        batches = order[: len(order) // BATCH * BATCH].split(BATCH)
        total = 0.0
        for batch in batches:
            optimizer.zero_grad()
            for part in batch.chunk(MICRO_BATCHES):
                loss = nn.functional.cross_entropy(model(inputs[part]), targets[part]) / MICRO_BATCHES
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()  # preconditions the clipped gradients, then updates
        scheduler.step()
        losses.append(total / len(batches))

    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "epochs": epochs,
    }
    torch.save(state, checkpoint)
    return losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint.pt"
        for epochs in (3, 6):
            print(f"loss up to epoch {epochs}:", *(f"{loss:.3f}" for loss in train(file, epochs)))
