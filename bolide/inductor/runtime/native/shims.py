"""torch's functions in C (``aoti_torch_*``) that plans call, and the thunks through which they are called.

PyTorch makes such a function of an operator's schema by rule; so `shim_of` does here, and a test compares it with
torch's own header. Only operators listed here are called so: they raise nothing that depends on data, and have kept
their signature. Others are called by name, through torch's dispatcher.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch

from bolide.inductor.runtime import externs
from bolide.inductor.runtime.results import is_torchs
from bolide.support.engine import Library, load
from bolide.support.symbols import symbol_address
from bolide.tracing.fallible import checks_data

#: Operators whose function in C gives new tensors.
GIVING = frozenset((
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    *("aten::convolution", "aten::convolution_backward", "aten::cat", "aten::topk", "aten::pad", "aten::nonzero"),
    *("aten::sort", "aten::sort.stable", "aten::mkldnn_rnn_layer", "bolide::rnn_layer"),
    *("aten::cumsum", "aten::cumprod", "aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward"),
    *("aten::avg_pool2d", "aten::avg_pool2d_backward", "aten::_adaptive_avg_pool2d"),
    *("aten::_adaptive_avg_pool2d_backward", "aten::randint.low", "aten::histc"),
    *("aten::add.Tensor", "aten::mul.Scalar", "aten::addmv", "aten::addbmm"),
    *("mkldnn::_linear_pointwise", "mkldnn::_linear_pointwise.binary"),
    *("mkldnn::_convolution_pointwise", "mkldnn::_convolution_pointwise.binary"),
    *(f"aten::_scaled_dot_product_{kind}_attention{way}"
      for kind in ("flash", "efficient", "cudnn") for way in ("", "_backward")),
))  # fmt: skip
#: Operators whose function in C writes to a tensor that it is given first: one with the layout that is expected.
FILLING = frozenset(op.name() for op in (*externs.WRITING, *externs.JOINING))
#: Those that the plan itself tells where to write; the same functions in C.
FILLING_FORMS = {writing: op for op, writing in (*externs.WRITING.items(), *externs.JOINING.items())}
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
    """A function in C that answers 0, or an error. The `parameters` are LLVM's types."""

    symbol: str
    parameters: tuple[str, ...]
    in_grad_mode: bool = False

    @property
    def thunk(self) -> str:
        """The name of its thunk."""
        return f"thunk_{self.symbol}{'_in_grad_mode' * self.in_grad_mode}"


EMPTY = Shim("aoti_torch_empty_strided", ("i64", "ptr", "ptr", "i32", "i32", "i32", "ptr"))
"""dims, sizes, strides, dtype, device type, device index, where the handle goes."""
VIEW = Shim("aoti_torch__reinterpret_tensor", ("ptr", "i64", "ptr", "ptr", "i64", "ptr"))
"""tensor, dims, sizes, strides, elements to add to its offset, where the handle goes."""
COPY = Shim("aoti_torch_copy_", ("ptr", "ptr", "i32"))
"""tensor, what is copied to it, 0."""
UNDEFINED = Shim("aoti_torch_new_uninitialized_tensor", ("ptr",))
"""where the handle of an undefined tensor goes."""
SEED = Shim("bolide_seed", ("ptr", "ptr", "ptr"))
"""generator, its lock, where the seed goes."""
ALWAYS = (EMPTY, VIEW, COPY, UNDEFINED)
"""Those without which there is no native driver."""


def parameters_of(kind: str) -> tuple[str, ...]:
    """LLVM's types of what stands for a parameter of this type in a schema."""
    if kind.endswith(("]", "]?")):
        return ("ptr", "i64")
    if kind == "Device?":
        return ("ptr", "i32")
    return ("ptr",) if kind.endswith("?") else (_TYPES[kind],)


@functools.cache
def shim_of(operator: torch._ops.OpOverload, kind: str = "cpu") -> Shim | None:
    """The function in C for an operator on devices of a kind; None where there is none."""
    name = operator.name()  # type: ignore[no-untyped-call]
    if name == "aten::clone":  # to memory of the layout that is expected
        return COPY
    if operator in FILLING_FORMS:
        return shim_of(FILLING_FORMS[operator], kind)
    if name not in GIVING and name not in FILLING:
        return None
    given = [kind for argument in operator._schema.arguments for kind in parameters_of(type_text(argument.type))]
    made = ["ptr"] * len(operator._schema.returns)
    suffix = "_out" if name in FILLING else ""
    symbol = f"aoti_torch_{kind}_{_NAMES.get(name, name.partition('::')[2].replace('.', '_'))}{suffix}"
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
    """Functions ``int64_t (const int64_t *words)`` that call shims with these words, which live as long as the process.
    Those that a program needs are one module, whose code another process with the program finds (docs/caches.md)."""

    def __init__(self) -> None:
        self.addresses: dict[Shim, int] = {}
        self.libraries: list[Library] = []

    def require(self, shims: Sequence[Shim]) -> None:
        """Makes those that are missing. Raises RuntimeError where torch has not such functions."""
        if not self.addresses.keys() >= {*shims}:
            names = [shim.thunk for shim in shims]
            library = load(thunks_text(shims), names, "", "")
            self.libraries.append(library)
            self.addresses.update({shim: library.addresses[name] for shim, name in zip(shims, names)})


thunks = Thunks()

_GRAD_MODE = (
    "declare zeroext i1 @aoti_torch_grad_mode_is_enabled()",
    "declare void @aoti_torch_grad_mode_set_enabled(i1 zeroext)",
)


