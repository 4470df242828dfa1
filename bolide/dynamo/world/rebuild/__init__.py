"""From values back to recipes: how results, and what was written, are made after the graph has run."""
