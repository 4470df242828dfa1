"""Run-time wrappers: each has a half before and a half after the graph runs, and keeps one promise of eager's calling
convention.

They compose around a compiled graph, `run(inputs: list) -> results`, from the inside out; each is left out where the
program does not need it.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
import torch.fx as fx

from bolide.functorch.graphs import Runner
from bolide.functorch.runtime.histories import Rest, versions_of
from bolide.functorch.runtime.second import Gradients, SecondOrder
from bolide.functorch.runtime.transformed import Tangents, is_batch, is_differentiated, is_transformed, through
from bolide.functorch.runtime.underived import raising
from bolide.functorch.signature import ONE_OF_SEVERAL, InputWrite, Output, is_symbolic, with_sizes, with_views
from bolide.support.errors import Refuted, WrongResult
from bolide.support.locks import compiling
from bolide.support.origins import refuse_mistake
from bolide.tracing.called.branches import again
from bolide.tracing.modes import interruptible
from bolide.tracing.wrappers import Form, count_of_parts, gradient_of, unflatten

_Tensor = torch.Tensor
_set_grad_enabled = torch._C._set_grad_enabled
_is_inference = torch._C.TensorBase.is_inference
_is_grad_enabled = torch.is_grad_enabled
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
_count_dispatch_modes = torch._C._len_torch_dispatch_stack
_version = operator.attrgetter("_version")
_is_graph_kept = torch._C._autograd._get_current_graph_task_keep_graph
_hooks_of_saved_tensors = torch._C._autograd._top_saved_tensors_default_hooks


def without_grad(run: Runner) -> Runner:
    """The graph's own ATen calls must not be recorded by autograd."""

    def wrapped(inputs: list[Any]) -> Sequence[Any]:
        _set_grad_enabled(False)
        try:
            return run(inputs)
        finally:
            _set_grad_enabled(True)

    return wrapped


def without_autocast(run: Runner) -> Runner:
    """The graph already holds autocast's conversions; its ATen calls must not be converted again."""

    def wrapped(inputs: list[Any]) -> Sequence[Any]:
        with torch._C._DisableAutocast():
            return run(inputs)

    return wrapped


def counting_writes(run: Runner, writes: Sequence[InputWrite]) -> Runner:
    """Writes to inputs show in autograd's version counters, as eager's do, whether or not the graph's own do. Eager
    raises where a tensor of inference mode is written outside."""
    written, plain = [write.input for write in writes], [write.plain for write in writes]

    def wrapped(inputs: list[Any]) -> Sequence[Any]:
        tensors = [inputs[place] for place in written]
        try:
            before = [*map(_version, tensors)]
        except RuntimeError:  # inference tensors count no writes
            if any(map(_is_inference, itertools.compress(tensors, plain))):
                raise Refuted("an inference tensor is written outside inference mode") from None
            tensors = [*itertools.filterfalse(_is_inference, tensors)]
            before = [*map(_version, tensors)]
        results = run(inputs)
        after = [*map(_version, tensors)]
        uncounted = map(operator.eq, before, after)
        torch._C._increment_version(tensors if before == after else list(itertools.compress(tensors, uncounted)))
        return results

    return wrapped


def writing_unseen(run: Runner, written: Sequence[int]) -> Runner:
    """Writes that the program makes through `Tensor.data` are not counted."""

    def wrapped(inputs: list[Any]) -> Sequence[Any]:
        for index in written:
            inputs[index] = inputs[index].data
        return run(inputs)

    return wrapped


