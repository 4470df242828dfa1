"""Operators, items, truth, iteration and formatting on values: natively where that is exact, else as a call of a
polyfill or of the object's own method."""

from __future__ import annotations

import collections
import functools
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

import numpy
import torch

from bolide.dynamo import polyfills
from bolide.dynamo.bytecode.uniform import COMPARISONS, OPERATORS
from bolide.dynamo.machine import masked_writes
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.originals import original_of
from bolide.dynamo.machine.overrides import asked_by, overridden, overrides
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import CONSTANT_TYPES, MISSING, PROXIES, name_in_c
from bolide.dynamo.world.frames import Frame, Generator
from bolide.dynamo.world.iterators import Stream
from bolide.dynamo.world.outside import Outside
from bolide.dynamo.world.texts import MadeId, TracedText, joined
from bolide.dynamo.world.world import World
from bolide.support.errors import Unsupported
from bolide.tracing import STANDS_FOR, TracedFloat, TracedTensor
from bolide.tracing.numbers import data
from bolide.tracing.recording.recorder import NonLeaf

# Types whose operators are exact on values of the interpreter: no method of theirs is written in Python.
PLAIN = frozenset(
    {int, float, complex, bool, str, bytes, type(None), tuple, list, dict, set, frozenset, range, slice, type(Ellipsis)}
    | {torch.Size, torch.dtype, torch.device, types.FunctionType}
)
_NATIVELY_SEARCHED = (dict, set, frozenset, str, bytes)
SYMBOLIC: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool, TracedFloat: float}
"""Symbolic numbers, and what the program takes them for."""
PENDING: dict[type, type] = {**SYMBOLIC, TracedText: str}
"""As `SYMBOLIC`, with texts that are known when the graph has run."""

_POWERS = (operator.pow, operator.ipow)
_UNIONS = (operator.or_, operator.ior)
_FILL_IN = (operator.mod, operator.imod)  # of a text
_INTEGERS = (int, torch.SymInt)
_REPEATS = (operator.mul, operator.imul)
_SEQUENCES = (list, tuple, str, bytes)
_INDEXED = (*_SEQUENCES, bytearray, range, collections.deque)
_PLAIN_OR_TENSOR = PLAIN | {TracedTensor, *SYMBOLIC}
_NO_WORDS: dict[str, Any] = {}

OUTSIDE_NODE = NonLeaf._backward_cls  # type: ignore[attr-defined]  # stands for nodes of the history outside
SEEN_AS: dict[type, type] = {**PENDING, MadeId: int}  # the class that the program sees of values of other classes

AS_NUMBER: dict[type, Callable[[Any], Any]] = {}
"""What makes a number of Python's, perhaps a symbolic one, of values of other classes that are numbers."""

WITH_TENSORS: dict[type, Callable[[Machine, Any, Any, Any], Any]] = {}
"""The operators of tensors with values of these classes: given the operator, and both in their order."""

_EXTENDED: dict[Any, dict[type, Any]] = {
    operator.iadd: {list: list.__iadd__, collections.deque: collections.deque.__iadd__},
    operator.ior: {collections.OrderedDict: collections.OrderedDict.__ior__, dict: dict.__ior__},
}
"""Operators in place that iterate over what they are given: the methods that do it."""

_SEQUENCE_EQUALITY: dict[Any, str] = {
    (list, list): "sequences_equal",
    (tuple, tuple): "sequences_equal",
    (dict, dict): "dicts_equal",
}


def polyfill(name: str) -> types.FunctionType:
    """The polyfill of this name: a Python function that is interpreted."""
    found: types.FunctionType = polyfills.BY_NAME[name]
    return found


def is_number(value: Any) -> bool:
    """Whether a value stands for a number of another library's class."""
    return type(value) in AS_NUMBER


def as_number(value: Any) -> Any:
    """Such a value as a number of Python's; any other itself."""
    return AS_NUMBER[type(value)](value) if type(value) in AS_NUMBER else value


