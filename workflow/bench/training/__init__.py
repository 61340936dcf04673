"""One training run: its loop, clocks, checkpoints, record, and the processes that share it."""
