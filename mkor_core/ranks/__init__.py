"""What ranks tell each other: collectives, exchanged statistics, owners, KAISA's distribution."""
