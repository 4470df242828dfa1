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
from bolide.dynamo.program.captured import Effect, Recipe, call_of, effect_of
from bolide.dynamo.program.kinds import (
    BOUND_BUILTINS,
    C_METHODS,
    CONSTANT_TYPES,
    FUNCTION_APPLY,
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
    plain_kind,
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
    behind,
    dead_reference,
    detached,
    exchange,
    facts_of,
    fill_instance,
    is_open,
    is_spent,
    made_in_mode,
    make_derived,
    make_exception,
    make_function,
    make_instance,
    make_partial,
    refill,
    released,
    state_of,
    taken,
    weak_container,
    with_state,
)
from bolide.dynamo.world.outside import Cell, Deferred, Grown, Outside, Overlay, Torn, items_of
from bolide.dynamo.world.world import World
from bolide.support.errors import Unsupported
from bolide.symbolic import Ratio
from bolide.tracing import TracedFloat, TracedTensor, computes_itself
from bolide.tracing.numbers import data

_is_transformed: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor


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
        self.memo: dict[int, tuple[object, Recipe]] = {}
        self.active: set[int] = set()
        self.split = False  # make containers empty first: a value contains itself
        self.unfilled: list[tuple[object, type, Recipe]] = []
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
        if cls is Torn:
            raise self.world.torn(value)
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
            recipe = self._new(value, cls)
        except _ContainsItself:
            self.split = True
            self.active.clear()
            recipe = self._new_or_refused(value, cls)
        while self.unfilled:
            self._fill(*self.unfilled.pop())
        return recipe

    def _new_or_refused(self, value: object, cls: type) -> Recipe:
        try:
            return self._new(value, cls)
        except _ContainsItself:
            reason = "an object whose class has a __hash__ contains itself, and leaves the function"
            raise self._refusal(reason) from None

    def _check_class(self, cls: type | None) -> None:
        if cls is None:
            return
        own = [base for base in cls.__mro__ if id(base) in self.world.classes.own]
        if not all(map(_is_self_contained, own)):
            reason = f"class {cls.__name__}, made in the function, leaves it with values of this call"
            raise self._refusal(reason, "define the class outside the function")

    def _new(self, value: object, cls: type) -> Recipe:
        if id(value) in self.active:
            raise _ContainsItself
        empty = self._empty(value, cls) if self.split else None
        if empty is not None:
            self.memo[id(value)] = (value, empty)
            self.unfilled.append((value, cls, empty))
            return empty
        self.active.add(id(value))
        recipe = self._make(value, cls)
        self.active.discard(id(value))
        self.memo[id(value)] = (value, recipe)
        return recipe

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
            return None if id(value) in self.world.namespaces.outside_cells else call_of(types.CellType)
        if cls is collections.deque:
            return call_of(cls, *self.constants((), value.maxlen))
        if cls in (list, dict, collections.OrderedDict):
            return call_of(cls)
        if type(cls.__hash__) is types.FunctionType:  # it may be a key of what is filled before it
            return None
        if is_open(cls) and not isinstance(value, (tuple, frozenset, type, enum.Enum, BaseException)):
            return call_of(bare_instance, Recipe("constant", cls))
        return None

    def comes_later(self, value: object) -> bool:
        """Whether a value is filled when all others have been made."""
        return self.split and self._empty(value, type(value)) is not None

    def _fill(self, value: Any, cls: type, empty: Recipe) -> None:
        if cls is types.CellType:
            with contextlib.suppress(ValueError):
                self.fills.append(Effect("cell", empty, None, self.recipe(value.cell_contents)))
            return
        if cls is TracedTensor:
            for name, item in (value.attributes or {}).items():
                self.fills.append(effect_of(object.__setattr__, empty, Recipe("constant", name), self.recipe(item)))
            if value.is_leaf and value.grad is not None:
                self.fills.append(Effect("setattr", empty, "grad", self.recipe(value.grad)))
            return
        self.fills.append(effect_of(fill_instance, empty, self._make(value, cls)))

    def _is_outside(self, value: object) -> bool:
        return id(value) in self.world.journal.snapshots or id(value) in self.world.identities.mirrors

    def constants(self, *values: object) -> tuple[Recipe, ...]:
        return tuple(Recipe("constant", value) for value in values)

    def _make(self, value: Any, cls: type) -> Recipe:
        snapshot = self.world.journal.snapshots.get(id(value))
        if snapshot is not None or cls is Outside:
            return Recipe("source", (snapshot or value).source)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        for table in (RECIPES, _OWN_RECIPES):
            special = table.get(cls)
            if special is not None and (recipe := special(self, value)) is not None:
                return recipe
        if issubclass(cls, weakref.ReferenceType) and not self._is_seen(value):
            raise self._refusal(f"a new {cls.__module__}.{cls.__name__} leaves the function", "use weakref.ref")
        if isinstance(value, (type, enum.Enum, numpy.generic)) or is_opaque(value):
            return Recipe("constant", value)
        return self._exception(value, cls) if isinstance(value, BaseException) else self._instance(value, cls)

    def _refusal(self, reason: str, remedy: str | None = None) -> Unsupported:
        return self.world.guards.refusal("escape", reason, remedy)

    def _is_seen(self, value: object) -> bool:
        return id(value) in self.world.identities.seen

    def _number(self, value: Any) -> Recipe:
        cls = type(value)
        expr: Any = getattr(value.node, "expr", None)
        is_condition = cls is torch.SymBool and not value.node.is_constant()
        if is_condition or (cls is not TracedFloat and data.is_computed(self.world.trace, value)):
            return self._number_in(data.as_tensor(self.world.trace, value))
        if cls is torch.SymBool or isinstance(expr, float):
            return Recipe("constant", bool(value) if cls is torch.SymBool else expr)
        if cls is torch.SymInt or isinstance(expr, Ratio):
            symbols = self.world.symbols.read_by([expr.over if isinstance(expr, Ratio) else expr])
            return Recipe("size", expr, tuple(Recipe("source", source) for _, source in symbols))
        return self._number_in(value.node.owner.tensor)

    def _number_in(self, tensor: torch.Tensor) -> Recipe:
        return call_of(torch.Tensor.item, self.recipe(tensor))

    def _plain_dict(self, value: dict[object, object]) -> Recipe:
        owner = self.world.identities.owners.get(id(value))
        return self._dict(value) if owner is None else self.attribute(owner, "__dict__")

    def attribute(self, owner: object, name: str) -> Recipe:
        """What an object has under a name."""
        return call_of(getattr, self.recipe(owner), Recipe("constant", name))

    def _reference(self, value: weakref.ReferenceType[object]) -> Recipe | None:
        if self._is_seen(value):
            return None
        referent = self._referent(value)
        return call_of(dead_reference) if referent is None else call_of(weakref.ref, self.recipe(referent))

    def _lock(self, value: object) -> Recipe | None:
        if self.world.identities.is_outside(value):
            return None
        return call_of(threading.Lock if type(value) is LOCK_TYPES[0] else threading.RLock)

    def _referent(self, reference: Callable[[], object]) -> object:
        """What a weak reference of the program refers to, as the program sees it; None if it is no more."""
        referent = reference()
        known = None if referent is None else self.world.identities.seen.get(id(referent))
        return referent if known is None else known[1]

    def _weak_container(self, container: object) -> Recipe:
        """A weak container that the program has made, of a list of what is in it."""
        data = vars(container).get("data")
        if data is None or vars(container).get("_iterating"):
            raise self._refusal("a weak container that is being made or iterated over leaves the function")
        held: list[tuple[Any, ...]]
        if type(container) is weakref.WeakSet:
            held = [(item,) for reference in data if (item := self._referent(reference)) is not None]
        elif type(container) is weakref.WeakKeyDictionary:
            held = [(key, item) for reference, item in data.items() if (key := self._referent(reference)) is not None]
        else:
            held = [(key, item) for key, reference in data.items() if (item := self._referent(reference)) is not None]
        return call_of(weak_container, Recipe("constant", type(container)), self.whole_list(held))

    def _tensor(self, value: torch.Tensor) -> Recipe:
        if not isinstance(value, TracedTensor):
            if _is_transformed(value):
                reason = "a tensor of a transform of torch.func leaves the transformed function"
                raise self._refusal(reason, "return it from there")
            if (recipe := RECIPES[torch.Tensor](self, value)) is not None:
                return recipe
            if computes_itself(type(value)):
                raise self._refusal(f"a {type(value).__name__}, a subclass of Tensor, leaves the function")
            return Recipe("constant", value)
        source = self.input_of.get(id(value))
        if source is not None:
            return Recipe("source", source)
        if id(value) in self.world.inputs.masked:
            return RECIPES[TracedTensor](self, value)  # type: ignore[return-value]
        recipe = self._chosen(value) or self.plain_tensor(value)
        if value.attributes or (value.is_leaf and value.grad is not None):
            self.unfilled.append((value, TracedTensor, recipe))
        return recipe

    def _chosen(self, value: TracedTensor) -> Recipe | None:
        """The result of a branch that may be a tensor from before."""
        told = self.world.aliases.choice(value) if self.ends else None  # behind a break it may be written to
        if told is None:
            return None
        ways = [self.plain_tensor(each) if each is value else self.recipe(each) for each in (told.first, told.second)]
        return call_of(taken, self.recipe(told.flag), *ways)

    def plain_tensor(self, value: TracedTensor) -> Recipe:
        """A tensor that the program has made, as one of torch's own classes."""
        new_leaf = self._is_new_leaf(value)
        if new_leaf:
            self.leaves.append(value)
        if isinstance(value, torch.nn.Parameter):
            return call_of(torch.nn.Parameter, self._output(value.detach()), Recipe("constant", value.requires_grad))
        if isinstance(value, torch.nn.Buffer):  # type: ignore[arg-type, unused-ignore]
            persistent = ("persistent", Recipe("constant", value.persistent))
            of = self._output(value.detach())
            of = call_of(torch.Tensor.requires_grad_, of) if value.requires_grad else of
            return Recipe("call", torch.nn.Buffer, (of,), (persistent,))
        if new_leaf:
            return call_of(torch.Tensor.requires_grad_, self._output(value.detach()))
        if self.world.trace.derivation.spent and is_spent(value):
            return call_of(released, self._output(detached(value)))
        group = value.group
        if group.source is None and group.inference is not self.inference and not value.requires_grad:
            return call_of(made_in_mode, self._output(value), Recipe("constant", group.inference))
        return self._output(value)

    def _is_new_leaf(self, value: TracedTensor) -> bool:
        """Whether the program has made it require grad. A view taken in no-grad mode does because its base does."""
        if not value.requires_grad or not value.is_leaf:
            return False
        base = value._base if value._is_view() else None
        return base is None or not base.requires_grad or (base.is_leaf and id(base) not in self.input_of)

    def refuse_histories(self) -> None:
        """Raises Unsupported where a new leaf leaves the graph together with a result that was computed from it: the
        real leaf would get no gradient."""
        leaves = {id(leaf) for leaf in self.leaves}
        if leaves and any(id(getattr(node, "variable", None)) in leaves for node in behind(self.outputs)):
            reason = "a new leaf that requires grad leaves the function, and so does what was computed from it"
            raise self.world.guards.refusal("new_leaf", reason)

    def _output(self, value: Any) -> Recipe:
        self.outputs.append(value)
        return Recipe("output", len(self.outputs) - 1)

    def whole_list(self, items: Iterable[object]) -> Recipe:
        """A list that is never empty first, for what looks into it as soon as it is made."""
        return Recipe("list", None, tuple(self.recipe(item) for item in items))

    def _key(self, key: object) -> Recipe:
        """A member of a dict or set, which is made before effects: it must hash by then as it does in the program."""
        if type(key) is Outside:
            self.world.refuse_stale_key(key)
        return self.recipe(key)

    def _keys(self, keys: Iterable[object]) -> Recipe:
        return Recipe("list", None, tuple(map(self._key, keys)))

    def _dict(self, value: dict[Any, Any]) -> Recipe:
        parts: list[Recipe] = []
        for key, item in value.items():
            parts += (self._key(key), self.recipe(item))
        return Recipe("dict", None, tuple(parts))

    def _bound(self, owner: Any, name: str, descriptor: Any) -> Recipe:
        """A method written in C, bound to `owner`: by the descriptor `descriptor` where the name finds another one. (A
        traced tensor's methods are not the real one's.)"""
        if type(descriptor) in C_METHODS and not isinstance(owner, torch.Tensor):
            snapshot = self.world.journal.snapshots.get(id(owner))
            real = owner.real if type(owner) is Outside else owner if snapshot is None else snapshot.real
            if self.world.classes.lookup(type(real), name) is not descriptor:
                return call_of(descriptor.__get__, self.recipe(owner))
        return self.attribute(owner, name)

    def _method(self, value: types.MethodType) -> Recipe:
        function: Any = value.__func__
        if function is FUNCTION_APPLY:
            return call_of(function.__get__, self.recipe(None), self.recipe(value.__self__))
        if type(function) in C_METHODS or type(value.__self__) is TracedTensor:
            return self._bound(value.__self__, function.__name__, function)
        return call_of(types.MethodType, self.recipe(function), self.recipe(value.__self__))

    def _partial(self, value: functools.partial[object]) -> Recipe:
        args = self._dict(own_namespace(value)), *map(self.recipe, (value.func, *value.args))
        return Recipe("call", make_partial, args, tuple((k, self.recipe(v)) for k, v in value.keywords.items()))

    def _cell(self, value: types.CellType) -> Recipe:
        if id(value) in self.world.namespaces.outside_cells:
            return Recipe("constant", value)
        held = contents_of(value)
        return call_of(types.CellType) if held is MISSING else call_of(types.CellType, self.recipe(held))

    def _deque(self, value: collections.deque[object]) -> Recipe:
        return call_of(collections.deque, self.whole_list(value), Recipe("constant", value.maxlen))

    def _file(self, value: io.StringIO | io.BytesIO) -> Recipe | None:
        return None if value.closed else call_of(with_state, *self.constants(type(value), value.__getstate__()))

    def _exception(self, value: Any, cls: type) -> Recipe:
        self.refuse_held(value)
        links = (value.__cause__, value.__context__, value.__suppress_context__, value.__traceback__)
        given = OSError.__reduce__(value)[1] if isinstance(value, OSError) else value.args  # with its file names
        args = self.recipe(given)
        if self.split and isinstance(value, _GROUP):  # it cannot be made of a list that is filled later
            args = Recipe("tuple", None, (self.recipe(value.message), self.whole_list(value.exceptions)))
        parts = (args, self._dict(value.__dict__), self.recipe(links))
        return call_of(make_exception, Recipe("constant", cls), *parts)

    def _iterator(self, value: object) -> Recipe:
        try:
            pieces = reduced(value)
        except RuntimeError as error:  # its next step says the same; none can be made that does
            raise self.world.guards.refusal("iterator", f"an iterator lives on: {error}") from None
        recipe = self._over_container(value, type(value), pieces)
        if recipe is not None:
            return recipe
        function, inner, state = map(self.recipe, pieces)
        # an iterator cannot be put behind what it iterates over has now: that may still be filled or grow
        if pieces[2] is None or not (self.split or any(map(self._is_outside, pieces[1]))):
            return call_of(restored, function, inner, state)
        recipe = call_of(restored, function, inner, Recipe("constant", None))
        self.positions.append(effect_of(set_position, recipe, state))
        return recipe

    def _view(self, value: object) -> Recipe | None:
        """A view of a dict, or a read-only one."""
        owner = viewed(value)
        if is_class_namespace(owner):
            return None
        outside = self._outside_of(owner)
        recipe = self.recipe(owner) if outside is None else Recipe("source", outside.itself)
        return call_of(_LOOK_AT[type(value)], recipe)

    def _over_container(self, value: object, cls: type, pieces: tuple[Any, ...]) -> Recipe | None:
        """An iterator that notices when the dict or set changes; `reduced` only has the items that there are now."""
        owner = next(iter(gc.get_referents(value)), None)  # None, or what it has given last: it has ended
        if isinstance(owner, dict) and cls in DICT_ITERATORS and not self.split:  # filled later, it seems to change
            outside = self._outside_of(owner)
            if outside is None or len(outside.real) == len(owner):
                recipe = self.recipe(owner) if outside is None else Recipe("source", outside.itself)
                position = self.constants(*DICT_ITERATORS[cls], len(owner) - operator.length_hint(value))
                return call_of(dict_iterator, recipe, *position)
        if isinstance(owner, set) and cls is SET_ITERATOR:
            snapshot = self.world.journal.snapshots.get(id(owner))
            if snapshot is None or not snapshot.changed():
                return call_of(set_iterator, self.recipe(owner), *map(self.whole_list, pieces[1]))
        return None

    def _outside_of(self, items: object) -> Overlay | None:
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
        parts: Iterable[object] = ()
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
            raise self._refusal("a function made by exec() leaves the function", "define it outside")
        if id(value) not in self.world.functions.own and self._holds_values(value, set(), _OF_GRAPH):
            reason = f"{value.__qualname__}, a function of a library that holds tensors, leaves the function"
            raise self._refusal(reason, "call it here")
        marks = {name: mark for name, mark in value.__dict__.items() if name != CALLBACK}
        parts = map(self.recipe, (value.__defaults__, value.__closure__))
        facts = self._dict({**facts_of(value), **marks})
        return call_of(make_function, *self.constants(value.__code__, value.__globals__, value.__name__), *parts, facts)

    def _instance(self, value: Any, cls: type) -> Recipe:
        if issubclass(cls, tuple) and not is_python_class(cls):  # a structseq, as torch.max returns
            return call_of(cls, Recipe("tuple", None, tuple(self.recipe(item) for item in value)))
        base = plain_kind(value)
        if base is not None:
            plain = self.constants(cls, base, base.__getnewargs__(value)[0])
            return call_of(make_derived, *plain, self._dict(state_of(value)))
        if isinstance(value, random.Random):
            return call_of(with_state, *self.constants(random.Random, value.getstate()))
        if not is_open(cls) and cls is not collections.OrderedDict:  # an iterator, a view, a C object
            reason = f"a new {cls.__module__}.{cls.__name__} leaves the function"
            raise self._refusal(reason, "return a list, tuple or dict")
        items = Recipe("constant", None)
        if isinstance(value, dict):
            items = self._dict(dict(dict.items(value)))
        elif isinstance(value, (set, frozenset)):
            items = self._keys(items_of(value))
        elif isinstance(value, collections.deque):
            items = self._deque(value)
        elif isinstance(value, (tuple, list)):
            items = self.whole_list(items_of(value))
        state = Recipe("constant", None) if own_namespace(value) is value else self._dict(state_of(value))
        return call_of(make_instance, Recipe("constant", cls), state, items)

    def refuse_held(self, error: BaseException) -> None:
        """Raises Unsupported for an exception whose traceback holds a generator that is still to clean up: it cannot
        leave the segment with its frames."""
        if any(type(value) is Generator and value.cleans_up() for value in held(error)):
            reason = "the traceback of an exception holds a generator that has not come to its end"
            raise self.world.guards.refusal("iterator", reason, "close the generator")

    # -- effects

    def effects(self) -> list[Effect]:
        """Every write to the outside world (`Journal.changes`)."""
        return list(map(self._effect, self.world.journal.changes()))

    def _effect(self, change: Change) -> Effect:
        place, now = change.place, change.now
        if isinstance(place, Overlay):
            return self._write(place, change.key, now)
        if isinstance(place, Cell):
            return Effect("cell", self.recipe(place.cell), None, None if now is MISSING else self.recipe(now))
        source = Recipe("source", place.source)
        if isinstance(place, Stream):
            return effect_of(advance, source, Recipe("constant", now))
        if isinstance(place, Grown):
            return effect_of(list.extend, source, self.whole_list(now))
        for gone in place.gone():  # a generator that is still to clean up may not be taken out of a list
            refuse_drop(gone, self.world.guards.where)
        if type(now) is set:
            return effect_of(exchange, source, *map(self.whole_list, place.differences()))
        if type(place.real) is list:
            return Effect("list_assign", source, None, self.whole_list(now))
        return effect_of(refill, source, self.whole_list(now))

    def _write(self, overlay: Overlay, key: object, value: object) -> Effect:
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
            return effect_of(method, target, *parts)
        return Effect("delitem" if value is MISSING else "setitem", target, *parts)


