"""Triton kernels for methods of low rank: all layers in a few launches, in place; see `mkor_core.kernels.grouped`."""
