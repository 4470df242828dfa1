"""bolide: a compiler for PyTorch programs, in pure Python on torch and llvmlite.

>>> import bolide
>>> fast = bolide.compile(model)
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch.fx import GraphModule

from bolide.support.garbage import collector_paused

with collector_paused():  # a collection of all that torch has made takes longer than these imports
    from bolide import backends, dynamo, functorch, inductor
    from bolide.compiling import compile, compile_fx
    from bolide.debug.explain import explain
    from bolide.debug.logs import configure, set_logs
    from bolide.debug.shadow import ShadowMismatch, shadow
    from bolide.dynamo.backends import (
        CompilerFn,
        get_default_backend,
        list_backends,
        lookup_backend,
        set_default_backend,
    )
    from bolide.dynamo.entry import versions
    from bolide.dynamo.guards.filters import (
        keep_portable_guards_unsafe,
        keep_tensor_guards_unsafe,
        skip_all_guards_unsafe,
        skip_guard_on_all_nn_modules_unsafe,
        skip_guard_on_globals_unsafe,
        skip_guard_on_inbuilt_nn_modules_unsafe,
    )
    from bolide.dynamo.guards.sizes import (
        mark_dynamic,
        mark_static,
        mark_static_address,
        mark_unbacked,
        maybe_mark_dynamic,
    )
    from bolide.dynamo.library.marks import (
        allow_in_graph,
        assume_constant_result,
        cudagraph_mark_step_begin,
        nested_compile_region,
        substitute_in_graph,
    )
    from bolide.dynamo.state import is_compiling, is_dynamo_compiling, is_exporting
    from bolide.dynamo.switches import disable, error_on_graph_break, graph_break, set_stance
    from bolide.dynamo.torch_calls.arrays import wrap_numpy
    from bolide.exporting import export, optimize
    from bolide.support.artifacts import load_cache_artifacts, save_cache_artifacts
    from bolide.support.caches import reset
    from bolide.support.errors import (
        BolideError,
        BolideWarning,
        CompileError,
        ConstraintError,
        HalfwayError,
        RecompileError,
        Unsupported,
    )
    from bolide.tracing import keep_dynamo_out

if TYPE_CHECKING:
    from bolide.aot.package import Loaded

__version__ = "0.1.0"


def _watched(after: Literal["aot", "dynamo"], compiler: CompilerFn, name: str) -> CompilerFn:
    from bolide.debug import repro  # when there is something to reproduce

    return repro.watched(after, compiler, name)


def _recorded(failure: CompileError, graph: GraphModule | None = None) -> None:
    from bolide.debug import record  # when there is something to record

    record.record(failure, graph)


def aot_compile(
    model: object,
    args: tuple[object, ...] | None = None,
    kwargs: Mapping[str, object] | None = None,
    *,
    dynamic_shapes: object = None,
    path: str | Path = "model.pt2",
    options: Mapping[str, object] | None = None,
) -> str:
    """Compiles a model ahead of time: writes a package with a shared library that runs without Python, for PyTorch's
    own loader in Python and C++ and for `load`, and gives its path.

    model: a function, module, graph module, or an ExportedProgram, of which example arguments and dynamic shapes are
    known. `dynamic_shapes`: as for `dynamo.export`. options: of `inductor.config`.
    Raises Unsupported for what one graph without gradients cannot do, or what needs Python when it runs, with the
    operation; BolideError where there is no linker; ValueError for two arguments that are one tensor.
    """
    from bolide.aot.compile import compile_package  # few programs need it

    return compile_package(model, args, kwargs, dynamic_shapes, Path(path), options or {})


def load(path: str | Path) -> Loaded:
    """What `aot_compile` has written, as a callable that takes what the model took.

    Raises FileNotFoundError; BolideError for another file; RuntimeError on a machine that lacks what the library needs:
    features of its CPU, or the GPU and its driver."""
    from bolide.aot.package import load_library

    return load_library(Path(path))


def save_compiled(fn: object, path: str | Path) -> None:
    """Writes what was compiled of a function so far to a file, from which `load_compiled` takes it in another process:
    its guards, results, graphs and machine code, with its backward.

    fn: what `compile` gave, and what was called since. Raises BolideError, with the line and the reason, for what only
    this process has: a break, objects without names, tables of operators in Python.
    """
    from bolide.aot import functions  # few programs need it

    functions.save_compiled(fn, path)


def load_compiled(path: str | Path, model: object = None) -> Callable[..., object]:
    """The compiled function that `save_compiled` has written, ready for the calls for which it was compiled: guards are
    checked anew, nothing is captured. Other calls compile as ever.

    model: the function, method or module that was compiled; None: the function of that name, which is imported.
    Raises FileNotFoundError; BolideError for another file, and for one that was made with other code, another CPU,
    other versions or options, which it names. The file has machine code: load only what you trust.
    """
    from bolide.aot import functions

    return functions.load_compiled(path, model)


def _aot_compile(
    gm: GraphModule,
    args: tuple[object, ...],
    kwargs: Mapping[str, object] | None = None,
    *,
    options: Mapping[str, object] | None = None,
) -> str:
    """A shared library that runs a graph module without Python, by PyTorch's AOTInductor runners; gives its path, which
    the option ``aot_inductor.output_path`` chooses. How arguments and results are made of tensors is embedded.

    Raises ValueError, with both trees, for arguments of another structure than the graph's; else as
    `bolide.aot_compile`."""
    from bolide.aot.compile import compile_graph_module

    return compile_graph_module(gm, args, kwargs or {}, options or {})


backends.watched = _watched
versions.recorder = _recorded
dynamo.explain, dynamo.export, dynamo.optimize = explain, export, optimize
dynamo.optimize_assert = functools.partial(optimize, nopython=True)
inductor.aot_compile = _aot_compile
inductor.cudagraph_mark_step_begin = cudagraph_mark_step_begin
inductor.compile, functorch.compilers.generator = compile_fx, lookup_backend("inductor")
configure(dict(os.environ))
keep_dynamo_out()  # also for optimizers that are made before anything is compiled

__all__ = [
    "BolideError",
    "BolideWarning",
    "CompileError",
    "ConstraintError",
    "HalfwayError",
    "RecompileError",
    "ShadowMismatch",
    "Unsupported",
    "allow_in_graph",
    "aot_compile",
    "assume_constant_result",
    "compile",
    "cudagraph_mark_step_begin",
    "disable",
    "dynamo",
    "error_on_graph_break",
    "explain",
    "functorch",
    "get_default_backend",
    "graph_break",
    "inductor",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "keep_portable_guards_unsafe",
    "keep_tensor_guards_unsafe",
    "list_backends",
    "load",
    "load_cache_artifacts",
    "load_compiled",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "nested_compile_region",
    "reset",
    "save_cache_artifacts",
    "save_compiled",
    "set_default_backend",
    "set_logs",
    "set_stance",
    "shadow",
    "skip_all_guards_unsafe",
    "skip_guard_on_all_nn_modules_unsafe",
    "skip_guard_on_globals_unsafe",
    "skip_guard_on_inbuilt_nn_modules_unsafe",
    "substitute_in_graph",
    "wrap_numpy",
]
