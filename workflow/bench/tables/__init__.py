"""One module per table, with the name of its files: ``make(results, folder)`` writes them and returns their paths."""
