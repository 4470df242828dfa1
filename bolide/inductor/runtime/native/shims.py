"""torch's functions in C (``aoti_torch_*``) that plans call, and the thunks through which they are called.

PyTorch makes such a function of an operator's schema by rule; so `signature` does here, and a test compares it with
torch's own header. Only operators listed here are called so: they raise nothing that depends on data, and have kept
their signature. One without such a function is called by name, through torch's dispatcher.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch

from bolide.inductor.runtime import externs
from bolide.support.engine import Library, load
from bolide.support.symbols import symbol_address

#: Operators whose function in C gives new tensors.
GIVING = frozenset((
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    *("aten::convolution", "aten::convolution_backward", "aten::cat", "aten::topk", "aten::pad", "aten::nonzero"),
    *("aten::sort", "aten::sort.stable", "aten::mkldnn_rnn_layer", "bolide::rnn_layer"),
    *("aten::cumsum", "aten::cumprod", "aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward"),
    *("aten::avg_pool2d", "aten::avg_pool2d_backward", "aten::_adaptive_avg_pool2d"),
    *("aten::_adaptive_avg_pool2d_backward", "aten::randint.low"),
    *("mkldnn::_linear_pointwise", "mkldnn::_linear_pointwise.binary"),
    *("mkldnn::_convolution_pointwise", "mkldnn::_convolution_pointwise.binary"),
))  # fmt: skip
#: Operators whose function in C writes to a tensor that it is given first: one with the layout that is expected.
FILLING = frozenset(op.name() for op in externs.WRITING)
#: Those that the plan itself tells where to write; the same functions in C.
FILLING_FORMS = {writing: op for op, writing in externs.WRITING.items()}
#: Operators that have no function in C: they give new tensors, and are called by name through torch's dispatcher.
DISPATCHED = frozenset(("aten::mkldnn_rnn_layer_backward",))
#: Operators that are called in grad mode: oneDNN then keeps what its backward needs.
IN_GRAD_MODE = frozenset(("bolide::rnn_layer",))

#: Names that do not follow the rule.
_NAMES = {
    "mkldnn::_linear_pointwise": "_linear_pointwise",
    "mkldnn::_linear_pointwise.binary": "_linear_pointwise_binary",
    "mkldnn::_convolution_pointwise": "mkldnn__convolution_pointwise",
    "mkldnn::_convolution_pointwise.binary": "mkldnn__convolution_pointwise_binary",
    "bolide::rnn_layer": "mkldnn_rnn_layer",
}

#: LLVM's types of what stands for a parameter of a schema. ``T?`` is the address of a T, or null; of a list there are
#: two parameters, the address and the length.
_TYPES = {
    "Tensor": "ptr",
    "int": "i64",
    "SymInt": "i64",
    "float": "double",
    "number": "double",
    "Scalar": "double",
    "bool": "i32",
    "str": "ptr",
    "ScalarType": "i32",
}


class Shim(NamedTuple):
    """A function in C that answers 0, or an error. The `parameters` are LLVM's types. One with `kinds`, the types of an
    operator's arguments as schemas write them, is that operator: its `symbol` is the operator's name."""

    symbol: str
    parameters: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    in_grad_mode: bool = False

    @property
    def thunk(self) -> str:
        """The name of its thunk."""
        return f"thunk_{self.symbol.replace('::', '_')}{'_in_grad_mode' * self.in_grad_mode}"


EMPTY = Shim("aoti_torch_empty_strided", ("i64", "ptr", "ptr", "i32", "i32", "i32", "ptr"))
"""dims, sizes, strides, dtype, device type, device index, where the handle goes."""
VIEW = Shim("aoti_torch__reinterpret_tensor", ("ptr", "i64", "ptr", "ptr", "i64", "ptr"))
"""tensor, dims, sizes, strides, elements to add to its offset, where the handle goes."""
RESHAPE = Shim("aoti_torch_cpu_reshape", ("ptr", "ptr", "i64", "ptr"))
"""tensor, sizes, dims, where the handle goes: a view, where torch can make one."""
COPY = Shim("aoti_torch_copy_", ("ptr", "ptr", "i32"))
"""tensor, what is copied to it, 0."""
ALWAYS = (EMPTY, VIEW, RESHAPE, COPY)
"""Those without which there is no native driver."""


def parameters_of(kind: str) -> tuple[str, ...]:
    """LLVM's types of what stands for a parameter of this type in a schema."""
    if kind.endswith(("]", "]?")):
        return ("ptr", "i64")
    if kind == "Device?":
        return ("ptr", "i32")
    return ("ptr",) if kind.endswith("?") else (_TYPES[kind],)


