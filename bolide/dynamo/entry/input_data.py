"""Data of small inputs that the program reads: sizes and counts that are given as tensors.

Integers and booleans that `Tensor.tolist`, a branch or a mask asks for are read while capturing, and guarded: the data
is compared at every call. When it changes the next version does without: the data are symbols. Where they have to be
known that is a break; only where a break is an error is each value compiled for.

A branch on data that no graph can make asks a question about an input (`if (ids == pad).any()`): where the answer is
little work, it is asked again at every call, and each answer has a version.
"""

from __future__ import annotations

import functools

import torch
import torch.fx

from bolide.dynamo.config import config
from bolide.dynamo.guards.texts import numbers, storage_offset
from bolide.dynamo.machine.breaking import break_is_error
from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.program.captured import Source
from bolide.dynamo.state import state
from bolide.dynamo.world.world import World
from bolide.symbolic import Cond, Expr
from bolide.tracing import Trace, TracedTensor
from bolide.tracing.recording import folding
from bolide.tracing.tensor import Data


def data_of(vm: Machine, place: int) -> Data | None:
    """The data of an input, and what to call to guard it; None if it cannot be, or differs from call to call."""
    traced = vm.world.trace.inputs[place]
    fixed = all(type(size) is int for size in traced.shape)
    whole = not (traced.dtype.is_floating_point or traced.dtype.is_complex)
    small = fixed and 0 < traced.numel() <= config.specialize_data
    if not (whole and small and traced.device.type == "cpu"):
        return None
    if state.stage == "backend" or not vm.world.symbols.history.reads_data:
        return None
    source = Source("apply", vm.world.inputs.sources[place], (), numbers)
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        tensor = vm.world.inputs.tensors[place]
        data = numbers(tensor)
        if not data or not vm.world.symbols.has_stayed(source, data):
            return None
        return tensor.clone(), functools.partial(vm.world.guards.add, source, "equals", data)


def guard_offset(world: World, place: int) -> None:
    """Guard where an input lies in its storage."""
    tensor, source = world.inputs.given(place)
    if not source.is_drawn:
        world.guards.add(Source("apply", source, (), storage_offset), "equals", storage_offset(tensor))


# ---- questions -------------------------------------------------------------------------------------------------------


class Question:
    """What is asked of an input: a number that is computed from its data, and whether that fulfils a condition."""

    def __init__(self, graph: torch.fx.Graph, name: str, condition: Cond) -> None:
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        self.compute, self.name, self.condition = module.forward, name, condition
        self.text = f"{module.code} {condition.text()}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Question) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return self.condition.text()


def ask(tensor: torch.Tensor, question: Question) -> bool:
    """The answer about a tensor."""
    with torch._C.DisableTorchFunction(), torch._C._DisableAutocast():
        value = int(question.compute(tensor))
    return question.condition.holds_at(question.condition.expr.evaluate({question.name: value}))


def answer(vm: Machine, breaks: bool, value: object) -> bool | None:
    """The truth of a value that data decides: from here on the guards ask for it. None if that is too much, or so many
    versions were made that the program rather breaks."""
    symbols, trace = vm.world.symbols, vm.trace
    if type(trace) is not Trace or state.stage == "backend" or not symbols.history.reads_data:
        return None
    asked = _node_and_condition(trace, value)
    root = folding.root_of(asked[0]) if asked is not None else None
    if asked is None or root is None or (breaks and symbols.history.is_crowded() and not break_is_error(vm)):
        return None
    node, name, condition = asked
    place = root.meta["place"]
    source, tensor = vm.world.inputs.sources[place], vm.world.inputs.tensors[place]
    if source.is_drawn or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    graph = folding.question(node, root)
    if graph is None:
        return None
    question = Question(graph, name, condition)
    with torch._C._DisableTorchDispatch():
        holds = ask(tensor, question)
    vm.world.guards.add(Source("apply", source, (question,), ask), "equals", holds)
    trace.shapes.facts.add(condition if holds else condition.negate())
    return holds


def _node_and_condition(trace: Trace, value: object) -> tuple[torch.fx.Node, str, Cond] | None:
    """The number that decides, the symbol that stands for it, and the condition on that."""
    if type(value) is TracedTensor:
        return (value.node, "u", Expr.var("u").ne(0)) if value.numel() == 1 else None
    if not isinstance(value, (torch.SymBool, torch.SymInt)):
        return None
    condition = value.node.expr if isinstance(value, torch.SymBool) else value.node.expr.ne(0)
    if len(condition.free_vars) != 1 or not trace.shapes.is_data(condition):
        return None
    (symbol,) = condition.expr.variables().values()
    node = trace.size_node(symbol)
    if node.target is not torch.ops.aten._local_scalar_dense.default:
        return None
    return node.args[0], symbol.text(), condition
