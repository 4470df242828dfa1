"""Gradients of gradients: a backward pass that is a differentiable program itself.

A compiled backward works on values that the forward has saved, which have no history. When the backward is asked for
with ``create_graph=True``, the gradients are computed anew from the program's inputs instead: the forward as it was
recorded (a `Tape`; optimised graphs do not know which values no derivative goes through) is replayed on traced tensors,
the autograd engine derives it with ``create_graph``, and the result is compiled as any other trace. So it has a
backward of its own, and so on to any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.fx as fx
from torch.utils._python_dispatch import _disable_current_modes

from bolide.functorch.graphs import (
    Runner,
    argument_nodes,
    aten,
    is_impure,
    is_tensor,
    maker,
    placeholders,
    results,
)
from bolide.functorch.joint import run_engine
from bolide.functorch.partitioners import Joint
from bolide.functorch.runtime.transformed import Tangents, outside
from bolide.functorch.signature import with_sizes
from bolide.support.errors import CompileError, Unsupported
from bolide.support.garbage import collector_paused
from bolide.symbolic import Cond, Size, as_expr
from bolide.tracing import TensorMeta, Trace, TracedTensor
from bolide.tracing.called.branches import call_again
from bolide.tracing.called.derivatives import Application, check_phases
from bolide.tracing.graph import closure
from bolide.tracing.traits import traits_of

Gradients = tuple[torch.Tensor | None, ...]
Values = Sequence[Any]
SecondOrder = Callable[[Values, Sequence[torch.Tensor], Tangents], Gradients | None]
"""Takes the forward's inputs (with their history), what it has kept (see `Tape`), and the tangents of its
results; gives one differentiable gradient for each input, or None when it cannot."""

Compile = Callable[[Trace, Sequence[TracedTensor]], Runner]


class Step(NamedTuple):
    """A node and what it was when the tape was made: passes change graphs in place."""

    node: fx.Node
    target: Any
    args: Any
    kwargs: Any


class Tape(NamedTuple):
    """How the results `wanted` of a program are computed from the `inputs` and `constants`, in order, as it was
    recorded. `kept`: what is not computed again but kept from the forward: random numbers, and values that no
    derivative goes through made of inputs that the program writes to; `names`: by which optimised graphs know them, or
    what they are copies of. `read`: the positions of the tensors among the inputs that it reads. `functions`: calls of
    the program's own `autograd.Function`s, to be done again when all that they take is known: in eager only."""

    inputs: list[fx.Node]
    constants: dict[str, torch.Tensor]
    steps: list[Step]
    wanted: list[Any]
    kept: list[fx.Node]
    names: list[list[str]]
    read: list[int]
    functions: list[Application]

    def replay(self, trace: Trace | None, inputs: Values, kept: Values) -> Values:
        """The results for real inputs, or for those of a trace, without the program's effects on the inputs."""
        known: dict[fx.Node, Any] = dict(zip(self.inputs, inputs, strict=True))
        known |= zip(self.kept, kept, strict=True)
        places = {node: place for place, (node, *_) in enumerate(self.steps)}
        due = {max(places.get(node, 0) for node in each.operands): each for each in self.functions}
        for place, (node, target, args, kwargs) in enumerate(self.steps):
            if node not in known:
                given = fx.map_arg(args, known.get), fx.map_arg(kwargs, known.get)
                known[node] = (
                    self.constants[str(target)] if node.op == "get_attr" else _called(trace, node, target, *given)
                )
            if "keeps" in node.meta:
                known[node] = _rewritten(known[node.meta["keeps"]], known[node])
            if place in due:
                due[place].again(known)
        return [known[node] for node in self.wanted]

    def numbers(self) -> dict[str, int]:
        """Where the sizes that others are made of are among the inputs, by the names that they were recorded with."""
        values = [(node.meta["val"], at) for at, node in enumerate(self.inputs)]
        return {as_expr(value).text(): at for value, at in values if isinstance(value, torch.SymInt)}


