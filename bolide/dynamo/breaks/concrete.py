"""Running instructions for real: reified frames that hold real values go on in eager, one instruction at a time.

Control flow, variables and the stack are the interpreter's own handlers, which work on any values; what looks at the
values themselves (calls, attributes, operators, iteration) is done natively here, and so is exactly Python's. Functions
that are called run in CPython.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import operator
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch

from bolide.dynamo.breaks.segments import Shape, unflatten
from bolide.dynamo.bytecode.instructions import Code
from bolide.dynamo.bytecode.uniform import CALLS, UNIFORM
from bolide.dynamo.library.imports import cannot_import
from bolide.dynamo.machine.callers import call_within, makes_classes, variables
from bolide.dynamo.machine.faults import is_fault
from bolide.dynamo.machine.interpreter import OPCODES, Handler, Machine
from bolide.dynamo.opcodes.stack import NULL
from bolide.dynamo.program.kinds import MISSING, class_attribute, contents_of
from bolide.dynamo.world.frames import Frame
from bolide.dynamo.world.holders import Namespaces
from bolide.dynamo.world.world import World
from bolide.support.caches import on_reset
from bolide.support.errors import HalfwayError
from bolide.support.registers import register
from bolide.tracing import Trace

NATIVE: dict[str, Handler] = {}
REIFIED: set[types.CodeType] = set()  # what native generators around reified frames run


class Concrete:
    """Frames that are run for real, outermost first. When the outermost one has returned, `done` is set and `result`
    is its value; an exception that no frame handles leaves `step`. `way`: the instructions that `advance` has run since
    `restart`, each by the number of its frame and its index. `leaving`: whether the program has raised an exception
    that none of its frames handles. `halfway`: whether an instruction is being run.
    """

    def __init__(self, frames: Sequence[Frame] = ()) -> None:
        self.machine = Machine(_REAL_WORLD, _NO_TRACE, _call)
        self.machine.frames += frames
        self.way: list[tuple[int, int]] = []
        self.leaving = self.halfway = False

    @property
    def frames(self) -> list[Frame]:
        """The frames that are left."""
        return self.machine.frames[1:]

    @property
    def done(self) -> bool:
        """Whether the outermost frame has returned."""
        return len(self.machine.frames) == 1

    @property
    def result(self) -> Any:
        """What it has returned."""
        return self.machine.frames[0].stack[-1]

    def step(self) -> None:
        """Run one instruction."""
        vm = self.machine
        frame = vm.frames[-1]
        handler, arg, _ = _instructions(frame.code)[frame.pc]
        handled = vm.handled()
        self.halfway = True
        frame.pc += 1
        try:
            if handled is None:
                handler(vm, frame, arg)
            else:
                _while_handling(handled, lambda: handler(vm, frame, arg))
        except BaseException as error:
            if is_fault(error):  # the program may not handle it, and nothing else can run the instruction
                raise HalfwayError("a break", frame.code.qualname, error) from error
            self.unwind(error)
        self.halfway = False

    def unwind(self, error: BaseException) -> None:
        """Go on where the program handles an exception of its own."""
        try:
            self.machine.unwind(error, "passed")
        except BaseException as raised:
            self.leaving = raised is error or not is_fault(raised)
            raise
        finally:
            del error  # as in `reified._body`

    def advance(self) -> None:
        """Run one instruction, and then those that need no tensors."""
        frames = self.machine.frames
        self.way.append((len(frames) - 2, frames[-1].pc))
        self.step()
        self.glide()

    def glide(self) -> None:
        """Run instructions while they need no tensors: a segment that began with them would only guard the Python
        numbers that they decide on.
        """
        vm, way = self.machine, self.way
        frames = vm.frames
        while len(frames) > 1:
            frame = frames[-1]
            handler, arg, light = _instructions(frame.code)[frame.pc]
            if light is None or not light(frame):
                return
            way.append((len(frames) - 2, frame.pc))
            if light is _moves:
                self.halfway = True
                frame.pc += 1
                handler(vm, frame, arg)
                self.halfway = False
            else:
                self.step()

    def restart(self, frames: Sequence[Frame]) -> None:
        """Run other frames; those that were run are let go."""
        self.machine.frames[1:] = frames
        self.machine.frames[0].stack.clear()
        self.way = []
        self.leaving = self.halfway = False

    def let_go(self) -> None:
        """What the frames hold goes on elsewhere."""
        self.halfway = True
        for frame in self.frames:
            frame.move()
        self.restart(())

    @property
    def is_whole(self) -> bool:
        """Whether the frames stand between two instructions, or have come to their end."""
        return not self.halfway and bool(self.frames or self.machine.frames[0].stack)


def rehearse(shape: Shape) -> None:
    """Raises what would go wrong when frames of this shape are put together to be run for real: as long as nothing has
    happened, eager can still take over."""
    if any(part.generator for part in shape.frames):
        return
    for frame in unflatten(shape, itertools.repeat(None)):
        _ = _instructions(frame.code)[frame.pc]


def _while_handling(handled: BaseException, work: Callable[[], Any]) -> None:
    """Do `work` as code in an ``except`` block of CPython's does: `sys.exc_info`, a bare ``raise`` and the context of
    new exceptions see `handled`.
    """
    trace, context = handled.__traceback__, handled.__context__
    try:
        raise handled
    except BaseException:
        handled.__traceback__, handled.__context__ = trace, context
        work()


# ---- which instructions are light ------------------------------------------------------------------------------------

SCALARS = frozenset({int, float, bool, str, type(None), bytes, complex})
_Light = Callable[[Frame], bool]


def _moves(frame: Frame) -> bool:
    """Of instructions that only move values about and cannot raise."""
    return True


def _light(name: str) -> _Light | None:
    """When an operation only moves values about, or works on Python numbers; None: never."""
    operation = UNIFORM[name]
    match operation.asks, operation.takes:
        case "nothing", _:
            return _moves
        case "identity", _:
            return lambda frame: True
        case "numbers", 1:
            return lambda frame: type(frame.stack[-1]) in SCALARS
        case "numbers", _:
            return lambda frame: type(frame.stack[-1]) in SCALARS and type(frame.stack[-2]) in SCALARS
    return _LIGHT.get(name)


_NOT_LOOKED_INTO = ("RETURN_VALUE", "STORE_FAST", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")


def _reads_scalar(frame: Frame) -> bool:
    following = frame.code.ops[frame.pc + 1]
    return type(frame.locals[frame.code.args[frame.pc]]) in SCALARS or following in _NOT_LOOKED_INTO


def iterates_natively(iterator: Any) -> bool:
    """Whether an iterator is no reified generator, whose body is better captured."""
    return type(iterator) is not types.GeneratorType or iterator.gi_code not in REIFIED


_LOOP_MAKERS = (range, zip, enumerate, reversed)


def _starts_loop(frame: Frame) -> bool:
    """Whether a loop over numbers, or over the parts of tensors, begins: a call that gives what it goes over is run for
    real where that loop is not unrolled."""
    value = frame.stack[-1]
    parts = type(value) in (tuple, list) and bool(value) and all(type(part) is torch.Tensor for part in value)
    return parts or type(value) in _LOOP_MAKERS


def _makes_loop(frame: Frame) -> bool:
    """Whether a call makes what a loop goes over of what another one does."""
    code, at = frame.code, frame.pc
    called = frame.stack[-code.args[at] - 2 : -code.args[at] or None][:2]
    while code.ops[at] in CALLS:
        at += 1
    return code.ops[at] == "GET_ITER" and any(each is maker for each in called for maker in _LOOP_MAKERS)


_LIGHT: dict[str, _Light] = {
    "LOAD_FAST": _reads_scalar,
    "FOR_ITER": lambda frame: iterates_natively(frame.stack[-1]),
    "GET_ITER": _starts_loop,
    **dict.fromkeys(CALLS, _makes_loop),
    "UNPACK_SEQUENCE": lambda frame: type(frame.stack[-1]) in (tuple, list),
}
"""When other operations are light."""


@functools.lru_cache(1 << 12)
def _instructions(code: Code) -> list[tuple[Handler, Any, _Light | None]]:
    """For each instruction its handler, its argument, and when it is light (None: never)."""
    return [
        (NATIVE.get(name) or OPCODES[name], arg, _light(name)) for name, arg in zip(code.ops, code.args, strict=True)
    ]


on_reset(_instructions.cache_clear)


# ---- the world, seen directly ----------------------------------------------------------------------------------------


class _NoTrace:
    """Handlers say where they are before they call torch."""

    where: object = None


class ReadableNamespaces(Protocol):
    """What handlers that also run for real ask of `Namespaces`. These answers are the real things."""

    def load_global(self, namespace: dict[str, Any], name: str) -> object:
        return namespace.get(name, MISSING)

    def store_global(self, namespace: dict[str, Any], name: str, value: object) -> None:
        if value is not MISSING:
            namespace[name] = value
        elif name in namespace:
            del namespace[name]
        else:
            raise NameError(f"name '{name}' is not defined")

    def load_cell(self, cell: types.CellType, name: str) -> object:
        return contents_of(cell)

    def store_cell(self, cell: types.CellType, name: str, value: object) -> None:
        if value is MISSING:
            del cell.cell_contents
        else:
            cell.cell_contents = value

    def new_cell(self) -> types.CellType:
        return types.CellType()


class _RealNamespaces(ReadableNamespaces):
    _like: type[ReadableNamespaces] = Namespaces  # as type checkers see


class _RealWorld:
    """The parts of a `World` that handlers ask which also run for real. Nothing is guarded."""

    def __init__(self) -> None:
        self.namespaces = _RealNamespaces()
        self.classes = self.containers = self.functions = self
        self.aliases = types.SimpleNamespace(all=())  # nothing is a branch of a graph

    def built(self, items: object) -> None:
        """Lists are themselves."""

    def rely_on_difference(self, first: object, second: object) -> None:
        """Nothing is guarded."""

    def rely_on_identity(self, function: types.FunctionType) -> None:
        """Nothing is guarded."""

    def lookup(self, cls: type, name: str) -> object:
        return class_attribute(cls, name)

    def python_method(self, cls: type, name: str) -> types.FunctionType | None:
        method = class_attribute(cls, name)
        return method if type(method) is types.FunctionType else None


_REAL_WORLD, _NO_TRACE = cast(World, _RealWorld()), cast(Trace, _NoTrace())


# ---- calls -----------------------------------------------------------------------------------------------------------


def _call(vm: Machine, frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any] | None) -> None:
    special = _OF_THE_FRAME.get(function) if type(function) in (types.BuiltinFunctionType, type) else None
    if special is not None:
        frame.stack.append(special(frame, args, kwargs or {}))
    elif type(function) in DIRECT and function not in _LOOK_UP and not makes_classes(function):
        frame.stack.append(function(*args, **(kwargs or {})))
    else:
        frame.stack.append(call_within(vm.frames[1:], function, args, kwargs or {}))


DIRECT = frozenset({types.BuiltinFunctionType, types.MethodDescriptorType, type})
_LOOK_UP = frozenset({sys._getframe, warnings.warn, type.__new__})  # they look at their callers' frames


def _super(frame: Frame, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args:
        return super(*args)
    cls = frame.locals[frame.code.locals_names.index("__class__")].cell_contents
    owner = frame.locals[0]
    return super(cls, owner.cell_contents if type(owner) is types.CellType else owner)


def _evaluate(function: Callable[..., Any]) -> Callable[..., Any]:
    def answer(frame: Frame, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) == 1:
            args = [*args, frame.globals, _locals(frame)]
        return function(*args, **kwargs)

    return answer


def _locals(frame: Frame) -> dict[str, Any]:
    return frame.as_locals(variables(frame))


# Built-in functions that look at the frame they are called from.
_OF_THE_FRAME: dict[Any, Callable[[Frame, list[Any], dict[str, Any]], Any]] = {
    super: _super,
    builtins.locals: lambda frame, args, kwargs: _locals(frame),
    builtins.globals: lambda frame, args, kwargs: frame.globals,
    builtins.vars: lambda frame, args, kwargs: vars(*args) if args else _locals(frame),
    builtins.dir: lambda frame, args, kwargs: dir(*args) if args else sorted(_locals(frame)),
    builtins.eval: _evaluate(eval),
    builtins.exec: _evaluate(exec),
}
LOOKING = frozenset(_OF_THE_FRAME) | _LOOK_UP  # functions in C that see the frames of the program


# ---- handlers --------------------------------------------------------------------------------------------------------


_native = register(NATIVE)


@_native("LOAD_ATTR")
def _load_attr(vm: Machine, frame: Frame, arg: str) -> None:
    frame.stack.append(getattr(frame.stack.pop(), arg))


@_native("IMPORT_NAME")
def _import_name(vm: Machine, frame: Frame, arg: str) -> None:
    names, level = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(__import__(arg, frame.globals, None, names, level))


@_native("IMPORT_FROM")
def _import_from(vm: Machine, frame: Frame, arg: str) -> None:
    module = frame.stack[-1]
    try:
        frame.stack.append(getattr(module, arg))
    except AttributeError:
        submodule = sys.modules.get(f"{module.__name__}.{arg}")
        if submodule is None:
            raise cannot_import(module, arg) from None
        frame.stack.append(submodule)


@_native("LOAD_METHOD")
def _load_method(vm: Machine, frame: Frame, arg: str) -> None:
    owner = frame.stack.pop()
    frame.stack += [NULL, getattr(owner, arg)]


@_native("LOAD_SUPER_ATTR")
def _load_super_attr(vm: Machine, frame: Frame, arg: tuple[str, bool]) -> None:
    owner, cls = frame.stack.pop(), frame.stack.pop()
    frame.stack.pop()
    frame.stack += [NULL] * arg[1]
    frame.stack.append(getattr(super(cls, owner), arg[0]))


@_native("BINARY_OP", "COMPARE_OP")
def _binary_op(vm: Machine, frame: Frame, arg: Callable[[Any, Any], Any]) -> None:
    right = frame.stack.pop()
    frame.stack.append(arg(frame.stack.pop(), right))


_ON_VALUES: dict[str, Callable[..., object]] = {
    "UNARY_OP": lambda value, function: function(value),
    "UNARY_NOT": lambda value, _: not value,
    "CONTAINS_OP": lambda item, container, negated: (item in container) != bool(negated),
    "BINARY_SUBSCR": lambda owner, key, _: operator.getitem(owner, key),  # called: what it raises is the program's
    "STORE_SUBSCR": lambda value, owner, key, _: operator.setitem(owner, key, value),
    "DELETE_SUBSCR": lambda owner, key, _: operator.delitem(owner, key),
    "STORE_ATTR": lambda value, owner, name: setattr(owner, name, value),
    "DELETE_ATTR": delattr,
    "GET_ITER": lambda value, _: iter(value),
    "LIST_TO_TUPLE": lambda value, _: tuple(value),
}
"""What operations do with the values that they take, and with their argument."""


def _on_values(name: str, function: Callable[..., object]) -> None:
    count, gives = UNIFORM[name].taken(None), UNIFORM[name].gives

    @_native(name)
    def handler(vm: Machine, frame: Frame, arg: object) -> None:
        values = frame.stack[-count:]
        del frame.stack[-count:]
        result = function(*values, arg)
        if gives:
            frame.stack.append(result)


for _name, _function in _ON_VALUES.items():
    _on_values(_name, _function)


@_native("GET_LEN")
def _get_len(vm: Machine, frame: Frame, arg: Any) -> None:
    frame.stack.append(len(frame.stack[-1]))


@_native("FORMAT_VALUE")
def _format_value(vm: Machine, frame: Frame, arg: int) -> None:
    spec = frame.stack.pop() if arg & 4 else ""
    value = frame.stack.pop()
    convert = (None, str, repr, ascii)[arg & 3]
    frame.stack.append(format(value if convert is None else convert(value), spec))


@_native("POP_JUMP_IF_FALSE")
def _pop_jump_if_false(vm: Machine, frame: Frame, arg: int) -> None:
    if not frame.stack.pop():
        frame.pc = arg


@_native("POP_JUMP_IF_TRUE")
def _pop_jump_if_true(vm: Machine, frame: Frame, arg: int) -> None:
    if frame.stack.pop():
        frame.pc = arg


@_native("FOR_ITER")
def _for_iter(vm: Machine, frame: Frame, arg: int) -> None:
    try:
        frame.stack.append(next(frame.stack[-1]))
    except StopIteration:
        frame.stack.pop()
        frame.pc = arg


@functools.cache
def _unpacker(before: int, after: int | None) -> Callable[[Any], list[Any]]:
    """CPython's own unpacking into `before` variables, and into `after` ones behind a starred one."""
    names = [f"item{i}" for i in range(before + (0 if after is None else after + 1))]
    targets = [f"*{name}" if i == before else name for i, name in enumerate(names)]
    scope: dict[str, Any] = {}
    text = f"def unpack(value):\n    [{', '.join(targets)}] = value\n    return [{', '.join(reversed(names))}]\n"
    exec(compile(text, __file__, "exec", dont_inherit=True), scope)
    unpack: Callable[[Any], list[Any]] = scope["unpack"]
    return unpack


