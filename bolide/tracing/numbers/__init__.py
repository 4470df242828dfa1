"""Numbers of the graph: integers and sizes that are data, floats."""
