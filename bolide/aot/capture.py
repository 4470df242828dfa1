"""From a program and example arguments to the contents of a library."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from bolide import functorch, inductor
from bolide.aot import layout
from bolide.aot.contents import Constant, Contents, Number, Requirement
from bolide.dynamo.config import config
from bolide.dynamo.entry.module import call_target
from bolide.dynamo.program import sources
from bolide.dynamo.program.captured import Captured, Recipe
from bolide.exporting import bound, capture_whole, graphs
from bolide.exporting.shapes import Shapes, spelled_out
from bolide.functorch.signature import Signature
from bolide.inductor.compiled_graph import Planned, plan_graph
from bolide.inductor.ir.loops import CPU
from bolide.inductor.lowering.context import device_of
from bolide.inductor.machine import Machine, machine_for
from bolide.inductor.plan import Free, Plan, Ref, Step, TensorInput, TensorType, View, WordInput
from bolide.inductor.plan.steps import all_of_words, of_words
from bolide.support.errors import ConstraintError, Unsupported, forgive
from bolide.support.garbage import collector_paused
from bolide.support.locks import compiling
from bolide.symbolic import Expr, Ratio, as_expr
from bolide.tracing import TensorMeta
from bolide.tracing.meta import meta_of


class Specs(NamedTuple):
    """How the arguments (positional, by name) and the result are made of leaves."""

    arguments: pytree.TreeSpec
    result: pytree.TreeSpec


class Program(NamedTuple):
    """What a library is made of, and the sizes of the example."""

    contents: Contents
    sizes: dict[str, int]


@dataclass(frozen=True)
class _Placed:
    """What stands for an output of the graph while the result is put together: its place among them."""

    place: int


class Request(NamedTuple):
    """A call of a function or module that a library is asked for, and the machine that is to run it.

    `dynamic_shapes` as for `dynamo.export`; options: of `inductor.config`; specs: how arguments and results are made of
    what the function takes and gives, if not as it says itself."""

    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    dynamic_shapes: object
    options: Mapping[str, object]
    machine: Machine
    specs: Specs | None = None


def program_of(request: Request) -> Program:
    """Captures the call, without gradients, and plans it. Sizes that differ may be 0 and 1 as well, but for those of
    which the program asks that: it is captured once more for each.

    Raises Unsupported for what one graph cannot do, for tensors that require grad while grad mode is on, and for
    results that a library cannot give; ValueError for two arguments that are one tensor."""
    shapes = Shapes(any_size=True)
    while True:
        try:
            return _program_of(request, shapes)
        except (Unsupported, ConstraintError) as error:
            if not shapes.allow(error):
                raise
            if isinstance(error, Unsupported):
                forgive(error)


def _program_of(request: Request, shapes: Shapes) -> Program:
    function, args, kwargs = request.function, request.args, request.kwargs
    leaves, in_spec = pytree.tree_flatten((args, kwargs))
    _refuse_training(leaves)
    called, passed = function, args
    if isinstance(function, types.MethodType):
        called, passed = function.__func__, (function.__self__, *args)
    elif not isinstance(function, types.FunctionType):
        called, passed = call_target, (function, *args)
    named, parameters = bound(function, args, kwargs)
    with torch.no_grad(), collector_paused():
        with (
            shapes.marked(spelled_out(request.dynamic_shapes, function, args, kwargs), named, True),
            config.patch(automatic_dynamic_shapes=False, unrolled_steps=None),  # a loop of steps is Python
        ):
            captured, _ = capture_whole(called, passed, kwargs, {}, shapes, record_calls=False)
        numbers = graphs.numbers_of(captured)
        graphs.give_numbers(captured, numbers)
        call = graphs.Call(called, passed, kwargs, args, list(named), parameters)
        placed = tuple([_Placed(place) for place in range(len(captured.outputs) + len(numbers))])
        inputs, result = graphs.rebuilt(call, captured, placed)
        given = _given(leaves, inputs[: len(captured.inputs)], _told(args, kwargs, list(named)))
        static = frozenset([place for place, at in enumerate(given.places) if at is None])
        module, info, signature = functorch.inference_graph(captured.trace, captured.outputs, captured.name, static)
        with compiling, inductor.config.patch(dict(request.options)):
            device = _device_of(module)
            machine = machine_for(device) if device != CPU else request.machine
            planned = plan_graph(module, info, machine, captured.name, {})
        maker = _Maker(captured, planned, signature, given, numbers, function, parameters, device)
        specs = request.specs or Specs(in_spec, pytree.tree_structure(result))
        return Program(maker.contents(leaves, result, specs), planned.sizes)


def _device_of(module: fx.GraphModule) -> torch.device:
    """The GPU of a graph, or the CPU. Raises Unsupported for several, and for other devices."""
    found = {device_of(node.meta.get("val")) for node in module.graph.nodes} - {CPU}
    if len(found) > 1 or any(device.type != "cuda" for device in found):
        names = ", ".join(sorted(map(str, found)))
        raise Unsupported(f"a library is for the CPU and at most one GPU, not for {names}", kind="input")
    return next(iter(found), CPU)


def _refuse_training(leaves: Sequence[object]) -> None:
    if torch.is_grad_enabled() and any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
        reason = "an argument requires grad, and a library has no backward pass: training graphs cannot be compiled so"
        raise Unsupported(reason, remedy="call it under torch.no_grad(), or give detached tensors", kind="global_state")


def _told(args: tuple[object, ...], kwargs: Mapping[str, object], names: Sequence[str]) -> list[str]:
    """What messages call the leaves of the arguments."""
    told = []
    for path, _ in pytree.tree_flatten_with_path((args, dict(kwargs)))[0]:
        first = path[1]
        head = names[first.idx] if isinstance(first, pytree.SequenceKey) else pytree.keystr((first,)).strip("[']")
        told.append(f"input {head}{pytree.keystr(path[2:])}")
    return told


class _Given(NamedTuple):
    """The tensors among the arguments' leaves: what messages call them, and for each input of the captured graph its
    place among them; None for what is no argument. `tensors`: of the graph's inputs."""

    told: tuple[str, ...]
    places: tuple[int | None, ...]
    tensors: tuple[torch.Tensor, ...]


