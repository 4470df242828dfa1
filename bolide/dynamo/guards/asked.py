"""Guards that are asked one by one, without generated code: for the first calls of an entry, as generating its check
takes longer than many of these, and to say which guard failed and why. The verdict is that of `texts.conditions`."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import torch

from bolide.dynamo.guards import texts
from bolide.dynamo.program.captured import Guard, Source, TensorGuard
from bolide.dynamo.program.kinds import (
    MISSING,
    MODULE_DICTS,
    has_plain_namespace,
    is_constant,
    ordered_keys,
    own_namespace,
    same_constant,
    steering,
)
from bolide.dynamo.program.sources import ABSENT, Namespace, Reader, Signature
from bolide.tracing import modes

Value = Any
"""Of the program's."""


class Failure(NamedTuple):
    """A guard that does not hold for a call: the value it found instead, as text, and what is true of that if it is a
    tensor.
    """

    guard: Guard
    actual: str
    tensor: TensorGuard | None


class Call:
    """The values of a check's names in one call, and what is read of them, each source once. `classes`: those that
    sources are guarded to have."""

    def __init__(self, names: Sequence[str], values: Sequence[object], classes: Mapping[Source, type]) -> None:
        self.values = dict(zip(names, values))
        self.classes = classes
        self._read: dict[Source, Value] = {}

    def read(self, source: Source) -> Value:
        """The value at a source. Raises what reading it raises."""
        if source.kind == "object":
            return source.obj
        found = self._read.get(source, MISSING)
        if found is MISSING:
            found = self._read[source] = self._path(source)
        return found

    def found(self, guard: Guard) -> Value:
        """The value that a guard is about."""
        assert guard.source is not None
        return self.read(guard.source)

    def _path(self, source: Source) -> Value:
        kind, key = source.kind, source.key
        if kind == "local":
            return self.values[key]
        if kind == "global":
            return source.obj[key[1]]
        if kind == "closure":
            return source.obj.cell_contents
        assert source.base is not None
        base = self.read(source.base)
        match kind:
            case "attr":
                return getattr(base, key)
            case "type":
                return type(base)
            case "namespace":
                return self._namespace(source.base, base)
            case "member":
                return self._namespace(source.base, base)[key]
            case "several":
                return (base, *map(self.read, key))
            case "apply":
                return source.obj(base, *key)
            case "dict_value" if self.classes.get(source.base) is not dict and source.base.key not in MODULE_DICTS:
                return dict.get(base, key, ABSENT)
            case _:
                return base[key]

    def _namespace(self, owner: Source, base: Value) -> Value:
        cls = type(owner.obj) if owner.kind == "object" else self.classes.get(owner)
        plain = cls is not None and has_plain_namespace(cls)
        return object.__getattribute__(base, "__dict__") if plain else own_namespace(base)

    def holds(self, guard: Guard) -> bool:
        """Whether a guard holds; False where asking raises."""
        test = _TESTS.get(guard.kind, _by_text)
        try:
            return bool(test(self, guard))
        except Exception:
            return False


def first_failing(guards: Iterable[Guard], call: Call) -> Guard | None:
    """The first guard that does not hold for a call."""
    for guard in guards:
        if not call.holds(guard):
            return guard
    return None


def check(names: Sequence[str], guards: Sequence[Guard], wanted: Sequence[Source]) -> Callable[..., list[Value] | None]:
    """The check of these guards: see `native.check`."""
    classes = texts.classes_of(guards)

    def asked(*values: object) -> list[Value] | None:
        call = Call(names, values, classes)
        with modes.unseen():
            return None if first_failing(guards, call) is not None else [*map(call.read, wanted)]

    return asked


def _by_text(call: Call, guard: Guard) -> bool:
    """By the expressions of `texts`: of guards of which an entry has few, and those of symbolic sizes."""
    namespace = Namespace(call.values)
    reader = Reader(namespace, Counter(), call.classes)
    for read in texts.read_sources(guard):
        namespace.values[reader.bind(read)] = call.read(read)
    conditions = texts.conditions(guard, reader)
    return bool(eval(" and ".join(conditions), {**namespace.values, **call.values}))


def _tensor(call: Call, guard: Guard) -> bool:
    value, expected = call.found(guard), guard.expected
    if type(value) is not expected.cls:
        return False
    if expected.symbols:
        return _by_text(call, guard)
    if value.shape != expected.shape or value.dtype is not expected.dtype:
        return False
    if value.requires_grad is not expected.requires_grad or value.stride() != expected.stride:
        return False
    if value.is_cpu is not True if expected.device.type == "cpu" else value.device != expected.device:
        return False
    has_other_history = expected.requires_grad and value.is_leaf is not expected.leaf
    if expected.cls is not torch.nn.Parameter and (value.is_neg() or has_other_history):
        return False
    return not (expected.dtype.is_complex and value.is_conj())


