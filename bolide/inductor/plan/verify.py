"""The check that a plan is well formed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import get_args

import torch

from bolide.inductor.ir.loops import Kernel
from bolide.inductor.plan.plan import Plan, step_text
from bolide.inductor.plan.schemas import Kind, fault_of, overload_of, signature_of
from bolide.inductor.plan.steps import (
    Alloc,
    Block,
    Branch,
    Call,
    Check,
    Copy,
    Error,
    Item,
    Launch,
    Ref,
    Repeat,
    Require,
    Result,
    Reuse,
    Size,
    Step,
    TensorInput,
    TensorResult,
    TensorType,
    View,
    Word,
    WordInput,
    WordResult,
    flat_results,
    of_words,
    refs_in,
    types_of,
    used_names,
    words_in,
)
from bolide.symbolic import Expr
from bolide.symbolic.expr import Relation


class InvalidPlan(ValueError):
    """A plan that breaks a rule. The message shows the step and those before it."""


@dataclass(slots=True)
class _State:
    """What is known before a step: tensors by name (None: freed), and the words that have a value."""

    plan: Plan
    block: Block
    written: set[str]  # inputs that may be written
    kept: set[str]  # tensors that may not be given up
    tensors: dict[str, TensorType | None] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)

    def tensor(self, name: str) -> TensorType:
        """The type of a tensor in scope."""
        if name not in self.tensors:
            raise InvalidPlan(f"there is no tensor {name}")
        found = self.tensors[name]
        if found is None:
            raise InvalidPlan(f"{name} is used after it was freed")
        return found

    def need(self, exprs: Iterable[Expr]) -> None:
        """All words in these have a value."""
        for expr in exprs:
            missing = expr.free_vars - self.words
            if missing:
                raise InvalidPlan(f"{expr}: {sorted(missing)[0]} has no value yet")
            if expr is not of_words(expr):
                raise InvalidPlan(f"{expr} is no expression over words: it assumes bounds")

    def define(self, name: str, kind: TensorType) -> None:
        """A new tensor."""
        if name in self.tensors or name in self.words:
            raise InvalidPlan(f"{name} is defined twice")
        if len(kind.shape) != len(kind.stride):
            raise InvalidPlan(f"{name} has {len(kind.shape)} sizes and {len(kind.stride)} strides")
        self.tensors[name] = kind

    def bind(self, name: str) -> None:
        """A new word."""
        if name in self.tensors or name in self.words:
            raise InvalidPlan(f"{name} is defined twice")
        self.words.add(name)


def verify(plan: Plan) -> None:
    """Raises InvalidPlan unless every name is defined once, before it is used and not freed before; words have a value
    where they are used; arguments of kernels have their dtype, device and size; and calls are as the schema of their
    operator says."""
    _verify(_State(plan, plan.block, {tensor.name for tensor in _tensors(plan.block)}, set(), words=plan.words()))


def _tensors(block: Block) -> list[TensorInput]:
    return [given for given in block.inputs if isinstance(given, TensorInput)]


def _verify(state: _State) -> None:
    """The steps of a block, of which nothing is known so far but its words."""
    steps = state.block.steps
    for tensor in (*_tensors(state.block), *state.plan.constants):
        state.define(tensor.name, tensor.type)
        state.need((*tensor.type.shape, *tensor.type.stride))
    for place, step in enumerate(steps):
        try:
            _step(state, step)
        except InvalidPlan as fault:
            shown = [step_text(near, state.plan.kernels) for near in steps[max(place - 3, 0) : place]]
            raise InvalidPlan("\n".join([str(fault), *shown, f"> {_safe_text(step, state.plan)}"])) from None
    for result in state.block.results:
        for name in refs_in(result):
            state.tensor(name)
        state.need(words_in(result))
    _end(state)


def _safe_text(step: Step, plan: Plan) -> str:
    """The text of a step that may be wrong in any way."""
    try:
        return step_text(step, plan.kernels)
    except (LookupError, ValueError, TypeError):
        return repr(step)


def _end(state: _State) -> None:
    """Types may depend on words that calls give later; in the end all have a value."""
    for kind in types_of(state.block.inputs, state.block.steps).values():
        state.need((*kind.shape, *kind.stride))


def _step(state: _State, step: Step) -> None:
    if isinstance(step, Call):
        return _call(state, step)
    types = [state.tensor(name) for name in used_names(step)]
    if isinstance(step, (Alloc, View)):
        state.need((*step.type.shape, *step.type.stride))
        state.define(step.name, step.type)
        if isinstance(step, View):
            state.need((step.offset,))
            if (step.type.dtype, step.type.device) != (types[0].dtype, types[0].device):
                raise InvalidPlan(f"{step.name} is not of the dtype and device of {step.base}")
    elif isinstance(step, Reuse):
        state.define(step.name, types[0])
    elif isinstance(step, Launch):
        _launch(state, step, types)
    elif isinstance(step, Copy):
        _copy(state, step)
    elif isinstance(step, (Check, Require, Word, Item, Size)):
        _word(state, step, types)
    elif isinstance(step, Branch):
        _is_flag(step.flag, types[0])
        given = [kind.type for kind in step.results]
        for block in (step.then, step.otherwise):
            _block(state, block, step.arguments, given)
        _define_all(state, step.results)
    elif isinstance(step, Repeat):
        _repeat(state, step)
    else:
        for name in step.names:
            state.tensor(name)
            if name in state.kept:
                raise InvalidPlan(f"{name} is given up, an input of a block")
            state.tensors[name] = None
    return None


def _repeat(state: _State, step: Repeat) -> None:
    carried = [Ref(name) for name in step.carried]
    kinds = [state.tensor(name) for name in step.carried]
    if len(set(step.carried)) < len(carried) or set(step.carried) & set(refs_in(step.arguments)):
        raise InvalidPlan("a tensor that a loop carries along is given to it twice")
    flag = _block(state, step.condition, (*carried, *step.arguments), None)
    if len(flag) != 1:
        raise InvalidPlan("the condition of a loop gives one flag")
    _is_flag("the condition of a loop", flag[0])
    _block(state, step.body, (*carried, *step.arguments), kinds)
    if [result.type for result in step.results] != kinds:
        raise InvalidPlan("the results of a loop are not what it begins with")
    _define_all(state, step.results)


def _define_all(state: _State, results: tuple[TensorResult, ...]) -> None:
    for result in results:
        state.need((*result.type.shape, *result.type.stride))
        state.define(result.name, result.type)


def _is_flag(name: str, kind: TensorType) -> None:
    if kind.dtype != torch.bool or any(size is not Expr.const(1) for size in kind.shape):
        raise InvalidPlan(f"{name} is no single bool")


def _block(
    state: _State, block: Block, arguments: tuple[Ref | Expr, ...], wanted: list[TensorType] | None
) -> list[TensorType]:
    """The types of what a block gives on these arguments, of which its words are substituted."""
    if len(arguments) != len(block.inputs):
        raise InvalidPlan(f"a block takes {len(block.inputs)} arguments")
    values: dict[str, Expr] = {}
    for given, argument in zip(block.inputs, arguments):
        if isinstance(given, WordInput) != isinstance(argument, Expr):
            raise InvalidPlan(f"{given.name} of a block is a tensor, and not a word, or the other way round")
        if isinstance(argument, Expr):
            state.need((argument,))
            values[given.name] = argument
    for given, argument in zip(block.inputs, arguments):
        if isinstance(given, WordInput) or isinstance(argument, Expr):
            continue
        if not _is_alike(_seen_with(given.type, values), state.tensor(argument.name)):
            raise InvalidPlan(f"{argument.name} is not as {given.name} of a block")
    inner = _State(state.plan, block, set(), {given.name for given in _tensors(block)}, words=block.words())
    _verify(inner)
    names = [result.name for result in block.results if isinstance(result, Ref)]
    outside = inner.kept | {constant.name for constant in state.plan.constants}
    if len(names) < len(block.results) or len(set(names)) < len(names) or outside.intersection(names):
        raise InvalidPlan("a block gives tensors that it has made, each once")
    types = [_seen_with(inner.tensor(name), values) for name in names]
    if wanted is not None and not (len(types) == len(wanted) and all(map(_is_alike, types, wanted))):
        raise InvalidPlan("a block gives tensors of other types than its step")
    return types


def _seen_with(kind: TensorType, values: dict[str, Expr]) -> TensorType:
    """The type with values for its words."""
    shape, stride = [tuple([expr.subs(values) for expr in exprs]) for exprs in (kind.shape, kind.stride)]
    return TensorType(kind.dtype, kind.device, shape, stride)


def _is_alike(first: TensorType, second: TensorType) -> bool:
    """Whether two types mean the same elements in the same places."""
    if (first.dtype, first.device, first.shape) != (second.dtype, second.device, second.shape):
        return False
    strides = zip(first.shape, first.stride, second.stride)
    return all(size is Expr.const(1) or one == other for size, one, other in strides)


def _word(state: _State, step: Check | Require | Word | Item | Size, types: list[TensorType]) -> None:
    if isinstance(step, (Require, Word)):
        state.need((step.expr,))
    if isinstance(step, (Check, Item)):
        kind, one = types[0], Expr.const(1)
        if any(size is not one for size in kind.shape):
            raise InvalidPlan(f"{used_names(step)[0]} has not one element")
        if kind.dtype != torch.bool and (isinstance(step, Check) or kind.dtype.is_floating_point):
            raise InvalidPlan(f"{used_names(step)[0]} is {kind.dtype}")
    if isinstance(step, Size) and not 0 <= step.dim < len(types[0].shape):
        raise InvalidPlan(f"{step.tensor} has {len(types[0].shape)} dimensions")
    if isinstance(step, (Check, Require)):
        if step.error not in get_args(Error) or (isinstance(step, Require) and step.relation not in get_args(Relation)):
            raise InvalidPlan("there is no such error or relation")
    else:
        state.bind(step.name)


def _copy(state: _State, step: Copy) -> None:
    target, source = state.tensor(step.target), state.tensor(step.source)
    if step.target not in state.written:
        raise InvalidPlan(f"{step.target} is not an input")
    if (target.dtype, target.shape) != (source.dtype, source.shape):
        raise InvalidPlan(f"{step.source} has not the dtype and shape of {step.target}")


def _launch(state: _State, step: Launch, types: list[TensorType]) -> None:
    if not 0 <= step.kernel < len(state.plan.kernels):
        raise InvalidPlan(f"there is no kernel {step.kernel}")
    kernel = state.plan.kernels[step.kernel]
    params, count = kernel.launch_params, len(kernel.sizes)
    if len(types) != len(params) or len(step.sizes) != kernel.batch * count:
        raise InvalidPlan(f"{kernel.name} takes {len(params)} tensors and {kernel.batch * count} sizes")
    state.need(step.sizes)
    sets = [dict(zip(kernel.sizes, step.sizes[place * count :])) for place in range(kernel.batch)]
    for at, (name, param, kind) in enumerate(zip(step.arguments, params, types)):
        values = sets[at // len(kernel.params)]
        if kind.dtype != param.dtype or kind.device != kernel.device:
            raise InvalidPlan(f"{param.name} of {kernel.name} is {param.dtype} on {kernel.device}; {name} is not")
        room, needed = span_of(kind), of_words(param.numel).subs(values)
        if room.is_const and needed.is_const and room.value < needed.value:
            raise InvalidPlan(f"{param.name} of {kernel.name} has {needed} elements, {name} {room}")
    _no_aliases(kernel, step)


def _no_aliases(kernel: Kernel, step: Launch) -> None:
    written = [name for name, param in zip(step.arguments, kernel.launch_params) if param.role != "in"]
    twice = [name for name in written if step.arguments.count(name) > 1]
    if twice:
        raise InvalidPlan(f"{kernel.name} writes {twice[0]} and is given it twice")


def span_of(kind: TensorType) -> Expr:
    """How many elements lie between a tensor's first and last one, both included."""
    zero = Expr.const(0)
    if any(size is zero for size in kind.shape):
        return zero
    return sum([(size - 1) * stride for size, stride in zip(kind.shape, kind.stride)], zero) + 1


