"""From a captured program to one graph module that takes what the program takes and returns what it returns."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from bolide import functorch
from bolide.dynamo.config import config
from bolide.dynamo.entry.replay import make_entry, replay_of
from bolide.dynamo.library import provenance
from bolide.dynamo.program import sources
from bolide.dynamo.program.captured import Captured, Recipe, Source
from bolide.dynamo.program.sources import Signature
from bolide.dynamo.world.makers import made_in_mode
from bolide.functorch.graphs import constants_of, give, is_tensor, output_node, placeholders, results
from bolide.functorch.passes.simplify import drop_unread_arguments, remove_dead
from bolide.support.errors import Unsupported
from bolide.symbolic import Expr, Ratio
from bolide.tracing.called.ordinary import with_operators
from bolide.tracing.described import describe
from bolide.tracing.meta import meta_of
from bolide.tracing.numbers import data
from bolide.tracing.wrappers import Value

aten = torch.ops.aten
_KEPT = ("nn_module_stack", "source_fn_stack", "stack_trace")
"""What is said of a call of torch's, which holds for the operations that it is made of."""
_PASSES = (remove_dead, drop_unread_arguments, remove_dead)
_INLINE = (
    *(bool, int, float, complex, str, type(None), type(...), slice),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
"""What the code of a graph can spell out."""
_REGISTER = "register its class with torch.utils._pytree.register_dataclass or register_pytree_node"


@dataclasses.dataclass
class Call:
    """The call that was captured: `function` of `args` and `kwargs`. `given`: the positional arguments of what is
    exported; `names`: of all arguments, as the signature has them; parameters: see `provenance.path`; `opaque`: the
    parameters of `function` that were given, but for what is exported itself.
    """

    function: Value
    args: tuple[object, ...]
    kwargs: dict[str, object]
    given: tuple[object, ...]
    names: list[str]
    parameters: Sequence[str]

    @functools.cached_property
    def opaque(self) -> set[str]:
        bound = inspect.signature(self.function).bind(*self.args, **self.kwargs).arguments
        return set(bound) - ({"self"} if self.parameters else set())


# ---- the flat graph --------------------------------------------------------------------------------------------------


def flat_graph(captured: Captured, parameters: Sequence[str], as_aten: bool) -> fx.GraphModule:
    """A graph of the program that takes its inputs and sizes and returns its tensors, and behind them the numbers that
    the result holds (which refers to them from then on). It calls torch's functions, or ATen's operations if these are
    asked for, or where a graph of calls could not do what the program does.

    Raises Unsupported where operations of ATen would be differentiated in another way than the program."""
    numbers = numbers_of(captured)
    quotients = [recipe.value for recipe in numbers if recipe.kind == "size"]
    sizes = [size.over if isinstance(size, Ratio) else size for size in quotients]
    calls, module = captured.calls, None
    if calls is not None:
        module = calls.finish(captured.outputs, config.dead_code_elimination, sizes, floats=True)
        provenance.describe_modules(calls.graph, parameters)
        describe(calls.graph)
        for node, call in calls.origins.items():
            node.meta.update({key: call.meta[key] for key in _KEPT if key in call.meta})
        if module is None and not as_aten:
            _refuse_derivatives(captured, str(calls.refusal))
    if module is None or as_aten:
        module = _aten_graph(captured, sizes)
    values, first = list(results(module.graph)), len(captured.outputs)
    with module.graph.inserting_before(output_node(module.graph)):
        for place, size in enumerate(quotients, first):
            if isinstance(size, Ratio):
                values[place] = module.graph.call_function(operator.truediv, (values[place], size.under))
        values += [module.graph.call_method("item", (values[r.args[0].value],)) for r in numbers[len(sizes) :]]
    give(module.graph, values)
    give_numbers(captured, numbers)
    return module


def numbers_of(captured: Captured) -> list[Recipe]:
    """The recipes of the numbers that a program's result holds: sizes, then the numbers in tensors that are outputs."""
    numbers: list[Recipe] = []
    _find_numbers(captured.result, numbers, set())
    return sorted(numbers, key=lambda recipe: recipe.kind != "size")


def give_numbers(captured: Captured, numbers: Sequence[Recipe]) -> None:
    """Makes these outputs, behind the program's own."""
    first = len(captured.outputs)
    captured.result = _replaced(captured.result, {id(r): Recipe("output", first + at) for at, r in enumerate(numbers)})


def _find_numbers(recipe: Recipe, found: list[Recipe], seen: set[int]) -> None:
    """The recipes of sizes, and of the numbers in tensors that are results."""
    if id(recipe) in seen:
        return
    seen.add(id(recipe))
    if recipe.kind == "size" or (recipe.kind == "call" and recipe.value is torch.Tensor.item):
        found.append(recipe)
        return
    for part in (*recipe.args, *(arg for _, arg in recipe.kwargs)):
        _find_numbers(part, found, seen)


class _Sizes(tuple[fx.Node, ...]):
    """A `torch.Size` of nodes of a graph; pytree puts it together as that."""


pytree._private_register_pytree_node(_Sizes, lambda sizes: (list(sizes), None), lambda sizes, _: torch.Size(sizes))


def _replaced(recipe: Recipe, known: dict[int, Recipe]) -> Recipe:
    """`recipe` with others in place of those whose ids are `known`, and for nodes in place of tensors and sizes."""
    if id(recipe) not in known and recipe.kind == "call" and recipe.value is made_in_mode:
        known[id(recipe)] = _replaced(recipe.args[0], known)  # the graph enters the mode
    if id(recipe) not in known:
        if recipe.kind == "call" and recipe.value is torch.Size:
            recipe = dataclasses.replace(recipe, value=_Sizes)
        args = tuple(_replaced(arg, known) for arg in recipe.args)
        kwargs = tuple((key, _replaced(arg, known)) for key, arg in recipe.kwargs)
        same = args == recipe.args and kwargs == recipe.kwargs
        known[id(recipe)] = recipe if same else dataclasses.replace(recipe, args=args, kwargs=kwargs)
    return known[id(recipe)]


def _refuse_derivatives(captured: Captured, reason: str) -> None:
    if captured.trace.derivation.is_own and any(tensor.requires_grad for tensor in captured.outputs):
        remedy = "export with aten_graph=True, for a graph that is not differentiated"
        raise Unsupported(f"{reason}, and the program has derivatives of its own", kind="operator", remedy=remedy)


def _aten_graph(captured: Captured, sizes: Sequence[Expr]) -> fx.GraphModule:
    trace = captured.trace
    slots = placeholders(trace.graph)
    outputs = (*(tensor.node for tensor in captured.outputs), *map(trace.size_node, sizes))
    has_gradients = any(tensor.requires_grad for tensor in captured.outputs)
    for position in trace.mutated_inputs():
        slot, value = slots[position], trace.inputs[position].group.base
        if has_gradients and trace.inputs[position].is_floating_point():
            _copied(trace.graph, slot, slots[-1])
        write = trace.graph.call_function(aten.copy_.default, (slot, value))
        write.meta["val"] = slot.meta["val"]
    trace.graph.output(outputs)
    graph = functorch.run_passes(trace.graph, captured.name, _PASSES)
    for node in list(graph.nodes):
        if node.meta.get("cut") and is_tensor(node):
            _cut_off(graph, node)
    describe(graph)
    for node in graph.nodes:
        if node.op == "call_function":
            node.meta.setdefault("original_aten", node.target)
    module = functorch.graph_module(graph, trace.constants, "Exported")
    with_operators(module)
    return module


def _copied(graph: fx.Graph, slot: fx.Node, last: fx.Node) -> None:
    """A copy, made behind the placeholder `last`, is read in place of an input that is written in the end: who reads it
    may save it for the backward (statistics of a batch norm)."""
    if slot.users:
        with graph.inserting_after(last):
            copy = graph.call_function(aten.clone.default, (slot,))
        copy.meta["val"] = slot.meta["val"]._replace(requires_grad=False)
        slot.replace_all_uses_with(copy, lambda user: user is not copy)


def _cut_off(graph: fx.Graph, node: fx.Node) -> None:
    """No derivative goes through a value that the program has computed without gradients."""
    with graph.inserting_after(node):
        cut = graph.call_function(aten.detach.default, (node,))
    cut.meta = dict(node.meta)
    node.replace_all_uses_with(cut, lambda user: user is not cut)


def _state_assertions(graph: fx.Graph) -> None:
    """What bolide compiles for, and calls eager without, as assertions of torch's."""
    for check in (data.require, data.require_true):
        for node in graph.find_nodes(op="call_function", target=check):
            where = node.meta.get("where")
            message = "a condition on data does not hold" if where is None else f"{where.text} does not hold ({where})"
            with graph.inserting_before(node):
                if check is data.require:
                    condition = graph.call_function(_RELATIONS[node.args[1]], (node.args[0], 0))
                    made = graph.call_function(aten._assert_scalar.default, (condition, message))
                else:
                    made = graph.call_function(aten._assert_async.msg, (node.args[0], message))
            made.meta = dict(node.meta)
            graph.erase_node(node)


_RELATIONS: dict[Value, Value] = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge}


