"""Statistics of the tidy tables: estimates with intervals, times to a target, curves, fits, captions."""