@_native("UNPACK_SEQUENCE")
def _unpack_sequence(vm: Machine, frame: Frame, arg: int) -> None:
    frame.stack += _unpacker(arg, None)(frame.stack.pop())


@_native("UNPACK_EX")
def _unpack_ex(vm: Machine, frame: Frame, arg: int) -> None:
    frame.stack += _unpacker(arg & 0xFF, arg >> 8)(frame.stack.pop())


@_native("BEFORE_WITH")
def _before_with(vm: Machine, frame: Frame, arg: Any) -> None:
    manager = frame.stack.pop()
    cls = type(manager)
    enter, leave = vm.world.classes.lookup(cls, "__enter__"), vm.world.classes.lookup(cls, "__exit__")
    if enter is MISSING or leave is MISSING:
        raise TypeError(f"{cls.__name__!r} object does not support the context manager protocol")
    frame.stack.append(leave.__get__(manager, cls))
    frame.stack.append(enter.__get__(manager, cls)())


@_native("YIELD_VALUE")
def _yield_value(vm: Machine, frame: Frame, arg: Any) -> None:
    generator = frame.generator
    native = None if generator is None else generator.native  # if this is its last reference, it is closed below
    if generator is not None:
        generator.native = None
    OPCODES["YIELD_VALUE"](vm, frame, arg)
    del native
