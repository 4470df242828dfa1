"""Calls of functions that are compiled ahead of time: which version serves a call, and how one is made.

A call is flattened, its tensors become inputs of a trace in which the function runs once, and `compile_trace` makes a
function of the trace, whose graphs go to the user's compilers in PyTorch's conventions (see `foreign`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.utils import _pytree as pytree

from bolide.functorch.aot import compile_trace
from bolide.functorch.foreign import Outgoing, PartitionFn, outgoing, split_by
from bolide.functorch.graphs import GraphInfo, Runner, constants_of, is_size, is_tensor, placeholders
from bolide.functorch.signature import MADE_WITHOUT_GRAD, ONE_OF_SEVERAL, has_new_history
from bolide.functorch.versions import Given, Layout, Leaves, Taken, Version, places_of
from bolide.functorch.wrapped import Value, Wrappers, finished, has_wrappers, taken_apart
from bolide.support.errors import BolideError, FixedSizesNeeded, Refuted, Unsupported, insistent
from bolide.support.garbage import collector_paused
from bolide.support.locks import compiling
from bolide.support.origins import is_mistake, is_ours
from bolide.symbolic import Ratio, as_expr, is_data
from bolide.tracing import TensorMeta, Trace, TracedTensor, modes
from bolide.tracing.called.direct import Calling
from bolide.tracing.called.native import recording_control_flow
from bolide.tracing.described import example
from bolide.tracing.meta import WITHOUT_DATA, DataDependent
from bolide.tracing.numbers.scalars import ScalarNode
from bolide.tracing.operations.generators import is_default, stand_in
from bolide.tracing.tensor import Listener, carry_marks, computes_itself, inner_leaves, nodes_behind
from bolide.tracing.wrappers import GradientOfOtherForm, is_made_of_parts, plain_parts

Function = Callable[..., Any]
Compiler = Callable[..., Function]
"""``(graph: fx.GraphModule, example_inputs: list) -> callable`` that takes the inputs one by one, or as one list if it
is boxed (`make_boxed_compiler`)."""


@dataclass(slots=True)
class Progress:
    """Which graph is given to a compiler: the number of its function, and its kind; and how many have been so far."""

    graph: str | None = None
    functions: int = 0
    graphs: int = 0

    @contextmanager
    def compiling(self, number: int, kind: str) -> Iterator[None]:
        """While a compiler is called."""
        outer, self.graph = self.graph, f"{number}_{kind}"
        try:
            yield
        finally:
            self.graph = outer
            self.graphs += 1


progress = Progress()


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
    number: int

    def compiler(self, kind: str) -> Compiler:
        return {"forward": self.forward, "backward": self.backward, "inference": self.inference}[kind]


class _RaisedByGraph(Exception):
    """A kernel has raised what the program handles; nothing is written yet."""


_RAISED_BY_KERNELS = (RuntimeError, IndexError, NotImplementedError, ValueError)


@dataclass(slots=True)
class Versions:
    """A function and what was compiled for it."""

    request: Request
    known: dict[object, list[Version]] = field(default_factory=dict)
    by_handles: bool = False

    def flattened(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[Leaves, pytree.TreeSpec, Leaves]:
        """The leaves of arguments, those of wrappers in place of these, their structure, and the wrappers."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        wrappers = {id(leaf): leaf for leaf in leaves if is_made_of_parts(leaf)}
        if wrappers:
            places = enumerate(wrappers.items())
            apart = {known: taken_apart(leaf, place, self.by_handles) for place, (known, leaf) in places}
            leaves, spec = pytree.tree_flatten(spec.unflatten([apart.get(id(leaf), leaf) for leaf in leaves]))
        return leaves, spec, [*wrappers.values()]

    def find(self, leaves: Leaves, spec: pytree.TreeSpec) -> Version:
        """The version for a call, which is compiled if there is none."""
        request = self.request
        if request.dynamic and has_wrappers(spec):
            request = replace(request, dynamic=False)
        key = (spec, _surroundings(), *_kinds(leaves, request.dynamic))
        version = self._known(key, leaves)
        if version is None:
            with compiling:
                version = self._known(key, leaves)
                if version is None:
                    version = compiled(request, leaves, spec)
                    self.known.setdefault(key, []).append(version)
        return version

    def _known(self, key: object, leaves: Leaves) -> Version | None:
        return next((version for version in self.known.get(key, ()) if version.fits(leaves)), None)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        watched = torch._C._len_torch_dispatch_stack() or modes.functions_change()  # by modes, which may change it
        if watched or any(_is_inside(leaf) for leaf in pytree.tree_leaves((args, kwargs))):
            return self.request.function(*args, **kwargs)
        leaves, spec, wrappers = self.flattened(args, kwargs)
        version = self.find(leaves, spec)
        drawn = torch.get_rng_state() if version.handles else None
        try:
            return finished(version(leaves), wrappers)
        except GradientOfOtherForm:
            if self.by_handles or not wrappers:
                raise
            self.by_handles = True
            return self(*args, **kwargs)
        except Refuted:
            return self.request.function(*args, **kwargs)
        except _RaisedByGraph:
            assert drawn is not None
            torch.set_rng_state(drawn)
        return self.request.function(*args, **kwargs)


