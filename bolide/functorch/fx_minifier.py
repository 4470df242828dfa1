"""Delta debugging of graphs: from a graph that fails to a small one that fails as well.

A `State` is a graph with its inputs and the value of each of its nodes, found by running it once. A reduction gives
smaller states, the smallest first: one with fewer results, one in which some nodes are inputs, and so on. One loop
goes over the reductions, and takes the first state that still fails.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.fx as fx
from torch import Tensor

from bolide.functorch.compile_utils import get_outputs, get_placeholders, writes
from bolide.tracing.graph import closure, mapped

ModuleFails = Callable[[fx.GraphModule, list[object]], object]
DumpState = Callable[[fx.GraphModule, list[object]], object]
Number = (int, float)


@dataclass(frozen=True)
class Stored:
    """A tensor that is kept in a file."""

    path: Path
    shape: tuple[int, ...]

    def load(self) -> Tensor:
        """The tensor."""
        tensor: Tensor = torch.load(self.path)
        return tensor


@dataclass(frozen=True)
class State:
    """A graph that fails. Nobody changes it.

    `inputs`: a value for each placeholder; `values`: what the nodes give, by name: tensors (or where they are
    `Stored`), numbers, and tuples of those; `root`: the module whose attributes the graph reads.
    """

    root: torch.nn.Module
    graph: fx.Graph
    inputs: tuple[object, ...]
    values: Mapping[str, object]

    @functools.cached_property
    def calls(self) -> list[fx.Node]:
        """The nodes that compute something, or read an attribute."""
        return [node for node in self.graph.nodes if node.op not in ("placeholder", "output")]

    @functools.cached_property
    def results(self) -> list[object]:
        """What the graph returns, in flat form."""
        return get_outputs(self.graph)

    @functools.cached_property
    def placeholders(self) -> list[fx.Node]:
        """The inputs' nodes."""
        return get_placeholders(self.graph)

    def module(self) -> fx.GraphModule:
        """A graph module of its own, which may be changed."""
        return fx.GraphModule(self.root, copy.deepcopy(self.graph), type(self.root).__name__)

    def arguments(self) -> list[object]:
        """Copies of the inputs, as leaves, which may be written to."""
        return fresh(_loaded(self.inputs))

    def size(self) -> tuple[int, ...]:
        """How large it is; a smaller one has fewer calls, or as many and fewer results, and so on."""
        misplaced = sum(node.op != "placeholder" for node in itertools.islice(self.graph.nodes, len(self.inputs)))
        elements = sum(math.prod(value.shape) for value in self.inputs if isinstance(value, (Tensor, Stored)))
        return (len(self.calls), len(self.results), len(self.inputs), misplaced, elements)

    def key(self) -> tuple[object, ...]:
        """What tells it from others: placeholders are named by the nodes whose values they are given."""
        forms = [(*value.shape,) if isinstance(value, (Tensor, Stored)) else value for value in self.inputs]
        return (str(self.graph), *forms)


Reduction = Callable[[State], Iterator[State]]


def minifier(
    fail_f: fx.GraphModule,
    inps: Sequence[object],
    module_fails: ModuleFails,
    dump_state: DumpState | None = None,
    *,
    save_dir: str | None = None,
    offload_to_disk: bool = False,
    skip_offload: bool = False,
    skip_sanity: bool = False,
    max_granularity: int | None = None,
) -> tuple[fx.GraphModule, list[object]]:
    """A small graph, and inputs for it, that fails as `fail_f` does for `inps`.

    module_fails: says whether a graph fails for inputs; both are copies, which it may change. It is asked about graphs
    that may be wrong otherwise, and should say no then.
    dump_state: is given the first and every smaller graph that fails, with its inputs.
    offload_to_disk: intermediate values are kept in files below `save_dir` until they are inputs; with `skip_offload`
    an earlier run has written them. skip_sanity: do not ask about the graph itself. max_granularity: a power of two,
    of how many nodes at once become inputs at most.

    Raises RuntimeError if the graph does not fail, ValueError for what is missing.
    """
    if max_granularity is not None and (max_granularity < 1 or max_granularity & (max_granularity - 1)):
        raise RuntimeError(f"max_granularity {max_granularity} not power of two")
    if offload_to_disk and save_dir is None:
        raise ValueError("offload_to_disk needs a directory: save_dir")

    def fails(state: State) -> bool:
        module = state.module()
        module.graph.lint()
        return bool(module_fails(module, state.arguments()))

    folder = Path(save_dir) if offload_to_disk and save_dir is not None else None
    state = recorded(fail_f, fail_f.graph, tuple(inps), folder, skip_offload)
    if not skip_sanity and not fails(state):
        raise RuntimeError("Input graph did not fail the tester")
    state = minimal(state, fails, dump_state, max_granularity)
    if not fails(state):
        raise RuntimeError("The smallest graph fails no more: does it fail at random?")
    return state.module(), state.arguments()


