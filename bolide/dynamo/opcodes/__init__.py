"""Handlers of CPython's instructions, and of branches on data that become branches of the graph."""
