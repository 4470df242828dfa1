"""Text of generated functions: their parameters, and from a `Source` to the Python expression that reads it."""

from __future__ import annotations

import contextlib
import inspect
import keyword
import math
import re
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import MODULE_DICTS, has_plain_namespace, own_namespace

ABSENT: object = type("Absent", (), {"__repr__": lambda self: "<absent>", "__slots__": ()})()
"""What a guarded path gives where a dict has no such key: no guard accepts it."""


def shown(value: object) -> str:
    """A value in a text for people; by its class where `repr` is long (a tensor, a module) or fails (an object that is
    not yet whole)."""
    if not isinstance(value, (torch.Tensor, torch.nn.Module)):
        with contextlib.suppress(Exception):
            return repr(value).replace("\n", " ")
    return f"<{type(value).__name__} at {id(value):#x}>"


def text(source: Source) -> str:
    """The path as a user would write it: ``self.layers[0].weight``."""
    match source.kind:
        case "local":
            return str(source.key)
        case "global":
            return str(source.key[1] if isinstance(source.key, tuple) else source.key)
        case "closure":
            return str(source.key)
        case "object":
            return getattr(source.obj, "__qualname__", None) or f"<{type(source.obj).__name__}>"
        case "drawn":
            return f"random{source.key}"
    assert source.base is not None
    base = text(source.base)
    match source.kind:
        case "attr" | "member":
            return f"{base}.{source.key}"
        case "namespace":
            return f"{base}.__dict__"
        case "type":
            return f"type({base})"
        case "several":
            return f"({', '.join([base, *map(text, source.key)])})"
        case "apply":
            return f"{source.obj.__name__}({', '.join([base, *map(repr, source.key)])})"
        case _:
            return f"{base}[{shown(source.key)}]"


_SYMBOL = re.compile(r"\b[suf]\d+\b")


def symbols_in(expression: str) -> list[str]:
    """The names of the symbols in the text of a condition."""
    return list(dict.fromkeys(_SYMBOL.findall(expression)))


def with_symbols(expression: str, symbols: Mapping[str, str]) -> str:
    """The text of an `Expr` or a `Cond` with what stands for each symbol put in its place."""
    return _SYMBOL.sub(lambda match: symbols[match.group()], expression)


_FUNCTION = re.compile(r"\b(math|min|max|round|pow|divmod)(?=[.(])")
_FUNCTIONS = {"math": math, "min": min, "max": max, "round": round, "pow": pow, "divmod": divmod}


def with_functions(expression: str, namespace: Namespace) -> str:
    """The text of a condition with the functions in it under names that no parameter has."""
    return _FUNCTION.sub(lambda match: namespace.reference(_FUNCTIONS[match.group()], match.group()), expression)


class Namespace:
    """The globals of generated code: constants by name. One object gets one name, and the names start with a prefix
    that no parameter has.
    """

    def __init__(self, parameters: Iterable[str]) -> None:
        self.prefix = "_"
        while any(name.startswith(self.prefix) for name in parameters):
            self.prefix += "_"
        self.values: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._count = 0

    def constant(self, value: object, hint: str = "c") -> str:
        """An expression for something equal to `value`: a literal where that is exact, else its name."""
        if type(value) is int or type(value) is str:
            return repr(value)
        return self.reference(value, hint)

    def reference(self, value: object, hint: str = "c") -> str:
        """An expression for the very object `value`."""
        if value is None or value is True or value is False or value is ...:
            return repr(value)
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = self.fresh(hint)
            self.values[name] = value
        return name

    def fresh(self, hint: str) -> str:
        """A name nothing else has; the caller decides what it stands for."""
        self._count += 1
        return f"{self.prefix}{hint if hint.isidentifier() else 'c'}{self._count}"