def _given(leaves: Sequence[object], inputs: Sequence[object], told: Sequence[str]) -> _Given:
    tensors = [(leaf, name) for leaf, name in zip(leaves, told) if isinstance(leaf, torch.Tensor)]
    place: dict[int, int] = {}
    for at, (leaf, name) in enumerate(tensors):
        if id(leaf) in place:
            raise ValueError(f"{name} is the same tensor as {tensors[place[id(leaf)]][1]}: give different ones")
        place[id(leaf)] = at
    real = tuple([value for value in inputs if isinstance(value, torch.Tensor)])
    return _Given(tuple(name for _, name in tensors), tuple([place.get(id(value)) for value in real]), real)


# ---- contents --------------------------------------------------------------------------------------------------------


@dataclass
class _Maker:
    """Makes the contents of what was captured and planned. `numbers`: the recipes of those in the result."""

    captured: Captured
    planned: Planned
    signature: Signature
    given: _Given
    numbers: Sequence[Recipe]
    function: object
    parameters: Sequence[str]
    device: torch.device

    def __post_init__(self) -> None:
        self.plan = self.planned.scheduled.plan
        self.tensors = [given for given in self.plan.inputs if isinstance(given, TensorInput)]
        self.held: dict[str, tuple[TensorInput, Constant]] = {}  # by the plan's name
        self.views: list[View] = []
        self.kept: set[str] = set()  # what results lie in

    def contents(self, arguments: Sequence[object], result: object, specs: Specs) -> Contents:
        """All of it, for the leaves of arguments and a result."""
        self.hold_constants()
        leaves = pytree.tree_leaves(result)
        outputs = [self.leaf(leaf) for leaf in leaves]
        fixed = {place: repr(leaf) for place, leaf in enumerate(arguments) if not isinstance(leaf, torch.Tensor)}
        inputs: list[TensorInput | None] = [None] * len(self.given.told)
        for tensor, place in zip(self.tensors, self.given.places):
            if place is not None:
                inputs[place] = tensor
        return Contents(
            self.finished_plan(),
            tuple([constant for _, constant in self.held.values()]),
            tuple(inputs),
            self.given.told,
            tuple([f"output {place}" for place in range(len(leaves))]),
            tuple([at for write in self.signature.writes if (at := self.given.places[write.input]) is not None]),
            self.words(),
            tuple(self.requirements()),
            tuple([value for value, _ in outputs]),
            tuple([kind for _, kind in outputs]),
            fixed,
            self.device,
            _spec_text(specs.arguments, "arguments"),
            _spec_text(specs.result, "result"),
        )

    def finished_plan(self) -> Plan:
        """The plan with the constants apart from the inputs, and the views that are results."""
        inputs = [given for given in self.plan.inputs if given.name not in self.held]
        steps: list[Step] = []
        for step in self.plan.steps:
            if isinstance(step, Free):
                names = tuple([name for name in step.names if name not in self.kept])
                steps += [Free(names)] if names else []
            else:
                steps.append(step)
        constants = tuple([tensor for tensor, _ in self.held.values()])
        return replace(self.plan, inputs=tuple(inputs), constants=constants, steps=(*steps, *self.views))

    # ---- constants ---------------------------------------------------------------------------------------------------

    def hold_constants(self) -> None:
        """Finds parameters, buffers and other tensors that are no arguments."""
        names: dict[int, tuple[str, int]] = {}
        if isinstance(self.function, nn.Module):
            names = {id(tensor): (name, layout.BUFFER) for name, tensor in self.function.named_buffers()}
            names.update({id(tensor): (name, layout.PARAMETER) for name, tensor in self.function.named_parameters()})
        rows = zip(self.tensors, self.captured.inputs, self.given.tensors, self.given.places)
        for planned, source, tensor, place in rows:
            if place is None:
                name, kind = names.get(id(tensor)) or (graphs.attribute_name(source, self.parameters), layout.TENSOR)
                self.hold(planned, name, tensor.detach(), kind)
        for planned in self.plan.constants:
            self.hold(planned, planned.name, self.planned.constants[planned.name], layout.TENSOR)

    def hold(self, planned: TensorInput, name: str, tensor: torch.Tensor, kind: int) -> None:
        taken = {constant.name for _, constant in self.held.values()}
        while name in taken:
            name = f"{name}_"
        self.held[planned.name] = planned, Constant(name, _on_cpu(tensor), kind, tensor.device)

    # ---- sizes -------------------------------------------------------------------------------------------------------

    def words(self) -> dict[str, tuple[str, int]]:
        """Where each word of the plan is read."""
        return {name: (self.tensors[at].name, dim) for name, (at, dim) in self.sizes().items()}

    def sizes(self) -> dict[str, tuple[int, int]]:
        """For each word an input of the graph, and the dimension."""
        names = [given.name for given in self.plan.inputs if isinstance(given, WordInput)]
        found = {}
        for name, symbol in zip(names, self.captured.sizes):
            places = [(self.captured.inputs.index(at), dim) for at, dim in symbol.places if dim is not None]
            places = [(at, dim) for at, dim in places if self.given.places[at] is not None]
            if not places:
                reason = f"{sources.text(symbol.source)} is an integer that changes, and a library takes tensors only"
                raise Unsupported(reason, remedy="make it a tensor, or a constant", kind="size_value")
            found[name] = places[0]
        return found

    def requirements(self) -> list[Requirement]:
        """What was assumed of the sizes."""
        found, shown = [], {}
        rows = zip(self.sizes().items(), self.captured.trace.sizes)
        for (name, (at, dim)), size in rows:
            word = Expr.var(name, None, None)
            place = self.given.places[at]
            assert place is not None
            told = shown[name] = f"the size of {self.given.told[place]} in dimension {dim}"
            lo, hi = as_expr(size).bounds()
            if lo is not None:
                found.append(Requirement(word - lo, ">=", f"{told} is %lld, but must be at least {lo}", word))
            if hi is not None:
                found.append(Requirement(hi - word, ">=", f"{told} is %lld, but must be at most {hi}", word))
        for condition, where in self.captured.trace.shapes.guards.items():
            if condition.is_const:
                continue
            text = condition.text()
            first = min(condition.free_vars)
            for name, told in shown.items():
                text = text.replace(name, f"({told})")
            message = f"{text} does not hold ({where}): {shown[first]} is".replace("%", "%%")
            word = Expr.var(first, None, None)
            found.append(Requirement(of_words(condition.expr), condition.op, f"{message} %lld", word))
        return found

    # ---- results -----------------------------------------------------------------------------------------------------

    def leaf(self, leaf: object) -> tuple[Ref | Expr | Number | None, str]:
        """A leaf of the result, and what it is."""
        if isinstance(leaf, _Placed):
            outputs = len(self.captured.outputs)
            if leaf.place < outputs:
                return self.output(leaf.place), "tensor"
            recipe = self.numbers[leaf.place - outputs]
            if recipe.kind == "size" and not isinstance(recipe.value, Ratio):
                return of_words(recipe.value), "number"
            if recipe.kind == "size":
                raise Unsupported("a quotient of sizes is a result", remedy="return a tensor", kind="input")
            return self.output(recipe.args[0].value), "number"
        if isinstance(leaf, torch.Tensor):
            for planned, tensor in zip(self.tensors, self.given.tensors):
                if tensor is leaf:
                    self.kept.add(planned.name)
                    return Ref(planned.name), "tensor"
        if leaf is None:
            return None, "none"
        if isinstance(leaf, (bool, int, float)):
            return leaf, "number"
        reason = f"the result holds a {type(leaf).__name__}, and a library gives tensors and numbers only"
        raise Unsupported(reason, remedy="return tensors", kind="input")

    def output(self, place: int) -> Ref:
        """A tensor among the graph's outputs."""
        output = self.signature.outputs[place]
        if output.kind == "output":
            return self.output(int(output.index))
        traced = self.captured.outputs[place]
        if output.kind == "result":
            base = self.plan.results[int(output.index)]
            assert isinstance(base, Ref)
            name, meta = base.name, self.signature.results[int(output.index)].meta
        elif output.kind == "input":
            name, meta = self.tensors[int(output.index)].name, self.captured.trace.inputs[int(output.index)].meta
        else:
            name = str(output.index)
            tensor = self.captured.trace.constants[name]
            meta = meta_of(tensor)
            if name not in self.held:
                self.hold(TensorInput(name, _type_of(meta)), name, tensor, layout.TENSOR)
        self.kept.add(name)
        if not output.chain:
            return Ref(name)
        if traced.is_conj() or traced.is_neg() or traced.dtype != meta.dtype:
            raise Unsupported("a result is a view of another dtype", remedy="return a copy of it", kind="layout")
        offset = of_words(as_expr(traced.meta.offset) - as_expr(meta.offset))
        view = View(f"view{place}", name, _type_of(traced.meta), offset)
        self.views.append(view)
        return Ref(view.name)


def _type_of(meta: TensorMeta) -> TensorType:
    shape, stride = ([as_expr(size) for size in sizes] for sizes in (meta.shape, meta.stride))
    return TensorType(meta.dtype, meta.device, all_of_words(shape), all_of_words(stride))


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's data on the CPU, laid out in the same way."""
    if tensor.device == CPU:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def _spec_text(spec: pytree.TreeSpec, what: str) -> str:
    try:
        return pytree.treespec_dumps(spec)
    except NotImplementedError as error:
        remedy = "register its class with a serialized_type_name"
        raise Unsupported(f"the structure of the {what} has no text: {error}", remedy=remedy, kind="input") from error
