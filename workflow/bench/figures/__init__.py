"""One module per figure, with the name of its files: ``make(results, folder)`` writes them and returns their paths."""
