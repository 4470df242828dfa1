"""From a `Captured` to one generated Python function: guards, then the graph on the inputs it fetches, then effects,
then the value the user gets.

def entry(x, y):                       # the user's own parameters
    found = check(x, y)                # see native/check.py: the inputs of the graph, then other outside values
    if found is None:
        other = others(1, x, y)        # the entry that fits, and what it has found
        return miss(x, y) if other is None else other[0](other[1], x, y)
    config = found.pop()
    out = run(found)
    config.counter = 3                 # effects
    return (out[0], {"loss": out[1]})
"""

from __future__ import annotations

import functools
import itertools
import keyword
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bolide.dynamo.breaks.segments import Suspended
from bolide.dynamo.machine.faults import settle
from bolide.dynamo.machine.numbers import set_state, state_of
from bolide.dynamo.native.check import Check
from bolide.dynamo.program.captured import Captured, Effect, GraphFacts, Guard, Recipe, Replay
from bolide.dynamo.program.sources import Namespace, Signature, with_symbols
from bolide.support.errors import Refuted
from bolide.support.origins import is_ours, refuse_mistake
from bolide.tracing import modes
from bolide.tracing.fallible import may_raise

Runner = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Entry:
    """One compiled version of a function. `breaks`: whether it ends in a break."""

    number: int
    breaks: bool
    guards: tuple[Guard, ...]
    text: str  # of the function
    function: Callable[..., object]
    check: Check
    rest: str  # text of the function that goes on after the check, with what that found and the values of the names

    @property
    def source(self) -> str:
        """The text of its check, and then of the function."""
        return f"{self.check.source}\n{self.text}"

    @functools.cached_property
    def passed(self) -> Callable[..., object]:
        """The function of `rest`: most entries never need it."""
        code = compile(self.rest, self.function.__code__.co_filename, "exec", dont_inherit=True)
        scope: dict[str, Callable[..., object]] = {}
        exec(code, self.function.__globals__, scope)
        return scope["passed"]


def replay_of(captured: Captured) -> Replay:
    """What is done at each call of what was captured."""
    trace = captured.trace
    calls = [node for node in trace.graph.nodes if node.op == "call_function"]
    empty = not any(True for _ in trace.graph.nodes)
    raises = trace.refutable or any(map(may_raise, calls))
    graph = GraphFacts(
        empty=empty,
        raises=raises,
        refutable=trace.refutable,
        final=any(getattr(node.target, "namespace", "") == "_c10d_functional" for node in calls),
        writes=not empty and bool(trace.mutated_inputs()),
        draws=raises and bool(trace.draws()),
    )
    return Replay(
        captured.name,
        (*captured.inputs, *(symbol.source for symbol in captured.sizes)),
        graph,
        captured.result,
        captured.effects,
        captured.generators,
        captured.draws,
        captured.flags,
        captured.shape,
        captured.under_functions,
    )


def make_entry(
    signature: Signature,
    replay: Replay,
    guards: Sequence[Guard],
    run: Runner,
    number: int,
    others: Callable[..., object],
    miss: Callable[..., object],
    eager: Callable[..., object],
) -> Entry:
    """Generate the function of one entry. When a guard fails, `others` is asked, with the entry's number and the values
    of the names, for the function of another one and what that has found; if it answers None, `miss` is called with the
    same arguments. `eager` makes the call again when the graph has raised; its first argument is what
    `faults.settle` says of it. `guards` come from `guards.prepare`.
    """
    namespace = Namespace(signature.names)
    under = replay.under_functions
    builder = _Builder(
        namespace, replay, namespace.reference(_seen(eager) if under else eager, "eager"), signature.forward
    )
    checked, found, other = namespace.fresh("check"), namespace.fresh("found"), namespace.fresh("other")
    lines = builder.body(found, namespace.reference(run, "run"))
    if under:
        lines = itertools.chain([f"with {namespace.reference(modes.unseen, 'unseen')}():"], map(_INDENTED, lines))
    body = "".join(f"    {line}\n" for line in lines)
    missed = f"{namespace.reference(miss, 'miss')}({signature.forward})"
    source = (
        f"def entry({signature.declare}):\n"
        f"    {found} = {checked}({', '.join(signature.names)})\n"
        f"    if {found} is None:\n"
        f"        {other} = {namespace.reference(others, 'others')}({', '.join([str(number), *signature.names])})\n"
        f"        return {missed} if {other} is None else {other}[0]({', '.join([f'{other}[1]', *signature.names])})\n"
        f"{body}"
    )
    rest = f"def passed({', '.join([found, *signature.names])}):\n{body}"
    scope = namespace.values
    install = functools.partial(scope.__setitem__, checked)
    check = Check(signature.names, signature.containers, guards, builder.wanted, replay.name, install)
    exec(compile(source, f"<bolide {replay.name}>", "exec", dont_inherit=True), scope)
    breaks = replay.shape is not None
    return Entry(number, breaks, tuple(guards), source, scope.pop("entry"), check, rest)


