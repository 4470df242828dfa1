"""What capture gives, as data: where values came from, what was assumed of them, what has to happen at the end."""
