"""What the Triton kernels share: the table of pointers, the numbers of a layer, and the strips of D.

An update is ``V = factor (scale D - sum_k left_k b_k^T - sum_k weight_k q_k right_k^T)``. Of the windowed inverses
``J = c I - U S U^T`` (``mkor_core.maths.inverses``), left and right are U_L and U_R ``[w, d]``, ``q = D U_R``, and
``b = c_R S_L U_L^T D - S_L R S_R U_R^T`` with ``R = U_L^T D U_R``. Of Eva, left is g times a number, b is a, and there
is no third term.

One *strip* is BM rows of one layer's D. A program of `project`, `measure`, `correct` or `step` goes through the columns
of a strip, BN at a time, the bias's column last. So D is read once by `project`, and read and written once by
`correct`. Nothing is gathered, and no result depends on the order in which programs run. Kernels that find what V is
made of are in `mkor_core.kernels.finding`, those that use it in `mkor_core.kernels.applying`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
"""Triton's names of the dtypes of gradients and of windows."""

# Columns of the table [layers, FIELDS] of int64: addresses, strides in entries, sizes, and places in the workspaces.
GRAD = tl.constexpr(0)
GRAD_BIAS = tl.constexpr(1)
LEFT = tl.constexpr(2)
RIGHT = tl.constexpr(3)
LEFT_STRIDE = tl.constexpr(4)
RIGHT_STRIDE = tl.constexpr(5)
LEFT_WEIGHTS = tl.constexpr(6)
RIGHT_WEIGHTS = tl.constexpr(7)
LEFT_SCALE = tl.constexpr(8)
RIGHT_SCALE = tl.constexpr(9)
BATCHES = tl.constexpr(10)
ROWS = tl.constexpr(11)
COLUMNS = tl.constexpr(12)  # without the bias's
HAS_BIAS = tl.constexpr(13)
FIRST_STRIP = tl.constexpr(14)
STRIPS = tl.constexpr(15)
OUTER_AT = tl.constexpr(16)
PARTS_AT = tl.constexpr(17)
ACROSS_AT = tl.constexpr(18)
FIELDS = tl.constexpr(19)

# Columns of the numbers [layers, NUMBERS] of float32 that `windowed` and `rank_one` find.
SCALE = tl.constexpr(0)
FACTOR = tl.constexpr(1)
KEEPS = tl.constexpr(2)  # 1: V is D
MEASURES = tl.constexpr(3)  # 1: |V|^2 has to be measured
WHOLE = tl.constexpr(4)  # |D|^2
SHARE = tl.constexpr(5)  # of Eva
FIXED = tl.constexpr(6)  # then W times weight_k; of the window of a left factor W times fade_k, and the core [W, W]

CANCELLATION = tl.constexpr(1e-3)  # that of mkor_core.maths.products


@triton.jit
def strip_of(table, strips, BM: tl.constexpr):
    """Return the program's strip: the row of the table, its number in the layer, its first row, and a mask of rows."""
    program = tl.program_id(0)
    row = table + tl.load(strips + 2 * program).to(tl.int64) * FIELDS
    number = tl.load(strips + 2 * program + 1)
    inside = number * BM + tl.arange(0, BM) < tl.load(row + ROWS)
    return row, number, inside


@triton.jit
def base_of(address, number, width, TYPE: tl.constexpr, BM: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the first entry of a strip of a matrix of rows of ``width`` entries, whose address is given."""
    pointer = address.to(tl.pointer_type(TYPE)) + number.to(tl.int64) * BM * width
    if ALIGNED:  # then loads are 16 bytes wide
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def width_of(row, ALIGNED: tl.constexpr):
    """Return the number of columns of the weight's part of D."""
    width = tl.load(row + COLUMNS).to(tl.int32)
    if ALIGNED:
        width = tl.multiple_of(width, 8)
    return width


@triton.jit
def bias_of(row, rows, TYPE: tl.constexpr):
    """Return some rows of the bias's column of D, zeros outside of D, or if there is none."""
    # The mask is not `inside & has_bias`: in the interpreter a scalar that is spread over a block is no boolean.
    held = rows < tl.load(row + ROWS) * tl.load(row + HAS_BIAS)
    return tl.load(tl.load(row + GRAD_BIAS).to(tl.pointer_type(TYPE)) + rows, mask=held, other=0.0).to(tl.float32)
