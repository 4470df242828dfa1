"""The text of values: `str`, `repr`, `format`, f-strings, `%` and `str.format`."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import numpy
import torch

from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_each, intercept_table
from bolide.dynamo.machine.breaking import can_require
from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Call, Machine, polyfill
from bolide.dynamo.machine.native_calls import for_real, runs_natively
from bolide.dynamo.machine.operations import is_plain, native_view
from bolide.dynamo.machine.originals import original_of
from bolide.dynamo.machine.stand_ins import PENDING, class_of, concrete, is_number
from bolide.dynamo.polyfills import library
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import CONSTANT_TYPES, is_constant, name_in_texts
from bolide.dynamo.world.frames import Generator
from bolide.dynamo.world.iterators import Stream
from bolide.dynamo.world.outside import Outside
from bolide.dynamo.world.texts import QUESTIONS, TEXT_METHODS, Pictured, TracedText, joined
from bolide.tracing import DataDependent, TracedTensor

_CONTAINERS = (list, tuple, dict, set, frozenset)
_PLAIN_TEXTS: tuple[Any, ...] = (int.__repr__, float.__repr__, str.__repr__, bytes.__repr__)
_PLAIN_FORMATS: tuple[Any, ...] = (int.__format__, float.__format__, str.__format__)
_SPECIAL_TEXTS = (collections.OrderedDict.__repr__, collections.defaultdict.__repr__, collections.deque.__repr__)
_CONVERSIONS: tuple[Any, ...] = (str, repr, ascii)
_OF_TENSORS: tuple[Any, ...] = (torch.Tensor.__repr__, torch.nn.Parameter.__repr__, TracedTensor.__repr__)


def format_value(vm: Machine, value: Any, conversion: int, spec: Any) -> Any:
    """An f-string's `{value!conversion:spec}`; conversion as in FORMAT_VALUE (0 none, 1 str, 2 repr, 3 ascii)."""
    if type(spec) is TracedText:
        spec = concrete(vm, spec)
    if type(value) in PENDING:
        return _of_pending(vm, value, conversion, spec)
    if (type(value) in CONSTANT_TYPES and type(value) is not torch.Size) or isinstance(value, numpy.generic):
        return format(_CONVERSIONS[conversion - 1](value) if conversion else value, spec)
    if conversion == 3 and type(value) is TracedTensor:
        return format_value(vm, _of_tensor(vm, value, ascii), 0, spec)
    if conversion:
        text = _text(vm, value, conversion != 1)
        if type(text) is Call or conversion == 3:
            return Call(polyfill("format_converted"), [value, conversion, spec]) if spec or conversion == 3 else text
        return format_value(vm, text, 0, spec)
    method = vm.world.classes.lookup(class_of(value), "__format__")
    if isinstance(value, torch.Tensor) and (type(value) is TracedTensor or runs_natively(method)):
        return _of_tensor(vm, value, None if value.dim() else format, spec)
    if type(method) is types.FunctionType:
        return Call(polyfill("text_by_method"), [method, "__format__ must return a str, not ", value, spec])
    if type(value) is Outside and method in _PLAIN_FORMATS:
        return format(value.plain(), spec) if spec else _text(vm, value, False)
    if spec and method is object.__format__:
        return Call(polyfill("format_text"), [value, spec])
    return format(value, spec) if spec or is_number(value) else _text(vm, value, False)


def _of_pending(vm: Machine, value: Any, conversion: int, spec: Any) -> Any:
    """The text of a symbolic number, or of a text that is known when the graph has run."""
    cls = PENDING[type(value)]
    if cls is bool:
        return format_value(vm, concrete(vm, value), conversion, spec)
    if conversion > 1 or (conversion == 1 and cls is not str):
        value, cls = TracedText(_CONVERSIONS[conversion - 1], value), str
    format(cls(), spec)  # raises what is wrong with the specification
    return value if cls is str and not spec else TracedText(format, value, spec)