_INDENTED = "    {}".format


def _seen(function: Callable[..., object]) -> Callable[..., object]:
    """A call of the program's, which function modes see."""

    def call(*args: object, **kwargs: object) -> object:
        with modes.seen():
            return function(*args, **kwargs)

    return call


class _Builder:
    """The statements after the guards."""

    def __init__(self, namespace: Namespace, replay: Replay, eager: str, forward: str) -> None:
        self.namespace = namespace
        self.replay = replay
        self.graph = replay.graph
        self.eager, self.forward = eager, forward
        self.wanted = [source for source in replay.inputs if not source.is_drawn]
        self.drawn = [(place, source) for place, source in enumerate(replay.inputs) if source.is_drawn]
        self.generators = replay.generators if replay.graph.raises else ()  # they are put back
        self.flags = [(Recipe("source", source), wanted) for source, wanted in replay.flags]
        early = [*self.generators, *(recipe for recipe, _ in self.flags)]
        early += [recipe for draw in replay.draws for recipe in _sources(draw)]
        self.order = [*((recipe, True) for recipe in early), *_recipes(replay)]
        self.uses = Counter(recipe for recipe, first in self.order if not first)
        self.names: dict[Recipe, str] = {}  # of what has been taken or built
        self.out = namespace.fresh("out")

    def body(self, found: str, run: str) -> Iterator[str]:
        """The statements; `found` names the list of the wanted values. Outside values are taken before the graph runs,
        values are built before the first effect is applied.
        """
        early = bool(self.replay.effects)
        popped = []
        for recipe in [recipe for recipe, first in self.order if first and recipe.kind == "source"]:
            source = recipe.value
            if source.is_drawn:
                continue
            if source.kind == "local" and not early:
                self.names[recipe] = str(source.key)
            elif source.kind == "object":
                self.names[recipe] = self.namespace.reference(source.obj, "o")
            else:
                self.names[recipe] = self.namespace.fresh("s")
                self.wanted.append(source)
                popped.append(f"{self.names[recipe]} = {found}.pop()")
        yield from reversed(popped)
        put_back = yield from self.draw(found)
        for recipe, wanted in self.flags:
            yield f"{self.names[recipe]}.requires_grad_({wanted})"
        statements: list[str] = []
        effects = [(_runs_foreign(effect), self.effect(effect, statements)) for effect in self.replay.effects]
        result = self.value(self.replay.result, statements)
        graph = "()" if self.graph.empty else f"{run}({found})"
        changes = not self.graph.empty and self.graph.writes
        if graph != "()" or statements:  # a graph may draw, without inputs and results
            yield from self.run(graph, put_back, () if changes else statements)
        late = [(False, line) for line in statements] if changes else []
        for foreign, lines in itertools.groupby([*late, *effects], lambda each: each[0]):
            yield from self.once([line for _, line in lines], foreign)
        shape = self.replay.shape
        if shape is not None:
            reference = self.namespace.reference
            result = f"{reference(Suspended, 'suspended')}({reference(shape, 'point')}, {result})"
        yield f"return {result}"

    def once(self, lines: Sequence[str], foreign: bool) -> Iterator[str]:
        """Statements that change something outside, so that nothing can be made again when one raises. What raises in
        a `foreign` one is the program's."""
        if foreign:
            if self.replay.under_functions:
                yield f"with {self.namespace.reference(modes.seen, 'seen')}():"
                lines = [*map(_INDENTED, lines)]
            yield from lines
            return
        error = self.namespace.fresh("error")
        yield "try:"
        yield from (f"    {line}" for line in lines)
        yield f"except Exception as {error}:"
        refuse = functools.partial(refuse_mistake, "its effects", self.replay.name)
        yield f"    {self.namespace.reference(refuse, 'refuse')}({error})"
        yield "    raise"

    def run(self, graph: str, put_back: list[str], statements: Sequence[str]) -> Iterator[str]:
        """The statements that run the graph, and others that change nothing outside, and make the call again in eager
        when one raises. (Not where other processes have taken part in what was done until then.) `put_back` undoes
        draws.
        """
        reference, fresh, facts = self.namespace.reference, self.namespace.fresh, self.graph
        if facts.final and not facts.refutable:
            yield f"{self.out} = {graph}"
            yield from statements
            return
        if facts.raises:
            for recipe in dict.fromkeys(self.generators):
                state = fresh("state")
                yield f"{state} = {self.names[recipe]}.get_state()"
                put_back.append(f"{self.names[recipe]}.set_state({state})")
            if facts.draws:
                state = fresh("state")
                yield f"{state} = {reference(torch.default_generator.get_state, 'get_rng_state')}()"
                put_back.append(f"{reference(torch.set_rng_state, 'set_rng_state')}({state})")
        put_back += [f"{self.names[recipe]}.requires_grad_({not wanted})" for recipe, wanted in self.flags]
        error, fault = fresh("error"), fresh("fault")
        settled = reference(functools.partial(settle, expected=facts.raises), "settle")
        yield "try:"
        yield f"    {self.out} = {graph}"
        yield from (f"    {line}" for line in statements)
        yield f"except {reference(Refuted if facts.final else Exception, 'raised')} as {error}:"
        yield f"    {self.out}, {fault} = None, {settled}({error})"
        yield f"if {self.out} is None:"  # not in the handler, which exceptions of the program would see
        yield from (f"    {line}" for line in put_back)
        yield f"    return {self.eager}({', '.join(filter(None, [fault, self.forward]))})"

    def draw(self, found: str) -> Generator[str, None, list[str]]:
        """The statements that draw random numbers and put them among the graph's inputs; answers those that undo it."""
        statements: list[str] = []
        draws = [draw for draw in self.replay.draws if draw.value is not torch.Generator]  # which makes a new one
        owners = list(dict.fromkeys(self.value(draw.args[0], statements) for draw in draws))
        yield from statements
        put_back, names = [], []
        if self.graph.raises:
            for owner in owners:
                state = self.namespace.fresh("state")
                yield f"{state} = {self.namespace.reference(state_of, 'state_of')}({owner})"
                put_back.append(f"{self.namespace.reference(set_state, 'set_state')}({owner}, {state})")
        for draw in self.replay.draws:
            names.append((yield from self.now(draw, "drawn")))
        results = [recipe for recipe, _ in self.order if recipe.kind == "source" and recipe.value.is_drawn]
        wanted = {recipe.value for recipe in results}
        known = {source: names[source.key] for source in wanted if source.kind == "drawn"}
        for place, source in self.drawn:
            assert source.base is not None
            tensor = f"{self.namespace.reference(source.obj, 'f')}({names[source.base.key]})"
            if source in wanted:  # a tensor in the memory of a drawn array
                known[source] = self.namespace.fresh("drawn")
                yield f"{known[source]} = {tensor}"
                tensor = known[source]
            yield f"{found}.insert({place}, {tensor})"
        self.names.update((recipe, known[recipe.value]) for recipe in results)
        return put_back

    def now(self, recipe: Recipe, kind: str) -> Generator[str, None, str]:
        """The statements that build a value; answers its name."""
        statements: list[str] = []
        name, expression = self.namespace.fresh(kind), self.expression(recipe, statements)
        yield from statements
        yield f"{name} = {expression}"
        return name

    def value(self, recipe: Recipe, statements: list[str]) -> str:
        """The expression of a recipe; one that is used twice is made once, by a statement."""
        known = self.names.get(recipe)
        if known is not None:
            return known
        expression = self.expression(recipe, statements)
        shared = self.uses[recipe] > 0 and recipe.kind not in ("constant", "output")
        early = shared or recipe.kind == "call" or bool(self.replay.effects)
        if not early or recipe.kind == "constant":
            return expression
        name = self.names[recipe] = self.namespace.fresh("r")
        statements.append(f"{name} = {expression}")
        return name

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

    def effect(self, effect: Effect, statements: list[str]) -> str:
        """The statement of one effect; its operands are built by `statements`, which come before every effect."""
        if effect.kind == "call":
            assert effect.value is not None
            return self.expression(effect.value, statements)
        assert effect.target is not None
        target = self.value(effect.target, statements)
        value = self.value(effect.value, statements) if effect.value is not None else ""
        key = self.value(effect.key, statements) if isinstance(effect.key, Recipe) else effect.key
        plain = isinstance(key, str) and key.isidentifier() and not keyword.iskeyword(key)
        reference = self.namespace.reference
        match effect.kind:
            case "setattr":
                return f"{target}.{key} = {value}" if plain else f"{reference(setattr)}({target}, {key!r}, {value})"
            case "delattr":
                return f"del {target}.{key}" if plain else f"{reference(delattr)}({target}, {key!r})"
            case "setitem":
                return f"{target}[{key}] = {value}"
            case "delitem":
                return f"del {target}[{key}]"
            case "global":
                return f"{target}[{effect.key!r}] = {value}"
            case "cell":
                return f"{target}.cell_contents = {value}" if effect.value else f"del {target}.cell_contents"
            case "list_assign":
                return f"{target}[:] = {value}"


def _runs_foreign(effect: Effect) -> bool:
    """Whether an effect calls what is none of bolide's (`print`): that may raise, as in eager."""
    if effect.kind != "call":
        return False
    assert effect.value is not None
    code = getattr(effect.value.value, "__code__", None)
    return code is None or not is_ours(code)


def _sources(recipe: Recipe) -> Iterator[Recipe]:
    """The outside values that a recipe is made of."""
    if recipe.kind == "source":
        yield recipe
    for part in (*recipe.args, *(value for _, value in recipe.kwargs)):
        yield from _sources(part)


def _recipes(replay: Replay) -> Iterator[tuple[Recipe, bool]]:
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

    for effect in replay.effects:
        for part in (effect.target, effect.key, effect.value):
            if isinstance(part, Recipe):
                yield from visit(part)
    yield from visit(replay.result)
