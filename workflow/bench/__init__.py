"""The bench: plans, trains, records and aggregates the runs behind every figure and table."""
