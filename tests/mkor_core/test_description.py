from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

from mkor_core import torchvision_operators  # noqa: F401  (before transformers, which imports torchvision)

# isort: split
import torchvision
import transformers
from torch import nn

from baselines.kfac.kaisa import KAISA
from baselines.natural.eva import Eva
from baselines.natural.hylo import HyLo
from mkor_core import MKOR, MKORH, Method, Preconditioner

SIZES = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TOKENS = {"bos_token_id": 0, "eos_token_id": 0}


def blocks() -> nn.Sequential:
    """Four equal blocks of which each has one layer and one normalization, a layer of another shape, a head."""
    inner = [nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(4)]
    return nn.Sequential(*inner, nn.Linear(4, 50, bias=False), nn.Linear(50, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()


def test_a_preconditioner_prints_its_layers_what_it_leaves_out_and_its_bytes():
    model = blocks()
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=2), exclude="5")
    text = """\
Preconditioner with MKOR(inverse_update_period=2): 5 layers, SHOWN
Preconditioned, with the shape of D, which has a column for a bias:
  {0-3}.0: Linear 4 x 5 (4 modules)
  4: Linear 50 x 4
Left to the base optimizer:
  {0-3}.1: LayerNorm is no Linear, Conv1d, Conv2d or Conv3d (4 modules)
  5: excluded"""
    before = text.replace("SHOWN", "state allocated in the first step: 11.2 kB, less if ranks share it")
    assert repr(preconditioner) == before
    assert preconditioner._parts[0].states.by_layer() == {}  # to print allocates nothing
    preconditioner.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer)
    assert preconditioner.memory_bytes() == 11_160
    assert str(preconditioner) == text.replace("SHOWN", "11.2 kB of state on this rank")


def test_a_print_says_why_a_layer_that_was_found_is_not_preconditioned():
    model = blocks()
    model[1].requires_grad_(False)
    preconditioner = Preconditioner(model, MKOR())
    preconditioner.attach(torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=0.1))
    lines = repr(preconditioner).splitlines()
    assert "  0.0: Linear 4 x 5" in lines
    assert "  1.0: its weight is frozen" in lines
    assert "  {2-3}.0: the attached optimizer does not have its weight (2 modules)" in lines


@pytest.mark.parametrize("method", [MKORH(), KAISA(), HyLo()], ids=lambda method: type(method).__name__)
def test_a_removed_preconditioner_prints_that_its_state_is_freed(method):
    preconditioner = Preconditioner(blocks(), method)
    assert "state allocated in the first step" in repr(preconditioner)
    preconditioner.remove()
    assert "6 layers, state freed" in repr(preconditioner)


def warned(model: nn.Module, method: Method | None = None, **options: object) -> list[str]:
    """Return the warnings when a Preconditioner is made."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Preconditioner(model, method or MKOR(), **options)
    return [str(warning.message) for warning in caught]


def encoder() -> nn.TransformerEncoder:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)


def test_a_model_of_which_a_good_part_is_left_out_is_warned_of_once():
    """Shares by hand: of 17,088 parameters 8,192 + 192 are in Linears, 2 * 3 * 32^2 packed, 2 * 32^2 in out_proj."""
    assert warned(encoder()) == [
        """\
MKOR preconditions 49 % of the 17,088 parameters that are trained. Left to the base optimizer:
  36 %: layers.{0-1}.self_attn: MultiheadAttention multiplies by its packed weights itself, without calling a layer; \
an attention with a Linear for each of q, k and v is preconditioned
  12 %: layers.{0-1}.self_attn.out_proj: MultiheadAttention multiplies by its weight itself, without calling it
  3 %: embeddings, norms and biases
