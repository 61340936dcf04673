"""The Triton kernels that use V: measure it, put it in the place of D, or take an optimizer's step with it."""

from __future__ import annotations

import triton
import triton.language as tl

from mkor_core.kernels.device import (
    ACROSS_AT,
    COLUMNS,
    FACTOR,
    FIRST_STRIP,
    FIXED,
    GRAD,
    GRAD_BIAS,
    HAS_BIAS,
    KEEPS,
    LEFT,
    LEFT_STRIDE,
    MEASURES,
    OUTER_AT,
    RIGHT,
    RIGHT_STRIDE,
    SCALE,
    SHARE,
    STRIPS,
    WHOLE,
    base_of,
    bias_of,
    strip_of,
    width_of,
)


@triton.jit
def _clip_factor(terms, number, bound, BK: tl.constexpr):
    """Return ``min(1, sqrt(bound / |sum of terms|))``, 1 if the sum is 0."""
    total = tl.zeros([BK], tl.float32)
    for start in range(0, number, BK):
        lanes = start + tl.arange(0, BK)
        total += tl.load(terms + lanes, mask=lanes < number, other=0.0)
    sum_of_terms = tl.abs(tl.sum(total, 0))
    return tl.where(sum_of_terms == 0, 1.0, tl.minimum(tl.sqrt(bound / sum_of_terms), 1.0))


@triton.jit
def _measured_factor(row, own, measured):
    """Return the factor that gives V the norm of D, and whether it is usable, from the strips' parts of ``|V|^2``."""
    square = 0.0
    first, number = tl.load(row + FIRST_STRIP), tl.load(row + STRIPS)
    for strip in range(number):
        square += tl.load(measured + first + strip)
    factor = tl.sqrt(tl.load(own + WHOLE) / square)
    return factor, (square > 0) & (factor < float("inf"))