def _kind(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    return value.dtype, value.device, value.requires_grad, value.is_leaf


def _rewritten(old: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A value that was written to a tensor without grad mode: with the history that this has."""
    new = old.clone()
    with torch.no_grad():
        return new.copy_(value)


def _called(trace: Trace | None, node: fx.Node, target: Any, args: Any, kwargs: Any) -> Any:
    if traits_of(target).seeded and is_impure(node):
        raise Unsupported("random numbers that depend on a tensor would be drawn again", kind="operator")
    if _updates_statistics(target, args):
        x, weight, bias, _, _, *rest = args
        target, args = aten._native_batch_norm_legit.no_stats, (x, weight, bias, *rest)
    return call_again(trace, target, args, kwargs, node.meta.get("cut"))


def tape_of(joint: Joint, constants: dict[str, torch.Tensor], functions: Sequence[Application]) -> Tape | None:
    """The forward of a joint graph that no pass has changed yet; None where a result of one of the `functions` is no
    more what it was."""
    if any(group.version != version for each in functions for group, version in each.shared):
        return None
    applied = {node: each for each in functions for node in each.outputs}
    wanted = list(results(joint.graph)[: joint.outputs])
    inputs = placeholders(joint.graph)[: joint.inputs]
    lost = closure([inputs[place] for place in joint.written], _readers)
    apart = {node for node in lost if node.op == "call_function" and node.meta.get("cut") and is_tensor(node)}
    kept = apart.union(filter(_is_drawn, joint.graph.nodes))

    def reads(node: fx.Node) -> list[fx.Node]:
        function = applied.get(node)
        read = [] if node in kept else _read_by(node)
        read = [*read, node.meta["keeps"]] if "keeps" in node.meta else read
        return read if function is None else [*read, *function.operands]

    needed = closure(argument_nodes(wanted), reads)
    order = [node for node in joint.graph.nodes if node in needed]
    steps = [Step(node, node.target, _read_of(node), node.kwargs) for node in order if node.op != "placeholder"]
    read = [at for at, node in enumerate(inputs) if node in needed and is_tensor(node)]
    known = [node for node in order if node in kept]
    names = [list(_names(node)) for node in known]
    again = [each for each in functions if not needed.isdisjoint(each.operands)]
    if not needed <= {*order} or not all({*order}.issuperset(each.operands) for each in again):
        return None
    return Tape(inputs, constants, steps, wanted, known, names, read, again)


def _names(node: fx.Node) -> Iterator[str]:
    yield node.name
    while traits_of(node.target).copy and isinstance(source := node.args[0], fx.Node):
        node = source
        yield node.name


def _is_drawn(node: fx.Node) -> bool:
    """Whether a node is drawn, from numbers alone, also those by which generators are known: the seed, permutations,
    …"""
    if node.op != "call_function" or not traits_of(maker(node).target).seeded or not is_tensor(node):
        return False
    return all(operand.target is aten.full.default or _is_whole(operand) for operand in maker(node).all_input_nodes)


def _is_whole(node: fx.Node) -> bool:
    value = node.meta["val"]
    return not isinstance(value, TensorMeta) or not (value.dtype.is_floating_point or value.dtype.is_complex)


def _updates_statistics(target: object, args: Sequence[object]) -> bool:
    """Whether a node is a BatchNorm in training, whose results but for the new statistics do not depend on the old ones
    (arguments 3 and 4), which have been overwritten by now."""
    return target is aten._native_batch_norm_legit_functional.default and args[5] is True


def _read_by(node: fx.Node) -> list[fx.Node]:
    """What the value of a node that counts is computed from."""
    return argument_nodes(node.args[:3]) if _updates_statistics(node.target, node.args) else node.all_input_nodes


def _read_of(node: fx.Node) -> tuple[Any, ...]:
    """The arguments, without what the value of a node that counts is not computed from."""
    args = node.args
    return (*args[:3], None, None, *args[5:]) if _updates_statistics(node.target, args) else args


def _readers(node: fx.Node) -> list[fx.Node]:
    """The inverse of `_read_by`."""
    return [user for user in node.users if node in _read_by(user)]


class Made(NamedTuple):
    """Compiled gradients of the inputs at `places`. `layouts`: the sizes and strides of the tensors that they are
    computed from, in terms of `symbols`: places of numbers among the inputs, of which they assume the `guards`. Other
    numbers are `fixed`."""

    run: Runner
    places: list[int]
    layouts: list[tuple[object, ...]]
    fixed: dict[int, object]
    symbols: dict[str, int]
    guards: tuple[Cond, ...]

    def fits(self, inputs: Values, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether they serve these arguments."""
        values = {name: inputs[at] for name, at in self.symbols.items()}
        if any(inputs[at] != value for at, value in self.fixed.items()):
            return False
        if any(value < 2 for value in values.values()):  # to the trace, these are numbers
            return False
        real = [(*tensor.shape, *tensor.stride()) for tensor in tensors]
        return real == with_sizes(self.layouts, values) and all(guard.evaluate(values) for guard in self.guards)


def second_order(tape: Tape, compile_trace: Compile, *, data: bool = False) -> SecondOrder:
    """The differentiable backward of a program; with sizes that are `data`, and with code of the program's own, it is
    replayed in eager."""
    return partial(in_eager, tape) if data or tape.functions else _Versions(tape, compile_trace).gradients


class _Versions:
    """The gradients of a program, compiled when they are first needed, once for each combination of layouts and
    histories of its arguments, for any sizes if the program is. What cannot be compiled is replayed in eager."""

    def __init__(self, tape: Tape, compile_trace: Compile) -> None:
        self.tape, self.compile_trace = tape, compile_trace
        self.numbers = tape.numbers()
        self.known: dict[object, list[Made] | None] = {}

    def gradients(self, inputs: Values, kept: Sequence[torch.Tensor], tangents: Tangents) -> Gradients | None:
        sizes = {*self.numbers.values()}
        key = tuple([_kind(value) for at, value in enumerate((*inputs, *tangents)) if at not in sizes])
        versions = self.known.setdefault(key, [])
        if versions is None:
            return in_eager(self.tape, inputs, kept, tangents)
        arguments = [value for value in (*inputs, *kept, *tangents) if isinstance(value, torch.Tensor)]
        made = next((made for made in versions if made.fits(inputs, arguments)), None)
        if made is None:
            made = self._made(inputs, kept, tangents)
            if made is None:
                self.known[key] = None
                return in_eager(self.tape, inputs, kept, tangents)
            versions.append(made)
        with torch._C._DisableAutocast():
            found = made.run([*arguments, *[inputs[at] for at in made.symbols.values()]])
        computed = dict(zip(made.places, found, strict=True))
        return tuple([computed.get(place) for place in range(len(inputs))])

    def _made(self, inputs: Values, kept: Sequence[torch.Tensor], tangents: Tangents) -> Made | None:
        """For any sizes where that can be; None for a program that cannot be derived twice."""
        for numbers in (self.numbers, {}) if self.numbers else ({},):
            try:
                return _compiled(self.tape, self.compile_trace, inputs, kept, tangents, numbers)
            except (RuntimeError, NotImplementedError, Unsupported, CompileError):
                continue
        return None


def in_eager(tape: Tape, inputs: Values, kept: Sequence[torch.Tensor], tangents: Tangents) -> Gradients | None:
    """The gradients of the program run again operation by operation, as eager computes them (differentiable in grad
    mode); None where one of the operations has no derivative."""
    derivable = [isinstance(value, torch.Tensor) and value.requires_grad for value in inputs]
    differentiable = torch.is_grad_enabled()
    try:
        with torch.enable_grad(), torch._C._DisableAutocast():
            with outside(), _disable_current_modes():  # the forward is over: only its derivative is to be seen
                # one input may have been computed from another: behind these the engine does not go on to it
                apart = [aten.alias(value) if derived else value for value, derived in zip(inputs, derivable)]
                outputs = tape.replay(None, apart, kept)
            roots = [value for value, derived in zip(apart, derivable) if derived]
            pairs = [(o, tangent) for o, tangent in zip(outputs, tangents) if tangent is not None and o.requires_grad]
            outs, weights = zip(*pairs)
            found = iter(torch.autograd.grad(outs, roots, weights, create_graph=differentiable, allow_unused=True))
    except (RuntimeError, NotImplementedError, Unsupported):
        return None
    return tuple([next(found) if derived else None for derived in derivable])


def _compiled(
    tape: Tape,
    compile_trace: Compile,
    inputs: Values,
    kept: Sequence[torch.Tensor],
    tangents: Tangents,
    numbers: Mapping[str, int],
) -> Made:
    """The compiled gradients, in which these numbers among the inputs are symbols."""
    trace = Trace()
    trace.derivation.running = True
    sizes = {name: trace.size(inputs[at], f"size{at}") for name, at in numbers.items()}

    def entered(values: Sequence[object], nodes: Sequence[fx.Node], name: str) -> Values:
        return [
            trace.input(value, f"{name}{place}", _sizes_of(node, sizes)) if isinstance(value, torch.Tensor) else value
            for place, (value, node) in enumerate(zip(values, nodes))
        ]

    values, again = [*entered(inputs, tape.inputs, "x")], entered(kept, tape.kept, "kept")
    weights = entered(tangents, tape.wanted, "tangent")
    for name, size in sizes.items():
        values[numbers[name]] = size
    layouts = [tuple(map(_plain, (*leaf.shape, *leaf.stride()))) for leaf in trace.leaves]
    with collector_paused(), torch.enable_grad(), torch._C._DisableAutocast(), trace.recording():
        outputs = tape.replay(trace, values, again)
        pairs = [(out, weight) for out, weight in zip(outputs, weights) if weight is not None and out.requires_grad]
        outs, wanted = [out for out, _ in pairs], [weight for _, weight in pairs]
        check_phases(trace, outs)
        places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor) and value.requires_grad]
        derived = run_engine(outs, wanted, [values[place] for place in places], create_graph=True)
    present = [(place, gradient) for place, gradient in zip(places, derived) if gradient is not None]
    with collector_paused(), torch.enable_grad(), torch._C._DisableAutocast():
        run = compile_trace(trace, [gradient for _, gradient in present])
    symbols = {as_expr(size).text(): numbers[name] for name, size in sizes.items() if isinstance(size, torch.SymInt)}
    fixed = {at: inputs[at] for at, value in enumerate(values) if not isinstance(value, (torch.Tensor, torch.SymInt))}
    return Made(run, [place for place, _ in present], layouts, fixed, symbols, tuple(trace.shapes.guards))


def _sizes_of(node: fx.Node, sizes: Mapping[str, Size]) -> dict[int, Size]:
    """The sizes of a tensor that was known as `node` that are made of these."""
    if not sizes:
        return {}
    return {
        dim: as_expr(size).evaluate(sizes)  # type: ignore[arg-type]  # symbols compute as numbers do
        for dim, size in enumerate(node.meta["val"].shape)
        if isinstance(size, torch.SymInt)
    }


def _plain(size: Size) -> object:
    """A number, or the expression of a symbol."""
    return as_expr(size) if isinstance(size, torch.SymInt) else size