def _options(module: Any) -> tuple[Any, ...]:
    """How texts of tensors and arrays are written."""
    return (*vars(module._tensor_str.PRINT_OPTS).values(), str(sorted(numpy.get_printoptions().items())))


def _rely_on_options(vm: Machine) -> None:
    """Guard the options of a text that is written while capturing."""
    if vm.world.guards.first(_options):
        source = Source("apply", Source("object", None, None, torch), (), _options)
        vm.world.guards.add(source, "equals", _options(torch))


def _of_tensor(vm: Machine, value: Any, function: Any, *args: Any) -> Any:
    """The text that `function(tensor, *args)` makes of a tensor, when the graph has run; None: as `object` formats."""
    if function is None:
        if args[0]:
            raise TypeError(f"unsupported format string passed to {class_of(value).__name__}.__format__")
        function, args = str, ()
    known = vm.trace.known(value) if type(value) is TracedTensor and not value.requires_grad else None
    if known is not None:
        _rely_on_options(vm)
        return for_real(function, known, *args)
    if type(value) is not TracedTensor or value.face is not None or not can_require(vm):
        raise DataDependent("formatting a tensor", vm.where(), "data_text")
    if function not in _CONVERSIONS:  # what is wrong with the number of elements or the format is raised now
        number = for_real(torch.ones, 1 if value.numel() == 1 else 2, dtype=value.dtype)
        for_real(lambda: function(number.squeeze(), *args))
    vm.trace.where = vm.where()
    return TracedText(function, Pictured(value), *args)


def _text(vm: Machine, value: Any, as_repr: bool) -> Any:
    """`repr(value)` or `str(value)`, or the Call that gives it."""
    cls = class_of(value)
    if isinstance(value, type):
        vm.world.classes.rely_on_answer(value, name_in_texts)
    if isinstance(value, torch.Tensor) and (type(value) is TracedTensor or cls.__repr__ in _OF_TENSORS):
        return _of_tensor(vm, value, repr if as_repr else str)
    if issubclass(cls, numpy.ndarray):
        _rely_on_options(vm)
    if type(value) in PENDING:
        return _of_pending(vm, value, 2 if as_repr else 1, "")
    if type(value) is Generator:
        return _of_generator(vm, value)
    if cls is torch.Size and not is_plain(value):
        return TracedText(repr, value)
    if is_plain(value):
        return repr(value) if as_repr else str(value)
    if not as_repr:
        method = vm.world.classes.lookup(cls, "__str__")
        if type(method) is types.FunctionType:
            return Call(polyfill("text_by_method"), [method, "__str__ returned non-string (type ", value])
        if method is BaseException.__str__:
            return Call(polyfill("text_of_exception"), [value])
        if method is not object.__str__ and type(value) is not Outside:
            return str(value)
        if method is str.__str__:
            return value.plain()
    method = vm.world.classes.lookup(cls, "__repr__")
    if type(value) is not Outside and (method in _SPECIAL_TEXTS or _has_names(cls, method)):
        return Call(polyfill("represent_special"), [value])
    if type(method) is types.FunctionType:
        return Call(polyfill("text_by_method"), [method, "__repr__ returned non-string (type ", value])
    if method is BaseException.__repr__:
        return Call(polyfill("repr_of_exception"), [value])
    if type(value) is Outside and value.contents is not None:
        return _text(vm, value.contents, True)
    if type(value) in _CONTAINERS or (type(value) is Outside and cls is dict):
        return Call(polyfill("represent"), [value])
    if type(value) is Outside and method in _PLAIN_TEXTS:
        return repr(value.plain())
    if type(value) in (Outside, Stream):
        raise vm.unsupported(f"the text of an outside {cls.__name__} object", "outside_object")
    return repr(value) if as_repr else str(value)