def dump_state(fx_g: fx.GraphModule, inps: Sequence[Tensor]) -> None:
    """Print a graph and what its inputs are like, as Python; for `minifier`."""
    described = [(given.shape, given.dtype, str(given.device)) for given in inps]
    print(f"# a graph of {len(fx_g.graph.nodes)} nodes that fails\ninps = {described}")
    print("inps = [torch.ones(shape, dtype=dtype, device=device) for shape, dtype, device in inps]")
    print(fx_g.code)


def minimal(
    state: State, fails: Callable[[State], bool], dump_state: DumpState | None = None, most: int | None = None
) -> State:
    """The state in which no reduction finds one that fails. No state is asked about twice."""
    asked = {state.key()}

    def first_failing(candidates: Iterable[State], size: tuple[int, ...]) -> State | None:
        for candidate in candidates:
            key = candidate.key()
            if candidate.size() < size and key not in asked:
                asked.add(key)
                if fails(candidate):
                    return candidate
        return None

    def dump(state: State) -> None:
        if dump_state is not None:
            dump_state(state.module(), state.arguments())

    dump(state)
    while True:
        before = state
        for reduction in reductions(len(state.calls), most):
            while (smaller := first_failing(reduction(state), state.size())) is not None:
                state = smaller
                dump(state)
        if state is before:
            return state


def reductions(calls: int, most: int | None) -> list[Reduction]:
    """All reductions of a graph of so many calls, those first that leave least."""
    largest = 1 << max(0, calls.bit_length() - 1)
    granularity = largest if most is None else min(largest, most)
    sizes = [1 << power for power in reversed(range(granularity.bit_length()))]
    by_size = [functools.partial(step, size=size) for size in sizes for step in (truncated, replaced, fewer_results)]
    return [without_unused, consolidated, *by_size, smaller_sizes]


# ---- values ----------------------------------------------------------------------------------------------------------


