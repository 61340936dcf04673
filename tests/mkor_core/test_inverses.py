"""Truth: the dense recurrences A1 to A4 of `mkor_core.reference`, in float64."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from mkor_core.maths import inverses
from mkor_core.maths.inverses import DenseInverse, Inverse, Rule, WindowedInverse, eigenpairs
from mkor_core.reference import RULES, stabilized
from tests.support.operators import Operators

EPS, ZETA, DECAY = 2.1, 0.8, 0.9
CPU = torch.device("cpu")
ALL = torch.tensor(True)


def rule_of(name: str, decay: float = DECAY, threshold: float = EPS) -> Rule:
    return Rule(name, decay, threshold, ZETA)


def vectors(number: int, dimension: int, seed: int = 0) -> Tensor:
    """Vectors ``[number, dimension]`` with a persistent mean, so that the stabilizer acts."""
    generator = torch.Generator().manual_seed(seed)
    return 0.3 * (torch.randn(number, dimension, generator=generator, dtype=torch.float64) + 0.2)


def one(dimension: int, window: int | None, dtype: torch.dtype = torch.float64) -> Inverse:
    return inverses.identity((), dimension, window, dtype, CPU)


def update_(inverse: Inverse, rule: Rule, vector: Tensor, number: int, accept: Tensor = ALL) -> None:
    if isinstance(inverse, WindowedInverse) and inverse.is_full(number):
        inverse.truncate_(eigenpairs(inverse.gram(), inverse.rows.device), torch.ones_like(accept))
    inverse.update_(rule, vector, number, accept)


def run(rule: Rule, window: int | None, updates: int = 60, dimension: int = 12) -> Inverse:
    inverse = one(dimension, window)
    for number, vector in enumerate(vectors(updates, dimension)):
        update_(inverse, rule, vector, number)
    return inverse


def truth(rule: Rule, updates: int = 60, dimension: int = 12) -> Tensor:
    inverse = torch.eye(dimension, dtype=torch.float64)
    for vector in vectors(updates, dimension):
        inverse = RULES[rule.name](stabilized(inverse, rule.threshold, rule.blend), vector, rule.decay)
    return inverse


@pytest.mark.parametrize(
    ("window", "updates", "threshold"),
    [*product([None, 60, 200], [60], [EPS]), *product([None, 20], [20], [0.0, 0.7, torch.inf])],
)
@pytest.mark.parametrize("name", RULES)
def test_a_factor_follows_the_dense_recurrence(name, window, updates, threshold):
    """A window does if it is as long as the run. 60 updates are more than the dense factor's folding period."""
    rule = rule_of(name, threshold=threshold)
    assert rule.fold_period == 42  # .72^-42 is the last power below a million
    assert_close(run(rule, window, updates).to_matrix(), truth(rule, updates), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("decay", [0.85, 0.95, 0.999])
@pytest.mark.parametrize("name", RULES)
def test_every_decay_folds_its_scale_in_time(name, decay):
    """The scale of a dense factor stays within a factor of a million, and changes no digit."""
    rule = rule_of(name, decay, torch.inf if name == "released" else EPS)
    inverse = run(rule, None, 90)
    assert isinstance(inverse, DenseInverse)
    assert 1e-7 < inverse.scale < 1e7
    assert_close(inverse.to_matrix(), truth(rule, 90), rtol=1e-8, atol=1e-9)


def test_a_scale_is_multiplied_into_its_matrix_once_a_period_alone():
    """That costs a pass over the matrix."""
    rule, scales = rule_of("published", threshold=torch.inf), []
    inverse = one(3, None)
    assert isinstance(inverse, DenseInverse)
    for number, vector in enumerate(vectors(rule.fold_period + 1, 3)):
        inverse.update_(rule, vector, number, ALL)
        scales.append(float(inverse.scale))
    assert scales == pytest.approx([*(DECAY**k for k in range(1, rule.fold_period + 1)), DECAY])


def test_a_factor_that_hardly_keeps_its_past_is_folded_at_every_update():
    assert Rule("sherman_morrison", 1e-7, EPS, ZETA).fold_period == 1


@pytest.mark.parametrize("name", ["sherman_morrison", "released"])
def test_a_shorter_window_errs_less_the_longer_it_is(name):
    rule = rule_of(name)
    dense = truth(rule)
    errors = [float((run(rule, window).to_matrix() - dense).norm() / dense.norm()) for window in (4, 20, 50)]
    assert errors[0] > 2 * errors[1] > 4 * errors[2] > 0


@pytest.mark.parametrize("name", RULES)
def test_a_truncation_keeps_the_best_approximation(name):
    """Truth: the eigenpairs of the dense ``U diag(s) U^T``. The factor grows by at most the eigenvalue dropped."""
    window = 6
    inverse = run(rule_of(name), window, updates=window, dimension=9)
    assert isinstance(inverse, WindowedInverse)
    before = inverse.rows.T @ (inverse.weights[:, None] * inverse.rows)
    values, basis = torch.linalg.eigh(before)
    order = values.abs().argsort(descending=True)
    kept = basis[:, order[:3]]
    best = kept @ torch.diag(values[order[:3]]) @ kept.T
    old = inverse.to_matrix()
    inverse.truncate_(eigenpairs(inverse.gram(), inverse.rows.device), ALL)
    assert_close(inverse.rows.T @ (inverse.weights[:, None] * inverse.rows), best, rtol=1e-9, atol=1e-11)
    assert_close(inverse.rows[:3] @ inverse.rows[:3].T, torch.eye(3, dtype=torch.float64))
    assert not inverse.rows[3:].any()
    assert not inverse.weights[3:].any()
    assert_close(inverse.dropped, values[order[3]].abs())
    change = torch.linalg.eigvalsh(inverse.to_matrix() - old)
    sign = -1 if name == "published" else 1  # A2's weights are negative: dropping them shrinks J
    assert (sign * change).min() > -1e-10
    assert change.abs().max() <= inverse.dropped * (1 + 1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("dimension", "window"), [(2, 8), (4, 8), (1, 3)])
@pytest.mark.parametrize("name", ["sherman_morrison", "released"])
def test_a_window_that_spans_a_whole_side_is_exact_and_its_scale_is_bounded(name, dimension, window, dtype):
    """As of heads with few outputs. c I and U diag(s) U^T would both grow to 1e15, and J be lost in their rounding."""
    inverse, expected = one(dimension, window, dtype), torch.eye(dimension, dtype=torch.float64)
    rule, largest = rule_of(name), 0.0
    assert isinstance(inverse, WindowedInverse)
    for number, vector in enumerate(3 * vectors(400, dimension)):
        vector = vector.to(dtype)
        update_(inverse, rule, vector, number)
        expected = RULES[name](stabilized(expected, rule.threshold, rule.blend), vector.double(), rule.decay)
        largest = max(largest, float(inverse.scale))
    assert largest < 10
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    assert_close(inverse.to_matrix().double(), expected, rtol=tolerance, atol=tolerance)


def test_a_window_without_a_column_is_truncated_to_the_identity():
    """No update of a layer may have counted when the rows of its stack are used up."""
    inverse = one(5, 4)
    assert isinstance(inverse, WindowedInverse)
    inverse.truncate_(eigenpairs(inverse.gram(), inverse.rows.device), ALL)
    assert_close(inverse.to_matrix(), torch.eye(5, dtype=torch.float64), rtol=0, atol=0)
    assert inverse.dropped == 0


@pytest.mark.parametrize("window", [2, 3, 4, 7])
def test_every_update_finds_a_free_row(window):
    """Rows are used in turn: the first w updates fill the window, and a truncation frees the upper half."""
    inverse = one(5, window)
    assert isinstance(inverse, WindowedInverse)
    free = set(range(window))
    for number in range(25):
        if inverse.is_full(number):
            assert not free
            free = set(range(window // 2, window))
        free.remove(inverse.slot(number))


def test_a_further_rank_is_the_inverse_of_the_sum():
    dense = run(rule_of("sherman_morrison"), None)
    assert isinstance(dense, DenseInverse)
    before = dense.to_matrix()
    v = torch.linspace(-1, 1, 12, dtype=torch.float64)
    dense.add_(v, 0.1, ALL)
    assert_close(dense.to_matrix(), (before.inverse() + 0.1 * torch.outer(v, v)).inverse())


@settings(max_examples=30)
@given(
    name=st.sampled_from(sorted(RULES)),
    window=st.sampled_from([None, 4]),
    updates=st.integers(1, 12),
    poison=st.sampled_from([None, torch.nan, torch.inf]),
)
def test_a_factor_whose_update_is_not_accepted_stays_bitwise(name, window, updates, poison):
    """In a stack the others change as alone. A vector that is not finite must not leave a trace."""
    rule = rule_of(name)
    stack = inverses.identity((3,), 6, window, torch.float32, CPU)
    alone = one(6, window, torch.float32)
    steps = vectors(updates, 6).float()
    for number, vector in enumerate(steps):
        update_(stack, rule, vector.expand(3, -1), number, torch.ones(3, dtype=torch.bool))
        update_(alone, rule, vector, number)
    before = [tensor.clone() for tensor in stack]
    given_vectors = vectors(3, 6, seed=1).float()
    if poison is not None:
        given_vectors[1, 2] = poison
    accept = torch.tensor([True, False, True])
    if isinstance(stack, WindowedInverse) and stack.is_full(updates):
        stack.truncate_(eigenpairs(stack.gram(), stack.rows.device), torch.zeros(3, dtype=torch.bool))
        assert_close(list(stack), before, rtol=0, atol=0)
        stack.truncate_(eigenpairs(stack.gram(), stack.rows.device), accept)
    stack.update_(rule, given_vectors, updates, accept)
    assert_close([tensor[1] for tensor in stack], [tensor[1] for tensor in before], rtol=0, atol=0)
    update_(alone, rule, given_vectors[2], updates)
    assert_close(stack.to_matrix()[2], alone.to_matrix(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 7])
def test_a_factor_read_from_its_state_is_a_view_of_it(window):
    inverse = run(rule_of("released"), window)
    state = {"other": torch.ones(1), **inverses.state_of(inverse, "left")}
    restored = inverses.from_state(state, "left")
    assert type(restored) is type(inverse)
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(restored, inverse, strict=True))


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(RULES)),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_every_rule_keeps_its_factor_symmetric_and_positive_definite(name, seed, scale, dtype):
    generator = torch.Generator().manual_seed(seed)
    inverse = one(6, None, dtype)
    assert isinstance(inverse, DenseInverse)
    for number in range(20):
        inverse.update_(rule_of(name), scale * torch.randn(6, generator=generator, dtype=dtype), number, ALL)
        assert_close(inverse.matrix, inverse.matrix.T, rtol=0, atol=0)
    # An eigenvalue below the rounding error of the largest one cannot be distinguished from zero.
    values = torch.linalg.eigvalsh(inverse.to_matrix().double())
    assert values.min() > -10 * torch.finfo(dtype).eps * values.max()


@pytest.mark.parametrize("quadratic", [0.0, -0.5])
@pytest.mark.parametrize("name", RULES)
def test_an_update_along_which_a_factor_is_not_positive_is_left_out(name, quadratic):
    assert rule_of(name).weight(torch.tensor(quadratic)) == 0


@pytest.mark.parametrize("diagonal", [0.0, -0.5])
def test_a_further_rank_along_which_a_factor_is_not_positive_is_left_out(diagonal):
    dense = DenseInverse(diagonal * torch.eye(2), torch.tensor(2.0))
    dense.add_(torch.ones(2), 0.9)
    assert_close(dense.to_matrix(), 2 * diagonal * torch.eye(2), rtol=0, atol=0)


def test_an_overflow_of_the_published_rule_is_not_silent():
    assert rule_of("published").weight(torch.tensor(torch.inf)).isnan()


@pytest.mark.parametrize(
    ("diagonal", "acts"),
    [((1.0, 2.0), False), ((1.0, 2.1), True), ((1.0, 0.0), True), ((1.0, -0.1), True), ((1.0, 0.1), False)],
)
@pytest.mark.parametrize("name", RULES)
def test_the_stabilizer_acts_above_the_threshold_and_on_entries_that_are_not_positive(name, diagonal, acts):
    """A4 blends with the identity in every update; a factor whose update is not accepted is not blended."""
    rule, entries = rule_of(name, threshold=2.0), torch.tensor(diagonal, dtype=torch.float64)
    expected = (ZETA if acts else 1.0) * (DECAY if name == "released" else 1.0)
    assert_close(rule.blend_weight(entries, None), torch.tensor(expected, dtype=torch.float64))
    masked = rule.blend_weight(entries.expand(2, -1), torch.tensor([True, False]))
    assert_close(masked, torch.tensor([expected, 1.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("device", "d", "names"),
    [
        ("cpu", 64, ["mv"] * 3 + ["addr_"] * 3),  # of LONG entries
        ("cpu", 63, ["bmm"] + ["addr_"] * 3),
        ("meta", 64, ["bmm", "addcmul_"]),
    ],
)
def test_a_cpu_multiplies_the_large_layers_of_a_stack_one_by_one_and_other_devices_all_together(device, d, names):
    generator = torch.Generator().manual_seed(0)
    matrix, vector = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, d, d), (3, d)))
    matrix, vector = matrix.to(device), vector.to(device)
    outer = matrix.clone()
    with Operators() as operators:
        product = inverses.matvec(matrix, vector)
        inverses.add_outer_(outer, vector, -1)
    products = operators.named("mv", "bmm", "addr_", "addcmul_")
    assert [product.name for product in products] == names
    if device == "cpu":
        assert_close(product, torch.einsum("lij,lj->li", matrix, vector))
        assert_close(outer, matrix - torch.einsum("li,lj->lij", vector, vector))
