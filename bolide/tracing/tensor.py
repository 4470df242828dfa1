"""The traced tensor: a wrapper without data, whose operations are recorded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bolide.support.errors import Unsupported
from bolide.support.leaks import fleeting
from bolide.symbolic import is_data
from bolide.tracing.meta import DataDependent, TensorMeta, is_symbolic

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace


class AliasGroup:
    """All traced tensors that share one storage.

    `base` is the node of the storage's owner as it is now; each write makes a new one and raises `version`. `source`
    is the position of the graph input whose storage it
    is, or None; `frozen` says that the storage belongs to a real tensor that is not an input, which must not be
    written; `shared`, that another storage may be the same memory (another input, or what eager does not copy);
    `counted`, that autograd has seen a write; `inference`, that it was made in inference mode.
    """

    __slots__ = ("base", "counted", "frozen", "inference", "shared", "source", "version")

    def __init__(self, base: torch.fx.Node, source: int | None = None, frozen: bool = False) -> None:
        self.base = base
        self.version = 0
        self.source = source
        self.frozen = frozen
        self.shared = False
        self.counted = False
        self.inference = source is None and not frozen and torch.is_inference_mode_enabled()


#: one view operation: the overload, and its arguments after the tensor
ViewStep = tuple[Any, tuple[Any, ...], dict[str, Any]]


_ANY_SIZE = 1 << 40  # of a storage: spares C++ a sum over symbolic sizes

PHYSICAL: dict[Any, Any] = {
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
    """Whether a class of tensors, which is none of ours, has a `__torch_dispatch__`. Native code makes such tensors
    around traced ones."""
    dispatch = cls.__torch_dispatch__  # type: ignore[attr-defined]
    return dispatch is not torch._C._disabled_torch_dispatch_impl and cls is not TracedTensor and not is_stand_in(cls)


def is_mask(cls: type) -> bool:
    """Whether traced tensors are of this class in place of `TracedTensor` where the program has made them, or found
    them as, ones of a class of its own that has a `__torch_function__`."""
    return STANDS_FOR in vars(cls) and issubclass(cls, TracedTensor)


def masked_among(values: Iterable[Any]) -> list[TracedTensor]:
    """The tensors behind masks among values, or in lists, tuples and dicts of such."""
    found: list[TracedTensor] = []
    for value in values:
        cls = type(value)
        if cls in (list, tuple, dict):
            found += masked_among(value.values() if cls is dict else value)
        elif is_mask(cls):
            found.append(value)
    return found


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


def recorded(trace: Any, func: Any, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation on tensors of these classes answers; NotImplemented where a class of the program's or of
    torch's, which has a `__torch_dispatch__`, is to be asked first."""
    if types == _ONLY_TRACED:
        return trace.dispatch(func, args, kwargs)
    if any(map(computes_itself, types)):
        return NotImplemented
    if not any(map(is_stand_in, types)):
        return trace.dispatch(func, args, kwargs)
    if not all(map(is_mask, filter(is_stand_in, types))):
        return NotImplemented
    with unmasked(masked_among([*args, *kwargs.values()])):
        return trace.dispatch(func, args, kwargs)


