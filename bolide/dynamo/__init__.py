"""Capture by interpreting bytecode: a user's call becomes a `Captured` program, and that an entry of generated
Python."""

from bolide.dynamo.config import config

__all__ = ["config"]
