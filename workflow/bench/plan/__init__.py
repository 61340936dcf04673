"""The plan of a tier on a machine: experiment files, run ids and the order of runs. Imports no torch."""

from __future__ import annotations

from workflow.bench.plan.plan import MAX_THREADS, REFERENCE, Plan, add_arguments, load_from
from workflow.bench.plan.tiers import Tier

__all__ = ["MAX_THREADS", "REFERENCE", "Plan", "Tier", "add_arguments", "load_from"]
