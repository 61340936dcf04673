"""MKOR on transformers whose parameters `fully_shard` divides among the ranks: a GPT-like and a BERT-like model.

Both learn the bytes of Python's own documentation. Halfway, each is saved with `torch.distributed.checkpoint`, made
anew and restored. From the repository, on 1, 2, 3, 4, 6 or 12 ranks:

    torchrun --nproc-per-node 2 -m docs.examples.sharded
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from pydoc_data.topics import topics
from statistics import fmean
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from baselines import Eva
from mkor_core import MKOR, Preconditioner
from mkor_core.ranks import comm

WIDTH, HEADS, BLOCKS, LENGTH = 128, 4, 3, 64
BATCH, MICRO_BATCHES = 24, 2
"""Sequences a step on all ranks together, and the backward passes into which a step is divided."""
VOCABULARY, MASK, MASKED = 128, 0, 10
"""Bytes, the one that stands for a masked byte, and the number of masked bytes in a sequence."""
METHODS = {"window": MKOR(window=16), "dense": MKOR(), "eva": Eva(), "adamw": None}
IGNORED = -100  # cross_entropy's


class Block(nn.Module):
    """A transformer block: attention, then two linear layers, each added to its input."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the block's output for ``[batch, length, width]``."""
        rows = self.norm_1(hidden)
        layers = (self.query, self.key, self.value)
        query, key, value = (layer(rows).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in layers)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        hidden = hidden + self.output(attended.transpose(1, 2).flatten(2))
        result: Tensor = hidden + self.down(F.gelu(self.up(self.norm_2(hidden))))
        return result


class Transformer(nn.Module):
    """A language model: GPT-like if it is causal, otherwise BERT-like."""

    def __init__(self, *, causal: bool, checkpoint_activations: bool) -> None:
        super().__init__()
        self.checkpoint_activations = checkpoint_activations
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(causal=causal) for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of tokens ``[batch, length]``."""
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            # The backward pass computes a block again; MKOR counts its rows once.
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.checkpoint_activations else block(hidden)
        logits = self.head(self.norm(hidden)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def batch(text: Tensor, step: int, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Return a step's tokens and targets ``[batch, length]``, the same on any number of ranks."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=generator)
    window = text[starts + torch.arange(LENGTH + 1)]
    if causal:
        return window[:, :-1], window[:, 1:]
    tokens = window[:, :-1]
    # As many in every sequence, so that the mean over ranks is the mean over the batch.
    masked = torch.zeros(tokens.shape, dtype=torch.bool)
    masked.scatter_(1, torch.rand(tokens.shape, generator=generator).topk(MASKED).indices, value=True)
    return tokens.masked_fill(masked, MASK), tokens.masked_fill(~masked, IGNORED)


class Training:
    """A sharded model with its optimizer and preconditioner, on this rank."""

    def __init__(self, options: argparse.Namespace, device: torch.device, *, causal: bool) -> None:
        self.causal, self.device = causal, device
        self.text = torch.tensor(list("".join(topics.values()).encode("ascii", "replace")))
        torch.manual_seed(0)  # the same weights on all ranks
        self.model = Transformer(causal=causal, checkpoint_activations=options.checkpoint_activations).to(device)
        # 1. Shard the model: every block by itself, then the rest.
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        dtype = torch.bfloat16 if options.bf16 else None
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if options.bf16 else None)
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self.fsdp = fully_shard(self.model, mesh=mesh, mp_policy=policy)
        # 2. The optimizer, of the sharded parameters.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        # 3. The preconditioner, attached before anything is loaded.
        self.preconditioner = None
        if (method := METHODS[options.method]) is not None:
            self.preconditioner = Preconditioner(self.model, method, accumulation_steps=MICRO_BATCHES)
            self.preconditioner.attach(self.optimizer)

    def backward(self, step: int) -> Tensor:
        """Compute a step's gradients; return the mean loss over this rank's part of the batch."""
        self.optimizer.zero_grad()
        rank, world = dist.get_rank(), dist.get_world_size()
        tokens, targets = (
            part.chunk(world)[rank].to(self.device).chunk(MICRO_BATCHES)
            for part in batch(self.text, step, causal=self.causal)
        )
        total = torch.zeros((), device=self.device)
        for index in range(MICRO_BATCHES):
            self.fsdp.set_requires_gradient_sync(index == MICRO_BATCHES - 1)  # gradients travel once a step
            loss = self.model(tokens[index], targets[index]) / MICRO_BATCHES
            loss.backward()
            total += loss.detach()
        return total

    def save(self, folder: Path, step: int) -> None:
        """Write a checkpoint after a number of steps, every rank its part."""
        dcp.save(self.state(step), checkpoint_id=folder / f"{step}")  # type: ignore[attr-defined]

    def restore(self, folder: Path) -> int:
        """Load the last checkpoint, of any number of ranks; return its number of steps, 0 without one."""
        last = max((int(file.parent.name) for file in folder.glob("*/.metadata")), default=0)
        if last == 0:
            return 0
        state = self.state(0)
        dcp.load(state, checkpoint_id=folder / f"{last}")  # type: ignore[attr-defined]
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return int(state["step"])

    def state(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint holds; the preconditioner's state is in the optimizer's."""
        # An optimizer without a state is stepped for this, with zero gradients and a learning rate of 0.
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": step}

    def memory(self) -> dict[str, int]:
        """Return the bytes of what this rank holds between two steps."""
        parameters = list(self.model.parameters())
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return {
            "parameters": local_bytes(parameters),
            "gradients": local_bytes(p.grad for p in parameters if p.grad is not None),
            "AdamW's state": local_bytes(moments),
            "preconditioner's state": 0 if self.preconditioner is None else self.preconditioner.memory_bytes(),
        }