def _is_inside(leaf: object) -> bool:
    """Whether a leaf belongs to what is being compiled, or to a transform, or has no data of its own."""
    if is_made_of_parts(leaf):
        return any(map(_is_inside, plain_parts(leaf)))
    if not isinstance(leaf, Tensor):
        return False
    transformed = is_functorch_wrapped_tensor(leaf) or torch._is_functional_tensor(leaf)
    return transformed or isinstance(leaf, (TracedTensor, FakeTensor))


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
        if computes_itself(type(leaf)) or _is_asked(type(leaf)):
            how = "computes in Python itself" if computes_itself(type(leaf)) else "has a __torch_function__"
            raise Unsupported(f"an argument is a {type(leaf).__name__}, which {how}", kind="input")
        if leaf.layout is not torch.strided:
            raise Unsupported(f"an argument is a tensor of layout {leaf.layout}", kind="input")
        layout = leaf.dim() if dynamic else (*leaf.shape, *leaf.stride())
        kinds.append((type(leaf), layout, leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_leaf, *_marks(leaf)))
        if leaf.numel():
            kinds.append(storages.setdefault(leaf.untyped_storage()._cdata, at))
    return kinds


def _is_asked(cls: type) -> bool:
    """Whether torch's functions ask a class of tensors what they return: graphs would not."""
    function = cls.__torch_function__  # type: ignore[attr-defined]
    return cls is not Tensor and function is not torch._C._disabled_torch_function_impl


def _marks(tensor: Tensor) -> tuple[object, ...]:
    creation = torch._C._autograd._get_creation_meta(tensor) if tensor._is_view() else None
    return tensor.is_conj(), tensor.is_neg(), tensor.is_inference(), creation


def _constant(value: object) -> object:
    """What a Python value among the arguments is known by; one without a hash by its identity."""
    if not _has_hash(value):
        return type(value), id(value)
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


