"""One module a figure, named as its files are: ``make(results, folder)`` draws it and returns what it wrote."""
