"""The text of values: `str`, `repr`, `format`, f-strings, `%` and `str.format`."""

from __future__ import annotations

import types
from typing import Any

from bolide.dynamo.calls import intercept
from bolide.dynamo.interpreter import Call, Machine
from bolide.dynamo.operations import SYMBOLIC, class_of, is_plain, polyfill, python_method
from bolide.dynamo.polyfills import library
from bolide.dynamo.values.kinds import CONSTANT_TYPES
from bolide.dynamo.values.outside import Outside
from bolide.support.errors import Unsupported
from bolide.tracing import TracedTensor

Args = list[Any]
Kwargs = dict[str, Any]

_CONTAINERS = (list, tuple, dict, set, frozenset)
_PLAIN_TEXTS: tuple[Any, ...] = (int.__repr__, float.__repr__, str.__repr__, bytes.__repr__)
_PLAIN_FORMATS: tuple[Any, ...] = (int.__format__, float.__format__, str.__format__)
_CONVERSIONS: tuple[Any, ...] = (str, repr, ascii)


def format_value(vm: Machine, value: Any, conversion: int, spec: Any) -> Any:
    """An f-string's `{value!conversion:spec}`; conversion as in FORMAT_VALUE (0 none, 1 str, 2 repr, 3 ascii)."""
    if type(value) in SYMBOLIC:
        vm.trace.where = vm.where()
        value = value.node.value()
    if type(value) in CONSTANT_TYPES:
        return format(_CONVERSIONS[conversion - 1](value) if conversion else value, spec)
    if conversion:
        text = _text(vm, value, conversion != 1)
        if type(text) is Call or conversion == 3:
            return Call(polyfill("format_converted"), [value, conversion, spec]) if spec or conversion == 3 else text
        return format(text, spec)
    method = vm.world.lookup(class_of(value), "__format__")
    if type(method) is types.FunctionType:
        return Call(polyfill("text_by_method"), [method, "__format__ must return a str, not ", value, spec])
    if type(value) is TracedTensor:
        raise _tensor_text(vm)
    if type(value) is Outside and method in _PLAIN_FORMATS:
        return format(value.plain(), spec) if spec else _text(vm, value, False)
    if spec and method is object.__format__:
        return Call(polyfill("format_text"), [value, spec])
    return format(value, spec) if spec else _text(vm, value, False)


def _tensor_text(vm: Machine) -> Unsupported:
    return Unsupported(
        "the text of a tensor depends on its data",
        vm.where(),
        "format it outside the compiled function",
        "data_text",
    )


def _text(vm: Machine, value: Any, as_repr: bool) -> Any:
    """`repr(value)` or `str(value)`, or the Call that gives it."""
    cls = class_of(value)
    if cls is TracedTensor:
        raise _tensor_text(vm)
    if is_plain(value):
        return repr(value) if as_repr else str(value)
    if not as_repr:
        method = vm.world.lookup(cls, "__str__")
        if type(method) is types.FunctionType:
            return Call(polyfill("text_by_method"), [method, "__str__ returned non-string (type ", value])
        if method is BaseException.__str__:
            return Call(polyfill("text_of_exception"), [value])
        if method is not object.__str__ and type(value) is not Outside:
            return str(value)
        if method is str.__str__:
            return value.plain()
    method = vm.world.lookup(cls, "__repr__")
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
    if type(value) is Outside:
        raise Unsupported(f"the text of an outside {cls.__name__} object", vm.where(), None, "outside_object")
    return repr(value) if as_repr else str(value)


@intercept(str)
def _str(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or kwargs:
        return str(*args, **kwargs)
    return format_value(vm, args[0], 1, "")


@intercept(repr)
def _repr(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return format_value(vm, args[0], 2, "")


@intercept(ascii)
def _ascii(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return format_value(vm, args[0], 3, "")


@intercept(format)
def _format(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return format_value(vm, args[0], 0, args[1] if len(args) > 1 else "")


@intercept(object.__repr__, object.__str__)
def _object_text(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    method = python_method(vm.world, class_of(args[0]), "__repr__")
    if type(args[0]) is Outside:
        if method is None:
            raise Unsupported("the text of an outside object", vm.where(), None, "outside_object")
        return Call(method, args)
    return object.__repr__(args[0])


@intercept(str.format)
def _str_format(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if all(map(is_plain, args)) and all(map(is_plain, kwargs.values())):
        return str.format(*args, **kwargs)
    return Call(polyfill("format_string"), [args[0], tuple(args[1:]), kwargs, [0]])


@intercept(str.format_map)
def _str_format_map(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if is_plain(args[1]):
        return str.format_map(*args)
    return Call(polyfill("format_string"), [args[0], (), args[1], [0]])


@intercept(str.__mod__)
def _str_mod(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return str.__mod__(*args) if is_plain(args[1]) else Call(polyfill("percent"), args)


@intercept(library.percent_pieces)
def _percent_pieces(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return library.percent_pieces(*args)


@intercept(library.format_pieces)
def _format_pieces(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    return library.format_pieces(*args)
