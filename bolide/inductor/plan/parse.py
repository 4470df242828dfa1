"""From the text of a plan to the plan."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from bolide.inductor.ir.loops import CPU, Kernel
from bolide.inductor.ir.printer import dtype_text
from bolide.inductor.plan.plan import Plan
from bolide.inductor.plan.schemas import BadArgument, arguments_of, overload_of, refuse
from bolide.inductor.plan.steps import (
    Alloc,
    Block,
    Branch,
    Call,
    Check,
    Copy,
    Foreign,
    Free,
    Input,
    Item,
    Launch,
    Operator,
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
    WordInput,
    WordResult,
)
from bolide.symbolic import Expr

DTYPES = {dtype_text(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
"""By the short names of the text: torch has some under two names."""

_NAME = r"[A-Za-z_]\w*"


class BadText(ValueError):
    """A text that is no plan."""


def parse(text: str, kernels: Sequence[Kernel]) -> Plan:
    """The plan whose `text()` this is. `kernels`: those that it launches, which the text only names.

    Raises BadText, with the line at fault."""
    lines = _Lines(text.splitlines())
    reader = _Reader(lines, {kernel.name: place for place, kernel in enumerate(kernels)})
    try:
        block = reader.block("plan")
        if lines.read < len(lines.all):
            lines.next()
            raise BadText("this stands behind the end of the plan")
    except (BadText, BadArgument, LookupError, SyntaxError, AttributeError, ValueError) as fault:
        raise BadText(f"line {lines.read}: {lines.all[lines.read - 1] if lines.read else ''}\n{fault}") from None
    return Plan(block.inputs, tuple(reader.constants), tuple(kernels), block.steps, block.results)


@dataclass(slots=True)
class _Lines:
    """The lines of a text, and how many of them are read."""

    all: list[str]
    read: int = 0

    def next(self) -> str:
        """The next line, without the space around it."""
        if self.read == len(self.all):
            raise BadText("a plan, and a block of one, ends with what it returns")
        self.read += 1
        return self.all[self.read - 1].strip()


class _Reader:
    """Reads the lines of a block; `words` are the integers among its names so far."""

    def __init__(self, lines: _Lines, kernels: Mapping[str, int]) -> None:
        self.lines, self.kernels = lines, kernels
        self.words: set[str] = set()
        self.constants: list[TensorInput] = []

    def block(self, head: str) -> Block:
        """The block that begins with the next line, up to what it returns."""
        inputs = self.given(_matched(rf"{head}\((.*)\)", self.lines.next())[1])
        steps: list[Step] = []
        while True:
            line = self.lines.next()
            word, _, rest = line.partition(" ")
            if word == "return":
                return Block(inputs, tuple(steps), self.values(rest))
            if word == "constant":
                self.constants += [given for given in self.given(rest) if isinstance(given, TensorInput)]
            else:
                steps.append(self.step(line))

    def given(self, text: str) -> tuple[Input, ...]:
        """Inputs or constants."""
        found = self.named(text)
        return tuple([WordInput(name) if kind is None else TensorInput(name, kind) for name, kind in found])

    def named(self, text: str) -> list[tuple[str, TensorType | None]]:
        """Names with their types; None of a word."""
        found: list[tuple[str, TensorType | None]] = []
        for part in _parts(text):
            name, _, kind = part.partition(": ")
            if kind == "word":
                self.words.add(name)
            found.append((name, None if kind == "word" else self.type(kind)))
        return found

    def type(self, text: str) -> TensorType:
        """A type."""
        match = _matched(r"(\w+)\[(.*)\] @\((.*)\)(?: on (\S+))?", text)
        dtype, shape, stride, device = match.groups()
        place = CPU if device is None else torch.device(device)
        return TensorType(DTYPES[dtype], place, self.exprs(shape), self.exprs(stride))

    def exprs(self, text: str) -> tuple[Expr, ...]:
        """Integers between commas."""
        return tuple([_expr(part) for part in _tree(f"[{text}]").elts])  # type: ignore[attr-defined]

    def values(self, text: str) -> tuple[Value, ...]:
        """Values between commas."""
        return tuple([self.value(part) for part in _tree(f"[{text.strip()}]").elts])  # type: ignore[attr-defined]

    def value(self, node: ast.expr) -> Value:
        """A value as `value_text` writes it."""
        if isinstance(node, (ast.List, ast.Tuple)):
            return tuple([self.value(item) for item in node.elts])
        if isinstance(node, ast.Name) and node.id not in self.words:
            return Ref(node.id)
        if isinstance(node, ast.Constant) and type(node.value) is not int:
            return node.value  # type: ignore[return-value]
        if isinstance(node, ast.Attribute):
            return getattr(torch, node.attr)  # type: ignore[no-any-return]
        if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant) and _is_float(node.operand):
            return -node.operand.value  # type: ignore[operator, return-value, unused-ignore]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
            return _CALLS[node.func.id](*[_number(self.value(argument)) for argument in node.args])
        return _expr(node)

    def step(self, line: str) -> Step:
        """One step."""
        word, _, rest = line.partition(" ")
        if word == "launch":
            return self.launch(rest)
        if word == "copy":
            target, _, source = rest.partition(" <- ")
            return Copy(target, source)
        if word == "free":
            return Free(tuple(rest.split(", ")))
        if word == "require":
            return self.requirement(rest)
        told = re.fullmatch(rf"({_NAME}): word = (.*)", line)
        if told is not None and (step := _word(*told.groups())) is not None:
            self.words.add(step.name)
            return step
        match = re.fullmatch(rf"({_NAME}) = reuse ({_NAME})", line)
        if match is not None:
            return Reuse(match[1], match[2])
        match = re.fullmatch(rf"({_NAME}): (.*) = alloc", line)
        if match is not None:
            return Alloc(match[1], self.type(match[2]))
        match = re.fullmatch(rf"({_NAME}): (.*) = view ({_NAME}) from (.*)", line)
        if match is not None:
            return View(match[1], match[3], self.type(match[2]), _expr(_tree(match[4])))
        match = re.fullmatch(rf"(?:(.*) = )?(branch|repeat) ({_NAME}(?:, {_NAME})*)\((.*)\)", line)
        return self.call(line) if match is None else self.blocks(*match.groups())

    def blocks(self, results: str | None, kind: str, first: str, arguments: str) -> Branch | Repeat:
        """A step whose blocks are the next lines."""
        given = [value for value in self.values(arguments) if isinstance(value, (Ref, Expr))]
        made = [self.result(part) for part in _parts(results or "")]
        tensors = tuple([result for result in made if isinstance(result, TensorResult)])
        heads = ("then", "else") if kind == "branch" else ("while", "do")
        one, other = [_Reader(self.lines, self.kernels).block(head) for head in heads]
        if kind == "branch":
            return Branch(first, tuple(given), one, other, tensors)
        return Repeat(tuple(first.split(", ")), tuple(given), one, other, tensors)

    def launch(self, text: str) -> Launch:
        """``kernel(names) sizes …``"""
        match = _matched(rf"({_NAME})\((.*?)\)(?: sizes (.*))?", text)
        arguments = tuple(match[2].split(", ")) if match[2] else ()
        return Launch(self.kernels[match[1]], arguments, self.exprs(match[3] or ""))

    def requirement(self, text: str) -> Check | Require:
        """``… else error: message``"""
        match = _matched(r"(.*) (is|==|!=|>=) (True|False|0) else (Refuted|IndexError|RuntimeError): (.*)", text)
        what, relation, value, error, message = match.groups()
        told = ast.literal_eval(message)
        if relation == "is":
            return Check(what, value == "True", error, told)  # type: ignore[arg-type]
        return Require(_expr(_tree(what)), relation, error, told)  # type: ignore[arg-type]

    def call(self, line: str) -> Call:
        """``results = operator(arguments)  # where``"""
        match = _matched(r"(?:(.*?) = )?([\w.]+?)\.(\w+)\.(\w+)(\(.*?\))(?:  # (.*))?", line)
        results, namespace, name, overload, arguments, where = match.groups()
        operator = Operator(f"{namespace}::{name}", "" if overload == "default" else overload)
        tree = _tree(f"f{arguments}")
        assert isinstance(tree, ast.Call)
        given = [self.value(argument) for argument in tree.args]
        named = {str(argument.arg): self.value(argument.value) for argument in tree.keywords}
        values = arguments_of(overload_of(operator), given, named, refuse)
        made = tuple([self.result(part) for part in _parts(results or "")])
        return Call(operator, values, made, where or "")

    def result(self, text: str) -> Result:
        """One result of a call."""
        if text.startswith("["):
            return tuple([self.result(part) for part in _parts(text[1:-1])])  # type: ignore[misc]
        if text == "_":
            return None
        (given,) = self.given(text)
        return TensorResult(given.name, given.type) if isinstance(given, TensorInput) else WordResult(given.name)