def assembling(
    run: Runner,
    outputs: Sequence[Output],
    writes: Sequence[InputWrite],
    constants: dict[str, torch.Tensor],
    symbols: Sequence[str] = (),
    numbers: Mapping[str, int] | None = None,
) -> Runner:
    """Makes the program's outputs of the graph's results: writes that belong to the history are done, views are
    taken. `symbols` names the sizes, which are the last inputs; `numbers` says which results are sizes.
    """
    history = [(write.input, write.result) for write in writes if write.result is not None]
    if not history and all(out == Output("result", position) for position, out in enumerate(outputs)):
        return run
    inputs_needed = {write[0] for write in history} | {int(out.index) for out in outputs if out.kind == "input"}
    place = {index: position for position, index in enumerate(sorted(inputs_needed))}
    kept = list(place)
    symbolic = any(is_symbolic(out.chain) for out in outputs)

    def wrapped(inputs: list[Any]) -> Sequence[Any]:
        owners = [inputs[index] for index in kept]
        sizes = dict(zip(symbols, inputs[len(inputs) - len(symbols) :])) if symbolic else None
        results = run(inputs)
        if sizes is not None and numbers:
            sizes.update({name: results[place] for name, place in numbers.items()})
        for index, result in history:
            owners[place[index]].copy_(results[result])
        values: list[Any] = []
        for output in outputs:
            if output.kind == "result":
                value = results[int(output.index)]
            elif output.kind == "input":
                value = owners[place[int(output.index)]]
            else:
                value = values[int(output.index)] if output.kind == "output" else constants[str(output.index)]
            values.append(_viewed(value, output, sizes) if output.chain else value)
        return values

    return wrapped


def _viewed(base: torch.Tensor, output: Output, sizes: dict[str, int] | None) -> torch.Tensor:
    chain = output.chain if sizes is None else with_sizes(output.chain, sizes)
    if output.tracked is None or output.tracked == torch.is_grad_enabled():
        view = with_views(base, chain)
    else:
        with torch.set_grad_enabled(output.tracked):
            view = with_views(base, chain)
    if output.is_piece and view._is_view():
        torch._C._autograd._set_creation_meta(view, ONE_OF_SEVERAL)
    return view


@dataclass(frozen=True, slots=True)
class Crossing:
    """What passes from a forward call to its backward.

    `results`: how many of the forward graph's results are the program's. `tensors` and `numbers`: the saved values in
    the order in which the backward takes them, as positions in the list of all inputs followed by all of the forward
    graph's results. `tangents`: for each of the program's results the strides that its tangent is expected to have
    (it is brought into that layout if it comes in another), or None where there is no tangent. `symbols`: where the
    sizes that strides and aliases speak of are, by name, in the list of all inputs followed by all results. `shared`:
    the results that lie in the memory of an input or of another result, though with a history of their own.
    `histories`: which history each result is of, where there are several (see `runtime.histories`). `wrapped`: the
    inputs whose gradient is a wrapper, and how it is put together of the backward's last results.

    For gradients of gradients, which are computed from the inputs: `read`, the tensors among them that the results
    depend on and that are not saved; `loose`, those of them that the program's caller may drop; `kept`, where what
    is not computed again is (the seed of the random numbers, …).
    """

    results: int
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    tangents: tuple[tuple[Any, ...] | None, ...]
    symbols: Mapping[str, int] = field(default_factory=dict)
    read: tuple[int, ...] = ()
    loose: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    shared: Mapping[int, Output] = field(default_factory=dict)
    histories: tuple[int, ...] = ()
    wrapped: Mapping[int, Form] = field(default_factory=dict)


Pick = Callable[[tuple[object, ...]], tuple[torch.Tensor, ...]]
"""Gives some tensors of those that it is given."""

BackwardFor = Callable[[tuple[int, ...]], Runner]
"""Compiles the backward for the case that the tangents of these results do not come."""


