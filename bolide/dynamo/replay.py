"""From a `Captured` to one generated Python function: guards, then the graph on the inputs it fetches, then effects,
then the value the user gets.

def entry(x, y):                       # the user's own parameters
    try:
        hit = type(x) is Tensor and x.shape == (2, 3) and …
    except Exception:
        hit = False
    if not hit:
        return next(x, y)              # the entry compiled before this one; the first one's `next` compiles
    out = run([x, self.weight])
    self.counter = 3                   # effects
    return (out[0], {"loss": out[1]})
"""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bolide.dynamo import guards as guard_module
from bolide.dynamo.program import Captured, Effect, Guard, Recipe, Source
from bolide.dynamo.segments import Suspended
from bolide.dynamo.signature import Signature
from bolide.dynamo.sources import Namespace, Reader, count_uses, with_symbols

Runner = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Entry:
    """One compiled version of a function."""

    guards: tuple[Guard, ...]
    source: str
    function: Callable[..., Any]


def make_entry(
    signature: Signature, captured: Captured, guards: Sequence[Guard], run: Runner, following: Callable[..., Any]
) -> Entry:
    """Generate the function of one entry; `following` is called with the same arguments when a guard fails. `guards`
    come from `guards.prepare`.
    """
    namespace = Namespace(signature.names)
    builder = _Builder(namespace, captured)
    needed = [source for guard in guards for source in guard_module.read_sources(guard)]
    reader = Reader(namespace, count_uses([*needed, *builder.sources()]), guard_module.plain_dicts(guards))
    checks = [check for guard in guards for check in guard_module.conditions(guard, reader)]
    joined = "\n                and ".join(checks)
    hit = namespace.fresh("hit")
    lines = [
        f"def entry({signature.declare}):",
        "    try:",
        f"        {hit} = ({joined})",
        f"    except {namespace.reference(Exception, 'Exception')}:",
        f"        {hit} = False",
        f"    if not {hit}:",
        f"        return {namespace.reference(following, 'next')}({signature.forward})",
        *(f"    {line}" for line in builder.body(reader, namespace.reference(run, "run"))),
    ]
    source = "\n".join(lines) + "\n"
    scope = namespace.values
    exec(compile(source, f"<bolide {captured.name}>", "exec", dont_inherit=True), scope)
    return Entry(tuple(guards), source, scope.pop("entry"))


