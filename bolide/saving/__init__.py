"""Compiled functions that another process uses without capturing them (docs/saved.md)."""
