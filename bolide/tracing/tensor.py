"""The traced tensor: a wrapper without data, whose operations are recorded; its storage and its history."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TypeVar

import torch
import torch.fx
from torch._ops import OpOverload
from torch.autograd.graph import Node as GradNode

from bolide.support.errors import Unsupported, UserFrame
from bolide.support.leaks import fleeting
from bolide.symbolic import ShapeEnv, is_data
from bolide.tracing.meta import DataDependent, TensorMeta, is_symbolic
from bolide.tracing.modes import asks_program

T = TypeVar("T")

#: one view operation: the overload, and its arguments after the tensor, as they stand in the graph
ViewStep = tuple[OpOverload, tuple[Any, ...], dict[str, Any]]


class AliasGroup:
    """All traced tensors that share one storage.

    - `base`: the node of the storage's owner as it is now; each write makes a new one and raises `version`
    - `source`: the position of the graph's input whose storage it is, or None
    - `frozen`: it belongs to a real tensor that is no input, which must not be written
    - `shared`: another storage may be the same memory (another input, or what eager does not copy)
    - `counted`: autograd has seen a write; `plainly`: one outside inference mode
    - `inference`: it was made in inference mode
    - `members`: its tensors, as far as they are alive; `stale`: there are some from before one was given another shape
      in place, and autograd would make them anew, from that shape, if they were written to
    """

    __slots__ = ("base", "counted", "frozen", "inference", "members", "plainly", "shared", "source", "stale", "version")

    def __init__(self, base: torch.fx.Node, source: int | None = None, frozen: bool = False) -> None:
        self.base = base
        self.version = 0
        self.source = source
        self.frozen = frozen
        self.shared = False
        self.counted = self.plainly = self.stale = False
        self.members: list[weakref.ref[TracedTensor]] = []
        self.inference = source is None and not frozen and torch.is_inference_mode_enabled()


Data = tuple[torch.Tensor, Callable[[], None]]  # a copy, and what to call if the program depends on it


class Listener:
    """What a recorder asks of whoever records a program, and tells it. These answers are nobody's: no data are known,
    what is marked as shared counts as shared."""

    def data_of(self, place: int) -> Data | None:
        """The data of an input, None if they are unknown."""
        return None

    def is_shared(self, group: AliasGroup) -> bool:
        """Whether the program may see what is marked as shared."""
        return True

    def copied(self, of: AliasGroup, copy: AliasGroup) -> None:
        """These are the storages of a tensor and of its copy, which eager may not make."""

    def offset_read(self, place: int) -> None:
        """The program asks where an input lies in its storage."""

    def current_device_read(self) -> None:
        """The program names a GPU without a number."""

    def checked(self, condition: TracedTensor) -> None:
        """The graph checks a condition."""


@dataclass
class Derivation:
    """What is known of the derivatives of a program that is recorded.

    - `running`: the backward is being recorded, not the program
    - `past`: what the program has made when code of its own derives it
    - `formulas`: the names of the derivatives, written in Python, of operators that are called
    - `opaque`: derivatives that cannot be recorded, and why (see `called.derivatives`)
    - `for_real`: those that cannot be called in the backward either
    - `own`: an `autograd.Function` of the program's is called; `functions`: how they are called again
    - `lost`: a backward of the program's own (a hook, a Function that is not among these) is no derivative
    - `hooked`: nodes of autograd's graph that hooks of the program's are on
    - `spent`: nodes whose saved values the program has released
    - `passes`: whether the program accumulates gradients itself
    """

    running: bool = False
    past: frozenset[torch.fx.Node] = frozenset()
    formulas: set[str] = field(default_factory=set)
    opaque: dict[object, str] = field(default_factory=dict)
    for_real: dict[object, str] = field(default_factory=dict)
    own: bool = False
    functions: list[Any] = field(default_factory=list)
    lost: bool = False
    hooked: set[object] = field(default_factory=set)
    spent: set[object] = field(default_factory=set)
    passes: bool = False

    @property
    def is_own(self) -> bool:
        """Whether code of the program's own derives."""
        return self.own or self.lost


