"""`bolide.dynamo.export`: a program as one graph module. `bolide.dynamo.optimize`: the older form of `compile`."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torch import fx, nn
from torch._ops import OpOverload

from bolide.compiling import compile
from bolide.dynamo.backends import CompilerFn
from bolide.dynamo.config import config
from bolide.dynamo.entry.capture import Table, capture
from bolide.dynamo.entry.module import call_target
from bolide.dynamo.guards import texts as guards
from bolide.dynamo.guards.filters import GuardFailed, GuardFilter
from bolide.dynamo.guards.sizes import SizeHistory, shape_guards, specialised
from bolide.dynamo.program.captured import Captured, Effect, Guard, Recipe
from bolide.dynamo.state import state
from bolide.functorch.graphs import results
from bolide.support.errors import Unsupported
from bolide.tracing import modes

if TYPE_CHECKING:
    from bolide.exporting.shapes import Shapes

T = TypeVar("T", bound=Callable[..., Any])


class ExportResult(NamedTuple):
    """`graph_module` takes what the exported function takes and returns what it returns; `guards` are the assumptions
    under which it does, as readable text.
    """

    graph_module: fx.GraphModule
    guards: tuple[str, ...]


def export(
    f: Callable[..., object],
    *extra_args: object,
    aten_graph: bool = False,
    pre_dispatch: bool = False,
    decomposition_table: Mapping[OpOverload, Callable[..., object]] | None = None,
    tracing_mode: str = "symbolic",
    dynamic_shapes: object = None,
    specialize_float: bool = True,
    assume_static_by_default: bool | None = None,
    same_signature: bool = True,
    disable_constraint_solver: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    **extra_kwargs: object,
) -> Any:
    """A function that captures one call of `f` and returns an `ExportResult`.

    The graph holds calls of torch's functions, or with `aten_graph` functional ATen operations (and `copy_` to written
    arguments); it holds those, too, where a graph of calls could not do what the program does. Buffers that a module
    assigns (``self.n = self.n + 1``) are written at the end. Python values are those
    of the example call. Tensors that are not arguments (parameters, buffers, globals) are attributes of the graph
    module. Sizes of arguments may differ from the example's as far as `guards` say, unless `tracing_mode` is not
    ``"symbolic"``, `assume_static_by_default` is true, or it is None and there are `dynamic_shapes`.
    decomposition_table: what is recorded in place of ATen operations.
    dynamic_shapes: which dimensions of which arguments may have other sizes (from 2 on), as for `torch.export`: a dict
    by name, or a sequence by position, of what the argument is made of, down to tensors; for each of these a dict
    ``{dimension: ...}`` or a sequence with an entry for each dimension. A ``torch.export.Dim`` or a text names the
    size: sizes of one name are equal, and the program may assume nothing of it but its `min` and `max`. ``Dim.AUTO``
    leaves it to the program whether the size is fixed, ``Dim.STATIC``, None and an integer fix it, anything else only
    says that it differs. Integers may be ``Dim.DYNAMIC``, ``Dim.AUTO`` or ``Dim.STATIC``. A `ShapesCollection` or
    `AdditionalInputs` of torch's is taken as well, and dimensions marked by `mark_dynamic`.
    same_signature: without it the graph takes and returns tensors only, one by one.
    The other arguments are PyTorch's and change nothing: floats are always constants, composite operations are always
    decomposed, shapes are always guards. `extra_args` and `extra_kwargs` are the call itself, which is deprecated.

    Raises Unsupported, with the user's line, for what one graph cannot do: breaks, and effects on Python objects;
    ConstraintError where the program works for one size of such a dimension only, or assumes more of one with a name;
    AssertionError for a `decomposition_table` or `pre_dispatch` without `aten_graph`; TypeError, ValueError and
    IndexError for `dynamic_shapes` that do not fit the arguments.
    """
    if decomposition_table is not None and not aten_graph:
        raise AssertionError("a decomposition_table is for graphs of ATen operations: set aten_graph=True")
    if pre_dispatch and not aten_graph:
        raise AssertionError("pre_dispatch is for graphs of ATen operations: set aten_graph=True")
    static = dynamic_shapes is not None if assume_static_by_default is None else assume_static_by_default
    table = dict(decomposition_table or {})

    def run(*args: object, **kwargs: object) -> ExportResult:
        from bolide.exporting import graphs
        from bolide.exporting.shapes import Shapes, spelled_out

        function, given = f, args
        if not isinstance(f, types.FunctionType):
            function, given = call_target, (f, *args)
        named, parameters = bound(f, args, kwargs)
        shapes = Shapes(function, list(named))
        with (
            shapes.marked(spelled_out(dynamic_shapes, f, args, kwargs), named, static or tracing_mode != "symbolic"),
            # a graph of torch's own operations; sizes are symbolic where they are marked
            config.patch(capture_branches=False, automatic_dynamic_shapes=False, unrolled_steps=0),
        ):
            captured, checks = capture_whole(function, given, kwargs, table, shapes, may_assign=True)
        call = graphs.Call(function, given, kwargs, args, list(named), parameters)
        flat = graphs.flat_graph(captured, parameters, aten_graph)
        buffers = dict(filter(None, (assigned(captured, effect) for effect in captured.effects)))
        captured.effects = []  # the graph does them
        inputs, result = graphs.rebuilt(call, captured, results(flat.graph))
        module = graphs.with_signature(call, captured, flat, inputs, result, buffers, shapes.path, same_signature)
        return ExportResult(module, tuple(map(guards.text, checks)))

    if not (extra_args or extra_kwargs):
        return run
    message = "export(f, *args, **kwargs) is deprecated: use export(f)(*args, **kwargs)"
    warnings.warn(message, FutureWarning, stacklevel=2)
    return run(*extra_args, **extra_kwargs)


def bound(
    f: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """The arguments of a call by name, those that ``*args`` gathers as ``args_0``, ``args_1``; and the names of the
    positional parameters of what is not a function, with that of the object itself, as `provenance.path` wants them."""
    try:
        parameters = tuple(inspect.signature(f.forward if isinstance(f, nn.Module) else f).parameters.values())
    except ValueError:  # written in C
        parameters = ()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    owner = () if isinstance(f, types.FunctionType) else ("self", *names)
    gathered = [f"{rest}_{position}" for position in range(len(args) - len(names))]
    return {**dict(zip([*names, *gathered], args)), **kwargs}, owner


def capture_whole(
    function: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    decompositions: Table,
    shapes: Shapes,
    record_calls: bool = True,
    may_assign: bool = False,
) -> tuple[Captured, list[Guard]]:
    """One call of a function, captured as a whole, and the guards. `record_calls`: also as calls of torch's functions.

    Raises Unsupported for breaks and for effects on Python objects, unless they are assigned buffers and the function
    `may_assign` these, ConstraintError where the program assumes more of sizes than `shapes` says."""
    reason = guards.busy() or ("a torch function mode is active" if modes.count_functions() else None)
    if reason is not None:
        raise Unsupported(reason, kind="state")
    history = SizeHistory(getattr(function, "__qualname__", ""), reads_data=False)
    history.marked = shapes.mark_of if shapes.numbers else None
    once = functools.partial(
        capture,
        *(function, args, kwargs, history),
        breaks=False,
        record_calls=record_calls,
        decompositions=lambda: decompositions,
    )
    state.stage, state.exporting = "capture", True
    try:
        surroundings = guards.global_state()
        with modes.unseen():  # else what records the program's calls counts as a mode around it
            captured = once()
            while history.fix(specialised(captured)):
                captured = once()
    finally:
        state.stage, state.exporting = None, False
    shapes.check(captured)
    for effect in captured.effects:
        if may_assign and assigned(captured, effect) is not None:
            continue
        key = effect.key.value if isinstance(effect.key, Recipe) else effect.key
        told = f"{effect.kind} {key!r}" if isinstance(key, str) else effect.kind
        raise Unsupported(
            f"the program has an effect that a graph cannot have ({told})",
            effect.where,
            "return the value instead, or use bolide.compile; what only its first call does needs one call before this",
            kind="attribute_write",
        )
    if captured.draws:
        reason = "the program draws random numbers from a generator of Python's or NumPy's, which a graph cannot have"
        raise Unsupported(reason, None, "draw them outside and pass them", kind="moment")
    return captured, guards.prepare([*captured.guards, *shape_guards(captured)], surroundings)


def assigned(captured: Captured, effect: Effect) -> tuple[int, Recipe] | None:
    """The input that is a buffer of a module's, if an effect is that the module gets another tensor of the same form in
    its place, and that tensor: an output or an input."""
    target, name, value = effect.target, effect.key, effect.value
    if effect.kind != "setitem" or target is None or value is None or name.kind != "constant":
        return None
    holder = target.value
    if target.kind != "source" or holder.kind != "attr" or holder.key != "_buffers":
        return None
    at = next((at for at, s in enumerate(captured.inputs) if s.base == holder and s.key == name.value), None)
    if at is None or not (value.kind == "output" or (value.kind == "source" and value.value in captured.inputs)):
        return None
    given = captured.trace.inputs[captured.inputs.index(value.value)] if value.kind == "source" else None
    now, before = captured.outputs[value.value] if given is None else given, captured.examples[at]
    fixed = all(type(size) is int for size in now.shape)
    same = fixed and (now.shape, now.dtype, now.device) == (before.shape, before.dtype, before.device)
    return (at, value) if same else None


# ---- optimize --------------------------------------------------------------------------------------------------------


class Optimize:
    """What `optimize` returns: a decorator. As a context manager it has never done what people expect, and is refused
    while `config.raise_on_ctx_manager_usage` is on; without it, the block runs in eager.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments

    def __call__(self, fn: T) -> T:
        return compile(fn, **self.arguments)

    def __enter__(self) -> None:
        if config.raise_on_ctx_manager_usage:
            raise RuntimeError(
                "bolide.dynamo.optimize(...) is used as a context manager; call it on the function that is to be "
                "compiled: bolide.dynamo.optimize(backend)(fn)"
            )

    def __exit__(self, *raised: object) -> None:
        pass


def optimize(
    backend: str | CompilerFn | None = None,
    *,
    nopython: bool = False,
    disable: bool = False,
    dynamic: bool | None = None,
    guard_fail_fn: GuardFailed | None = None,
    guard_filter_fn: GuardFilter | None = None,
) -> Optimize:
    """`bolide.compile` as a decorator of older programs; `nopython` is `fullgraph`. `guard_fail_fn` is called with a
    `GuardFail` when a guard does not hold. Raises what `compile` does."""
    arguments: dict[str, Any] = {"backend": backend, "fullgraph": nopython, "disable": disable, "dynamic": dynamic}
    hooks = {"guard_fail_fn": guard_fail_fn, "guard_filter_fn": guard_filter_fn}
    arguments["options"] = {name: hook for name, hook in hooks.items() if hook is not None} or None
    compile(**arguments)  # wrong arguments are refused here
    return Optimize(arguments)
