"""Wrong optimizers of a few lines each, for the tests of the audit: each has the one fault that its docstring names."""

from __future__ import annotations

import os
import random
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

Group = dict[str, Any]


class Sound(Optimizer):
    """Adam with decoupled decay, written as a loop over parameters; nothing is wrong with it."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        maximize: bool = False,
        foreach: bool = False,
    ) -> None:
        if not lr >= 0 or not weight_decay >= 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError("a hyperparameter is out of range")
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "maximize": maximize, "foreach": foreach})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        loss = self.evaluate(closure)
        for group, weight in self.with_gradients():
            self.move(weight, self.gradient(weight, group), self.state[weight], group)
        return loss

    def evaluate(self, closure: Callable[[], Tensor] | None) -> Tensor | None:
        with torch.enable_grad():
            return None if closure is None else closure()

    def with_gradients(self) -> Iterator[tuple[Group, Tensor]]:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    yield group, weight

    def gradient(self, weight: Tensor, group: Group) -> Tensor:
        assert weight.grad is not None
        if weight.grad.is_sparse or weight.is_complex():
            raise RuntimeError("neither sparse nor complex")
        return -weight.grad if group["maximize"] else weight.grad

    def move(self, weight: Tensor, grad: Tensor, state: dict[str, Any], group: Group) -> None:
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.sub_(group["lr"] * self.direction(grad, state, group))

    def direction(self, grad: Tensor, state: dict[str, Any], group: Group) -> Tensor:
        if not state:
            state.update(step=0, mean=torch.zeros_like(grad), square=torch.zeros_like(grad))
        state["step"] += 1
        first, second = group["betas"]
        state["mean"].lerp_(grad, 1 - first)
        state["square"].lerp_(grad.square(), 1 - second)
        mean, square = state["mean"] / (1 - first ** state["step"]), state["square"] / (1 - second ** state["step"])
        return mean / (square.sqrt() + group["eps"])


class DeadDecay(Sound):
    """weight_decay does nothing."""

    def move(self, weight, grad, state, group):
        super().move(weight, grad, state, {**group, "weight_decay": 0.0})


class DeadEps(Sound):
    """eps does nothing."""

    def direction(self, grad, state, group):
        return super().direction(grad, state, {**group, "eps": 1e-8})


class DeadFirstBeta(Sound):
    """The first beta does nothing."""

    def direction(self, grad, state, group):
        return super().direction(grad, state, {**group, "betas": (0.9, group["betas"][1])})


class DeadSecondBeta(Sound):
    """The second beta does nothing."""

    def direction(self, grad, state, group):
        return super().direction(grad, state, {**group, "betas": (group["betas"][0], 0.99)})


class DeadMaximize(Sound):
    """maximize is ignored."""

    def gradient(self, weight, group):
        return super().gradient(weight, {**group, "maximize": False})


class HalfMaximize(Sound):
    """maximize turns the decay instead of the gradient."""

    def move(self, weight, grad, state, group):
        sign = -1 if group["maximize"] else 1
        super().move(weight, sign * grad, state, {**group, "weight_decay": sign * group["weight_decay"]})


class Climbs(Sound):
    """The step has the wrong sign."""

    def direction(self, grad, state, group):
        return -super().direction(grad, state, group)


class HalfState(Sound):
    """A saved state lacks the second moments, which start anew."""

    def state_dict(self):
        saved = super().state_dict()
        saved["state"] = {k: {**s, "square": torch.zeros_like(s["square"])} for k, s in saved["state"].items()}
        return saved


class NoState(Sound):
    """A saved state is empty."""

    def state_dict(self):
        return {**super().state_dict(), "state": {}}


class LostSteps(Sound):
    """Loading sets the steps to 0."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["step"] = 0


class LostKeys(Sound):
    """A loaded state lacks an entry, so that the next step raises an error."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for state in self.state.values():
            del state["square"]


class ByIdentity(Sound):
    """The state lies under the parameters' addresses, outside the state that is saved."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.kept: dict[int, dict[str, Any]] = {}

    def move(self, weight, grad, state, group):
        super().move(weight, grad, self.kept.setdefault(id(weight), {}), group)