class Traffic(TorchDispatchMode):
    """Counts the bytes that go through collectives: of each the larger one of what a rank puts in and gets out."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a collective, and run the operation."""
        if function.namespace == "c10d":
            self.bytes += max((local_bytes(arg if isinstance(arg, list) else [arg]) for arg in args[:2]), default=0)
        return function(*args, **(kwargs or {}))


def local_bytes(tensors: Iterable[Any]) -> int:
    """Return the bytes of tensors on this rank."""
    parts = (getattr(tensor, "_local_tensor", tensor) for tensor in tensors if isinstance(tensor, Tensor))
    return sum(part.numel() * part.element_size() for part in parts)


class Report(NamedTuple):
    """What training showed."""

    losses: list[float]
    sent: int
    """Bytes that the preconditioner handed to collectives, over all steps."""
    traffic: int
    """Bytes of FSDP's collectives in one step."""
    memory: dict[str, int]


def train(name: str, options: argparse.Namespace, device: torch.device, folder: Path) -> Report:
    """Train a model to the last step, from the checkpoint in a folder if there is one; save it halfway and at the end.

    Raises:
        SystemExit: the checkpoint has as many steps already.
    """
    training = Training(options, device, causal=name == "gpt")
    start = training.restore(folder)
    if start >= options.steps:
        if dist.get_rank() == 0:
            print(f"--steps {options.steps}: the checkpoint in {folder} has {start} steps already", file=sys.stderr)
        dist.barrier()
        raise SystemExit(2)
    halfway = (start + options.steps) // 2
    losses, sent, traffic = [], 0, Traffic()
    for step in range(start, options.steps):
        with traffic if step == start else nullcontext():
            loss = training.backward(step)
        comm.reset_bytes_sent()
        training.optimizer.step()  # preconditions this rank's shards of the gradients, then updates
        sent += sum(comm.bytes_sent().values())
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
        if dist.get_rank() == 0 and (step % 10 == 0 or step + 1 == options.steps):
            print(f"{name} step {step:4}: loss {losses[-1]:.3f}", flush=True)
        if step + 1 == halfway:
            training.save(folder, halfway)
            training = Training(options, device, causal=name == "gpt")
            training.restore(folder)
    training.save(folder, options.steps)
    return Report(losses, sent, traffic.bytes, training.memory())


def table(reports: dict[str, Report]) -> list[str]:
    """Return lines with a column for each model."""
    rows = {
        "loss, mean of the first 10 steps": [f"{fmean(report.losses[:10]):.3f}" for report in reports.values()],
        "loss, mean of the last 10 steps": [f"{fmean(report.losses[-10:]):.3f}" for report in reports.values()],
        "bytes a step, preconditioner": [f"{report.sent / len(report.losses):,.0f}" for report in reports.values()],
        "bytes a step, FSDP": [f"{report.traffic:,}" for report in reports.values()],
    }
    for key in next(iter(reports.values())).memory:
        rows[f"bytes on a rank, {key}"] = [f"{report.memory[key]:,}" for report in reports.values()]
    lines = {"": list(reports), **rows}
    return [f"{name:40}" + "".join(f"{cell:>14}" for cell in cells) for name, cells in lines.items()]


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="torchrun ... -m docs.examples.sharded", description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=("gpt", "bert", "both"), default="both")
    parser.add_argument("--method", choices=METHODS, default="window", help="what goes before AdamW (default: window)")
    parser.add_argument("--steps", type=int, default=100, help="steps in all (default: 100)")
    parser.add_argument("--lr", type=float, default=3e-3, help="AdamW's learning rate (default: 0.003)")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16, reduce gradients in float32")
    parser.add_argument("--checkpoint-activations", action="store_true", help="compute blocks again when going back")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep checkpoints, and go on from the last one")
    options = parser.parse_args(arguments)
    if options.steps < 2:
        parser.error(f"--steps {options.steps}: must be at least 2")
    if not options.lr > 0:
        parser.error(f"--lr {options.lr}: must be above 0")
    if "RANK" not in os.environ:
        parser.error("start it with torchrun, such as torchrun --nproc-per-node 2 -m docs.examples.sharded")
    if BATCH // MICRO_BATCHES % (ranks := int(os.environ["WORLD_SIZE"])):
        parser.error(f"--nproc-per-node {ranks}: ranks must divide a micro-batch of {BATCH // MICRO_BATCHES} sequences")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Train on this rank; rank 0 prints."""
    options = parsed(arguments)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    try:
        names = ["gpt", "bert"] if options.model == "both" else [options.model]
        with tempfile.TemporaryDirectory() as own:
            shared = [options.save or Path(own)]
            dist.broadcast_object_list(shared)  # all ranks use the folder of rank 0
            reports = {name: train(name, options, device, shared[0] / f"{name}-{options.method}") for name in names}
            dist.barrier()  # before rank 0 removes its folder
        if dist.get_rank() == 0:
            print(f"\n{options.method} on {dist.get_world_size()} ranks", *table(reports), sep="\n")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
