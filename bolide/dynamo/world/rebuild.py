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
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import torch

from bolide.dynamo.policy import is_python_class
from bolide.dynamo.program.captured import Effect, Recipe
from bolide.dynamo.program.kinds import (
    BOUND_BUILTINS,
    C_METHODS,
    CONSTANT_TYPES,
    LOCK_TYPES,
    MISSING,
    WEAK_CONTAINERS,
    class_attribute,
    descriptor_of,
    is_bound,
    is_class_namespace,
    is_constant,
    is_data_descriptor,
    is_opaque,
    own_namespace,
    tuple_of,
    viewed,
)
from bolide.dynamo.state import CALLBACK, own_mark
from bolide.dynamo.world.frames import Generator, refuse_drop
from bolide.dynamo.world.histories import detached, is_spent, released
from bolide.dynamo.world.iterators import (
    CALLING,
    DICT_ITERATORS,
    REDUCIBLE,
    SET_ITERATOR,
    advance,
    dict_iterator,
    reduced,
    restored,
    set_iterator,
    set_position,
)
from bolide.dynamo.world.outside import CONTAINERS, Deferred, Outside, Overlay, items_of
from bolide.dynamo.world.tracebacks import entries, held
from bolide.dynamo.world.tracebacks import restored as restored_trace
from bolide.dynamo.world.views import VIEWS
from bolide.dynamo.world.world import World
from bolide.support.errors import Unsupported
from bolide.symbolic import Ratio
from bolide.tracing import TracedFloat, TracedTensor, computes_itself

_is_transformed: Any = torch._C._functorch.is_functorch_wrapped_tensor


_MADE_EMPTY: tuple[type, ...] = (object, dict, list, set, frozenset, tuple)
_MADE_EMPTY += (collections.OrderedDict, collections.defaultdict, collections.deque)


def _maker(cls: type) -> Any:
    """The `__new__` of a class that is not written in Python."""
    makers = [base.__dict__["__new__"] for base in cls.__mro__ if "__new__" in base.__dict__]
    return next(new for new in makers if type(new) is types.BuiltinFunctionType)


def _is_open(cls: type) -> bool:
    """Whether all that an instance holds is seen in Python: nothing is in memory that code in C keeps for itself."""
    return is_python_class(cls) and _maker(cls).__self__ in _MADE_EMPTY


def bare_instance(cls: Any) -> Any:
    """An empty instance, made past any `__new__` that is written in Python."""
    return _maker(cls)(cls)


def _dead_reference() -> Any:
    """A weak reference to what is no more."""
    return weakref.ref(set())


def _weak_container(cls: Any, items: list[Any]) -> Any:
    made = cls()
    for item in items:
        if cls is weakref.WeakSet:
            made.add(*item)
        else:
            made[item[0]] = item[1]
    return made


def make_instance(cls: Any, attributes: dict[str, Any] | None, items: Any) -> Any:
    """A new instance of `cls` with the given state; no method of the class is run. `items` are those of a dict, list,
    set, tuple or deque subclass. `attributes` are None for a dict whose items are its attributes."""
    if issubclass(cls, frozenset):
        made: Any = frozenset.__new__(cls, items)
    else:
        made = tuple_of(cls, items) if issubclass(cls, tuple) else bare_instance(cls)
    if items is not None:
        _fill(cls, made, items)
    if attributes is None:
        object.__setattr__(made, "__dict__", made)
        return made
    for name, value in attributes.items():
        _restore(made, name, value)
    return made


def _restore(made: Any, name: str, value: Any) -> None:
    """Give an instance what another one has in a slot or in its namespace, whatever else its class has of that name."""
    found = class_attribute(type(made), name)
    if type(found) is types.MemberDescriptorType:
        found.__set__(made, value)
    else:
        own_namespace(made)[name] = value