def _of_generator(vm: Machine, value: Generator) -> str:
    """`repr` of a generator, or of the iterator that it stands for."""
    original = original_of(value)
    if original is None and value.source is None and not value.frame.code.ours:
        return f"<{value.kind} object {value.name} at {id(value):#x}>"
    if original is None or getattr(original.cls, "__repr__") is not object.__repr__:  # noqa: B009
        raise vm.unsupported("the text of an iterator", "iterator")
    text = object.__repr__(original.empty[0](*original.empty[1:]))
    return f"{text.rpartition(' ')[0]} {id(value):#x}>"


def _has_names(cls: type, method: Any) -> bool:
    """Whether the text of a tuple is made by what a named tuple, or one of torch's, has for a `__repr__`."""
    if not issubclass(cls, tuple):
        return False
    if cls.__module__ == "torch.return_types":
        return True
    return type(method) is types.FunctionType and hasattr(cls, "_fields") and runs_natively(method)


@intercept(str)
def _str(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 1 or kwargs:
        return str(*args, **kwargs)
    return format_value(vm, args[0], 1, "")


@intercept_table({repr: 2, ascii: 3, object.__str__: 2})
def _convert(function: object, conversion: int, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return format_value(vm, args[0], conversion, "")


intercept(format)(lambda vm, args, kwargs: format_value(vm, args[0], 0, args[1] if len(args) > 1 else ""))


@intercept(object.__repr__)
def _object_repr(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if type(args[0]) in (Outside, Stream, Generator):
        raise vm.unsupported("the text of an outside object or an iterator", "outside_object")
    return object.__repr__(concrete(vm, args[0]) if type(args[0]) in PENDING else args[0])


@intercept(str.format)
def _str_format(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if all(map(is_plain, args)) and all(map(is_plain, kwargs.values())):
        return str.format(*args, **kwargs)
    return Call(polyfill("format_string"), [args[0], tuple(args[1:]), kwargs, [0]])


@intercept(str.format_map)
def _str_format_map(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if is_plain(args[1]):
        return str.format_map(*args)
    return Call(polyfill("format_string"), [args[0], (), args[1], [0]])


intercept(str.__mod__)(
    lambda vm, args, kwargs: str.__mod__(*args) if is_plain(args[1]) else Call(polyfill("percent"), args)
)


@answers(library.percent_of)
def _percent_of(vm: Machine, template: str, values: tuple[Any, ...]) -> object:
    *sizes, value = values
    if type(value) is TracedTensor:
        return _of_tensor(vm, value, _percent, template, tuple(sizes))
    if type(value) in PENDING and type(value) is not torch.SymBool:
        template % (*sizes, PENDING[type(value)]())  # raises what is wrong with it
        return TracedText(_percent, value, template, tuple(sizes))
    return template % (*sizes, native_view(vm, value))


def _percent(value: Any, template: str, sizes: tuple[Any, ...]) -> str:
    return template % (*sizes, value)


@intercept(str.join)
def _join(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    separator, parts = args
    if type(parts) in (list, tuple) and any(type(part) is TracedText for part in (separator, *parts)):
        return joined(list(parts), separator)
    return NATIVE


@intercept_each([getattr(str, name) for name in TEXT_METHODS if hasattr(str, name)])
def _method(function: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Of a text that is known when the graph has run."""
    if type(args[0]) is not TracedText or kwargs:
        return NATIVE
    function("text", *args[1:])  # raises what is wrong with the arguments
    return TracedText(function, *args, has_any=False)


@intercept_each(QUESTIONS)
def _question(function: Callable[..., bool], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """What is true of a text from outside that changes: that is guarded, not the text."""
    given = args[0].given if args and type(args[0]) is TracedText else None
    return NATIVE if given is None or kwargs or not is_constant(tuple(args[1:])) else given.answer(function, *args[1:])


@intercept_each((library.percent_pieces, library.format_pieces))
def _pieces(function: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return function(*args)
