"""MKOR on one page: the specification. It runs as it stands, and every engine is tested against it.

A layer ``y = W x + b`` has the gradient ``D = [dL/dW, dL/db]``, ``[d_out, d_in + 1]``: the bias is the weight of an
input that is always 1 (without a bias: ``[d_out, d_in]``). K-FAC steps along ``L^-1 D R^-1`` in place of D. R is the
second moment of the layer's inputs, L that of the gradients with respect to its outputs; to invert one costs O(d^3).

MKOR (Mozaffari, Li, Zhang and Mehri Dehnavi, NeurIPS 2023, https://arxiv.org/abs/2306.01685) keeps the inverses,

    J_R for R^-1, [d_in + 1, d_in + 1]     and     J_L for L^-1, [d_out, d_out],     both I at first,

and takes a batch's mean for its second moment: ``a a^T`` with the mean input a for R, ``g g^T`` with the mean gradient
g for L. A matrix of rank 1 changes an inverse in O(d^2). There are two things to do, in

    1. one of ``inverse_update_period`` steps:     J_R <- rule(stabilized(J_R), a),   J_L <- rule(stabilized(J_L), g)
    2. every step:                                 V = rescaled(J_L D J_R, D)

and a first-order optimizer (SGD with momentum, LAMB, ...) then takes V for the gradient. The equations are

- A1 `stabilized`: the paper's norm-based stabilizer;
- A2 `published`: the rule as the paper prints it, in lines 7 and 8 of Algorithm 1 and in Lemma 3.1;
- A3 `sherman_morrison`: the rule that inverts the averaged moment exactly, the default;
- A4 `released`: the rule of the authors' code, https://github.com/Mohammad-Mozaffari/mkor;
- A5 `rescaled`: the paper's rescaling of the gradient, here with one norm for weight and bias.

The engines behind `mkor_core.Preconditioner` compute the same faster, over ranks, in half precision, and with windows
in place of matrices. What guards them against a J that rounding has made indefinite is no part of MKOR, and not here.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mkor_core.mkor import MKOR

# The equations. J [d, d] is symmetric and positive definite, v is [d]; decay is gamma, the weight of the old factor.


def stabilized(J: Tensor, threshold: float, blend: float) -> Tensor:
    """A1: ``J <- zeta J + (1 - zeta) I`` if J's largest entry exceeds epsilon. Zeta is blend, epsilon is threshold."""
    # Of a positive definite matrix, the largest entry lies on the diagonal.
    return blended(J, blend) if J.diagonal().max() > threshold else J


def published(J: Tensor, v: Tensor, decay: float) -> Tensor:
    """A2: ``J <- gamma J + (1 - gamma) / (gamma^2 (1 + gamma (1 - gamma) v^T J v)) (J v)(J v)^T``.

    It adds where A3 subtracts, so that it stretches the direction that it should shrink.
    """
    Jv = J @ v
    return decay * J + (1 - decay) / (decay**2 * (1 + decay * (1 - decay) * v.dot(Jv))) * torch.outer(Jv, Jv)


def sherman_morrison(J: Tensor, v: Tensor, decay: float) -> Tensor:
    """A3: ``J <- J / gamma - (1 - gamma) / gamma^2 / (1 + (1 - gamma) / gamma v^T J v) (J v)(J v)^T``.

    By the Sherman-Morrison formula this is ``(gamma J^-1 + (1 - gamma) v v^T)^-1``, the inverse of a running mean.
    """
    Jv = J @ v
    return J / decay - (1 - decay) / decay**2 / (1 + (1 - decay) / decay * v.dot(Jv)) * torch.outer(Jv, Jv)


def released(J: Tensor, v: Tensor, decay: float) -> Tensor:
    """A4: ``J <- J' - (J' v)(J' v)^T / (1 + v^T J' v)`` with ``J' = gamma J + (1 - gamma) I``.

    By the same formula this is ``(J'^-1 + v v^T)^-1``. From J = I on, no eigenvalue ever exceeds 1.
    """
    J = blended(J, decay)
    Jv = J @ v
    return J - torch.outer(Jv, Jv) / (1 + v.dot(Jv))


def rescaled(V: Tensor, D: Tensor) -> Tensor:
    """A5: ``V <- V |D| / |V|`` in the Frobenius norm, so that D's learning rate suits V; D if V is 0 or not finite."""
    ratio = torch.linalg.matrix_norm(D) / torch.linalg.matrix_norm(V)
    return V * ratio if 0 < ratio < math.inf else D


def blended(J: Tensor, weight: float) -> Tensor:
    """Return ``weight J + (1 - weight) I``."""
    return weight * J + (1 - weight) * torch.eye(len(J)).to(J)


RULES = {"published": published, "sherman_morrison": sherman_morrison, "released": released}
CLAMP = 100.0
"""With the rule ``released``, the limit on the magnitude of the entries of rows, before their mean."""

# What they are applied to: D, a and g of each layer of a model.


