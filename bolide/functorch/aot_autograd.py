"""Functions and modules compiled ahead of time by compilers of the user's, as by PyTorch's `functorch.compile`."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn.utils import stateless

from bolide.functorch.calls import Compiler, Function, Request, Versions, progress
from bolide.functorch.foreign import PartitionFn, default_partition
from bolide.functorch.wrapped import Value
from bolide.support.errors import Unsupported
from bolide.tracing.tensor import computes_itself

Decompositions = Mapping[OpOverload | OpOverloadPacket, Function]


def get_aot_compilation_context() -> tuple[list[str], str, int]:
    """For compilers: the graph that is being compiled (the number of its function, and its kind), the name of the
    model, which is always the same, and how many graphs were compiled before."""
    return [progress.graph] if progress.graph is not None else [], "model", progress.graphs


def get_aot_graph_name() -> str:
    """A name for the graph that is being compiled, which no other has."""
    graphs, model, count = get_aot_compilation_context()
    return f"{model}__{'_'.join(graphs)}_{count}"


get_graph_being_compiled = get_aot_graph_name


def make_boxed_func(f: Function) -> Callable[[list[Any]], Any]:
    """`f`, which takes its arguments one by one, as a function that takes them as one list."""

    @functools.wraps(f)
    def boxed(args: list[Any]) -> Any:
        return f(*args)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def make_boxed_compiler(compiler: Compiler) -> Compiler:
    """A compiler whose results take their arguments as one list."""

    @functools.wraps(compiler)
    def boxed(fx_g: fx.GraphModule, inps: list[Any]) -> Function:
        return make_boxed_func(compiler(fx_g, inps))

    return boxed


def request_for(
    function: Function,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None,
    partition_fn: PartitionFn,
    decompositions: Decompositions | None,
    parameters: int,
    keeps_writes: bool,
    inference_compiler: Compiler | None,
    dynamic: bool,
) -> Request:
    """What is to be compiled, under a number of its own; see `aot_function`."""
    table = dict(_overloads(decompositions or {}))
    compilers = fw_compiler, bw_compiler or fw_compiler, inference_compiler or fw_compiler
    progress.functions += 1
    number = progress.functions - 1
    return Request(function, *compilers, partition_fn, table, parameters, keeps_writes, dynamic, number)


def _overloads(decompositions: Decompositions) -> Iterable[tuple[OpOverload, Function]]:
    for operation, function in decompositions.items():
        if isinstance(operation, OpOverloadPacket):
            names: list[str] = operation.overloads()  # type: ignore[no-untyped-call]
            yield from ((getattr(operation, name), function) for name in names)
        else:
            yield operation, function


def aot_function(
    fn: Function,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFn = default_partition,
    decompositions: Decompositions | None = None,
    num_params_buffers: int = 0,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    dynamic: bool = False,
    enable_log: bool = True,
    disable_functionalization: bool = False,
) -> Function:
    """A function that does what `fn` does, by graphs that the compilers compile when it is first called.

    fn: takes and returns tensors in any structure that `torch.utils._pytree` knows; other arguments are constants.
    fw_compiler, bw_compiler, inference_compiler: see `Compiler`; for the forward of what is differentiated, its
    backward, and what is not differentiated. The first one stands in for the others.
    partition_fn: ``(joint_module, joint_inputs, *, num_fwd_outputs)`` to a forward and a backward module.
    decompositions: functions that take the place of operations while `fn` and its derivative are traced.
    num_params_buffers: of so many tensors at the beginning sizes do not change.
    keep_inference_input_mutations: writes to inputs stay in graphs, where they are no part of the history; else they
    are made of results.
    static_argnums: positions of arguments that are constants, which must have a hash; tensors may be among them.
    dynamic: sizes are symbols. enable_log and disable_functionalization are there for PyTorch's callers.

    Raises Unsupported for what no graph can do.
    """
    static = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums or ())
    function = _with_constants(fn) if static else fn
    versions = Versions(
        request_for(
            function,
            fw_compiler,
            bw_compiler,
            partition_fn,
            decompositions,
            num_params_buffers,
            keep_inference_input_mutations,
            inference_compiler,
            dynamic,
        )
    )

    @functools.wraps(fn)
    def call(*args: object, **kwargs: object) -> Any:
        if static:
            args = tuple([_Static(arg) if at in static else arg for at, arg in enumerate(args)])
        return versions(*args, **kwargs)

    return call


@dataclass(frozen=True, slots=True)
class _Static:
    """An argument that is a constant, whatever it is."""

    value: Any


def _with_constants(fn: Function) -> Function:
    @functools.wraps(fn)
    def call(*args: object, **kwargs: object) -> Any:
        return fn(*(arg.value if isinstance(arg, _Static) else arg for arg in args), **kwargs)

    return call


def functional(mod: nn.Module) -> Function:
    """A module as a function of its parameters and buffers, and its arguments. Buffers that it assigns are written."""

    def call(own: dict[str, Tensor], args: tuple[object, ...], kwargs: dict[str, object]) -> Value:
        with stateless._reparametrize_module(mod, own):
            if isinstance(mod, fx.GraphModule) and not kwargs:
                with fx.traceback.preserve_node_meta():  # the lines that its nodes were made by
                    result = fx.Interpreter(mod).run(*args)
            else:
                result = mod(*args, **kwargs)
            _write_assigned(own, own_tensors(mod))
            return result

    return call


def _write_assigned(own: dict[str, Tensor], now: dict[str, Tensor]) -> None:
    """Writes what a module has in place of its own parameters and buffers to these."""
    if own.keys() != now.keys():
        raise Unsupported(f"the module gets or loses {', '.join(own.keys() ^ now.keys())}", kind="attribute_write")
    assigned = [(name, before) for name, before in own.items() if now[name] is not before]
    for name, before in assigned:
        if (now[name].shape, now[name].dtype, now[name].device) != (before.shape, before.dtype, before.device):
            reason = f"the module assigns {name}, and changes its shape, dtype or device"
            raise Unsupported(reason, remedy="give it these from the beginning", kind="attribute_write")
    for before, value in [(before, now[name].clone()) for name, before in assigned]:
        before.copy_(value)


def own_tensors(mod: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module, by all their names."""
    return {**dict(mod.named_parameters(remove_duplicate=False)), **dict(mod.named_buffers(remove_duplicate=False))}


