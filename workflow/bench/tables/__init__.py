"""One module a table, named as its files are: ``make(results, folder)`` writes it and returns what it wrote."""