def _call(state: _State, step: Call) -> None:
    try:
        signature = signature_of(overload_of(step.operator))
    except LookupError as fault:
        raise InvalidPlan(str(fault)) from None
    if len(step.arguments) != len(signature.parameters):
        raise InvalidPlan(f"{step.operator} takes {len(signature.parameters)} arguments")
    for parameter, value in zip(signature.parameters, step.arguments):
        wrong = fault_of(parameter.kind, value)
        if wrong is not None:
            raise InvalidPlan(f"{parameter.name} of {step.operator}: {wrong}")
        for name in refs_in(value):
            state.tensor(name)
        state.need(words_in(value))
    if len(step.results) != len(signature.returns):
        raise InvalidPlan(f"{step.operator} returns {len(signature.returns)} values")
    for kind, result in zip(signature.returns, step.results):
        if not _may_be(kind, result):
            raise InvalidPlan(f"{step.operator} returns a {kind.base}")
    for result in flat_results(step):
        if isinstance(result, TensorResult):
            state.define(result.name, result.type)
        elif isinstance(result, WordResult):
            state.bind(result.name)


def _may_be(kind: Kind, result: Result) -> bool:
    if result is None:
        return True
    if isinstance(result, tuple):
        return kind.item is not None and kind.item.base == "Tensor"
    if isinstance(result, TensorResult):
        return kind.item is None and kind.base == "Tensor"
    return kind.base in ("int", "number", "SymInt")
