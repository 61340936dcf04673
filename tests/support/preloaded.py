"""What the server of forked training commands loads once, instead of every command anew. Importing it takes seconds."""

from __future__ import annotations

import gc

import sklearn.datasets  # noqa: F401

import workflow.bench.training.runner
import workflow.bench.workloads.autoencoder  # noqa: F401
from baselines import available, limits
from workflow.bench.plan.hyperparameters import read_signatures
from workflow.bench.support import provenance, source_code
from workflow.bench.support.config import schema

for _name in available():
    limits(_name)  # imports the optimizer's file
# These are cached.
for _name in ("config", "experiment", "run", "tier", "workloads/autoencoder"):
    schema(_name)
read_signatures()
source_code.probe_fingerprint("workflow.bench.probes.step_breakdown")
provenance.collect(())
gc.freeze()  # the commands share its memory longer