class Recording(Protocol):
    """What a traced tensor asks of the recorder that it belongs to (see `recording.recorder`)."""

    shapes: ShapeEnv
    where: UserFrame | None
    derivation: Derivation
    differentiates: bool
    captures_numbers: bool | None
    hashed: set[int]
    wrappers: dict[int, tuple[TensorMeta, TracedTensor]]

    @property
    def listener(self) -> Listener: ...

    @property
    def has_symbols(self) -> bool: ...

    def call(self, func: OpOverload, *args: Any, **kwargs: Any) -> Any: ...

    def unwrap(self, arg: Any) -> Any: ...

    def wrap(self, node: Any) -> Any: ...

    def cut(self, node: torch.fx.Node) -> torch.fx.Node: ...

    def replay(self, base: torch.fx.Node, chain: tuple[ViewStep, ...]) -> torch.fx.Node: ...

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None: ...

    def read(self, tensor: torch.Tensor) -> torch.Tensor | None: ...

    def is_symbol(self, tensor: torch.Tensor, captures: bool | None) -> bool: ...

    def scalar(self, tensor: TracedTensor) -> torch.SymFloat: ...

    def rely_on_offset(self, group: AliasGroup) -> None: ...

    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


_ANY_SIZE = 1 << 40  # of a storage: spares C++ a sum over symbolic sizes

PHYSICAL: dict[OpOverload, OpOverload] = {
    torch.ops.aten._conj.default: torch.ops.aten.conj_physical.default,
    torch.ops.aten._neg_view.default: torch.ops.aten.neg.default,
}
"""What computes the value of views that eager only marks."""


def carry_marks(tensor: torch.Tensor, view: torch.Tensor) -> None:
    """A view of a conjugated or negated view is one, too."""
    if tensor.is_conj():
        torch._C._set_conj(view, True)
    if tensor.is_neg():
        torch._C._set_neg(view, True)


STANDS_FOR = "_bolide_stands_for"  # in the namespace of a class by which tensors of a subclass are known in a program


def is_stand_in(cls: type) -> bool:
    return STANDS_FOR in vars(cls)


_ONLY_TRACED: tuple[type, ...]


def computes_itself(cls: type) -> bool:
    """Whether a class of tensors, none of ours, has a `__torch_dispatch__`: native code wraps traced ones in it."""
    dispatch = cls.__torch_dispatch__  # type: ignore[attr-defined]
    return dispatch is not torch._C._disabled_torch_dispatch_impl and cls is not TracedTensor and not is_stand_in(cls)


def is_mask(cls: type) -> bool:
    """Whether traced tensors are of this class in place of `TracedTensor` where the program has made them, or found
    them as, ones of a class of its own that has a `__torch_function__`."""
    return STANDS_FOR in vars(cls) and issubclass(cls, TracedTensor)


def masked_among(values: Iterable[Any]) -> list[TracedTensor]:
    """The tensors behind masks among values, or in lists, tuples and dicts of such."""
    masks: list[TracedTensor] = []
    for value in values:
        cls = type(value)
        if cls in (list, tuple, dict):
            masks += masked_among(value.values() if cls is dict else value)
        elif is_mask(cls):
            masks.append(value)
    return masks


@contextlib.contextmanager
def unmasked(tensors: Sequence[TracedTensor]) -> Iterator[None]:
    """While these tensors are plain traced ones."""
    masks = [type(tensor) for tensor in tensors]
    for tensor in tensors:
        tensor.__class__ = TracedTensor
    try:
        yield
    finally:
        for tensor, mask in zip(tensors, masks):
            tensor.__class__ = mask


