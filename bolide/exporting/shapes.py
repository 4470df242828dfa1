"""Which sizes of an exported program may differ from the example's: what `dynamic_shapes` says is put on the arguments
as marks, and afterwards the program is checked against it.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bolide.dynamo.entry.module import call_target
from bolide.dynamo.guards.sizes import Mark, mark, marks_of
from bolide.dynamo.program import sources
from bolide.dynamo.program.captured import Captured, Source, Symbol
from bolide.support.errors import ConstraintError, Unsupported, unknown_name
from bolide.symbolic import Expr

Formula = Callable[..., Any]

Path = tuple[object, ...]
"""The name of an argument, and the keys to what it holds."""


@dataclass(frozen=True)
class Name:
    """The name that a user gave a size; `derived`: the name of another size and this one as a function of it."""

    text: str
    derived: tuple[str, Formula] | None = None


def spelled_out(
    shapes: object, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`dynamic_shapes` by argument, where they are a `torch.export.ShapesCollection` or `AdditionalInputs`, which make
    them of a call. Raises ValueError where that does not fit them."""
    make = getattr(shapes, "dynamic_shapes", None)
    return make(function, args, kwargs) if callable(make) else shapes


class Shapes:
    """The sizes of one call's arguments that may differ. `names`: those of dimensions of tensors, by the tensor's id
    and the dimension; `sizes`: of each name in this call; `numbers`: the kinds of marks of integers, by their paths.
    `function` is what is called, `arguments` the names of its arguments, as `bound` gives them; without it integers are
    constants. `any_size`: sizes that may be 0 or 1 are marked so that nothing may depend on it, but for those that
    `allow` has found; `has_any` says whether there is such a one.
    """

    def __init__(
        self, function: Callable[..., object] | None = None, arguments: Sequence[str] = (), any_size: bool = False
    ) -> None:
        self.function, self.arguments, self.any_size = function, list(arguments), any_size
        self.has_any = False
        self._asked: set[object] = set()  # by their marks: sizes that the program tells from 0 and 1
        self.names: dict[tuple[int, int], Name] = {}
        self.sizes: dict[str, int] = {}
        self.numbers: dict[Path, str] = {}
        self._before: list[tuple[torch.Tensor, dict[str, object]]] = []

    @contextlib.contextmanager
    def marked(self, shapes: object, given: Mapping[str, object], static: bool) -> Iterator[None]:
        """Inside, the dimensions that `shapes` names are marked; the others too, as sizes that are symbolic if that is
        possible, unless they are to be `static`.

        Raises what `export` does for wrong `shapes`."""
        self.has_any = False
        try:
            if shapes is not None:
                self._mark(dict(given) if isinstance(shapes, Mapping) else list(given.values()), shapes, "")
            for tensor in () if static else pytree.tree_leaves(dict(given)):
                if isinstance(tensor, torch.Tensor):
                    self._keep(tensor)
                    for dim in set(range(tensor.dim())) - set(marks_of(tensor)):
                        mark(tensor, dim, Mark("maybe", shape_id=(id(tensor), dim)))
            yield
        finally:
            while self._before:
                tensor, attributes = self._before.pop()
                vars(tensor).clear()
                vars(tensor).update(attributes)

    def allow(self, error: Unsupported | ConstraintError) -> bool:
        """Whether a capture that has failed may succeed where the program may tell the size that it has asked about, or
        every one if that is not known, from 0 and 1."""
        asked = getattr(error, "shape_id", None)
        self.any_size = asked is not None
        self._asked.add(asked)
        return self.has_any

    def path(self, source: Source) -> Path | None:
        """The name of an argument, and the keys that lead from it to what is found at `source`; None of what is not
        found so."""
        root, *steps = reversed([*source.steps()])
        if self.function is None or root.kind != "local" or any(s.kind not in ("item", "dict_value") for s in steps):
            return None
        keys = [step.key for step in steps]
        if root.key in self.arguments:
            return root.key, *keys
        parameters = [*inspect.signature(self.function).parameters.values()]
        gathers = next((p.kind for p in parameters if p.name == root.key), None)
        if gathers is inspect.Parameter.VAR_POSITIONAL and keys:
            named = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
            first = named - (self.function is call_target)
            return self.arguments[first + keys[0]], *keys[1:]
        return tuple(keys) if gathers is inspect.Parameter.VAR_KEYWORD and keys else None

    def mark_of(self, source: Source) -> str | None:
        """The kind of mark of an integer."""
        kind = self.numbers.get(self.path(source) or ())
        return None if kind == "static" else kind

    def _keep(self, tensor: torch.Tensor) -> None:
        self._before.append((tensor, dict(vars(tensor))))

    def _mark(self, value: Any, shapes: Any, path: str, keys: Path = ()) -> None:
        if shapes is None:
            return
        if type(value) is int and (type(shapes) is int or _hint(shapes) is not None):
            self._mark_number(value, shapes, path, keys)
            return
        if not isinstance(shapes, (Mapping, list, tuple)):
            raise TypeError(
                f"dynamic_shapes has {shapes!r} where a dict or a sequence by dimension or argument is expected"
            )
        parts = list(shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes))
        if isinstance(value, torch.Tensor):
            self._keep(value)
            for dim, wanted in parts:
                self._mark_dimension(value, dim, wanted, f"{path}.shape[{dim}]")
            return
        for key, part in parts:
            if isinstance(value, Mapping) and key not in value:
                raise ValueError(unknown_name("argument or key in dynamic_shapes", key, map(str, value)))
            self._mark(value[key], part, f"{path}[{key!r}]" if path else str(key), (*keys, key))

    def _mark_number(self, value: int, wanted: object, path: str, keys: Path) -> None:
        kind = _meaning(wanted)[0]
        if type(wanted) is int and wanted != value:
            raise ValueError(f"dynamic_shapes says that {path} is {wanted}, but it is {value}")
        if self.function is not None:
            argument = self.arguments[keys[0]] if isinstance(keys[0], int) else keys[0]
            self.numbers[(argument, *keys[1:])] = kind
        elif kind == "dynamic":
            reason = f"{path} is an integer that changes, and a library takes tensors only"
            raise Unsupported(reason, remedy="make it a tensor, or a constant", kind="size_value")

    def _mark_dimension(self, tensor: torch.Tensor, dim: int, wanted: Any, path: str) -> None:
        kind, name = _meaning(wanted)
        size = tensor.shape[dim] if -tensor.dim() <= dim < tensor.dim() else None
        lo, hi = getattr(wanted, "min", None), getattr(wanted, "max", None)
        if kind == "static":
            if isinstance(wanted, int) and size is not None and size != wanted:
                raise ValueError(f"dynamic_shapes says that {path} is {wanted}, but it is {size}")
            lo = hi = None
        at = (id(tensor), dim % tensor.dim() if size is not None else dim)
        shape_id: object = at
        if name is not None and size is not None:
            self.names[at], shape_id = name, name.text
            known = self.sizes.setdefault(name.text, size)
            if name.derived is not None and name.derived[0] in self.sizes:
                known = name.derived[1](self.sizes[name.derived[0]])
            if known != size:
                raise ValueError(f"dynamic_shapes names {path} {name.text!r}, so that it is {known}, but it is {size}")
        lo, hi = _bound(lo), _bound(hi)
        if self.any_size and kind in ("dynamic", "maybe") and (lo is None or lo < 2) and shape_id not in self._asked:
            kind, self.has_any = "unbacked", True
        if size is not None and size < 2 and kind == "dynamic":
            raise ConstraintError(path, size, None)
        mark(tensor, dim, Mark(kind, lo, hi, shape_id))

    def check(self, captured: Captured) -> None:
        """Raises ConstraintError where the program assumes more of sizes with names than these say."""
        symbols = {symbol.name: (symbol, name) for symbol in captured.sizes if (name := self._name(captured, symbol))}
        guards = captured.trace.shapes.guards
        variables = {at: variable for condition in guards for at, variable in condition.expr.variables().items()}
        roots = {name.text: variables[at] for at, (_, name) in symbols.items() if at in variables}
        for condition, where in guards.items():
            known = [symbols[at] for at in sorted(condition.free_vars) if at in symbols]
            if not known:
                continue
            values = {}
            for symbol, name in known:
                if name.derived is not None:
                    root, formula = name.derived
                    values[symbol.name] = formula(roots.get(root) or Expr.var(root, 2))
            rest = condition.subs(values)
            if not (rest.is_const and rest.value):
                text = condition.text()
                for symbol in captured.sizes:
                    text = text.replace(symbol.name, sources.text(symbol.source))
                raise ConstraintError(sources.text(known[0][0].source), text, where, known[0][1].text)

    def _name(self, captured: Captured, symbol: Symbol) -> Name | None:
        source, dim = symbol.places[0]
        if dim is None or source not in captured.inputs:
            return None
        return self.names.get((id(captured.examples[captured.inputs.index(source)]), dim))


def _meaning(wanted: object) -> tuple[str, Name | None]:
    """The kind of mark that an entry of dynamic_shapes asks for, and the name that it gives the size.

    A `torch.export.Dim` or a text is a name; ``Dim.AUTO`` leaves it to the program, ``Dim.STATIC``, None and an integer
    fix the size, ``Dim.DYNAMIC`` and anything else only says that it differs."""
    hint = _hint(wanted)
    if wanted is None or hint == "STATIC" or type(wanted) is int:
        return "static", None
    if hint is not None:
        return "maybe" if hint == "AUTO" else "dynamic", None
    if isinstance(wanted, str):
        return "dynamic", Name(wanted)
    if isinstance(wanted, torch.export.Dim):
        root, formula = getattr(wanted, "root", None), getattr(wanted, "fn", None)
        derived = None if root is None or formula is None else (root.__name__, formula)
        return "dynamic", Name(wanted.__name__, derived)
    return "dynamic", None


def _hint(wanted: object) -> str | None:
    """The name of ``Dim.DYNAMIC`` and the like."""
    return getattr(getattr(wanted, "type", None), "name", None)


def _bound(bound: object) -> int | None:
    return bound if isinstance(bound, int) and bound < sys.maxsize - 1 else None
