"""Operators, truth, iteration and the like on values: natively where that is exact, else as a call of a polyfill or of
the object's own method."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from bolide.dynamo.bytecode.uniform import COMPARISONS, OPERATORS
from bolide.dynamo.machine.breaking import refuse_array
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.stand_ins import (
    HASHED,
    PENDING,
    PLAIN,
    SIZED_KEYS,
    STAND_INS,
    SYMBOLIC,
    Key,
    as_number,
    asked_by,
    behind,
    class_of,
    concrete,
    is_number,
    note_order,
    overridden,
    overrides,
    settle_keys,
    settled,
)
from bolide.dynamo.program.kinds import CONSTANT_TYPES, MISSING, is_constant, name_in_c
from bolide.dynamo.world.frames import Generator
from bolide.dynamo.world.outside import Outside
from bolide.dynamo.world.texts import TracedText, joined
from bolide.dynamo.world.world import World
from bolide.support.errors import Unsupported, forgive
from bolide.symbolic import KeyNode, hint_of, is_data, is_undecided
from bolide.tracing import TracedTensor
from bolide.tracing.numbers import data

_NATIVELY_SEARCHED = (dict, set, frozenset, str, bytes)
_POWERS = (operator.pow, operator.ipow)
_UNIONS = (operator.or_, operator.ior)
_FILL_IN = (operator.mod, operator.imod)  # of a text
_INTEGERS = (int, torch.SymInt)
SEQUENCES = (list, tuple, str, bytes)
_REPEATS = (operator.mul, operator.imul)
_PLAIN_OR_TENSOR = PLAIN | {TracedTensor, *SYMBOLIC}
_NO_WORDS: dict[str, Any] = {}
T = TypeVar("T")

_MIRRORED: dict[object, Callable[[Any, Any], Any]] = {
    operator.lt: operator.gt,
    operator.gt: operator.lt,
    operator.le: operator.ge,
    operator.ge: operator.le,
    operator.eq: operator.eq,
    operator.ne: operator.ne,
}
"""The comparisons that Python asks a right operand for first if its class is a subclass of the left one's."""


def _is_of_subclass(tensor: TracedTensor) -> bool:
    """Whether a tensor is of a subclass of torch's class, as parameters are."""
    return tensor.face is not None or isinstance(tensor, torch.nn.Parameter)


_WithOthers = dict[type, Callable[[Machine, Any, Any, Any], Any]]

WITH_TENSORS: _WithOthers = {}
"""The operators of tensors with values of these classes: given the operator, and both in their order."""

WITH_NUMBERS: _WithOthers = {}
"""As `WITH_TENSORS`, of symbolic numbers."""

_WITH = {TracedTensor: WITH_TENSORS, **dict.fromkeys(SYMBOLIC, WITH_NUMBERS)}

_EXTENDED: dict[Any, dict[type, Any]] = {
    operator.iadd: {list: list.__iadd__, collections.deque: collections.deque.__iadd__},
    operator.ior: {collections.OrderedDict: collections.OrderedDict.__ior__, dict: dict.__ior__},
}
"""Operators in place that iterate over what they are given: the methods that do it."""

_SEQUENCE_EQUALITY: dict[Any, tuple[str, str]] = {
    (list, list): ("sequences_equal", "sequences_unequal"),
    (tuple, tuple): ("sequences_equal", "sequences_unequal"),
    (dict, dict): ("dicts_equal", "dicts_unequal"),
}


_SHAPES: dict[type, tuple[type, ...]] = {
    torch.Size: (torch.Size, tuple),
    tuple: (torch.Size, tuple),
    list: (list,),
}
"""Sequences, and those that may be equal to them."""