class _Builder:
    """The statements after the guards."""

    def __init__(self, namespace: Namespace, captured: Captured) -> None:
        self.namespace = namespace
        self.captured = captured
        self.sizes = [symbol.source for symbol in captured.sizes]
        self.order = list(_recipes(captured))
        self.uses = Counter(recipe for recipe, first in self.order if not first)
        self.made: dict[Recipe, str] = {}
        self.out = namespace.fresh("out")

    def sources(self) -> list[Source]:
        """Every source read, in the order in which `body` reads them."""
        recipes = [recipe.value for recipe, first in self.order if first and recipe.kind == "source"]
        return [*self.captured.inputs, *self.sizes, *recipes]

    def body(self, reader: Reader, run: str) -> Iterator[str]:
        """Inputs and outside values are read before the graph runs, values are built before the first effect is
        applied.
        """
        inputs = ", ".join(map(reader.read, [*self.captured.inputs, *self.sizes]))
        outside = [recipe for recipe, first in self.order if first and recipe.kind == "source"]
        early = bool(self.captured.effects)
        for recipe in outside:
            expression = reader.read(recipe.value)
            if early or not expression.isidentifier():
                self.made[recipe] = self.namespace.fresh("s")
                yield f"{self.made[recipe]} = {expression}"
            else:
                self.made[recipe] = expression
        if self.captured.trace.inputs or self.captured.outputs:
            yield f"{self.out} = {run}([{inputs}])"
        statements: list[str] = []
        effects = [line for effect in self.captured.effects for line in self.effect(effect, statements)]
        result = self.value(self.captured.result, statements)
        yield from statements
        yield from effects
        shape = self.captured.shape
        if shape is not None:
            reference = self.namespace.reference
            result = f"{reference(Suspended, 'suspended')}({reference(shape, 'point')}, {result})"
        yield f"return {result}"

    def value(self, recipe: Recipe, statements: list[str]) -> str:
        """The expression of a recipe; one that is used twice is made once, by a statement."""
        made = self.made.get(recipe)
        if made is not None:
            return made
        expression = self.expression(recipe, statements)
        shared = self.uses[recipe] > 0 and recipe.kind not in ("constant", "output")
        if not shared and not self.captured.effects:
            return expression
        if recipe.kind == "constant":
            return expression
        made = self.made[recipe] = self.namespace.fresh("r")
        statements.append(f"{made} = {expression}")
        return made

    def expression(self, recipe: Recipe, statements: list[str]) -> str:
        namespace = self.namespace
        if recipe.kind == "constant":
            return namespace.reference(recipe.value)
        if recipe.kind == "output":
            return f"{self.out}[{recipe.value}]"
        args = [self.value(arg, statements) for arg in recipe.args]
        match recipe.kind:
            case "tuple":
                return f"({', '.join(args)}{',' if len(args) == 1 else ''})"
            case "list":
                return f"[{', '.join(args)}]"
            case "set":
                return f"{{{', '.join(args)}}}" if args else f"{namespace.reference(set, 'set')}()"
            case "dict":
                pairs = zip(args[::2], args[1::2])
                return f"{{{', '.join(f'{key}: {value}' for key, value in pairs)}}}"
            case "call":
                words = [f"{key}={self.value(value, statements)}" for key, value in recipe.kwargs]
                return f"{namespace.reference(recipe.value, 'f')}({', '.join([*args, *words])})"
            case "size":
                symbols = {name: f"({arg})" for name, arg in zip(sorted(recipe.value.free_vars), args)}
                return with_symbols(recipe.value.text(), symbols)
            case _:
                raise AssertionError(recipe.kind)

    def effect(self, effect: Effect, statements: list[str]) -> list[str]:
        """The statements of one effect; its operands are built by `statements`, which come before every effect."""
        if effect.kind == "call":
            assert effect.value is not None
            args = [self.value(arg, statements) for arg in effect.value.args]
            args += [f"{key}={self.value(value, statements)}" for key, value in effect.value.kwargs]
            return [f"{self.namespace.reference(effect.value.value, 'f')}({', '.join(args)})"]
        assert effect.target is not None
        target = self.value(effect.target, statements)
        value = self.value(effect.value, statements) if effect.value is not None else ""
        key = self.value(effect.key, statements) if isinstance(effect.key, Recipe) else effect.key
        plain = isinstance(key, str) and key.isidentifier() and not keyword.iskeyword(key)
        reference = self.namespace.reference
        match effect.kind:
            case "setattr":
                return [f"{target}.{key} = {value}" if plain else f"{reference(setattr)}({target}, {key!r}, {value})"]
            case "delattr":
                return [f"del {target}.{key}" if plain else f"{reference(delattr)}({target}, {key!r})"]
            case "setitem":
                return [f"{target}[{key}] = {value}"]
            case "delitem":
                return [f"del {target}[{key}]"]
            case "global":
                return [f"{target}[{effect.key!r}] = {value}"]
            case "cell":
                return [f"{target}.cell_contents = {value}"]
            case "list_assign":
                return [f"{target}[:] = {value}"]
            case "dict_assign" | "set_assign":
                return [f"{target}.clear()", f"{target}.update({value})"]


def _recipes(captured: Captured) -> Iterator[tuple[Recipe, bool]]:
    """Every use of every recipe, (recipe, whether it is the first use), operands before what is built from them, in
    the order in which `_Builder` builds.
    """
    seen: set[Recipe] = set()

    def visit(recipe: Recipe) -> Iterator[tuple[Recipe, bool]]:
        if recipe in seen:
            yield recipe, False
            return
        seen.add(recipe)
        for arg in recipe.args:
            yield from visit(arg)
        for _, value in recipe.kwargs:
            yield from visit(value)
        yield recipe, True

    for effect in captured.effects:
        for part in (effect.target, effect.key, effect.value):
            if isinstance(part, Recipe):
                yield from visit(part)
    yield from visit(captured.result)