@triton.jit
def _value(
    d,
    row,
    own,
    rows,
    inside,
    columns,
    within,
    outer,
    across,
    W: tl.constexpr,
    ROW_TYPE: tl.constexpr,
    FORM: tl.constexpr,
):
    """Return ``V / factor`` of some of the rows and columns of D. FORM: see `mkor_core.kernels.grouped`."""
    right = tl.load(row + RIGHT).to(tl.pointer_type(ROW_TYPE))
    right_stride = tl.load(row + RIGHT_STRIDE)
    left = tl.load(row + LEFT).to(tl.pointer_type(ROW_TYPE))
    left_stride = tl.load(row + LEFT_STRIDE)
    value = tl.load(own + SCALE) * d
    # Not unrolled: the compiler would load all of a strip's rows of U and Q before the loop over its columns, and have
    # no registers for them.
    for k in range(W):
        u = tl.load(right + k * right_stride + columns, mask=within, other=0.0).to(tl.float32)
        if FORM == 2:
            g = tl.load(left + rows, mask=inside, other=0.0).to(tl.float32) * tl.load(own + SHARE)
            value -= g[:, None] * u[None, :]
        else:
            q = tl.load(outer + tl.load(row + OUTER_AT) + rows * W + k, mask=inside, other=0.0)
            value -= (q * tl.load(own + FIXED + k))[:, None] * u[None, :]
        if FORM == 0:
            d_in = tl.load(row + COLUMNS) + tl.load(row + HAS_BIAS)
            v = tl.load(left + k * left_stride + rows, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(across + tl.load(row + ACROSS_AT) + k * d_in + columns, mask=within, other=0.0)
            value -= v[:, None] * b[None, :]
    return value


# One parameter a line would be half of the function.
# fmt: off
@triton.jit
def measure(
    table, strips, outer, across, numbers, measured, NUMBERS: tl.constexpr, W: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, GRAD_TYPE: tl.constexpr, ROW_TYPE: tl.constexpr, FORM: tl.constexpr, ALIGNED: tl.constexpr,
) -> None:
    """Add up ``|V / factor|^2`` of a strip, only of the layers in which the difference has lost its digits.

    Grid: strips. For other layers D is not read again.
    """
    row, number, inside = strip_of(table, strips, BM)
    own = numbers + tl.load(strips + 2 * tl.program_id(0)) * NUMBERS
    if tl.load(own + MEASURES) != 0:
        n = width_of(row, ALIGNED)
        lanes = tl.arange(0, BM)
        rows = number * BM + lanes
        base = base_of(tl.load(row + GRAD), number, n, GRAD_TYPE, BM, ALIGNED)
        square = tl.zeros([BM, BN], tl.float32)
        for start in range(0, n, BN):
            columns = start + tl.arange(0, BN)
            within = columns < n
            mask = inside[:, None] & within[None, :]
            d = tl.load(base + (lanes * n)[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
            value = _value(d, row, own, rows, inside, columns, within, outer, across, W, ROW_TYPE, FORM)
            square += tl.where(mask, value * value, 0.0)
        total = tl.sum(tl.sum(square, 1), 0)
        if tl.load(row + HAS_BIAS) != 0:
            columns = n + tl.arange(0, 1)
            d = bias_of(row, rows, GRAD_TYPE)[:, None]
            value = _value(d, row, own, rows, inside, columns, columns == n, outer, across, W, ROW_TYPE, FORM)
            total += tl.sum(tl.sum(tl.where(inside[:, None], value * value, 0.0), 1), 0)
        tl.store(measured + tl.program_id(0), total)


# fmt: on


@triton.jit
def _factor(row, own, measured, terms, number, bound, FORM: tl.constexpr, BK: tl.constexpr):
    """Return the factor of V, and whether V is D."""
    keeps = tl.load(own + KEEPS) != 0
    if FORM == 2:
        factor = _clip_factor(terms, number, bound, BK)
    else:
        factor = tl.load(own + FACTOR)
        if tl.load(own + MEASURES) != 0:
            factor, usable = _measured_factor(row, own, measured)
            keeps = keeps | (usable == 0)
    return factor, keeps


# One parameter a line would be half of the function.
# fmt: off
@triton.jit
def correct(
    table, strips, outer, across, numbers, measured, terms, number_of_terms, bound, NUMBERS: tl.constexpr,
    W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GRAD_TYPE: tl.constexpr,
    ROW_TYPE: tl.constexpr, FORM: tl.constexpr, ALIGNED: tl.constexpr,
) -> None:
    """Replace a strip of D by V; D stays where V is not finite. Grid: strips."""
    row, number, inside = strip_of(table, strips, BM)
    own = numbers + tl.load(strips + 2 * tl.program_id(0)) * NUMBERS
    factor, keeps = _factor(row, own, measured, terms, number_of_terms, bound, FORM, BK)
    if keeps == 0:
        n = width_of(row, ALIGNED)
        lanes = tl.arange(0, BM)
        rows = number * BM + lanes
        base = base_of(tl.load(row + GRAD), number, n, GRAD_TYPE, BM, ALIGNED)
        for start in range(0, n, BN):
            columns = start + tl.arange(0, BN)
            within = columns < n
            mask = inside[:, None] & within[None, :]
            at = base + (lanes * n)[:, None] + columns[None, :]
            d = tl.load(at, mask=mask, other=0.0).to(tl.float32)
            value = _value(d, row, own, rows, inside, columns, within, outer, across, W, ROW_TYPE, FORM)
            tl.store(at, (factor * value).to(GRAD_TYPE), mask=mask)
        if tl.load(row + HAS_BIAS) != 0:
            columns = n + tl.arange(0, 1)
            at = tl.load(row + GRAD_BIAS).to(tl.pointer_type(GRAD_TYPE)) + rows[:, None]
            d = bias_of(row, rows, GRAD_TYPE)[:, None]
            value = _value(d, row, own, rows, inside, columns, columns == n, outer, across, W, ROW_TYPE, FORM)
            tl.store(at, (factor * value).to(GRAD_TYPE), mask=inside[:, None])


# fmt: on


# Columns of the optimizer's table [layers, 2, PLACES] of int64, for the weight and the bias.
PARAMETER = tl.constexpr(0)
FIRST = tl.constexpr(1)  # exp_avg, or the momentum buffer
SECOND = tl.constexpr(2)  # exp_avg_sq
STEP = tl.constexpr(3)  # a float32, the number of this step
PLACES = tl.constexpr(4)

# Columns of its hyperparameters [layers, 2, SETTINGS] of float64.
RATE = tl.constexpr(0)
DECAY = tl.constexpr(1)  # of weights
BETA_1 = tl.constexpr(2)  # or the momentum
BETA_2 = tl.constexpr(3)
EPSILON = tl.constexpr(4)
SIGN = tl.constexpr(5)  # -1: the loss is maximized
SETTINGS = tl.constexpr(6)


@triton.jit
def _step(
    gradient,
    mask,
    offsets,
    places,
    settings,
    PARAMETER_TYPE: tl.constexpr,
    OPTIMIZER: tl.constexpr,
    NESTEROV: tl.constexpr,
) -> None:
    """Take a step with some entries of a gradient, which is V. OPTIMIZER: 0 AdamW, 1 SGD, 2 SGD with momentum.

    The formulas are those of `torch.optim`: decoupled decay for AdamW, decay in the gradient for SGD.
    """
    at = tl.load(places + PARAMETER).to(tl.pointer_type(PARAMETER_TYPE)) + offsets
    parameter = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    rate = tl.load(settings + RATE)
    decay = tl.load(settings + DECAY)
    gradient = gradient * tl.load(settings + SIGN).to(tl.float32)
    if OPTIMIZER == 0:
        beta_1, beta_2 = tl.load(settings + BETA_1), tl.load(settings + BETA_2)
        step = tl.load(tl.load(places + STEP).to(tl.pointer_type(tl.float32))).to(tl.float64)
        # In float64: 1 - beta_2 is of the order of 1e-3, of which float32 would lose digits.
        correction_1 = 1.0 - tl.exp(step * tl.log(beta_1))
        correction_2 = 1.0 - tl.exp(step * tl.log(beta_2))
        first_at = tl.load(places + FIRST).to(tl.pointer_type(PARAMETER_TYPE)) + offsets
        second_at = tl.load(places + SECOND).to(tl.pointer_type(PARAMETER_TYPE)) + offsets
        first = tl.load(first_at, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(second_at, mask=mask, other=0.0).to(tl.float32)
        first += (gradient - first) * (1.0 - beta_1).to(tl.float32)
        second = second * beta_2.to(tl.float32) + gradient * gradient * (1.0 - beta_2).to(tl.float32)
        root = tl.sqrt(second) / tl.sqrt(correction_2).to(tl.float32) + tl.load(settings + EPSILON).to(tl.float32)
        parameter = (
            parameter * (1.0 - rate * decay).to(tl.float32) - (rate / correction_1).to(tl.float32) * first / root
        )
        tl.store(first_at, first.to(PARAMETER_TYPE), mask=mask)
        tl.store(second_at, second.to(PARAMETER_TYPE), mask=mask)
    else:
        gradient += decay.to(tl.float32) * parameter
        if OPTIMIZER == 2:
            momentum = tl.load(settings + BETA_1).to(tl.float32)
            first_at = tl.load(places + FIRST).to(tl.pointer_type(PARAMETER_TYPE)) + offsets
            first = momentum * tl.load(first_at, mask=mask, other=0.0).to(tl.float32) + gradient
            tl.store(first_at, first.to(PARAMETER_TYPE), mask=mask)
            gradient = gradient + momentum * first if NESTEROV else first
        parameter -= rate.to(tl.float32) * gradient
    tl.store(at, parameter.to(PARAMETER_TYPE), mask=mask)


# One parameter a line would be half of the function.
# fmt: off
@triton.jit
def step(
    table, strips, outer, across, numbers, measured, terms, number_of_terms, bound, places, settings, grad_scale,
    found_inf, NUMBERS: tl.constexpr, W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GRAD_TYPE: tl.constexpr, ROW_TYPE: tl.constexpr, FORM: tl.constexpr, ALIGNED: tl.constexpr,
    PARAMETER_TYPE: tl.constexpr, OPTIMIZER: tl.constexpr, NESTEROV: tl.constexpr,
) -> None:
    """Take an optimizer's step with V in the place of D, which is read once and stays. Grid: strips.

    grad_scale: the loss scale of D, one float32. found_inf: one float32; if it is not 0, nothing changes.
    """
    row, number, inside = strip_of(table, strips, BM)
    layer = tl.load(strips + 2 * tl.program_id(0))
    own = numbers + layer * NUMBERS
    factor, keeps = _factor(row, own, measured, terms, number_of_terms, bound, FORM, BK)
    if tl.load(found_inf) == 0:
        unscale = 1.0 / tl.load(grad_scale)
        n = width_of(row, ALIGNED)
        lanes = tl.arange(0, BM)
        rows = number * BM + lanes
        base = base_of(tl.load(row + GRAD), number, n, GRAD_TYPE, BM, ALIGNED)
        first = number.to(tl.int64) * BM * n
        if ALIGNED:
            first = tl.multiple_of(first, 8)
        places += layer * 2 * PLACES
        settings += layer * 2 * SETTINGS
        for start in range(0, n, BN):
            columns = start + tl.arange(0, BN)
            within = columns < n
            mask = inside[:, None] & within[None, :]
            offsets = (lanes * n)[:, None] + columns[None, :]
            value = tl.load(base + offsets, mask=mask, other=0.0).to(tl.float32)
            if keeps == 0:
                value = factor * _value(
                    value, row, own, rows, inside, columns, within, outer, across, W, ROW_TYPE, FORM
                )
            # A gradient of half precision is rounded, as it would be if V were written into it.
            value = value.to(GRAD_TYPE).to(tl.float32) * unscale
            _step(value, mask, first + offsets, places, settings, PARAMETER_TYPE, OPTIMIZER, NESTEROV)
        if tl.load(row + HAS_BIAS) != 0:
            last = n + tl.arange(0, 1)
            value = bias_of(row, rows, GRAD_TYPE)[:, None]
            if keeps == 0:
                value = factor * _value(
                    value, row, own, rows, inside, last, last == n, outer, across, W, ROW_TYPE, FORM
                )
            value = value.to(GRAD_TYPE).to(tl.float32) * unscale
            places += PLACES
            settings += SETTINGS
            _step(value, inside[:, None], rows[:, None], places, settings, PARAMETER_TYPE, OPTIMIZER, NESTEROV)


# fmt: on
