"""The tidy CSV files: their columns, how they are written from the runs' records, and how they are read."""
