"""The outside world of a capture: read, stood for, written to, and how values are rebuilt (docs/capture/world.md)."""