class InClass(Sound):
    """All instances share one momentum by the weight's shape."""

    shared: ClassVar[dict[Any, dict[str, Any]]] = {}

    def move(self, weight, grad, state, group):
        super().move(weight, grad, self.shared.setdefault(weight.shape, {}), group)


class ForgetfulRate(Sound):
    """The learning rate of the constructor is used, whatever the groups say."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.rate = self.defaults["lr"]

    def move(self, weight, grad, state, group):
        super().move(weight, grad, state, {**group, "lr": self.rate})


class FirstRate(Sound):
    """The learning rate of the first step is kept in the state."""

    def move(self, weight, grad, state, group):
        kept = state.pop("lr", float(group["lr"]))
        super().move(weight, grad, state, {**group, "lr": kept})
        state["lr"] = kept


class FrozenTensorRate(Sound):
    """A learning rate given as a tensor is read once."""

    def __init__(self, params, lr=1e-2, **options):
        super().__init__(params, lr=float(lr), **options)


class TensorRateTwice(Sound):
    """A learning rate given as a tensor is applied twice."""

    def direction(self, grad, state, group):
        update = super().direction(grad, state, group)
        return update * group["lr"] if isinstance(group["lr"], Tensor) else update


class FirstGroupsRate(Sound):
    """All groups use the first one's learning rate."""

    def move(self, weight, grad, state, group):
        super().move(weight, grad, state, {**group, "lr": self.param_groups[0]["lr"]})


class FirstGroupsDecay(Sound):
    """All groups use the first one's weight decay."""

    def move(self, weight, grad, state, group):
        super().move(weight, grad, state, {**group, "weight_decay": self.param_groups[0]["weight_decay"]})


class LastGroupsBetas(Sound):
    """All groups use the last one's betas."""

    def move(self, weight, grad, state, group):
        super().move(weight, grad, state, {**group, "betas": self.param_groups[-1]["betas"]})


class DefaultsWin(Sound):
    """The defaults are used in place of a group's own eps and weight decay."""

    def move(self, weight, grad, state, group):
        super().move(weight, grad, state, {**group, **{k: self.defaults[k] for k in ("eps", "weight_decay")}})


class SharedMomentum(Sound):
    """All parameters of a shape share one momentum."""

    def move(self, weight, grad, state, group):
        first = next(w for g in self.param_groups for w in g["params"] if w.shape == weight.shape)
        super().move(weight, grad, self.state[first], group)


class OneCounter(Sound):
    """One counter of steps serves all parameters, also those whose first gradient comes late."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.state["all"] = {"step": 0}

    @torch.no_grad()
    def step(self, closure=None):
        self.state["all"]["step"] += 1
        return super().step(closure)

    def direction(self, grad, state, group):
        if not state:
            state.update(step=0, mean=torch.zeros_like(grad), square=torch.zeros_like(grad))
        state["step"] = self.state["all"]["step"] - 1
        return super().direction(grad, state, group)


class CountsAll(Sound):
    """The step is shorter the more parameters there are without a gradient."""

    def move(self, weight, grad, state, group):
        total, used = len(group["params"]), sum(w.grad is not None for w in group["params"])
        super().move(weight, grad * used / total, state, {**group, "lr": group["lr"] * used / total})


class DecaysUnused(Sound):
    """Parameters without a gradient are decayed."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
        return super().step(closure)


class MovesWithoutGradients(Sound):
    """A parameter whose gradient is missing moves on by its momentum."""

    def with_gradients(self):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None and self.state[weight]:
                    weight.grad = torch.zeros_like(weight)
        yield from super().with_gradients()


class ClosureTwice(Sound):
    """A closure is evaluated twice."""

    def evaluate(self, closure):
        super().evaluate(closure)
        return super().evaluate(closure)


class ClosureWithoutGradients(Sound):
    """A closure is evaluated without gradients."""

    def evaluate(self, closure):
        return None if closure is None else closure()


