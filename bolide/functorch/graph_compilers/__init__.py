"""Compilers of graphs for `aot_function` and the like: ``(fx.GraphModule, example_inputs) -> callable``. They are
named by `bolide.functorch.compilers`, which loads them when they are asked for.
"""
