"""BERT fine-tuned through Kronecker adapters: everything but the adapters and the last layer stays as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from workflow.bench.workloads.bert_classification import BertClassification
from workflow.bench.workloads.kronecker_rnn import KroneckerLinear, factor_sizes

_ADAPTED = ("query", "value")
_ADAPTER = ".adapter."  # is part of the names of the adapters' weights


class BertKrona(BertClassification):
    """`BertClassification` with KronA (Edalati et al., 2022): the query and value layers get adapters.

    Only the adapters and the classifier are trained. The other weights are frozen, and their layers excluded from
    preconditioning.

    Raises:
        ValueError: ``outer_size`` does not divide ``hidden_size``; see also `BertClassification`.
        workflow.bench.data.folder.DataNotFound: the data or the published weights are not on this machine.
    """

    exclude = (r"\.(key|dense)$",)

    def __init__(self, parameters: Mapping[str, Any], *, for_tuning: bool = False) -> None:
        factor_sizes(parameters)  # refuses impossible sizes before any data is read
        super().__init__(parameters, for_tuning=for_tuning)

    @override
    @classmethod
    def architecture(cls, parameters: Mapping[str, Any]) -> nn.Module:
        sizes = factor_sizes(parameters)
        model = super().architecture(parameters).requires_grad_(False)
        model.get_submodule("classifier").requires_grad_(True)
        for name, module in list(model.named_modules()):
            if name.endswith(_ADAPTED):
                assert isinstance(module, nn.Linear)
                model.set_submodule(name, AdaptedLinear(module, sizes, parameters["adapter_scale"]))
        return model

    @override
    @classmethod
    def display_names(cls, parameters: Mapping[str, Any]) -> tuple[str, str]:
        model, data = super().display_names(parameters)
        return f"{model}, Kronecker adapters", data

    @override
    def load_initial_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Load the encoder of a pre-trained model; the adapters and the last layer stay new."""
        new = {name: tensor for name, tensor in model.state_dict().items() if _ADAPTER in name}
        super().load_initial_weights(model, {**weights, **new})


class AdaptedLinear(nn.Module):
    """A linear layer with the weight ``W_0 + scale * (P kron B)``, of which only P and B are trained.

    P starts at zero, so that the layer starts as ``linear``. The first gradient of B is then exactly 0.

    Args:
        linear: the layer to adapt, square; its parameters keep their names.
        sizes: of P and B, both square.
        scale: of the adapter's output.
    """

    def __init__(self, linear: nn.Linear, sizes: tuple[int, int], scale: float) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._scale = scale
        outer, inner = sizes
        self.adapter = KroneckerLinear((outer, outer), (inner, inner))
        nn.init.zeros_(self.adapter.outer.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[..., d_out]`` for ``[..., d_in]``."""
        return functional.linear(inputs, self.weight, self.bias) + self._scale * self.adapter(inputs)
