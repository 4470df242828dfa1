"""Recording: every operation on traced tensors becomes a node of one functional graph of ATen operations."""

from __future__ import annotations

import bisect
import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.fx
from torch.utils._python_dispatch import TorchDispatchMode

from bolide.support.errors import Unsupported, UserFrame
from bolide.symbolic import (
    Cond,
    Expr,
    Ratio,
    ShapeEnv,
    SymNode,
    contiguous_strides,
    hint_of,
    is_one,
    is_zero,
    same_size,
    same_sizes,
    symbolic_strides,
)
from bolide.tracing import rng
from bolide.tracing.graph import Graph
from bolide.tracing.meta import TensorMeta, found_in, meta_of
from bolide.tracing.numbers import data
from bolide.tracing.recording import composites, folding
from bolide.tracing.recording.inverses import INVERSES
from bolide.tracing.rules import infer
from bolide.tracing.rules.common import dtype_name, is_dense, like_strides, overlaps
from bolide.tracing.tensor import PHYSICAL, AliasGroup, TracedTensor, ViewStep, recorded
from bolide.tracing.traits import traits_of

aten = torch.ops.aten
_torch: Any = torch._C
_SIZE_OPS = {"//": operator.floordiv, "%": operator.mod, "min": torch.sym_min, "max": torch.sym_max}
Data = tuple[torch.Tensor, Callable[[], None]]  # a copy, and what to call if the program depends on it
_PLAIN = {int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}


class LateWrite(Unsupported):
    """Code that derives the program writes to what is older: that is fixed by then, and a backward runs later, not at
    all, or several times."""

    def __init__(self, where: UserFrame | None) -> None:
        remedy = "write to a clone, or return it from the forward instead"
        super().__init__("what is older than the backward pass is written in it", where, remedy, kind="operator")


def unnoted(of: AliasGroup, copy: AliasGroup) -> None:
    """Nobody wants to know of copies that eager may not make."""


def shared(group: AliasGroup) -> bool:
    """What is marked as shared counts as shared."""
    return True


def unread(place: int) -> None:
    """Nobody wants to know whose place in memory is asked for."""


def unknown(place: int) -> Data | None:
    """What is known of the data of an input while nobody reads any."""
    return None


