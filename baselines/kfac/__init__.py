"""KFAC with its second moments, and cheaper forms of them."""