def _equals(call: Call, guard: Guard) -> bool:
    value, expected = call.found(guard), guard.expected
    kind = type(expected)
    if expected is None or expected is True or expected is False or expected is ...:
        return value is expected
    if kind in (int, str, bytes) or (kind is float and expected == expected):
        same = type(value) is kind and value == expected
        return same and (kind is not float or math.copysign(1.0, value) == math.copysign(1.0, expected))
    if kind in (torch.dtype, torch.layout, torch.memory_format):
        return value is expected
    return (value is expected and is_constant(expected)) or same_constant(value, expected)


def _keys(call: Call, guard: Guard) -> bool:
    keys, wanted = ordered_keys(call.found(guard)), [*guard.expected]
    return keys == wanted if all(type(key) is str for key in wanted) else same_constant(keys, wanted)


def _state(call: Call, guard: Guard) -> bool:
    return modes.count_functions() == guard.expected.functions and _by_text(call, guard)


def _attribute(call: Call, guard: Guard) -> bool:
    expected = guard.expected
    return steering(call.found(guard), expected.name, expected.after) is expected.value


_TESTS: dict[str, Callable[[Call, Guard], object]] = {
    "type": lambda call, guard: type(call.found(guard)) is guard.expected,
    "is": lambda call, guard: call.found(guard) is guard.expected,
    "same": lambda call, guard: call.found(guard) is call.read(guard.expected),
    "length": lambda call, guard: len(call.found(guard)) == guard.expected,
    "has_key": lambda call, guard: dict.__contains__(call.found(guard), guard.expected[0]) is guard.expected[1],
    "has_attr": lambda call, guard: hasattr(call.found(guard), guard.expected[0]) is guard.expected[1],
    "distinct": lambda call, guard: texts.distinct([*map(call.read, guard.expected)]),
    "not_aliased": lambda call, guard: texts.disjoint([*map(call.read, guard.expected)]),
    "dict_keys": _keys,
    "class_attr": _attribute,
    "equals": _equals,
    "tensor": _tensor,
    "global_state": _state,
}
"""By kind of guard."""


# ---- failures --------------------------------------------------------------------------------------------------------


def first_failure(
    guards: Sequence[Guard], signature: Signature, args: Sequence[object], kwargs: Mapping[str, object]
) -> Failure | None:
    """The first guard that does not hold for a call."""
    call = Call(signature.names, signature.bound(args, kwargs), texts.classes_of(guards))
    with modes.unseen():
        guard = first_failing(guards, call)
        if guard is None:
            return None
        actual = _actual(guard, call)
    if isinstance(actual, TensorGuard):
        return Failure(guard, texts.text(Guard(guard.source, "tensor", actual)), actual)
    return Failure(guard, actual, None)


def other_form(
    guards: Sequence[Guard],
    names: AbstractSet[object],
    signature: Signature,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> str | None:
    """In what a call has another form than the one that an entry with these guards was made for, as a kind of guards:
    an argument, or what is read of one, is None or is there where it was not, is of another class or type, another
    member of an enum, or there is another number of them. None if it has the same, or if a dict has keys that are none
    of `names`: one that grows has no end of forms."""
    call = Call(signature.names, signature.bound(args, kwargs), texts.classes_of(guards))
    with modes.unseen():
        for guard in (guard for guard in guards if not call.holds(guard)):
            if _differs_in_form(guard, call):
                known = guard.kind != "dict_keys" or names >= {*ordered_keys(call.found(guard))}
                return guard.kind if known else None
            if guard.kind not in _PASSED:
                return None
    return None


_PASSED = {"tensor", "equals", "integer"}  # what is read behind another size or number is read as safely
_OF_KEYS, _OF_VALUES = {"dict_keys", "has_key", "has_attr"}, {"type", "length", "tensor", "equals", "is", "integer"}


def _differs_in_form(guard: Guard, call: Call) -> bool:
    """Whether what a guard that does not hold is about has another form than is expected."""
    if guard.kind not in _OF_VALUES:
        return guard.kind in _OF_KEYS
    try:
        value = call.found(guard)
    except Exception:  # it is not there
        return True
    expected = guard.expected
    if guard.kind == "tensor":
        return type(value) is not expected.cls or (value.dtype, value.dim()) != (expected.dtype, len(expected.shape))
    if guard.kind == "integer":
        return type(value) is not int
    if guard.kind in ("equals", "is"):
        return type(value) is not type(expected) or isinstance(expected, enum.Enum)
    return True


def _actual(guard: Guard, call: Call) -> str | TensorGuard:
    if guard.kind == "global_state":
        return texts.busy() or str(texts.global_state())
    if guard.kind == "relation":
        return f"not {texts.text(guard)}"
    if guard.source is None:
        return "one object in two places" if guard.kind == "distinct" else "a shared storage"
    try:
        value = call.read(guard.source)
        if guard.kind == "length":
            return str(len(value))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if guard.kind == "type":
        return texts.brief(type(value))
    if guard.kind == "class_attr":
        attribute = steering(value, guard.expected.name, guard.expected.after)
        return "none" if attribute is MISSING else texts.brief(attribute)
    if guard.kind == "tensor" and isinstance(value, torch.Tensor):
        refused = texts.refusal(value)
        return refused[0] if refused else texts.tensor_guard(value)
    return texts.brief(value)