def _has_hash(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


# ---- compiling -------------------------------------------------------------------------------------------------------


def compiled(request: Request, leaves: Leaves, spec: pytree.TreeSpec) -> Version:
    """Traces the function for these arguments and compiles it; where torch has no symbols for what it does, for these
    sizes. Raises Unsupported for what no graph can do."""
    try:
        return _compiled(request, leaves, spec, request.dynamic)
    except FixedSizesNeeded:
        if not request.dynamic:
            raise
    return _compiled(request, leaves, spec, False)


def _compiled(request: Request, leaves: Leaves, spec: pytree.TreeSpec, symbolic: bool) -> Version:
    shared = families(leaves)
    with collector_paused(), modes.undisturbed(), modes.random_kept():
        try:
            return Tracing(request, leaves, shared, symbolic).version(spec)
        except Unsupported as error:
            if error.kind != "tensor_write":
                raise
            merged = [_memory(leaves, family) for family in shared]
            if not any(merged):
                raise
        return Tracing(request, leaves, shared, symbolic, merged).version(spec)


def families(leaves: Leaves) -> list[list[int]]:
    """The tensors, by place, that share memory with others."""
    storages: dict[int, dict[int, int]] = {}
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.numel():
            storages.setdefault(leaf.untyped_storage()._cdata, {}).setdefault(id(leaf), at)
    return [[*family.values()] for family in storages.values() if len(family) > 1]


def _memory(leaves: Leaves, family: Sequence[int]) -> Taken | None:
    """The tensor of which a family are views: where autograd knows one, that of those that it tracks. None where there
    are several such."""
    if len({leaves[at].dtype for at in family}) > 1:
        return None
    tracked = [at for at in family if leaves[at].requires_grad] or family
    bases = {id(_base(leaves[at])) for at in tracked}
    if len(bases) > 1:
        return None if tracked is not family else Taken(family[0], "storage")
    own = [at for at in family if id(leaves[at]) in bases]
    return Taken(own[0]) if own else Taken(tracked[0], "base")


def _base(tensor: Tensor) -> Tensor:
    return tensor if tensor._base is None else tensor._base


class _Offsets(Listener):
    """Remembers the inputs of which the program sees where they lie in their storage."""

    def __init__(self) -> None:
        self.places: set[int] = set()

    def offset_read(self, place: int) -> None:
        self.places.add(place)


class Tracing:
    """One trace of the function of a request. `families`: the leaves that share memory. Where what they are views of
    is given (`merged`), that is the input, and the arguments are views made of it, which may be written to.
    `symbolic`: whether sizes are symbols."""

    def __init__(
        self,
        request: Request,
        leaves: Leaves,
        families: Sequence[Sequence[int]],
        symbolic: bool,
        merged: Sequence[Taken | None] = (),
    ) -> None:
        self.request, self.leaves, self.symbolic, self.arguments = request, [*leaves], symbolic, len(leaves)
        self.trace = Trace()
        self.trace.draws_as_eager = self.trace.reshapes_inputs = True
        self.trace.captures_sizes = self.trace.captures_numbers = True
        self.trace.decompositions = request.decompositions
        self.offsets = _Offsets()
        self.trace.tell(self.offsets)
        self.inputs: list[Taken] = []
        self.layouts: list[Layout] = []
        self.sizes: list[tuple[int, int]] = []
        self.known: dict[int, Any] = {}
        self.fixed: dict[Taken, Layout] = {}
        self.apart: dict[int, tuple[int, ...]] = {}
        self.detached: dict[Taken, Tensor] = {}  # what stands for tensors in an input's memory that autograd sees apart
        self.flags: dict[int, bool] = {}
        self.traced: dict[int, Any] = {}  # what stands for a leaf, by its id
        for at, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Generator) and not is_default(leaf) and id(leaf) not in self.traced:
                self.traced[id(leaf)] = stand_in(self.trace, leaf.device, functools.partial(self._enter_token, at))
        for family, taken in zip(families, merged):
            if taken is not None:
                self._enter_family(family, taken)
        for at, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and id(leaf) not in self.traced:
                self.traced[id(leaf)] = self._enter(Taken(at), self._may_change(at))
        for family in families:
            for traced in {self.traced[id(leaves[at])].group for at in family}:
                traced.shared = len({id(self.traced[id(leaves[at])].group) for at in family}) > 1
        first = {at: self.traced[id(leaves[at])] for at in self._first()}
        self.before = {at: (_traced_layout(traced), traced.chain) for at, traced in first.items()}

    def stand_in(self, real: Tensor) -> Tensor:
        """What stands for a tensor that requires grad: an input more, where it is no argument."""
        known = self.traced.get(id(real))
        if known is not None or self.trace.derivation.running or computes_itself(type(real)):
            return real if known is None else known  # type: ignore[no-any-return]
        self.leaves.append(real)
        traced = self.traced[id(real)] = self._enter(Taken(len(self.leaves) - 1), False)
        memory = real.untyped_storage()._cdata
        for leaf in self.leaves[:-1]:
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata == memory:
                traced.group.shared = self.traced[id(leaf)].group.shared = True
        return traced

    def flag(self, tensor: TracedTensor, wanted: bool) -> None:
        """An argument requires grad, or not, when the call begins."""
        at = self._place(tensor)
        written = tensor.group.version or (not wanted and any(leaf.node.users for leaf in self.trace.leaves))
        if at is None or at in self.flags or written or not self.leaves[at].is_leaf:
            reason = "requires_grad of an argument that is used before is changed"
            raise Unsupported(reason, self.trace.where, "change it outside", "tensor_method", "requires_grad_")
        self.flags[at] = wanted

    def _place(self, tensor: object) -> int | None:
        """The place of an argument by what stands for it."""
        return next((at for at in self.before if self.traced[id(self.leaves[at])] is tensor), None)

    def _enter(self, taken: Taken, symbolic: bool) -> TracedTensor:
        tensor, sizes, number = taken.of(self.leaves), {}, len(self.inputs)
        self.inputs.append(taken)
        if symbolic and not isinstance(tensor, nn.Parameter):
            for dim, extent in enumerate(tensor.shape):
                size = self._size(extent, number, dim)
                if isinstance(size, torch.SymInt):
                    sizes[dim] = size
        traced: Any = self.trace.input(tensor, f"primals_{number + 1}", sizes)
        if isinstance(tensor, nn.Buffer):
            traced._is_buffer, traced.persistent = True, tensor.persistent
        carry_marks(tensor, traced)
        self.layouts.append(_traced_layout(traced)[:-1])
        return traced  # type: ignore[no-any-return]

    def _enter_token(self, at: int) -> TracedTensor:
        with torch._C._DisableTorchDispatch():  # it is asked for while the function is recorded
            return self._enter(Taken(at, "token"), False)

    def _size(self, extent: int, number: int, dim: int) -> Any:
        """A symbol for a size; equal ones have one symbol, as in PyTorch."""
        if extent not in self.known:
            self.known[extent] = self.trace.size(extent, f"size_{len(self.sizes)}")
            if isinstance(self.known[extent], torch.SymInt):
                self.sizes.append((number, dim))
        return self.known[extent]

    def _enter_family(self, family: Sequence[int], taken: Taken) -> None:
        base = taken.of(self.leaves)
        apart = [at for at in family if taken.part == "storage" or _base(self.leaves[at]) is not base]
        if apart and not base.is_inference():  # those count no writes
            self.apart[len(self.inputs)] = tuple(apart)
        traced = self._enter(taken, False)
        self.fixed[taken] = places_of(base)
        bases: dict[int, Tensor] = {id(base): traced}
        for at in family:
            leaf = self.leaves[at]
            self.fixed[Taken(at)] = places_of(leaf)
            own = _base(leaf)
            if id(own) not in bases:  # autograd knows it apart: it was detached
                detached = Taken(at, "base") if own is not leaf else Taken(at)
                self.fixed[detached] = places_of(own)
                with self.trace.recording():
                    bases[id(own)] = self.detached[detached] = _placed_like(own, traced).detach()
            self.traced[id(leaf)] = bases[id(own)] if leaf is own else self._viewed(leaf, own, bases[id(own)])

    def _viewed(self, leaf: Tensor, base: Tensor, traced: Tensor) -> Tensor:
        """A leaf as a view of what stands for its base."""
        creation = torch._C._autograd._get_creation_meta(leaf) if leaf._is_view() else None
        tracked = creation != MADE_WITHOUT_GRAD and (leaf.requires_grad or not base.requires_grad)
        with torch.set_grad_enabled(tracked), self.trace.recording():
            view = _placed_like(leaf, traced)
        if creation == ONE_OF_SEVERAL:
            torch._C._autograd._set_creation_meta(view, creation)
        return view

    def _first(self) -> list[int]:
        """The leaves that are tensors, each once."""
        places = {id(leaf): at for at, leaf in reversed([*enumerate(self.leaves)]) if isinstance(leaf, Tensor)}
        return sorted(places.values())

    def _may_change(self, at: int) -> bool:
        """Whether the sizes of a leaf are symbols."""
        return self.symbolic and at >= self.request.parameters

    def version(self, spec: pytree.TreeSpec) -> Version:
        try:
            return self._version(spec)
        finally:
            self.trace.release()

    def call(self, spec: pytree.TreeSpec) -> tuple[Value, bool]:
        """What the function returns for what stands for the leaves, and whether the program handles errors."""
        trace = self.trace
        args, kwargs = pytree.tree_unflatten([self.traced.get(id(leaf), leaf) for leaf in self.leaves], spec)
        try:
            with (
                trace.recording(),
                _autocast_without_cache(),
                _said_to_be_compiling(),
                recording_control_flow(trace),
                Calling(trace, self) as calling,
            ):
                wrappers = Wrappers(trace.derivation)
                args, kwargs = wrappers.together((args, kwargs))
                result = insistent(functools.partial(self.request.function, *args, **kwargs))
                return wrappers.apart(result), calling.handles
        except BolideError:
            raise
        except Exception as error:
            if WITHOUT_DATA in str(error):
                raise DataDependent("a function of torch's", trace.where) from error
            if not self.symbolic or is_mistake(error):
                raise
            raise FixedSizesNeeded(str(error), trace.where) from error

    def _version(self, spec: pytree.TreeSpec) -> Version:
        trace, request = self.trace, self.request
        result, handles = self.call(spec)
        flat, result_spec = pytree.tree_flatten(result, lambda part: isinstance(part, torch.Size))
        outputs: list[TracedTensor] = []
        renewed = self._renewed(outputs)
        reshaped = self._reshaped(renewed)
        derived = {
            taken: self._value_of(detached, outputs)
            for taken, detached in self.detached.items()
            if detached.grad_fn is not None
        }
        given = tuple([self._given(leaf, outputs, {*reshaped, *renewed}) for leaf in flat])
        histories = [output.grad_fn for output in (*outputs, *trace.inputs) if output.has_history]
        made = {id(leaf) for leaf in inner_leaves(histories, trace.leaves)}
        if any(one.kind == "leaf" and id(leaf) in made for one, leaf in zip(given, flat)):
            raise Unsupported("a result is a leaf of the history of another one", kind="new_leaf")
        trace.derivation.lost |= has_functions(histories)
        compiler = functools.partial(_compiled_by, request, len(trace.sizes), handles)
        switched = not torch.is_grad_enabled() and (
            any(base.grad_fn is not None and not trace.is_input(base) for base in map(_base, outputs))
            or any(map(has_new_history, trace.inputs, trace.leaves))
        )
        with torch.enable_grad() if switched else nullcontext():
            run = compile_trace(
                trace,
                outputs,
                forward_compiler=compiler,
                backward_compiler=compiler,
                partition=functools.partial(split_by, request.partition, trace.constants),
                title=getattr(request.function, "__qualname__", type(request.function).__qualname__),
                plain=True,
            )
        run = torch.enable_grad()(run) if switched else run
        read = [self.inputs[place] for place in self.offsets.places]
        fixed = {**self.fixed, **{taken: places_of(taken.of(self.leaves)) for taken in read}}
        symbols = [as_expr(size).text() for size in trace.sizes]
        return Version(
            run,
            tuple(self.leaves[self.arguments :]),
            tuple(self.inputs),
            dict(zip(symbols, self.sizes)),
            tuple(self.layouts) if request.dynamic else (),
            tuple(trace.shapes.guards),
            fixed,
            self.apart,
            self.flags,
            reshaped,
            renewed,
            derived,
            given,
            result_spec,
            tuple([leaf for leaf in self.leaves if not isinstance(leaf, Tensor) and not _has_hash(leaf)]),
            handles,
        )

    def _renewed(self, outputs: list[TracedTensor]) -> dict[int, int]:
        """The leaves to which the program has given another storage, and which outputs they become."""
        known = {id(tensor) for tensor in self.trace.renewed}
        found = {at: self.traced[id(self.leaves[at])] for at in self.before}
        return {at: self._output(self._detached(new), outputs) for at, new in found.items() if id(new) in known}

    def moves_arguments(self) -> bool:
        """Whether the program has given an argument another shape or storage."""
        renewed = self._renewed([])
        return bool(renewed or self._reshaped(renewed))

    def _reshaped(self, renewed: Container[int]) -> dict[int, Layout]:
        """The leaves to which the program has given other shapes. What the call writes to one with a history is written
        before: in the old shape."""
        reshaped: dict[int, Layout] = {}
        for at, (before, chain) in self.before.items():
            traced = self.traced[id(self.leaves[at])]
            after = _traced_layout(traced)
            if (after == before and traced.chain is chain) or at in renewed:
                continue
            if traced.requires_grad and traced.group.version and Taken(at) in self.inputs:
                place = self.inputs.index(Taken(at))
                meta: TensorMeta = placeholders(self.trace.graph)[place].meta["val"]
                with torch.enable_grad(), self.trace.recording():
                    old = torch.as_strided(traced, meta.shape, meta.stride, meta.offset)
                self.trace.inputs[place] = self.trace.own(old)
            reshaped[at] = (*after[:-1], after[-1] - before[-1])
        return reshaped

    def _given(self, leaf: Any, outputs: list[TracedTensor], changed: Container[int]) -> Given:
        """How a leaf of the result is made; adds to the outputs of the trace. `changed`: arguments that get other
        shapes, or storages."""
        if isinstance(leaf, torch.Size):
            return Given("shape", tuple([self._given(size, outputs, changed) for size in leaf]))
        if isinstance(leaf, torch.SymFloat) and isinstance(leaf.node, ScalarNode):
            return Given("number", self._output(leaf.node.owner.tensor, outputs))
        if is_data(leaf):
            with self.trace.recording():
                number = torch.scalar_tensor(leaf, dtype=torch.int64)
            return Given("number", self._output(number, outputs))
        if not isinstance(leaf, Tensor):
            return Given("constant", bool(leaf) if isinstance(leaf, torch.SymBool) else _number(leaf))
        own = self._place(leaf)
        if own is not None and (own in changed or not self.trace.is_input(leaf)):
            return Given("argument", own)
        base = leaf._base if leaf._is_view() else None
        traced = self.trace.own(leaf)
        is_new = own is None and leaf.requires_grad and not traced.has_history
        if not is_new or (base is not None and base.requires_grad):
            return Given("result", self._output(leaf, outputs))
        return Given("leaf", self._output(self._detached(leaf), outputs))

    def _detached(self, tensor: Tensor) -> Tensor:
        with torch.no_grad(), self.trace.recording():
            return tensor.detach()

    def _value_of(self, tensor: Tensor, outputs: list[TracedTensor]) -> int:
        """A result with the value, and the history, of a tensor, in memory of its own."""
        with torch.enable_grad(), self.trace.recording():
            return self._output(tensor.clone(), outputs)

    def _output(self, tensor: Tensor, outputs: list[TracedTensor]) -> int:
        outputs.append(self.trace.own(tensor))
        return len(outputs) - 1


