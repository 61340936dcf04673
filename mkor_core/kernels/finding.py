"""The Triton kernels that read D and find what V is made of; see `mkor_core.kernels.device` for names."""

from __future__ import annotations

import triton
import triton.language as tl

from mkor_core.kernels.device import (
    ACROSS_AT,
    BATCHES,
    CANCELLATION,
    COLUMNS,
    FACTOR,
    FIELDS,
    FIRST_STRIP,
    FIXED,
    GRAD,
    HAS_BIAS,
    KEEPS,
    LEFT,
    LEFT_SCALE,
    LEFT_STRIDE,
    LEFT_WEIGHTS,
    MEASURES,
    OUTER_AT,
    PARTS_AT,
    RIGHT,
    RIGHT_SCALE,
    RIGHT_STRIDE,
    RIGHT_WEIGHTS,
    ROWS,
    SCALE,
    SHARE,
    STRIPS,
    WHOLE,
    base_of,
    bias_of,
    strip_of,
    width_of,
)


# One parameter a line would be half of the function.
# fmt: off
@triton.jit
def project(
    table, strips, outer, parts, squares, W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GRAD_TYPE: tl.constexpr, ROW_TYPE: tl.constexpr, HAS_LEFT: tl.constexpr, ALIGNED: tl.constexpr,
    GROUP: tl.constexpr, JOINS_BIAS: tl.constexpr,
) -> None:
    """Read D once: ``Q = D U_R``, a strip's part of ``P = U_L^T D``, and of ``|D|^2`` by weight and bias.

    Grid: strips, groups of GROUP of the W columns. JOINS_BIAS: whether Q has the bias's column.
    """
    row, number, inside = strip_of(table, strips, BM)
    group = tl.program_id(1) * GROUP
    n = width_of(row, ALIGNED)
    has_bias = tl.load(row + HAS_BIAS).to(tl.int32)
    d_in = n + has_bias
    lanes = tl.arange(0, BM)
    rows = number * BM + lanes
    base = base_of(tl.load(row + GRAD), number, n, GRAD_TYPE, BM, ALIGNED)
    # The rows of U that this pass takes.
    left, left_stride = tl.load(row + LEFT).to(tl.pointer_type(ROW_TYPE)), tl.load(row + LEFT_STRIDE)
    right, right_stride = tl.load(row + RIGHT).to(tl.pointer_type(ROW_TYPE)), tl.load(row + RIGHT_STRIDE)
    left += group * left_stride
    right += group * right_stride
    own_parts = parts + tl.load(row + PARTS_AT) + (number.to(tl.int64) * W + group) * d_in
    square = tl.zeros([BM, BN], tl.float32)
    sums = ()
    for _ in tl.static_range(GROUP):
        sums += (tl.zeros([BM], tl.float32),)
    for start in range(0, n, BN):
        columns = start + tl.arange(0, BN)
        within = columns < n
        mask = inside[:, None] & within[None, :]
        d = tl.load(base + (lanes * n)[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        square += d * d
        new = ()
        for k in tl.static_range(GROUP):
            u = tl.load(right + k * right_stride + columns, mask=within, other=0.0).to(tl.float32)
            new += (sums[k] + tl.sum(d * u[None, :], 1),)
            if HAS_LEFT:
                v = tl.load(left + k * left_stride + rows, mask=inside, other=0.0).to(tl.float32)
                tl.store(own_parts + k * d_in + columns, tl.sum(d * v[:, None], 0), mask=within)
        sums = new
    b = bias_of(row, rows, GRAD_TYPE)
    if group == 0:
        program = tl.program_id(0)
        tl.store(squares + 2 * program, tl.sum(tl.sum(square, 1), 0))
        tl.store(squares + 2 * program + 1, tl.sum(b * b, 0))
    own = outer + tl.load(row + OUTER_AT) + group
    for k in tl.static_range(GROUP):
        q = sums[k]
        if JOINS_BIAS:
            q += b * tl.load(right + k * right_stride + n, mask=has_bias != 0, other=0.0).to(tl.float32)
        tl.store(own + rows * W + k, q, mask=inside)
        if HAS_LEFT:
            v = tl.load(left + k * left_stride + rows, mask=inside, other=0.0).to(tl.float32)
            tl.store(own_parts + k * d_in + n, tl.sum(b * v, 0), mask=has_bias != 0)


# fmt: on


@triton.jit
def reduce(table, blocks, parts, across, W: tl.constexpr, BC: tl.constexpr) -> None:
    """Add up the strips' parts of P ``[W, d_in]``. Grid: blocks of BC columns."""
    program = tl.program_id(0)
    row = table + tl.load(blocks + 2 * program).to(tl.int64) * FIELDS
    d_in = tl.load(row + COLUMNS) + tl.load(row + HAS_BIAS)
    columns = tl.load(blocks + 2 * program + 1) * BC + tl.arange(0, BC)
    within = columns < d_in
    own_parts = parts + tl.load(row + PARTS_AT)
    own = across + tl.load(row + ACROSS_AT)
    strips = tl.load(row + STRIPS)
    for k in tl.static_range(W):
        total = tl.zeros([BC], tl.float32)
        for strip in range(strips):
            total += tl.load(own_parts + (strip * W + k) * d_in + columns, mask=within, other=0.0)
        tl.store(own + k * d_in + columns, total, mask=within)


@triton.jit
def _product(a, b):
    """Return the product of two small matrices in float32; TF32 would lose the digits that a difference needs."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _sum_of_strips(row, squares, which: tl.constexpr):
    """Return the part of ``|D|^2`` that is the weight's (0) or the bias's (1)."""
    first = tl.load(row + FIRST_STRIP)
    total = 0.0
    for strip in range(tl.load(row + STRIPS)):
        total += tl.load(squares + 2 * (first + strip) + which)
    return total


@triton.jit
def _grams_of_columns(
    row, across, W: tl.constexpr, WIDE: tl.constexpr, BK: tl.constexpr, ROW_TYPE: tl.constexpr, HAS_LEFT: tl.constexpr
):
    """Return ``U_R^T U_R`` and ``P P^T``."""
    d_in = (tl.load(row + COLUMNS) + tl.load(row + HAS_BIAS)).to(tl.int32)
    ks = tl.arange(0, WIDE)
    used = ks < W
    lanes = tl.arange(0, BK)
    right = tl.load(row + RIGHT).to(tl.pointer_type(ROW_TYPE)) + ks[:, None] * tl.load(row + RIGHT_STRIDE)
    own_across = across + tl.load(row + ACROSS_AT) + ks[:, None] * d_in
    right_gram = tl.zeros([WIDE, WIDE], tl.float32)
    across_gram = tl.zeros([WIDE, WIDE], tl.float32)
    for start in range(0, d_in, BK):
        columns = start + lanes
        mask = used[:, None] & (columns < d_in)[None, :]
        u = tl.load(right + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        right_gram += _product(u, tl.trans(u))
        if HAS_LEFT:
            p = tl.load(own_across + columns[None, :], mask=mask, other=0.0)
            across_gram += _product(p, tl.trans(p))
    return right_gram, across_gram


@triton.jit
def _grams_of_rows(
    row, outer, W: tl.constexpr, WIDE: tl.constexpr, BK: tl.constexpr, ROW_TYPE: tl.constexpr, HAS_LEFT: tl.constexpr
):
    """Return ``U_L^T U_L``, ``Q^T Q`` and ``R = U_L^T Q``."""
    m = tl.load(row + ROWS).to(tl.int32)
    ks = tl.arange(0, WIDE)
    used = ks < W
    lanes = tl.arange(0, BK)
    left = tl.load(row + LEFT).to(tl.pointer_type(ROW_TYPE)) + ks[:, None] * tl.load(row + LEFT_STRIDE)
    own_outer = outer + tl.load(row + OUTER_AT) + ks[:, None]
    left_gram = tl.zeros([WIDE, WIDE], tl.float32)
    outer_gram = tl.zeros([WIDE, WIDE], tl.float32)
    inner = tl.zeros([WIDE, WIDE], tl.float32)
    for start in range(0, m, BK):
        rows = start + lanes
        mask = used[:, None] & (rows < m)[None, :]
        q = tl.load(own_outer + rows[None, :] * W, mask=mask, other=0.0)  # Q^T
        outer_gram += _product(q, tl.trans(q))
        if HAS_LEFT:
            v = tl.load(left + rows[None, :], mask=mask, other=0.0).to(tl.float32)
            left_gram += _product(v, tl.trans(v))
            inner += _product(v, tl.trans(q))
    return left_gram, outer_gram, inner


# One parameter a line would be half of the function.
# fmt: off
@triton.jit
def windowed(
    table, outer, across, squares, numbers, rescale, NUMBERS: tl.constexpr, W: tl.constexpr, WIDE: tl.constexpr,
    BK: tl.constexpr, ROW_TYPE: tl.constexpr, HAS_LEFT: tl.constexpr,
) -> None:
    """Find scale, factor, weights, fades and core of a layer, given P and Q. Grid: layers.

    ``|V|^2 = (c_L c_R)^2 |D|^2 - removed`` as in `mkor_core.maths.products`. WIDE: a power of 2, at least W and 16.
    """
    layer = tl.program_id(0)
    row = table + layer.to(tl.int64) * FIELDS
    own = numbers + layer * NUMBERS
    ks = tl.arange(0, WIDE)
    used = ks < W
    diagonal = ks[:, None] == ks[None, :]
    whole = _sum_of_strips(row, squares, 0) + _sum_of_strips(row, squares, 1)
    right_gram, across_gram = _grams_of_columns(row, across, W, WIDE, BK, ROW_TYPE, HAS_LEFT)
    left_gram, outer_gram, inner = _grams_of_rows(row, outer, W, WIDE, BK, ROW_TYPE, HAS_LEFT)
    c = tl.load(tl.load(row + RIGHT_SCALE).to(tl.pointer_type(tl.float32)))
    s = tl.load(tl.load(row + RIGHT_WEIGHTS).to(tl.pointer_type(tl.float32)) + ks, mask=used, other=0.0)
    # J^2 = c^2 I - U M U^T with M = 2 c S - S U^T U S
    right_middle = tl.where(diagonal, 2 * c * s[:, None], 0.0) - s[:, None] * right_gram * s[None, :]
    removed = tl.sum(tl.sum(right_middle * outer_gram, 1), 0)  # the trace of the product; both are symmetric
    scale, weights = c, s
    if HAS_LEFT:
        c_left = tl.load(tl.load(row + LEFT_SCALE).to(tl.pointer_type(tl.float32)))
        s_left = tl.load(tl.load(row + LEFT_WEIGHTS).to(tl.pointer_type(tl.float32)) + ks, mask=used, other=0.0)
        left_middle = tl.where(diagonal, 2 * c_left * s_left[:, None], 0.0) - (
            s_left[:, None] * left_gram * s_left[None, :]
        )
        removed = c_left * c_left * removed + c * c * tl.sum(tl.sum(left_middle * across_gram, 1), 0)
        both = _product(_product(left_middle, inner), right_middle)
        removed -= tl.sum(tl.sum(inner * both, 1), 0)
        scale, weights = c_left * c, c_left * s
        tl.store(own + FIXED + W + ks, c * s_left, mask=used)
        core = s_left[:, None] * inner * s[None, :]
        at = own + FIXED + 2 * W + ks[:, None] * W + ks[None, :]
        tl.store(at, core, mask=used[:, None] & used[None, :])
    tl.store(own + FIXED + ks, weights, mask=used)

    square = scale * scale * whole - removed
    # A NaN or an infinity anywhere is one in `square`, and fails both comparisons.
    usable = (square > -float("inf")) & (square < float("inf"))
    lost = square <= CANCELLATION * scale * scale * whole
    measures = usable & lost & (rescale != 0)
    factor = tl.where(measures | (rescale == 0), 1.0, tl.sqrt(whole / square))
    tl.store(own + SCALE, scale)
    tl.store(own + FACTOR, factor)
    tl.store(own + KEEPS, tl.where(usable, 0.0, 1.0))
    tl.store(own + MEASURES, tl.where(measures, 1.0, 0.0))
    tl.store(own + WHOLE, whole)


# fmt: on


@triton.jit
def finish(
    table,
    blocks,
    across,
    numbers,
    NUMBERS: tl.constexpr,
    W: tl.constexpr,
    WIDE: tl.constexpr,
    BC: tl.constexpr,
    ROW_TYPE: tl.constexpr,
) -> None:
    """Replace P by ``b = c_R S_L P - S_L R S_R U_R^T``. Grid: blocks of BC columns. WIDE: a power of 2 not below W."""
    program = tl.program_id(0)
    layer = tl.load(blocks + 2 * program)
    row = table + layer.to(tl.int64) * FIELDS
    own = numbers + layer * NUMBERS + FIXED + W
    d_in = tl.load(row + COLUMNS) + tl.load(row + HAS_BIAS)
    columns = tl.load(blocks + 2 * program + 1) * BC + tl.arange(0, BC)
    within = columns < d_in
    ks = tl.arange(0, WIDE)
    used = ks < W
    at = across + tl.load(row + ACROSS_AT) + ks[:, None] * d_in + columns[None, :]
    mask = used[:, None] & within[None, :]
    b = tl.load(own + ks, mask=used, other=0.0)[:, None] * tl.load(at, mask=mask, other=0.0)
    right = tl.load(row + RIGHT).to(tl.pointer_type(ROW_TYPE))
    stride = tl.load(row + RIGHT_STRIDE)
    for k in tl.static_range(W):
        core = tl.load(own + W + ks * W + k, mask=used, other=0.0)
        u = tl.load(right + k * stride + columns, mask=within, other=0.0).to(tl.float32)
        b -= core[:, None] * u[None, :]
    tl.store(at, b, mask=mask)


# One parameter a line would be half of the function.
# fmt: off
@triton.jit
def rank_one(
    table, outer, squares, numbers, terms, rates, damping, NUMBERS: tl.constexpr, BK: tl.constexpr,
    GRAD_TYPE: tl.constexpr, ROW_TYPE: tl.constexpr,
) -> None:
    """Find Eva's share of a layer, and its term of the clip. Grid: layers.

    rates: ``[layers, 2]``, of weight and bias. terms: one number for each layer.
    """
    layer = tl.program_id(0)
    row = table + layer.to(tl.int64) * FIELDS
    own = numbers + layer * NUMBERS
    m = tl.load(row + ROWS).to(tl.int32)
    n = tl.load(row + COLUMNS).to(tl.int32)
    has_bias = tl.load(row + HAS_BIAS)
    g = tl.load(row + LEFT).to(tl.pointer_type(ROW_TYPE))
    a = tl.load(row + RIGHT).to(tl.pointer_type(ROW_TYPE))
    own_outer = outer + tl.load(row + OUTER_AT)
    lanes = tl.arange(0, BK)

    of_weight, of_bias = 0.0, 0.0
    first, number = tl.load(row + FIRST_STRIP), tl.load(row + STRIPS)
    for strip in range(number):
        of_weight += tl.load(squares + 2 * (first + strip))
        of_bias += tl.load(squares + 2 * (first + strip) + 1)
    a_square = tl.zeros([BK], tl.float32)
    for start in range(0, n + has_bias.to(tl.int32), BK):
        entry = tl.load(a + start + lanes, mask=start + lanes < n + has_bias, other=0.0).to(tl.float32)
        a_square += entry * entry
    g_square = tl.zeros([BK], tl.float32)
    by_weight = tl.zeros([BK], tl.float32)
    by_bias = tl.zeros([BK], tl.float32)
    for start in range(0, m, BK):
        mask = start + lanes < m
        entry = tl.load(g + start + lanes, mask=mask, other=0.0).to(tl.float32)
        g_square += entry * entry
        by_weight += entry * tl.load(own_outer + start + lanes, mask=mask, other=0.0)
        by_bias += entry * bias_of(row, start + lanes, GRAD_TYPE)
    last = tl.load(a + n, mask=has_bias != 0, other=0.0).to(tl.float32)
    weight_product = tl.sum(by_weight, 0)
    bias_product = tl.sum(by_bias, 0) * last
    share = (weight_product + bias_product) / (tl.sum(a_square, 0) * tl.sum(g_square, 0) + damping)
    inner_weight = (of_weight - share * weight_product) / damping
    inner_bias = (of_bias - share * bias_product) / damping
    inner = inner_weight + inner_bias
    batches = tl.load(tl.load(row + BATCHES).to(tl.pointer_type(tl.int64)))
    usable = (inner > -float("inf")) & (inner < float("inf")) & (batches > 0)
    rate, bias_rate = tl.load(rates + 2 * layer), tl.load(rates + 2 * layer + 1)
    term = inner_weight * rate * rate + inner_bias * bias_rate * bias_rate
    tl.store(terms + layer, tl.where(usable, term, 0.0))
    tl.store(own + SCALE, 1.0 / damping)
    tl.store(own + SHARE, share / damping)
    tl.store(own + KEEPS, tl.where(usable, 0.0, 1.0))


# fmt: on
