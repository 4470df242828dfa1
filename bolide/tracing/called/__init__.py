"""Graphs and derivatives that one node of a graph calls."""