class ClosureForgotten(Sound):
    """The closure's loss is not returned."""

    def evaluate(self, closure):
        super().evaluate(closure)


class ForeachDiffers(Sound):
    """foreach adds eps within the root."""

    def direction(self, grad, state, group):
        update = super().direction(grad, state, {**group, "eps": 0.0 if group["foreach"] else group["eps"]})
        return update * 0.999 if group["foreach"] else update


class ForeachSkipsLast(Sound):
    """foreach leaves out the last parameter of a group."""

    def with_gradients(self):
        for group, weight in super().with_gradients():
            if not (group["foreach"] and weight is group["params"][-1]):
                yield group, weight


class SkipsVectors(Sound):
    """Parameters of one dimension are left out."""

    def with_gradients(self):
        yield from ((group, weight) for group, weight in super().with_gradients() if weight.dim() != 1)


class SkipsScalars(Sound):
    """Parameters without dimensions are left out."""

    def with_gradients(self):
        yield from ((group, weight) for group, weight in super().with_gradients() if weight.dim() != 0)


class SkipsStrided(Sound):
    """Parameters that are not contiguous are left out."""

    def with_gradients(self):
        yield from ((group, weight) for group, weight in super().with_gradients() if weight.is_contiguous())


class WritesToACopy(Sound):
    """The step goes to a flat copy where a parameter is not contiguous."""

    def move(self, weight, grad, state, group):
        super().move(weight.reshape(-1), grad.reshape(-1), state, group)


class ReadsMemory(Sound):
    """A gradient is read in the order of its memory."""

    def gradient(self, weight, group):
        grad = super().gradient(weight, group)
        return grad if grad.is_contiguous() else grad.t().reshape(grad.shape)


class ChangesGradients(Sound):
    """The gradient is normalized in place."""

    def gradient(self, weight, group):
        return super().gradient(weight, group).div_(1 + weight.grad.norm())


class KeepsFirstGradient(Sound):
    """The first gradient's memory is taken for that of all later ones."""

    def gradient(self, weight, group):
        state = self.state.setdefault("gradients", {})
        return super().gradient(weight, group) + 0.1 * state.setdefault(id(weight), weight.grad)


class HiddenNan(Sound):
    """Gradients that are not finite stay in the state, and the steps become 0 for good."""

    def direction(self, grad, state, group):
        return super().direction(grad, state, group).nan_to_num(0.0, 0.0, 0.0)


class GlobalNoise(Sound):
    """Noise is drawn from torch's global random numbers."""

    def direction(self, grad, state, group):
        return super().direction(grad, state, group) + 0.01 * torch.randn_like(grad)


class PythonNoise(Sound):
    """Noise is drawn from Python's random numbers."""

    def direction(self, grad, state, group):
        return super().direction(grad, state, group) * (1 + 0.01 * random.random())


class HostsRate(Sound):
    """The step depends on the host's name."""

    def direction(self, grad, state, group):
        return super().direction(grad, state, group) * (1 + len(socket.gethostname()) / 100)


class ProcessRate(Sound):
    """The step depends on the process's number."""

    def direction(self, grad, state, group):
        return super().direction(grad, state, group) * (1 + os.getpid() % 97 / 1000)


class CopySharesState(Sound):
    """A deep copy shares the moments with its original."""

    def __deepcopy__(self, memo):
        other = type(self)([memo[id(w)] for w in self.param_groups[0]["params"]], **self.defaults)
        for weight in self.param_groups[0]["params"]:
            other.state[memo[id(weight)]] = self.state[weight]
        return other


class PickleLosesState(Sound):
    """A pickle has no state."""

    def __getstate__(self):
        return {**super().__getstate__(), "state": {}}

    def __setstate__(self, state):
        super().__setstate__({**state, "state": defaultdict(dict)})


class RoundsState(Sound):
    """The moments are kept in float32 beside parameters of bfloat16, and rounded when they are loaded."""

    def gradient(self, weight, group):
        return super().gradient(weight, group).float()


class UnsafeState(Sound):
    """The state holds an object of a class, which the safe loader refuses."""

    def direction(self, grad, state, group):
        update = super().direction(grad, state, group)
        state["extra"] = random.Random(0)
        return update