class Reader:
    """Expressions for sources, each source evaluated once: the first use of one that is needed again binds it to a
    local with ``:=``.

    Uses have to be emitted in the order in which they will be evaluated, and every later one has to be reached only
    through the earlier ones.
    `classes`: those that are known of sources. Dicts are read by subscript.
    """

    def __init__(self, namespace: Namespace, uses: Counter[Source], classes: Mapping[Source, type]) -> None:
        self.namespace = namespace
        self.uses = uses
        self.classes = classes
        self._bound: dict[Source, str] = {}

    def read(self, source: Source) -> str:
        """An expression for the value at `source`."""
        if source.kind == "local":
            return str(source.key)
        if source.kind == "object":
            return self.namespace.reference(source.obj, "o")
        bound = self._bound.get(source)
        if bound is not None:
            return bound
        expression = self._path(source)
        if self.uses[source] < 2:
            return expression
        bound = self._bound[source] = self.namespace.fresh("v")
        return f"({bound} := {expression})"

    def again(self, source: Source) -> str:
        """The value of a source that `read` has just read and that is used twice or more."""
        return self._bound.get(source) or self.read(source)

    def bind(self, source: Source) -> str:
        """A name for the value of a source: the caller sees to it that it has the value."""
        return self._bound.setdefault(source, self.namespace.fresh("v"))

    def _path(self, source: Source) -> str:
        constant, reference = self.namespace.constant, self.namespace.reference
        if source.kind == "global":
            return f"{reference(source.obj, 'g')}[{source.key[1]!r}]"
        if source.kind == "closure":
            return f"{reference(source.obj, 'cell')}.cell_contents"
        assert source.base is not None
        base = self.read(source.base)
        match source.kind:
            case "attr" if source.key.isidentifier() and not keyword.iskeyword(source.key):
                return f"{base}.{source.key}"
            case "attr":
                return f"{constant(getattr, 'getattr')}({base}, {source.key!r})"
            case "type":
                return f"{constant(type, 'type')}({base})"
            case "namespace":
                return self._namespace(source.base, base)
            case "member":
                return f"{self._namespace(source.base, base)}[{source.key!r}]"
            case "several":
                return f"({', '.join([base, *map(self.read, source.key)])})"
            case "apply":
                return f"{reference(source.obj, 'f')}({', '.join([base, *map(constant, source.key)])})"
            case "dict_value" if self.classes.get(source.base) is not dict and source.base.key not in MODULE_DICTS:
                # not dict.__getitem__, which calls the __missing__ of subclasses: a defaultdict would grow
                key, absent = constant(source.key, "k"), constant(ABSENT, "absent")
                return f"{constant(dict.get, 'dictget')}({base}, {key}, {absent})"
            case _:
                return f"{base}[{constant(source.key, 'k')}]"

    def _namespace(self, owner: Source, base: str) -> str:
        """An expression for the `__dict__` of an instance."""
        cls = type(owner.obj) if owner.kind == "object" else self.classes.get(owner)
        if cls is not None and has_plain_namespace(cls):
            return f"{self.namespace.constant(object.__getattribute__, 'getattribute')}({base}, '__dict__')"
        return f"{self.namespace.constant(own_namespace, 'own')}({base})"


def count_uses(sources: Iterable[Source]) -> Counter[Source]:
    """How often each source is read when each of `sources` is: a base counts once for each distinct path built on
    it.
    """
    uses: Counter[Source] = Counter()
    for source in sources:
        for step in source.steps():
            uses[step] += 1
            if uses[step] > 1:
                break
    return uses


@dataclass(frozen=True)
class Signature:
    """The parameters of a code object as text: `declare` for a `def`, `forward` for a call that passes every one of
    them on. `containers`: the names of ``*args`` and ``**kwargs``.
    """

    names: tuple[str, ...]
    declare: str
    forward: str
    containers: tuple[str, ...] = ()

    def passing(self, values: Mapping[str, str]) -> str:
        """As `forward`, with other expressions for some of the parameters."""
        passed = []
        for part in self.forward.split(", "):
            name, keyword, _ = part.partition("=")
            passed.append(f"{name}{keyword}{values[name]}" if keyword and name in values else values.get(name, part))
        return ", ".join(passed)

    def bound(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, ...]:
        """The values of the names in a call that passes every parameter."""
        scope: dict[str, Callable[..., tuple[object, ...]]] = {}
        exec(f"def values({self.declare}): return ({''.join(f'{name}, ' for name in self.names)})", scope)
        found: tuple[object, ...] = scope["values"](*args, **kwargs)
        return found

    @staticmethod
    def of(code: types.CodeType) -> Signature:
        count, names = code.co_argcount, code.co_varnames
        keywords = names[count : count + code.co_kwonlyargcount]
        rest = names[count + code.co_kwonlyargcount :]
        several = [f"*{rest[0]}"] if code.co_flags & inspect.CO_VARARGS else []
        named = [f"**{rest[len(several)]}"] if code.co_flags & inspect.CO_VARKEYWORDS else []
        declare = [*names[:count], *(several or (["*"] if keywords else [])), *keywords, *named]
        if code.co_posonlyargcount:
            declare.insert(code.co_posonlyargcount, "/")
        forward = [*names[:count], *several, *(f"{name}={name}" for name in keywords), *named]
        containers = rest[: len(several) + len(named)]
        every = (*names[:count], *keywords, *containers)
        return Signature(every, ", ".join(declare), ", ".join(forward), containers)