def _rely_on_operator(vm: Machine, op: Any) -> None:
    """Guard that the methods of tensors behind an operator stay."""
    vm.world.guards.once.add(op)
    for name in filter(None, OPERATORS[op][1:] if op in OPERATORS else ()):
        vm.world.classes.rely_on(torch.Tensor, name)


def class_of(value: Any) -> type:
    """The class the program sees."""
    cls = type(value)
    if cls is Outside:
        outside: type = value.cls
        return outside
    if cls is TracedTensor and value.face is not None:
        face: type = value.face
        return face
    if cls is Stream:
        return type(value.real)
    if cls is Generator:
        original = original_of(value)
        return cls if original is None else original.cls
    if cls is OUTSIDE_NODE:
        raise Unsupported("a node of the history outside is looked at", None, "use the tensor", "tensor_method")
    return SEEN_AS.get(cls) or vars(cls).get(STANDS_FOR, cls)


def _in_graph(value: Any) -> Any:
    """A number made of sizes as one of the graph (torch's own power of those imports sympy)."""
    return value.node.in_graph() if type(value) in (torch.SymInt, torch.SymFloat) else value


def settled(value: Any) -> Any:
    """A symbolic number that torch has made, as the program holds it: truths are known, floats of the graph have their
    operators."""
    if type(value) is torch.SymBool and value.node.has_hint():
        return bool(value)
    return getattr(value.node, "owner", value)


def concrete(vm: Machine, value: Any) -> Any:
    """A symbolic number as the number that it is in this call, which is guarded; a text likewise."""
    vm.trace.where = vm.where()
    return PENDING[type(value)](value)


def as_key(vm: Machine, key: Any) -> Any:
    """A key of a dict or set: hashing needs the value of symbolic numbers, and which function one is."""
    if type(key) is types.FunctionType:
        vm.world.functions.rely_on_identity(key)
    if type(key) in PENDING:
        return concrete(vm, key)
    if type(key) is tuple and any(type(part) in PENDING or type(part) is tuple for part in key):
        return tuple([as_key(vm, part) for part in key])
    return key


def python_method(world: World, cls: type, name: str) -> Any:
    """The method `name` of a class if it is written in Python, else None."""
    found = world.classes.lookup(cls, name)
    return found if type(found) is types.FunctionType else None


def is_stored(world: World, cls: type) -> bool:
    """Whether dicts copy from an instance what is stored in it, whatever other methods its class has: it is a dict that
    is iterated over as dicts are."""
    return issubclass(cls, dict) and world.classes.lookup(cls, "__iter__") is dict.__iter__


def has_mapping_code(world: World, cls: type) -> bool:
    """Whether a class has a method in Python that may be asked for its keys and items."""
    return any(python_method(world, cls, name) is not None for name in ("keys", "__getitem__", "__iter__"))


def _merging(vm: Machine, op: Any, left: Any, right: Any) -> Call | None:
    """`left | right` or `left |= right` of dicts whose own methods may be asked for what is in them, else None."""
    sides = class_of(left), class_of(right)
    if not all(issubclass(cls, dict) and not issubclass(cls, collections.defaultdict) for cls in sides):
        return None
    if not any(cls not in PLAIN and has_mapping_code(vm.world, cls) for cls in sides):
        return None
    return Call(polyfill("dict_or" if op is operator.or_ else "dict_ior"), [left, right])


def _unlike(op: Any, left: Any, right: Any, a: type, b: type) -> Any:
    """`left op right` of values in place of instances of `a` and `b`, which errors name."""
    try:
        return op(left, right)
    except TypeError as error:
        if str(error) != str(_no_operator(op, type(left), type(right))):
            raise
    raise _no_operator(op, a, b)


def is_plain(value: Any) -> bool:
    """Whether native code may write this value as text: nothing of the program's or of a tensor is in it."""
    cls = type(value)
    if cls is dict:
        return all(map(is_plain, value.keys())) and all(map(is_plain, value.values()))
    if cls in (list, tuple, set, frozenset):
        return all(map(is_plain, value))
    return cls in CONSTANT_TYPES and (cls is not torch.Size or all(type(size) is int for size in value))


