"""The data sets: where each lies, how it is read and checked, and the batches that are drawn from it."""