If this is meant, name the modules in exclude=; print(preconditioner) lists all of them."""
    ]


def test_what_is_excluded_or_frozen_is_meant_to_be_left_out():
    assert warned(encoder(), exclude="self_attn") == []
    frozen = encoder()
    for name, parameter in frozen.named_parameters():
        parameter.requires_grad_("self_attn" not in name)
    assert warned(frozen) == []


def mixtral() -> nn.Module:
    more = {"num_key_value_heads": 1, "num_local_experts": 4, **TOKENS}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, **more))


def test_experts_in_one_tensor_are_left_out_with_their_share_and_an_alternative():
    first, experts, router, *_ = warned(mixtral(), KAISA())[0].splitlines()
    assert first == "KAISA preconditions 15 % of the 62,048 parameters that are trained. Left to the base optimizer:"
    assert experts == (
        "  79 %: model.layers.{0-1}.mlp.experts: MixtralExperts uses its gate_up_proj [4, 128, 32] itself, without "
        "calling a layer; for experts there is mkor_core.ExpertLinear"
    )
    assert router.startswith("  under 1 %: model.layers.{0-1}.mlp.gate: MixtralTopKRouter uses its weight [4, 32]")


def gpt2() -> nn.Module:
    sizes = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **TOKENS))


def vit() -> nn.Module:
    sizes = {key: value for key, value in SIZES.items() if key != "vocab_size"}
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=32, patch_size=8, **sizes))


ORDINARY: dict[str, Callable[[], nn.Module]] = {
    "perceptron": lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2)),
    "embeddings and a layer": lambda: nn.Sequential(nn.Embedding(1000, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
    "ResNet-50": lambda: torchvision.models.resnet50(),
    "MobileNet": lambda: torchvision.models.mobilenet_v2(),
    "ConvNeXt": lambda: torchvision.models.convnext_tiny(),
    "BERT": lambda: transformers.BertForPreTraining(transformers.BertConfig(**SIZES)),
    "GPT-2": gpt2,
    "ViT": vit,
}


@pytest.mark.parametrize("method", [MKOR(), KAISA()], ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_models_cause_no_warning(name, method):
    with torch.device("meta"):
        model = ORDINARY[name]()
    assert warned(model, method) == []


def test_reasons_are_grouped_and_the_least_are_summed_up():
    model = nn.Sequential(
        *[nn.LSTM(4, 4) for _ in range(2)],
        nn.ModuleDict({"a": nn.LSTM(4, 4), "b": nn.GRUCell(4, 4), "c": nn.Bilinear(4, 4, 2), "d": nn.RNN(4, 4)}),
        nn.Linear(4, 4, bias=False),
    )
    lines = warned(model)[0].splitlines()[1:-1]
    assert lines == [
        "  56 %: {0-1} and 1 other module: LSTM is no Linear, Conv1d, Conv2d or Conv3d",
        "  14 %: 2.b: GRUCell is no Linear, Conv1d, Conv2d or Conv3d",
        "  5 %: 2.c: Bilinear is no Linear, Conv1d, Conv2d or Conv3d",
        "  5 %: other modules",
        "  19 %: embeddings, norms and biases",
    ]


def test_a_module_whose_parameters_do_not_exist_yet_is_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    (message,) = warned(model)
    assert message.splitlines()[1] == "  an unknown share: 0: it is uninitialized: run a forward pass first"


def test_a_parameter_beside_those_of_a_layer_is_warned_of():
    layer = nn.Linear(4, 4)
    layer.more = nn.Parameter(torch.ones(4, 4))
    assert warned(layer)[0].splitlines()[1] == "  44 %: the model itself: it has more parameters than a layer"


def test_layers_whose_state_would_dwarf_their_weights_are_warned_of_before_anything_is_allocated():
    """By hand: a factor of 16,000^2 and one of 513^2 floats, two vectors; a weight of 16,000 x 512."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 512), nn.Linear(512, 16000), nn.Linear(16000, 10))
    assert warned(model) == [
        """\
MKOR will allocate 2.0 GB for layers whose state is more than 10 times as large as their weight:
  1: Linear 16000 x 513, 1.0 GB of state for 32.8 MB of weight
  2: Linear 10 x 16001, 1.0 GB of state for 640.0 kB of weight
MKOR(window=...) keeps columns in place of matrices; exclude= leaves a layer to the base optimizer."""
    ]
    (message,) = warned(model, KAISA())
    assert message.startswith("KAISA will allocate 4.1 GB for layers")
    assert message.endswith("\nexclude= leaves a layer to the base optimizer.")
    assert warned(model, MKOR(window=16)) == warned(model, Eva()) == warned(model, exclude=["1", "2"]) == []
    model[1].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    assert warned(model) == []


def test_many_layers_with_large_states_are_summed_up():
    with torch.device("meta"):
        model = nn.ModuleDict({name: nn.Linear(10 + index, 16000) for index, name in enumerate("abcde")})
    lines = warned(model)[0].splitlines()
    assert len(lines) == 6
    assert lines[4] == "  2 other kinds of layers"