def _fill(cls: Any, made: Any, items: Any) -> None:
    if issubclass(cls, collections.OrderedDict):
        for key, value in items.items():
            collections.OrderedDict.__setitem__(made, key, value)
    elif issubclass(cls, dict):
        dict.update(made, items)
    elif issubclass(cls, list):
        list.extend(made, items)
    elif issubclass(cls, set):
        set.update(made, items)
    elif issubclass(cls, collections.deque):
        _fill_deque(made, items)


def _fill_deque(empty: collections.deque[Any], full: collections.deque[Any]) -> None:
    collections.deque.__init__(empty, full, full.maxlen)


def made_in_mode(tensor: torch.Tensor, inference: bool) -> torch.Tensor:
    """A tensor in the memory of another, as one that was made in inference mode, or outside."""
    with torch.inference_mode(inference):
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _derived(cls: Any, base: Any, value: Any, attributes: dict[str, Any]) -> Any:
    """A new instance of a subclass of int, float, str or bytes."""
    made = base.__new__(cls, value)
    for name, item in attributes.items():
        object.__setattr__(made, name, item)
    return made


def _file_in_memory(cls: Any, state: Any) -> Any:
    made = cls()
    made.__setstate__(state)
    return made


def _random_generator(state: Any) -> random.Random:
    made = random.Random()
    made.setstate(state)
    return made


def make_exception(cls: type, args: tuple[Any, ...], attributes: dict[str, Any], links: tuple[Any, ...]) -> Any:
    """A new exception; `links` are its cause, its context, whether the context is suppressed, and its traceback."""
    made = cls.__new__(cls, *args)
    initialise: Any = getattr(cls, "__init__")  # noqa: B009
    if type(initialise) is not types.FunctionType:
        initialise(made, *args)  # sets what `args` alone does not hold: a StopIteration's value, an OSError's file
    made.__dict__.update(attributes)
    made.__cause__, made.__context__, made.__suppress_context__, made.__traceback__ = links
    return made


_FILLED_BY: dict[type, Any] = {
    collections.OrderedDict: collections.OrderedDict.update,
    dict: dict.update,
    set: set.update,
    list: list.extend,
    collections.deque: _fill_deque,
}


def fill_instance(empty: Any, full: Any) -> None:
    """Give an instance without state that of another one of its class."""
    base = next((base for base in _FILLED_BY if isinstance(empty, base)), None)
    if base is not None:
        _FILLED_BY[base](empty, full)
    if own_namespace(full) is full:
        object.__setattr__(empty, "__dict__", empty)
        return
    for name, value in _state(full).items():
        _restore(empty, name, value)


def refill(target: Any, items: Any) -> None:
    """Give a list, deque or bytearray new contents, whatever methods a subclass has of its own."""
    if isinstance(target, bytearray):  # with a memoryview on it, its size is fixed
        bytearray.__setitem__(target, slice(None), bytes(items))
        return
    base: Any = next(base for base in CONTAINERS if isinstance(target, base))
    base.clear(target)
    base.extend(target, items)


def exchange(target: Any, gone: list[Any], new: list[Any]) -> None:
    """Take items out of a set and put others in."""
    set.difference_update(target, gone)
    set.update(target, new)


def _state(value: Any) -> dict[str, Any]:
    """An instance's attributes, those in slots too (unless a subclass has something else of that name)."""
    attributes = dict(own_namespace(value))
    members = {name: found for base in reversed(type(value).__mro__) for name, found in base.__dict__.items()}
    for name, found in members.items():
        if type(found) is types.MemberDescriptorType and hasattr(value, name):
            attributes[name] = getattr(value, name)
    return attributes


def make_partial(attributes: dict[str, Any], function: Any, /, *args: Any, **keywords: Any) -> Any:
    """A partial with attributes of its own."""
    made = functools.partial(function, *args, **keywords)
    if attributes:
        made.__dict__.update(attributes)
    return made


