"""Machine code of small functions that are written in a subset of Python."""