# ---- the signature ---------------------------------------------------------------------------------------------------


def rebuilt(call: Call, captured: Captured, values: tuple[object, ...]) -> tuple[list[object], object]:
    """The real inputs of the captured graph, and the function's result with `values` (nodes of a graph, or what else
    stands for them) in place of the tensors that are computed."""
    seen: list[object] = []

    def run(inputs: list[Any]) -> tuple[object, ...]:
        seen.extend(inputs)
        return values

    def misfit(*args: object, **kwargs: object) -> object:
        reason = "the result is made of tensors in a way that a graph cannot return"
        raise Unsupported(reason, None, "return the tensors", kind="input")

    signature, replay = Signature.of(call.function.__code__), replay_of(captured)
    entry = make_entry(signature, replay, (), run, 0, lambda *_: None, misfit, misfit)
    bound_args = inspect.signature(call.function).bind(*call.args, **call.kwargs)
    bound_args.apply_defaults()
    return seen, entry.function(*bound_args.args, **bound_args.kwargs)


def with_signature(
    call: Call,
    captured: Captured,
    flat: fx.GraphModule,
    inputs: Sequence[object],
    result: object,
    buffers: Mapping[int, Recipe],
    path: Callable[[Source], tuple[object, ...] | None],
    same: bool,
) -> fx.GraphModule:
    """The flat graph behind the signature of the function: inputs that are leaves of the arguments become placeholders,
    others attributes; sizes are read from them, and integers found at their `path`. Of inputs that are assigned
    `buffers` a copy is read; the values are written to them at the end. Unless the signature is to be the `same`, the
    graph takes the tensors and integers that it reads, and returns tensors, one by one.
    """
    leaves, in_spec = pytree.tree_flatten((call.given, call.kwargs))
    graph = fx.Graph()
    slots = [graph.placeholder(f"arg{position}") for position in range(len(leaves))]
    attributes: dict[str, Value] = constants_of(flat)
    place = {id(leaf): slot for leaf, slot in zip(leaves, slots) if isinstance(leaf, torch.Tensor)}
    for leaf, slot in zip(leaves, slots):
        if isinstance(leaf, torch.Tensor):
            slot.meta["val"] = meta_of(leaf)
    known: dict[fx.Node, fx.Node] = {}
    for node, value, source in zip(flat.graph.nodes, inputs, captured.inputs):
        if id(value) not in place:
            _refuse_opaque(call, source)
            name = _identifier(_path(source, call.parameters), attributes)
            attributes[name] = value
            place[id(value)] = graph.create_node("get_attr", name, name=name)
        place[id(value)].meta.update(node.meta)
        known[node] = place[id(value)]
    written = {at: known[slot] for at, slot in enumerate(placeholders(flat.graph)) if at in buffers}
    for at, slot in written.items():
        copy = graph.call_function(aten.clone.default, (slot,))
        copy.meta.update(slot.meta)
        place[id(inputs[at])] = known[placeholders(flat.graph)[at]] = copy
    numbers = placeholders(flat.graph)[len(captured.inputs) :]
    for node, symbol in zip(numbers, captured.sizes):
        source, dim = symbol.places[0]
        if dim is None:
            known[node] = _at(call, pytree.tree_unflatten(slots, in_spec), path(source))
        else:
            slot = place[id(inputs[captured.inputs.index(source)])]
            known[node] = graph.call_function(aten.sym_size.int, (slot, dim))
        known[node].meta.update(node.meta)
    graph.graph_copy(flat.graph, known)
    for at, slot in written.items():
        is_output, index = buffers[at].kind == "output", buffers[at].value
        node = results(flat.graph)[index] if is_output else placeholders(flat.graph)[captured.inputs.index(index)]
        graph.call_function(aten.copy_.default, (slot, known[node])).meta.update(slot.meta)
    leaves, out_spec = pytree.tree_flatten(result)
    graph.output([known[v] if isinstance(v, fx.Node) else _constant(v, place) for v in leaves])
    for node in (*numbers, *(placeholders(flat.graph)[at] for at in buffers)):
        if not known[node].users and known[node].op != "placeholder":
            graph.erase_node(known[node])
    _state_assertions(graph)
    for name, part in flat.named_modules():
        if name and isinstance(part, fx.GraphModule):  # of control flow
            _state_assertions(part.graph)
            part.recompile()
    for slot in graph.find_nodes(op="get_attr"):
        reader = next((user for user in slot.users if "nn_module_stack" in user.meta), slot)
        said = {key: reader.meta[key] for key in ("nn_module_stack", "stack_trace") if key in reader.meta}
        slot.meta.update(said)
    if same:
        graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(call.names, in_spec, out_spec)))
    else:
        _unwrap(graph, slots)
    describe(graph, replace=True)
    return fx.GraphModule(attributes, graph, "Exported")


