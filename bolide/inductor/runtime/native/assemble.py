"""From a Plan to a program of the native driver."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from bolide.inductor.ir.loops import CPU
from bolide.inductor.plan import (
    Alloc,
    Block,
    Branch,
    Call,
    Check,
    Copy,
    Free,
    Item,
    Launch,
    Plan,
    Ref,
    Repeat,
    Require,
    Reuse,
    Size,
    Step,
    TensorInput,
    TensorResult,
    TensorType,
    Value,
    View,
    Word,
    WordResult,
    all_steps,
    flat_results,
    used_names,
)
from bolide.inductor.plan.schemas import Kind, overload_of, signature_of
from bolide.inductor.plan.steps import types_of
from bolide.inductor.runtime.native import instructions as ops
from bolide.inductor.runtime.native import shims
from bolide.inductor.runtime.native.program import NOTHING, Operand, Program, PythonStep, Writer
from bolide.inductor.runtime.results import tied_views
from bolide.symbolic import Expr, as_expr, contiguous_strides
from bolide.symbolic.sizes import product

InPython = Callable[[Step, Sequence[str], Sequence[str]], object]
"""Makes a step of a block a function of Python's, of these tensors and words; it gives a tuple of all results. Where
there is no Python it makes the text of `PythonStep`."""


RELATIONS = {"==": ops.EQUAL, "!=": ops.UNEQUAL, ">=": ops.AT_LEAST}


class _NoShim(Exception):
    """A call that no function in C takes as it is: it is made in Python."""


@dataclass(slots=True)
class _Assembler:
    """Writes the steps of one block. `inputs`: the places of those that may be given up; `constants`: the plan's."""

    block: Block
    kernels: Sequence[int]
    python_for: Callable[[Block], InPython]
    writer: Writer
    inputs: Mapping[str, int]
    constants: tuple[TensorInput, ...]
    words: list[str] = field(init=False)  # that are known so far
    types: Mapping[str, TensorType] = field(init=False)
    tied: frozenset[str] = field(init=False)
    in_python: InPython = field(init=False)

    def __post_init__(self) -> None:
        self.words = sorted(self.block.words())
        self.types = types_of((*self.block.inputs, *self.constants), self.block.steps)
        self.tied = tied_views(self.block) if self.writer.with_autograd else frozenset()
        self.in_python = self.python_for(self.block)

    def all(self) -> None:
        """All steps."""
        for step in self.block.steps:
            self.step(step)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        if isinstance(step, Alloc):
            self.alloc(step.name, step.type, self.otherwise(step))
        elif isinstance(step, Reuse):
            self.writer.natively()
            self.writer.share(self.writer.slot(step.name), self.writer.slots[step.base])
        elif isinstance(step, View):
            self.view(step)
        elif isinstance(step, Launch):
            operands = [(ops.DATA, self.writer.slots[name]) for name in step.arguments]
            sizes = [self.writer.integer(size) for size in step.sizes]
            self.writer.launch(self.kernels[step.kernel], [*operands, *sizes])
        elif isinstance(step, Call):
            self.call(step)
        elif isinstance(step, Word):
            self.writer.words[Expr.var(step.name, None, None)] = self.writer.word(step.expr)
            self.words.append(step.name)
        elif isinstance(step, (Check, Require)):
            self.requirement(step)
        elif isinstance(step, (Item, Size)):
            self.told(step)
        elif isinstance(step, Copy):
            operands = [(ops.HANDLE, self.writer.slots[name]) for name in (step.target, step.source)]
            otherwise = self.otherwise(step)
            self.writer.call(shims.COPY, [*operands, NOTHING], otherwise)
            otherwise.behind = len(self.writer.code)
        elif isinstance(step, Branch):
            self.branch(step)
        elif isinstance(step, Repeat):
            self.repeat(step)
        else:
            self.free(step)

    def requirement(self, step: Check | Require) -> None:
        """What raises in Python if it must."""
        otherwise = self.otherwise(step)
        if isinstance(step, Require):
            self.writer.require(step.expr, RELATIONS[step.relation], otherwise)
        elif self.types[step.flag].device == CPU:
            self.writer.expect(self.writer.slots[step.flag], step.expected, otherwise)
        else:
            self.writer.python(otherwise)

    def told(self, step: Item | Size) -> None:
        """A word that a tensor tells."""
        slot = self.writer.slots[step.tensor]
        if isinstance(step, Size):
            self.writer.size(step.name, slot, step.dim)
        elif self.types[step.tensor].device == CPU:
            self.writer.item(step.name, slot, self.types[step.tensor].dtype)
        else:
            self.writer.python(self.otherwise(step))
        self.words.append(step.name)

    def otherwise(self, step: Step) -> PythonStep:
        """The step in Python."""
        tensors = list(dict.fromkeys(used_names(step)))
        function = self.in_python(step, tensors, self.words)
        arguments = [(ops.HANDLE, self.writer.slots[name]) for name in tensors]
        arguments += [(ops.WORD, self.writer.named_word(name)) for name in self.words]
        results: list[Operand] = []
        if isinstance(step, (Alloc, View)):
            results = [(ops.HANDLE, self.writer.slot(step.name))]
        elif isinstance(step, (Item, Size)):
            results = [(ops.WORD, self.writer.named_word(step.name))]
        elif isinstance(step, Call):
            for result in flat_results(step):
                if isinstance(result, TensorResult):
                    results.append((ops.HANDLE, self.writer.slot(result.name)))
                elif isinstance(result, WordResult):
                    results.append((ops.WORD, self.writer.named_word(result.name)))
        return PythonStep(function, arguments, results)

    def alloc(self, name: str, type: TensorType, otherwise: PythonStep) -> None:
        writer = self.writer
        sizes, strides = writer.integers(type.shape), writer.integers(type.stride)
        head = [(ops.LITERAL, len(type.shape)), sizes, strides, (ops.LITERAL, shims.dtype_code(type.dtype))]
        cpu = [(ops.LITERAL, 0), (ops.LITERAL, 0)]
        writer.call(shims.EMPTY, [*head, *cpu, (ops.SLOT, writer.slot(name))], otherwise)
        otherwise.behind = len(writer.code)

    def view(self, step: View) -> None:
        """What is tied to other tensors is a view also for autograd: torch's `reshape` makes it where all are dense."""
        otherwise = self.otherwise(step)
        writer, type = self.writer, step.type
        base, slot, dims = (ops.HANDLE, writer.slots[step.base]), writer.slot(step.name), len(type.shape)
        tied = step.name in self.tied
        if tied and not _is_reshaped(self.types[step.base], step):
            writer.python(otherwise)
            return
        sizes, strides = writer.integers(type.shape), writer.integers(type.stride)
        if tied:
            writer.call(shims.RESHAPE, [base, sizes, (ops.LITERAL, dims), (ops.SLOT, slot)], otherwise)
            writer.check(slot, shims.dtype_code(type.dtype), sizes, strides, dims, otherwise)
        else:
            offset = writer.integer(step.offset)
            head = [base, (ops.LITERAL, dims), sizes, strides]
            writer.call(shims.VIEW, [*head, offset, (ops.SLOT, slot)], otherwise)
        otherwise.behind = len(writer.code)

    def call(self, step: Call) -> None:
        """A call of a function in C where there is one, else in Python."""
        op = overload_of(step.operator)
        otherwise = self.otherwise(step)
        shim = self.shim_for(step)
        try:
            given = None if shim is None else self.operands(op, step.arguments)
        except _NoShim:
            given = None
        if shim is None or given is None:
            self.writer.python(otherwise)
        elif op in shims.FILLING_FORMS:
            self.writer.call(shim, [given[-1], *given[:-1]], otherwise)
            otherwise.behind = len(self.writer.code)
        elif shim is shims.COPY or op.name() in shims.FILLING:  # type: ignore[no-untyped-call]
            (result,) = step.results
            assert isinstance(result, TensorResult)
            self.alloc(result.name, result.type, otherwise)
            self.writer.call(shim, [(ops.HANDLE, self.writer.slots[result.name]), *given], otherwise)
            otherwise.behind = len(self.writer.code)
        else:
            self.giving(step, shim, given, otherwise)
        self.words += [result.name for result in step.results if isinstance(result, WordResult)]

    def giving(self, step: Call, shim: shims.Shim, given: list[Operand], otherwise: PythonStep) -> None:
        """Calls a function that gives new tensors, and looks at them."""
        writer, checks, unused = self.writer, [], []
        known = frozenset(self.words)
        for result in step.results:
            if isinstance(result, TensorResult):
                type = result.type
                if type.words() <= known:
                    sizes, strides = writer.integers(type.shape), writer.integers(type.stride)
                    dtype = shims.dtype_code(type.dtype)
                    checks.append((writer.slot(result.name), dtype, sizes, strides, len(type.shape), otherwise))
                given.append((ops.SLOT, writer.slot(result.name)))
            else:
                unused.append(writer.spare_slot())
                given.append((ops.SLOT, unused[-1]))
        writer.call(shim, given, otherwise)
        for check in checks:
            writer.check(*check)
        otherwise.behind = len(writer.code)
        if unused:
            writer.free(unused)

    def shim_for(self, step: Call) -> shims.Shim | None:
        """The function in C for a call whose tensors are real numbers on the CPU."""
        shim = shims.shim_of(overload_of(step.operator))
        results = [result for result in step.results if result is not None]
        if shim is None or not all(isinstance(result, TensorResult) for result in results):
            return None
        types = [result.type for result in results if isinstance(result, TensorResult)]
        types += [self.types[name] for name in used_names(step)]
        plain = all(type.device == CPU and not type.dtype.is_complex for type in types)
        return shim if plain else None

    def free(self, step: Free) -> None:
        writer = self.writer
        inputs = [self.inputs[name] for name in step.names if name in self.inputs]
        borrowed = {*self.inputs, *(constant.name for constant in self.constants)}
        slots = [writer.slots[name] for name in step.names if name not in borrowed]
        if slots:
            writer.free(slots)
        if inputs:
            writer.free_inputs(inputs)

    # ---- blocks ------------------------------------------------------------------------------------------------------

    def branch(self, step: Branch) -> None:
        writer = self.writer
        results = [writer.slot(result.name) for result in step.results]
        given = self.arguments(step.arguments)
        otherwise = writer.unless(writer.slots[step.flag])
        writer.moves(results, self.inside(step.then, given))
        end = writer.jump()
        writer.led(otherwise)
        writer.moves(results, self.inside(step.otherwise, given))
        writer.led(end)

    def repeat(self, step: Repeat) -> None:
        writer = self.writer
        results = [writer.slot(result.name) for result in step.results]
        given = [*results, *self.arguments(step.arguments)]
        for slot, name in zip(results, step.carried):
            writer.share(slot, writer.slots[name])
        start = writer.repeated()
        (flag,) = self.inside(step.condition, given)
        end = writer.unless(flag)
        writer.free([flag])
        writer.moves(results, self.inside(step.body, given))
        writer.jump(start)
        writer.led(end)
        writer.free([flag])

    def arguments(self, arguments: Sequence[Ref | Expr]) -> list[int]:
        """The slots and frame words of what a block is given."""
        writer = self.writer
        return [writer.word(value) if isinstance(value, Expr) else writer.slots[value.name] for value in arguments]

    def inside(self, block: Block, given: Sequence[int]) -> list[int]:
        """Runs a block; the slots of its results."""
        writer = self.writer
        slots = {constant.name: self.writer.slots[constant.name] for constant in self.constants}
        words: dict[Expr, int] = {}
        for parameter, place in zip(block.inputs, given, strict=True):
            if isinstance(parameter, TensorInput):
                slots[parameter.name] = place
            else:
                words[Expr.var(parameter.name, None, None)] = place
        results = [result.name for result in block.results if isinstance(result, Ref)]
        with writer.scope(slots, words):
            _Assembler(block, self.kernels, self.python_for, writer, {}, self.constants).all()
            return [writer.slots[name] for name in results]

    # ---- arguments of functions in C ---------------------------------------------------------------------------------

    def operands(self, op: torch._ops.OpOverload, arguments: Sequence[Value]) -> list[Operand]:
        parameters = signature_of(op).parameters
        if op is torch.ops.aten.clone.default:  # the memory that it is copied to has its layout
            return [*self.operand(parameters[0].kind, arguments[0]), NOTHING]
        return [
            operand
            for parameter, value in zip(parameters, arguments, strict=True)
            for operand in self.operand(parameter.kind, value)
        ]

    def operand(self, kind: Kind, value: Value) -> list[Operand]:
        """The operands that stand for an argument: see `shims.parameters_of`."""
        if kind.item is not None:
            return self.list_operand(kind, value)
        if value is None:
            return [NOTHING, NOTHING] if kind.base == "Device" else [NOTHING]
        if isinstance(value, Ref):
            return [(ops.SLOT if kind.optional else ops.HANDLE, self.writer.slots[value.name])]
        single = self.number(kind.base, value)
        if not kind.optional:
            return [single]
        if kind.base == "str":
            return [self.address_of(single)]
        if single[0] == ops.WORD:
            return [(ops.PLACE, single[1])]
        return [(ops.LITERAL, self.writer.table([single[1]]))]

    def list_operand(self, kind: Kind, value: Value) -> list[Operand]:
        if value is None:
            return [NOTHING, NOTHING]
        assert isinstance(value, tuple) and kind.item is not None
        length: Operand = (ops.LITERAL, len(value))
        item = kind.item
        if item.base == "Tensor" and not item.optional:
            slots = [self.writer.slots[ref.name] for ref in value if isinstance(ref, Ref)]
            address = self.writer.array_of_handles(slots)
        elif item.base == "bool" and not item.optional:
            address = self.writer.data(struct.pack(f"{len(value)}i", *map(bool, value)))
        elif item.base in ("int", "SymInt") and not item.optional:
            address = self.writer.integers(tuple([part for part in value if isinstance(part, Expr)]))
        elif not value:
            return [NOTHING, length]
        else:
            raise _NoShim
        return [self.address_of(address) if kind.optional else address, length]

    def address_of(self, address: Operand) -> Operand:
        """The address of an address."""
        if address[0] == ops.LITERAL:
            return ops.LITERAL, self.writer.table([address[1]])
        raise _NoShim

    def number(self, base: str, value: Value) -> Operand:
        """One value that is no tensor."""
        if base in ("int", "SymInt") and isinstance(value, Expr):
            return self.writer.integer(value)
        if base == "bool":
            return ops.LITERAL, int(bool(value))
        if base in ("float", "number"):
            number = value.value if isinstance(value, Expr) and value.is_const else value
            if isinstance(number, (int, float)) and shims.is_exact(number):
                return ops.LITERAL, shims.bits(float(number))
        if base == "str" and isinstance(value, str):
            return self.writer.data(value.encode())
        if base == "ScalarType" and isinstance(value, torch.dtype):
            return ops.LITERAL, shims.dtype_code(value)
        raise _NoShim