def native_view(vm: Machine, value: Any) -> Any:
    """What native code may be given for `value`; raises Unsupported for an outside object that is not a plain
    container."""
    if type(value) is Outside:
        container = value.container()
        if container is not None:
            return container
        plain = value.plain()
        if plain is not MISSING:
            return plain
        raise Unsupported(
            f"an outside {value.cls.__name__} object is used by a built-in operation", vm.where(), kind="outside_object"
        )
    return value


def behind(vm: Machine, value: Any) -> Any:
    """What a weak proxy from outside stands for; any other value itself."""
    if type(value) is not Outside or value.cls not in PROXIES:
        return value
    vm.world.lifetimes.refuse_deaths()
    return vm.world.wrap(_referent(value.real), Source("apply", value.source, (), _referent))


def _referent(proxy: Any) -> Any:
    return proxy.__init__.__self__


def binary(vm: Machine, op: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """`left op right`."""
    a, b = type(left), type(right)
    if a in PLAIN and b in PLAIN:
        if a is str and op in _FILL_IN and not is_plain(right):
            return Call(polyfill("percent"), [left, right])
        if op is operator.eq or op is operator.ne:
            if a is types.FunctionType is b:
                return is_same(vm, left, right) is (op is operator.eq)
            name = _SEQUENCE_EQUALITY.get((a, b))
            if name is not None and left is not right and (has_python_eq(vm, left) or has_python_eq(vm, right)):
                return Call(polyfill(name if op is operator.eq else name.replace("equal", "unequal")), [left, right])
        return op(left, right)
    if a is str and op in _FILL_IN and b is not str:
        return Call(polyfill("percent"), [left, right])
    if a in _PLAIN_OR_TENSOR and b in _PLAIN_OR_TENSOR:
        vm.trace.where = vm.where()
        if op not in vm.world.guards.once and (a is TracedTensor or b is TracedTensor):
            _rely_on_operator(vm, op)
        if op in _POWERS and TracedTensor not in (a, b) and not (a in _INTEGERS and b in _INTEGERS and right >= 0):
            left, right = _in_graph(left), _in_graph(right)
        result = vm.trace.perform(op, (left, right), _NO_WORDS)
        return settled(result) if type(result) in SYMBOLIC else result
    if a is TracedText or b is TracedText:
        return _of_text(vm, op, left, right)
    if a is TracedTensor and b in WITH_TENSORS:
        return WITH_TENSORS[b](vm, op, left, right)
    if b is TracedTensor and a in WITH_TENSORS:
        return WITH_TENSORS[a](vm, op, left, right)
    if op in _REPEATS and ((is_number(left) and b in _SEQUENCES) or (is_number(right) and a in _SEQUENCES)):
        return binary(vm, op, as_number(left), as_number(right))
    left, right = behind(vm, left), behind(vm, right)
    a, b = class_of(left), class_of(right)
    symbol, in_place, forward, reflected = OPERATORS[op]
    look = vm.world
    if (
        (in_place and python_method(look, a, in_place))
        or python_method(look, a, forward)
        or python_method(look, b, reflected)
        or (op is operator.ne and (python_method(look, a, "__eq__") or python_method(look, b, "__eq__")))
    ):
        if op is operator.eq or op is operator.ne:
            return Call(polyfill("equal" if op is operator.eq else "unequal"), [left, right])
        if symbol in COMPARISONS:
            return Call(polyfill("compare"), [left, right, forward, reflected, symbol])
        return Call(polyfill("binary"), [left, right, in_place, forward, reflected, symbol])
    if op is operator.eq or op is operator.ne:
        left, right = _as_plain(left), _as_plain(right)
        same = _equal_by_identity(vm, left, right)
        if same is not None:
            return same is (op is operator.eq)
    elif op is operator.ior and type(left) is Outside and left.items is not None:
        return Call(polyfill("dict_ior"), [left, right])
    elif op in _UNIONS and (request := _merging(vm, op, left, right)) is not None:
        return request
    elif all(_declines(look, cls, name) for cls, name in ((a, forward), (b, reflected))):
        raise _no_operator(op, a, b)
    if a is TracedTensor and overrides(right):
        return overridden(asked_by(op, False), [left, right], [left, right], {})
    if b is TracedTensor and overrides(left):
        return overridden(asked_by(op, True), [right, left], [right, left], {})
    extended = _EXTENDED.get(op)
    if extended is not None and (type(left) is Outside or native_iterable(vm, right) is MISSING):
        base = next((base for base in extended if issubclass(a, base)), None)
        if base is not None:
            return Call(extended[base], [left, right])
    vm.trace.where = vm.where()
    view, other = native_view(vm, left), native_view(vm, right)
    if type(other) in SYMBOLIC and not _knows_symbols(view):
        other = concrete(vm, other)
    if type(view) in SYMBOLIC and not _knows_symbols(other):
        view = concrete(vm, view)
    plainly = view is left and other is right
    result = op(view, other) if plainly else _unlike(op, view, other, a, b)
    return left if result is view else result  # in place


def _equal_by_identity(vm: Machine, left: Any, right: Any) -> bool | None:
    """Whether two values are equal, if that depends on which objects they are; else None."""
    if (left is right and type(left) is Outside) or _is_answered(vm, left, right):
        return True
    if type(left) is types.MethodType is type(right) and left.__func__ is right.__func__:
        return is_same(vm, left.__self__, right.__self__)
    objects = [v for v in (left, right) if type(v) is Outside and v.items is None and v.contents is None]
    if not objects:
        return None
    for value in objects:
        _refuse_native_equality(vm, value)
    vm.world.rely_on_difference(left, right)
    return False


def _refuse_native_equality(vm: Machine, value: Outside) -> None:
    """Raises Unsupported for an object whose class compares it in native code, by what is in it."""
    if vm.world.classes.lookup(value.cls, "__eq__") is not object.__eq__:
        reason = f"an outside {value.cls.__name__} object is compared by native code"
        raise Unsupported(reason, vm.where(), kind="outside_object")


def _knows_symbols(value: Any) -> bool:
    """Whether operators of this value, which is no plain number, take symbolic numbers for such: those of what stands
    for a tensor or an array, but not those of enumerations, fractions, time differences or NumPy's own arrays."""
    return type(value) is TracedTensor or type(value) in SEEN_AS


def _of_text(vm: Machine, op: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """`left op right`, where one is a text that is known when the graph has run."""
    if op in (operator.add, operator.iadd) and class_of(left) is class_of(right):
        return joined([left, right])
    left, right = [concrete(vm, side) if type(side) is TracedText else side for side in (left, right)]
    return binary(vm, op, left, right)


def _as_plain(value: Any) -> Any:
    """An outside instance of a subclass of str and the like as native code compares it."""
    plain = value.plain() if type(value) is Outside else MISSING
    return value if plain is MISSING else plain


def _declines(world: World, cls: type, name: str) -> bool:
    """Whether a class has no operator `name` for objects of other classes."""
    found = world.classes.lookup(cls, name)
    return found is MISSING or found is vars(object).get(name) or cls in (int, float, complex, bool)


def _no_operator(op: Callable[[Any, Any], Any], a: type, b: type) -> TypeError:
    first, second = name_in_c(a), name_in_c(b)
    symbol = OPERATORS[op].symbol
    if symbol in COMPARISONS:
        return TypeError(f"'{symbol}' not supported between instances of '{first}' and '{second}'")
    return TypeError(f"unsupported operand type(s) for {symbol}: '{first}' and '{second}'")


def unary(vm: Machine, op: Callable[[Any], Any], value: Any) -> Any:
    """`-x`, `+x`, `~x`."""
    name = {operator.neg: "__neg__", operator.pos: "__pos__", operator.invert: "__invert__"}[op]
    value = behind(vm, value)
    cls = class_of(value)
    if cls not in PLAIN:
        method = python_method(vm.world, cls, name)
        if method is not None:
            return Call(method, [value])
        vm.trace.where = vm.where()
    if op is operator.invert and type(value) in SYMBOLIC:
        return ~concrete(vm, value)
    return vm.trace.perform(op, (native_view(vm, value),), _NO_WORDS)


_DICTS = frozenset({dict, collections.OrderedDict})


def is_same(vm: Machine, left: Any, right: Any) -> bool:
    """`left is right`."""
    if left is right:
        if type(left) is types.FunctionType:
            vm.world.functions.rely_on_identity(left)
        return True
    if left is None or right is None:
        return False
    if _is_answered(vm, left, right):
        return True
    if torch.SymInt in (type(left), type(right)):  # CPython keeps one object for each of the smallest integers
        vm.trace.where = vm.where()
        numbers = {type(left), type(right)} <= {int, torch.SymInt}
        return numbers and bool(left == right and -5 <= left <= 256)
    if torch.SymBool in (type(left), type(right)):  # there is one True
        vm.trace.where = vm.where()
        return {type(left), type(right)} <= {bool, torch.SymBool} and bool(left) is bool(right)
    if class_of(left) is class_of(right):
        vm.world.rely_on_difference(left, right)
        if vm.world.aliases.all and type(left) is TracedTensor is type(right):
            vm.world.aliases.refuse([left, right])
    return False


def _is_answered(vm: Machine, left: Any, right: Any) -> bool:
    """Whether one of two values stands for an outside object, and the other is that object as native code has answered
    it; guarded."""
    for value, other in ((left, right), (right, left)):
        if type(value) is Outside and value.real is other:
            vm.world.guards.add(value.source, "is", other)
            return True
    return False


def truth(vm: Machine, value: Any) -> Any:
    """True, False, or the Call that answers the question."""
    cls = type(value)
    if cls in PLAIN:
        return bool(value)
    if cls is Outside and value.cls in _DICTS:
        return value.dict_items.length() > 0
    if cls is TracedTensor or cls in PENDING:
        vm.trace.where = vm.where()
        return bool(value)
    value = behind(vm, value)
    cls = class_of(value)
    if cls in (types.ModuleType, types.BuiltinFunctionType, types.MethodType) or issubclass(cls, type):
        return True
    found = (vm.world.classes.lookup(cls, name) for name in ("__bool__", "__len__"))
    method = next((each for each in found if each is not MISSING), MISSING)
    if type(method) is types.FunctionType or method is None:
        return Call(polyfill("truth"), [value])
    if type(value) is Outside:
        if value.items is not None:
            return value.items.length() > 0
        return True if method is MISSING else bool(native_view(vm, value))
    if type(value) is Generator:
        return True
    return bool(value)


def contains(vm: Machine, container: Any, item: Any) -> Any:
    """`item in container`: True, False, or MISSING when a polyfill has to answer."""
    cls = type(container)
    if cls in PLAIN:
        vm.trace.where = vm.where() if type(item) is TracedTensor else vm.trace.where
        if cls in (list, tuple) and has_python_eq(vm, container, item):
            return MISSING
        return (as_key(vm, item) if cls in _NATIVELY_SEARCHED else item) in container
    real = class_of(container)
    if cls is Generator or python_method(vm.world, real, "__contains__") is not None:
        return MISSING
    if cls is Outside:
        if container.contents is not None:
            return contains(vm, container.contents, item)
        if container.items is None:
            return MISSING
        return container.items.get(as_key(vm, item)) is not MISSING
    if vm.world.classes.lookup(real, "__contains__") is MISSING and not issubclass(real, type):
        return MISSING
    vm.trace.where = vm.where()
    return item in container


def has_python_eq(vm: Machine, container: Any, item: Any = None) -> bool:
    """Whether comparing the items of a container (with `item`, or with others) runs an `__eq__` of the program."""
    for value in (item, *(container.values() if type(container) is dict else container)):
        cls = type(value)
        if cls in (list, tuple, dict):
            if has_python_eq(vm, value):
                return True
        elif cls not in _PLAIN_OR_TENSOR and python_method(vm.world, class_of(value), "__eq__") is not None:
            return True
    return False


def _stacked(index: Any) -> Any:
    """A sequence of numbers, an index of a tensor, as a tensor if traced ones are among them."""
    if not any(type(item) is TracedTensor for item in index):
        return index
    return torch.stack([torch.as_tensor(item) for item in index])


def _numbered(bounds: slice) -> slice:
    """A slice with numbers, which may be symbols, for the tensors of one integer that its bounds are: C++ would ask for
    their values."""
    if all(type(bound) in _BOUNDS for bound in (bounds.start, bounds.stop)):
        return bounds
    return slice(_number_in(bounds.start), _number_in(bounds.stop), bounds.step)


def _number_in(bound: Any) -> Any:
    bound = as_number(bound)
    if type(bound) is not TracedTensor or bound.dtype not in _INTEGER_TYPES:
        return bound
    return bound.item() if all(type(size) is int and size == 1 for size in bound.shape) else bound


_ASSIGNED = (float, SupportsIndex)  # torch takes no other numbers as items, of NumPy's float32 say
_BOUNDS = frozenset({int, type(None), torch.SymInt})
_INTEGER_TYPES = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})