def rows(module: nn.Linear | nn.Conv2d, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """Return X ``[N, K, d_in]`` and G ``[N, K, d_out]``, of N examples with K rows each: dL/dW is the sum of g x^T.

    Linear: each leading index of the input x, such as a token, is an example with one row. Conv2d: each image is an
    example, and each location of its output a row, of the patch of C kh kw inputs that the location sees.
    """
    if isinstance(module, nn.Linear):
        return x.reshape(-1, 1, x.shape[-1]), dy.reshape(-1, 1, dy.shape[-1])
    x, dy = (images.reshape(-1, *images.shape[-3:]) for images in (x, dy))
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    padded = F.pad(x, module._reversed_padding_repeated_twice, mode)
    patches = F.unfold(padded, module.kernel_size, module.dilation, 0, module.stride)  # [N, C kh kw, K]
    return patches.mT, dy.flatten(2).mT


class ReferenceLayer:
    """A Linear or Conv2d with its J_L and J_R, and the rows of the step under way."""

    def __init__(self, module: nn.Linear | nn.Conv2d) -> None:
        self.module = module
        self.parameters = [p for p in (module.weight, module.bias) if p is not None and p.requires_grad]
        self.widths = [p[0].numel() for p in self.parameters]  # columns of D: d_in and, with a bias, 1
        self.J_L = torch.eye(len(module.weight)).to(module.weight)
        self.J_R = torch.eye(sum(self.widths)).to(module.weight)
        self.updates = 0
        self.calls: list[tuple[Tensor, Tensor]] = []  # one, unless the layer is called, or a loss passed back, twice

    def on_forward(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Keep the rows of a call as soon as its gradient is known: a forward hook."""
        x, y = inputs[0].detach(), output.clone()  # a copy keeps its hook if a ReLU(inplace=True) changes it
        if module.training and y.requires_grad:
            y.register_hook(lambda dy: self.calls.append(rows(self.module, x, dy)))
        return y

    def mean_rows(self, limit: float) -> tuple[Tensor, Tensor]:
        """Return a ``[d_in (+1)]`` and g ``[d_out]``, of rows clamped to ``[-limit, limit]``.

        The loss is a mean over examples. N times a row of its gradient is that of the example's own loss.
        """
        N = sum(len(X) for X, _ in self.calls)
        a = torch.stack([X.mean(1).clamp(-limit, limit).sum(0) for X, _ in self.calls]).sum(0) / N
        g = torch.stack([(len(G) * G.mean(1)).clamp(-limit, limit).mean(0) for _, G in self.calls]).sum(0)
        if len(self.parameters) == 1:
            return a, g
        db = self.parameters[1].grad
        if limit == math.inf and db is not None:
            # The same number, for dL/db is K g; but a trainer that has clipped D has clipped this, too.
            g = db / (sum(len(X) * X.shape[1] for X, _ in self.calls) / N)
        return torch.cat([a, a.new_ones(1)]), g


class ReferenceMKOR:
    """MKOR on one process for every Linear and Conv2d (groups=1) of a model, in the precision of the weights.

        mkor = ReferenceMKOR(model, MKOR(inverse_update_period=1))
        loss.backward()
        mkor.step()  # every D becomes V
        optimizer.step()

    A window counts as one that is as wide as the number of updates: it is as good as the matrix.

    Raises:
        ValueError: the method has an option that is in none of the equations.
    """

    def __init__(self, model: nn.Module, method: MKOR) -> None:
        if method.rank > 1 or method.gradient_norm is not None or method.gradient_scale != 1:
            raise ValueError(f"{method}: the reference has no rank above 1, no gradient_norm and no gradient_scale.")
        self.method, self.steps = method, 0
        self.layers: list[ReferenceLayer] = []
        for module in model.modules():
            is_whole = getattr(module, "groups", 1) == 1  # other convolutions have a D for each group
            if isinstance(module, nn.Linear | nn.Conv2d) and is_whole and module.weight.requires_grad:
                self.layers.append(ReferenceLayer(module))
                module.register_forward_hook(self.layers[-1].on_forward)

    @torch.no_grad()
    def step(self) -> None:
        """Update J_L and J_R of every layer if they are due, and replace its gradient D by V, in place."""
        for layer in self.layers:
            if layer.calls and self.steps % self.method.inverse_update_period == 0:
                self.update(layer)
            layer.calls = []
            gradients = [p.grad for p in layer.parameters if p.grad is not None]
            if gradients:
                D = torch.cat([grad.reshape(len(grad), -1) for grad in gradients], 1)
                V = layer.J_L @ D @ layer.J_R
                V = rescaled(V, D) if self.method.rescale else V if V.isfinite().all() else D
                for grad, columns in zip(gradients, V.split(layer.widths, 1), strict=True):
                    grad.copy_(columns.reshape(grad.shape))
        self.steps += 1

    def update(self, layer: ReferenceLayer) -> None:
        """Update J_R with a and J_L with g."""
        m = self.method
        a, g = layer.mean_rows(CLAMP if m.update_rule == "released" else math.inf)
        if not (a.isfinite().all() and g.isfinite().all()):
            return  # a batch that overflows changes no factor
        layer.updates += 1
        if m.update_rule == "released" and layer.updates == 1:
            return  # the first update of the released code only sets J = I
        rule = RULES[m.update_rule]
        layer.J_R = rule(stabilized(layer.J_R, m.stabilizer_threshold, m.stabilizer_blend), a, m.decay)
        if m.sides == "both":
            layer.J_L = rule(stabilized(layer.J_L, m.stabilizer_threshold, m.stabilizer_blend), g, m.decay)
