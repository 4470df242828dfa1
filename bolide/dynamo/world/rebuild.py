"""From values back to recipes: how a result, and what was written to the outside world, is rebuilt after the graph has
run."""

from __future__ import annotations

import builtins
import collections
import contextlib
import enum
import functools
import gc
import io
import operator
import random
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch

from bolide.dynamo.policy import is_python_class
from bolide.dynamo.program.captured import Effect, Recipe, Source
from bolide.dynamo.program.kinds import (
    BOUND_BUILTINS,
    C_METHODS,
    CONSTANT_TYPES,
    LOCK_TYPES,
    MISSING,
    VIEWS,
    WEAK_CONTAINERS,
    class_attribute,
    contents_of,
    descriptor_of,
    is_bound,
    is_class_namespace,
    is_constant,
    is_data_descriptor,
    is_opaque,
    own_namespace,
    viewed,
)
from bolide.dynamo.state import CALLBACK, own_mark
from bolide.dynamo.world.frames import Generator, entries, held, refuse_drop, restored_trace
from bolide.dynamo.world.iterators import (
    CALLING,
    DICT_ITERATORS,
    REDUCIBLE,
    SET_ITERATOR,
    Stream,
    advance,
    dict_iterator,
    reduced,
    restored,
    set_iterator,
    set_position,
)
from bolide.dynamo.world.journal import Change
from bolide.dynamo.world.makers import (
    bare_instance,
    dead_reference,
    detached,
    exchange,
    facts_of,
    file_in_memory,
    fill_instance,
    is_open,
    is_spent,
    made_in_mode,
    make_derived,
    make_exception,
    make_function,
    make_instance,
    make_partial,
    random_generator,
    refill,
    released,
    state_of,
    weak_container,
)
from bolide.dynamo.world.outside import Cell, Deferred, Grown, Outside, Overlay, Snapshot, items_of
from bolide.dynamo.world.world import World
from bolide.support.errors import Unsupported
from bolide.symbolic import Ratio
from bolide.tracing import TracedFloat, TracedTensor, computes_itself
from bolide.tracing.numbers import data

_is_transformed: Any = torch._C._functorch.is_functorch_wrapped_tensor


RECIPES: dict[type, Callable[[Rebuilder, Any], Recipe | None]] = {}  # of values that only the interpreter knows


class _ContainsItself(Exception):
    """A new value was met while it was being described."""


_LOOK_AT = {**VIEWS, types.MappingProxyType: types.MappingProxyType}  # and what makes them
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # from 3.11 on
_VALUES = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_OF_GRAPH = (TracedTensor, TracedFloat, *_VALUES[1:])
_OF_PROGRAM = (*_OF_GRAPH, Outside, Generator)


def _is_self_contained(cls: type) -> bool:
    """Whether a class made by the program has nothing of the call that made it: it can stay what it is."""
    for value in vars(cls).values():
        parts = (
            (value.fget, value.fset, value.fdel) if type(value) is property else (getattr(value, "__func__", value),)
        )
        for part in parts:
            if type(part) is types.FunctionType:
                held = [*(part.__defaults__ or ()), *(part.__kwdefaults__ or {}).values()]
                if set(part.__code__.co_freevars) - {"__class__"} or not all(type(v) in CONSTANT_TYPES for v in held):
                    return False
            elif type(part) not in _CLASS_PARTS and not is_constant(part):
                return False
    return True


_CLASS_PARTS = frozenset({types.GetSetDescriptorType, types.MemberDescriptorType, types.BuiltinFunctionType, type})


