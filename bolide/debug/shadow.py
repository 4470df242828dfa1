"""`bolide.shadow`: eager beside compiled, and the first operation whose result differs.

Two comparisons. Every graph that is generated code runs beside the same graph as ATen calls, on copies of its inputs,
forward and backward: where they differ, the first differing operation is searched. Each call of a shadowed function,
with its gradients, runs beside the function itself: this sees what capture and differentiation got wrong.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx

from bolide import inductor
from bolide.compiling import TraceBackend
from bolide.compiling import compile as compile_function
from bolide.debug.reference import (
    Exactly,
    RandomState,
    Twin,
    copied,
    disagree,
    evaluate,
    first_difference,
    gradients,
    most_different,
    operation_of,
    tensors_in,
    with_results,
    writes,
)
from bolide.dynamo.entry.module import CompiledModule
from bolide.dynamo.state import original_of
from bolide.dynamo.switches import set_stance
from bolide.functorch import GraphInfo
from bolide.functorch.graphs import results
from bolide.inductor import CompiledGraph
from bolide.support import events
from bolide.support.caches import reset
from bolide.support.errors import BolideError, BolideWarning, UserFrame

Manner = Literal["warn", "raise"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first result that differs from eager's.

    `part` is the graph (``inference``, ``forward``, ``backward``), or ``call`` where all graphs agree with ATen and the
    call does not agree with eager. `operation` is the ATen call, `where` the user's line, `kernel` what computed it.
    `expected` and `found` are the elements at `place`, where they differ most: by `error`. `code` is the graph.
    """

    function: str
    part: str
    operation: str
    where: UserFrame | None
    kernel: str
    expected: object
    found: object
    place: tuple[int, ...]
    error: float
    code: str = field(default="", repr=False)

    def __str__(self) -> str:
        line = f"\n  {self.where}\n    {self.where.text}" if self.where is not None else ""
        kernel = f"\n  computed by {self.kernel}" if self.kernel else ""
        return (
            f"{self.function}: {self.operation} ({self.part}) gives {self.found!r} instead of {self.expected!r} at "
            f"{list(self.place)} (largest error {self.error:.3g}){line}{kernel}"
        )


class ShadowMismatch(BolideError):
    """A compiled result differs from eager's; `difference` says where."""

    def __init__(self, difference: Difference) -> None:
        self.difference = difference
        super().__init__(str(difference))


# ---- graphs ----------------------------------------------------------------------------------------------------------


@dataclass
class Checked:
    """Runs a compiled graph beside its ATen calls; the results are those of ATen where they differ."""

    function: str
    graph: fx.GraphModule
    info: GraphInfo
    compiled: CompiledGraph
    run: Callable[[list[object]], tuple[object, ...]]
    report: Callable[[Difference], None]

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        written, pristine = list(inputs), copied(inputs)
        before = RandomState.now()
        try:
            expected = evaluate(self.graph, copied(pristine))
        except Exception:  # an operation of the user's fails: so it has to in the compiled graph
            before.restore()
            return self.run(inputs)
        before.restore()
        outputs = list(self.run(inputs))
        exact = Exactly(self.graph, pristine, expected)
        wrong = []
        for place, node in enumerate(results(self.graph.graph)):
            if isinstance(node, fx.Node) and exact.disagrees(node, outputs[place]):
                wrong.append((node, outputs[place]))
                outputs[place] = expected[node]
        for place, node in writes(self.graph):
            if exact.disagrees(node, written[place]):
                wrong.append((node, written[place].clone()))
                written[place].data.copy_(expected[node])
        if wrong:
            self.report(self._difference(wrong, pristine, exact))
        return tuple(outputs)

    def _difference(self, wrong: list[tuple[fx.Node, object]], inputs: list[object], exact: Exactly) -> Difference:
        def probe(nodes: list[fx.Node]) -> list[Any]:
            module = with_results(self.graph, nodes)
            run = inductor.compile_graph(module, GraphInfo("inference", frozenset(), frozenset()))
            return list(run(copied(inputs)))

        try:
            first = first_difference([node for node, _ in wrong], exact, probe)
        except Exception:  # parts of the graph cannot be compiled by themselves
            first = None
        node, actual = first or wrong[0]
        place, error, wanted, ours = most_different(actual, exact.expected[node])
        where, kernel = node.meta.get("where"), self._kernel(node.name)
        part, code = self.info.kind, self.graph.code
        return Difference(self.function, part, operation_of(node), where, kernel, wanted, ours, place, error, code)

    def _kernel(self, name: str) -> str:
        kernels = [k for k in self.compiled.kernels if name in k.origins]
        return ", ".join(f"{k.name} (of {', '.join(k.origins)})" for k in kernels) or "a library call"


@dataclass(frozen=True)
class Watch:
    """What happens with differences: `reports` keeps them all; each place of a function is warned of once."""

    manner: Manner
    reports: list[Difference]

    def __call__(self, difference: Difference) -> None:
        if self.manner == "raise":
            self.reports.append(difference)
            raise ShadowMismatch(difference)
        key = (difference.function, difference.part, difference.operation, difference.where)
        if all(key != (d.function, d.part, d.operation, d.where) for d in self.reports):
            warnings.warn(str(difference), BolideWarning, stacklevel=2)
        self.reports.append(difference)

    def compile_graph(self, name: Callable[[], str], graph: fx.GraphModule, info: GraphInfo) -> CompiledGraph:
        """A graph compiler: inductor's graph, whose runs are checked."""
        untouched = with_results(graph, results(graph.graph), keep=True)
        compiled = inductor.compile_graph(graph, info)
        compiled.run = Checked(name(), untouched, info, compiled, compiled.run, self)
        return compiled

    def backend(self, name: Callable[[], str]) -> TraceBackend:
        """The backend that compiles with checks; `name` says which function is being compiled."""
        return TraceBackend("shadow", functools.partial(self.compile_graph, name), "min_cut", frozenset({"cpu"}))


