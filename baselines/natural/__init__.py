"""Other methods that precondition by statistics of rows."""
