"""How each operation is recorded."""