# ---- calls -----------------------------------------------------------------------------------------------------------


@dataclass
class Shadowed:
    """A function whose calls run in eager beside compiled."""

    original: Callable[..., object]
    compiled: Callable[..., object]
    watch: Watch
    name: str

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        if torch.compiler.is_compiling():
            return self.compiled(*args, **kwargs)
        twin, exact = Twin.of(self.original, args, kwargs), Twin.of(self.original, args, kwargs, torch.float64)
        if twin is None:
            return self.compiled(*args, **kwargs)
        before = RandomState.now()
        try:
            expected = twin.call()
        except Exception:  # eager's error is the user's: the compiled call has to raise it, too
            before.restore()
            return self.compiled(*args, **kwargs)
        drawn = not before.is_now()
        before.restore()
        known = len(self.watch.reports)
        result = self.compiled(*args, **kwargs)
        if drawn or len(self.watch.reports) > known:
            return result  # compiled draws other numbers than eager; or a graph has said it, and gave ATen's results
        after = RandomState.now()
        try:
            ours = [*tensors_in(result), *twin.originals]
            theirs = [*tensors_in(expected), *twin.copies]
            wanted = gradients(list(tensors_in(expected)), twin.copies)
            slopes = gradients(list(tensors_in(result)), twin.originals) if wanted else []
            self._compare(ours, theirs, exact, before, (slopes, wanted))
        except ShadowMismatch:
            raise
        except Exception as error:  # tensors that cannot be compared so
            warnings.warn(f"{self.name} is not compared with eager: {error}", BolideWarning, stacklevel=3)
        finally:
            after.restore()
        return result

    def _compare(
        self,
        ours: list[Tensor],
        theirs: list[Tensor],
        exact: Twin | None,
        before: RandomState,
        slopes: tuple[list[Tensor | None], list[Tensor | None]],
    ) -> None:
        truth: list[object] | None = None

        def true(place: int) -> Any:
            nonlocal truth
            if truth is None:
                truth = [] if exact is None else exact.everything(before)
            return truth[place] if place < len(truth) else None

        if len(ours) != len(theirs):
            self._report(f"{len(ours)} tensors instead of {len(theirs)}", None, None)
            return
        for place, (one, other) in enumerate(zip(ours, theirs)):
            if one.requires_grad != other.requires_grad:
                self._report(f"requires_grad of result {place}", one.requires_grad, other.requires_grad)
                return
        pairs = [*zip(ours, theirs), *zip(*slopes)]
        for place, (mine, wanted) in enumerate(pairs):
            if disagree(mine, wanted, functools.partial(true, place)):
                kind = f"result {place}" if place < len(ours) else f"gradient {place - len(ours)}"
                self._report(kind, mine, wanted)
                return

    def _report(self, operation: str, actual: object, expected: object) -> None:
        place, error, wanted, ours = most_different(actual, expected)
        code = getattr(self.original, "__code__", None)
        where = UserFrame(code.co_filename, code.co_firstlineno, self.name) if code is not None else None
        self.watch(Difference(self.name, "call", operation, where, "", wanted, ours, place, error))


class Shadow:
    """See `__call__`. `reports` holds every difference that was found."""

    def __init__(self) -> None:
        self.reports: list[Difference] = []

    def __call__(self, fn: Any = None, *, on_difference: Manner = "warn", **compile_options: Any) -> Any:
        """`fn` (a function or module, compiled or not) with eager run beside it, forward and backward.

        A result that differs by more than rounding (in question, float64 decides) is a `Difference`: it names the
        first operation, the user's line and the kernel. Without `fn`: a context manager, in which all that this
        thread compiles is compared graph by graph; what was compiled before is forgotten, when it is entered and left.

        on_difference: ``warn`` (once for a place; the program goes on with ATen's results) or ``raise``
        `ShadowMismatch`. compile_options: as for `bolide.compile`, without `backend`.
        """
        if on_difference not in ("warn", "raise"):
            raise ValueError(f"on_difference must be 'warn' or 'raise', not {on_difference!r}")
        watch = Watch(on_difference, self.reports)
        if fn is None:
            return self._everything(watch)
        if isinstance(fn, CompiledModule):
            fn = fn._orig_mod
        original = original_of(fn)
        name = getattr(original, "__qualname__", type(original).__qualname__)
        compiled = compile_function(original, backend=watch.backend(lambda: name), **compile_options)
        shadowed = Shadowed(original, compiled, watch, name)
        return functools.update_wrapper(lambda *args, **kwargs: shadowed(*args, **kwargs), original, updated=())

    @contextmanager
    def _everything(self, watch: Watch) -> Iterator[list[Difference]]:
        names = ["a compiled function"]

        def note(event: object) -> None:
            if isinstance(event, events.Graph):
                names[:] = [event.name]

        reset()
        try:
            with events.subscribed(note), set_stance(force_backend=watch.backend(lambda: names[0])):
                yield self.reports
        finally:
            reset()


shadow = Shadow()
