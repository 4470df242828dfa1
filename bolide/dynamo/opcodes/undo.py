"""What the program can change, at one moment: so that what a way of a branch does can be found, and undone.

Values are ordinary objects, which native code changes in place. So a `State` keeps what is in everything that can be
reached from the program's frames and from what has been written to the outside world. Writes to overlays and to cells
of the outside world go through a journal. Lists, dicts, instances and cells can be put back; of whatever else has
changed it is said (`Unsupported`), as of what cannot be looked into.

Also `Either`: what is there after the ways of a branch where one leaves a tensor, the other a number. It is moved about
as it is. An instruction that reads it is a branch again, whose ways have the tensor and the number (`forks.settle`);
what leaves the program is chosen when the graph has run.
"""

from __future__ import annotations

import collections
import enum
import functools
import operator
import re
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy
import torch

from bolide.dynamo.bytecode.uniform import UNIFORM
from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.machine.native_calls import is_native
from bolide.dynamo.machine.numbers import is_generator
from bolide.dynamo.policy import is_python_class
from bolide.dynamo.program.captured import call_of
from bolide.dynamo.program.kinds import (
    BOUND_BUILTINS,
    CONSTANT_TYPES,
    MISSING,
    NO_NAMESPACE,
    contents_of,
    is_bound,
    is_opaque,
    ordered_keys,
    own_namespace,
)
from bolide.dynamo.world.frames import Frame, Generator
from bolide.dynamo.world.iterators import DICT_ITERATORS, REDUCIBLE, SET_ITERATOR, Stream, reduced
from bolide.dynamo.world.makers import taken
from bolide.dynamo.world.outside import Deferred, Outside, Torn, is_finalised
from bolide.dynamo.world.parts import Write
from bolide.dynamo.world.rebuild import RECIPES
from bolide.support.errors import Unsupported
from bolide.support.origins import is_plumbing
from bolide.tracing import TracedTensor, modes
from bolide.tracing.tensor import AliasGroup

Contents = list[tuple[Any, Any]]

_ATOMS: tuple[type, ...] = (Outside, Deferred, Torn, AliasGroup, torch.SymInt, torch.SymFloat, torch.SymBool)
_ATOMS += (torch.Generator, re.Match, types.MappingProxyType, numpy.generic, type(MISSING), types.TracebackType)
_UNORDERED = (set, frozenset, collections.deque, bytearray)
_WITH_ITEMS = (list, dict, tuple, *_UNORDERED)
_REPLACES = (list, dict, types.CellType)  # their contents can be put back
_DRAWN_ITERATORS = frozenset({*DICT_ITERATORS, SET_ITERATOR})  # `__reduce__` lists what they are still to give


def contents(vm: Machine, value: Any) -> Contents | None:
    """What is in a value, under keys that can be compared; None for what holds nothing that may change.

    Raises Unsupported for a value whose state is not known."""
    cls = type(value)
    if cls is types.FunctionType:
        return _of_function(value) if id(value) in vm.own_functions else None
    if cls in BOUND_BUILTINS and is_bound(value):
        return [("self", value.__self__)]
    if cls in CONSTANT_TYPES or isinstance(value, _ATOMS):
        return None
    if cls is TracedTensor:
        return _of_tensor(value)
    if cls is Either:
        return [("flag", value.flag), ("tensor", value.tensor), ("number", value.number)]
    if isinstance(value, torch.Tensor) and not isinstance(value, TracedTensor):
        return None  # of the outside world: what is written to it goes through an input
    if isinstance(value, type):
        return list(vars(value).items()) if id(value) in vm.world.classes.own else None
    if isinstance(value, _WITH_ITEMS):
        return _items(value)
    if cls is types.CellType:
        return _of_cell(value)
    if cls is Frame:
        return _of_frame(value)
    if cls is Generator:
        return [("frame", value.frame), ("state", (value.started, value.running, value.done))]
    if cls is Stream:
        return [("taken", value.taken)]
    if cls is types.GeneratorType:
        return [("at", (value.gi_running, -1 if value.gi_frame is None else value.gi_frame.f_lasti))]
    if cls in _DRAWN_ITERATORS:
        return [("left", operator.length_hint(value)), *enumerate(_leaves(reduced(value)[1], (tuple, list)))]
    if cls in REDUCIBLE or cls in (map, filter):
        return list(enumerate(_leaves(reduced(value), (tuple,))))
    if cls is functools.partial:
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords), *_of_instance(value)]
    if cls is types.MethodType:
        return [("func", value.__func__), ("self", value.__self__)]
    if is_opaque(value) or isinstance(value, enum.Enum) or cls in (object, property, types.ModuleType):
        return None
    if is_generator(value):  # which a way does not draw from
        return None
    if isinstance(value, BaseException):
        linked = [("args", value.args), ("cause", value.__cause__), ("context", value.__context__)]
        return [*linked, *_of_instance(value)]
    if (is_python_class(cls) and not issubclass(cls, torch.Tensor)) or cls is types.SimpleNamespace:
        return _of_instance(value)
    raise vm.unsupported(f"the program holds a {cls.__name__}, whose state is not known", "control_flow")


