"""A preconditioner's state as it is saved and loaded: in an optimizer's state dict, and checked."""
