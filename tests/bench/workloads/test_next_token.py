"""The workloads that predict the next token: their windows of text, and the language model."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from workflow.bench import workloads
from workflow.bench.data.corpus import SEP, Split
from workflow.bench.support.config import ConfigError
from workflow.bench.workloads.next_token import TokenWindows

SIZE = {"vocabulary_size": 256, "validation_windows": 64}


@pytest.fixture(scope="module")
def language_model():
    return workloads.create("language_model", **SIZE)


def test_windows_are_adjacent_text_with_a_separator_after_each_docstring():
    """Truth: by hand. Two docstrings, (10 11 | 12) and (13 14 15), the first with two sentences."""
    split = Split(
        tokens=np.array([10, 11, 12, 13, 14, 15], dtype=np.uint16),
        sentences=np.array([0, 2, 3, 6], dtype=np.int32),
        docstrings=np.array([0, 2, 3], dtype=np.int32),
        documents=np.array([0, 1, 2], dtype=np.int32),
        names=np.array(["a.py", "b.py"]),
    )
    windows = TokenWindows(split, 3)
    assert len(windows) == 2
    batch = windows.batch(np.array([1, 0]))
    assert batch["input_ids"].tolist() == [[SEP, 13, 14], [10, 11, 12]]
    assert batch["labels"].tolist() == [[13, 14, 15], [11, 12, SEP]]


def test_no_training_window_is_a_validation_window(language_model):
    """The splits share no source file; short windows may be equal by chance."""

    def rows(batch):
        return {row.numpy().tobytes() for row in batch["input_ids"]}

    training = set().union(*(rows(batch) for batch in islice(language_model.batches(0), 3000)))
    held_out = rows(language_model._validation)
    assert len(held_out & training) <= 0.05 * len(held_out)


def test_scores_depend_on_no_later_token(language_model):
    model = language_model.model(0).double()
    tokens = next(language_model.batches(0))["input_ids"]
    changed = tokens.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % 256
    first, second = model(tokens), model(changed)
    assert torch.equal(first[:, :20], second[:, :20])
    assert not torch.isclose(first[:, 20:], second[:, 20:]).all(-1).any()


def test_the_decoder_is_torch_s_own_pre_norm_layer(language_model):
    """Truth: `torch.nn.TransformerEncoderLayer` with the same weights and a causal mask, in float64."""
    model = language_model.model(1).double()
    width, heads, length = 64, 2, 32
    hidden = torch.randn(3, length, width, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.float64)
    for block in model.blocks:
        truth = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True, dtype=torch.float64
        )
        pairs = [(truth.self_attn.out_proj, block.out), (truth.linear1, block.widen), (truth.linear2, block.narrow)]
        for theirs, ours in pairs:
            theirs.load_state_dict(ours.state_dict())
        layers = (block.query, block.key, block.value)
        truth.self_attn.in_proj_weight.data = torch.cat([layer.weight for layer in layers])
        truth.self_attn.in_proj_bias.data = torch.cat([layer.bias for layer in layers])
        assert_close(block(hidden), truth(hidden, src_mask=mask))


def test_the_loss_is_that_of_the_next_token(language_model):
    model = language_model.model(0)
    batch = next(language_model.batches(0))
    logits = model(batch["input_ids"]).log_softmax(-1)
    truth = -torch.stack(
        [logits[row, place, batch["labels"][row, place]] for row in range(16) for place in range(32)]
    ).mean()
    assert_close(language_model.loss(model, batch), truth)
    assert language_model.evaluate(model)["loss"] == pytest.approx(math.log(256), abs=0.3), "a new model knows nothing"


def test_the_layers_to_precondition_are_those_of_the_blocks(language_model):
    model = language_model.model(0)
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    names = ("query", "key", "value", "out", "widen", "narrow")
    assert linear == {f"blocks.{block}.{name}" for block in range(2) for name in names}
    others = {name.split(".")[0] for name, _ in model.named_parameters() if not name.startswith("blocks.")}
    assert others == {"tokens", "positions", "norm"}, "the scores' weight is that of the embedding"


@pytest.mark.parametrize(("optimizer", "rate"), [(torch.optim.AdamW, 4e-3), (torch.optim.SGD, 0.2)])
def test_training_leaves_the_unigram_plateau(language_model, optimizer, rate):
    """Truth: the cross-entropy of the frequencies of tokens, which needs no context."""
    counts = 1 + np.bincount(language_model._windows._text, minlength=256)
    frequencies = torch.from_numpy(np.log(counts / counts.sum()))
    plateau = -frequencies[language_model._validation["labels"]].mean().item()
    model = language_model.model(0)
    options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    trained = optimizer(model.parameters(), lr=rate, **options)
    for batch in islice(language_model.batches(0), 150):
        trained.zero_grad()
        language_model.loss(model, batch).backward()
        trained.step()
    assert language_model.evaluate(model)["loss"] < plateau - 0.1


def test_impossible_sizes_and_too_few_windows_for_trials_are_refused_in_one_line():
    with pytest.raises(ConfigError, match="hidden_size=65 must be a multiple of heads=2"):
        workloads.create("language_model", hidden_size=65)
    with pytest.raises(ConfigError, match="validation_windows=100000 must be fewer than the"):
        workloads.create("language_model", **SIZE | {"validation_windows": 100_000}, for_tuning=True)
