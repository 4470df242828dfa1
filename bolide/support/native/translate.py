"""Machine code of small Python functions over 64-bit words.

A function of this subset of Python takes and gives words (``int``) and truth values (``bool``). It has assignments,
``if``, ``while``, ``break``, ``match`` over constants, ``return``, operators, and calls of other functions of its
module and of those below. ``a if c else b`` computes both; ``and`` and ``or`` stand in conditions and after ``return``.
Attributes (``module.NAME``) are constants, known when it is translated.

LLVM runs without passes here: so variables become its values at once (with a phi where two ways meet), and what is
called stays a call.
"""

from __future__ import annotations

import ast
import operator
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

# ---- what the functions call: it is never run in Python --------------------------------------------------------------


def word(base: int, index: int = 0) -> int:
    """The word at an address, or `index` words behind it."""
    raise NotImplementedError


def at(base: int, offset: int) -> int:
    """The word at an address and so many bytes."""
    raise NotImplementedError


def byte(base: int, offset: int) -> int:
    """The byte there."""
    raise NotImplementedError


def put(base: int, index: int, value: int) -> None:
    """Write a word."""
    raise NotImplementedError


def room(words: int) -> int:
    """The address of so many words that are there until the function returns."""
    raise NotImplementedError


def invoke(function: int, argument: int) -> int:
    """What the function in C at an address answers, ``int64_t (void *)``."""
    raise NotImplementedError


def launch(function: int, argument: int) -> None:
    """Call the function in C at an address, ``void (void *)``."""
    raise NotImplementedError


def quotient(dividend: int, divisor: int) -> int:
    """The quotient, rounded towards zero; the divisor is not 0."""
    raise NotImplementedError


def text(content: str) -> int:
    """The address of a text, which a zero byte ends."""
    raise NotImplementedError


def call(name: str, *values: int) -> int:
    """What a function in C answers, of those that the translator was given."""
    raise NotImplementedError


# ---- the translator --------------------------------------------------------------------------------------------------


class External(NamedTuple):
    """A function in C: LLVM's types of its result and its parameters, of which the last is ``...`` if words may
    follow."""

    result: str
    symbol: str
    parameters: tuple[str, ...] = ()


class Value(NamedTuple):
    """A word (``i64``), or a truth value (``i1``)."""

    type: str
    text: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    def is_constant(self) -> bool:
        return not self.text.startswith("%")


def _constant(value: bool | int) -> Value:
    return Value("i1" if isinstance(value, bool) else "i64", str(value).lower())


Variables = dict[str, Value]

_TYPES = {"int": "i64", "bool": "i1"}
_OPERATORS: dict[type[ast.operator], tuple[str, Callable[[int, int], int]]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.LShift: ("shl", operator.lshift),
    ast.RShift: ("lshr", operator.rshift),
    ast.BitAnd: ("and", operator.and_),
    ast.BitOr: ("or", operator.or_),
}
_COMPARISONS: dict[type[ast.cmpop], str] = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.GtE: "sge"}
_TO_WORD = {"ptr": "ptrtoint", "i32": "sext", "i16": "zext", "i8": "zext"}
_FROM_WORD = {"ptr": "inttoptr", "i32": "trunc", "double": "bitcast"}


def translate(
    sources: Iterable[str], exports: Container[str], externals: Mapping[str, External], constants: Mapping[str, object]
) -> str:
    """The text of a module in LLVM's language, in which only the functions `exports` can be seen from outside.

    sources: of Python modules, whose functions are translated; of functions of one name the last. constants: what names
    stand for, of which attributes are read.
    """
    nodes = [node for source in sources for node in ast.parse(source).body]
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    declared = [f"declare {e.result} @{e.symbol}({', '.join(e.parameters)})" for e in externals.values()]
    defined = [_Function(node, functions, externals, constants) for node in functions.values()]
    return "\n\n".join(
        [*declared, *(function.text("" if function.name in exports else "internal ") for function in defined)]
    )


def bytes_text(content: bytes) -> str:
    """Bytes as LLVM writes an array of them, with its type."""
    digits = "".join([f"\\{byte:02x}" for byte in content])
    return f'[{len(content)} x i8] c"{digits}"'


def _type(annotation: ast.expr | None) -> str:
    assert isinstance(annotation, ast.Name)
    return _TYPES[annotation.id]


_FIRST = _constant(0)


