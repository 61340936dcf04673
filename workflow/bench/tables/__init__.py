"""One module per table, with the name of its files: ``make(results, folder)`` writes them and returns their paths.

Every ``make`` raises `NoDataError` where it has no rows; the message names what is missing and what to run.
"""
