"""Training of runs: the loop, its clocks, checkpoints and records, and the processes that share a run.

The way of a run is one direction: `runner` (a list of runs) calls `one_run`, which calls `state` (the checkpoint to
resume from, and `build`, the parts), `loop` and `summary`, one after the other.
"""