class Backward:
    """The backward of one forward graph.

    It is compiled when it is first needed, once for each set of tangents that do not come (eager computes no gradients
    from those, and neither do we). Saved values are released while it runs unless the graph is retained. With
    ``create_graph=True`` `twice` computes the gradients. `eager` does inside transforms, where tangents have
    derivatives of their own, and where dispatch modes look on; if it cannot, these see what is compiled (`seen`).
    A mistake of bolide's in it is raised as a HalfwayError about `title`: the forward is over.

    Where it is captured itself, as a part of a whole pass, it is the graph module of `module_for`, if there is one.
    """

    def __init__(
        self,
        crossing: Crossing,
        compiled_for: BackwardFor,
        seen_for: BackwardFor,
        module_for: Callable[[tuple[int, ...]], fx.GraphModule | None],
        needed: Callable[[tuple[int, ...]], Sequence[int]],
        twice: SecondOrder | None,
        eager: SecondOrder | None,
        title: str,
    ) -> None:
        self.crossing, self.module_for, self.needed, self.title = crossing, module_for, needed, title
        self.told: Callable[[tuple[int, ...], Runner], None] | None = None  # of each backward that is compiled
        self.twice, self.eager = twice, eager
        self.compiled, self.seen = _OncePerKey(compiled_for), _OncePerKey(seen_for)
        self.expected = [(at, stride) for at, stride in enumerate(crossing.tangents) if stride is not None]
        self.plain = not crossing.histories and not crossing.wrapped

    def backward(self, ctx: Any, tangents: Tangents) -> tuple[Any, ...]:
        """The gradients of the forward's inputs."""
        try:
            usual = self._usual(ctx, tangents)
            if usual is not None:
                return usual
            return self._transformed(ctx, tangents) if is_transformed(tangents) else self._gradients(ctx, tangents)
        except Exception as error:
            refuse_mistake("its backward pass", self.title, error)
            raise

    backward._bolide_disabled = "it is compiled already"  # type: ignore[attr-defined]

    def inlined(self, ctx: Any, tangents: Tangents) -> tuple[Any, ...]:
        """As `backward`, for capture to go through: operations of a graph where it can be one, or else a call."""
        called = torch.is_grad_enabled() or torch._C._is_any_autocast_enabled() or ctx.layouts is not None
        if called or self.crossing.wrapped:
            return self.backward(ctx, tangents)
        module = self.module(tuple([tangent is not None for tangent in tangents]))
        if module is None:
            return self.backward(ctx, tangents)
        present = [tangent for tangent, stride in zip(tangents, self.crossing.tangents) if stride is not None]
        values = [*ctx.saved_tensors, *ctx.numbers, *[tangent for tangent in present if tangent is not None]]
        return tuple(again(module, values))

    def module(self, given: tuple[bool, ...]) -> fx.GraphModule | None:
        """The backward as a graph for the case that these results have tangents: of operations that can be done again,
        or None."""
        return self.module_for(tuple([at for at, _ in self.expected if not given[at]]))

    def _usual(self, ctx: Any, tangents: Tangents) -> tuple[object, ...] | None:
        """What `_gradients` gives, where nothing but the layout of tangents is to be heeded; else None. It decides how
        long small programs take."""
        if ctx.layouts is not None or ctx.sizes or is_differentiated():
            return None
        if not self.plain or _is_grad_enabled() or _count_dispatch_modes() or _is_any_autocast_enabled():
            return None
        given = []
        for at, stride in self.expected:
            tangent = tangents[at]
            if tangent is None or is_batch(tangent):
                return None
            given.append(_laid_out(tangent, stride))
        values = [*ctx.saved_tensors, *ctx.numbers, *given]
        ctx.maybe_clear_saved_tensors()
        del given
        return tuple(self.compiled[()](values))

    def _gradients(self, ctx: Any, tangents: Tangents, saved: Sequence[object] | None = None) -> tuple[Any, ...]:
        """`saved`: what the forward has saved, where it was unpacked before."""
        inputs: Sequence[object] | None = None
        derived: Gradients | None = None
        twice, watched = _is_grad_enabled(), _count_dispatch_modes() > 0
        if twice or watched:
            inputs, again = _recalled(ctx, self.crossing), self.eager if watched else self.twice
            derived = None if inputs is None or again is None else again(inputs, ctx.kept, tangents)
            if derived is not None and twice:
                return derived
        given: list[torch.Tensor] = []
        missing: tuple[int, ...] = ()
        for at, stride in self.expected:
            tangent = tangents[at]
            if tangent is None:
                missing += (at,)
                continue
            if ctx.sizes:
                stride = with_sizes(stride, ctx.sizes)
            given.append(_laid_out(tangent, stride))
        if saved is not None:
            values = [*saved]
        elif self.crossing.histories:
            values = self._of_histories(ctx, missing)
        else:
            values = self._unpacked(ctx, missing)
            ctx.maybe_clear_saved_tensors()
        if derived is not None:
            return derived
        values += given
        run = self.seen[missing] if watched else self.compiled[missing]
        if _is_any_autocast_enabled():
            run = without_autocast(run)
        if not twice:
            return self._whole(run(values))
        roots = [*values, *(inputs or ())]
        return self._whole(_not_twice(without_grad(run)(values), roots))

    def _whole(self, gradients: Sequence[object]) -> tuple[object, ...]:
        """Gradients with those that are wrappers put together."""
        if not self.crossing.wrapped:
            return tuple(gradients)
        counts = [count_of_parts(form) for form in self.crossing.wrapped.values()]
        whole, parts = [*gradients[: len(gradients) - sum(counts)]], iter(gradients[len(gradients) - sum(counts) :])
        for (place, form), count in zip(self.crossing.wrapped.items(), counts):
            of_one = [next(parts) for _ in range(count)]
            if any(part is not None for part in of_one):
                whole[place] = gradient_of(form, of_one, unflatten)
        return tuple(whole)

    def _unpacked(self, ctx: Any, missing: tuple[int, ...]) -> list[object]:
        """The saved values. What only `missing` tangents need may have been written to since, as in eager: the weights
        of a critic, by the step of its optimizer, while the loss of the actor is still to be derived."""
        if not missing or ctx.layouts is not None:
            return _unpacked(ctx)
        with suppress(RuntimeError):
            return _unpacked(ctx)
        values = [*[saved.data for saved in ctx._raw_saved_tensors], *ctx.numbers]
        versions = [*ctx.versions, *[None] * len(ctx.numbers)]
        return Rest(values, versions, frozenset()).taken(partial(self.needed, missing))

    def _of_histories(self, ctx: Any, missing: tuple[int, ...]) -> list[object]:
        """The saved values, which are released now, but for those of histories that get no tangents yet."""
        of, rest = self.crossing.histories, cast(Rest | None, ctx.rest)
        asked = frozenset([of[at] for at, _ in self.expected if at not in missing])
        if rest is not None and not asked & rest.derived:
            values = rest.taken(partial(self.needed, missing))
        else:
            values = self._unpacked(ctx, missing)
            ctx.maybe_clear_saved_tensors()
        if _is_graph_kept():  # this pass releases nothing
            return values
        derived = asked if rest is None else asked | rest.derived
        ctx.rest = Rest.after(derived, [*values], rest) if derived < set(of) else None
        return values

    def _transformed(self, ctx: Any, tangents: Tangents) -> tuple[Any, ...]:
        saved = _unpacked(ctx)
        gradients = through(lambda items: self._gradients(ctx, items, saved), partial(self._replayed, ctx), tangents)
        ctx.maybe_clear_saved_tensors()
        return tuple(gradients)

    def _replayed(self, ctx: Any, tangents: Tangents) -> tuple[Any, ...]:
        """The gradients by running the program again in eager. Raises RuntimeError where that cannot be."""
        inputs = _recalled(ctx, self.crossing)
        gradients = None if inputs is None or self.eager is None else self.eager(inputs, ctx.kept, tangents)
        if gradients is None:
            raise RuntimeError(
                "bolide: the backward pass of a compiled function is itself differentiated by a transform "
                "(torch.func.grad, vjp, jvp, or forward-mode differentiation), but it cannot be: "
                f"{_NOT_AGAIN}. Remedy: run this function without bolide.compile."
            )
        return gradients