@functools.cache
def shim_of(operator: torch._ops.OpOverload) -> Shim | None:
    """The function in C for an operator on the CPU; None where there is none."""
    name = operator.name()  # type: ignore[no-untyped-call]
    if name == "aten::clone":  # to memory of the layout that is expected
        return COPY
    if operator in FILLING_FORMS:
        return shim_of(FILLING_FORMS[operator])
    if name not in GIVING and name not in FILLING and name not in DISPATCHED:
        return None
    kinds = [type_text(argument.type) for argument in operator._schema.arguments]
    given = [kind for text in kinds for kind in parameters_of(text)]
    made = ["ptr"] * len(operator._schema.returns)
    if name in DISPATCHED:
        return Shim(name, (*given, *made), tuple(kinds))
    suffix = "_out" if name in FILLING else ""
    symbol = f"aoti_torch_cpu_{_NAMES.get(name, name.partition('::')[2].replace('.', '_'))}{suffix}"
    if symbol_address(symbol) is None:
        return None
    parameters = (*made, *given) if name in FILLING else (*given, *made)
    return Shim(symbol, parameters, in_grad_mode=name in IN_GRAD_MODE)


def type_text(kind: object) -> str:
    """A type of a schema, as schemas write it: ``Optional[List[int]]`` is ``int[]?``."""
    text = str(kind)
    for opening, closing in (("Optional[", "?"), ("List[", "[]")):
        if text.startswith(opening):
            return type_text(text[len(opening) : -1]) + closing
    return {"Scalar": "number"}.get(text, text)


class Thunks:
    """Functions ``int64_t (const int64_t *words)`` that call shims with these words. One is made for each shim of a
    process, and lives as long."""

    def __init__(self) -> None:
        self.addresses: dict[Shim, int] = {}
        self.libraries: list[Library] = []

    def require(self, shims: Sequence[Shim]) -> None:
        """Makes those that are missing."""
        missing = [shim for shim in dict.fromkeys(shims) if shim not in self.addresses]
        if missing:
            names = [shim.thunk for shim in missing]
            library = load(thunks_text(missing), names, "", "")
            self.libraries.append(library)
            self.addresses.update({shim: library.addresses[name] for shim, name in zip(missing, names)})


thunks = Thunks()

_GRAD_MODE = (
    "declare zeroext i1 @aoti_torch_grad_mode_is_enabled()",
    "declare void @aoti_torch_grad_mode_set_enabled(i1 zeroext)",
)

#: What puts arguments on the dispatcher's stack: it takes handles, boxes and lists for its own.
_DISPATCHER = (
    "declare i32 @aoti_torch_call_dispatcher(ptr, ptr, ptr)",
    "declare i32 @aoti_torch_new_tensor_handle(ptr, ptr)",
    "declare i32 @torch_new_list_reserve_size(i64, ptr)",
    "declare i32 @torch_list_push_back(ptr, i64)",
    "declare ptr @_Znwm(i64)",
    """define internal void @put_tensor(ptr %place, ptr %tensor) {
  call i32 @aoti_torch_new_tensor_handle(ptr %tensor, ptr %place)
  ret void
}""",
    """define internal void @put_optional_tensor(ptr %place, ptr %slot) {
  store ptr null, ptr %place
  %none = icmp eq ptr %slot, null
  br i1 %none, label %done, label %given
given:
  %box = call ptr @_Znwm(i64 8)
  %tensor = load ptr, ptr %slot
  call void @put_tensor(ptr %box, ptr %tensor)
  store ptr %box, ptr %place
  br label %done
done:
  ret void
}""",
    """define internal void @put_integers(ptr %place, ptr %items, i64 %count) {
  call i32 @torch_new_list_reserve_size(i64 %count, ptr %place)
  %list = load ptr, ptr %place
  br label %next
next:
  %index = phi i64 [ 0, %0 ], [ %following, %add ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %add, label %done
add:
  %at = getelementptr i64, ptr %items, i64 %index
  %item = load i64, ptr %at
  call i32 @torch_list_push_back(ptr %list, i64 %item)
  %following = add i64 %index, 1
  br label %next
done:
  ret void
}""",
)
_PUTTING = {"Tensor": "put_tensor", "Tensor?": "put_optional_tensor", "int[]": "put_integers"}