def _selecting(index: TracedTensor) -> Any:
    """The number, which may be a symbol, in a tensor that selects one place: C++ would ask for its value. (One of bytes
    is a mask.)"""
    selects = not index.dim() and index.dtype in _INTEGER_TYPES and index.dtype is not torch.uint8
    return index.item() if selects else index


#: what is made of an index of a tensor, or of a part of it, by its class
AS_INDEX: dict[type, Callable[[Any], Any]] = {
    list: _stacked,
    tuple: _stacked,
    slice: _numbered,
    TracedTensor: _selecting,
}


def _tensor_index(key: Any) -> Any:
    """An index of a tensor, with tensors in place of arrays and of sequences of tensors, and numbers in place of
    tensors that are bounds of slices."""
    if type(key) is tuple:
        if AS_INDEX.keys().isdisjoint(map(type, key)):
            return key
        return tuple([AS_INDEX[type(part)](part) if type(part) in AS_INDEX else part for part in key])
    if type(key) is list:  # torch decides whether this is a sequence of indices or of numbers
        return key
    return AS_INDEX[type(key)](key) if type(key) in AS_INDEX else key


def _has_symbols(key: Any) -> bool:
    """Whether there are symbolic integers in an index of a tensor."""
    return type(key) is torch.SymInt or (type(key) is tuple and any(type(part) is torch.SymInt for part in key))