def _word(name: str, told: str) -> Word | Item | Size | None:
    """The step that gives a word its value; None if that is a call."""
    match = re.fullmatch(rf"item ({_NAME})", told)
    if match is not None:
        return Item(name, match[1])
    match = re.fullmatch(rf"size (\d+) of ({_NAME})", told)
    if match is not None:
        return Size(name, match[2], int(match[1]))
    return None if "." in told else Word(name, _expr(_tree(told)))


_CALLS: dict[str, Callable[..., Value]] = {
    "foreign": Foreign,
    "device": torch.device,
    "float": float,
    "complex": complex,
}


def _number(value: Value) -> object:
    return value.value if isinstance(value, Expr) else value


def _is_float(node: ast.Constant) -> bool:
    return isinstance(node.value, float)


def _matched(pattern: str, text: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text)
    if match is None:
        raise BadText("this is no line of a plan")
    return match


def _tree(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


_OPERATIONS: dict[type, Callable[[Expr, Expr], Expr]] = {
    ast.Add: Expr.__add__,
    ast.Sub: Expr.__sub__,
    ast.Mult: Expr.__mul__,
    ast.FloorDiv: Expr.__floordiv__,
    ast.Mod: Expr.__mod__,
}


def _expr(node: ast.expr) -> Expr:
    """An integer as `Expr.text` writes it."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Expr.const(node.value)
    if isinstance(node, ast.Name):
        return Expr.var(node.id, None, None)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_expr(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_expr(node.left), _expr(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        return functools.reduce(getattr(Expr, node.func.id), map(_expr, node.args))
    raise BadText(f"{ast.unparse(node)} is no integer")


def _parts(text: str) -> Iterator[str]:
    """What stands between the commas that are in no brackets."""
    depth, start = 0, 0
    for place, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    if text[start:].strip():
        yield text[start:].strip()