def thunks_text(wanted: Sequence[Shim]) -> str:
    """The thunks of shims in LLVM's language."""
    shared = dict.fromkeys(text for shim in wanted for text in _shared(shim))
    return "\n\n".join((*shared, *map(_thunk, wanted)))


def _shared(shim: Shim) -> tuple[str, ...]:
    """What a thunk refers to."""
    if shim.kinds:
        return _DISPATCHER
    declared = f"declare i32 @{shim.symbol}({', '.join(shim.parameters)})"
    return (declared, *_GRAD_MODE) if shim.in_grad_mode else (declared,)


def _thunk(shim: Shim) -> str:
    lines = []
    for place, kind in enumerate(shim.parameters):
        whole = "i64" if kind == "i32" else kind
        lines.append(f"%at{place} = getelementptr i64, ptr %words, i64 {place}")
        lines.append(f"%word{place} = load {whole}, ptr %at{place}")
        if kind == "i32" and not shim.kinds:
            lines.append(f"%short{place} = trunc i64 %word{place} to i32")
    lines += _dispatched(shim) if shim.kinds else _called(shim)
    body = "\n  ".join((*lines, "%answer = zext i32 %error to i64", "ret i64 %answer"))
    name, zero = shim.symbol, "\\00"
    constant = f'@name_{shim.thunk} = private constant [{len(name) + 1} x i8] c"{name}{zero}"\n\n' if shim.kinds else ""
    return f"{constant}define i64 @{shim.thunk}(ptr %words) {{\n  {body}\n}}"


def _called(shim: Shim) -> list[str]:
    """Calls a function in C."""
    names = [f"{kind} %{'short' if kind == 'i32' else 'word'}{place}" for place, kind in enumerate(shim.parameters)]
    call = f"%error = call i32 @{shim.symbol}({', '.join(names)})"
    if not shim.in_grad_mode:
        return [call]
    set_mode = "call void @aoti_torch_grad_mode_set_enabled(i1 zeroext"
    before = "%before = call zeroext i1 @aoti_torch_grad_mode_is_enabled()"
    return [before, f"{set_mode} true)", call, f"{set_mode} %before)"]


def _dispatched(shim: Shim) -> list[str]:
    """Calls an operator by name. Its arguments, then its results, lie on a stack of words."""
    results = range(sum(len(parameters_of(kind)) for kind in shim.kinds), len(shim.parameters))
    lines = [f"%stack = alloca i64, i64 {max(len(shim.kinds), len(results))}"]
    place = 0
    for index, kind in enumerate(shim.kinds):
        lines.append(f"%on{index} = getelementptr i64, ptr %stack, i64 {index}")
        if kind in _PUTTING:
            words = [f"{type} %word{at}" for at, type in enumerate(parameters_of(kind), place)]
            lines.append(f"call void @{_PUTTING[kind]}(ptr %on{index}, {', '.join(words)})")
        else:
            lines.append(f"store i64 %word{place}, ptr %on{index}")
        place += len(parameters_of(kind))
    overload = f"getelementptr (i8, ptr @name_{shim.thunk}, i64 {len(shim.symbol)})"  # the empty text
    lines.append(f"%error = call i32 @aoti_torch_call_dispatcher(ptr @name_{shim.thunk}, ptr {overload}, ptr %stack)")
    lines.append("%failed = icmp ne i32 %error, 0")
    lines.append("br i1 %failed, label %done, label %succeeded\nsucceeded:")
    for index, at in enumerate(results):
        lines.append(f"%from{index} = getelementptr i64, ptr %stack, i64 {index}")
        lines.append(f"%result{index} = load i64, ptr %from{index}")
        lines.append(f"store i64 %result{index}, ptr %word{at}")
    return [*lines, "br label %done\ndone:"]


@functools.cache
def dtype_code(dtype: torch.dtype) -> int:
    """torch's number of a dtype, as its functions in C take it."""
    address = symbol_address(f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}")
    if address is None:
        raise LookupError(f"torch's functions in C know no {dtype}")
    return int(ctypes.CFUNCTYPE(ctypes.c_int32)(address)())


def bits(value: float) -> int:
    """A float64 as a word."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


def is_exact(value: float) -> bool:
    """Whether a number is the same as float64."""
    return isinstance(value, float) or abs(value) < 1 << 53
