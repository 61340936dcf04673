"""Probes: measurements of this machine and of the mathematics, which need no converged run."""