def aot_module(mod: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """A module that does what `mod` does, with its parameters and buffers; the other arguments are those of
    `aot_function`."""
    kwargs["num_params_buffers"] = len(own_tensors(mod))
    compiled_call = aot_function(functional(mod), *args, **kwargs)

    class AOTModule(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.orig_module = mod

        def forward(self, *args: object, **kwargs: object) -> Any:
            return compiled_call(own_tensors(mod), args, kwargs)

    return AOTModule()


def _is_described(value: object) -> bool:
    """Whether it is a tensor without data."""
    return isinstance(value, torch.Tensor) and computes_itself(type(value))


def aot_module_simplified(
    mod: nn.Module,
    args: Sequence[object],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFn = default_partition,
    decompositions: Decompositions | None = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
) -> Function:
    """As `aot_module`, for arguments and results that are flat. It is compiled at once, for arguments like `args`,
    unless these have no data. Returns a function with the module's `zero_grad`, `named_parameters` and
    `named_buffers`."""
    own = own_tensors(mod)
    versions = Versions(
        request_for(
            functional(mod),
            fw_compiler,
            bw_compiler,
            partition_fn,
            decompositions,
            len(own),
            keep_inference_input_mutations,
            inference_compiler,
            False,
        )
    )
    if not any(isinstance(arg, torch.SymInt) or _is_described(arg) for arg in args):
        leaves, spec, _ = versions.flattened((own, tuple(args), {}), {})
        versions.find(leaves, spec)

    def forward(*args: object) -> Any:
        return versions(own, args, {})

    for name in ("zero_grad", "named_parameters", "named_buffers"):
        setattr(forward, name, getattr(mod, name))
    return forward


compiled_function, compiled_module = aot_function, aot_module

_EXPORTED = ("aot_export_module", "aot_export_joint_simple", "GraphSignature", "BackwardSignature")


def __getattr__(name: str) -> Any:
    """What makes graphs alone, which is loaded when it is asked for."""
    if name in _EXPORTED:
        return getattr(importlib.import_module("bolide.functorch.exported.modules"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
