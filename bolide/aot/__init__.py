"""Ahead of time: programs as shared libraries that run without Python."""
