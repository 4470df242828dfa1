"""The code generator: an ATen graph in, fused kernels and a plan that runs them out."""

from __future__ import annotations

from bolide.inductor.compile_graph import CompiledGraph, compile_graph
from bolide.inductor.config import config

__all__ = ["CompiledGraph", "compile_graph", "config"]
