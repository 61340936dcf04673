"""What several optimizers share."""
