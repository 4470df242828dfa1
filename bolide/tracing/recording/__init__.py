"""Making the graph: nodes, inputs, sizes, storages and writes to them."""
