"""Programs that are interrupted: their frames as data, run for real, and taken over the operation that broke."""