def make_function(
    code: types.CodeType, namespace: dict[str, Any], name: str, defaults: Any, closure: Any, attributes: dict[str, Any]
) -> types.FunctionType:
    made = types.FunctionType(code, namespace, name, defaults, closure)
    for fact in _FACTS & attributes.keys():
        setattr(made, fact, attributes.pop(fact))
    made.__dict__.update(attributes)
    return made


_FACTS = {"__kwdefaults__", "__qualname__", "__annotations__", "__doc__", "__module__", "__type_params__"}


def _facts(function: Any) -> dict[str, Any]:
    """What a new function is told beside its code: what it is not of itself."""
    bare = types.FunctionType(function.__code__, function.__globals__, None, None, function.__closure__)
    facts = {name: (getattr(function, name, None), getattr(bare, name, None)) for name in _FACTS}
    return {name: mine for name, (mine, its) in facts.items() if not _is_same_fact(mine, its)}


def _is_same_fact(mine: Any, its: Any) -> bool:
    if type(mine) is not type(its):
        return False
    return bool(mine == its) if type(mine) is str else mine is its or (not mine and not its)


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


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


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
        self.input_of = {id(t): world.inputs[i] for i, t in enumerate(world.trace.inputs)}

    def release(self) -> None:
        """The capture is over: no value lives longer because it was rebuilt."""
        self.outputs.clear()
        self.__dict__.clear()

    def recipe(self, value: Any) -> Recipe:
        """How `value` is made after the graph has run. Raises Unsupported for what cannot be."""
        cls = type(value)
        if cls is Deferred:
            return Recipe("source", value.source)
        if self.world.own_classes:
            self._check_class(self.world.own_classes.get(id(value)) or self.world.own_classes.get(id(cls)))
        mirror = self.world.mirrors.get(id(value))
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
            raise Unsupported(reason, self.world.where(), kind="escape") from None

    def _check_class(self, cls: type | None) -> None:
        if cls is None:
            return
        own = [base for base in cls.__mro__ if id(base) in self.world.own_classes]
        if not all(map(_is_self_contained, own)):
            raise Unsupported(
                f"class {cls.__name__}, made in the function, leaves it with values of this call",
                self.world.where(),
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
            id(value) in self.world.snapshots
            or id(value) in self.world.namespaces
            or cls is Outside
            or cls in RECIPES
            or isinstance(value, _VALUES)
        ):
            return None
        if cls is types.CellType:
            return Recipe("call", types.CellType) if id(value) not in self.world.outside_cells else None
        if cls is collections.deque:
            return Recipe("call", cls, self.constants((), value.maxlen))
        if cls in (list, dict, collections.OrderedDict):
            return Recipe("call", cls)
        if type(cls.__hash__) is types.FunctionType:  # it may be a key of what is filled before it
            return None
        if _is_open(cls) and not isinstance(value, (tuple, frozenset, type, enum.Enum, BaseException)):
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
        return id(value) in self.world.snapshots or id(value) in self.world.mirrors

    def constants(self, *values: Any) -> tuple[Recipe, ...]:
        return tuple(Recipe("constant", value) for value in values)

    def _make(self, value: Any, cls: type) -> Recipe:
        snapshot = self.world.snapshots.get(id(value))
        if snapshot is not None:
            return Recipe("source", snapshot.source)
        if cls is Outside:
            return Recipe("source", value.source)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if cls in (torch.SymInt, torch.SymFloat, torch.SymBool) and self.world.trace.is_data(value):
            return Recipe("call", torch.Tensor.item, (self.recipe(self.world.trace.number_tensor(value)),))
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
            return Recipe("call", torch.Tensor.item, (self.recipe(value.node.tensor),))
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
            owner = self.world.namespaces.get(id(value))
            if owner is not None:
                return Recipe("call", getattr, (self.recipe(owner), *self.constants("__dict__")))
            return self._dict(value)
        if cls is weakref.ReferenceType and id(value) not in self.world.seen:
            referent = self._referent(value)
            if referent is None:
                return Recipe("call", _dead_reference)
            return Recipe("call", weakref.ref, (self.recipe(referent),))
        if cls in WEAK_CONTAINERS:
            return Recipe("call", _weak_container, (Recipe("constant", cls), self._held_weakly(value)))
        if issubclass(cls, weakref.ReferenceType) and id(value) not in self.world.seen:
            reason = f"a new {cls.__module__}.{cls.__name__} leaves the function"
            raise Unsupported(reason, self.world.where(), "use weakref.ref", kind="escape")
        if cls in LOCK_TYPES and not self.world.is_outside(value):
            return Recipe("call", threading.Lock if cls is LOCK_TYPES[0] else threading.RLock)
        if isinstance(value, (type, enum.Enum, numpy.generic)) or is_opaque(value):
            return Recipe("constant", value)
        return self._object(value, cls)

    def _referent(self, reference: Any) -> Any:
        """What a weak reference of the program refers to, as the program sees it; None if it is no more."""
        referent = reference()
        known = None if referent is None else self.world.seen.get(id(referent))
        return referent if known is None else known[1]

    def _held_weakly(self, container: Any) -> Recipe:
        """A list of what is in a weak container that the program has made."""
        data = vars(container).get("data")
        if data is None or vars(container).get("_iterating"):
            reason = "a weak container that is being made or iterated over leaves the function"
            raise Unsupported(reason, self.world.where(), kind="escape")
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
                raise Unsupported(reason, self.world.where(), "return it from there", "escape")
            made = RECIPES[torch.Tensor](self, value)
            if made is not None:
                return made
            if computes_itself(type(value)):
                reason = f"a {type(value).__name__}, a subclass of Tensor, leaves the function"
                raise Unsupported(reason, self.world.where(), None, "escape")
            return Recipe("constant", value)
        source = self.input_of.get(id(value))
        if source is not None:
            return Recipe("source", source)
        if id(value) in self.world.masked:
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
        if self.world.trace.spent and is_spent(value):
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
                    self.world.where(),
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
            snapshot = self.world.snapshots.get(id(owner))
            real = owner.real if type(owner) is Outside else owner if snapshot is None else snapshot.real
            if self.world.lookup(type(real), name) is not found:
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
            if id(value) in self.world.outside_cells:
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
            raise Unsupported(f"an iterator lives on: {error}", self.world.where(), None, "iterator") from None

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
            snapshot = self.world.snapshots.get(id(owner))
            if snapshot is None or not snapshot.changed():
                return Recipe("call", set_iterator, (self.recipe(owner), *map(self.whole_list, pieces[1])))
        return None

    def _outside_of(self, items: dict[Any, Any]) -> Overlay | None:
        """The outside dict, if it is one, that the program has in the form of `items`."""
        return next((overlay for overlay in self.world.overlays if overlay.complete is items), None)

    def _is_made_here(self, value: types.FunctionType) -> bool:
        """Whether the program has made a function, or native code has for it: one that holds values of the program
        (`torch.func.vmap(f)`, what a decorator of a library answers)."""
        return id(value) in self.world.own_functions or self._holds_values(value, set())

    def _holds_values(self, value: Any, seen: set[int], wanted: tuple[type, ...] = ()) -> bool:
        """Whether a value is, or holds, one of the program's, or of the `wanted` classes."""
        cls = type(value)
        if id(value) in seen or self._is_outside(value):
            return False
        seen.add(id(value))
        if isinstance(value, wanted or _OF_PROGRAM) or (not wanted and id(value) in self.world.own_functions):
            return True
        if isinstance(value, torch.Tensor) and _is_transformed(value):
            return True
        parts: Iterable[Any] = ()
        if cls is types.FunctionType:
            if own_mark(value, CALLBACK) is not None:
                return not wanted
            parts = [held for cell in value.__closure__ or () for held in _contents(cell)]
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
        if self.world.is_own_namespace(value.__globals__):
            reason = "a function made by exec() leaves the function"
            raise Unsupported(reason, self.world.where(), "define it outside", "escape")
        if id(value) not in self.world.own_functions and self._holds_values(value, set(), _OF_GRAPH):
            reason = f"{value.__qualname__}, a function of a library that holds tensors, leaves the function"
            raise Unsupported(reason, self.world.where(), "call it here", "escape")
        marks = {name: mark for name, mark in value.__dict__.items() if name != CALLBACK}
        attributes = {**_facts(value), **marks}
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
            state = self._dict(_state(value))
            return Recipe("call", _derived, (*self.constants(cls, base, base.__getnewargs__(value)[0]), state))
        if cls is types.SimpleNamespace:
            return Recipe("call", cls, (), tuple((key, self.recipe(item)) for key, item in vars(value).items()))
        if cls in (io.StringIO, io.BytesIO) and not value.closed:
            return Recipe("call", _file_in_memory, self.constants(cls, value.__getstate__()))
        if isinstance(value, random.Random):
            return Recipe("call", _random_generator, self.constants(value.getstate()))
        if not _is_open(cls) and cls is not collections.OrderedDict:  # an iterator, a view, a C object
            raise Unsupported(
                f"a new {module}.{cls.__name__} leaves the function",
                self.world.where(),
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
        state = Recipe("constant", None) if own_namespace(value) is value else self._dict(_state(value))
        return Recipe("call", make_instance, (Recipe("constant", cls), state, items))

    def refuse_held(self, error: BaseException) -> None:
        """Raises Unsupported for an exception whose traceback holds a generator that is still to clean up: it cannot
        leave the segment with its frames."""
        if any(type(value) is Generator and value.cleans_up() for value in held(error)):
            reason = "the traceback of an exception holds a generator that has not come to its end"
            raise Unsupported(reason, self.world.where(), "close the generator", kind="iterator")

    def _refuse_drops(self) -> None:
        """Raises Unsupported where the program has taken a generator that is still to clean up out of a list."""
        for snapshot in self.world.snapshots.values():
            for gone in snapshot.before:
                if type(gone) is Generator and all(gone is not item for item in snapshot.copy):
                    refuse_drop(gone, self.world.where)

    # -- effects

    def effects(self) -> list[Effect]:
        """Every write to the outside world, in the order in which its objects were first read. Iterators go first: they
        were drawn from before what they iterate over was written to (`Stream`)."""
        self._refuse_drops()
        out: list[Effect] = []
        for stream in self.world.streams:
            if stream.taken:
                parts = (Recipe("source", stream.source), *self.constants(stream.taken))
                out.append(Effect("call", None, None, Recipe("call", advance, parts)))
        for overlay in self.world.overlays:
            for key, value in overlay.changes():
                out.append(self._write(overlay, key, value))
        for snapshot in self.world.snapshots.values():
            if snapshot.changed():
                target = Recipe("source", snapshot.source)
                if type(snapshot.copy) is set:
                    changes = tuple(map(self.whole_list, snapshot.differences()))
                    out.append(Effect("call", None, None, Recipe("call", exchange, (target, *changes))))
                elif type(snapshot.real) is list:
                    out.append(Effect("list_assign", target, None, self.whole_list(snapshot.copy)))
                else:
                    made = Recipe("call", refill, (target, self.whole_list(snapshot.copy)))
                    out.append(Effect("call", None, None, made))
        for cell, before, value in self.world.cells.values():
            if value is not before:
                contents = None if value is MISSING else self.recipe(value)
                out.append(Effect("cell", self.cell(cell), None, contents))
        for grown in self.world.lists_grown.values():
            if grown.items and not grown.whole:
                fresh = Recipe("list", None, tuple(self.recipe(item) for item in grown.items))
                out.append(
                    Effect("call", None, None, Recipe("call", list.extend, (Recipe("source", grown.source), fresh)))
                )
        return out

    def cell(self, cell: types.CellType) -> Recipe:
        """An outside cell: where it is found, or itself."""
        mirror = self.world.mirrors.get(id(cell))
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
        known = self.world.seen.get(id(key))
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
