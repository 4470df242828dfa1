"""Calls that become other steps of a plan."""
