"""What is found along a source in a call, before any guard is asked: so nothing of the program's is run."""

from __future__ import annotations

import collections
import inspect
import types
import weakref
from collections.abc import Mapping

from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import contents_of, own_namespace
from bolide.saving.contents import Value

REFERENT = weakref.ReferenceType.__call__
"""What gives the object that is referred to weakly."""
_PLAIN = (types.FunctionType, types.CellType)
"""Of these, attributes that C computes are what is stored."""


def reached(source: Source, values: Mapping[str, object]) -> Value:
    """The value at a source; `values`: those of the call, by the names of parameters. Raises LookupError,
    AttributeError, ValueError or TypeError where there is none, or only the program could tell."""
    match source.kind:
        case "local":
            return values[source.key]
        case "global":
            return dict.__getitem__(source.obj, source.key[1])
        case "closure":
            return contents_of(source.obj)
        case "object":
            return source.obj
    if source.base is None:
        raise LookupError(source.kind)
    base = reached(source.base, values)
    match source.kind:
        case "type":
            return type(base)
        case "namespace":
            return own_namespace(base)
        case "member":
            return own_namespace(base)[source.key]
        case "attr":
            return _attribute(base, source.key)
        case "apply" if source.obj is REFERENT and type(base) is weakref.ReferenceType:
            return base()
        case "item" | "dict_value":
            return _item(base, source.key)
    raise LookupError(source.kind)


def _attribute(base: Value, name: str) -> Value:
    if name == "__dict__":
        return own_namespace(base)
    found = inspect.getattr_static(base, name)
    in_c = (types.MemberDescriptorType, types.GetSetDescriptorType)[: 2 if type(base) in _PLAIN else 1]
    return found.__get__(base) if type(found) in in_c else found


def _item(base: Value, key: Value) -> Value:
    kinds: tuple[Value, ...] = dict, list, tuple, collections.deque
    for kind in kinds:
        if isinstance(base, kind):
            return kind.__getitem__(base, key)
    raise LookupError(key)