def has_functions(nodes: Iterable[Node | None]) -> bool:
    """Whether there is a Function of the program's in a history."""
    functions = (type(node) for node in nodes_behind(nodes) if isinstance(node, BackwardCFunction))
    return any(not is_ours(vars(function)["_forward_cls"].forward.__code__) for function in functions)


def _placed_like(tensor: Tensor, traced: Tensor) -> Tensor:
    """The view of a traced tensor that lies where `tensor` does."""
    return torch.as_strided(traced, tensor.shape, tensor.stride(), tensor.storage_offset())


def _traced_layout(tensor: TracedTensor) -> Layout:
    """As `_places`, of a traced tensor."""
    return tuple(map(_number, (*tensor.shape, *tensor.stride(), tensor.meta.offset)))


def _number(value: Any) -> Any:
    """A symbolic number as what it is made of."""
    if isinstance(value, torch.SymFloat) and isinstance(value.node.expr, Ratio):
        return value.node.expr
    return as_expr(value) if isinstance(value, torch.SymInt) else value


@contextmanager
def _said_to_be_compiling() -> Iterator[None]:
    """`torch.compiler.is_compiling()` is true: models leave out what depends on data then."""
    before, torch.compiler._is_compiling_flag = torch.compiler._is_compiling_flag, True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