def thunks_text(wanted: Sequence[Shim]) -> str:
    """The thunks of shims in LLVM's language."""
    shared = dict.fromkeys(text for shim in wanted for text in _shared(shim))
    return "\n\n".join((*shared, *map(_thunk, wanted)))


#: Draws as ``aten::randint`` does for all numbers of 64 bits but the greatest: modulo 2**64 - 1, from the least on.
_SEED = """declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i64 @_ZN2at16CPUGeneratorImpl8random64Ev(ptr)

define internal i32 @bolide_seed(ptr %generator, ptr %lock, ptr %place) {
  %locked = call i32 @pthread_mutex_lock(ptr %lock)
  %drawn = call i64 @_ZN2at16CPUGeneratorImpl8random64Ev(ptr %generator)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %lock)
  %is_last = icmp eq i64 %drawn, -1
  %rest = select i1 %is_last, i64 0, i64 %drawn
  %seed = add i64 %rest, -9223372036854775808
  store i64 %seed, ptr %place
  ret i32 0
}"""


@functools.cache
def generator() -> tuple[int, int] | None:
    """The addresses of torch's default generator and of its lock; None where they are not where they should be. A
    generator begins with its table of methods, its counts of references, its lock, and its dispatch keys: a new one has
    40 bytes of zeros for the lock, which nobody holds, between two words that are none."""
    needed = ("_ZN2at16CPUGeneratorImpl8random64Ev", "pthread_mutex_lock", "pthread_mutex_unlock")
    new, default = torch.Generator(), torch.default_generator
    words = (ctypes.c_int64 * 8).from_address(new._cdata)  # type: ignore[attr-defined]
    known = words[1] != 0 and words[2:7] == [0] * 5 and words[7] != 0
    if not known or not all(symbol_address(symbol) for symbol in needed):
        return None
    address: int = default._cdata  # type: ignore[attr-defined]
    return address, address + 16


def _shared(shim: Shim) -> tuple[str, ...]:
    """What a thunk refers to."""
    if shim == SEED:
        return (_SEED,)
    declared = f"declare i32 @{shim.symbol}({', '.join(shim.parameters)})"
    return (declared, *_GRAD_MODE) if shim.in_grad_mode else (declared,)


def _thunk(shim: Shim) -> str:
    lines = []
    for place, kind in enumerate(shim.parameters):
        whole = "i64" if kind == "i32" else kind
        lines.append(f"%at{place} = getelementptr i64, ptr %words, i64 {place}")
        lines.append(f"%word{place} = load {whole}, ptr %at{place}")
        if kind == "i32":
            lines.append(f"%short{place} = trunc i64 %word{place} to i32")
    body = "\n  ".join((*lines, *_called(shim), "%answer = zext i32 %error to i64", "ret i64 %answer"))
    return f"define i64 @{shim.thunk}(ptr %words) {{\n  {body}\n}}"


def _called(shim: Shim) -> list[str]:
    """Calls a function in C."""
    names = [f"{kind} %{'short' if kind == 'i32' else 'word'}{place}" for place, kind in enumerate(shim.parameters)]
    call = f"%error = call i32 @{shim.symbol}({', '.join(names)})"
    if not shim.in_grad_mode:
        return [call]
    set_mode = "call void @aoti_torch_grad_mode_set_enabled(i1 zeroext"
    before = "%before = call zeroext i1 @aoti_torch_grad_mode_is_enabled()"
    return [before, f"{set_mode} true)", call, f"{set_mode} %before)"]


@functools.cache
def code_of(value: torch.dtype | torch.layout | torch.memory_format) -> int:
    """torch's number of a dtype, a layout or a memory format, as its functions in C take it."""
    kind = type(value).__name__
    name = str(value).removeprefix("torch.")
    address = symbol_address(f"aoti_torch_{kind}_{name}")
    if address is None:
        raise LookupError(f"torch's functions in C know no {value}")
    return int(ctypes.CFUNCTYPE(ctypes.c_int32)(address)())


@functools.cache
def device_numbers(device: torch.device) -> tuple[int, int]:
    """torch's number of a kind of device, and the index (-1 without one), as its functions in C take them."""
    address = symbol_address(f"aoti_torch_device_type_{device.type}")
    if address is None:
        raise LookupError(f"torch's functions in C know no {device.type}")
    return int(ctypes.CFUNCTYPE(ctypes.c_int32)(address)()), -1 if device.index is None else device.index


def device_word(device: torch.device) -> int:
    """A device as an operator takes it that is called by name: the index in the lower half of a word."""
    kind, index = device_numbers(device)
    return kind << 32 | index & 0xFFFFFFFF


@functools.cache
def is_called_by_name(operator: torch._ops.OpOverload, may_log: bool) -> bool:
    """Whether an operator can be called through torch's dispatcher: it is torch's and writes to no argument. Older
    versions of torch log the error of one that refuses its data: `may_log` says whether this may be. torch reads the
    results from the last one on by the types from the first one on: these have to be the same both ways."""
    schema = operator._schema
    silent = may_log or symbol_address("torch_exception_get_what") is not None
    types = [str(result.type) for result in schema.returns]
    can_be_read = types == types[::-1]
    return is_torchs(operator) and not schema.is_mutable and can_be_read and (silent or not checks_data(operator))


def bits(value: float) -> int:
    """A float64 as a word."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


def is_exact(value: float) -> bool:
    """Whether a number is the same as float64."""
    return isinstance(value, float) or abs(value) < 1 << 53