class Trace:
    """One functional graph under construction, and the real values it refers to. `where` is the user's line that is
    being executed; nodes remember it."""

    def __init__(self) -> None:
        self.graph: torch.fx.Graph = Graph()
        self.inputs: list[TracedTensor] = []
        self.leaves: list[TracedTensor] = []
        self.renewed: list[TracedTensor] = []  # inputs that have been given another storage
        self.hashed: set[int] = set()  # by id, values that hash by their identity and were asked for their hashes
        self.constants: dict[str, torch.Tensor] = {}
        self.where: UserFrame | None = None
        self._lines: list[tuple[int, UserFrame | None]] = []  # of each call, with the number autograd goes on with
        self.shapes = ShapeEnv(lambda: self.where)
        self.shapes.scalar = self._scalar_of_size
        self.shapes.require = functools.partial(data.check, self)
        self.assume: Callable[[str, UserFrame | None], None] | None = None  # guards a condition on numbers from outside
        # whether integers read from tensors are symbols; None: those that cannot be read; False: they are refused
        self.captures_numbers: bool | None = False
        self.captures_sizes: bool | None = False  # the same of sizes of results
        self.compliant_only = False  # whether operators must say that they keep the compiler's rules
        self.answered: dict[Any, Any] = {}  # what data was asked for before
        self.data_of: Callable[[int], Data | None] = unknown  # see `read`
        # is told of the storages of a tensor and its copy, which eager may not make
        self.copied: Callable[[AliasGroup, AliasGroup], None] = unnoted
        self.is_shared: Callable[[AliasGroup], bool] = shared  # of what is marked so: whether that is seen
        self.offset_read: Callable[[int], None] = unread  # is told of inputs whose place in their storage is asked for
        self._mode = _Recording(self)
        self._cuts: dict[torch.fx.Node, torch.fx.Node] = {}  # values, and the same without a derivative
        self._slots: dict[int, torch.fx.Node] = {}  # of the inputs, and of their leaves, by id
        self._size_nodes: dict[Expr, torch.fx.Node] = {}
        self.wrappers: dict[int, tuple[TensorMeta, TracedTensor]] = {}  # one for each meta of symbolic sizes, by id
        self._lifted: dict[int, TracedTensor] = {}
        self.sizes: list[torch.SymInt] = []
        self._last_input: torch.fx.Node = self.graph._root
        self._last_placeholder: torch.fx.Node = self.graph._root
        self.generators: dict[int, tuple[torch.Generator, generators.Slot]] = {}  # stand-ins by the address in C++
        self._seed: torch.fx.Node | None = None
        self._draws = 0
        self.seeds: dict[torch.fx.Node, TracedTensor] = {}  # as tensors, for the parts that draw
        self.draws_as_eager = False  # whether random numbers are drawn one operation after the other, as eager does
        self.has_scalars = False
        self.reads_floats = False  # whether tensors are read as floats
        self.refutable = False  # running the graph may raise Refuted
        self.checked: Callable[[TracedTensor], None] | None = None  # is told of conditions that are checked
        self.differentiates = False  # whether an input requires grad
        self.deriving = False  # whether the backward is being recorded, not the program
        self.past: frozenset[torch.fx.Node] = frozenset()  # what the program has made when code of its own derives it
        self.formulas: set[str] = set()  # names of the derivatives, written in Python, of operators that are called
        self.opaque: dict[Any, str] = {}  # derivatives that cannot be recorded, and why (see `derivatives`)
        self.for_real: dict[Any, str] = {}  # those that cannot be called in the backward either
        self.own_gradients = False  # a backward of the program's own (a Function, a hook) is no derivative
        self.hooked: set[Any] = set()  # nodes of autograd's graph that hooks of the program's are on
        self.functional_only: str | None = None  # what the program does that only the functional graph shows
        self.spent: set[Any] = set()  # nodes of autograd's graph whose saved values the program has released

    def rely_on_messages(self) -> None:
        """The program may read what has been raised."""
        self.shapes.rely_on_messages()

    # ---- what comes from outside ----------------------------------------------------------------------------------

    def input(
        self,
        real: torch.Tensor,
        name: str,
        sizes: Mapping[int, Any] | None = None,
        strides: Mapping[int, Any] | None = None,
    ) -> TracedTensor:
        """A placeholder for `real`; it requires grad when `real` does. Keeps no reference to `real`.

        `sizes` gives dimensions that are symbolic (from `size`), `strides` such strides. The tensor that gradients are
        taken with respect to is the last of `leaves`; the result is another one when `real` is not a leaf: it may be
        written in place then.
        """
        meta = meta_of(real)
        if sizes:
            shape = tuple(sizes.get(dim, extent) for dim, extent in enumerate(meta.shape))
            meta = meta._replace(shape=shape, stride=symbolic_strides(shape, meta.stride, meta.shape))
        if strides:
            meta = meta._replace(stride=tuple(strides.get(dim, step) for dim, step in enumerate(meta.stride)))
        behind = self._last_input
        node = self._last_input = self._placeholder(name, meta, behind)
        if behind is self._last_placeholder:
            self._last_placeholder = node
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
        self.inputs.append(tensor)
        self.leaves.append(leaf)
        self._slots[id(leaf)] = self._slots[id(tensor)] = node
        return tensor

    def placeholder_of(self, tensor: TracedTensor) -> torch.fx.Node | None:
        """The node of an input, or of the leaf that it is made of; None for other tensors."""
        return self._slots.get(id(tensor))

    def release(self) -> None:
        """Let go of the inputs when nothing more is recorded. One with a history refers to its leaf in C++, and that to
        this trace: a cycle that no collector finds."""
        for tensors in (self.inputs, self.leaves, self.renewed):
            tensors.clear()
        for known in (self.wrappers, self._lifted, self._slots, self.seeds, self.spent):
            known.clear()

    def size(self, hint: int, name: str, lo: int | None = 2, hi: int | None = None) -> Any:
        """A symbolic size with this value now, in lo..hi, as a placeholder; a value outside of these bounds stays a
        number (nothing is recorded)."""
        value = self.shapes.size(hint, None, lo, hi)
        if isinstance(value, torch.SymInt):
            self.sizes.append(value)
            self._size_nodes[value.node.expr] = self._last_placeholder = self._placeholder(name, value)
            self._mode.allow_symbols()
        return value

    @property
    def has_symbols(self) -> bool:
        """Whether there are symbolic sizes or numbers."""
        return bool(self.shapes.hints)

    def bind_size(self, symbol: torch.SymInt, node: torch.fx.Node) -> None:
        """The node that tells the value of a symbol that is data."""
        self._size_nodes[symbol.node.expr] = node

    def is_data(self, value: Any) -> bool:
        """Whether a symbolic number is made of numbers that the graph computes."""
        expr = getattr(value.node, "expr", None)
        if not isinstance(expr, (Expr, Cond, Ratio)) or not self.shapes.is_data(expr):
            return False
        return not self.shapes.facts.names.isdisjoint(expr.free_vars - self.shapes.unbacked)

    def number_tensor(self, value: Any) -> TracedTensor:
        """A symbolic number that is data as a 0-dim tensor: int64, float64 or bool."""
        expr = value.node.expr
        over = expr if isinstance(expr, Expr) else expr.over if isinstance(expr, Ratio) else expr.expr
        node = self.call(aten.full.default, [], self.size_node(over), dtype=torch.int64, device=torch.device("cpu"))
        tensor = self.wrap(node)
        if isinstance(expr, Cond):
            with torch.no_grad():
                tensor = {"==": torch.eq, "!=": torch.ne, ">=": torch.ge}[expr.op](tensor, 0)
        elif isinstance(expr, Ratio):
            with torch.no_grad():
                tensor = tensor.to(torch.float64) / expr.under
        return tensor  # type: ignore[no-any-return]

    def allow_symbols(self) -> None:
        """To be called before the first symbol is made."""
        self._mode.allow_symbols()

    def placeholder(self, meta: TensorMeta, name: str) -> TracedTensor:
        """A placeholder that is not an input of the program: a tangent of the joint graph."""
        node = self._last_placeholder = self._placeholder(name, meta)
        return TracedTensor.make(self, meta, node)

    def _scalar_of_size(self, expr: Expr, hint: int) -> scalars.TracedFloat:
        node = self.call(aten.full.default, [], self.size_node(expr), dtype=torch.float64, device=torch.device("cpu"))
        formula = None if self.assume is None or self.shapes.is_data(expr) else f"({expr.text()})"
        pin = functools.partial(self.shapes.specialise, expr, hint)
        made = self.scalar(self.wrap(node), float(hint), (pin,), formula, (float, (expr,)))
        made.within = float(expr.least()), 2.0**63
        return made

    def _placeholder(self, name: str, value: Any, behind: torch.fx.Node | None = None) -> torch.fx.Node:
        """Placeholders come before all other nodes: inputs, then sizes, then tangents, each in the order made."""
        node = self.graph.placeholder(name)
        node.target = node.name  # unique, as the argument of generated code must be
        (behind or self._last_placeholder).append(node)
        node.meta["val"], node.meta["where"] = value, self.where
        return node

    def lift(self, real: torch.Tensor, private: bool = False) -> TracedTensor:
        """A real tensor that is not an input, as a constant of the graph. With `private` nobody else sees its storage,
        so it may be written.

        Raises Unsupported for a tensor that requires grad: its gradient would be lost.
        """
        known = self._lifted.get(id(real))
        if known is not None:
            return known
        if real.requires_grad and torch.is_grad_enabled():
            raise Unsupported(
                "a tensor that requires grad is reached without being an input of the graph", self.where, kind="input"
            )
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

    def input_of(self, group: AliasGroup) -> int | None:
        """The input of the whole program that a storage belongs to, or None."""
        return group.source

    def rely_on_offset(self, group: AliasGroup) -> None:
        """The program is about to see where tensors lie in this storage."""
        place = self.input_of(group)
        if place is not None:
            self.offset_read(place)

    def is_input(self, tensor: Any) -> bool:
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
        tensor.group, tensor.chain = value.group, value.chain
        tensor._node, tensor._seen = value.node, value.group.version

    def known(self, tensor: Any) -> torch.Tensor | None:
        """The data of a tensor computed from constants of the program alone, else None. Must not be changed."""
        return folding.known_tensor(self, tensor)

    def present(self, tensor: TracedTensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The data of a tensor in the call that is being recorded, whose inputs these are; None if it cannot be
        computed without drawing numbers."""
        return folding.present_tensor(self, tensor, inputs)

    def read(self, tensor: Any) -> torch.Tensor | None:
        """The data of a tensor that the program needs to go on: as `known`, or computed from inputs whose data
        `data_of` gives."""
        return folding.read_tensor(self, tensor)

    def is_symbol(self, tensor: Any, captures: bool | None) -> bool:
        """Whether what the program asks about the data of a tensor is answered by symbols. `captures`: numbers or
        sizes."""
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

    def perform(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call one of torch's functions, or an operator, for the program."""
        args = scalars.for_derivatives(function, args)
        return primitives.call(function, args, kwargs) if self.shapes.hints else function(*args, **kwargs)

    def recording(self) -> AbstractContextManager[Any]:
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

    def call(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Record one operation on nodes; the node of its result, or a list of them when it has several (None where
        there is no tensor)."""
        value = infer(func, args, kwargs, self.shapes if self.shapes.hints else None)
        node = self.graph.create_node("call_function", func, args, kwargs, _name(func))
        if self.deriving:
            self.where = self._line_derived()
        else:
            self._lines.append((_torch._autograd._get_sequence_nr(), self.where))
        meta = node.meta
        meta["val"], meta["where"] = value, self.where
        if value.__class__ is TensorMeta:
            return node
        if isinstance(value, (list, tuple)):
            return [self.element(node, position, item) for position, item in enumerate(value)]
        return value

    def _line_derived(self) -> UserFrame | None:
        """The line whose derivative the engine computes: autograd numbers what it records."""
        current = _torch._current_autograd_node()
        number = getattr(current, "_sequence_nr", lambda: None)()
        if number is None:
            return None
        place = bisect.bisect_right(self._lines, number, key=operator.itemgetter(0))
        return self._lines[place][1] if place < len(self._lines) else None

    def element(self, node: torch.fx.Node, position: int, value: Any) -> Any:
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
        if cls is list or cls is tuple or cls is torch.fx.immutable_collections.immutable_list:
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
            node = self._size_nodes[expr] = self._compute_size(expr)
        return node

    def _compute_size(self, expr: Expr) -> Any:
        def apply(function: Any, a: Any, b: Any, value: Expr) -> Any:
            node = self.graph.create_node("call_function", function, (a, b), {}, "size")
            hint = self.shapes.value(value)
            node.meta["val"] = torch.SymInt(SymNode(self.shapes, value, hint))  # type: ignore[no-untyped-call]
            node.meta["where"] = self.where
            return node

        total, so_far = None, Expr.const(0)
        for mono, coefficient in expr.terms:
            product, factor = None, Expr.const(1)
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
        if node.__class__ is torch.fx.Node:
            return TracedTensor.make(self, node.meta["val"], node)
        if isinstance(node, list):
            return tuple(self.wrap(item) for item in node)
        return node

    def scalar(
        self,
        tensor: TracedTensor,
        hint: float | None = None,
        pins: tuple[scalars.Pin, ...] = (),
        formula: str | None = None,
        made: scalars.Made | None = None,
    ) -> scalars.TracedFloat:
        """A Python float whose value is that of a tensor of one element of the graph (see `scalars`)."""
        self.has_scalars = True
        self.reads_floats |= hint is None
        value: Any = tensor.detach().to(torch.float64)
        value = value.reshape(()) if value.dim() else value  # promotes as a number does
        value = value.clone() if value.group is tensor.group else value  # later writes do not change a number
        return scalars.TracedFloat(value, hint, pins, formula, made)

    def generator(self, device: torch.device) -> tuple[torch.Generator, generators.Slot]:
        """A stand-in for a generator of the user's, and where the graph will find the real one."""
        made = torch.Generator(device), generators.Slot()
        self.generators[made[0]._cdata] = made  # type: ignore[attr-defined]
        return made

    def seed(self) -> tuple[torch.fx.Node, int]:
        """The seed's node and the number of the next draw."""
        if self._seed is None:
            self._seed = self.call(rng.rng_seed)
        self._draws += 1
        assert self._seed is not None
        return self._seed, self._draws - 1

    def forget_seed(self) -> None:
        """Numbers drawn from here on come from another seed."""
        self._seed, self._draws = None, 0

    # ---- functional writes ----------------------------------------------------------------------------------------

    def replay(self, base: torch.fx.Node, chain: tuple[ViewStep, ...]) -> torch.fx.Node:
        """The value of a view, from that of its storage's owner."""
        for func, args, kwargs in chain:
            base = self._apply_view(base, func, args, kwargs)
            base.meta["again"] = True
        return base

    def cut(self, node: torch.fx.Node) -> torch.fx.Node:
        """The same value, through which no derivative goes. (The derivative of the recorded program is the engine's,
        which knows; a program that is derived once more is made from the graph.)"""
        if node.meta.get("cut"):
            return node
        known = self._cuts.get(node)
        if known is None:
            known = self._cuts[node] = self.call(aten.detach.default, node)
        return known

    def _apply_view(self, node: torch.fx.Node, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.call(PHYSICAL.get(func, func), node, *args, **kwargs)

    def write(self, target: TracedTensor, value: torch.fx.Node) -> None:
        """Give `target` the value of a node, as an in-place operation does: through all its views, in its dtype and
        strides."""
        group = target.group
        if group.shared and self.is_shared(group):
            raise Unsupported(
                "a tensor is written that shares its memory with another one", self.where, kind="tensor_write"
            )
        if group.frozen:
            raise Unsupported(
                "a tensor that is neither an argument nor made here is written",
                self.where,
                "pass the tensor as an argument, or keep it on the module as a buffer",
                kind="tensor_write",
            )
        if group.source is not None and overlaps(group.base.meta["val"]):
            reason = "an argument is written of which elements are one in memory"
            raise Unsupported(reason, self.where, "clone it", kind="tensor_write")
        if self.past and (group.source is not None or group.base in self.past):
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

    def _store(self, target: TracedTensor, value: torch.fx.Node) -> None:
        group, chain = target.group, target.chain
        parents = [group.base]
        for func, args, kwargs in chain[:-1]:
            parents.append(self._apply_view(parents[-1], func, args, kwargs))
        base = value
        for parent, (func, args, kwargs) in zip(reversed(parents), reversed(chain)):
            inverse = INVERSES.get(func.name())
            if inverse is None:
                raise Unsupported(f"writing through a view made by {func}", self.where, kind="tensor_write")
            base = self.restride(inverse(self, parent, base, *args, **kwargs), parent.meta["val"])
        group.base = base
        group.version += 1
        self.own_gradients |= target.cut and target.grad_fn is None
        target._node, target._seen = value, group.version

    def restride(self, node: torch.fx.Node, wanted: TensorMeta) -> torch.fx.Node:
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

    def filled(self, wanted: TensorMeta, value: Any, shape: Any = None) -> torch.fx.Node:
        """A node that is `value` everywhere, of the shape, strides, dtype and device of `wanted`; `shape`: its sizes
        as they stand in the graph."""
        sizes = list(shape) if shape is not None else [self.unwrap(size) for size in wanted.shape]
        options = {"dtype": wanted.dtype, "device": wanted.device}
        stride = wanted.stride if is_dense(wanted.shape, wanted.stride) else like_strides(wanted)
        order = memory_order(wanted.shape, stride)
        if same_sizes(stride, contiguous_strides(wanted.shape)) or order == list(range(len(order))):
            return self.call(aten.full.default, sizes, value, **options)  # type: ignore[no-any-return]
        full = self.call(aten.full.default, [sizes[dim] for dim in order], value, **options)
        return self.call(aten.permute.default, full, invert(order))  # type: ignore[no-any-return]

    # ---- dispatch -------------------------------------------------------------------------------------------------

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record what the dispatcher hands us: the operation, below autograd and autocast."""
        if (self.has_scalars or self.shapes.has_floats) and (
            result := scalars.with_tensors(self, func, args, kwargs)
        ) is not NotImplemented:
            return result
        if (generator := generators.find(args, kwargs)) is not None:
            return generators.draw(self, generator, func, args, kwargs)
        if self.compliant_only:
            handlers.refuse_unless_compliant(self, func)
        handler = handlers.HANDLERS.get(func)
        if handler is None:
            handler = handlers.HANDLERS[func] = handlers.classify(func)
        if self.differentiates and not torch.is_grad_enabled() and not handlers.has_own_derivative(func):
            return self._apart(handler, func, args, kwargs)
        return handler(self, func, args, kwargs)

    def _apart(self, handler: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operation that no derivative goes through (``meta["cut"]``)."""
        last = self.graph._root._prev
        result = handler(self, func, args, kwargs)
        node = self.graph._root._prev
        while node is not last and node.op != "root":
            if "again" not in node.meta:
                node.meta["cut"] = True
            node = node._prev
        given = found_in((args, kwargs), TracedTensor)
        for made in found_in(result, TracedTensor):
            if any(made is tensor for tensor in given):
                self.own_gradients |= made.requires_grad  # written, and what it was made of goes on as if it were not
            elif any(made.group is tensor.group for tensor in given):
                made.cut = True
        return result


class NonLeaf(torch.autograd.Function):
    """The same value as a tensor with autograd history: as with real ones, it may be written in place."""

    @staticmethod
    def forward(ctx: Any, leaf: TracedTensor) -> TracedTensor:
        ctx.set_materialize_grads(False)
        return TracedTensor.make(leaf._trace, leaf.meta, leaf.node, leaf.group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> torch.Tensor | None:
        return grad


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode of `Trace.recording`: all operations go to the trace, whatever their arguments are."""

    supports_higher_order_operators = True

    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = trace
        self.depth = 0
        self.dispatcher: Any = None

    def __enter__(self) -> _Recording:
        self.depth += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        if self.trace.has_symbols:
            self.allow_symbols()
        return self

    def __exit__(self, *raised: Any) -> None:
        self.depth -= 1
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        if self.dispatcher is not None and not self.depth:
            self.dispatcher.__exit__(None, None, None)
            self.dispatcher = None

    def allow_symbols(self) -> None:
        """Kernels of composite operations in C++ ask for integers; torch's Python dispatcher has others in place."""
        if self.depth and self.dispatcher is None:
            composites.install()
            self.dispatcher = torch._C._EnablePythonDispatcher()  # type: ignore[attr-defined, unused-ignore]
            self.dispatcher.__enter__()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch wrap us in a function that imports torch._dynamo

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return recorded(self.trace, func, types, args, kwargs or {})


_names: dict[Any, str] = {}


def _may_overlap(tensor: TracedTensor) -> bool:
    """Whether elements of a view can be one in memory: by the steps that it is made by, for sizes that are data have no
    values yet to judge its strides by."""
    steps = (traits_of(func) for func, *_ in tensor.chain)
    return any(step.expands or step.overlaps for step in steps) or overlaps(tensor.group.base.meta["val"])


def _name(func: Any) -> str:
    name = _names.get(func)
    if name is None:
        name = _names[func] = func._schema.name.split("::")[-1].strip("_") or "op"
    return name


def memory_order(shape: tuple[Any, ...], stride: tuple[Any, ...]) -> list[int]:
    """The dimensions from the outermost to the innermost in memory."""
    return sorted(range(len(shape)), key=lambda dim: (-hint_of(stride[dim]), -hint_of(shape[dim]), dim))


def _same_layout(shape: tuple[Any, ...], a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether strides differ only where they do not matter: at sizes of 1, or in an empty tensor."""
    if same_sizes(a, b):
        return True
    return any(map(is_zero, shape)) or all(is_one(size) or same_size(x, y) for size, x, y in zip(shape, a, b))


def invert(order: list[int]) -> list[int]:
    """The inverse permutation."""
    inverse = [0] * len(order)
    for position, dim in enumerate(order):
        inverse[dim] = position
    return inverse


from bolide.tracing.numbers import scalars  # noqa: E402
from bolide.tracing.operations import (  # noqa: E402, F401  (the tables of handlers need Trace)
    conjugates,
    draws,
    generators,
    handlers,
    places,
    primitives,
    recurrent,
    sequences,
    warned,
)