def is_index_of_program(world: World, cls: type) -> bool:
    """Whether the program's own code makes an integer of instances of a class. What is an int is not asked."""
    return not issubclass(cls, int) and python_method(world, cls, "__index__") is not None


_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    slice: lambda key: (key.start, key.stop, key.step),
    tuple: iter,
}
_NEVER_CONVERTED = (PLAIN - {slice, tuple}) | {TracedTensor, *SYMBOLIC}


def is_converted(vm: Machine, key: Any) -> bool:
    """Whether the program's own code makes integers of an index, or of parts of it."""
    cls = type(key)
    if cls in _NEVER_CONVERTED:
        return False
    if cls in _PARTS:
        return any(is_converted(vm, part) for part in _PARTS[cls](key))
    return is_index_of_program(vm.world, class_of(key))


def by_index(vm: Machine, operation: Any, owner: Any, key: Any, *rest: Any) -> Any:
    """The Call that does an operation on an item after the program's code has made integers of its place, as tensors
    and sequences have it; else MISSING."""
    if type(key) in _NEVER_CONVERTED or not (is_converted(vm, key) or _names_objects(key)):
        return MISSING
    real = class_of(owner)
    if issubclass(real, (torch.Tensor, numpy.ndarray)):
        if _is_sequence(vm, key):
            return MISSING  # an index of several places, not asked for an integer
        return Call(polyfill("by_tensor_index"), [operation, owner, key, *rest])
    return Call(polyfill("by_index"), [operation, owner, key, *rest]) if issubclass(real, _INDEXED) else MISSING


