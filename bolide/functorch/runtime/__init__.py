"""What happens when a compiled function is called, and its backward is."""
