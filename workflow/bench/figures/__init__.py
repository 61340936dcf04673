"""One module per figure, with the name of its files: ``make(results, folder)`` writes them and returns their paths.

Every ``make`` raises `NoDataError` where it has nothing to draw; the message names what is missing and what to run.
"""
