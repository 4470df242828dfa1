"""The check of guards at each call: in Python, and as machine code over words of memory."""
