"""Functions and modules compiled ahead of time by compilers of the user's: PyTorch's `torch._functorch.aot_autograd`.

A call is flattened, its tensors become inputs of a trace in which the function runs once, and `compile_trace` makes a
function of the trace, whose graphs go to the compilers in PyTorch's conventions (see `foreign`). What was compiled
serves later calls with arguments of the same kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn.utils import stateless
from torch.utils import _pytree as pytree

from bolide.functorch.aot import compile_trace
from bolide.functorch.foreign import Outgoing, PartitionFn, default_partition, outgoing, split_by
from bolide.functorch.graphs import GraphInfo, Runner, constants_of, is_size, is_tensor, placeholders
from bolide.functorch.signature import with_sizes
from bolide.support.garbage import collector_paused
from bolide.support.locks import compiling
from bolide.symbolic import Expr, as_expr
from bolide.tracing import Trace, TracedTensor, modes
from bolide.tracing.described import example

Function = Callable[..., Any]
Compiler = Callable[..., Function]
"""``(graph: fx.GraphModule, example_inputs: list) -> callable`` that takes the inputs one by one, or as one list if it
is boxed (`make_boxed_compiler`)."""
Leaves = Sequence[Any]
Decompositions = Mapping[OpOverload | OpOverloadPacket, Function]


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be compiled, and how; see `aot_function`. The first `parameters` leaves of the arguments have sizes
    that never change."""

    function: Function
    forward: Compiler
    backward: Compiler
    inference: Compiler
    partition: PartitionFn
    decompositions: Mapping[OpOverload, Function]
    parameters: int
    keeps_writes: bool
    dynamic: bool

    def compiler(self, kind: str) -> Compiler:
        return {"forward": self.forward, "backward": self.backward, "inference": self.inference}[kind]


@dataclass(frozen=True, slots=True)
class Version:
    """What was compiled for arguments of one kind.

    `inputs`: the leaves that are given to `run`, by position; `sizes`: the symbols behind them, as pairs of an input
    and a dimension. `outputs`: for each leaf of the result the position among those of `run`, or None: then it is that
    in `constants`, which may be made of sizes.
    """

    run: Runner
    inputs: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]
    symbols: tuple[str, ...]
    layouts: tuple[tuple[Any, ...], ...]
    guards: tuple[Any, ...]
    outputs: tuple[int | None, ...]
    constants: tuple[Any, ...]
    spec: pytree.TreeSpec

    def values(self, tensors: Sequence[Tensor]) -> dict[str, int]:
        """The values of the symbols."""
        return dict(zip(self.symbols, (tensors[at].shape[dim] for at, dim in self.sizes)))

    def fits(self, leaves: Leaves) -> bool:
        if not self.symbols:
            return True
        tensors = [leaves[at] for at in self.inputs]
        values = self.values(tensors)
        layouts = ((*tensor.shape, *tensor.stride()) for tensor in tensors)
        same = all(real == with_sizes(wanted, values) for real, wanted in zip(layouts, self.layouts))
        return same and all(guard.holds_at(guard.expr.evaluate(values)) for guard in self.guards)

    def __call__(self, leaves: Leaves) -> Any:
        tensors = [leaves[at] for at in self.inputs]
        values = self.values(tensors)
        results = self.run([*tensors, *values.values()])
        constants = with_sizes(self.constants, values) if values else self.constants
        flat = [constant if at is None else results[at] for at, constant in zip(self.outputs, constants)]
        return pytree.tree_unflatten(flat, self.spec)