def assemble(
    plan: Plan,
    kernels: Sequence[int],
    constants: Mapping[str, torch.Tensor],
    python_for: Callable[[Block], InPython],
    fallback: Callable[[list[object]], object],
    offset: int,
) -> Program:
    """The program of a plan. `kernels`: the addresses of its kernels; `fallback` runs the plan where an input is no
    plain tensor or no integer; `offset`: of the handle in a tensor as an object of Python's."""
    writer = Writer()
    inputs: list[Operand] = []
    places: dict[str, int] = {}
    for position, given in enumerate(plan.inputs):
        if isinstance(given, TensorInput):
            places[given.name] = position
            inputs.append((ops.HANDLE, writer.slot(given.name)))
        else:
            inputs.append((ops.WORD, writer.named_word(given.name)))
    for constant in plan.constants:
        writer.slot(constant.name, id(constants[constant.name]) + offset)
        writer.owned.append(constants[constant.name])
    borrowed = len(writer.handles)
    shims.thunks.require(shims_of(plan))
    write_steps(plan, kernels, python_for, writer, places)
    return writer.finish(fallback, inputs, [_result(writer, value) for value in plan.results], borrowed, offset)


def shims_of(plan: Plan) -> list[shims.Shim]:
    """The functions in C that a plan may call."""
    calls = [step for step in all_steps(plan.steps) if isinstance(step, Call)]
    needed = [shim for step in calls if (shim := shims.shim_of(overload_of(step.operator))) is not None]
    return [*shims.ALWAYS, *needed]


def write_steps(
    plan: Plan,
    kernels: Sequence[int],
    python_for: Callable[[Block], InPython],
    writer: Writer,
    inputs: Mapping[str, int],
) -> None:
    """Writes the steps of a plan whose inputs and constants have slots. `inputs`: the places of those that are objects
    of Python's."""
    _Assembler(plan.block, kernels, python_for, writer, inputs, plan.constants).all()


def _is_reshaped(base: TensorType, view: View) -> bool:
    """Whether a view is its base, which is dense, with other sizes, and dense too."""
    seen = view.type
    dense = all(type.stride == contiguous_strides(type.shape) for type in (base, seen))
    return dense and view.offset == Expr.const(0) and as_expr(product(base.shape)) == as_expr(product(seen.shape))


def _result(writer: Writer, value: Value) -> Operand:
    if isinstance(value, Ref):
        return ops.HANDLE, writer.slots[value.name]
    if isinstance(value, Expr) and not value.is_const:
        return ops.WORD, writer.word(value)
    found = value.value if isinstance(value, Expr) else value
    writer.owned.append(found)
    return ops.OBJECT, id(found)
