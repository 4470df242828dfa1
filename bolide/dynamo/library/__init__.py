"""Our own answers to calls of Python's library, and to calls that users have marked."""
