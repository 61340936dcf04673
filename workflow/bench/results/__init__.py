"""The tidy CSV files: their columns, the code that writes them from the runs' records, and the code that reads them."""
