"""Kernels on NVIDIA's GPUs: modules loaded by the driver (`driver_api`), launched from machine code (`host`)."""
