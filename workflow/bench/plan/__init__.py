"""What is trained at one tier on one machine: experiment files, run ids, the order of runs. Imports no torch."""

from __future__ import annotations

from workflow.bench.plan.plan import MOST_THREADS, REFERENCE, Plan, Tier, add_arguments, load_from

__all__ = ["MOST_THREADS", "REFERENCE", "Plan", "Tier", "add_arguments", "load_from"]