def recorded(
    trace: Recording, func: OpOverload, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What an operation on tensors of these classes answers; NotImplemented where a class of the program's or of
    torch's, which has a `__torch_dispatch__`, is to be asked first."""
    if types == _ONLY_TRACED:
        return _privately(trace.dispatch, func, args, kwargs)
    if any(map(computes_itself, types)):
        return NotImplemented
    if not any(map(is_stand_in, types)):
        return trace.dispatch(func, args, kwargs)
    if not all(map(is_mask, filter(is_stand_in, types))):
        return NotImplemented
    with unmasked(masked_among([*args, *kwargs.values()])):
        return _privately(trace.dispatch, func, args, kwargs)


def _privately(record: Callable[..., T], *given: object) -> T:
    """What is recorded, unseen by the program's function modes: torch comes here under them from functions that ask
    nobody."""
    if not asks_program():
        return record(*given)
    with torch._C.DisableTorchFunction():
        return record(*given)


def _asking(operation: str, kind: str) -> Any:
    """A method that would look past the recording."""

    def ask(self: TracedTensor, *args: object, **kwargs: object) -> NoReturn:
        raise DataDependent(operation, self._trace.where, kind)

    return ask


@fleeting
class _Memory:
    """What a tensor without data has for a storage."""

    def __init__(self, tensor: TracedTensor) -> None:
        self.tensor = tensor

    def size(self) -> int:
        whole: TensorMeta = self.tensor.group.base.meta["val"]
        count: int = whole.numel
        return count * whole.dtype.itemsize

    def __getattr__(self, name: str) -> NoReturn:
        raise DataDependent(f"untyped_storage().{name}", self.tensor._trace.where, "data_pointer")


@fleeting
class TracedTensor(torch.Tensor):
    """A tensor without data, which records what is done with it. `chain` leads from its storage's base to it; with the
    views `passed` before it, which `as_strided` looks past, it is what autograd knows."""

    _trace: Recording
    group: AliasGroup
    chain: tuple[ViewStep, ...]
    passed: tuple[ViewStep, ...] = ()
    _node: torch.fx.Node
    _seen: int
    counts: bool = True  # whether autograd sees writes; not through `.data`
    cut: bool = False  # whether no derivative goes through it to what its memory belongs to
    face: type | None = None  # the class that the program sees, of an input of a subclass that changes no operation
    attributes: dict[str, Any] | None = None  # what the program has put on a tensor that it has made

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def make(
        trace: Recording,
        meta: TensorMeta,
        node: torch.fx.Node,
        group: AliasGroup | None = None,
        chain: tuple[ViewStep, ...] = (),
        requires_grad: bool = False,
    ) -> TracedTensor:
        """A traced tensor with this meta whose value is `node` now; without `group` it owns a new storage."""
        if group is not None:  # a view is as its base; inputs are as if made outside
            inference = group.inference and group.source is None
            if inference is not torch.is_inference_mode_enabled():
                with torch.inference_mode(inference):
                    return TracedTensor.make(trace, meta, node, group, chain, requires_grad)
        symbolic = trace.has_symbols and is_symbolic(meta)
        tensor = _symbolic_wrapper(trace, meta, requires_grad) if symbolic else _wrapper(meta, requires_grad)
        tensor._trace = trace
        tensor.group = group = group if group is not None else AliasGroup(node)
        tensor.chain = chain
        tensor._node = node
        tensor._seen = group.version
        group.members.append(weakref.ref(tensor))
        return tensor

    def __hash__(self) -> int:
        self._trace.hashed.add(id(self))
        return id(self)

    @property
    def node(self) -> torch.fx.Node:
        """The functional value of this tensor now, cut off where no derivative goes through it."""
        if self.cut and not self.has_history:  # autograd keeps results detached, and gives them their history back
            return self._trace.cut(self.value)
        return self.value

    @property
    def has_history(self) -> bool:
        """Whether there is a ``grad_fn``. Autograd refuses to say of a view made without gradients, of which the base
        was written since: it has none."""
        creation = torch._C._autograd._get_creation_meta(self) if self._is_view() else None
        return creation != torch._C._autograd.CreationMeta.NO_GRAD_MODE and self.grad_fn is not None

    @property
    def value(self) -> torch.fx.Node:
        """As `node`, but never cut off; a view whose storage was written since is made anew from it."""
        group = self.group
        if self._seen != group.version:
            self._node = self._trace.replay(group.base, self.chain)
            self._seen = group.version
        return self._node

    def become(self, other: TracedTensor) -> None:
        """Be the same as another tensor from now on: its sizes, its storage and its value."""
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.group, self.chain, self.passed = other.group, other.chain, other.passed
        self._node, self._seen = other._node, other._seen

    def separate(self) -> None:
        """No derivative goes through it, unless it gets a history."""
        self.cut = self._trace.differentiates and (self.dtype.is_floating_point or self.dtype.is_complex)

    @property
    def meta(self) -> TensorMeta:
        """Sizes, strides and so on, as eager would have them."""
        offset = super().storage_offset()
        return TensorMeta(tuple(self.shape), self.stride(), offset, self.dtype, self.device, self.requires_grad)

    @property
    def known(self) -> TensorMeta:
        """As `meta`, without asking C++ where that is not needed; says nothing of `requires_grad`."""
        return self.meta if self.group.version else self._node.meta["val"]  # type: ignore[no-any-return]

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        """Who asks is the program, through native code: `node` and `meta` say what it is. When it looks for the
        overload of an operator that fits, C++ writes down why others do not, for nobody to see."""
        if sys._getframe(1).f_code is torch._ops.OpOverloadPacket.__call__.__code__:
            return f"Tensor({self.node.name})"
        raise DataDependent("formatting a tensor", self._trace.where, "data_text")

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedTensor:
        self._refuse_face()
        if self.grad_fn is not None:
            self._refuse("a deep copy of a tensor that is no leaf", "detach it first")
        copy = self.clone() if not self.requires_grad else self.detach().clone().requires_grad_(True)
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy.detach(), self.requires_grad)
        memo[id(self)] = copy
        return copy  # type: ignore[return-value, unused-ignore]

    def _refuse_face(self) -> None:
        if self.face is not None:
            self._refuse(f"copying a {self.face.__name__}", "copy it outside the compiled function")

    def __copy__(self) -> torch.Tensor:
        self._refuse_face()
        copy = self.data  # torch makes a new leaf in the same memory
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(copy, self.requires_grad)
        return copy.requires_grad_(self.requires_grad)

    # ---- what would go past the recording -------------------------------------------------------------------------

    @property
    def data(self) -> torch.Tensor:
        """The same storage without autograd history; writes through it go unnoticed by what autograd has saved."""
        meta = self.meta._replace(requires_grad=False)
        detached = TracedTensor.make(self._trace, meta, self.value, self.group, self.chain)
        detached.separate()
        detached.counts = False
        carry_marks(self, detached)
        return detached

    @data.setter
    def data(self, value: object) -> None:
        self._refuse("assigning to Tensor.data", "use copy_() under torch.no_grad()")

    def backward(self, *args: object, **kwargs: object) -> None:
        self._refuse("Tensor.backward", "call backward on the result of the compiled function")

    def is_inference(self) -> bool:
        return self.group.inference

    def storage_offset(self) -> Any:
        self._trace.rely_on_offset(self.group)
        return super().storage_offset()

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self.numel() * self.element_size()

    is_set_to = _asking("Tensor.is_set_to", "data_pointer")
    data_ptr = _asking("Tensor.data_ptr", "data_pointer")
    numpy = _asking("Tensor.numpy", "data_pointer")

    def untyped_storage(self) -> _Memory:  # type: ignore[override]
        """What can be asked for its size alone, as classes of torch's do that wrap tensors."""
        return _Memory(self)

    __array__ = _asking("Tensor.__array__", "data_pointer")
    __reduce_ex__ = _asking("pickling a tensor", "data_pointer")
    __format__ = _asking("formatting a tensor", "data_text")

    def item(self) -> Any:
        trace = self._trace
        single = self.dtype.is_floating_point and self.numel() == 1
        if single and trace.captures_numbers is not False and trace.known(self) is None:
            return trace.scalar(self)
        return super().item()

    def tolist(self) -> Any:
        if self._trace.is_symbol(self, self._trace.captures_numbers) and not any(map(is_data, self.shape)):
            return self.item() if not self.dim() else [row.tolist() for row in self.unbind()]
        known = self._trace.read(self)
        if known is None:
            raise DataDependent("Tensor.tolist", self._trace.where)
        with torch._C._DisableTorchDispatch():
            return known.tolist()

    def as_subclass(self, cls: type) -> TracedTensor:  # type: ignore[override]
        if cls is not torch.Tensor:
            self._refuse(f"making a tensor a {cls.__name__}", "do this outside the compiled function")
        return self

    def __bool__(self) -> bool:
        count = self.numel()
        if count != 1:  # C++ would ask for the count as a number
            raise RuntimeError(
                f"Boolean value of Tensor with {'more than one value' if count else 'no values'} is ambiguous"
            )
        try:
            if self._trace.captures_numbers is None and self._trace.read(self) is None:
                raise DataDependent("bool(tensor)", self._trace.where, "data_branch")
            return super().__bool__()
        except DataDependent:
            raise DataDependent("bool(tensor)", self._trace.where, "data_branch") from None

    def _refuse(self, operation: str, remedy: str) -> NoReturn:
        reason = f"{operation} inside a compiled function"
        raise Unsupported(reason, self._trace.where, remedy, "tensor_method", operation)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        trace = _trace_of(args) or _trace_of((kwargs or {}).values())
        assert trace is not None
        return recorded(trace, func, types, args, kwargs or {})


