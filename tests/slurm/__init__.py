"""Tests on a real Slurm, apart from the others: ``make test-slurm``."""
