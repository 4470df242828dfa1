"""From a Plan to a program of the native driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    Result,
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
    flat_results,
    tensors_given,
    used_names,
)
from bolide.inductor.plan.schemas import operator_of, overload_of, signature_of
from bolide.inductor.plan.steps import types_of
from bolide.inductor.runtime import externs
from bolide.inductor.runtime.native import arguments, shims
from bolide.inductor.runtime.native import instructions as ops
from bolide.inductor.runtime.native.linking import CONSTANT, DRAW, KERNEL, Label, Program, Surroundings, Written
from bolide.inductor.runtime.native.program import NOTHING, Operand, PythonStep, Writer
from bolide.inductor.runtime.results import tied_views
from bolide.symbolic import Expr

InPython = Callable[[Step, Sequence[str], Sequence[str]], object]
"""Makes a step of a block a function of Python's, of these tensors and words; it gives a tuple of all results. Where
there is no Python it makes the text of `PythonStep`."""


UNDEFINED = "(undefined)"  # the name of an undefined tensor
RELATIONS = {"==": ops.EQUAL, "!=": ops.UNEQUAL, ">=": ops.AT_LEAST}


@dataclass(slots=True)
class _Assembler:
    """Writes the steps of one block. `on_gpu`: which of the `kernels` are a GPU's; `inputs`: the places of those that
    may be given up; `constants`: the plan's."""

    block: Block
    kernels: Sequence[int]
    on_gpu: Sequence[bool]
    python_for: Callable[[Block], InPython]
    writer: Writer
    inputs: Mapping[str, int]
    constants: tuple[TensorInput, ...]
    borrowed: frozenset[str] = field(init=False)  # the tensors that are not the program's own
    words: list[str] = field(init=False)  # that are known so far
    types: Mapping[str, TensorType] = field(init=False)
    tied: frozenset[str] = field(init=False)
    in_python: InPython = field(init=False)

    def __post_init__(self) -> None:
        self.borrowed = frozenset((*self.inputs, *(constant.name for constant in self.constants)))
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
            self.launch(step, [*operands, *sizes])
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
            self.asserted(step, otherwise)

    def asserted(self, step: Check, otherwise: PythonStep) -> None:
        """What raises on a GPU if it must, as eager does: when the device gets there."""
        writer, aten, good, type = self.writer, torch.ops.aten, step.flag, self.types[step.flag]
        if not step.expected:
            good = f"{step.flag}_good"
            call = Call(operator_of(aten.logical_not.default), (Ref(step.flag),), (TensorResult(good, type),))
            self.named(call, [(writer.slot(good),)], otherwise)
        self.named(Call(operator_of(aten._assert_async.msg), (Ref(good), step.message), ()), (), otherwise)
        otherwise.behind = len(writer.code)
        if not step.expected:
            writer.free([writer.slots[good]])

    def told(self, step: Item | Size) -> None:
        """A word that a tensor tells; one on a GPU is copied first, which waits for it."""
        writer, type = self.writer, self.types[step.tensor]
        slot = writer.slots[step.tensor]
        if isinstance(step, Size):
            writer.size(step.name, slot, step.dim)
        elif type.device == CPU:
            writer.item(step.name, slot, type.dtype)
        else:
            otherwise, here = self.otherwise(step), f"{step.tensor}_here"
            self.alloc(here, replace(type, device=CPU), otherwise)
            writer.call(shims.COPY, [(ops.HANDLE, writer.slots[here]), (ops.HANDLE, slot), NOTHING], otherwise)
            writer.item(step.name, writer.slots[here], type.dtype)
            otherwise.behind = len(writer.code)
            writer.free([writer.slots[here]])
        self.words.append(step.name)

    def launch(self, step: Launch, operands: Sequence[Operand]) -> None:
        """A launch; those on a GPU answer whether it could be made."""
        if self.on_gpu[step.kernel]:
            otherwise = self.otherwise(step)
            self.writer.invoke(self.kernels[step.kernel], operands, otherwise)
            otherwise.behind = len(self.writer.code)
        else:
            self.writer.launch(self.kernels[step.kernel], operands)

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
        head = [(ops.LITERAL, len(type.shape)), sizes, strides, (ops.LITERAL, shims.code_of(type.dtype))]
        device = [(ops.LITERAL, number) for number in shims.device_numbers(type.device)]
        writer.call(shims.EMPTY, [*head, *device, (ops.SLOT, writer.slot(name))], otherwise)
        otherwise.behind = len(writer.code)

    def view(self, step: View) -> None:
        """What is tied to other tensors is a view also for autograd, which torch's `as_strided` makes."""
        otherwise = self.otherwise(step)
        writer, type, slot = self.writer, step.type, self.writer.slot(step.name)
        if step.name in self.tied:
            begin: Expr | None = None  # where the base begins
            if step.offset != Expr.const(0):
                begin = step.offset + writer.offset(f"{step.name}_begin", writer.slots[step.base])
            arguments = (Ref(step.base), type.shape, type.stride, begin)
            call = Call(operator_of(torch.ops.aten.as_strided.default), arguments, (TensorResult(step.name, type),))
            self.named(call, [(slot,)], otherwise)
        else:
            sizes, strides = writer.integers(type.shape), writer.integers(type.stride)
            head = [(ops.HANDLE, writer.slots[step.base]), (ops.LITERAL, len(type.shape)), sizes, strides]
            writer.call(shims.VIEW, [*head, writer.integer(step.offset), (ops.SLOT, slot)], otherwise)
        otherwise.behind = len(writer.code)

    def call(self, step: Call) -> None:
        """A call of a function in C where there is one, else by the operator's name, else in Python."""
        made = [self.places_of(result, word) for result, word in zip(step.results, _gives_words(step), strict=True)]
        otherwise = self.otherwise(step)
        if not self.seed(step, otherwise):
            whole = self.with_undefined(step, otherwise)
            if not self.in_c(whole, made, otherwise) and not self.by_name(whole, made, otherwise):
                self.writer.python(otherwise)
        otherwise.behind = len(self.writer.code)
        if UNDEFINED in self.writer.slots:
            self.writer.free([self.writer.slots.pop(UNDEFINED)])
        self.words += [result.name for result in step.results if isinstance(result, WordResult)]

    def with_undefined(self, step: Call, otherwise: PythonStep) -> Call:
        """The call with a tensor for each that its operator asks for and is not given: Python says None for one that
        is undefined, C has a handle of it."""
        parameters = signature_of(overload_of(step.operator)).parameters
        missing = [
            value is None and parameter.kind.base == "Tensor" and not parameter.kind.optional
            for parameter, value in zip(parameters, step.arguments, strict=True)
        ]
        if not any(missing):
            return step
        self.writer.call(shims.UNDEFINED, [(ops.SLOT, self.writer.slot(UNDEFINED))], otherwise)
        given = [Ref(UNDEFINED) if gone else value for gone, value in zip(missing, step.arguments, strict=True)]
        return replace(step, arguments=tuple(given))

    def places_of(self, result: Result, is_word: bool) -> tuple[int, ...]:
        """The slots for what becomes of one value that an operator returns, neighbours for a list; of an integer the
        word of the frame; nothing for a tensor of which a word is asked."""
        if is_word:
            return (self.writer.named_word(result.name) if isinstance(result, WordResult) else self.writer.place(),)
        if isinstance(result, WordResult):
            return ()
        tensors = result if isinstance(result, tuple) else (result,)
        return tuple([self.writer.spare_slot() if each is None else self.writer.slot(each.name) for each in tensors])

    def seed(self, step: Call, otherwise: PythonStep) -> bool:
        """Draws a seed, if a call is for one: from torch's generator, as the call would; of a GPU's in Python, which
        has some ahead."""
        result, generator = externs.seed_of(step), self.writer.generator
        if result is None or generator is None:
            return False
        if result.type.device != CPU:
            draw = PythonStep(Label(DRAW, result.type.device.index), [], otherwise.results)
            self.writer.python(draw)
            return True
        self.alloc(result.name, result.type, otherwise)
        slot = self.writer.slots[result.name]
        self.writer.call(shims.SEED, [*((ops.LITERAL, address) for address in generator), (ops.DATA, slot)], otherwise)
        return True

    def in_c(self, step: Call, made: Sequence[tuple[int, ...]], otherwise: PythonStep) -> bool:
        """Calls a function in C, if there is one for these arguments."""
        writer, op = self.writer, overload_of(step.operator)
        kind = self.kind_of_device(step)
        shim = shims.shim_of(op, kind)
        if shim is None or not all(len(slots) == 1 for slots in made):
            return False
        if kind == "cpu" and op in externs.JOINING.values():  # raises where a place is none
            return False
        try:
            given = arguments.of_call(arguments.in_c, writer, step)
        except arguments.NoOperand:
            return False
        if shim is shims.COPY:  # the memory that is copied to has its layout
            given[1:] = [NOTHING]
        if op in shims.FILLING_FORMS:
            writer.call(shim, [given[-1], *given[:-1]], otherwise)
        elif shim is shims.COPY or op.name() in shims.FILLING:  # type: ignore[no-untyped-call]
            (result,) = step.results
            assert isinstance(result, TensorResult)
            self.alloc(result.name, result.type, otherwise)
            writer.call(shim, [(ops.HANDLE, writer.slots[result.name]), *given], otherwise)
        else:
            forms = [ops.PLACE if is_word else ops.SLOT for is_word in _gives_words(step)]
            writer.call(shim, [*given, *[(form, place) for form, (place,) in zip(forms, made)]], otherwise)
            self.look_at(step, made, otherwise)
        return True

    def by_name(self, step: Call, made: Sequence[tuple[int, ...]], otherwise: PythonStep) -> bool:
        """Calls an operator by its name, if that can be with these arguments."""
        op = overload_of(step.operator)
        if not shims.is_called_by_name(op, self.writer.may_log) or not all(made):
            return False
        try:
            self.named(step, made, otherwise)
        except arguments.NoOperand:
            return False
        return True

    def named(self, step: Call, made: Sequence[tuple[int, ...]], otherwise: PythonStep) -> None:
        """Calls an operator by its name. Raises NoOperand."""
        given = arguments.of_call(arguments.by_name, self.writer, step)
        results = [
            (place[0], -2 if is_word else len(place) if isinstance(result, tuple) else -1)
            for place, result, is_word in zip(made, step.results, _gives_words(step), strict=True)
        ]
        self.writer.dispatch(step.operator, given, results, otherwise)
        self.look_at(step, made, otherwise)

    def look_at(self, step: Call, made: Sequence[tuple[int, ...]], otherwise: PythonStep) -> None:
        """Looks at the tensors that a call gave; gives up those that are not used."""
        writer, known = self.writer, frozenset(self.words)
        unused = []
        pairs = zip(made, step.results, _gives_words(step), strict=True)
        tensors = [(slots, given if isinstance(given, tuple) else (given,)) for slots, given, word in pairs if not word]
        for slot, result in [pair for slots, given in tensors for pair in zip(slots, given, strict=True)]:
            if not isinstance(result, TensorResult):
                unused.append(slot)
            elif result.type.words() <= known:
                type = result.type
                sizes, strides = writer.integers(type.shape), writer.integers(type.stride)
                writer.check(slot, shims.code_of(type.dtype), sizes, strides, len(type.shape), otherwise)
        if unused:
            writer.free(unused)

    def kind_of_device(self, step: Call) -> str:
        """The kind of device whose function a call is for: a GPU's, if any of its tensors is on one, as in torch's
        dispatcher. Such a function takes numbers in tensors on the CPU, too."""
        types = [self.types[name] for name in used_names(step) if name in self.types]
        kinds = {type.device.type for type in types or [result.type for result in tensors_given(step)]}
        return next((kind for kind in sorted(kinds) if kind != "cpu"), "cpu")

    def free(self, step: Free) -> None:
        writer = self.writer
        inputs = [self.inputs[name] for name in step.names if name in self.inputs]
        slots = [writer.slots[name] for name in step.names if name not in self.borrowed]
        if slots:
            writer.free(slots)
        if inputs:
            writer.free_inputs(inputs)

    # ---- blocks ------------------------------------------------------------------------------------------------------

    def branch(self, step: Branch) -> None:
        writer = self.writer
        results = [writer.slot(result.name) for result in step.results]
        given = self.given(step.arguments)
        self.told(Item(_word_of(step.flag), step.flag))
        otherwise = writer.unless(writer.named_word(_word_of(step.flag)))
        writer.moves(results, self.inside(step.then, given))
        end = writer.jump()
        writer.led(otherwise)
        writer.moves(results, self.inside(step.otherwise, given))
        writer.led(end)

    def repeat(self, step: Repeat) -> None:
        writer = self.writer
        results = [writer.slot(result.name) for result in step.results]
        given = [*results, *self.given(step.arguments)]
        for slot, name in zip(results, step.carried):
            writer.share(slot, writer.slots[name])
        start = writer.repeated()
        (goes_on,) = self.inside(_as_word(step.condition), given)
        end = writer.unless(goes_on)
        writer.moves(results, self.inside(step.body, given))
        writer.jump(start)
        writer.led(end)

    def given(self, arguments: Sequence[Ref | Expr]) -> list[int]:
        """The slots and frame words of what a block is given."""
        writer = self.writer
        return [writer.word(value) if isinstance(value, Expr) else writer.slots[value.name] for value in arguments]

    def inside(self, block: Block, given: Sequence[int]) -> list[int]:
        """Runs a block; the slots and frame words of its results."""
        writer = self.writer
        slots = {constant.name: self.writer.slots[constant.name] for constant in self.constants}
        words: dict[Expr, int] = {}
        for parameter, place in zip(block.inputs, given, strict=True):
            if isinstance(parameter, TensorInput):
                slots[parameter.name] = place
            else:
                words[Expr.var(parameter.name, None, None)] = place
        with writer.scope(slots, words):
            _Assembler(block, self.kernels, self.on_gpu, self.python_for, writer, {}, self.constants).all()
            return self.given([result for result in block.results if isinstance(result, (Ref, Expr))])


