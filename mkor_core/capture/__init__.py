"""What a backward pass tells of a layer: hooks, rows, sums, and which layers a model has."""