_ONLY_TRACED = (TracedTensor,)


def _wrapper(meta: TensorMeta, requires_grad: bool, storage_size: int | None = None) -> TracedTensor:
    wrapper: TracedTensor = torch.Tensor._make_wrapper_subclass(
        TracedTensor,
        *(meta[0], meta[1], meta[2], None, meta[3], torch.strided, meta[4]),
        requires_grad=requires_grad,
        storage_size=storage_size,
    )
    return wrapper


def _symbolic_wrapper(trace: Recording, meta: TensorMeta, requires_grad: bool) -> TracedTensor:
    """A wrapper of symbolic sizes: taking them from Python to C++ is slow, so the first one made for this meta is
    copied there (what belongs to inference mode cannot be)."""
    if torch.is_inference_mode_enabled():
        return _wrapper(meta, requires_grad, _ANY_SIZE)
    known = trace.wrappers.get(id(meta))
    if known is None:
        known = trace.wrappers[id(meta)] = meta, _wrapper(meta, False, _ANY_SIZE)
    tensor = _wrapper(TensorMeta((), (), 0, meta[3], meta[4]), requires_grad)
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        torch.Tensor.data.__set__(tensor, known[1])  # type: ignore[attr-defined]
    return tensor


def _trace_of(args: Iterable[object]) -> Recording | None:
    for arg in args:
        if isinstance(arg, TracedTensor):
            return arg._trace
        if isinstance(arg, (list, tuple)):
            trace = _trace_of(arg)
            if trace is not None:
                return trace
    return None


