"""Which values are saved for the backward, by flows through the joint graph."""
