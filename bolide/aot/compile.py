"""`aot_compile`: a program to a shared library, alone or in a package."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import fx
from torch.export import Dim, ExportedProgram
from torch.fx.graph import _PyTreeCodeGen
from torch.utils import _pytree as pytree

from bolide.aot.capture import Request, Specs, program_of
from bolide.aot.cpu import Need, library_target
from bolide.aot.library import make_library
from bolide.aot.package import write_package
from bolide.inductor.machine import Machine, host_machine
from bolide.support.errors import BolideError

_OUTPUT_PATH = "aot_inductor.output_path"


def compile_graph_module(
    gm: fx.GraphModule, args: tuple[object, ...], kwargs: Mapping[str, object], options: Mapping[str, object]
) -> str:
    """The path of a library for a graph module, see `bolide.inductor.aot_compile`."""
    chosen = dict(options)
    output = chosen.pop(_OUTPUT_PATH, None)
    path = Path(tempfile.mkdtemp(prefix="bolide_aot_")) / "model.so" if output is None else Path(str(output))
    specs = _specs_of(gm)
    given: tuple[object, ...] = tuple(args)
    by_name = dict(kwargs)
    if specs is not None:
        leaves, received = pytree.tree_flatten((given, by_name))
        if received != specs.arguments:
            raise ValueError(
                f"the arguments are not as the graph takes them\n  expected: {specs.arguments}\n  given: {received}"
            )
        if not isinstance(gm.graph._codegen, _PyTreeCodeGen):
            given, by_name = tuple(leaves), {}
    machine, needs = _machine()
    _write(Request(gm, given, by_name, None, chosen, machine, specs), needs, path)
    return str(path)


def compile_package(
    model: object,
    args: tuple[object, ...] | None,
    kwargs: Mapping[str, object] | None,
    dynamic_shapes: object,
    path: Path,
    options: Mapping[str, object],
) -> str:
    """The path of a package with a library for a model, see `bolide.aot_compile`."""
    if isinstance(model, ExportedProgram):
        if args is None:
            args, kwargs = model.example_inputs or ((), {})
        dynamic_shapes = _dynamic_shapes(model) if dynamic_shapes is None else dynamic_shapes
        model = model.module()
    if args is None:
        raise TypeError("aot_compile needs example arguments: only of an ExportedProgram they are known")
    if not callable(model):
        raise TypeError(f"aot_compile expects a function, a module or an ExportedProgram, not {model!r}")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "model.so"
        machine, needs = _machine()
        request = Request(model, tuple(args), dict(kwargs or {}), dynamic_shapes, options, machine)
        device = _write(request, needs, library)
        write_package(library, device.type, path)
    return str(path)


def _machine() -> tuple[Machine, tuple[Need, ...]]:
    """What a library is for, and what it needs of a CPU."""
    target, needs = library_target()
    return replace(host_machine(), target=target), needs


def _write(request: Request, needs: Sequence[Need], path: Path) -> torch.device:
    """Writes a library; gives the device that it is for."""
    program = program_of(request)
    make_library(program.contents, request.machine, needs, program.sizes, path)
    return program.contents.device


def _specs_of(gm: fx.GraphModule) -> Specs | None:
    """How a graph module says that its arguments and its result are made."""
    codegen = gm.graph._codegen
    if isinstance(codegen, _PyTreeCodeGen):
        info = codegen.pytree_info
        return Specs(info.in_spec, info.out_spec) if info.out_spec is not None else None
    arguments, result = getattr(gm, "_in_spec", None), getattr(gm, "_out_spec", None)
    return Specs(arguments, result) if arguments is not None and result is not None else None


def _dynamic_shapes(program: ExportedProgram) -> object:
    """Which sizes of an exported program's arguments may differ, as `dynamo.export` takes them. How they depend on each
    other follows from the program once more."""
    if program.example_inputs is None:
        raise BolideError("an exported program without example inputs: give args and dynamic_shapes")
    names = {str(spec.arg.name) for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"}
    slots = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    ranges = {str(expression): bounds for expression, bounds in program.range_constraints.items()}
    shapes: list[object] = []
    for slot in slots:
        value = slot.meta.get("val")
        shape: dict[int, object] = {}
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                bounds = ranges.get(str(size))
                lo, hi = (None, None) if bounds is None else (int(bounds.lower), bounds.upper)
                lo = None if lo == 2 else lo  # torch's own, of sizes without a bound
                shape[dim] = Dim.DYNAMIC(min=lo, max=int(hi) if hi is not None and hi.is_Integer else None)
        shapes.append(shape or None)
    spec = program.call_spec.in_spec
    args, kwargs = pytree.tree_unflatten(shapes, spec)
    return [*args, *kwargs.values()]