def _items(value: object) -> Contents:
    if isinstance(value, list):
        return list(enumerate(list.__iter__(value)))
    if isinstance(value, dict):
        return [(key, dict.__getitem__(value, key)) for key in ordered_keys(value)]
    base: Any = next(base for base in (tuple, *_UNORDERED) if isinstance(value, base))
    return list(enumerate(base.__iter__(value)))


def _of_instance(value: object) -> Contents:
    """The namespace of an instance, which is a dict of its own, and its slots."""
    parts: Contents = []
    namespace = own_namespace(value)
    if namespace is not NO_NAMESPACE and namespace is not value:
        parts.append(("__dict__", namespace))
    for base in type(value).__mro__:
        for name, member in vars(base).items() if is_python_class(base) and "__slots__" in vars(base) else ():
            if type(member) is types.MemberDescriptorType:
                try:
                    parts.append(((base, name), member.__get__(value)))
                except AttributeError:
                    continue
    return parts


def _of_function(function: types.FunctionType) -> Contents:
    parts = (function.__closure__, function.__defaults__, function.__kwdefaults__, vars(function))
    return list(enumerate(parts))


def _of_tensor(tensor: TracedTensor) -> Contents:
    state = (tensor.group.version, tensor.requires_grad, tensor.is_leaf, len(tensor.chain))
    gradient = tensor.grad if tensor.is_leaf else None
    return [("group", tensor.group), ("state", state), ("grad", gradient), ("attributes", tensor.attributes)]


def _of_cell(cell: types.CellType) -> Contents:
    held = contents_of(cell)
    return [] if held is MISSING else [("contents", held)]


def _of_frame(frame: Frame) -> Contents:
    values = [*frame.locals, *frame.stack, *frame.exceptions]
    state = (frame.pc, frame.ended, len(frame.stack), len(frame.exceptions))
    return [("state", state), ("snapshot", frame.snapshot), ("then", frame.then_value), *enumerate(values)]


def _leaves(value: Any, kinds: tuple[type, ...]) -> Iterator[Any]:
    """What is in containers that `__reduce__` has made."""
    if type(value) in kinds:
        for part in value:
            yield from _leaves(part, kinds)
    else:
        yield value


def put_back(holder: Any, saved: Contents) -> None:
    """Let a list, dict or cell hold what it has held."""
    if isinstance(holder, list):
        list.__setitem__(holder, slice(None), [value for _, value in saved])
    elif isinstance(holder, dict):
        base: Any = collections.OrderedDict if isinstance(holder, collections.OrderedDict) else dict
        base.clear(holder)
        for key, value in saved:
            base.__setitem__(holder, key, value)
    elif saved:
        holder.cell_contents = saved[0][1]
    else:
        del holder.cell_contents


_PLAIN = frozenset({int, bool, str, bytes, range})


def _is_plain(value: object) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


def is_same(before: object, now: object) -> bool:
    """Whether what was found in a place is still there."""
    return before is now or (type(before) is type(now) and _is_plain(before) and _is_plain(now) and before == now)