@dataclass(slots=True)
class Versions:
    """A function and what was compiled for it."""

    request: Request
    known: dict[object, list[Version]] = field(default_factory=dict)

    def find(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[Version, Leaves]:
        """The version for a call, which is compiled if there is none, and the leaves of the arguments."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        key = (spec, _surroundings(), *_kinds(leaves, self.request.dynamic))
        version = self._known(key, leaves)
        if version is None:
            with compiling:
                version = self._known(key, leaves)
                if version is None:
                    version = compiled(self.request, leaves, spec)
                    self.known.setdefault(key, []).append(version)
        return version, leaves

    def _known(self, key: object, leaves: Leaves) -> Version | None:
        return next((version for version in self.known.get(key, ()) if version.fits(leaves)), None)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        version, leaves = self.find(args, kwargs)
        return version(leaves)


# ---- what a version serves ---------------------------------------------------------------------------------------


def _surroundings() -> object:
    """The modes that graphs are made for."""
    devices = tuple(
        (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in modes.AUTOCAST_DEVICES
    )
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), devices, torch.get_default_dtype()


def _kinds(leaves: Leaves, dynamic: bool) -> list[object]:
    """What is fixed of the arguments: all but the data of tensors; of sizes, with `dynamic`, only how many there are.
    Tensors that are the same object, or share memory, are known by their places."""
    kinds: list[object] = []
    places: dict[int, int] = {}
    storages: dict[int, int] = {}
    for at, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            kinds.append(_constant(leaf))
            continue
        first = places.setdefault(id(leaf), at)
        if first != at:
            kinds.append(first)
            continue
        layout = leaf.dim() if dynamic else (*leaf.shape, *leaf.stride())
        kinds.append((type(leaf), layout, leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_leaf, *_marks(leaf)))
        if leaf.numel():
            owner = storages.setdefault(leaf.untyped_storage().data_ptr(), at)
            kinds.append(owner if owner != at else None)
    return kinds


def _marks(tensor: Tensor) -> tuple[bool, ...]:
    return tensor.is_conj(), tensor.is_neg(), tensor.is_inference()


def _constant(value: object) -> object:
    """What a Python value among the arguments is known by; one without a hash by its identity."""
    try:
        hash(value)
    except TypeError:
        return type(value), id(value)
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


# ---- compiling -------------------------------------------------------------------------------------------------------


def compiled(request: Request, leaves: Leaves, spec: pytree.TreeSpec) -> Version:
    """Traces the function for these arguments and compiles it."""
    with collector_paused(), modes.undisturbed(), modes.random_kept():
        return _Tracing(request, leaves).version(spec)


class _Tracing:
    """One trace of the function of a request."""

    def __init__(self, request: Request, leaves: Leaves) -> None:
        self.request, self.leaves = request, leaves
        self.trace = Trace()
        self.trace.draws_as_eager = True
        self.trace.decompositions = request.decompositions
        self.places: list[tuple[int, int]] = []
        self.known: dict[int, Any] = {}
        places = {id(leaf): at for at, leaf in reversed([*enumerate(leaves)]) if isinstance(leaf, Tensor)}
        self.inputs = tuple(sorted(places.values()))
        traced = {id(leaves[at]): self._input(at, number) for number, at in enumerate(self.inputs)}
        self.arguments = [traced.get(id(leaf), leaf) for leaf in leaves]

    def _input(self, at: int, number: int) -> TracedTensor:
        tensor, sizes = self.leaves[at], {}
        if self.request.dynamic and at >= self.request.parameters and not isinstance(tensor, nn.Parameter):
            for dim, extent in enumerate(tensor.shape):
                size = self._size(extent, number, dim)
                if isinstance(size, torch.SymInt):
                    sizes[dim] = size
        return self.trace.input(tensor, f"primals_{number + 1}", sizes)

    def _size(self, extent: int, number: int, dim: int) -> Any:
        """A symbol for a size; equal ones have one symbol, as in PyTorch."""
        if extent not in self.known:
            self.known[extent] = self.trace.size(extent, f"size_{len(self.places)}")
            if isinstance(self.known[extent], torch.SymInt):
                self.places.append((number, dim))
        return self.known[extent]

    def version(self, spec: pytree.TreeSpec) -> Version:
        trace = self.trace
        args, kwargs = pytree.tree_unflatten(self.arguments, spec)
        with trace.recording(), _autocast_without_cache():
            result = self.request.function(*args, **kwargs)
        flat, result_spec = pytree.tree_flatten(result)
        outputs = [trace.own(leaf) if isinstance(leaf, Tensor) else None for leaf in flat]
        tensors = [output for output in outputs if output is not None]
        compiler = functools.partial(_given, self.request, len(trace.sizes))
        strategy = functools.partial(split_by, self.request.partition, trace.constants)
        run = compile_trace(
            trace,
            tensors,
            forward_compiler=compiler,
            backward_compiler=compiler,
            partition=strategy,
            title=getattr(self.request.function, "__qualname__", type(self.request.function).__qualname__),
            plain=True,
        )
        numbers = iter(range(len(tensors)))
        version = Version(
            run,
            self.inputs,
            tuple(self.places),
            tuple(as_expr(size).text() for size in trace.sizes),
            tuple(_layout(tensor) for tensor in trace.leaves),
            tuple(trace.shapes.guards),
            tuple([next(numbers) if output is not None else None for output in outputs]),
            tuple([None if isinstance(leaf, Tensor) else _number(leaf) for leaf in flat]),
            result_spec,
        )
        trace.release()
        return version


def _layout(tensor: TracedTensor) -> tuple[int | Expr, ...]:
    return tuple([_number(size) for size in (*tensor.shape, *tensor.stride())])


def _number(value: Any) -> Any:
    return as_expr(value) if isinstance(value, torch.SymInt) else value


class _autocast_without_cache:
    """What autocast has converted belongs to one trace."""

    def __enter__(self) -> None:
        self.enabled = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)

    def __exit__(self, *raised: object) -> None:
        torch.set_autocast_cache_enabled(self.enabled)


def _given(request: Request, sizes: int, module: fx.GraphModule, info: GraphInfo) -> Runner:
    """What the user's compiler makes of a graph. So many `sizes` are among a program's inputs, after the tensors: they
    have no gradients."""
    slots = placeholders(module.graph)
    left_out = min(sizes, sum(map(is_size, slots))) if info.kind == "backward" else 0
    names: Mapping[int, str] = {}
    if info.kind == "inference":
        tensors = [at for at, slot in enumerate(slots) if is_tensor(slot)]
        names = {at: f"arg{number}_1" for number, at in enumerate(tensors)}
    out = outgoing(
        module.graph,
        constants_of(module),
        names,
        reads_sizes=info.kind != "backward",
        keeps_writes=request.keeps_writes and info.kind == "inference",
        left_out=left_out,
    )
    made = request.compiler(info.kind)(out.module, [example(slots[at].meta["val"]) for at in out.takes])
    return _running(made, out)


def _running(made: Function, out: Outgoing) -> Runner:
    boxed = getattr(made, "_boxed_call", False)

    def run(inputs: list[Any]) -> Sequence[Any]:
        given = [inputs[at] for at in out.takes]
        targets = [inputs[at] for at in out.writes]
        inputs.clear()
        results = made(given) if boxed else made(*given)
        results = results if isinstance(results, (list, tuple)) else (results,)
        for target, value in zip(targets, results):
            target.copy_(value)
        return [None if at is None else results[at] for at in out.gives]

    return run


# ---- the functions of PyTorch ----------------------------------------------------------------------------------------


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


def _request(
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
    table = dict(_overloads(decompositions or {}))
    compilers = fw_compiler, bw_compiler or fw_compiler, inference_compiler or fw_compiler
    return Request(function, *compilers, partition_fn, table, parameters, keeps_writes, dynamic)


def _overloads(decompositions: Decompositions) -> Iterable[tuple[OpOverload, Function]]:
    for operation, function in decompositions.items():
        if isinstance(operation, OpOverloadPacket):
            yield from ((getattr(operation, name), function) for name in operation.overloads())  # type: ignore[no-untyped-call]
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
    keep_inference_input_mutations: writes to inputs stay in inference graphs; else they are made of results.
    static_argnums: positions of arguments that are constants, which must have a hash; tensors may be among them.
    dynamic: sizes are symbols. enable_log and disable_functionalization are there for PyTorch's callers.

    Raises Unsupported for what no graph can do.
    """
    static = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums or ())
    function = _with_constants(fn) if static else fn
    versions = Versions(
        _request(
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


def _functional(mod: nn.Module) -> Function:
    """A module as a function of its parameters and buffers, and its arguments."""

    def call(own: dict[str, Tensor], args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        with stateless._reparametrize_module(mod, own):
            return mod(*args, **kwargs)

    return call


def _own(mod: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module, by all their names."""
    return {**dict(mod.named_parameters(remove_duplicate=False)), **dict(mod.named_buffers(remove_duplicate=False))}


def aot_module(mod: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """A module that does what `mod` does, with its parameters and buffers; the other arguments are those of
    `aot_function`."""
    kwargs["num_params_buffers"] = len(_own(mod))
    compiled_call = aot_function(_functional(mod), *args, **kwargs)

    class AOTModule(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.orig_module = mod

        def forward(self, *args: object, **kwargs: object) -> Any:
            return compiled_call(_own(mod), args, kwargs)

    return AOTModule()


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
    """As `aot_module`, for arguments and results that are flat; it is compiled at once, for arguments like `args`, and
    returns a function with the module's `zero_grad`, `named_parameters` and `named_buffers`."""
    own = _own(mod)
    versions = Versions(
        _request(
            _functional(mod),
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
    versions.find((own, tuple(args), {}), {})

    def forward(*args: object) -> Any:
        return versions(own, args, {})

    for name in ("zero_grad", "named_parameters", "named_buffers"):
        setattr(forward, name, getattr(mod, name))
    return forward


compiled_function, compiled_module = aot_function, aot_module
