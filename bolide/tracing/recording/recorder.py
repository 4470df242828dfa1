"""Recording: a functional graph of ATen operations under construction, its inputs, sizes and storages."""

from __future__ import annotations

import abc
import bisect
import contextlib
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from bolide.support.errors import Unsupported, UserFrame
from bolide.symbolic import (
    Expr,
    ShapeEnv,
    Size,
    contiguous_strides,
    is_one,
    is_zero,
    same_size,
    same_sizes,
    symbolic_strides,
)
from bolide.tracing import rng
from bolide.tracing.graph import Graph
from bolide.tracing.meta import TensorMeta, meta_of
from bolide.tracing.recording import folding
from bolide.tracing.recording.inverses import INVERSES, invert, memory_order
from bolide.tracing.rules import infer
from bolide.tracing.rules.common import dtype_name, is_dense, like_strides, overlaps
from bolide.tracing.tensor import PHYSICAL, AliasGroup, Derivation, Listener, TracedTensor, ViewStep, recorded
from bolide.tracing.traits import traits_of

aten = torch.ops.aten
Node = torch.fx.Node
_torch: Any = torch._C
_SIZE_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "//": operator.floordiv,
    "%": operator.mod,
    "min": torch.sym_min,
    "max": torch.sym_max,
}
_PLAIN = {int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
_LISTS = {list, tuple, torch.fx.immutable_collections.immutable_list}


class LateWrite(Unsupported):
    """Code that derives the program writes to what is older: that is fixed by then, and a backward runs later, not at
    all, or several times."""

    def __init__(self, where: UserFrame | None) -> None:
        remedy = "write to a clone, or return it from the forward instead"
        super().__init__("what is older than the backward pass is written in it", where, remedy, kind="operator")


class Recorder(abc.ABC):
    """One functional graph under construction, and the real values it refers to.

    What stands for its inputs and sizes:

    - `inputs`, `leaves`: the inputs; gradients are taken with respect to `leaves` (see `input`)
    - `renewed`: inputs that have been given another storage; `graded`: tensors that have been given a gradient
    - `constants`: real tensors by the names of their nodes; `sizes`: the symbols
    - `generators`: the stand-ins of the user's random generators, by the address in C++, and what gives their tokens

    What it is told of the program:

    - `where`: the user's line that is being executed; nodes remember it
    - `differentiates`: whether an input requires grad; more is in `derivation`
    - `captures_numbers`: whether integers read from tensors are symbols; None: those that cannot be read; False: they
      are refused. `captures_sizes`: the same of sizes of results
    - `assume`: guards a condition on numbers from outside; `listener`: what else the program depends on
    - `compliant_only`: operators must say that they keep the compiler's rules
    - `draws_as_eager`: random numbers are drawn one operation after the other, as eager does
    - `decompositions`: functions that are recorded in place of these operations
    - `reshapes_inputs`: inputs may change their shapes in place; it is for the caller to do so when the graph has run

    What it has found out:

    - `bound`: the names of the symbols whose values its nodes tell (`data.binds`)
    - `answered`: what data was asked for before; `hashed`: by id, values that were asked for their hash of identity
    - `reads_floats`: floats are read from tensors
    - `checked`: numbers that are data, and the graph checks to be in -room..room
    - `refutable`: running the graph may raise Refuted
    - `functional_only`: what the program does that only the functional graph shows
    """

    def __init__(self) -> None:
        self.graph: torch.fx.Graph = Graph()
        self.default_dtype = torch.get_default_dtype()  # the graph runs under it
        self.inputs: list[TracedTensor] = []
        self.leaves: list[TracedTensor] = []
        self.renewed: list[TracedTensor] = []
        self.frozen: list[TracedTensor] = []  # leaves that the program has frozen after it had used them
        self.constants: dict[str, torch.Tensor] = {}
        self.sizes: list[torch.SymInt] = []
        self.generators: dict[int, tuple[torch.Generator, Callable[[], TracedTensor]]] = {}
        self.where: UserFrame | None = None
        self.shapes = ShapeEnv(lambda: self.where)
        self._listener = Listener()
        self.assume: Callable[[str, UserFrame | None], None] | None = None
        self.captures_numbers: bool | None = False
        self.captures_sizes: bool | None = False
        self.compliant_only = False
        self.draws_as_eager = False
        self.reshapes_inputs = False
        self.decompositions: Mapping[OpOverload, Callable[..., Any]] = {}
        self.differentiates = False
        self.derivation = Derivation()
        self.bound: set[str] = set()
        self.answered: dict[tuple[object, ...], Any] = {}
        self.hashed: set[int] = set()
        self.reads_floats = False
        self.refutable = False
        self.functional_only: str | None = None
        self.wrappers: dict[int, tuple[TensorMeta, TracedTensor]] = {}  # one for each meta of symbolic sizes, by id
        self.seeds: dict[Node, TracedTensor] = {}  # as tensors, for the parts that draw
        self.zeros: set[Node] = set()  # tangents of what has none (see `factories.of_zeros`)
        self._draws: dict[torch.device, tuple[Node, int]] = {}  # seeds, and how many draws they had
        self._mode = RecordingMode(self)
        self.graded: list[weakref.ref[TracedTensor]] = []
        self.nested: list[object] = []  # calls of functions that are to be compiled once, one in the other
        # The line, and that call, of each operation, with the number autograd goes on with.
        self._lines: list[tuple[int, UserFrame | None, object]] = []
        self._first: int = _torch._autograd._get_sequence_nr()
        self._cuts: dict[Node, Node] = {}  # values, and the same without a derivative
        self._slots: dict[int, Node] = {}  # of the inputs, and of their leaves, by id
        self._lifted: dict[int, TracedTensor] = {}  # by id of the real tensor
        self._size_nodes: dict[Expr, Node] = {}
        self.checked: dict[str, int] = {}
        self._last_input: Node = self.graph._root
        self._last_slot: Node = self.graph._root

    @property
    def listener(self) -> Listener:
        """What answers the recorder, and is told of what the program depends on."""
        return self._listener

    def tell(self, listener: Listener) -> None:
        """From now on, tell this one."""
        self._listener = listener

    @abc.abstractmethod
    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record what torch's dispatcher hands us: an operation, below autograd and autocast."""

    @abc.abstractmethod
    def scalar(self, tensor: TracedTensor) -> torch.SymFloat:
        """A float of the graph, which is in a tensor of one element."""

    @abc.abstractmethod
    def fitting(self, expr: Expr) -> Expr:
        """What the graph computes for an integer of Python's, which may have more than 64 bits."""

    # ---- what comes from outside ----------------------------------------------------------------------------------

    def input(
        self,
        real: torch.Tensor,
        name: str,
        sizes: Mapping[int, Size] | None = None,
        strides: Mapping[int, Size] | None = None,
    ) -> TracedTensor:
        """A placeholder for `real`; it requires grad when `real` does. Keeps no reference to `real`.

        `sizes` gives dimensions that are symbolic (from `size`), `strides` such strides. The tensor that gradients are
        taken with respect to is the last of `leaves`; the result is another one when `real` is not a leaf: it may be
        written in place then.
        """
        meta = meta_of(real)
        if sizes or strides:
            shape = tuple((sizes or {}).get(dim, extent) for dim, extent in enumerate(meta.shape))
            meta = meta._replace(shape=shape, stride=symbolic_strides(shape, meta.stride, meta.shape, strides))
        node = self.slot(name, meta, is_input=True)
        node.meta["place"] = len(self.inputs)
        group = AliasGroup(node, source=len(self.inputs))
        group.inference = real.is_inference()
        leaf = TracedTensor.make(self, meta, node, group, requires_grad=meta.requires_grad)
        self.differentiates |= meta.requires_grad
        if isinstance(real, torch.nn.Parameter):
            leaf._is_param = True
        tensor = leaf
        if not real.is_leaf:  # its history is there also where the program does not record any
            with torch.enable_grad():
                tensor = NonLeaf.apply(leaf)  # type: ignore[no-untyped-call]
            self._first += 1
        self.inputs.append(tensor)
        self.leaves.append(leaf)
        self._slots[id(leaf)] = self._slots[id(tensor)] = node
        return tensor

    def placeholder_of(self, tensor: TracedTensor) -> Node | None:
        """The node of an input, or of the leaf that it is made of; None for other tensors."""
        return self._slots.get(id(tensor))

    @property
    def may_have_saved(self) -> bool:
        """Whether autograd has recorded something of the program, and may have saved tensors: it counts these."""
        return bool(self._first != _torch._autograd._get_sequence_nr())

    def release(self) -> None:
        """Let go of the inputs, and of nodes of the history, when nothing more is recorded. An input with a history
        refers to its leaf in C++, and that to this trace; so do nodes with hooks, and gradients may refer to each
        other: cycles that no collector finds."""
        for given in self.graded:
            if (tensor := given()) is not None:
                tensor.grad = None
        for tensors in (self.inputs, self.leaves, self.renewed):
            tensors.clear()
        for known in (self.wrappers, self._lifted, self._slots, self.seeds, self.generators):
            known.clear()
        for nodes in (self.derivation.spent, self.derivation.hooked):
            nodes.clear()

    def placeholder(self, meta: TensorMeta, name: str) -> TracedTensor:
        """A placeholder that is not an input of the program: a tangent of the joint graph."""
        return TracedTensor.make(self, meta, self.slot(name, meta))

    def slot(self, name: str, value: TensorMeta | torch.SymInt, is_input: bool = False) -> Node:
        """A placeholder. They come before all other nodes: inputs, then sizes and tangents in the order made."""
        behind = self._last_input if is_input else self._last_slot
        node = self.graph.placeholder(name)
        node.target = node.name  # unique, as the argument of generated code must be
        behind.append(node)
        if is_input:
            self._last_input = node
        if behind is self._last_slot:
            self._last_slot = node
        node.meta["val"], node.meta["where"] = value, self.where
        return node

    def size(self, hint: int, name: str, lo: int | None = 2, hi: int | None = None) -> Size:
        """A symbolic size with this value now, in lo..hi, as a placeholder; a value outside of these bounds stays a
        number (nothing is recorded)."""
        value: Size = self.shapes.size(hint, None, lo, hi)
        if isinstance(value, torch.SymInt):
            self.sizes.append(value)
            self.bind_size(value, self.slot(name, value))
            self.allow_symbols()
        return value

    @property
    def has_symbols(self) -> bool:
        """Whether there are symbolic sizes or numbers."""
        return bool(self.shapes.hints)

    def bind_size(self, symbol: torch.SymInt, node: Node) -> None:
        """The node that tells the value of a symbol."""
        self._size_nodes[symbol.node.expr] = node

    def has_size(self, expr: Expr) -> bool:
        """Whether the graph computes a size, or is given it."""
        return expr in self._size_nodes

    def allow_symbols(self) -> None:
        """To be called before the first symbol is made."""
        self._mode.allow_symbols()

    def lift(self, real: torch.Tensor, private: bool = False) -> TracedTensor:
        """A real tensor that is not an input, as a constant of the graph. With `private` nobody else sees its storage,
        so it may be written.

        Raises Unsupported for a tensor that requires grad: its gradient would be lost.
        """
        known = self._lifted.get(id(real))
        if known is not None:
            return known
        if real.requires_grad and torch.is_grad_enabled():
            reason = "a tensor that requires grad is reached without being an input of the graph"
            raise Unsupported(reason, self.where, kind="input")
        meta = meta_of(real)._replace(requires_grad=False)
        if private and real.dim() == 0 and real.device.type == "cpu" and not real.is_complex():
            node = self.call(aten.full.default, [], real.item(), dtype=real.dtype, device=real.device)
        else:
            name = f"constant{len(self.constants)}"
            self.constants[name] = real
            node = self.graph.create_node("get_attr", name, name=name)
            node.meta["val"], node.meta["where"], node.meta["private"] = meta, self.where, private
        tensor = TracedTensor.make(self, meta, node, AliasGroup(node, frozen=not private))
        if not private:
            self._lifted[id(real)] = tensor
        return tensor

    def own(self, tensor: torch.Tensor) -> TracedTensor:
        """The tensor itself if it is traced; a real one is lifted."""
        return tensor if tensor.__class__ is TracedTensor else self.lift(tensor)  # type: ignore[return-value]

    def input_of(self, group: AliasGroup) -> int | None:
        """The input of the whole program that a storage belongs to, or None."""
        return group.source

    def first_value(self, group: AliasGroup) -> Node:
        """What is in a storage before the program writes to it."""
        given = None if group.source is None else self.placeholder_of(self.inputs[group.source])
        return given or group.base

    def rely_on_offset(self, group: AliasGroup) -> None:
        """The program is about to see where tensors lie in this storage."""
        place = self.input_of(group)
        if place is not None:
            self.listener.offset_read(place)

    def is_input(self, tensor: object) -> bool:
        return any(tensor is given for given in (*self.inputs, *self.renewed))

    def renew(self, tensor: TracedTensor, value: TracedTensor) -> None:
        """`tensor.data = value`: the tensor has the storage of `value`, and its own history, from now on. Another one
        stands for the storage of an input then."""
        place = next((place for place, given in enumerate(self.inputs) if given is tensor), None)
        if place is not None:
            others = tensor.meta, tensor.node, tensor.group, tensor.chain, tensor.requires_grad
            self.inputs[place] = TracedTensor.make(self, *others)
            self._slots[id(self.inputs[place])] = self._slots[id(tensor)]
            if self.leaves[place] is not tensor:
                del self._slots[id(tensor)]
            self.renewed.append(tensor)
        tensor.group, tensor.chain, tensor.passed = value.group, value.chain, value.passed
        tensor._node, tensor._seen = value.node, value.group.version

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The data of a tensor computed from constants of the program alone, else None. Must not be changed."""
        return folding.known_tensor(self.constants, tensor)

    def read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The data of a tensor that the program needs to go on: as `known`, or computed from inputs whose data
        the listener gives. From then on these are constants of the program."""
        return folding.read_tensor(self.constants, self.listener, tensor)

    def is_symbol(self, tensor: torch.Tensor, captures: bool | None) -> bool:
        """Whether questions about a tensor's data are answered by symbols. `captures`: numbers or sizes."""
        if captures is None:
            return self.read(tensor) is None
        return captures and self.known(tensor) is None

    def adopt(self, value: Any) -> Any:
        """A tensor as this trace sees it: there is no other trace around it (see `branches.Part`)."""
        return value

    def draws(self) -> bool:
        """Whether the graph draws from torch's random generator."""
        return any(map(rng.draws, self.graph.nodes))

    def mutated_inputs(self) -> list[int]:
        """Positions of the inputs whose storage was written."""
        return [position for position, tensor in enumerate(self.inputs) if tensor.group.version]

    def recording(self) -> AbstractContextManager[object]:
        """While it is active, factory functions and operations on real tensors are recorded as well."""
        return self._mode

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """As `recording`, while another trace is being recorded: nothing goes there meanwhile, nor does what handlers
        ask of real tensors."""
        others = [_torch._pop_torch_dispatch_stack(None) for _ in range(_torch._len_torch_dispatch_stack())]
        try:
            with self.recording():
                yield
        finally:
            for mode in reversed(others):
                _torch._push_on_torch_dispatch_stack(mode)

    # ---- making nodes ---------------------------------------------------------------------------------------------

    def call(self, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
        """Record one operation on nodes: its result's node, or a list of them (None where there is no tensor)."""
        value = infer(func, args, kwargs, self.shapes if self.shapes.hints else None)
        if torch.get_default_dtype() is not self.default_dtype:
            args, kwargs = _named(self.call, func, args, kwargs, value)
        node = self.graph.create_node("call_function", func, args, kwargs, _name(func))
        if self.derivation.running:
            self.where, nested = self._line_derived()
        else:
            nested = self.nested[-1] if self.nested else None
            self._lines.append((_torch._autograd._get_sequence_nr(), self.where, nested))
        meta = node.meta
        meta["val"], meta["where"] = value, self.where
        if nested is not None:
            meta["nested"] = nested
        if value.__class__ is TensorMeta:
            return node
        if isinstance(value, (list, tuple)):
            return [self.element(node, position, item) for position, item in enumerate(value)]
        return value

    def _line_derived(self) -> tuple[UserFrame | None, object]:
        """The line whose derivative the engine computes, and the call that it was in: autograd numbers what it
        records."""
        current = _torch._current_autograd_node()
        number = getattr(current, "_sequence_nr", lambda: None)()
        if number is None:
            return None, None
        place = bisect.bisect_right(self._lines, number, key=operator.itemgetter(0))
        return self._lines[place][1:] if place < len(self._lines) else (None, None)

    def element(self, node: Node, position: int, value: Any) -> Any:
        """The node of one of several results."""
        if not isinstance(value, TensorMeta):
            return value
        element = self.graph.create_node("call_function", operator.getitem, (node, position))
        element.meta["val"], element.meta["where"] = value, self.where
        return element

    def unwrap(self, arg: Any) -> Any:
        """The argument as it stands in the graph: nodes for tensors and symbolic sizes."""
        cls = arg.__class__
        if cls is TracedTensor:
            return arg.node
        if cls in _PLAIN:
            return arg
        if cls in _LISTS:
            return [self.unwrap(item) for item in arg]
        if isinstance(arg, torch.Tensor):
            return self.lift(arg).node
        if cls is torch.SymInt:
            return self.size_node(arg.node.expr)
        if cls is torch.SymFloat or cls is torch.SymBool:
            return arg.node.guard_float() if cls is torch.SymFloat else arg.node.guard_bool()
        return arg

    def size_node(self, expr: Expr) -> Any:
        """The node that computes a size, or a number."""
        if expr.is_const:
            return expr.value
        node = self._size_nodes.get(expr)
        if node is None:
            fitting = self.fitting(expr)
            node = self.compute_size(expr) if fitting is expr else self.size_node(fitting)
            self._size_nodes[expr] = node
        return node

    def compute_size(self, expr: Expr) -> Any:
        """As `size_node`, a node that nobody else has."""

        def apply(function: Callable[..., Any], a: Node | int, b: Node | int, value: Expr) -> Node:
            node = self.graph.create_node("call_function", function, (a, b), {}, "size")
            node.meta["val"] = self.shapes.sym_int(value)
            node.meta["where"] = self.where
            return node

        total: Any = None
        so_far = Expr.const(0)
        for mono, coefficient in expr.terms:
            product: Any = None
            factor = Expr.const(1)
            for atom in mono:
                whole = atom.as_expr()
                if atom.kind == "var":
                    part = self._size_nodes[whole]
                else:
                    a, b = (self.size_node(arg) for arg in atom.args)
                    part = apply(_SIZE_OPS[atom.kind], a, b, whole)
                factor = factor * whole
                product = part if product is None else apply(operator.mul, product, part, factor)
            if coefficient != 1:
                factor = factor * coefficient
                product = apply(operator.mul, product, coefficient, factor)
            so_far = so_far + factor
            total = product if total is None else apply(operator.add, total, product, so_far)
        return apply(operator.add, total, expr.offset, expr) if expr.offset else total

    def wrap(self, node: Any) -> Any:
        """A traced tensor that owns the value of `node`; lists of nodes become tuples."""
        if node.__class__ is Node:
            return TracedTensor.make(self, node.meta["val"], node)
        if isinstance(node, list):
            return tuple(self.wrap(item) for item in node)
        return node

    def seed(self, device: torch.device) -> tuple[Node, int]:
        """The node of a device's seed and the number of the next draw."""
        if device not in self._draws:
            options = {} if device.type == "cpu" else {"device": device}
            self._draws[device] = self.call(rng.rng_seed, **options), 0
        node, draws = self._draws[device]
        self._draws[device] = node, draws + 1
        return node, draws

    def forget_seed(self) -> None:
        """Numbers drawn from here on come from another seed."""
        self._draws.clear()

    # ---- functional writes ----------------------------------------------------------------------------------------

    def replay(self, base: Node, chain: tuple[ViewStep, ...]) -> Node:
        """The value of a view, from that of its storage's owner."""
        for func, args, kwargs in chain:
            base = self.call(PHYSICAL.get(func, func), base, *args, **kwargs)
            base.meta["again"] = True
        return base

    def cut(self, node: Node) -> Node:
        """The same value, through which no derivative goes. (The derivative of the recorded program is the engine's,
        which knows; a program that is derived once more is made from the graph.)"""
        if node.meta.get("cut"):
            return node
        known = self._cuts.get(node)
        if known is None:
            known = self._cuts[node] = self.call(aten.detach.default, node)
        return known

    def check_writable(self, group: AliasGroup) -> None:
        """Raises Unsupported where the graph cannot write to a storage."""
        if group.shared and self.listener.is_shared(group):
            reason = "a tensor is written that shares its memory with another one"
            raise Unsupported(reason, self.where, kind="tensor_write")
        if group.frozen:
            reason = "a tensor that is neither an argument nor made here is written"
            remedy = "pass the tensor as an argument, or keep it on the module as a buffer"
            raise Unsupported(reason, self.where, remedy, kind="tensor_write")
        if group.stale:
            reason = "a tensor is written that was given another shape in place after views were made of it"
            raise Unsupported(reason, self.where, kind="tensor_write")

    def write(self, target: TracedTensor, value: Node) -> None:
        """Give `target` a node's value as in-place operations do: through all views, in its dtype and strides."""
        group = target.group
        self.check_writable(group)
        if group.source is not None and overlaps(group.base.meta["val"]):
            reason = "an argument is written of which elements are one in memory"
            raise Unsupported(reason, self.where, "clone it", kind="tensor_write")
        if self.derivation.past and (group.source is not None or group.base in self.derivation.past):
            raise LateWrite(self.where)
        old = target.node.meta["val"]
        if overlaps(old) and _may_overlap(target):
            reason = "a tensor is written of which elements are one in memory"
            raise Unsupported(reason, self.where, "clone it", kind="tensor_write")
        new = value.meta["val"]
        if not same_sizes(new.shape, old.shape) and new.shape != old.shape:
            raise RuntimeError(
                f"output with shape {list(old.shape)} doesn't match the broadcast shape {list(new.shape)}"
            )
        if new.dtype is not old.dtype:
            if not torch.can_cast(new.dtype, old.dtype):
                raise RuntimeError(
                    f"result type {dtype_name(new.dtype)} can't be cast to the desired output type "
                    f"{dtype_name(old.dtype)}"
                )
            value = self.call(aten._to_copy.default, value, dtype=old.dtype)
        self._store(target, self.restride(value, old))
        group.counted |= target.counts
        group.plainly |= target.counts and not torch.is_inference_mode_enabled()

    def _store(self, target: TracedTensor, value: Node) -> None:
        group, chain = target.group, target.chain
        parents = [group.base]
        for func, args, kwargs in chain[:-1]:
            parents.append(self.call(PHYSICAL.get(func, func), parents[-1], *args, **kwargs))
            if traits_of(func).overlaps and overlaps(parents[-1].meta["val"]):
                reason = "a part is written of a view of which elements are one in memory"
                raise Unsupported(reason, self.where, "write to what it is a view of", kind="tensor_write")
        base = value
        for parent, (func, args, kwargs) in zip(reversed(parents), reversed(chain)):
            inverse = INVERSES.get(func._name)
            if inverse is None:
                raise Unsupported(f"writing through a view made by {func}", self.where, kind="tensor_write")
            base = self.restride(inverse(self, parent, base, *args, **kwargs), parent.meta["val"])
        group.base = base
        group.version += 1
        self.derivation.lost |= target.cut and not target.has_history
        target._node, target._seen = value, group.version

    def restride(self, node: Node, wanted: TensorMeta) -> Node:
        """The node with the strides of `wanted` (of the same shape), copied if need be; a copy has no gaps and no
        overlaps, but dense strides in the same order."""
        own = node.meta["val"].stride
        stride = wanted.stride if is_dense(wanted.shape, wanted.stride) else like_strides(wanted)
        if _same_layout(wanted.shape, own, stride) or _same_layout(wanted.shape, own, wanted.stride):
            return node
        order = memory_order(wanted.shape, stride)
        moved = self.call(aten.permute.default, node, order)
        copied = self.call(aten.clone.default, moved, memory_format=torch.contiguous_format)
        return self.call(aten.permute.default, copied, invert(order))  # type: ignore[no-any-return]

    def filled(self, wanted: TensorMeta, value: Any) -> Node:
        """A node that is `value` everywhere, laid out as `wanted`."""
        sizes = [self.unwrap(size) for size in wanted.shape]
        options = {"dtype": wanted.dtype, "device": wanted.device}
        stride = wanted.stride if is_dense(wanted.shape, wanted.stride) else like_strides(wanted)
        order = memory_order(wanted.shape, stride)
        if same_sizes(stride, contiguous_strides(wanted.shape)) or order == list(range(len(order))):
            return self.call(aten.full.default, sizes, value, **options)  # type: ignore[no-any-return]
        full = self.call(aten.full.default, [sizes[dim] for dim in order], value, **options)
        return self.call(aten.permute.default, full, invert(order))  # type: ignore[no-any-return]


class _Switches(threading.local):
    """Torch's Python dispatcher, switched on for each recording of this thread that has symbols. A switch puts back
    what it found, so the last one that was set goes back first; recordings may end in another order."""

    def __init__(self) -> None:
        self.set: list[AbstractContextManager[object]] = []
        self.done: set[AbstractContextManager[object]] = set()

    def on(self) -> AbstractContextManager[object]:
        switch: AbstractContextManager[object] = _torch._EnablePythonDispatcher()
        switch.__enter__()
        self.set.append(switch)
        return switch

    def off(self, switch: AbstractContextManager[object]) -> None:
        self.done.add(switch)
        while self.set and self.set[-1] in self.done:
            last = self.set.pop()
            self.done.remove(last)
            last.__exit__(None, None, None)


_switches = _Switches()


class RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, all operations go to the recorder `trace`, whatever their arguments are."""

    supports_higher_order_operators = True

    def __init__(self, trace: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = trace
        self.depth = 0
        self.switch: AbstractContextManager[object] | None = None

    def __enter__(self) -> RecordingMode:
        self.depth += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        if self.trace.has_symbols:
            self.allow_symbols()
        return self

    def __exit__(self, *raised: object) -> None:
        self.depth -= 1
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        if self.switch is not None and not self.depth:
            _switches.off(self.switch)
            self.switch = None

    def allow_symbols(self) -> None:
        """Kernels of composite operations in C++ ask for integers; torch's Python dispatcher has others in place."""
        if self.depth and self.switch is None:
            from bolide.tracing.recording import composites

            composites.install()
            self.switch = _switches.on()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch wrap us in a function that imports torch._dynamo

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return recorded(self.trace, func, types, args, kwargs or {})


class NonLeaf(torch.autograd.Function):
    """The same value as a tensor with autograd history: as with real ones, it may be written in place."""

    @staticmethod
    def forward(ctx: Any, leaf: TracedTensor) -> TracedTensor:
        ctx.set_materialize_grads(False)
        return TracedTensor.make(leaf._trace, leaf.meta, leaf.node, leaf.group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> torch.Tensor | None:
        return grad


_names: dict[OpOverload, str] = {}


def _may_overlap(tensor: TracedTensor) -> bool:
    """Whether elements of a view may be one in memory, by its steps: strides of data have no values yet."""
    steps = (traits_of(func) for func, *_ in tensor.chain)
    return any(step.expands or step.overlaps for step in steps) or overlaps(tensor.group.base.meta["val"])


def _name(func: OpOverload) -> str:
    name = _names.get(func)
    if name is None:
        name = _names[func] = func._schema.name.split("::")[-1].strip("_") or "op"
    return name


def _same_layout(shape: Sequence[Size], a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether strides differ only where they do not matter: at sizes of 1, or in an empty tensor."""
    if same_sizes(a, b):
        return True
    return any(map(is_zero, shape)) or all(is_one(size) or same_size(x, y) for size, x, y in zip(shape, a, b))


def _named(
    call: Callable[..., object],
    func: OpOverload,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    value: object,
) -> tuple[tuple[object, ...], dict[str, object]]:
    """What a graph that runs under another default dtype than the present one records: arguments with which
    `func` gives `value` (a meta) under any, by a `dtype` or by numbers of the present one in place of integers. Returns
    new `args` and `kwargs`; `call` records conversions."""
    if type(value) is not TensorMeta or not (value.dtype.is_floating_point or value.dtype.is_complex):
        return args, kwargs
    metas = [arg.meta["val"] for arg in args if type(arg) is torch.fx.Node]
    if any(meta.dtype.is_floating_point or meta.dtype.is_complex for meta in metas if type(meta) is TensorMeta):
        return args, kwargs
    choice = next((argument for argument in func._schema.arguments if argument.name == "dtype"), None)
    if choice is None:
        return tuple(_converted(call, arg) for arg in args), kwargs
    if choice.kwarg_only and kwargs.get("dtype") is None:
        return args, {**kwargs, "dtype": value.dtype}
    return args, kwargs


def _converted(call: Callable[..., object], arg: object) -> object:
    if type(arg) is not torch.fx.Node or type(arg.meta["val"]) is not TensorMeta:
        return arg
    return call(torch.ops.aten._to_copy.default, arg, dtype=torch.get_default_dtype())
