"""Functions and modules as one graph in PyTorch's conventions, gradients included."""