class FlatLosesState(Sound):
    """A state that was saved by names of parameters is loaded without its steps."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        if any("param_names" in group for group in state_dict["param_groups"]):
            return
        for state in self.state.values():
            state["square"].zero_()


class DecaysTwice(Sound):
    """The weight decay is multiplied by the learning rate twice, so that it acts only where the rate is large."""

    def move(self, weight, grad, state, group):
        super().move(weight, grad, state, {**group, "weight_decay": group["lr"] * group["weight_decay"]})


class WrongCorrection(Sound):
    """The bias correction counts one step too many."""

    def direction(self, grad, state, group):
        update = super().direction(grad, state, group)
        first, t = group["betas"][0], state["step"]
        return update * (1 - first**t) / (1 - first ** (t + 1))


class BadValuesAccepted(Sound):
    """Hyperparameters are not checked."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01):
        values = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        Optimizer.__init__(self, params, {**values, "maximize": False, "foreach": False})


class BetasUnchecked(BadValuesAccepted):
    """Only the betas are not checked."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01):
        if lr < 0 or weight_decay < 0:
            raise ValueError("a hyperparameter is out of range")
        super().__init__(params, lr, betas, eps, weight_decay)


class AnyName(Sound):
    """Misspelt arguments are swallowed."""

    def __init__(self, params, lr=1e-2, weight_decay=0.01, **others):
        known = {key: others[key] for key in ("betas", "eps") if key in others}
        super().__init__(params, lr=lr, weight_decay=weight_decay, **known)


class OrderMatters(Sound):
    """A parameter's step depends on its place among the others."""

    def move(self, weight, grad, state, group):
        place = next(i for i, w in enumerate(group["params"]) if w is weight)
        super().move(weight, grad, state, {**group, "lr": group["lr"] * (1 + 0.1 * place)})


class EmptyPoisons(Sound):
    """The mean of all gradients' sizes, which an empty parameter makes NaN, divides the steps."""

    def direction(self, grad, state, group):
        sizes = [w.grad.abs().mean() for w in group["params"] if w.grad is not None]
        return super().direction(grad, state, group) * (1 + 0 * torch.stack(sizes).mean())


class RealPartOnly(Sound):
    """The imaginary part of a complex parameter stays."""

    def gradient(self, weight, group):
        return weight.grad.real.to(weight.dtype) if weight.is_complex() else super().gradient(weight, group)

    def direction(self, grad, state, group):
        if grad.is_complex():
            return super().direction(grad.real.contiguous(), state, group)
        return super().direction(grad, state, group)


class SparseSkipped(Sound):
    """Sparse gradients are passed over in silence."""

    def with_gradients(self):
        yield from ((group, weight) for group, weight in super().with_gradients() if not weight.grad.is_sparse)


class WidensWeights(Sound):
    """Parameters of bfloat16 become float32."""

    def move(self, weight, grad, state, group):
        weight.data = weight.data.float()
        super().move(weight, grad.float(), state, group)


class DoublesOnRanks(Sound):
    """On several ranks, gradients are added up once more."""

    def gradient(self, weight, group):
        grad = super().gradient(weight, group).clone()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(grad)
            grad += 0.01 * torch.distributed.get_rank()
        return grad


class ShardsAlone(Sound):
    """A sharded parameter's step is divided by the norm of the rank's own shard."""

    def direction(self, grad, state, group):
        local = getattr(grad, "_local_tensor", grad)
        update = super().direction(grad, state, group)
        return update / local.norm().clamp(min=1e-12).item()


class HashedRate(Sound):
    """The step depends on Python's hash of a text, which differs from process to process."""

    def direction(self, grad, state, group):
        return super().direction(grad, state, group) * (1 + hash("mean") % 1000 / 1e4)


class CompiledDiffers(Sound):
    """Under torch.compile the steps are half as long."""

    def direction(self, grad, state, group):
        update = super().direction(grad, state, group)
        return update / 2 if torch.compiler.is_compiling() else update
