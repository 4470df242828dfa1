"""Programs of the native driver while they are written."""

from __future__ import annotations

import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from bolide.inductor.plan import Operator
from bolide.inductor.runtime.native import instructions as ops
from bolide.inductor.runtime.native import linking, shims
from bolide.inductor.runtime.native.linking import Label, Written
from bolide.inductor.runtime.native.shims import Shim
from bolide.symbolic import Expr
from bolide.symbolic.expr import Atom

Operand = tuple[int, int]
"""Its kind and value."""
NOTHING: Operand = (ops.LITERAL, 0)


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of an operator that is called by name: see the forms in `instructions`."""

    operand: Operand
    form: int = ops.FORM_WORD
    count: int = 0
    optional: bool = False


_KINDS = {"//": ops.DIVIDE, "%": ops.REMAINDER, "min": ops.LEAST, "max": ops.GREATEST}


@dataclass(slots=True)
class PythonStep:
    """A step in Python: the function, its arguments, its results; `behind`: the instruction that follows it; `place`:
    its number among the program's steps, once it is one of them. Where there is no Python, `function` is the text that
    tells what has failed; one that any process has is a label."""

    function: object
    arguments: list[Operand]
    results: list[Operand]
    behind: int = -1
    place: int = -1


@dataclass(slots=True)
class Writer:
    """A program that is being written, for a process with Python. Slots and words go by the names that the plan gives
    tensors and integers. One that `is_short` holds the interpreter lock throughout: to give it up takes longer."""

    code: list[int] = field(default_factory=list)
    frame: list[int] = field(default_factory=list)  # first values
    handles: list[int] = field(default_factory=list)  # first ones
    slots: dict[str, int] = field(default_factory=dict)
    words: dict[Expr, int] = field(default_factory=dict)  # their places in the frame
    steps: list[PythonStep] = field(default_factory=list)
    references: list[tuple[int, int]] = field(default_factory=list)  # where in the code a step's offset belongs
    longest: int = 2
    _pool: list[int] = field(default_factory=lambda: [0] * ops.CONTROL_WORDS)  # the words of the whole
    _shims: dict[Shim, int] = field(default_factory=dict)
    _objects: list[object] = field(default_factory=list)
    _arrays: dict[tuple[Expr, ...], Operand] = field(default_factory=dict)
    is_short: bool = False
    _held: bool = True  # the interpreter lock

    @property
    def with_autograd(self) -> bool:
        """Whether views that are results must be known as views to autograd."""
        return True

    @property
    def may_log(self) -> bool:
        """Whether errors of torch's may be logged, though somebody handles them."""
        return False

    @property
    def generator(self) -> tuple[int, int] | None:
        """The addresses of the generator that seeds are drawn from and of its lock, where they are known."""
        found = shims.generator() is not None
        return (Label(linking.GENERATOR, 0), Label(linking.GENERATOR, 1)) if found else None

    # ---- tensors and words -------------------------------------------------------------------------------------------

    def slot(self, name: str, handle: int = 0) -> int:
        """The slot of a tensor; a new one if it has none."""
        if name not in self.slots:
            self.slots[name] = len(self.handles)
            self.handles.append(handle)
        return self.slots[name]

    def spare_slot(self) -> int:
        """A slot of no name."""
        self.handles.append(0)
        return len(self.handles) - 1

    def place(self, count: int = 1) -> int:
        """The first of so many new words of the frame."""
        self.frame.extend([0] * count)
        return len(self.frame) - count

    def named_word(self, name: str) -> int:
        """The frame word of an integer of the plan; a new one if it has none."""
        variable = Expr.var(name, None, None)
        if variable not in self.words:
            self.words[variable] = self.place()
        return self.words[variable]

    def word(self, expr: Expr) -> int:
        """The frame word with the value of an expression, which is computed here if it was not before."""
        if expr not in self.words:
            if expr.is_const:
                place = self.place()
                self.frame[place] = expr.value
            else:
                place = self._sum(expr)
            self.words[expr] = place
        return self.words[expr]

    def _sum(self, expr: Expr) -> int:
        summands = []
        for mono, coefficient in expr.terms:
            factors = [self._atom(atom) for atom in mono]
            factors += [self.word(Expr.const(coefficient))] if coefficient != 1 else []
            summands.append(self._folded(ops.MULTIPLY, factors))
        summands += [self.word(Expr.const(expr.offset))] if expr.offset else []
        return self._folded(ops.ADD, summands)

    def _atom(self, atom: Atom) -> int:
        if atom.kind == "var":
            return self.words[Expr.var(atom.key, None, None)]
        return self._folded(_KINDS[atom.kind], [self.word(arg) for arg in atom.args])

    def _folded(self, kind: int, places: Sequence[int]) -> int:
        result = places[0]
        for other in places[1:]:
            left, result = result, self.place()
            self.code += (kind, result, left, other)
        return result

    def integer(self, expr: Expr) -> Operand:
        return (ops.LITERAL, expr.value) if expr.is_const else (ops.WORD, self.word(expr))

    def integers(self, exprs: tuple[Expr, ...]) -> Operand:
        """The address of an array of int64."""
        if not exprs:
            return NOTHING
        if exprs not in self._arrays:
            if all(expr.is_const for expr in exprs):
                found = ops.LITERAL, self.table([expr.value for expr in exprs])
            else:
                values, zero = [self.word(expr) for expr in exprs], self.word(Expr.const(0))
                first = self.place(len(values))
                for place, value in enumerate(values, first):
                    self.code += (ops.ADD, place, value, zero)
                found = (ops.PLACE, first)
            self._arrays[exprs] = found
        return self._arrays[exprs]

    def data(self, content: bytes) -> Operand:
        """The address of bytes, which are part of the program; a zero byte follows."""
        return ops.LITERAL, self.table(linking.words_of(content))

    def table(self, values: Sequence[int]) -> int:
        """The address of words, which are part of the program."""
        label = Label(linking.OWN, 8 * len(self._pool))
        self._pool.extend(values)
        return label

    def thunk(self, shim: Shim) -> int:
        """The address of the thunk of a function in C."""
        return Label(linking.THUNK, self._shims.setdefault(shim, len(self._shims)))

    def object(self, value: object) -> Operand:
        """A result that is always the same."""
        self._objects.append(value)
        return ops.OBJECT, Label(linking.OBJECT, len(self._objects) - 1)

    # ---- instructions ------------------------------------------------------------------------------------------------

    def natively(self) -> None:
        """What follows does without the interpreter lock."""
        if self._held and not self.is_short:
            self.code.append(ops.RELEASE)
            self._held = False

    def in_python(self) -> None:
        """What follows needs the interpreter lock."""
        if not self._held:
            self.code.append(ops.ACQUIRE)
            self._held = True

    def launch(self, kernel: int, operands: Sequence[Operand]) -> None:
        """Runs the kernel of the CPU at an address."""
        self.natively()
        self.longest = max(self.longest, len(operands))
        self.code += (ops.LAUNCH, kernel, len(operands), *flat(operands))

    def call(self, shim: Shim, operands: Sequence[Operand], otherwise: PythonStep) -> None:
        """Calls a function in C; `otherwise` is done if it answers an error."""
        assert len(operands) == len(shim.parameters), (shim, operands)
        self.invoke(self.thunk(shim), operands, otherwise)

    def invoke(self, address: int, operands: Sequence[Operand], otherwise: PythonStep) -> None:
        """Calls what is at an address, a thunk or a GPU's kernel; `otherwise` is done if it answers an error."""
        self.natively()
        self.longest = max(self.longest, len(operands))
        self.code += (ops.CALL, address, self._reference(otherwise, 2), len(operands), *flat(operands))

    def dispatch(
        self,
        operator: Operator,
        arguments: Sequence[Argument],
        results: Sequence[tuple[int, int]],
        otherwise: PythonStep,
    ) -> None:
        """Calls an operator by name; `results`: slot and count, or -1, or frame word and -2, for each value."""
        name, overload = (self.data(text.encode())[1] for text in (operator.name, operator.overload))
        self.natively()
        self.longest = max(self.longest, len(arguments))
        counts = len(arguments), overload, len(results)
        self.code += (ops.DISPATCH, name, self._reference(otherwise, 2), *counts)
        self.code += flat([argument.operand for argument in arguments])
        self.code += [each for a in arguments for each in (a.form, a.count, int(a.optional))]
        self.code += flat(results)

    def offset(self, name: str, slot: int) -> Expr:
        """A word: where in its storage a tensor begins."""
        self.code += (ops.OFFSET, self.named_word(name), slot)
        return Expr.var(name, None, None)

    def check(self, slot: int, dtype: int, sizes: Operand, strides: Operand, dims: int, otherwise: PythonStep) -> None:
        """`otherwise` is done if a tensor is not like this."""
        self.natively()
        self.code += (ops.CHECK, slot, self._reference(otherwise, 2), dtype, dims, *sizes, *strides)

    def expect(self, slot: int, value: bool, otherwise: PythonStep) -> None:
        """`otherwise` is done if the only element of a tensor of bools is another."""
        self.natively()
        self.code += (ops.EXPECT, slot, self._reference(otherwise, 2), int(value))
        otherwise.behind = len(self.code)

    def require(self, expr: Expr, relation: int, otherwise: PythonStep) -> None:
        """`otherwise` is done if an integer is not in this relation to 0."""
        value = self.word(expr)
        self.code += (ops.HOLDS, value, self._reference(otherwise, 2), relation)
        otherwise.behind = len(self.code)

    def item(self, name: str, slot: int, dtype: torch.dtype) -> None:
        """A word is the only element of a tensor of integers or bools."""
        self.natively()
        width = dtype.itemsize
        sign = 1 << 8 * width - 1 if dtype.is_signed and width < 8 else 0
        self.code += (ops.ITEM, self.named_word(name), slot, width, sign)

    def size(self, name: str, slot: int, dim: int) -> None:
        """A word is a size of a tensor."""
        self.code += (ops.SIZE, self.named_word(name), slot, dim)

    def python(self, step: PythonStep) -> None:
        """Makes a step in Python."""
        self.in_python()
        self.code += (ops.PYTHON, self._reference(step, 1))
        step.behind = len(self.code)

    def share(self, slot: int, other: int) -> None:
        """A second handle, of the tensor in slot `other`."""
        self.code += (ops.SHARE, slot, other)

    # ---- blocks ------------------------------------------------------------------------------------------------------

    def unless(self, place: int) -> int:
        """Jumps to where this is `led`, by the answer, if a frame word is 0."""
        self.natively()
        self.code += (ops.UNLESS, place, 0)
        return len(self.code) - 3

    def jump(self, start: int | None = None) -> int:
        """Jumps to a `label`, or to where this is `led`, by the answer."""
        self.natively()
        self.code += (ops.JUMP, 0 if start is None else start - len(self.code))
        return len(self.code) - 2

    def label(self) -> int:
        """This place, where the interpreter lock is not held."""
        self.natively()
        return len(self.code)

    def repeated(self) -> int:
        """This place, to which a loop comes back; it can be interrupted here."""
        start = self.label()
        self.code.append(ops.SIGNALS)
        return start

    def led(self, jump: int) -> None:
        """This is where a jump goes."""
        self.code[jump + (2 if self.code[jump] == ops.UNLESS else 1)] = self.label() - jump

    def moves(self, slots: Sequence[int], others: Sequence[int]) -> None:
        """Slots give up their handles for those of others, which have none then."""
        self.free(slots)
        for slot, other in zip(slots, others, strict=True):
            self.share(slot, other)
        self.free(others)

    @contextmanager
    def scope(self, slots: Mapping[str, int], words: Mapping[Expr, int]) -> Iterator[None]:
        """Names are those of a block inside, where these are known; what is computed there is not known outside."""
        outside = self.slots, self.words, self._arrays
        known = {expr: place for expr, place in self.words.items() if expr.is_const}
        self.slots, self.words, self._arrays = dict(slots), {**known, **words}, {}
        yield
        self.slots, self.words, self._arrays = outside

    # ---- arrays and ends ---------------------------------------------------------------------------------------------

    def array_of_handles(self, slots: Sequence[int]) -> Operand:
        """The address of an array of handles."""
        first = self.place(len(slots))
        self.code += (ops.HANDLES, first, len(slots), *slots)
        return ops.PLACE, first

    def free(self, slots: Sequence[int]) -> None:
        """Gives up handles of the program's."""
        self.code += (ops.FREE, len(slots), *slots)

    def free_inputs(self, inputs: Sequence[int]) -> None:
        """Gives up inputs."""
        self.in_python()
        self.code += (ops.FREE_INPUTS, len(inputs), *inputs)

    def _reference(self, step: PythonStep, ahead: int) -> int:
        if step.place < 0:
            step.place = len(self.steps)
            self.steps.append(step)
        self.references.append((len(self.code) + ahead, step.place))
        return 0

    # ---- the whole ---------------------------------------------------------------------------------------------------

    def finish(self, inputs: Sequence[Operand], results: Sequence[Operand], borrowed: int) -> Written:
        """The whole program. `inputs` and `results` say where they are; the first slots are `borrowed`."""
        self.in_python()
        self.code += (ops.DONE, 0)
        places = []
        for number, step in enumerate(self.steps):
            self.code.append(Label(linking.HANDLE, 0))
            places.append(len(self.code))
            function = step.function if isinstance(step.function, Label) else Label(linking.STEP, number)
            head = (function, step.behind, len(step.arguments), *flat(step.arguments))
            self.code += (*head, len(step.results), *flat(step.results))
        for at, place in self.references:
            self.code[at] = places[place]
        control = [0] * ops.CONTROL_WORDS
        control[ops.FALLBACK] = Label(linking.FALLBACK, 0)
        control[ops.INPUTS], control[ops.INPUT_TABLE] = len(inputs), self.table(flat(inputs))
        control[ops.SLOTS], control[ops.SLOT_TABLE] = len(self.handles), self.table(self.handles)
        control[ops.FRAME], control[ops.FRAME_TABLE] = len(self.frame), self.table(self.frame)
        control[ops.RESULTS], control[ops.RESULT_TABLE] = len(results), self.table(flat(results))
        control[ops.BORROWED], control[ops.CODE] = borrowed, self.table(self.code)
        control[ops.TENSOR], control[ops.LONGEST] = Label(linking.HANDLE, 0), self.longest
        control[ops.CLASSES : ops.CLASSES + 2] = [Label(linking.CLASS, number) for number in range(2)]
        self._pool[: ops.CONTROL_WORDS] = control
        found = {kind: array.array("i") for kind in linking.KINDS}
        for place, word in enumerate(self._pool):
            if type(word) is Label:
                found[word.kind].append(place)
        return Written(array.array("q", self._pool), found, tuple(self._shims), tuple(self._objects))


def flat(operands: Sequence[Operand]) -> list[int]:
    """Operands as words."""
    return [part for operand in operands for part in operand]