class _Function:
    """One function: its lines so far, the block that is written now, and the variables there."""

    def __init__(
        self,
        tree: ast.FunctionDef,
        functions: Mapping[str, ast.FunctionDef],
        externals: Mapping[str, External],
        constants: Mapping[str, object],
    ) -> None:
        self.name, self.result = tree.name, _type(tree.returns)
        self.functions, self.externals, self.constants = functions, externals, constants
        self.parameters = [Value(_type(arg.annotation), f"%{arg.arg}") for arg in tree.args.args]
        self.variables: Variables = {value.text[1:]: value for value in self.parameters}
        self.lines: list[str] = []
        self.names = 0
        self.edges: dict[str, list[tuple[str, Variables]]] = defaultdict(list)  # by where they lead
        self.outs: list[str] = []  # where ``break`` leads
        self.texts: list[str] = []
        self.block = "entry"  # "" behind a return
        self.body(tree.body)

    def text(self, linkage: str) -> str:
        """The whole function."""
        parameters = ", ".join(map(str, self.parameters))
        head = f"define {linkage}{self.result} @{self.name}({parameters}) {{"
        return "\n".join([*self.texts, head, "entry:", *self.lines, "}"])

    # ---- lines and blocks --------------------------------------------------------------------------------------------

    def fresh(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def value(self, kind: str, text: str) -> Value:
        value = Value(kind, f"%{self.fresh()}")
        self.line(f"{value.text} = {text}")
        return value

    def lead(self, *labels: str) -> None:
        """The block that is written now may go on there."""
        for label in labels:
            self.edges[label].append((self.block, dict(self.variables)))

    def go(self, label: str) -> None:
        if self.block:
            self.lead(label)
            self.line(f"br label %{label}")
            self.block = ""

    def start(self, label: str, changing: Iterable[str] = ()) -> list[tuple[int, str]]:
        """Begin a block. What its ways bring different values for gets a phi. So do variables that are `changing`, for
        which more ways will come: the places of all phis are answered, with their variables."""
        ways = self.edges[label]
        self.block = label if ways else ""
        if not ways:
            return []
        self.lines.append(f"{label}:")
        phis = []
        self.variables = {name: value for name, value in ways[0][1].items() if all(name in way for _, way in ways)}
        for name, value in self.variables.items():
            if name in changing or any(way[name] != value for _, way in ways):
                phis.append((len(self.lines), name))
                self.variables[name] = self.value(value.type, "")
        self.meet(label, phis)
        return phis

    def meet(self, label: str, phis: Iterable[tuple[int, str]]) -> None:
        """Write the phis of a block, for all ways that are known."""
        for place, name in phis:
            result = self.lines[place].split(" = ")[0]
            ways = ", ".join(f"[ {way[name].text}, %{block} ]" for block, way in self.edges[label])
            self.lines[place] = f"{result} = phi {self.edges[label][0][1][name].type} {ways}"

    # ---- statements --------------------------------------------------------------------------------------------------

    def body(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            if self.block:
                self.statement(statement)

    def statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign([ast.Name(name)], value):
                self.variables[name] = self.expression(value)
            case ast.AugAssign(ast.Name(name), sign, value):
                self.variables[name] = self.expression(ast.BinOp(ast.Name(name), sign, value))
            case ast.Expr(ast.Constant()):  # a docstring
                pass
            case ast.Expr(value):
                self.expression(value)
            case ast.If(test, body, otherwise):
                yes, no, after = self.fresh(), self.fresh(), self.fresh()
                self.branch(test, yes, no if otherwise else after)
                self.start(yes)
                self.body(body)
                self.go(after)
                if otherwise:
                    self.start(no)
                    self.body(otherwise)
                    self.go(after)
                self.start(after)
            case ast.While(test, body):
                self.loop(test, body)
            case ast.Break():
                self.go(self.outs[-1])
            case ast.Match(subject, cases):
                self.match(subject, cases)
            case ast.Return(ast.BoolOp() as test):
                yes, no = self.fresh(), self.fresh()
                self.branch(test, yes, no)
                for label, answer in ((yes, "true"), (no, "false")):
                    self.start(label)
                    self.line(f"ret i1 {answer}")
                self.block = ""
            case ast.Return(ast.expr() as value):
                self.line(f"ret {self.expression(value)}")
                self.block = ""
            case _:
                raise NotImplementedError(ast.unparse(statement))

    def loop(self, test: ast.expr, body: list[ast.stmt]) -> None:
        """The test stands in front of the loop and at its end, which saves a jump each time."""
        inside, after = self.fresh(), self.fresh()
        nodes = [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)]
        self.branch(test, inside, after)
        phis = self.start(inside, {node.id for node in nodes if isinstance(node.ctx, ast.Store)})
        self.outs.append(after)
        self.body(body)
        self.outs.pop()
        if self.block:
            self.branch(test, inside, after)
        self.meet(inside, phis)
        self.start(after)

    def match(self, subject: ast.expr, cases: list[ast.match_case]) -> None:
        after, other = self.fresh(), self.fresh()
        labels = [self.fresh() for _ in cases[:-1]]
        table = ""
        for label, case in zip(labels, cases):
            assert isinstance(case.pattern, ast.MatchValue)
            table += f" {self.expression(case.pattern.value)}, label %{label}"
        self.line(f"switch {self.expression(subject)}, label %{other} [{table} ]")
        self.lead(*labels, other)
        for label, case in zip([*labels, other], cases):
            self.start(label)
            self.body(case.body)
            self.go(after)
        self.start(after)

    # ---- expressions -------------------------------------------------------------------------------------------------

    def branch(self, test: ast.expr, yes: str, no: str) -> None:
        """Go on at one of two places."""
        match test:
            case ast.BoolOp(kind, parts):
                for part in parts[:-1]:
                    following = self.fresh()
                    self.branch(part, *((following, no) if isinstance(kind, ast.And) else (yes, following)))
                    self.start(following)
                self.branch(parts[-1], yes, no)
            case ast.UnaryOp(ast.Not(), inner):
                self.branch(inner, no, yes)
            case ast.Constant(True):
                self.go(yes)
            case _:
                self.line(f"br {self.expression(test)}, label %{yes}, label %{no}")
                self.lead(yes, no)

    def expression(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(int(number)):
                return _constant(number)
            case ast.UnaryOp(ast.USub(), ast.Constant(int(number))):
                return _constant(-number)
            case ast.Name(name):
                return self.variables[name]
            case ast.Attribute(ast.Name(owner), name):
                return _constant(getattr(self.constants[owner], name))
            case ast.BinOp(left, sign, right):
                one, other = self.expression(left), self.expression(right)
                name, fold = _OPERATORS[type(sign)]
                if one.is_constant() and other.is_constant():
                    return _constant(fold(int(one.text), int(other.text)))
                return self.value(one.type, f"{name} {one}, {other.text}")
            case ast.Compare(left, [comparison], [right]):
                value = self.expression(left)
                return self.value("i1", f"icmp {_COMPARISONS[type(comparison)]} {value}, {self.expression(right).text}")
            case ast.IfExp(test, one, other):
                condition, value = self.expression(test), self.expression(one)
                return self.value(value.type, f"select {condition}, {value}, {self.expression(other)}")
            case ast.Call(ast.Name("call"), [ast.Constant(str(name)), *args]):
                return self.external(self.externals[name], [self.expression(arg) for arg in args])
            case ast.Call(ast.Name("text"), [ast.Constant(str(content))]):
                return self.constant_text(content)
            case ast.Call(ast.Name(name), args):
                values = [self.expression(arg) for arg in args]
                if name in _BUILTIN:
                    return _BUILTIN[name](self, *values)
                kind = _type(self.functions[name].returns)
                return self.value(kind, f"call {kind} @{name}({', '.join(map(str, values))})")
        raise NotImplementedError(ast.unparse(node))

    def external(self, function: External, values: Iterable[Value]) -> Value:
        """A call of a function in C: words become its types, and its answer a word."""
        args = []
        kinds, values = function.parameters, [*values]
        called = function.result
        if kinds and kinds[-1] == "...":
            called = f"{called} ({', '.join(kinds)})"
            kinds = (*kinds[:-1], *["i64"] * (len(values) - len(kinds) + 1))
        for kind, value in zip(kinds, values, strict=True):
            args.append(value if kind == "i64" else self.value(kind, f"{_FROM_WORD[kind]} {value} to {kind}"))
        text = f"call {called} @{function.symbol}({', '.join(map(str, args))})"
        if function.result == "void":
            self.line(text)
            return Value("i64", "0")
        answer = self.value(function.result, text)
        return answer if answer.type == "i64" else self.value("i64", f"{_TO_WORD[answer.type]} {answer} to i64")

    def constant_text(self, content: str) -> Value:
        name = f"@{self.name}.text{len(self.texts)}"
        self.texts.append(f"{name} = private unnamed_addr constant {bytes_text(content.encode() + bytes(1))}")
        return self.value("i64", f"ptrtoint ptr {name} to i64")

    def address(self, base: Value, offset: Value) -> Value:
        if offset.text != "0":
            base = self.value("i64", f"add {base}, {offset.text}")
        return self.value("ptr", f"inttoptr {base} to ptr")

    def address_of_word(self, base: Value, index: Value) -> Value:
        if index.is_constant():
            return self.address(base, _constant(8 * int(index.text)))
        return self.address(base, self.value("i64", f"shl {index}, 3"))

    def word(self, base: Value, index: Value = _FIRST) -> Value:
        return self.value("i64", f"load i64, {self.address_of_word(base, index)}")

    def at(self, base: Value, offset: Value) -> Value:
        return self.value("i64", f"load i64, {self.address(base, offset)}")

    def byte(self, base: Value, offset: Value) -> Value:
        value = self.value("i8", f"load i8, {self.address(base, offset)}")
        return self.value("i64", f"zext {value} to i64")

    def put(self, base: Value, index: Value, value: Value) -> Value:
        self.line(f"store {value}, {self.address_of_word(base, index)}")
        return value

    def invoke(self, function: Value, argument: Value) -> Value:
        return self.value("i64", f"call i64 {self.address(function, _FIRST).text}({argument})")

    def launch(self, function: Value, argument: Value) -> Value:
        self.line(f"call void {self.address(function, _FIRST).text}({argument})")
        return _FIRST

    def quotient(self, dividend: Value, divisor: Value) -> Value:
        return self.value("i64", f"sdiv {dividend}, {divisor.text}")

    def room(self, words: Value) -> Value:
        return self.value("i64", f"ptrtoint {self.value('ptr', f'alloca i64, {words}')} to i64")


_BUILTIN: dict[str, Callable[..., Value]] = {
    function.__name__: function
    for function in (
        *(_Function.word, _Function.at, _Function.byte, _Function.put, _Function.room),
        *(_Function.invoke, _Function.launch, _Function.quotient),
    )
}