@fleeting
class TracedTensor(torch.Tensor):
    """A tensor that holds no data: what is done with it is recorded in its trace. `chain` leads from the base of its
    storage to it."""

    _trace: Trace
    group: AliasGroup
    chain: tuple[ViewStep, ...]
    _node: torch.fx.Node
    _seen: int
    counts: bool = True  # whether autograd sees writes; not through `.data`
    cut: bool = False  # whether no derivative goes through it to what its memory belongs to
    face: type | None = None  # the class that the program sees, of an input of a subclass that changes no operation
    attributes: dict[str, Any] | None = None  # what the program has put on a tensor that it has made

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def make(
        trace: Trace,
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
        tensor: TracedTensor = (
            _symbolic_wrapper(trace, meta, requires_grad) if symbolic else _wrapper(meta, requires_grad)
        )
        tensor._trace = trace
        tensor.group = group = group if group is not None else AliasGroup(node)
        tensor.chain = chain
        tensor._node = node
        tensor._seen = group.version
        return tensor

    def __hash__(self) -> int:
        self._trace.hashed.add(id(self))
        return id(self)

    @property
    def node(self) -> torch.fx.Node:
        """The functional value of this tensor now, cut off where no derivative goes through it."""
        if self.cut and self.grad_fn is None:  # autograd keeps results detached, and gives them their history back
            return self._trace.cut(self.value)
        return self.value

    @property
    def value(self) -> torch.fx.Node:
        """As `node`, but never cut off; a view whose storage was written since is made anew from it."""
        group = self.group
        if self._seen != group.version:
            self._node = self._trace.replay(group.base, self.chain)
            self._seen = group.version
        return self._node

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

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Who asks is the program, through native code: `node` and `meta` say what it is. When it looks for the
        overload of an operator that fits, C++ writes down why others do not, for nobody to see."""
        if sys._getframe(1).f_code is torch._ops.OpOverloadPacket.__call__.__code__:
            return f"Tensor({self.node.name})"
        raise DataDependent("formatting a tensor", self._trace.where, "data_text")

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedTensor:
        if self.face is not None:
            self._refuse(f"copying a {self.face.__name__}", "copy it outside the compiled function")
        if self.grad_fn is not None:
            self._refuse("a deep copy of a tensor that is no leaf", "detach it first")
        copy = self.clone() if not self.requires_grad else self.detach().clone().requires_grad_(True)
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy.detach(), self.requires_grad)
        memo[id(self)] = copy
        return copy  # type: ignore[return-value, unused-ignore]

    def __copy__(self) -> torch.Tensor:
        if self.face is not None:
            self._refuse(f"copying a {self.face.__name__}", "copy it outside the compiled function")
        copy = self.data  # torch makes a new leaf in the same memory
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(copy, self.requires_grad)
        return copy.requires_grad_(self.requires_grad)

    # ---- what would go past the recording -------------------------------------------------------------------------

    @property
    def data(self) -> torch.Tensor:
        """The same storage without autograd history; writes through it go unnoticed by what autograd has saved."""
        meta = self.meta._replace(requires_grad=False)
        made = TracedTensor.make(self._trace, meta, self.value, self.group, self.chain)
        made.separate()
        made.counts = False
        carry_marks(self, made)
        return made

    @data.setter
    def data(self, value: Any) -> None:
        self._refuse("assigning to Tensor.data", "use copy_() under torch.no_grad()")

    def backward(self, *args: Any, **kwargs: Any) -> None:
        self._refuse("Tensor.backward", "call backward on the result of the compiled function")

    def is_inference(self) -> bool:
        return self.group.inference

    def storage_offset(self) -> Any:
        self._trace.rely_on_offset(self.group)
        return super().storage_offset()

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self.numel() * self.element_size()

    def is_set_to(self, other: torch.Tensor) -> bool:
        raise DataDependent("Tensor.is_set_to", self._trace.where, "data_pointer")

    def data_ptr(self) -> int:
        raise DataDependent("Tensor.data_ptr", self._trace.where, "data_pointer")

    def numpy(self, *, force: bool = False) -> Any:
        raise DataDependent("Tensor.numpy", self._trace.where, "data_pointer")

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

    def as_subclass(self, cls: type) -> Any:  # type: ignore[override]
        if cls is not torch.Tensor:
            self._refuse(f"making a tensor a {cls.__name__}", "do this outside the compiled function")
        return self

    def untyped_storage(self) -> Any:
        raise DataDependent("Tensor.untyped_storage", self._trace.where, "data_pointer")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise DataDependent("Tensor.__array__", self._trace.where, "data_pointer")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise DataDependent("pickling a tensor", self._trace.where, "data_pointer")

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

    def __format__(self, specification: str) -> str:
        raise DataDependent("formatting a tensor", self._trace.where, "data_text")

    def _refuse(self, operation: str, remedy: str) -> None:
        raise Unsupported(
            f"{operation} inside a compiled function", self._trace.where, remedy, "tensor_method", operation=operation
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        trace = _trace_of(args) or _trace_of(tuple((kwargs or {}).values()))
        return recorded(trace, func, types, args, kwargs or {})


_ONLY_TRACED = (TracedTensor,)


def _wrapper(meta: TensorMeta, requires_grad: bool, storage_size: int | None = None) -> Any:
    return torch.Tensor._make_wrapper_subclass(
        TracedTensor,
        meta[0],
        meta[1],
        meta[2],
        None,
        meta[3],
        torch.strided,
        meta[4],
        requires_grad=requires_grad,
        storage_size=storage_size,
    )


def _symbolic_wrapper(trace: Trace, meta: TensorMeta, requires_grad: bool) -> Any:
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


def _trace_of(args: Any) -> Any:
    for arg in args:
        if isinstance(arg, TracedTensor):
            return arg._trace
        if isinstance(arg, (list, tuple)):
            found = _trace_of(arg)
            if found is not None:
                return found
    return None
