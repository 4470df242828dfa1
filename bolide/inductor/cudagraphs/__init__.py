"""CUDA graphs: compiled graphs are captured on the device, and replayed with one launch."""
