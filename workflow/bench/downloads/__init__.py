"""The data sets that larger tiers need: what is missing, where it is downloaded, and how it lands. Imports no torch."""
