"""Optimizers that step along a polar factor."""