def _word_of(flag: str) -> str:
    """The name of a flag's value."""
    return f"{flag}_told"


def _as_word(condition: Block) -> Block:
    """A block that gives a flag, as one that gives its value."""
    (flag,) = condition.results
    assert isinstance(flag, Ref)
    name = _word_of(flag.name)
    steps = (*condition.steps, Item(name, flag.name), Free((flag.name,)))
    return replace(condition, steps=steps, results=(Expr.var(name, None, None),))


def _gives_words(step: Call) -> list[bool]:
    """Which of the values that an operator returns are integers."""
    kinds = signature_of(overload_of(step.operator)).returns
    return [kind.item is None and kind.base in ("int", "SymInt") for kind in kinds]


def write(
    plan: Plan, python_for: Callable[[Block], InPython], is_short: bool = False
) -> tuple[Written, Sequence[object]]:
    """The program of a plan, and its steps in Python. `is_short`: whether it takes so little time that the interpreter
    lock is kept."""
    writer = Writer(is_short=is_short)
    inputs: list[Operand] = []
    places: dict[str, int] = {}
    for position, given in enumerate(plan.inputs):
        if isinstance(given, TensorInput):
            places[given.name] = position
            inputs.append((ops.HANDLE, writer.slot(given.name)))
        else:
            inputs.append((ops.WORD, writer.named_word(given.name)))
    for number, constant in enumerate(plan.constants):
        writer.slot(constant.name, Label(CONSTANT, number))
    borrowed = len(writer.handles)
    write_steps(plan, [Label(KERNEL, number) for number in range(len(plan.kernels))], python_for, writer, places)
    written = writer.finish(inputs, [_result(writer, value) for value in plan.results], borrowed)
    return written, [step.function for step in writer.steps]


