"""What carries out a step: states, updates, gradients, clipping, reports."""
