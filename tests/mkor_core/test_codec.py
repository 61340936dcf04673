"""The codec: entry by entry against the tensor that was coded, and in training on four gloo ranks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from baselines import KAISA
from mkor_core import MKOR, Codec, Preconditioner
from mkor_core.ranks.codec import Coder, decode, encode
from tests.support import coded_ranks
from tests.support.rank_processes import run_ranks

BITS = (2, 4, 8, 16)
WORLD = 4

codecs = st.builds(Codec, bits=st.sampled_from(BITS), drop=st.sampled_from([0.0, 0.05, 0.6]))


@st.composite
def matrices(draw: st.DrawFn) -> Tensor:
    """Draw a float64 matrix of any length and width, 0 included, with zeros and entries of many magnitudes."""
    shape = draw(st.tuples(st.integers(0, 5), st.integers(0, 7)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64) ** 3
    matrix[torch.rand(shape, generator=generator) < 0.2] = 0
    return matrix * 10.0 ** draw(st.integers(-200, 200))


def coded(matrix: Tensor, codec: Codec, seed: int = 0) -> Tensor:
    """Return what the receivers of a matrix decode."""
    message = encode(matrix, codec, torch.Generator().manual_seed(seed))
    assert message.dtype == torch.uint8
    assert codec.length(matrix.shape, matrix.dtype) in (None, len(message))
    decoded = decode(message, matrix.shape, matrix.dtype, codec)
    assert (decoded.shape, decoded.dtype) == (matrix.shape, matrix.dtype)
    return decoded


@given(matrices(), codecs)
def test_entries_are_wrong_by_less_than_a_quantum_and_dropped_ones_are_small(matrix, codec):
    decoded = coded(matrix, codec)
    largest = matrix.abs().max() if matrix.numel() else matrix.new_zeros(())
    kept = matrix.abs() >= codec.drop * largest * (1 + 1e-12)
    quantum = largest / codec.levels * (1 + 1e-12)
    assert ((decoded - matrix).abs()[kept] <= quantum).all()
    dropped = matrix.abs() < codec.drop * largest * (1 - 1e-12)
    assert (decoded[dropped] == 0).all()
    assert (decoded[matrix == 0] == 0).all()
    assert (decoded * matrix >= 0).all()  # no sign is turned
    assert_close(decoded[matrix.abs() == largest], matrix[matrix.abs() == largest], rtol=1e-12, atol=0)


@pytest.mark.parametrize("codec", [Codec(bits=bits, drop=drop) for bits in BITS for drop in (0.0, 0.3)], ids=str)
def test_kept_entries_are_right_in_expectation(codec):
    """Each value is coded 4,000 times in one message; the mean of a quantum times a coin has a known deviation."""
    number = 4000
    values = torch.tensor([1.0, -0.9, 0.7123, -0.5, 0.3301, 0.2, -0.01, 0.0], dtype=torch.float64)
    mean = coded(values.repeat(number, 1), codec).mean(0)
    truth = torch.where(values.abs() >= codec.drop, values, 0)
    fraction = truth * codec.levels % 1
    deviation = (fraction * (1 - fraction) / number).sqrt() / codec.levels
    assert ((mean - truth).abs() <= 4 * deviation + 1e-12).all()


@pytest.mark.parametrize("codec", [Codec(), Codec(bits=4, drop=0.1), Codec(bits=16)], ids=str)
def test_a_nan_or_an_infinity_arrives_as_nans(codec):
    for value in (torch.nan, torch.inf, -torch.inf):
        assert coded(torch.tensor([[1.0, value], [0.0, 2.0]]), codec).isnan().all()
    vector = torch.tensor([1.0, torch.nan, torch.inf])
    assert_close(coded(vector, codec), vector, equal_nan=True)


@given(codecs, st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]))
def test_every_dtype_arrives_in_its_own(codec, dtype):
    matrix = torch.randn(9, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    error = (coded(matrix, codec) - matrix).double().abs().max()
    assert error <= (max(1 / codec.levels, codec.drop) + torch.finfo(dtype).eps) * matrix.double().abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_and_scalars_travel_as_they_are(dtype):
    for tensor in (torch.tensor(0.1), torch.arange(5.0) / 3, torch.empty(0)):
        assert torch.equal(coded(tensor.to(dtype), Codec(bits=2, drop=0.5)), tensor.to(dtype))


def test_the_smallest_magnitudes_are_not_divided_by_zero():
    assert torch.equal(coded(torch.full((2, 2), 1e-45), Codec()), torch.zeros(2, 2))


@pytest.mark.parametrize(("bits", "size"), [(2, 4 + 8), (4, 4 + 15), (8, 4 + 30), (16, 4 + 60)])
def test_bytes_are_those_of_the_scale_the_mask_and_the_integers(bits, size):
    matrix = torch.ones(6, 5)
    matrix[0] = 0.01
    generator = torch.Generator()
    assert len(encode(matrix, Codec(bits=bits), generator)) == Codec(bits=bits).length((6, 5), torch.float32) == size
    codec = Codec(bits=bits, drop=0.1)
    assert codec.length((6, 5), torch.float32) is None
    assert len(encode(matrix, codec, generator)) == 4 + 4 + -(-25 * bits // 8)


def test_random_numbers_depend_on_seed_step_message_and_sender_alone():
    matrix = torch.randn(20, 20, generator=torch.Generator().manual_seed(0))

    def message(seed: int, step: int, kind: str, sender: int) -> bytes:
        coder = Coder(Codec(seed=seed))
        coder.step = step
        coding = coder.coding(kind, sender)
        assert coding is not None
        return bytes(coding.encode([matrix])[0].tolist())

    settings = list(itertools.product((0, 1), (0, 1), ("rows", "updates"), (0, 1)))
    messages = [message(*setting) for setting in settings]
    assert len(set(messages)) == len(settings)
    assert [message(*setting) for setting in settings] == messages
    assert Coder().coding("rows", 0) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 3}, "bits=3 must be one of 2, 4, 8, 16"),
        ({"drop": 1.0}, "drop=1.0 must be at least 0 and less than 1: the dropped magnitudes"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
    ],
)
def test_a_wrong_setting_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        Codec(**options)


def test_a_codec_that_would_code_nothing_is_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"codec=Codec\(.*this MKOR sends nothing that is coded"):
        Preconditioner(model, MKOR(), codec=Codec())
    with pytest.raises(ValueError, match=r"codec=8 must be a mkor_core\.ranks\.codec\.Codec or None"):
        Preconditioner(model, KAISA(), codec=8)
    Preconditioner(model, KAISA(), codec=Codec()).remove()
    Preconditioner(model, MKOR(), codec=Codec(), owners=True).remove()


def test_every_step_has_its_own_random_numbers():
    model = nn.Linear(2, 2)
    preconditioner, steps = Preconditioner(model, KAISA(), lr=0.1, codec=Codec()), []
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        preconditioner.step()
        steps.append(preconditioner._parts[0]._coder.step)
    assert steps == [0, 1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results by rank."""
    folder = tmp_path_factory.mktemp("coded")
    run_ranks(WORLD, coded_ranks.run, str(folder))
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("code", [code for code in coded_ranks.CODECS if code != "plain"])
@pytest.mark.parametrize("name", coded_ranks.METHODS)
def test_coded_training_is_close_to_plain_and_sends_less(trained, name, code):
    """Decompositions, updates and rows of float64 take an eighth of their bytes with 8 bits; sums stay as they are."""
    plain, result = (trained[0][f"{name}, {which}"] for which in ("plain", code))
    start, exact, near = (
        torch.cat([weight.flatten() for weight in weights])
        for weights in (plain["start"], plain["weights"], result["weights"])
    )
    assert 0 < (near - exact).norm() < 0.1 * (exact - start).norm()
    assert result["loss"] == pytest.approx(plain["loss"], rel=0.05)
    sent: dict[str, list[int]] = {"plain": [], code: []}
    for rank, which in itertools.product(range(WORLD), sent):
        numbers = trained[rank][f"{name}, {which}"]["bytes"]
        sent[which].append(numbers.get("broadcast", 0) + numbers.get("all_gather", 0))
    assert sum(sent[code]) < 0.25 * sum(sent["plain"])
    assert plain["bytes"].get("all_reduce") == result["bytes"].get("all_reduce")


@pytest.mark.parametrize("name", coded_ranks.METHODS)
def test_all_ranks_have_the_same_weights(trained, name):
    """Workers that send a layer's update to different rows draw the same random numbers."""
    for code, rank in itertools.product(coded_ranks.CODECS, range(1, WORLD)):
        case = f"{name}, {code}"
        assert_close(trained[rank][case]["weights"], trained[0][case]["weights"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["kaisa mem", "hylo"])
def test_a_resumed_training_draws_the_same_numbers(trained, name):
    for result in trained:
        # Others would change the weights by a thousandth.
        assert_close(result[f"{name}, resumed"], result[f"{name}, 8 bits, drop"]["weights"], rtol=1e-9, atol=1e-12)


def test_infinite_rows_are_refused_on_all_ranks_as_without_a_codec(trained):
    for result, code in itertools.product(trained, coded_ranks.CODECS):
        weights, kept = result["poisoned"][code]
        assert kept
        assert all(weight.isfinite().all() for weight in weights)
