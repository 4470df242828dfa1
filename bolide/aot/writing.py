"""The program of the native driver, written as the constant data of a library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from bolide.aot import layout
from bolide.aot.contents import Contents, Number
from bolide.inductor.plan import Block, Call, Check, Plan, Ref, Require, Step, TensorInput
from bolide.inductor.plan.plan import step_text
from bolide.inductor.runtime.native import instructions as ops
from bolide.inductor.runtime.native import shims
from bolide.inductor.runtime.native.assemble import RELATIONS, InPython, write_steps
from bolide.inductor.runtime.native.program import NOTHING, Operand, PythonStep, Writer, flat
from bolide.support.errors import Unsupported
from bolide.support.native.translate import bytes_text
from bolide.symbolic import Expr


class Label(int):
    """An address that is known when the library is loaded: that of what has this name."""

    name: str

    def __new__(cls, name: str) -> Label:
        """Of any value."""
        label = super().__new__(cls, 1)
        label.name = name
        return label


@dataclass(frozen=True)
class Failure:
    """What is done otherwise in a library: `kind` of `layout`, what is told, and what the kind needs. `step`: what it
    is told about, for people."""

    kind: int
    text: str
    rest: tuple[int, ...] = ()
    step: str = ""


@dataclass(slots=True)
class LibraryWriter(Writer):
    """A program that is being written for a library. `definitions`: of its data, in LLVM's language; `called`: the
    functions in C."""

    definitions: list[str] = field(default_factory=list)
    called: dict[shims.Shim, None] = field(default_factory=dict)

    @property
    def with_autograd(self) -> bool:
        """Nothing is differentiated."""
        return False

    @property
    def may_log(self) -> bool:
        """There is no other way to call an operator."""
        return True

    @property
    def generator(self) -> None:
        """It is another one where the library runs."""

    def data(self, content: bytes) -> Operand:
        """The address of bytes; a zero byte follows."""
        return ops.LITERAL, self._defined(bytes_text(content + bytes(1)))

    def table(self, values: Sequence[int]) -> int:
        """The address of words."""
        return self._defined(words_text(values)) if values else 0

    def text(self, content: str) -> int:
        """The address of a text."""
        return self.data(content.encode())[1]

    def _defined(self, content: str) -> Label:
        name = f"data{len(self.definitions)}"
        self.definitions.append(f"@{name} = internal constant {content}, align 8")
        return Label(name)

    def thunk(self, shim: shims.Shim) -> int:
        """The address of the thunk of a function in C."""
        self.called[shim] = None
        return Label(shim.thunk)

    def natively(self) -> None:
        """There is no interpreter lock."""

    def in_python(self) -> None:
        """There is no interpreter lock."""

    def python(self, step: PythonStep) -> None:
        """Nothing is made in Python."""
        assert isinstance(step.function, Failure)
        remedy = "replace the operator, or compute it outside of the program"
        reason = f"a library without Python cannot do this: {step.function.step}"
        raise Unsupported(reason, remedy=remedy, kind="operator")

    def control(self, contents: Contents, inputs: int) -> list[int]:
        """The control block, see `layout`; the slots in front of the `inputs` are the constants'."""
        self.code += (ops.DONE, 0)
        places = []
        for step in self.steps:
            assert isinstance(step.function, Failure)
            places.append(len(self.code))
            kind, rest = step.function.kind, step.function.rest
            self.code += (kind, step.behind, self.text(step.function.text), *rest)
        for at, place in self.references:
            self.code[at] = places[place]
        constants = contents.constants
        results = [self.result(value) for value in contents.results]
        control = [0] * layout.LIBRARY_WORDS
        control[ops.INPUTS] = inputs
        control[ops.SLOTS], control[ops.SLOT_TABLE] = len(self.handles), self.table(self.handles)
        control[ops.FRAME], control[ops.FRAME_TABLE] = len(self.frame), self.table(self.frame)
        control[ops.RESULTS], control[ops.RESULT_TABLE] = len(results), self.table(flat(results))
        control[ops.BORROWED], control[ops.CODE] = len(constants), self.table(self.code)
        control[ops.LONGEST] = self.longest
        control[layout.IN_SPEC] = self.text(contents.in_spec)
        control[layout.OUT_SPEC] = self.text(contents.out_spec)
        control[layout.DTYPES] = self.table([self.text(name) for name in _dtype_names()])
        control[layout.WRITES], control[layout.WRITE_TABLE] = len(contents.writes), self.table(contents.writes)
        control[layout.INPUT_NAMES] = self.table([self.text(name) for name in contents.inputs])
        control[layout.OUTPUT_NAMES] = self.table([self.text(name) for name in contents.outputs])
        return control

    def result(self, value: Ref | Expr | Number | None) -> Operand:
        """Where a result is, or what it is."""
        if isinstance(value, Ref):
            return ops.HANDLE, self.slots[value.name]
        if isinstance(value, Expr):
            return (layout.INTEGER, value.value) if value.is_const else (ops.WORD, self.words[value])
        if value is None:
            return layout.NONE, 0
        if isinstance(value, bool):
            return layout.BOOL, int(value)
        return (layout.INTEGER, value) if isinstance(value, int) else (layout.FLOAT, shims.bits(value))