class Rebuilder:
    """Makes recipes. The same value always gives the same Recipe object, so identity among results is kept."""

    def __init__(self, world: World, ends: bool = True) -> None:
        self.world = world
        self.ends = ends  # the program does, not just a segment of it
        self.inference = torch.is_inference_mode_enabled()  # where the call is made
        self.outputs: list[TracedTensor] = []
        self.leaves: list[torch.Tensor] = []  # made by the program, requiring grad, and leaving it
        self.memo: dict[int, tuple[Any, Recipe]] = {}
        self.active: set[int] = set()
        self.split = False  # make containers empty first: a value contains itself
        self.unfilled: list[tuple[Any, type, Recipe]] = []
        self.fills: list[Effect] = []
        self.positions: list[Effect] = []  # of iterators, after the fills and what is written to lists
        self.input_of = {id(t): world.inputs.sources[i] for i, t in enumerate(world.trace.inputs)}

    def release(self) -> None:
        """The capture is over: no value lives longer because it was rebuilt."""
        self.outputs.clear()
        self.__dict__.clear()

    def recipe(self, value: Any) -> Recipe:
        """How `value` is made after the graph has run. Raises Unsupported for what cannot be."""
        cls = type(value)
        if cls is Deferred:
            return Recipe("source", value.source)
        if self.world.classes.own:
            self._check_class(self.world.classes.own.get(id(value)) or self.world.classes.own.get(id(cls)))
        mirror = self.world.identities.mirrors.get(id(value))
        if mirror is not None:
            return Recipe("source", mirror[1])
        if (
            cls in CONSTANT_TYPES
            and (cls is not torch.Size or all(type(size) is int for size in value))
            and (cls is not types.FunctionType or not self._is_made_here(value))
            and cls is not slice
        ):
            if cls in BOUND_BUILTINS and is_bound(value):
                return self._bound(value.__self__, value.__name__, descriptor_of(value))
            return Recipe("constant", value)
        known = self.memo.get(id(value))
        if known is not None:
            return known[1]
        if self.active:
            return self._new(value, cls)
        try:
            made = self._new(value, cls)
        except _ContainsItself:
            self.split = True
            self.active.clear()
            made = self._new_or_refused(value, cls)
        while self.unfilled:
            self._fill(*self.unfilled.pop())
        return made

    def _new_or_refused(self, value: Any, cls: type) -> Recipe:
        try:
            return self._new(value, cls)
        except _ContainsItself:
            reason = "an object whose class has a __hash__ contains itself, and leaves the function"
            raise Unsupported(reason, self.world.guards.where(), kind="escape") from None

    def _check_class(self, cls: type | None) -> None:
        if cls is None:
            return
        own = [base for base in cls.__mro__ if id(base) in self.world.classes.own]
        if not all(map(_is_self_contained, own)):
            raise Unsupported(
                f"class {cls.__name__}, made in the function, leaves it with values of this call",
                self.world.guards.where(),
                "define the class outside the function",
                "escape",
            )

    def _new(self, value: Any, cls: type) -> Recipe:
        if id(value) in self.active:
            raise _ContainsItself
        empty = self._empty(value, cls) if self.split else None
        if empty is not None:
            self.memo[id(value)] = (value, empty)
            self.unfilled.append((value, cls, empty))
            return empty
        self.active.add(id(value))
        made = self._make(value, cls)
        self.active.discard(id(value))
        self.memo[id(value)] = (value, made)
        return made

    def _empty(self, value: Any, cls: type) -> Recipe | None:
        """A recipe of a mutable container that the program made, without its contents; None for anything else."""
        if (
            id(value) in self.world.journal.snapshots
            or id(value) in self.world.identities.owners
            or cls is Outside
            or cls in RECIPES
            or isinstance(value, _VALUES)
        ):
            return None
        if cls is types.CellType:
            return Recipe("call", types.CellType) if id(value) not in self.world.namespaces.outside_cells else None
        if cls is collections.deque:
            return Recipe("call", cls, self.constants((), value.maxlen))
        if cls in (list, dict, collections.OrderedDict):
            return Recipe("call", cls)
        if type(cls.__hash__) is types.FunctionType:  # it may be a key of what is filled before it
            return None
        if is_open(cls) and not isinstance(value, (tuple, frozenset, type, enum.Enum, BaseException)):
            return Recipe("call", bare_instance, (Recipe("constant", cls),))
        return None

    def comes_later(self, value: Any) -> bool:
        """Whether a value is filled when all others have been made."""
        return self.split and self._empty(value, type(value)) is not None

    def _fill(self, value: Any, cls: type, empty: Recipe) -> None:
        if cls is types.CellType:
            with contextlib.suppress(ValueError):
                self.fills.append(Effect("cell", empty, None, self.recipe(value.cell_contents)))
            return
        if cls is TracedTensor:
            for name, item in (value.attributes or {}).items():
                parts = (empty, *self.constants(name), self.recipe(item))
                self.fills.append(Effect("call", None, None, Recipe("call", object.__setattr__, parts)))
            if value.is_leaf and value.grad is not None:
                self.fills.append(Effect("setattr", empty, "grad", self.recipe(value.grad)))
            return
        full = self._make(value, cls)
        self.fills.append(Effect("call", None, None, Recipe("call", fill_instance, (empty, full))))

    def _is_outside(self, value: Any) -> bool:
        return id(value) in self.world.journal.snapshots or id(value) in self.world.identities.mirrors

    def constants(self, *values: Any) -> tuple[Recipe, ...]:
        return tuple(Recipe("constant", value) for value in values)

    def _make(self, value: Any, cls: type) -> Recipe:
        snapshot = self.world.journal.snapshots.get(id(value))
        if snapshot is not None:
            return Recipe("source", snapshot.source)
        if cls is Outside:
            return Recipe("source", value.source)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if cls in (torch.SymInt, torch.SymFloat, torch.SymBool) and data.is_computed(self.world.trace, value):
            return Recipe("call", torch.Tensor.item, (self.recipe(data.as_tensor(self.world.trace, value)),))
        if cls is torch.SymInt:
            symbols = self.world.symbols.read_by([value.node.expr])
            return Recipe("size", value.node.expr, tuple(Recipe("source", source) for _, source in symbols))
        if cls is torch.SymFloat or cls is TracedFloat:
            expr = getattr(value.node, "expr", None)
            if isinstance(expr, Ratio):
                symbols = self.world.symbols.read_by([expr.over])
                return Recipe("size", expr, tuple(Recipe("source", source) for _, source in symbols))
            if isinstance(expr, float):
                return Recipe("constant", expr)
            return Recipe("call", torch.Tensor.item, (self.recipe(value.node.owner.tensor),))
        if cls is torch.SymBool:
            return Recipe("constant", value.node.value())
        if cls is torch.Size:
            return Recipe("call", torch.Size, (self.recipe(tuple(value)),))
        if cls is slice:
            return Recipe("call", slice, (self.recipe(value.start), self.recipe(value.stop), self.recipe(value.step)))
        if cls is list:
            return self.whole_list(value)
        if cls is tuple:
            return Recipe("tuple", None, tuple(self.recipe(item) for item in value))
        if cls is set:
            return Recipe("set", None, tuple(self._key(item) for item in value))
        if cls is dict:
            owner = self.world.identities.owners.get(id(value))
            if owner is not None:
                return Recipe("call", getattr, (self.recipe(owner), *self.constants("__dict__")))
            return self._dict(value)
        if cls is weakref.ReferenceType and id(value) not in self.world.identities.seen:
            referent = self._referent(value)
            if referent is None:
                return Recipe("call", dead_reference)
            return Recipe("call", weakref.ref, (self.recipe(referent),))
        if cls in WEAK_CONTAINERS:
            return Recipe("call", weak_container, (Recipe("constant", cls), self._held_weakly(value)))
        if issubclass(cls, weakref.ReferenceType) and id(value) not in self.world.identities.seen:
            reason = f"a new {cls.__module__}.{cls.__name__} leaves the function"
            raise Unsupported(reason, self.world.guards.where(), "use weakref.ref", kind="escape")
        if cls in LOCK_TYPES and not self.world.identities.is_outside(value):
            return Recipe("call", threading.Lock if cls is LOCK_TYPES[0] else threading.RLock)
        if isinstance(value, (type, enum.Enum, numpy.generic)) or is_opaque(value):
            return Recipe("constant", value)
        return self._object(value, cls)

    def _referent(self, reference: Any) -> Any:
        """What a weak reference of the program refers to, as the program sees it; None if it is no more."""
        referent = reference()
        known = None if referent is None else self.world.identities.seen.get(id(referent))
        return referent if known is None else known[1]

    def _held_weakly(self, container: Any) -> Recipe:
        """A list of what is in a weak container that the program has made."""
        data = vars(container).get("data")
        if data is None or vars(container).get("_iterating"):
            reason = "a weak container that is being made or iterated over leaves the function"
            raise Unsupported(reason, self.world.guards.where(), kind="escape")
        held: list[tuple[Any, ...]]
        if type(container) is weakref.WeakSet:
            held = [(item,) for reference in data if (item := self._referent(reference)) is not None]
        elif type(container) is weakref.WeakKeyDictionary:
            held = [(key, item) for reference, item in data.items() if (key := self._referent(reference)) is not None]
        else:
            held = [(key, item) for key, reference in data.items() if (item := self._referent(reference)) is not None]
        return Recipe("list", None, tuple(self.recipe(pair) for pair in held))

    def _tensor(self, value: torch.Tensor) -> Recipe:
        if not isinstance(value, TracedTensor):
            if _is_transformed(value):
                reason = "a tensor of a transform of torch.func leaves the transformed function"
                raise Unsupported(reason, self.world.guards.where(), "return it from there", "escape")
            made = RECIPES[torch.Tensor](self, value)
            if made is not None:
                return made
            if computes_itself(type(value)):
                reason = f"a {type(value).__name__}, a subclass of Tensor, leaves the function"
                raise Unsupported(reason, self.world.guards.where(), None, "escape")
            return Recipe("constant", value)
        source = self.input_of.get(id(value))
        if source is not None:
            return Recipe("source", source)
        if id(value) in self.world.inputs.masked:
            made = RECIPES[TracedTensor](self, value)
            assert made is not None
            return made
        made = self.plain_tensor(value)
        if value.attributes or (value.is_leaf and value.grad is not None):
            self.unfilled.append((value, TracedTensor, made))
        return made

    def plain_tensor(self, value: TracedTensor) -> Recipe:
        """A tensor that the program has made, as one of torch's own classes."""
        new_leaf = self._is_new_leaf(value)
        if new_leaf:
            self.leaves.append(value)
        if isinstance(value, torch.nn.Parameter):
            return Recipe(
                "call", torch.nn.Parameter, (self._output(value.detach()), *self.constants(value.requires_grad))
            )
        if isinstance(value, torch.nn.Buffer):  # type: ignore[arg-type, unused-ignore]
            persistent = ("persistent", Recipe("constant", value.persistent))
            of = self._output(value.detach())
            of = Recipe("call", torch.Tensor.requires_grad_, (of,)) if value.requires_grad else of
            return Recipe("call", torch.nn.Buffer, (of,), (persistent,))
        if new_leaf:
            return Recipe("call", torch.Tensor.requires_grad_, (self._output(value.detach()),))
        if self.world.trace.derivation.spent and is_spent(value):
            return Recipe("call", released, (self._output(detached(value)),))
        group = value.group
        if group.source is None and group.inference is not self.inference and not value.requires_grad:
            return Recipe("call", made_in_mode, (self._output(value), *self.constants(group.inference)))
        return self._output(value)

    def _is_new_leaf(self, value: Any) -> bool:
        """Whether the program has made it require grad. A view taken in no-grad mode does because its base does."""
        if not value.requires_grad or not value.is_leaf:
            return False
        base = value._base if value._is_view() else None
        return base is None or not base.requires_grad or (base.is_leaf and id(base) not in self.input_of)

    def refuse_histories(self) -> None:
        """Raises Unsupported where a new leaf leaves the graph together with a result that was computed from it: the
        real leaf would get no gradient."""
        leaves = {id(leaf) for leaf in self.leaves}
        seen: set[Any] = set()
        waiting = [value.grad_fn for value in self.outputs] if leaves else []
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if id(getattr(node, "variable", None)) in leaves:
                raise Unsupported(
                    "a new leaf that requires grad leaves the function, and so does what was computed from it",
                    self.world.guards.where(),
                    kind="new_leaf",
                )
            waiting += [before for before, _ in node.next_functions]

    def _output(self, value: Any) -> Recipe:
        self.outputs.append(value)
        return Recipe("output", len(self.outputs) - 1)

    def whole_list(self, items: Iterable[Any]) -> Recipe:
        """A list that is never empty first, for what looks into it as soon as it is made."""
        return Recipe("list", None, tuple(self.recipe(item) for item in items))

    def _key(self, key: Any) -> Recipe:
        """A member of a dict or set, which is made before effects: it must hash by then as it does in the program."""
        if type(key) is Outside:
            self.world.refuse_stale_key(key)
        return self.recipe(key)

    def _keys(self, keys: Iterable[Any]) -> Recipe:
        return Recipe("list", None, tuple(map(self._key, keys)))

    def _dict(self, value: dict[Any, Any]) -> Recipe:
        parts: list[Recipe] = []
        for key, item in value.items():
            parts += (self._key(key), self.recipe(item))
        return Recipe("dict", None, tuple(parts))

    def _bound(self, owner: Any, name: str, found: Any) -> Recipe:
        """A method written in C, bound to `owner`: by the descriptor `found` where the name finds another one. (A
        traced tensor's methods are not the real one's.)"""
        if type(found) in C_METHODS and not isinstance(owner, torch.Tensor):
            snapshot = self.world.journal.snapshots.get(id(owner))
            real = owner.real if type(owner) is Outside else owner if snapshot is None else snapshot.real
            if self.world.classes.lookup(type(real), name) is not found:
                return Recipe("call", found.__get__, (self.recipe(owner),))
        return Recipe("call", getattr, (self.recipe(owner), *self.constants(name)))

    def _object(self, value: Any, cls: type) -> Recipe:
        if cls is types.FunctionType:
            return self._function(value)
        special = RECIPES.get(cls)
        if special is not None and (made := special(self, value)) is not None:
            return made
        if cls is types.MethodType:
            found = value.__func__
            if type(found) in C_METHODS or type(value.__self__) is TracedTensor:
                return self._bound(value.__self__, found.__name__, found)
            return Recipe("call", types.MethodType, (self.recipe(value.__func__), self.recipe(value.__self__)))
        if cls is functools.partial:
            args = self._dict(own_namespace(value)), *map(self.recipe, (value.func, *value.args))
            return Recipe("call", make_partial, args, tuple((k, self.recipe(v)) for k, v in value.keywords.items()))
        if cls is types.CellType:
            if id(value) in self.world.namespaces.outside_cells:
                return self.cell(value)
            try:
                return Recipe("call", types.CellType, (self.recipe(value.cell_contents),))
            except ValueError:
                return Recipe("call", types.CellType)
        if cls is bytearray:
            return Recipe("call", bytearray, self.constants(bytes(value)))
        if cls is collections.deque:
            return Recipe("call", collections.deque, (self.whole_list(value), *self.constants(value.maxlen)))
        if cls is collections.OrderedDict and not vars(value):
            return Recipe("call", collections.OrderedDict, (self._dict(value),))
        if cls is collections.defaultdict:
            return Recipe("call", collections.defaultdict, (self.recipe(value.default_factory), self._dict(value)))
        if isinstance(value, BaseException):
            self.refuse_held(value)
            links = (value.__cause__, value.__context__, value.__suppress_context__, value.__traceback__)
            given = OSError.__reduce__(value)[1] if isinstance(value, OSError) else value.args  # with its file names
            made = self.recipe(given)
            if self.split and isinstance(value, _GROUP):  # it cannot be made of a list that is filled later
                made = Recipe("tuple", None, (self.recipe(value.message), self.whole_list(value.exceptions)))
            parts = (made, self._dict(value.__dict__), self.recipe(links))
            return Recipe("call", make_exception, (Recipe("constant", cls), *parts))
        if cls is types.TracebackType:
            return Recipe("call", restored_trace, self.constants(entries(value)))
        if cls in REDUCIBLE or cls in CALLING:
            pieces = self._reduced(value)
            made = self._over_container(value, cls, pieces)
            if made is not None:
                return made
            function, inner, state = map(self.recipe, pieces)
            # an iterator cannot be put behind what it iterates over has now: that may still be filled or grow
            if pieces[2] is not None and (self.split or any(map(self._is_outside, pieces[1]))):
                made = Recipe("call", restored, (function, inner, Recipe("constant", None)))
                self.positions.append(Effect("call", None, None, Recipe("call", set_position, (made, state))))
                return made
            return Recipe("call", restored, (function, inner, state))
        if cls in _LOOK_AT and not is_class_namespace(viewed(value)):
            owner = viewed(value)
            outside = self._outside_of(owner)
            made = self.recipe(owner) if outside is None else Recipe("source", outside.itself)
            return Recipe("call", _LOOK_AT[cls], (made,))
        if cls is frozenset:
            return Recipe("call", frozenset, (self._keys(value),))
        return self._instance(value, cls)

    def _reduced(self, value: Any) -> tuple[Any, ...]:
        try:
            return reduced(value)
        except RuntimeError as error:  # its next step says the same; none can be made that does
            raise Unsupported(f"an iterator lives on: {error}", self.world.guards.where(), None, "iterator") from None

    def _over_container(self, value: Any, cls: type, pieces: tuple[Any, ...]) -> Recipe | None:
        """An iterator that notices when the dict or set changes; `reduced` only has the items that there are now."""
        owner = next(iter(gc.get_referents(value)), None)  # None, or what it has given last: it has ended
        if isinstance(owner, dict) and cls in DICT_ITERATORS and not self.split:  # filled later, it seems to change
            outside = self._outside_of(owner)
            if outside is None or len(outside.real) == len(owner):
                made = self.recipe(owner) if outside is None else Recipe("source", outside.itself)
                position = self.constants(*DICT_ITERATORS[cls], len(owner) - operator.length_hint(value))
                return Recipe("call", dict_iterator, (made, *position))
        if isinstance(owner, set) and cls is SET_ITERATOR:
            snapshot = self.world.journal.snapshots.get(id(owner))
            if snapshot is None or not snapshot.changed():
                return Recipe("call", set_iterator, (self.recipe(owner), *map(self.whole_list, pieces[1])))
        return None

    def _outside_of(self, items: dict[Any, Any]) -> Overlay | None:
        """The outside dict, if it is one, that the program has in the form of `items`."""
        return next((overlay for overlay in self.world.journal.overlays if overlay.complete is items), None)

    def _is_made_here(self, value: types.FunctionType) -> bool:
        """Whether the program has made a function, or native code has for it: one that holds values of the program
        (`torch.func.vmap(f)`, what a decorator of a library answers)."""
        return id(value) in self.world.functions.own or self._holds_values(value, set())

    def _holds_values(self, value: Any, seen: set[int], wanted: tuple[type, ...] = ()) -> bool:
        """Whether a value is, or holds, one of the program's, or of the `wanted` classes."""
        cls = type(value)
        if id(value) in seen or self._is_outside(value):
            return False
        seen.add(id(value))
        if isinstance(value, wanted or _OF_PROGRAM) or (not wanted and id(value) in self.world.functions.own):
            return True
        if isinstance(value, torch.Tensor) and _is_transformed(value):
            return True
        parts: Iterable[Any] = ()
        if cls is types.FunctionType:
            if own_mark(value, CALLBACK) is not None:
                return not wanted
            parts = [held for cell in value.__closure__ or () if (held := contents_of(cell)) is not MISSING]
        elif cls in (list, tuple, set, frozenset):
            parts = value
        elif cls is dict:
            parts = value.values()
        elif cls is functools.partial:
            parts = (value.func, *value.args, *value.keywords.values())
        elif cls is types.MethodType:
            parts = (value.__func__, value.__self__)
        return any(self._holds_values(part, seen, wanted) for part in parts)

    def _function(self, value: types.FunctionType) -> Recipe:
        program = own_mark(value, CALLBACK)
        if program is not None:  # what native code was given in place of a function of the program
            return self.recipe(program)
        if self.world.namespaces.is_own(value.__globals__):
            reason = "a function made by exec() leaves the function"
            raise Unsupported(reason, self.world.guards.where(), "define it outside", "escape")
        if id(value) not in self.world.functions.own and self._holds_values(value, set(), _OF_GRAPH):
            reason = f"{value.__qualname__}, a function of a library that holds tensors, leaves the function"
            raise Unsupported(reason, self.world.guards.where(), "call it here", "escape")
        marks = {name: mark for name, mark in value.__dict__.items() if name != CALLBACK}
        attributes = {**facts_of(value), **marks}
        closure = None if value.__closure__ is None else self.recipe(value.__closure__)
        args = (
            *self.constants(value.__code__, value.__globals__, value.__name__),
            self.recipe(value.__defaults__),
            closure or Recipe("constant", None),
            self._dict(attributes),
        )
        return Recipe("call", make_function, args)

    def _instance(self, value: Any, cls: type) -> Recipe:
        module = cls.__module__
        if issubclass(cls, tuple) and not is_python_class(cls):  # a structseq, as torch.max returns
            return Recipe("call", cls, (Recipe("tuple", None, tuple(self.recipe(item) for item in value)),))
        if isinstance(value, (int, float, str, bytes)):
            base: Any = next(kind for kind in (int, float, str, bytes) if isinstance(value, kind))
            state = self._dict(state_of(value))
            return Recipe("call", make_derived, (*self.constants(cls, base, base.__getnewargs__(value)[0]), state))
        if cls is types.SimpleNamespace:
            return Recipe("call", cls, (), tuple((key, self.recipe(item)) for key, item in vars(value).items()))
        if cls in (io.StringIO, io.BytesIO) and not value.closed:
            return Recipe("call", file_in_memory, self.constants(cls, value.__getstate__()))
        if isinstance(value, random.Random):
            return Recipe("call", random_generator, self.constants(value.getstate()))
        if not is_open(cls) and cls is not collections.OrderedDict:  # an iterator, a view, a C object
            raise Unsupported(
                f"a new {module}.{cls.__name__} leaves the function",
                self.world.guards.where(),
                "return a list, tuple or dict",
                kind="escape",
            )
        items: Recipe = Recipe("constant", None)
        if isinstance(value, dict):
            items = self._dict(dict(dict.items(value)))
        elif isinstance(value, tuple):
            items = Recipe("list", None, tuple(self.recipe(item) for item in tuple.__iter__(value)))
        elif isinstance(value, (set, frozenset)):
            items = self._keys(items_of(value))
        elif isinstance(value, list):
            items = self.whole_list(list(value))
        elif isinstance(value, collections.deque):
            items = Recipe("call", collections.deque, (self.whole_list(list(value)), *self.constants(value.maxlen)))
        state = Recipe("constant", None) if own_namespace(value) is value else self._dict(state_of(value))
        return Recipe("call", make_instance, (Recipe("constant", cls), state, items))

    def refuse_held(self, error: BaseException) -> None:
        """Raises Unsupported for an exception whose traceback holds a generator that is still to clean up: it cannot
        leave the segment with its frames."""
        if any(type(value) is Generator and value.cleans_up() for value in held(error)):
            reason = "the traceback of an exception holds a generator that has not come to its end"
            raise Unsupported(reason, self.world.guards.where(), "close the generator", kind="iterator")

    # -- effects

    def effects(self) -> list[Effect]:
        """Every write to the outside world (`Journal.changes`)."""
        return [effect for change in self.world.journal.changes() for effect in self._effects_of(change)]

    def _effects_of(self, change: Change) -> Iterator[Effect]:
        place, now = change.place, change.now
        match place:
            case Overlay():
                yield self._write(place, change.key, now)
            case Cell():
                yield Effect("cell", self.cell(place.cell), None, None if now is MISSING else self.recipe(now))
            case Stream():
                yield self._call_on(place.source, advance, Recipe("constant", now))
            case Grown():
                yield self._call_on(place.source, list.extend, Recipe("list", None, tuple(map(self.recipe, now))))
            case Snapshot():
                for gone in place.gone():  # a generator that is still to clean up may not be taken out of a list
                    refuse_drop(gone, self.world.guards.where)
                if type(now) is set:
                    yield self._call_on(place.source, exchange, *map(self.whole_list, place.differences()))
                elif type(place.real) is list:
                    yield Effect("list_assign", Recipe("source", place.source), None, self.whole_list(now))
                else:
                    yield self._call_on(place.source, refill, self.whole_list(now))

    def _call_on(self, target: Source, function: Callable[..., object], *args: Recipe) -> Effect:
        return Effect("call", None, None, Recipe("call", function, (Recipe("source", target), *args)))

    def cell(self, cell: types.CellType) -> Recipe:
        """An outside cell: where it is found, or itself."""
        mirror = self.world.identities.mirrors.get(id(cell))
        return Recipe("constant", cell) if mirror is None else Recipe("source", mirror[1])

    def _write(self, overlay: Overlay, key: Any, value: Any) -> Effect:
        target = Recipe("source", overlay.source)
        kind = overlay.child.__name__.replace("member", "attribute").replace("slot", "attribute")
        is_name = isinstance(key, str) and not (overlay.owner is not None and _steers(overlay.owner, key))
        if kind == "attribute_source" and not is_name:
            target, kind = Recipe("source", overlay.itself), "dict"  # what was written is the namespace
        if kind == "attribute_source":
            if value is MISSING:
                return Effect("delattr", target, key)
            return Effect("setattr", target, key, self.recipe(value))
        if kind == "global_source":
            target = Recipe("constant", overlay.real)
            if value is not MISSING:
                return Effect("global", target, key, self.recipe(value))
        known = self.world.identities.seen.get(id(key))
        place = self.recipe(known[1] if known is not None and known[0] is key else key)
        parts = (place,) if value is MISSING else (place, self.recipe(value))
        method = _native_item_method(type(overlay.real), "__delitem__" if value is MISSING else "__setitem__")
        if method is not None:
            return Effect("call", None, None, Recipe("call", method, (target, *parts)))
        return Effect("delitem" if value is MISSING else "setitem", target, *parts)


def _native_item_method(cls: Any, name: str) -> Any:
    """The method of dict or OrderedDict behind the one that a subclass has of its own; None if it has none."""
    if not issubclass(cls, dict) or type(getattr(cls, name)) is not types.FunctionType:
        return None
    return getattr(collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict, name)


def _steers(owner: Any, name: str) -> bool:
    """Whether the class of an instance decides what assigning an attribute does."""
    cls: Any = type(owner)
    if isinstance(owner, type):
        return False
    own_setter = cls.__setattr__ not in (object.__setattr__, torch.nn.Module.__setattr__)
    return own_setter or is_data_descriptor(type(class_attribute(cls, name)))
