"""First-order optimizers with diagonal preconditioners."""