def assemble(
    plan: Plan,
    kernels: Sequence[int],
    constants: Mapping[str, torch.Tensor],
    python_for: Callable[[Block], InPython],
    fallback: Callable[[list[object]], object],
    offset: int,
    is_short: bool = False,
) -> Program:
    """The program of a plan in memory. `kernels`: the addresses of its kernels; `fallback` runs the plan where an input
    is no plain tensor or no integer; `offset`: of the handle in a tensor as an object of Python's."""
    written, steps = write(plan, python_for, is_short)
    held = [constants[constant.name] for constant in plan.constants]
    return written.linked(Surroundings(kernels, held, steps.__getitem__, fallback, offset))


def write_steps(
    plan: Plan,
    kernels: Sequence[int],
    python_for: Callable[[Block], InPython],
    writer: Writer,
    inputs: Mapping[str, int],
) -> None:
    """Writes the steps of a plan whose inputs and constants have slots. `inputs`: the places of those that are objects
    of Python's."""
    on_gpu = [kernel.device != CPU for kernel in plan.kernels]
    _Assembler(plan.block, kernels, on_gpu, python_for, writer, inputs, plan.constants).all()


def _result(writer: Writer, value: Value) -> Operand:
    if isinstance(value, Ref):
        return ops.HANDLE, writer.slots[value.name]
    if isinstance(value, Expr) and not value.is_const:
        return ops.WORD, writer.word(value)
    found = value.value if isinstance(value, Expr) else value
    return writer.object(found)