def _native_item_method(cls: Any, name: str) -> Any:
    """The method of dict or OrderedDict behind the one that a subclass has of its own; None if it has none."""
    if not issubclass(cls, dict) or type(getattr(cls, name)) is not types.FunctionType:
        return None
    return getattr(collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict, name)


def _steers(owner: object, name: str) -> bool:
    """Whether the class of an instance decides what assigning an attribute does."""
    cls: Any = type(owner)
    if isinstance(owner, type):
        return False
    own_setter = cls.__setattr__ not in (object.__setattr__, torch.nn.Module.__setattr__)
    return own_setter or is_data_descriptor(type(class_attribute(cls, name)))


_OWN_RECIPES: dict[type, Callable[[Rebuilder, Any], Recipe | None]] = {
    **dict.fromkeys((torch.SymInt, torch.SymFloat, torch.SymBool, TracedFloat), Rebuilder._number),
    torch.Size: lambda own, value: call_of(torch.Size, own.recipe(tuple(value))),
    slice: lambda own, value: call_of(slice, *map(own.recipe, (value.start, value.stop, value.step))),
    list: Rebuilder.whole_list,
    tuple: lambda own, value: Recipe("tuple", None, tuple(own.recipe(item) for item in value)),
    set: lambda own, value: Recipe("set", None, tuple(own._key(item) for item in value)),
    frozenset: lambda own, value: call_of(frozenset, own._keys(value)),
    dict: Rebuilder._plain_dict,
    collections.OrderedDict: lambda own, value: None if vars(value) else call_of(type(value), own._dict(value)),
    collections.defaultdict: lambda own, value: call_of(
        type(value), own.recipe(value.default_factory), own._dict(value)
    ),
    collections.deque: Rebuilder._deque,
    bytearray: lambda own, value: call_of(bytearray, Recipe("constant", bytes(value))),
    weakref.ReferenceType: Rebuilder._reference,
    **dict.fromkeys(WEAK_CONTAINERS, Rebuilder._weak_container),
    **dict.fromkeys(LOCK_TYPES, Rebuilder._lock),
    **dict.fromkeys(REDUCIBLE | CALLING, Rebuilder._iterator),
    **dict.fromkeys(_LOOK_AT, Rebuilder._view),
    **dict.fromkeys((io.StringIO, io.BytesIO), Rebuilder._file),
    types.FunctionType: Rebuilder._function,
    types.MethodType: Rebuilder._method,
    functools.partial: Rebuilder._partial,
    types.CellType: Rebuilder._cell,
    types.TracebackType: lambda own, value: call_of(restored_trace, Recipe("constant", entries(value))),
    types.SimpleNamespace: lambda own, value: Recipe(
        "call", types.SimpleNamespace, (), tuple((name, own.recipe(item)) for name, item in vars(value).items())
    ),
}
"""How values of classes that everybody knows are made; None where an instance is made as any other."""
