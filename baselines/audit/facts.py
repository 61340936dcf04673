"""Facts about an optimizer that are neither right nor wrong: symmetries, sizes, and whom it equals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from baselines.audit.subject import Subject

STEPS = 10
SHAPE = (6, 4)


class Fact(NamedTuple):
    """A name and what was measured."""

    name: str
    statement: str


def facts(subject: Subject) -> Iterator[Fact]:
    """Yield the facts that could be measured."""
    with subject.at_work():
        for name, measure in (
            ("the loss times 1024", _scaled),
            ("state", _state),
            ("length of updates", _lengths),
            ("cosine with the gradient", _cosine),
            ("a rotation of gradients", _rotated),
            ("a permutation of gradients", _permuted),
            ("equal to", _kin),
        ):
            try:
                yield Fact(name, measure(subject))
            except Exception as error:  # noqa: BLE001  (what the optimizer refuses is not measured)
                yield Fact(name, f"not measured: {str(error).partition(chr(10))[0][:120] or type(error).__name__}")


def _scaled(subject: Subject) -> str:
    start = subject.train(*subject.new(dtype=torch.float64), [])
    plain, scaled = (subject.train(*subject.new(dtype=torch.float64), range(4), scale) - start for scale in (1.0, 1024))
    first, larger = (subject.train(*subject.new(dtype=torch.float64), [0], scale) - start for scale in (1.0, 1024))
    if float((scaled - plain).norm() / plain.norm()) < 1e-3:
        return "invariant: the weights are those of the loss itself"
    if float((larger / 1024 - first).norm() / first.norm()) < 1e-3:
        return "equivariant: the first step is 1024 times as long"
    return f"neither: the first step is {float(larger.norm() / first.norm()):.3g} times as long"


def _state(subject: Subject) -> str:
    model, optimizer = subject.new()
    subject.train(model, optimizer, range(STEPS))
    tensors = [leaf for leaf in tree_leaves(optimizer.state_dict()) if isinstance(leaf, Tensor)]
    weights = sum(w.numel() for w in model.parameters())
    return f"{sum(t.numel() * t.element_size() for t in tensors) / weights:.3g} bytes a parameter, in float32"


def _lengths(subject: Subject) -> str:
    model, optimizer = subject.new(dtype=torch.float64)
    ends = [subject.train(model, optimizer, [])]
    ends += [subject.train(model, optimizer, [step]) for step in range(100)]
    rms = [float((ends[step] - ends[step - 1]).square().mean().sqrt()) for step in (1, 10, 100)]
    unit = subject.lr or 1.0
    return "root mean square in steps 1, 10, 100: " + ", ".join(f"{value / unit:.3g}" for value in rms) + " times lr"


def _cosine(subject: Subject) -> str:
    found = []
    for step in (1, 10):
        model, optimizer = subject.new(dtype=torch.float64)
        before = subject.train(model, optimizer, range(step - 1))
        model.zero_grad()
        kept: list[Tensor] = []
        optimizer.register_step_pre_hook(lambda *_, kept=kept, model=model: kept.append(_gradient(model)))
        change = before - subject.train(model, optimizer, [step - 1])
        found.append(f"{float(nn.functional.cosine_similarity(change, kept[0], 0)):.3g} in step {step}")
    return ", ".join(found)


def _gradient(model: nn.Module) -> Tensor:
    return torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])


def _moves(make: Callable[[list[nn.Parameter]], Optimizer], turn: Callable[[Tensor], Tensor] = lambda g: g) -> Tensor:
    """Return a matrix's changes in each of ten steps with given gradients, ``[steps, 6, 4]``."""
    weight = nn.Parameter(torch.zeros(SHAPE, dtype=torch.float64))
    optimizer, moves = make([weight]), []
    for step in range(STEPS):
        torch.manual_seed(step // 2)  # gradients that persist: their signs and averages do not all agree
        weight.grad = turn(torch.randn(SHAPE, dtype=torch.float64))
        before = weight.detach().clone()
        optimizer.step()
        moves.append(weight.detach() - before)
    return torch.stack(moves)


def _own(subject: Subject, **changes: Any) -> Callable[[list[nn.Parameter]], Optimizer]:
    if not subject.is_class or subject.by_closure or not subject.takes_dense:
        raise ValueError("it takes no parameters with gradients of their own")
    return lambda weights: subject.new(lambda _: nn.ParameterList(weights), torch.float64, **changes)[1]


def _rotated(subject: Subject) -> str:
    torch.manual_seed(1)
    left, right = (torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0] for d in SHAPE)
    return _turned(subject, left, right)