def _at(call: Call, slots: Value, path: tuple[object, ...] | None) -> fx.Node:
    """The placeholder of an argument's leaf, of those that stand for the call's arguments."""
    assert path is not None
    found: Value = dict(zip(call.names, (*slots[0], *slots[1].values())))
    for key in path:
        found = found[key]
    return found  # type: ignore[no-any-return]


def _unwrap(graph: fx.Graph, slots: Sequence[fx.Node]) -> None:
    for slot in slots:
        if not slot.users:
            graph.erase_node(slot)
    give(graph, [value for value in results(graph) if isinstance(value, fx.Node)])


def _refuse_opaque(call: Call, source: Source) -> None:
    """A tensor in an argument that is no container to pytree would be a constant of the graph."""
    root = source
    while root.base is not None:
        root = root.base
    if root.kind == "local" and root.key in call.opaque:
        what = sources.text(source)
        reason = f"{what} is a tensor in an argument that is not supported or pytree-flattenable"
        raise Unsupported(reason, None, f"{_REGISTER}, or pass the tensor", kind="input")


def _constant(value: object, place: Mapping[int, fx.Node]) -> Value:
    """A leaf of the result that the graph does not compute."""
    if id(value) in place:
        return place[id(value)]
    if isinstance(value, _INLINE):
        return value
    reason = f"the result holds a {type(value).__name__}, which is not supported or pytree-flattenable"
    raise Unsupported(reason, None, f"{_REGISTER}, or return its parts", kind="input")


def _path(source: Source, parameters: Sequence[str]) -> str:
    """As TorchDynamo names attributes: ``L['self'].layer.weight``."""
    return re.sub(r"\._(?:modules|parameters|buffers)\['(.*?)'\]", r".\1", provenance.path(source, parameters))


def attribute_name(source: Source, parameters: Sequence[str]) -> str:
    """A name for a tensor that is no argument."""
    return _identifier(_path(source, parameters), {})


def _identifier(text: str, taken: Mapping[str, object]) -> str:
    name = re.sub(r"\W", "_", text).strip("_") or "tensor"
    while name in taken or name[0].isdigit():
        name = f"_{name}"
    return name