def _is_sequence(vm: Machine, key: Any) -> bool:
    """Whether an index of a tensor, or a part of it, is an object of the program's that has items."""
    if type(key) is tuple:
        return any(_is_sequence(vm, part) for part in key)
    return type(key) not in _NEVER_CONVERTED and python_method(vm.world, class_of(key), "__getitem__") is not None


def _names_objects(key: Any) -> bool:
    """Whether a bound of a slice is an object from outside: native code would refuse what stands for it."""
    return type(key) is slice and any(type(part) is Outside for part in _PARTS[slice](key))


_item = operator.getitem  # what that raises is the program's exception (see `faults`)


def get_item(vm: Machine, owner: Any, key: Any) -> Any:
    """`owner[key]`."""
    cls = type(owner)
    if cls in PLAIN:
        if cls is dict:
            return _item(owner, as_key(vm, key))
        if type(key) in SYMBOLIC:
            vm.trace.where = vm.where()
        if type(key) is Outside and vm.world.classes.lookup(key.cls, "__index__") is MISSING:
            return _item(owner, key.real)  # raises
        return _item(owner, key) if (call := by_index(vm, operator.getitem, owner, key)) is MISSING else call
    if cls is TracedTensor:
        if (call := by_index(vm, operator.getitem, owner, key)) is not MISSING:
            return call
        vm.trace.where = vm.where()
        key = _tensor_index(key)
        if vm.trace.has_symbols and _has_symbols(key):
            owner, key = data.with_selected(owner, key)
            return _item(owner, key) if key else owner
        owner, key = data.with_wide_mask(vm.trace, owner, key)
        return _item(owner, key)
    real = class_of(owner)
    method = python_method(vm.world, real, "__getitem__")
    if method is not None:
        return Call(method, [owner, key])
    if cls is Outside:
        if owner.contents is not None:
            return get_item(vm, owner.contents, key)
        if owner.items is None and (plain := owner.plain()) is not MISSING:
            return get_item(vm, plain, key)
        if owner.items is None:
            raise Unsupported(f"an item of an outside {real.__name__} object", vm.where(), kind="outside_object")
        key = as_key(vm, key)
        found = owner.items.get(key)
        if found is MISSING:
            missing = python_method(vm.world, real, "__missing__")
            if missing is not None:
                return Call(missing, [owner, key])
            if issubclass(real, collections.defaultdict):
                return Call(polyfill("default_item"), [owner, key])
            raise KeyError(key)
        return found
    if issubclass(real, collections.defaultdict) and key not in owner:
        return Call(polyfill("default_item"), [owner, key])
    if (call := by_index(vm, operator.getitem, owner, key)) is not MISSING:
        return call
    return _item(owner, key if _knows_symbols(owner) else as_key(vm, key))


