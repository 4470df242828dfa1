"""The interpreter: frames' loop, calls, operations on values, texts, what breaks; and the values that need it."""
