"""Optimizers whose factors come from gradients."""