def _assign(value: Any, owner: Any, key: Any) -> None:
    owner[key] = value


def set_item(vm: Machine, owner: Any, key: Any, value: Any) -> Any:
    """`owner[key] = value`; None, or the Call that does it."""
    cls = type(owner)
    if cls in PLAIN or cls is TracedTensor:
        if (call := by_index(vm, operator.setitem, owner, key, value)) is not MISSING:
            return call
        vm.trace.where = vm.where()
        if cls is TracedTensor:
            key = _tensor_index(key)
            if vm.trace.has_symbols and _has_symbols(key):
                owner, key = data.with_selected(owner, key)
            parts = key if type(key) is tuple else (key,)
            if masked_writes.concerns(parts, value):
                assign = functools.partial(_assign, value)
                masked_writes.write(vm, operator.setitem, [owner, key, value], parts, assign)
                return None
            owner, key = data.with_wide_mask(vm.trace, owner, key)
            if type(value) in AS_NUMBER and issubclass(SEEN_AS[type(value)], _ASSIGNED):
                value = as_number(value)
        if cls is list and is_lazy_slice(vm, key, value):
            return Call(polyfill("assign_slice"), [operator.setitem, owner, key, value])
        owner[as_key(vm, key) if cls is dict else key] = value
        return None
    real = class_of(owner)
    method = python_method(vm.world, real, "__setitem__")
    if method is not None:
        return Call(method, [owner, key, value])
    if cls is not Outside and (call := by_index(vm, operator.setitem, owner, key, value)) is not MISSING:
        return call
    if issubclass(real, (list, bytearray)) and is_lazy_slice(vm, key, value):
        return Call(polyfill("assign_slice"), [operator.setitem, owner, key, value])
    if cls is Outside:
        if owner.contents is not None:
            return set_item(vm, owner.contents, key, value)
        if owner.items is None:
            raise Unsupported(
                f"an item of an outside {real.__name__} object is assigned", vm.where(), kind="outside_object"
            )
        owner.items.set(as_key(vm, key), value)
    else:
        owner[key] = value
    return None


