"""From a call to its compiled version: capture, versions and their limits, replay, metrics."""