_NOT_AGAIN = (
    "an input of the forward was written to or dropped since, one of its operations has no second derivative, or its "
    "backward is the program's own (a hook, or an autograd.Function that cannot be called again)"
)


def _not_twice(gradients: Sequence[Any], made_of: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients that raise when they are differentiated again, by what they are made of."""
    message = (
        "bolide: this backward pass of a compiled function was asked for with create_graph=True and is now "
        f"differentiated itself, but it cannot be: {_NOT_AGAIN}. Remedy: keep the inputs as they were, run this "
        "function without bolide.compile, or leave out create_graph=True."
    )
    present = [gradient.detach() for gradient in gradients if gradient is not None]
    roots = [value for value in made_of if isinstance(value, torch.Tensor) and value.requires_grad]
    rest = iter(raising(message, present, roots))
    return tuple([None if gradient is None else next(rest) for gradient in gradients])


_USUAL: Mapping[str, object] = {"kept": (), "sizes": None, "rest": None, "versions": ()}
"""What a node carries where its call has nothing to carry, as attributes of all nodes; but for what `inlined` reads,
since capture knows a node by its own attributes."""


def differentiable(
    run: Runner,
    derivative: Backward,
    crossing: Crossing,
    apart: Sequence[int] = (),
    anchored: bool = False,
    whole_pass: Callable[[fx.GraphModule], Callable[..., object]] | None = None,
) -> Runner:
    """Makes the forward graph one node of autograd's graph.

    The inputs `apart` have a history that no result goes back to: the engine would run it all the same, though it may
    have been released. With `anchored` results go back to leaves made inside only: the node gets one more input that
    requires grad, so that they do. `whole_pass` is what compiles a captured backward pass that the node is a part of.
    """
    count = crossing.results
    untracked = [index for index, stride in enumerate(crossing.tangents) if stride is None]
    read, saved = _picked(crossing.read), _picked(crossing.tensors)
    several = len(crossing.tangents) - len(untracked) > 1
    more, shared = bool(crossing.numbers or crossing.kept or crossing.symbols), [*crossing.shared.items()]

    class CompiledFunction(torch.autograd.Function):
        whole = whole_pass

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            inputs = inputs[:-1] if anchored else inputs
            ctx.remembered = _remembered(inputs, read, crossing.loose)
            results = [*run([*inputs])]
            # autograd forbids writing to views that a custom function made; to us they are only memory
            for place, value in enumerate(results):
                if isinstance(value, _Tensor) and value._is_view():
                    results[place] = value.detach()
            pool = (*inputs, *results)
            tensors = saved(pool)
            ctx.save_for_backward(*tensors)
            ctx.materialize_grads = False
            ctx.layouts, ctx.numbers = None, ()
            if several:
                ctx.versions = versions_of(tensors)
            if more:
                _carry(ctx, pool, crossing)
            if _hooks_of_saved_tensors(True) is not None:
                ctx.layouts = [(t.shape, t.stride(), t.dtype, t.device) for t in tensors]
            for place, alias in shared:
                owner = inputs[int(alias.index)] if alias.kind == "input" else results[int(alias.index)]
                results[place] = with_views(owner.detach(), with_sizes(alias.chain, ctx.sizes)).detach()
            if untracked:
                ctx.mark_non_differentiable(*[results[i] for i in untracked if isinstance(results[i], torch.Tensor)])
            return tuple(results[:count])

        @staticmethod
        def backward(ctx: Any, *tangents: Any) -> Any:
            capturing = torch.compiler.is_compiling()
            gradients = (derivative.inlined if capturing else derivative.backward)(ctx, tangents)
            return (*gradients, None) if anchored else gradients

    def backward(ctx: object, *tangents: torch.Tensor | None) -> tuple[object, ...]:
        gradients = derivative.backward(ctx, tangents)
        return (*gradients, None) if anchored else gradients

    # What the engine calls. Capture goes through the class's `backward`, and is told apart there.
    CompiledFunction._backward_cls.apply = backward  # type: ignore[attr-defined]
    for name, usual in _USUAL.items():
        setattr(CompiledFunction._backward_cls, name, usual)  # type: ignore[attr-defined]

    # The engine's own `apply`: that of `Function` looks for wrappers of transforms, in which no graph runs.
    apply = super(torch.autograd.Function, CompiledFunction).apply

    def wrapped(inputs: list[Any]) -> Sequence[Any]:
        for index in apart:
            inputs[index] = inputs[index].detach()
        if anchored:
            inputs.append(torch.empty(0, requires_grad=True))
        outputs: Sequence[Any] = apply(*inputs)  # type: ignore[no-untyped-call]
        inputs.clear()
        return outputs

    return wrapped


def _carry(ctx: Any, pool: Sequence[object], crossing: Crossing) -> None:
    """Keep for the backward what goes over to it of the inputs and results in `pool`, besides tensors."""
    if crossing.numbers:
        ctx.numbers = [pool[index] for index in crossing.numbers]
    if crossing.kept:
        ctx.kept = [pool[place] for place in crossing.kept]
    if crossing.symbols:
        ctx.sizes = {name: pool[place] for name, place in crossing.symbols.items()}


def _picked(places: tuple[int, ...]) -> Pick:
    """What gives the tensors at these places of a tuple."""
    first, count = min(places, default=0), len(places)
    in_a_row = places == tuple(range(first, first + count))
    return operator.itemgetter(slice(first, first + count)) if in_a_row else operator.itemgetter(*places)


def dropping_absent(run: Runner, flags: Sequence[int]) -> Runner:
    """Makes None of the gradients at `flags` that the truth values behind all gradients say are not there."""

    def wrapped(inputs: list[Any]) -> Sequence[Any]:
        gradients = list(run(inputs))
        whole = len(gradients) - len(flags)
        for place, there in zip(flags, gradients[whole:]):
            if not there:
                gradients[place] = None
        return gradients[:whole]

    return wrapped


def _unpacked(ctx: Any) -> list[object]:
    """The saved values; tensors that went through hooks are brought into the layout and the dtype that they had."""
    if ctx.layouts is None:
        return [*ctx.saved_tensors, *ctx.numbers]
    values: list[object] = []
    for tensor, (shape, stride, dtype, device) in zip(ctx.saved_tensors, ctx.layouts):
        if tensor.shape != shape:
            raise WrongResult(
                f"a hook of saved tensors gave a tensor of shape {list(tensor.shape)}; what was saved has shape "
                f"{list(shape)}\n  remedy: let the hook that unpacks give what the hook that packs was given"
            )
        values.append(_laid_out(tensor.to(device, dtype), stride))
    return [*values, *ctx.numbers]


def _laid_out(tangent: torch.Tensor, stride: tuple[Any, ...]) -> torch.Tensor:
    if tangent.stride() == stride and not tangent.is_conj() and not tangent.is_neg():
        return tangent
    return torch.empty_strided(tangent.shape, stride, dtype=tangent.dtype, device=tangent.device).copy_(tangent)


def _remembered(
    inputs: tuple[object, ...], read: Pick, loose: Sequence[int]
) -> tuple[Sequence[object], list[int]] | None:
    """The inputs for a later derivation of the backward, without keeping alive what nothing else does, and the versions
    of those that autograd does not watch (None: they have none)."""
    try:
        versions = [*map(_version, read(inputs))]
    except RuntimeError:  # inference tensors do not count writes
        return None
    if not loose:
        return inputs, versions
    kept = [*inputs]
    for index in loose:
        kept[index] = weakref.ref(kept[index])
    return kept, versions


def _recalled(ctx: Any, crossing: Crossing) -> list[Any] | None:
    """The inputs with their history; None if one is gone, or was written to since."""
    if ctx.remembered is None:
        return None
    inputs, versions = [*ctx.remembered[0]], ctx.remembered[1]
    for index in crossing.loose:
        inputs[index] = inputs[index]()
    for index, saved in zip(crossing.tensors, ctx.saved_tensors):
        if index < len(inputs):
            inputs[index] = saved
    now = [None if inputs[index] is None else inputs[index]._version for index in crossing.read]
    return inputs if now == versions else None


class _OncePerKey(dict[tuple[int, ...], Runner]):
    """Remembers what was made for each key; several threads may ask at once, one makes."""

    def __init__(self, make: BackwardFor) -> None:
        self._make = make

    def __missing__(self, key: tuple[int, ...]) -> Runner:
        with compiling, interruptible():
            run = self.get(key)
            if run is None:
                run = self[key] = self._make(key)
        return run