def fresh(values: Sequence[object]) -> list[object]:
    """Copies of the tensors among `values`, as leaves: with the same strides, and in shared memory where it was."""
    memo: dict[int, object] = {}

    def copy_of(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        return copy.deepcopy(value.detach(), memo).requires_grad_(value.requires_grad)

    return [copy_of(value) for value in values]


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps the values of all calls, as they were when they were made."""

    def __init__(self, module: fx.GraphModule, folder: Path | None, written: bool) -> None:
        super().__init__(module)
        self.values: dict[str, object] = {}
        self.folder, self.written = folder, written

    def run_node(self, n: fx.Node) -> object:
        """As `fx.Interpreter.run_node`."""
        value = super().run_node(n)
        if n.op not in ("placeholder", "output"):
            self.values[n.name] = self._kept(n.name, value)
        return value

    def _kept(self, name: str, value: object) -> object:
        if isinstance(value, (tuple, list)):
            return tuple([self._kept(f"{name}.{place}", item) for place, item in enumerate(value)])
        if not isinstance(value, Tensor):
            return value if isinstance(value, Number) else None
        if self.folder is None:
            return fresh([value])[0]
        stored = Stored(self.folder / f"{name}.pt", tuple(value.shape))
        if not self.written:
            os.makedirs(self.folder, exist_ok=True)
            torch.save(fresh([value])[0], stored.path)
        return stored


def recorded(
    root: torch.nn.Module,
    graph: fx.Graph,
    inputs: tuple[object, ...],
    folder: Path | None = None,
    written: bool = False,
) -> State:
    """The state of a graph, which is run once; `folder`: where values are kept (None: in memory), if they are not
    `written` already.
    """
    unknown = State(root, graph, inputs, {})
    recorder = _Recorder(unknown.module(), folder, written)
    recorder.run(*unknown.arguments())
    return State(root, graph, inputs, recorder.values)


# ---- parts of a graph ------------------------------------------------------------------------------------------------


def _needed(results: Iterable[object], calls: Iterable[fx.Node], ends: Collection[fx.Node] = ()) -> set[fx.Node]:
    """What the results, and those of the `calls` that have effects, are computed from; nothing behind `ends`."""
    effects = [node for node in calls if node not in ends and _has_effect(node)]
    start = [node for node in (*results, *effects) if isinstance(node, fx.Node)]
    return closure(start, lambda node: () if node in ends else node.all_input_nodes)


def _has_effect(node: fx.Node) -> bool:
    return writes(node) or (node.op == "call_function" and node.is_impure())


def _part(
    state: State,
    results: Sequence[object] | None = None,
    replaced: Mapping[fx.Node, object] | None = None,
    kept: Iterable[fx.Node] | None = None,
    calls: Sequence[fx.Node] | None = None,
) -> State:
    """The part of a graph that computes `results` (None: as before), without what nothing needs any more.

    `replaced`: nodes that become inputs of these values, or numbers. `kept`: what stays although nothing needs it
    (None: what nothing has needed before). `calls`: those of which the effects are wanted (None: all).
    """
    replaced, calls = replaced or {}, state.calls if calls is None else calls
    returned: Any = state.graph.output_node().args[0] if results is None else tuple(results)
    results = state.results if results is None else results
    if kept is None:
        alive = _needed(state.results, state.calls)
        kept = [node for node in (*state.placeholders, *calls) if node not in alive]
    unreplaced = [node for node in kept if node not in replaced]
    needed = _needed([*results, *unreplaced], calls, replaced.keys())
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    inputs = []
    known = {**dict(zip(state.placeholders, state.inputs)), **replaced}
    for node in state.graph.nodes:
        if node in known and node in needed:
            if node in replaced and isinstance(known[node], Number):
                copies[node] = known[node]
                continue
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
            inputs.append(known[node])
    for node in state.calls:
        if node in needed and node not in replaced:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(fx.map_arg(returned, copies.__getitem__))
    return State(state.root, graph, tuple(inputs), state.values)


def _tensors(state: State, node: fx.Node) -> Iterator[fx.Node]:
    """A node whose value is a tensor, or the items of its value that are."""
    value = state.values.get(node.name)
    if isinstance(value, (Tensor, Stored)):
        yield node
    elif isinstance(value, tuple):
        for user in node.users:
            yield from _tensors(state, user)


# ---- reductions ------------------------------------------------------------------------------------------------------


def without_unused(state: State) -> Iterator[State]:
    """Without dead code and unused inputs; without one of them."""
    alive = _needed(state.results, state.calls)
    unused = [node for node in state.placeholders if node not in alive]
    dead = [node for node in state.calls if node not in alive]
    for kept in ([], unused, dead):
        yield _part(state, kept=kept)


def consolidated(state: State) -> Iterator[State]:
    """With the inputs before all else."""
    yield _part(state)


def truncated(state: State, size: int) -> Iterator[State]:
    """With an earlier value as the result, each `size`-th, and without the effects of what follows it."""
    for end in range(size, len(state.calls) + 1, size):
        last = state.calls[end - 1]
        values = [last] if isinstance(state.values.get(last.name), Number) else list(_tensors(state, last))
        if values:
            yield _part(state, values, calls=state.calls[:end])


def replaced(state: State, size: int) -> Iterator[State]:
    """With the values of `size` nodes in a row as inputs, or as numbers, and without their effects."""
    numbers = [node for node, value in zip(state.placeholders, state.inputs) if isinstance(value, Number)]
    values = {**state.values, **{node.name: value for node, value in zip(state.placeholders, state.inputs)}}
    nodes = [*state.calls, *numbers]
    for start in range(0, len(nodes), size):
        chunk = nodes[start : start + size]
        given = [item for node in chunk for item in _tensors(state, node)]
        given += [node for node in chunk if isinstance(values.get(node.name), Number)]
        if given or any(map(_has_effect, chunk)):
            others = [*nodes[:start], *nodes[start + size :]]
            yield _part(state, replaced={node: values[node.name] for node in given}, calls=others)


def fewer_results(state: State, size: int) -> Iterator[State]:
    """Without `size` results in a row, if others are left."""
    if size < len(state.results):
        for start in range(0, len(state.results), size):
            yield _part(state, [*state.results[:start], *state.results[start + size :]])


def smaller_sizes(state: State) -> Iterator[State]:
    """With another number in place of a size of the inputs, wherever it is; those that run. Not with operations that
    do not check sizes: they would read, and write, other memory."""
    if any(word in str(node.target) for node in state.calls for word in _UNCHECKED):
        return
    shapes = [value.shape for value in state.inputs if isinstance(value, (Tensor, Stored))]
    for size in sorted({size for shape in shapes for size in shape if size > 1}, reverse=True):
        for other in dict.fromkeys((1, 2, size // 2)):
            if other < size:
                yield from itertools.islice(_resized(state, size, other), 1)


def _resized(state: State, size: int, other: int) -> Iterator[State]:
    """`other` in place of `size`, and in place of its multiples as well where the graph does not run otherwise.
    Integers are zeros then: they may be places, which are not there any more, and not all operations check them."""

    def cut(value: object) -> object:
        if not isinstance(value, Tensor):
            return other if type(value) is int and value == size else value
        slices = tuple(slice(other if length == size else length) for length in value.shape)
        part = value.detach()[slices].clone(memory_format=torch.preserve_format)
        if value.dtype in _PLACES:
            part.zero_()
        return part.requires_grad_(value.requires_grad)

    inputs = tuple([cut(value) for value in fresh(_loaded(state.inputs))])
    for multiples in (False, True):

        def change(value: object, multiples: bool = multiples) -> object:
            if type(value) is not int or value < size or value % size or (value > size and not multiples):
                return value
            return value // size * other

        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in state.graph.nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = {name: value for name, value in node.meta.items() if name not in _OF_SIZES}
            if node.op in ("call_function", "call_method"):
                copies[node].args = mapped(copies[node].args, change)
                copies[node].kwargs = mapped(copies[node].kwargs, change)
        try:
            yield recorded(state.root, graph, inputs)
        except Exception:  # sizes that do not fit
            continue


_UNCHECKED = ("mkldnn", "rnn", "lstm", "gru", "recurrent")
_PLACES = (torch.int32, torch.int64)
_OF_SIZES = ("val", "tensor_meta", "example_value")


def _loaded(values: Iterable[object]) -> list[object]:
    return [value.load() if isinstance(value, Stored) else value for value in values]
