"""The parameters of a function, for generated functions that take the same ones."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from dataclasses import dataclass


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

    @staticmethod
    def of(code: types.CodeType) -> Signature:
        count = code.co_argcount
        names = code.co_varnames
        declare = list(names[:count])
        forward = list(names[:count])
        if code.co_posonlyargcount:
            declare.insert(code.co_posonlyargcount, "/")
        keywords = names[count : count + code.co_kwonlyargcount]
        end = count + code.co_kwonlyargcount
        containers = []
        if code.co_flags & inspect.CO_VARARGS:
            containers.append(names[end])
            declare.append(f"*{names[end]}")
            forward.append(f"*{names[end]}")
            end += 1
        elif keywords:
            declare.append("*")
        declare += keywords
        forward += [f"{name}={name}" for name in keywords]
        if code.co_flags & inspect.CO_VARKEYWORDS:
            containers.append(names[end])
            declare.append(f"**{names[end]}")
            forward.append(f"**{names[end]}")
            end += 1
        return Signature(tuple(names[:end]), ", ".join(declare), ", ".join(forward), tuple(containers))
