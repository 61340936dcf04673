"""What every other room uses: checked configuration, atomic files, provenance. Imports no torch."""