def _equal_shapes(vm: Machine, op: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Whether sequences are equal, or unequal; where that depends on sizes that are data, one truth value of data."""
    if not all(type(size) in _INTEGERS for size in (*left, *right)) or not any(map(is_data, (*left, *right))):
        return op(left, right)
    vm.trace.where = vm.where()
    if len(left) != len(right) or any(a != b for a, b in zip(left, right) if not (is_data(a) or is_data(b))):
        return op is operator.ne
    differences = [a - b for a, b in zip(left, right) if is_data(a) or is_data(b)]
    one = differences[0] if len(differences) == 1 else sum(difference * difference for difference in differences)
    result = op(one, 0)
    return settled(result) if type(result) in SYMBOLIC else result


def _rely_on_operator(vm: Machine, op: object) -> None:
    """Guard that the methods of tensors behind an operator stay."""
    vm.world.guards.once.add(op)
    for name in filter(None, OPERATORS[op][1:] if op in OPERATORS else ()):
        vm.world.classes.rely_on(torch.Tensor, name)


def _in_graph(value: Any) -> Any:
    """A number made of sizes as one of the graph (torch's own power of those imports sympy)."""
    return value.node.in_graph() if type(value) in (torch.SymInt, torch.SymFloat) else value


def as_key(vm: Machine, key: object, owner: object = None) -> object:
    """A key of a dict or set: hashing needs the value of symbolic numbers, and which function one is. In an `owner`
    that the program has made sizes need no value."""
    if type(key) is types.FunctionType:
        vm.world.functions.rely_on_identity(key)
    if is_keyed_by_sizes(vm, owner, key):
        found = _sized_key(vm, key, owner)
        if found is not MISSING:
            return found
    if type(key) in PENDING:
        return concrete(vm, key)
    if type(key) is tuple and any(type(part) in PENDING or type(part) is tuple for part in key):
        return tuple([as_key(vm, part) for part in key])
    return key


_ATOMS = frozenset({int, float, bool, str, bytes, type(None), type, torch.dtype, torch.device})
_NUMBERS: set[type] = {int, float, bool, torch.SymInt}
_TUPLES: tuple[type, ...] = (tuple, torch.Size)


def with_key(vm: Machine, operation: Callable[..., T], owner: object, key: object, *rest: object) -> T:
    """What native code does with a key of a dict or set."""
    given, key = key, as_key(vm, key, owner)
    if operation is set.add and type(owner) is set and owner and not any(key is member for member in owner):
        settle_keys(vm, owner)  # the order of a set's members comes of their values
        key = as_key(vm, given)
    if not _has_size(key):
        return operation(owner, key, *rest)
    vm.trace.shapes.placing = True
    try:
        return operation(owner, key, *rest)
    finally:
        vm.trace.shapes.placing = False


def is_keyed_by_sizes(vm: Machine, owner: object, key: object) -> bool:
    """Whether a key has to be compared with those that a dict or set of the program's has."""
    return type(owner) in HASHED and (_has_size(key) or bool(SIZED_KEYS.of(vm)))


def _has_size(key: object) -> bool:
    """Whether a key is a size that is a symbol, or such is in it."""
    if isinstance(key, tuple) and type(key) in _TUPLES:
        return any(map(_has_size, key))
    return type(key) is torch.SymInt


def is_of_sizes(key: object) -> bool:
    """Whether a key is made of sizes and constants, which native code compares."""
    if isinstance(key, tuple) and type(key) in _TUPLES:
        return all(map(is_of_sizes, key))
    return type(key) in _ATOMS or (type(key) is torch.SymInt and not is_data(key))


def _sized_key(vm: Machine, key: object, owner: Key) -> object:
    """The key among those of a dict or set that equals this one, which is guarded; else one that may be added, guarded
    to be none of them. MISSING where the values of sizes have to be known."""
    is_sized = _has_size(key)
    others = owner if is_sized else [other for other in owner if _has_size(other)]
    if id(owner) in vm.world.journal.snapshots or not all(map(is_of_sizes, (key, *others))):
        settle_keys(vm, owner)
        return MISSING
    vm.trace.where = vm.where()
    for other in others:
        if _are_equal(key, other):
            return other
    if is_sized:
        key = _hashable(key)
        SIZED_KEYS.of(vm).append(key)
    return key


def _are_equal(key: Key, other: Key) -> bool:
    """Whether two keys made of sizes are equal; if not, as little as possible is asked."""
    pairs = [(key, other)]
    asked = []
    while pairs:
        a, b = pairs.pop()
        kinds = {type(a), type(b)}
        if kinds.issubset(_TUPLES) and len(a) == len(b):
            pairs += zip(a, b)
        elif torch.SymInt in kinds and kinds <= _NUMBERS:
            asked.append((a, b))
        elif torch.SymInt in kinds or not kinds.isdisjoint(_TUPLES) or a != b:
            return False
    different = [(a, b) for a, b in asked if _now(a) != _now(b)]
    return all(a == b for a, b in different[:1] or asked)


def _now(key: Key) -> Key:
    """A number in a key as it is in this call."""
    return hint_of(key) if type(key) is torch.SymInt else key


def _hashable(key: Key) -> Key:
    if type(key) in _TUPLES:
        parts = [_hashable(part) for part in key]
        return torch.Size(parts) if type(key) is torch.Size else tuple(parts)
    if type(key) is not torch.SymInt:
        return key
    node = key.node
    return torch.SymInt(KeyNode(node.env, node.expr, node.hint))  # type: ignore[no-untyped-call]


def is_stored(world: World, cls: type) -> bool:
    """Whether dicts copy from an instance what is stored in it, whatever other methods its class has: it is a dict that
    is iterated over as dicts are."""
    return issubclass(cls, dict) and world.classes.lookup(cls, "__iter__") is dict.__iter__


def has_mapping_code(world: World, cls: type) -> bool:
    """Whether a class has a method in Python that may be asked for its keys and items."""
    return any(world.classes.python_method(cls, name) is not None for name in ("keys", "__getitem__", "__iter__"))


def _merging(vm: Machine, op: object, left: object, right: object) -> Call | None:
    """`left | right` or `left |= right` of dicts whose own methods may be asked for what is in them, else None."""
    sides = class_of(left), class_of(right)
    if not all(issubclass(cls, dict) and not issubclass(cls, collections.defaultdict) for cls in sides):
        return None
    if not any(cls not in PLAIN and has_mapping_code(vm.world, cls) for cls in sides):
        return None
    return Call.polyfill("dict_or" if op is operator.or_ else "dict_ior", left, right)


def _known_to(vm: Machine, value: object, other: object) -> object:
    """An operand: a number in place of a symbol, where the other one knows of none."""
    return concrete(vm, value) if type(value) in SYMBOLIC and not knows_symbols(other) else value


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


def native_view(vm: Machine, value: object) -> Any:
    """What native code may be given for `value`; raises Unsupported for an outside object that is not a plain
    container."""
    if type(value) is Outside:
        container = value.container()
        if container is not None:
            return container
        plain = value.plain()
        if plain is not MISSING:
            return plain
        reason = f"an outside {value.cls.__name__} object is used by a built-in operation"
        raise vm.unsupported(reason, "outside_object")
    return value


def binary(vm: Machine, op: Callable[[Any, Any], Any], left: object, right: Any) -> Any:
    """`left op right`."""
    a, b = type(left), type(right)
    settle_keys(vm, left, right)
    if a in PLAIN and b in PLAIN:
        if a is str and op in _FILL_IN and not is_plain(right):
            return Call.polyfill("percent", left, right)
        if op is operator.eq or op is operator.ne:
            if a is types.FunctionType is b:
                return is_same(vm, left, right) is (op is operator.eq)
            names = _SEQUENCE_EQUALITY.get((a, b))
            if names is not None and left is not right and (has_python_eq(vm, left) or has_python_eq(vm, right)):
                return Call.polyfill(names[op is operator.ne], left, right)
            if b in _SHAPES.get(a, ()) and vm.trace.shapes.facts.names:
                return _equal_shapes(vm, op, left, right)
        return op(left, right)
    if a is str and op in _FILL_IN and b is not str:
        return Call.polyfill("percent", left, right)
    if a in _PLAIN_OR_TENSOR and b in _PLAIN_OR_TENSOR:
        vm.trace.where = vm.where()
        if op in _MIRRORED and a is TracedTensor is b and _is_of_subclass(right) and not _is_of_subclass(left):
            left, right, op = right, left, _MIRRORED[op]
        if op not in vm.world.guards.once and (a is TracedTensor or b is TracedTensor):
            _rely_on_operator(vm, op)
        if op in _POWERS and TracedTensor not in (a, b) and not (a in _INTEGERS and b in _INTEGERS and right >= 0):
            left, right = _in_graph(left), _in_graph(right)
        result = vm.perform(op, _counted(vm, op, left, right), _NO_WORDS)
        return settled(result) if type(result) in SYMBOLIC else result
    if a is TracedText or b is TracedText:
        return _of_text(vm, op, left, right)
    for cls, by in ((b, _WITH.get(a)), (a, _WITH.get(b))):
        if by is not None and cls in by:
            return by[cls](vm, op, left, right)
    if op in _REPEATS and ((is_number(left) and b in SEQUENCES) or (is_number(right) and a in SEQUENCES)):
        return binary(vm, op, as_number(left), as_number(right))
    left, right = behind(vm, left), behind(vm, right)
    a, b = class_of(left), class_of(right)
    symbol, in_place, forward, reflected = OPERATORS[op]
    look = vm.world
    if (
        (in_place and look.classes.python_method(a, in_place))
        or look.classes.python_method(a, forward)
        or look.classes.python_method(b, reflected)
        or (op is operator.ne and (look.classes.python_method(a, "__eq__") or look.classes.python_method(b, "__eq__")))
    ):
        if op is operator.eq or op is operator.ne:
            return Call.polyfill("equal" if op is operator.eq else "unequal", left, right)
        if symbol in COMPARISONS:
            return Call.polyfill("compare", left, right, forward, reflected, symbol)
        return Call.polyfill("binary", left, right, in_place, forward, reflected, symbol)
    if op is operator.eq or op is operator.ne:
        left, right = _as_plain(left), _as_plain(right)
        same = _equal_by_identity(vm, left, right)
        if same is not None:
            return same is (op is operator.eq)
    elif op is operator.ior and type(left) is Outside and left.items is not None:
        return Call.polyfill("dict_ior", left, right)
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
    view, other = _known_to(vm, view, other), _known_to(vm, other, view)
    if in_place:
        refuse_array(vm, left, right)
    plainly = view is left and other is right
    result = vm.perform(op, (view, other), _NO_WORDS) if plainly else _unlike(op, view, other, a, b)
    return left if result is view else result  # in place


_OF_TRUTHS = frozenset({operator.add, operator.iadd, operator.mul, operator.imul})
"""The operators of tensors that make no difference between a truth and 0 or 1, but for tensors of truths."""
_BITWISE = frozenset({operator.and_, operator.or_, operator.xor, operator.iand, operator.ior, operator.ixor})


def _counted(vm: Machine, op: object, left: object, right: object) -> tuple[object, object]:
    """Operands, with truths that data decide as the integers that they are."""
    if torch.SymBool not in (type(left), type(right)) or op in _BITWISE:
        return left, right
    tensors = [value for value in (left, right) if type(value) is TracedTensor]
    if any(tensor.dtype is torch.bool or op not in _OF_TRUTHS for tensor in tensors):
        return left, right
    return _integer_of(vm, left), _integer_of(vm, right)


def _integer_of(vm: Machine, value: object) -> object:
    if not is_undecided(value):
        return value
    return data.number(vm.trace, cast(TracedTensor, data.as_tensor(vm.trace, value).long()))


def _equal_by_identity(vm: Machine, left: object, right: object) -> bool | None:
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
        raise vm.unsupported(reason, "outside_object")


def knows_symbols(value: object) -> bool:
    """Whether operators of this value, which is no plain number, take symbolic numbers for such: those of what stands
    for a tensor or an array, but not those of enumerations, fractions, time differences or NumPy's own arrays."""
    return isinstance(value, torch.Tensor) or type(value) in STAND_INS


_TEXTS = frozenset({str, TracedText})


def _of_text(vm: Machine, op: Callable[[Any, Any], Any], left: object, right: object) -> Any:
    """`left op right`, where one is a text that is known when the graph has run."""
    if op in (operator.add, operator.iadd) and class_of(left) is class_of(right):
        return joined([left, right])
    if op in (operator.eq, operator.ne) and type(left) in _TEXTS and type(right) in _TEXTS:
        vm.trace.where = vm.where()
        return op(left, right)
    left, right = [concrete(vm, side) if type(side) is TracedText else side for side in (left, right)]
    return binary(vm, op, left, right)


def _as_plain(value: object) -> object:
    """An outside instance of a subclass of str and the like as native code compares it."""
    plain = value.plain() if type(value) is Outside else MISSING
    return value if plain is MISSING else plain


def _declines(world: World, cls: type, name: str) -> bool:
    """Whether a class has no operator `name` for objects of other classes."""
    method = world.classes.lookup(cls, name)
    return method is MISSING or method is vars(object).get(name) or cls in (int, float, complex, bool)


def _no_operator(op: Callable[[Any, Any], Any], a: type, b: type) -> TypeError:
    first, second = name_in_c(a), name_in_c(b)
    symbol = OPERATORS[op].symbol
    if symbol in COMPARISONS:
        return TypeError(f"'{symbol}' not supported between instances of '{first}' and '{second}'")
    return TypeError(f"unsupported operand type(s) for {symbol}: '{first}' and '{second}'")


def unary(vm: Machine, op: Callable[[Any], Any], value: object) -> Any:
    """`-x`, `+x`, `~x`."""
    name = {operator.neg: "__neg__", operator.pos: "__pos__", operator.invert: "__invert__"}[op]
    value = behind(vm, value)
    cls = class_of(value)
    if cls not in PLAIN:
        method = vm.world.classes.python_method(cls, name)
        if method is not None:
            return Call(method, [value])
        vm.trace.where = vm.where()
    if op is operator.invert and type(value) in SYMBOLIC:
        return ~concrete(vm, value)
    return vm.perform(op, (native_view(vm, value),), _NO_WORDS)


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


def _is_answered(vm: Machine, left: object, right: object) -> bool:
    """Whether one of two values stands for an outside object, and the other is that object as native code has answered
    it; guarded."""
    for value, other in ((left, right), (right, left)):
        if type(value) is Outside and value.real is other:
            vm.world.guards.add(value.source, "is", other)
            return True
    return False


DATA_DECIDES = ("data_branch", "data_condition")
"""The kinds of refusal where a truth depends on data."""


def truth(vm: Machine, value: Any) -> Any:
    """True, False, or the Call that answers the question."""
    cls = type(value)
    if cls in PLAIN:
        return bool(value)
    if cls is Outside and value.cls in _DICTS:
        return value.dict_items.length() > 0
    if cls is TracedTensor or cls in PENDING:
        if cls is TracedTensor and vm.modes.functions.asks:
            return Call(torch.Tensor.__bool__, [value])
        vm.trace.where = vm.where()
        return bool(value)
    value = behind(vm, value)
    cls = class_of(value)
    if cls in (types.ModuleType, types.BuiltinFunctionType, types.MethodType) or issubclass(cls, type):
        return True
    methods = (vm.world.classes.lookup(cls, name) for name in ("__bool__", "__len__"))
    method = next((each for each in methods if each is not MISSING), MISSING)
    if type(method) is types.FunctionType or method is None:
        return Call.polyfill("truth", value)
    if type(value) is Outside:
        if value.items is not None:
            return value.items.length() > 0
        if (asked := value.questions()) is not None:
            return not asked.is_empty()
        return True if method is MISSING else bool(native_view(vm, value))
    if type(value) is Generator:
        return True
    return bool(value)


def kept_truth(vm: Machine, value: object) -> object:
    """As `truth`, for what keeps the answer rather than branches: where data decide, the guards may ask for it."""
    try:
        return truth(vm, value)
    except Unsupported as error:
        answer = vm.world.program.answer(value) if error.kind in DATA_DECIDES else None
        if answer is None:
            raise
        forgive(error)
        return answer


def contains(vm: Machine, container: Any, item: Any) -> Any:
    """`item in container`: True, False, or MISSING when a polyfill has to answer."""
    cls = type(container)
    if cls in PLAIN:
        vm.trace.where = vm.where() if type(item) is TracedTensor else vm.trace.where
        if cls in (list, tuple) and has_python_eq(vm, container, item):
            return MISSING
        if cls in (list, tuple):
            settle_keys(vm, container, item)
        if cls in _NATIVELY_SEARCHED:
            return with_key(vm, operator.contains, container, item)
        return item in container
    seen = class_of(container)
    if cls is Generator or vm.world.classes.python_method(seen, "__contains__") is not None:
        return MISSING
    if cls is Outside:
        if (asked := container.questions()) is not None and is_constant(item := as_key(vm, item)):
            return asked.has(item)
        if container.contents is not None:
            return contains(vm, container.contents, item)
        if container.items is None:
            return MISSING
        return container.items.get(as_key(vm, item)) is not MISSING
    if vm.world.classes.lookup(seen, "__contains__") is MISSING and not issubclass(seen, type):
        return MISSING
    vm.trace.where = vm.where()
    if cls is TracedText and container.given is not None and type(item) is str:
        return container.given.answer(str.__contains__, item)
    settle_keys(vm, container, item)
    return vm.perform(operator.contains, (container, item), _NO_WORDS)


def has_python_eq(vm: Machine, container: Any, item: Any = None) -> bool:
    """Whether comparing the items of a container (with `item`, or with others) runs an `__eq__` of the program."""
    for value in (item, *(container.values() if type(container) is dict else container)):
        cls = type(value)
        if cls in (list, tuple, dict):
            if has_python_eq(vm, value):
                return True
        elif cls not in _PLAIN_OR_TENSOR and vm.world.classes.python_method(class_of(value), "__eq__") is not None:
            return True
    return False


def is_lazy(vm: Machine, value: object) -> bool:
    """Whether only the program can iterate over a value."""
    if type(value) in (Generator, TracedTensor):
        return type(value) is Generator
    cls = class_of(value)
    if cls in PLAIN:
        return False
    return vm.world.classes.python_method(cls, "__iter__") not in (None, torch.Tensor.__iter__)  # that is run as it is


def native_iterable(vm: Machine, value: object) -> Any:
    """Something native code may iterate over in place of `value`, or MISSING when iteration has to be interpreted."""
    cls = type(value)
    if cls in PLAIN:
        note_order(vm, value)
        return value
    if cls is TracedTensor:
        vm.trace.where = vm.where()
        return tuple(vm.perform(iter, (value,), _NO_WORDS)) if vm.modes.functions.asks else value
    if cls is Generator:
        return MISSING
    seen = class_of(value)
    method = vm.world.classes.lookup(seen, "__iter__")
    if type(method) is types.FunctionType or (
        method is MISSING and vm.world.classes.python_method(seen, "__getitem__") is not None
    ):
        return MISSING
    asked = value.questions() if isinstance(value, Outside) else None
    return native_view(vm, value) if asked is None else asked.listed()


def special_method(vm: Machine, value: object, name: str) -> object:
    """The special method `name`, looked up on the class and bound, or MISSING."""
    cls = class_of(value)
    method = vm.world.classes.lookup(cls, name)
    if method is MISSING:
        return MISSING
    if type(value) is Outside or type(method) is types.FunctionType:
        return types.MethodType(method, value)
    return getattr(value, name)