# ---- histories: nodes of autograd's graph, and the leaves that they go back to ---------------------------------------


def takes_gradient(leaf: torch.Tensor) -> bool:
    """Whether gradients are taken with respect to an input's leaf. One without a gradient that the program writes to
    may have a history by now: it requires grad as a result does."""
    return leaf.requires_grad and leaf.grad_fn is None


def nodes_behind(nodes: Iterable[GradNode | None], known: Iterable[GradNode | None] = ()) -> Iterator[GradNode]:
    """These nodes (None is none) and all that they go back to, each once; nothing behind what is `known`."""
    seen: set[GradNode | None] = {None, *known}
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def leaves_behind(nodes: Iterable[GradNode | None]) -> list[torch.Tensor]:
    """The leaves that require grad and that the nodes go back to."""
    variables = (getattr(node, "variable", None) for node in nodes_behind(nodes))
    return [variable for variable in variables if variable is not None]


def inner_leaves(nodes: Iterable[GradNode | None], leaves: Sequence[torch.Tensor]) -> list[Any]:
    """Those behind the nodes that the program has made: nobody outside gets their gradients."""
    outer = {id(leaf) for leaf in leaves}
    return [leaf for leaf in leaves_behind(nodes) if id(leaf) not in outer]


def reaches(node: GradNode | None, leaves: Sequence[torch.Tensor]) -> bool:
    """Whether a gradient of one of an inputs' `leaves` comes through the node."""
    wanted = {id(leaf) for leaf in leaves if takes_gradient(leaf)}
    return any(id(leaf) in wanted for leaf in leaves_behind([node]))