class State:
    """What the program had when it came to a branch in the top frame. That frame is not among what is compared here:
    only what it refers to."""

    def __init__(self, vm: Machine) -> None:
        self.vm, self.world = vm, vm.world
        if self.world.lifetimes.watched:
            raise self._refused("the program holds lists of generators of the outside world")
        self.seen: dict[int, Any] = {id(vm.frames[-1]): vm.frames[-1]}
        self.kept: dict[int, tuple[Any, Contents]] = {}
        self.mark = len(self.world.journal.writes)
        self.around = self._around()
        self.generators = {id(generator) for generator in vm.unfinished()}
        self._walk(self._roots())
        self.snapshots = set(map(id, self.world.journal.snapshots.values()))

    def _refused(self, what: str) -> Unsupported:
        return self.vm.unsupported(what, "control_flow")

    def _roots(self) -> list[Any]:
        vm, world = self.vm, self.world
        frame = vm.frames[-1]
        roots: list[Any] = [*vm.frames[:-1], *frame.locals, *frame.stack, *frame.exceptions]
        roots += [frame.snapshot, frame.then_value, frame.function]
        roots += world.journal.reached()
        roots += [*world.namespaces.own.values(), *world.classes.own.values()]
        roots += [table for slot, table in vm.slots.items() if slot.undone]
        return roots + [generator for ref in vm.own_generators if (generator := ref()) is not None]

    def _around(self) -> list[Any]:
        """What is compared by value: the state of the machine, and of torch's modes."""
        vm, world = self.vm, self.world
        of_world = (world.journal.hooks, world.journal.flags, world.drawn_from, world.draws, world.inputs.masked)
        of_run = (vm.later.calls, vm.later.checks, vm.modes.setters)
        of_trace = (world.trace.renewed, world.trace.frozen, world.trace.derivation.spent)
        state: list[Any] = [len(each) for each in (*of_world, *of_run, *of_trace)]
        state += [world.journal.progress(), [id(manager) for manager in vm.modes.entered]]
        return [*state, modes.settings(), modes.stacks()]

    def _walk(self, roots: Iterable[Any]) -> None:
        waiting = list(roots)
        while waiting:
            value = waiting.pop()
            if id(value) in self.seen or (type(value) in CONSTANT_TYPES and type(value) not in _HOLDING):
                continue
            self.seen[id(value)] = value
            inner = contents(self.vm, value)
            if inner is not None:
                self.kept[id(value)] = value, inner
                if isinstance(value, _WITH_ITEMS):
                    self._walk_instance(value, waiting)
                for key, inside in inner:
                    waiting.append(inside)
                    if type(key) not in CONSTANT_TYPES and isinstance(value, dict):
                        waiting.append(key)

    def _walk_instance(self, value: object, waiting: list[Any]) -> None:
        """What else there is to an instance of a subclass of a container."""
        for key, inside in _of_instance(value):
            if key != "__dict__":
                raise self._refused(f"the program holds a {type(value).__name__}, which has slots")
            waiting.append(inside)

    # ---- what has changed since

    def changed(self) -> dict[int, tuple[Any, Contents, Contents]]:
        """The lists, dicts and cells in which something else is now: (holder, before, now) by id.

        Raises Unsupported where something has changed that cannot be put back."""
        if self._around() != self.around:
            raise self._refused("a way of a branch changes something outside")
        if any(id(generator) not in self.generators for generator in self.vm.unfinished()):
            raise self._refused("a way of a branch leaves a generator that has not come to its end")
        self._note_new()
        changes = {}
        for key, (holder, before) in self.kept.items():
            now = contents(self.vm, holder)
            assert now is not None
            pairs = zip(before, now)
            if len(before) == len(now) and all(is_same(a, c) and is_same(b, d) for (a, b), (c, d) in pairs):
                continue
            if not isinstance(holder, _REPLACES):
                kind = torch.Tensor if isinstance(holder, TracedTensor) else type(holder)
                raise self._refused(f"a way of a branch changes a {kind.__name__}")
            if any(is_finalised(value) for _, value in before):
                raise self._refused("a way of a branch drops an object whose end can be seen")
            changes[key] = (holder, before, now)
        return changes

    def _note_new(self) -> None:
        """What was first read of the outside world since: what it held then."""
        for snapshot in self.world.journal.snapshots.values():
            if id(snapshot) not in self.snapshots:
                self.snapshots.add(id(snapshot))
                before = list(enumerate(snapshot.before))
                self.kept.setdefault(id(snapshot.copy), (snapshot.copy, before))
                self.seen[id(snapshot.copy)] = snapshot.copy
        for grown in self.world.journal.grown.values():
            if id(grown.items) not in self.kept:
                self.kept[id(grown.items)] = grown.items, []
        for overlay in self.world.journal.overlays:
            if overlay.complete is not None and id(overlay.complete) not in self.kept:
                if overlay.changes():
                    raise self._refused("a way of a branch changes a dict of the outside world")
                self.kept[id(overlay.complete)] = overlay.complete, _items(overlay.complete)
                self.seen[id(overlay.complete)] = overlay.complete

    def writes(self) -> dict[tuple[int, Any], tuple[Write, Any]]:
        """The places of the outside world that were written since: the first write to each, and what is there now."""
        writes: dict[tuple[int, Any], tuple[Write, Any]] = {}
        for write in self.world.journal.writes[self.mark :]:
            if write.place not in writes:
                if is_finalised(write.before):
                    raise self._refused("a way of a branch drops an object whose end can be seen")
                writes[write.place] = write, write.now()
        return writes

    def restore(self, changed: dict[int, tuple[Any, Contents, Contents]]) -> None:
        """Put everything back."""
        if len(self.world.journal.writes) > self.mark:
            self.world.classes.cache.clear()
            self.world.journal.undo(self.mark)
        for holder, before, _ in changed.values():
            put_back(holder, before)