@contextmanager
def _autocast_without_cache() -> Iterator[None]:
    """What autocast has converted belongs to one trace."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


def _compiled_by(request: Request, sizes: int, handles: bool, module: fx.GraphModule, info: GraphInfo) -> Runner:
    """What the user's compiler makes of a graph. So many `sizes` are among a program's inputs, after the tensors: they
    have no gradients. `handles`: the program handles errors."""
    slots = placeholders(module.graph)
    left_out = min(sizes, sum(map(is_size, slots))) if info.kind == "backward" else 0
    tangents = [at for at, slot in enumerate(slots) if str(slot.target).startswith("tangent")]
    names: Mapping[int, str] = {at: f"tangents_{place}" for place, at in enumerate(tangents, 1)}
    if info.kind == "inference":
        tensors = [at for at, slot in enumerate(slots) if is_tensor(slot)]
        names = {at: f"arg{number}_1" for number, at in enumerate(tensors)}
    out = outgoing(
        module.graph,
        constants_of(module),
        names,
        reads_sizes=info.kind != "backward",
        keeps_writes=request.keeps_writes,
        left_out=left_out,
    )
    examples = [example(slots[at].meta["val"]) for at in out.takes]
    with progress.compiling(request.number, info.kind):
        made = request.compiler(info.kind)(out.module, examples)
    return _running(made, out, handles and info.kind != "backward")


def _running(made: Function, out: Outgoing, handles: bool) -> Runner:
    boxed = getattr(made, "_boxed_call", False)

    def run(inputs: list[Any]) -> Sequence[Any]:
        given = [inputs[at] for at in out.takes]
        targets = [inputs[at] for at in out.writes]
        inputs.clear()
        try:
            results = made(given) if boxed else made(*given)
        except _RAISED_BY_KERNELS as error:
            if handles:
                raise _RaisedByGraph from error
            raise
        results = results if isinstance(results, (list, tuple)) else (results,)
        for target, value in zip(targets, results):
            target.copy_(value)
        return [None if at is None else results[at] for at in out.gives]

    return run
