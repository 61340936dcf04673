"""The codec: entry by entry against the tensor that was coded, and in training on four gloo ranks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from baselines import KAISA, HyLo
from mkor_core import MKOR, Codec, Method, Preconditioner
from mkor_core.ranks import comm
from mkor_core.ranks.codec import Coder, decode, encode
from tests.support.rank_processes import results_of

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


STEPS = 12
METHODS: Mapping[str, tuple[Method, bool | None]] = {
    "kaisa": (KAISA(factor_update_period=2, inverse_update_period=4), None),
    "kaisa inverse half": (
        KAISA(factor_update_period=2, inverse_update_period=4, compute_method="inverse", grad_worker_fraction=0.5),
        None,
    ),
    "kaisa mem": (KAISA(factor_update_period=2, inverse_update_period=4, grad_worker_fraction=0.25), None),
    "hylo": (HyLo(update_period=2, sample_fraction=0.4), None),
    "mkor owners": (MKOR(), True),
}
"""Methods, and whether their layers have owners."""
CODECS = {"plain": None, "8 bits": Codec(), "8 bits, drop": Codec(drop=0.02)}


class Training:
    """A small network in training on all ranks."""

    def __init__(self, name: str, codec: Codec | None) -> None:
        method, owners = METHODS[name]
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4)).double()
        self.network = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9)
        self.preconditioner = Preconditioner(self.network, method, codec=codec, owners=owners).attach(self.optimizer)

    def run(self, first: int, last: int, poisoned: int | None = None) -> float:
        """Train some steps; in the poisoned one, an input of rank 1 is infinite. Return the last loss of this rank."""
        loss = torch.zeros(())
        for step in range(first, last):
            inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(10 * step + dist.get_rank())).double()
            targets = inputs[:, :4].sin()
            self.optimizer.zero_grad()
            if step == poisoned and dist.get_rank() == 1:
                self.model[4].register_forward_pre_hook(_infinite)
            loss = (self.network(inputs) - targets).square().mean()
            loss.backward()
            if step == poisoned:
                for parameter in self.model.parameters():  # the statistics alone are infinite
                    parameter.grad = torch.ones_like(parameter)
            self.optimizer.step()
        return loss.item()

    @property
    def weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def _infinite(module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    return inputs[0].index_fill(0, torch.tensor([3]), torch.inf)


def trained_by(name: str, codec: Codec | None) -> dict[str, Any]:
    """Return the weights, the last loss, and the bytes sent."""
    training = Training(name, codec)
    start = training.weights
    comm.reset_bytes_sent()
    loss = training.run(0, STEPS)
    return {"start": start, "weights": training.weights, "loss": loss, "bytes": comm.bytes_sent()}


def resumed(name: str, codec: Codec) -> list[Tensor]:
    """Return the weights after a training that a new process would go on with from the middle."""
    first, second = Training(name, codec), Training(name, codec)
    first.run(0, STEPS // 2 - 1)
    first.preconditioner.consolidate()
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.run(STEPS // 2 - 1, STEPS)
    return second.weights


def poisoned(codec: Codec | None) -> tuple[list[Tensor], bool]:
    """Return the weights after HyLo has got infinite rows from rank 1, and whether the head kept its rows."""
    training = Training("hylo", codec)
    training.run(0, 2)
    before = training.preconditioner.state_dict()["layers"]["4"]["right"].clone()
    training.run(2, 3, poisoned=2)
    kept = torch.equal(training.preconditioner.state_dict()["layers"]["4"]["right"], before)
    return training.weights, kept


def run(rank: int, world: int) -> dict[str, Any]:
    """Return the results of all trainings on a rank."""
    results: dict[str, Any] = {
        f"{name}, {code}": trained_by(name, codec) for name in METHODS for code, codec in CODECS.items()
    }
    for name in ("kaisa mem", "hylo"):
        results[f"{name}, resumed"] = resumed(name, Codec(drop=0.02))
    results["poisoned"] = {code: poisoned(codec) for code, codec in CODECS.items()}
    return results


@pytest.fixture(scope="module")
def trained() -> list[dict[str, Any]]:
    """The results by rank."""
    return results_of((WORLD, run, ()))[0]


@pytest.mark.parametrize("code", [code for code in CODECS if code != "plain"])
@pytest.mark.parametrize("name", METHODS)
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


@pytest.mark.parametrize("name", METHODS)
def test_all_ranks_have_the_same_weights(trained, name):
    """Workers that send a layer's update to different rows draw the same random numbers."""
    for code, rank in itertools.product(CODECS, range(1, WORLD)):
        case = f"{name}, {code}"
        assert_close(trained[rank][case]["weights"], trained[0][case]["weights"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["kaisa mem", "hylo"])
def test_a_resumed_training_draws_the_same_numbers(trained, name):
    for result in trained:
        # Others would change the weights by a thousandth.
        assert_close(result[f"{name}, resumed"], result[f"{name}, 8 bits, drop"]["weights"], rtol=1e-9, atol=1e-12)


def test_infinite_rows_are_refused_on_all_ranks_as_without_a_codec(trained):
    for result, code in itertools.product(trained, CODECS):
        weights, kept = result["poisoned"][code]
        assert kept
        assert all(weight.isfinite().all() for weight in weights)