_HOLDING = frozenset({types.FunctionType, *BOUND_BUILTINS})


def reachable_groups(vm: Machine) -> set[int]:
    """The storages of all tensors that the program still has, by id."""
    state = State(vm)
    return {id(value.group) for value in state.seen.values() if isinstance(value, TracedTensor)}


# ---- a tensor or a number --------------------------------------------------------------------------------------------


def _refuse(self: object, *args: object) -> NoReturn:
    raise Unsupported("native code reads a tensor or a number, as data decide", kind="control_flow")


class Either:
    """The tensor where `flag` is true, else the number. All are values of the graph, or constants. `made`: the graph
    makes the tensor, for nothing where it is the number. `fresh`: it is a new one then that autograd has not saved."""

    __slots__ = ("flag", "fresh", "made", "number", "tensor")

    def __init__(self, flag: TracedTensor, tensor: TracedTensor, number: object) -> None:
        self.flag, self.tensor, self.number = flag, tensor, number
        self.made = self.fresh = False

    __repr__ = __str__ = __format__ = __reduce_ex__ = __bool__ = __eq__ = __hash__ = _refuse  # type: ignore[assignment]


RECIPES[Either] = lambda rebuilder, value: call_of(
    taken, *map(rebuilder.recipe, (value.flag, value.tensor, value.number))
)

_MOVES = frozenset(
    {
        *("POP_TOP", "STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME", "COPY", "SWAP", "END_SEND"),
        *("BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "LIST_APPEND", "MAP_ADD", "LIST_EXTEND"),
        *("DICT_UPDATE", "DICT_MERGE", "LIST_TO_TUPLE", "RETURN_VALUE", "YIELD_VALUE", "MAKE_FUNCTION"),
    }
)
_PEEKS = ("GET_LEN", "MATCH_KIND", "MATCH_KEYS")  # they leave on the stack what they read


def read_here(vm: Machine, frame: Frame) -> Either | None:
    """What the instruction reads that stands in front of the top frame's next one."""
    at = frame.pc - 1
    name, arg = frame.code.ops[at], frame.code.args[at]
    if name in _MOVES:
        return None
    count = 1 if name in _PEEKS else UNIFORM[name].taken(arg)
    operands = frame.stack[-count:] if count else []
    if UNIFORM[name].calls:
        if any(_is_entered(vm, value) for value in operands[:2]):
            return None
        if any(_is_of_torch(value) for value in operands[:2]):
            return _found(operands)
    return next((value for value in operands if type(value) is Either), None)


def _is_entered(vm: Machine, value: object) -> bool:
    """Whether a call of it is interpreted: what reads its arguments is in there."""
    function = value.__func__ if type(value) is types.MethodType else value
    return (
        type(function) is types.FunctionType
        and not is_native(vm, function)
        and not is_plumbing(function.__code__.co_filename)
    )


def _is_of_torch(value: object) -> bool:
    """Whether it is a function of torch's, which writes to no list that it is given."""
    module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", None)
    return callable(value) and type(module) is str and module.partition(".")[0] == "torch"


def _found(values: Sequence[object]) -> Either | None:
    for value in values:
        if type(value) is Either:
            return value
        if type(value) in (list, tuple, dict):
            found = _found(list(value.values()) if type(value) is dict else value)  # type: ignore[arg-type]
            if found is not None:
                return found
    return None


def settled(values: Sequence[object], either: Either, choice: object) -> list[object]:
    """Operands of an instruction with what was chosen."""
    return [_settled(value, either, choice) for value in values]


def _settled(value: object, either: Either, choice: object) -> object:
    if value is either:
        return choice
    if type(value) is Either or _found([value]) is None:
        return value
    if type(value) is dict:
        return dict(zip(value, settled(list(value.values()), either, choice)))
    items = settled(value, either, choice) if type(value) in (list, tuple) else []  # type: ignore[arg-type]
    return tuple(items) if type(value) is tuple else items


_NOT_SAVED = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        *(("add", "Tensor"), ("sub", "Tensor"), ("mul", "Tensor"), ("div", "Tensor"), ("neg", "default")),
        *(("sum", "default"), ("sum", "dim_IntList"), ("mean", "default"), ("mean", "dim")),
    )
)
"""Operations whose derivative does not read their result."""


def is_fresh(value: object) -> bool:
    """Whether a way leaves a number, or a tensor that autograd has not saved there."""
    if type(value) is Either:
        return value.fresh and not value.tensor.node.users
    if type(value) is not TracedTensor:
        return True
    return not value.node.users and (value.node.target in _NOT_SAVED or "fresh" in value.node.meta)