def is_lazy(vm: Machine, value: Any) -> bool:
    """Whether only the program can iterate over a value."""
    if type(value) in (Generator, TracedTensor):  # a traced tensor's own __iter__ is run as it is
        return type(value) is Generator
    cls = class_of(value)
    return cls not in PLAIN and python_method(vm.world, cls, "__iter__") is not None


def is_lazy_slice(vm: Machine, key: Any, value: Any) -> bool:
    """Whether a slice is assigned what only the program can iterate over."""
    return type(key) is slice and native_iterable(vm, value) is MISSING


def delete_item(vm: Machine, owner: Any, key: Any) -> Any:
    """`del owner[key]`; None, or the Call that does it."""
    real = class_of(owner)
    method = python_method(vm.world, real, "__delitem__")
    if method is not None:
        return Call(method, [owner, key])
    if type(owner) is Outside:
        if owner.contents is not None:
            return delete_item(vm, owner.contents, key)
        if owner.items is None:
            raise Unsupported(
                f"an item of an outside {real.__name__} object is deleted", vm.where(), kind="outside_object"
            )
        if owner.items.get(key) is MISSING:
            raise KeyError(key)
        owner.items.set(key, MISSING)
        return None
    if (call := by_index(vm, operator.delitem, owner, key)) is not MISSING:
        return call
    del owner[key]
    return None


def native_iterable(vm: Machine, value: Any) -> Any:
    """Something native code may iterate over in place of `value`, or MISSING when iteration has to be interpreted."""
    cls = type(value)
    if cls in PLAIN:
        return value
    if cls is TracedTensor:
        vm.trace.where = vm.where()
        return value
    if cls is Generator:
        return MISSING
    real = class_of(value)
    method = vm.world.classes.lookup(real, "__iter__")
    if type(method) is types.FunctionType or (
        method is MISSING and python_method(vm.world, real, "__getitem__") is not None
    ):
        return MISSING
    return native_view(vm, value)


def special_method(vm: Machine, value: Any, name: str) -> Any:
    """The special method `name`, looked up on the class and bound, or MISSING."""
    cls = class_of(value)
    found = vm.world.classes.lookup(cls, name)
    if found is MISSING:
        return MISSING
    if type(value) is Outside or type(found) is types.FunctionType:
        return types.MethodType(found, value)
    return getattr(value, name)


def call_for_effect(vm: Machine, frame: Frame, request: Any) -> Any:
    """Make a call whose result is dropped; `request` is a Call or None."""
    if request is None:
        return None
    if vm.call(frame, request.function, request.args, request.kwargs):
        vm.frames[-1].then = "drop"
        return True
    frame.stack.pop()
    return None