def written(contents: Contents, kernels: Sequence[int]) -> tuple[LibraryWriter, list[int]]:
    """The program of a library and its control block. `kernels`: the labels of the plan's kernels.

    Raises Unsupported for a step that needs Python, which it names."""
    writer, plan = LibraryWriter(), contents.plan
    for constant in plan.constants:
        writer.slot(constant.name)
    given = contents.given
    for place, tensor in enumerate(given):
        writer.slot(f"{place} is not read" if tensor is None else tensor.name)
    _check_inputs(writer, contents)
    write_steps(plan, kernels, _failing(plan), writer, {})
    for value in contents.results:
        if isinstance(value, Expr) and not value.is_const:
            writer.word(value)
    return writer, writer.control(contents, len(given))


def _failing(plan: Plan) -> Callable[[Block], InPython]:
    """What is told when a step fails."""

    def for_block(block: Block) -> InPython:
        def made(step: Step, tensors: Sequence[str], words: Sequence[str]) -> Failure:
            text = step_text(step, plan.kernels).partition("\n")[0]
            if isinstance(step, (Check, Require)):
                message = step.message if step.error != "Refuted" else f"not what the example was: {step.message}"
                return Failure(layout.MESSAGE, message.replace("%", "%%"), (), text)
            what = str(step.operator) if isinstance(step, Call) else text
            where = f", {step.where}" if isinstance(step, Call) and step.where else ""
            return Failure(layout.REFUSED, f"{what}{where}", (), f"{what}{where}")

        return made

    return for_block


def _check_inputs(writer: LibraryWriter, contents: Contents) -> None:
    """Binds the words of the plan, and checks inputs: dtype and dimensions, the ranges of sizes, then whole layouts."""
    read = [(tensor, name) for tensor, name in zip(contents.given, contents.inputs) if tensor is not None]
    for tensor, name in read:
        if tensor.type.words():
            _check_input(writer, tensor, name, NOTHING, NOTHING)
    for word, (tensor_name, dim) in contents.words.items():
        writer.size(word, writer.slots[tensor_name], dim)
    for requirement in contents.requirements:
        place = writer.word(requirement.shown)
        failure = Failure(layout.VALUE, requirement.message, (place,))
        writer.require(requirement.expr, RELATIONS[requirement.relation], PythonStep(failure, [], []))
    for tensor, name in read:
        sizes, strides = writer.integers(tensor.type.shape), writer.integers(tensor.type.stride)
        _check_input(writer, tensor, name, sizes, strides)


def _check_input(writer: LibraryWriter, tensor: TensorInput, name: str, sizes: Operand, strides: Operand) -> None:
    slot, dtype = writer.slots[tensor.name], shims.code_of(tensor.type.dtype)
    dims = len(tensor.type.shape)
    step = PythonStep(Failure(layout.INPUT, name, (slot, dtype, dims, *sizes, *strides)), [], [])
    writer.check(slot, dtype, sizes, strides, dims, step)
    step.behind = len(writer.code)


def words_text(values: Sequence[int]) -> str:
    """Words as LLVM writes an array of them, with its type."""
    items = [f"i64 ptrtoint (ptr @{v.name} to i64)" if isinstance(v, Label) else f"i64 {v}" for v in values]
    return f"[{len(values)} x i64] [{', '.join(items)}]"


def _dtype_names() -> list[str]:
    """The names of dtypes by torch's number."""
    names = ["another one"] * 64
    for dtype in dict.fromkeys(value for value in vars(torch).values() if isinstance(value, torch.dtype)):
        try:
            names[shims.code_of(dtype)] = str(dtype)
        except LookupError:
            continue
    return names