def _permuted(subject: Subject) -> str:
    left, right = (torch.eye(d, dtype=torch.float64)[torch.arange(d).roll(1)] for d in SHAPE)
    return _turned(subject, left, right)


def _turned(subject: Subject, left: Tensor, right: Tensor) -> str:
    plain = _moves(_own(subject))
    turned = left.T @ _moves(_own(subject), lambda grad: left @ grad @ right.T) @ right
    error = float((turned - plain).norm() / plain.norm())
    return f"turns the steps alike (error {error:.1g})" if error < 1e-2 else f"changes the steps, off by {error:.2g}"


def _kin(subject: Subject) -> str:
    """Return the optimizers of torch that take the same steps, or the same up to a factor, from the same settings."""
    moves = _moves(_own(subject)).flatten(1)
    found, best = [], (-1.0, "")
    for name, make in _known(subject).items():
        others = _moves(make).flatten(1)
        cosine = float(nn.functional.cosine_similarity(moves, others, 1).min())
        if math.isfinite(cosine):
            best = max(best, (cosine, name))
        if torch.allclose(moves, others, rtol=1e-5, atol=1e-12):
            found.append(name)
        elif cosine > 1 - 1e-6:
            found.append(f"{name} times {float(moves.norm() / others.norm()):.3g}")
    return ", ".join(found) if found else f"none of {len(_known(subject))}; least cosine {best[0]:.3g} with {best[1]}"


class _Sign(Optimizer):
    """SGD by the signs of the gradient."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                weight.sub_(weight.grad.sign(), alpha=group["lr"])


def _known(subject: Subject) -> dict[str, Callable[[list[nn.Parameter]], Optimizer]]:
    lr, optim = subject.lr or 1e-3, torch.optim
    betas = subject.value("betas") if "betas" in subject.signature else None
    betas = tuple(betas[:2]) if isinstance(betas, tuple | list) and len(betas) >= 2 else (0.9, 0.999)
    known: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
        "SGD": lambda w: optim.SGD(w, lr),
        "SGD with momentum 0.9": lambda w: optim.SGD(w, lr, momentum=0.9),
        "SGD with Nesterov's momentum 0.9": lambda w: optim.SGD(w, lr, momentum=0.9, nesterov=True),
        "sign SGD": lambda w: _Sign(w, lr),
        "Adam": lambda w: optim.Adam(w, lr, betas=betas),
        "AdamW": lambda w: optim.AdamW(w, lr, betas=betas),
        "NAdam": lambda w: optim.NAdam(w, lr, betas=betas),
        "RAdam": lambda w: optim.RAdam(w, lr, betas=betas),
        "Adamax": lambda w: optim.Adamax(w, lr, betas=betas),
        "RMSprop": lambda w: optim.RMSprop(w, lr),
        "Adagrad": lambda w: optim.Adagrad(w, lr),
        "Adadelta": lambda w: optim.Adadelta(w, lr),
        "Adafactor": lambda w: optim.Adafactor(w, lr),
        "Rprop": lambda w: optim.Rprop(w, lr),
    }
    if hasattr(optim, "Muon"):  # from torch 2.9 on
        known["Muon"] = lambda w: optim.Muon(w, lr)
    return known
