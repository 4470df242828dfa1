"""What was assumed of the outside world, as text and as Python: guards, which of them are kept, which sizes are
symbolic."""
