"""Guards: from data to readable text, and to the Python expressions that check them.

Every guard becomes one or more expressions that are true when it holds; an expression that raises counts as false. The
compiled check of an entry is their conjunction (`conditions`), with each source read once; `asked.py` asks guards one
by one, for the first calls of an entry, and to say which failed and why.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import BuiltinMethodType, MethodType
from typing import Any, TypeGuard

import torch
from torch.autograd import forward_ad
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.nn.parameter import is_lazy

from bolide.dynamo.config import config
from bolide.dynamo.program import sources
from bolide.dynamo.program.captured import ClassAttribute, GlobalState, Guard, Relation, Source, TensorGuard
from bolide.dynamo.program.kinds import MISSING, is_constant, ordered_keys, same_constant, steering
from bolide.dynamo.state import state
from bolide.support.caches import by_class
from bolide.support.errors import Unsupported, UserFrame
from bolide.symbolic import Expr
from bolide.tracing.modes import AUTOCAST_DEVICES, count_functions, foreign_function_mode, unseen

TENSOR_TYPES = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})


def _dunders(text: str) -> set[str]:
    return {f"__{name}__" for name in text.split()}


#: What a class may have of its own that no operation asks for.
_PLAIN_PARTS = vars(object).keys() - _dunders("getattribute setattr delattr class eq hash") | _dunders(
    "module annotations annotate_func annotations_cache firstlineno static_attributes dict weakref parameters deepcopy "
    "torch_function torch_dispatch"
)
_NO_OVERRIDES = (torch._C._disabled_torch_function_impl, torch._C._disabled_torch_dispatch_impl)


@by_class
def is_plain_subclass(cls: type) -> bool:
    """Whether a class only adds to `torch.Tensor` or `torch.nn.Parameter`: operations on its instances are those on any
    tensor."""
    if (cls.__torch_function__, cls.__torch_dispatch__) != _NO_OVERRIDES:  # type: ignore[attr-defined]
        return False
    own = [base for base in cls.__mro__ if base not in TENSOR_TYPES and not base.__module__.startswith("torch")]
    names = {name for base in own if base is not object for name in vars(base)}
    return not any(hasattr(torch.nn.Parameter, name) for name in names - _PLAIN_PARTS)


# ---- making the expected values --------------------------------------------------------------------------------------


def tensor_guard(tensor: torch.Tensor, where: UserFrame | None = None) -> TensorGuard:
    """What has to stay true of `tensor`. Raises Unsupported (kind ``input``) for a tensor that cannot be compiled."""
    refused = refusal(tensor)
    if refused is not None:
        raise Unsupported(refused[0], where, refused[1], kind="lazy" if is_lazy(tensor) else "input")
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    return TensorGuard(type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, tensor.is_leaf, shape, stride)


def tensor_fits(tensor: torch.Tensor, expected: TensorGuard) -> bool:
    """Whether a ``tensor`` guard holds, but for its symbolic sizes."""
    if type(tensor) is not expected.cls or _refusal(tensor) is not None:
        return False
    try:
        leaf = tensor.is_leaf if expected.requires_grad and expected.cls is not torch.nn.Parameter else expected.leaf
    except RuntimeError:  # see `_without_history`
        return False
    facts = (tensor.dtype, tensor.device, tensor.requires_grad, leaf, tensor.dim())
    wanted = (expected.dtype, expected.device, expected.requires_grad, expected.leaf, len(expected.shape))
    if facts != wanted:
        return False
    sizes = zip((*tensor.shape, *tensor.stride()), (*expected.shape, *expected.stride))
    return all(size == fixed for size, fixed in sizes if isinstance(fixed, int))


def refusal(tensor: torch.Tensor) -> tuple[str, str] | None:
    """Why a tensor cannot be an input now, and what to do; None if it can."""
    return _refusal(tensor) or _without_history(tensor)


def refusals(arguments: Iterable[object]) -> tuple[tuple[int, str], ...]:
    """Which of the tensors among arguments cannot be inputs now, and why; also of those in containers, and those whose
    methods are arguments."""
    parts = [part for argument in arguments for part in _parts(argument)]
    with unseen():
        found = [(place, refusal(part)) for place, part in enumerate(parts) if _is_tensor(part)]
    return tuple((place, refused[0]) for place, refused in found if refused is not None)


def _parts(argument: object) -> Iterable[object]:
    if type(argument) is dict:
        return argument.values()
    if type(argument) is tuple or type(argument) is list:
        return argument
    return [argument.__self__ if isinstance(argument, (BuiltinMethodType, MethodType)) else argument]


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return issubclass(type(value), torch.Tensor)


OF_NESTED = "compile what is done with its values() or with a padded tensor"
"""What to do where a program is given a nested tensor, or makes one."""


def _refusal(tensor: torch.Tensor) -> tuple[str, str] | None:
    """Why a tensor cannot be an input, and what to do; None if it can."""
    cls = type(tensor)
    if cls not in TENSOR_TYPES and not is_plain_subclass(cls):
        return f"an argument is a {cls.__name__}, a subclass of Tensor", "call it outside the compiled function"
    if tensor.is_nested:
        return "an argument is a nested tensor", OF_NESTED
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        return f"an argument is a {kind} tensor", "convert it to a dense tensor first"
    if tensor.is_quantized:
        return f"an argument is quantised ({tensor.dtype})", "dequantise it first"
    if tensor.is_conj() or tensor.is_neg():
        return "an argument is a conjugate or negated view that is not computed yet", "call resolve_conj/resolve_neg"
    if tensor.requires_grad and tensor.is_inference():
        return "an argument is an inference tensor that requires grad, which it never gets", "detach it"
    return None


def _without_history(tensor: torch.Tensor) -> tuple[str, str] | None:
    """As `_refusal`: one of several views that were made at once has no history any more when it was written to."""
    try:
        _ = tensor.is_leaf
    except RuntimeError:
        return "an argument is one of several views, as of split, that were written to", "write to their base"
    return None


def autocast_state() -> tuple[tuple[str, torch.dtype], ...]:
    """(device type, dtype) of each device type for which autocast is on."""
    if not torch._C._is_any_autocast_enabled():
        return ()
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in AUTOCAST_DEVICES if torch.is_autocast_enabled(kind))


def global_state() -> GlobalState:
    """The state now."""
    return GlobalState(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast_state(),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        count_functions(),
    )


def busy() -> str | None:
    """Why nothing can be captured or run compiled in the present state of this thread; None when it can. `conditions`
    of a ``global_state`` guard fail in the same states.
    """
    if state.disabled:
        return "bolide.disable is in force"
    if torch._C._len_torch_dispatch_stack():
        return "a torch dispatch mode is active"
    foreign = foreign_function_mode()
    if foreign is not None:
        return f"a torch function mode is active whose code is not captured, {foreign}"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a torch.func transform is active"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit is tracing"
    if is_fx_symbolic_tracing():
        return "torch.fx is tracing"
    return None


def without_data(arguments: Iterable[object]) -> bool:
    """Whether torch only describes what is computed: a FakeTensorMode is active, or an argument is a tensor of one, or
    `torch.func.functionalize` is at work. There is nothing to compile then."""
    levels = torch._C._functorch.get_interpreter_stack()
    if levels and all(level.key() == torch._C._functorch.TransformType.Functionalize for level in levels):
        return True
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if fake is None:
        return False
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode is not None or any(issubclass(type(argument), fake.FakeTensor) for argument in arguments)


def nested_trace() -> bool:
    """Whether a tracer of torch's is at work inside which calling a compiled function is an error."""
    if torch._C._get_tracing_state() is not None:
        return config.error_on_nested_jit_trace
    return is_fx_symbolic_tracing() and config.error_on_nested_fx_trace


# ---- text ------------------------------------------------------------------------------------------------------------


def text(guard: Guard) -> str:
    """One line a user can read, e.g. ``x.shape == (2, 3)``."""
    name = sources.text(guard.source) if guard.source is not None else ""
    expected = guard.expected
    match guard.kind:
        case "type":
            return f"type({name}) is {brief(expected)}"
        case "is":
            return f"{name} is {brief(expected)}"
        case "equals":
            return f"{name} == {brief(expected)}"
        case "tensor":
            symbols = {symbol: sources.text(read) for symbol, read in expected.symbols}
            shape, stride = _ints(expected.shape, symbols), _ints(expected.stride, symbols)
            facts = f"{str(expected.dtype).removeprefix('torch.')}[{shape[1:-1].rstrip(',')}], stride {stride}"
            grad = ", requires grad" if expected.requires_grad else ""
            return f"{name}: {expected.cls.__name__} {facts}, {expected.device}{grad}"
        case "length":
            return f"len({name}) == {expected}"
        case "dict_keys":
            return f"list({name}) == {brief(expected)}"
        case "has_key":
            return f"({sources.shown(expected[0])} in {name}) is {expected[1]}"
        case "has_attr":
            return f"hasattr({name}, {expected[0]!r}) is {expected[1]}"
        case "class_attr":
            held = name if expected.after is None else f"super({expected.after.__qualname__}, {name})"
            if expected.value is MISSING:
                return f"{held} has no attribute {expected.name!r}"
            return f"{held}.{expected.name} is {brief(expected.value)}"
        case "same":
            return f"{name} is {sources.text(expected)}"
        case "distinct":
            named = list(map(sources.text, expected))
            return " is not ".join(named) if len(named) == 2 else f"{', '.join(named)} are different objects"
        case "not_aliased":
            return f"no storage shared among {', '.join(map(sources.text, expected))}"
        case "global_state":
            return f"global state: {expected}"
        case "relation":
            symbols = {name: sources.text(read) for name, read in expected.symbols}
            return sources.with_symbols(expected.condition, symbols)
        case "integer":
            return " and ".join([f"type({name}) is int", *_within(name, *expected)])
        case _:
            raise AssertionError(guard.kind)


def brief(value: object, limit: int = 80) -> str:
    """A value in a text of one line."""
    if isinstance(value, type):
        return value.__qualname__
    shown = sources.shown(value)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


# ---- expressions -----------------------------------------------------------------------------------------------------


def read_sources(guard: Guard) -> list[Source]:
    """The sources a guard reads, in the order its expressions read them; twice if twice."""
    if guard.kind in ("not_aliased", "distinct"):
        return list(guard.expected)
    if guard.kind == "relation":
        return [source for _, source in guard.expected.symbols]
    if guard.source is None:
        return []
    match guard.kind:
        case "same":
            return [guard.source, guard.expected]
        case "tensor":
            return [guard.source, *_symbolic_reads(guard.source, guard.expected), guard.source]
        case "equals" | "integer":
            return [guard.source, guard.source]
        case _:
            return [guard.source]


def conditions(guard: Guard, reader: sources.Reader) -> list[str]:
    """Expressions, to be evaluated in this order and all true."""
    constant = reader.namespace.constant
    if guard.kind == "global_state":
        return _global_conditions(guard.expected, constant)
    if guard.kind == "not_aliased":
        read = ", ".join(map(reader.read, guard.expected))
        return [f"{constant(disjoint, 'disjoint')}(({read},))"]
    if guard.kind == "distinct":
        objects = [reader.read(source) for source in guard.expected]
        if len(objects) == 2:
            return [" is not ".join(objects)]
        return [f"{constant(distinct, 'distinct')}(({', '.join(objects)}))"]
    if guard.kind == "relation":
        numbers_read = {name: reader.read(source) for name, source in guard.expected.symbols}
        condition = sources.with_functions(guard.expected.condition, reader.namespace)
        return [sources.with_symbols(condition, numbers_read)]
    source = guard.source
    assert source is not None
    value = reader.read(source)
    expected = guard.expected
    match guard.kind:
        case "type":
            return [f"{constant(type, 'type')}({value}) is {constant(expected, expected.__name__)}"]
        case "is":
            return [f"{value} is {reader.namespace.reference(expected, 'o')}"]
        case "same":
            return [f"{value} is {reader.read(expected)}"]
        case "length":
            return [f"{constant(len, 'len')}({value}) == {expected}" if expected else f"not {value}"]
        case "dict_keys":
            plain = all(type(key) is str for key in expected)
            helper = "" if plain else constant(same_constant, "same")
            keys = f"[*{value}]" if reader.classes.get(source) is dict else f"{constant(ordered_keys, 'keys')}({value})"
            wanted = constant(list(expected), "k")
            return [f"{keys} == {wanted}" if plain else f"{helper}({keys}, {wanted})"]
        case "has_key":
            contains = constant(dict.__contains__, "contains")
            key = constant(expected[0], "k")
            test = f"{key} in {value}" if reader.classes.get(source) is dict else f"{contains}({value}, {key})"
            return [test if expected[1] else f"not ({test})"]
        case "has_attr":
            test = f"{constant(hasattr, 'hasattr')}({value}, {expected[0]!r})"
            return [test if expected[1] else f"not {test}"]
        case "class_attr":
            after = "" if expected.after is None else f", {constant(expected.after, expected.after.__name__)}"
            attribute = f"{constant(steering, 'class_attribute')}({value}, {expected.name!r}{after})"
            return [f"{attribute} is {reader.namespace.reference(expected.value, 'o')}"]
        case "equals":
            return _equals_conditions(value, lambda: reader.again(source), expected, constant)
        case "tensor":
            return _tensor_conditions(value, source, expected, reader)
        case "integer":
            exact = f"{constant(type, 'type')}({value}) is {constant(int, 'int')}"
            return [exact, *_within(reader.again(source), *expected)]
        case _:
            raise AssertionError(guard.kind)


Constant = Callable[..., str]


def _equals_conditions(value: str, again: Callable[[], str], expected: object, constant: Constant) -> list[str]:
    """Equal in type and value, deeply; floats by their bits, so that -0.0 is not 0.0 and nan is nan."""
    if expected is None or expected is True or expected is False or expected is ...:
        return [f"{value} is {expected!r}"]
    kind = type(expected)
    if kind in (int, str, bytes) or (kind is float and expected == expected):
        exact = [f"{constant(type, 'type')}({value}) is {constant(kind, kind.__name__)}"]
        exact.append(f"{again()} == {constant(expected)}")
        if kind is float and expected == 0.0:
            sign = math.copysign(1.0, expected)
            exact.append(f"{constant(math.copysign, 'copysign')}(1.0, {again()}) == {sign}")
        return exact
    if kind in (torch.dtype, torch.layout, torch.memory_format):
        return [f"{value} is {constant(expected)}"]
    wanted, same = constant(expected), constant(same_constant, "same")
    if is_constant(expected):
        return [f"({value} is {wanted} or {same}({again()}, {wanted}))"]
    return [f"{same}({value}, {wanted})"]


def _tensor_conditions(value: str, source: Source, expected: TensorGuard, reader: sources.Reader) -> list[str]:
    """The class, then what differs most often, then the rest."""
    constant = reader.namespace.constant
    exact = f"{constant(type, 'type')}({value}) is {constant(expected.cls, expected.cls.__name__)}"
    again = reader.again(source)
    shape, stride = _layout_conditions(again, source, expected, reader)
    tests = [
        exact,
        *shape,
        f"{again}.dtype is {constant(expected.dtype, 'dtype')}",
        f"{again}.requires_grad" if expected.requires_grad else f"not {again}.requires_grad",
        stride,
    ]
    cpu = expected.device.type == "cpu"
    tests.append(f"{again}.is_cpu" if cpu else f"{again}.device == {constant(expected.device, 'device')}")
    if expected.cls is not torch.nn.Parameter:
        tests.append(f"not {again}.is_neg()")
        if expected.requires_grad:
            tests.append(f"{again}.is_leaf" if expected.leaf else f"not {again}.is_leaf")
    if expected.dtype.is_complex:
        tests.append(f"not {again}.is_conj()")
    return tests


def shape_source(source: Source) -> Source:
    """The shape of the tensor at `source`."""
    return Source("attr", source, "shape")


def size_source(source: Source, dim: int) -> Source:
    """One size of the tensor at `source`."""
    return Source("item", shape_source(source), dim)


def stride_source(source: Source, dim: int) -> Source:
    """One stride of the tensor at `source`."""
    return Source("apply", source, (dim,), torch.Tensor.stride)


def _symbolic_reads(source: Source, expected: TensorGuard) -> list[Source]:
    """What `_layout_conditions` reads, in its order."""
    if not expected.symbols:
        return []
    own = [size_source(source, dim) for dim, size in enumerate(expected.shape) if isinstance(size, Expr)]
    return [shape_source(source), *own, *(read for _, read in expected.symbols)]


def _layout_conditions(
    again: str, source: Source, expected: TensorGuard, reader: sources.Reader
) -> tuple[list[str], str]:
    """Conditions on the shape and the stride of a tensor. What is where its symbol is read is within the
    symbol's bounds, other symbolic ones are equal to theirs."""
    if not expected.symbols:
        return [f"{again}.shape == {_ints(expected.shape)}"], f"{again}.stride() == {_ints(expected.stride)}"
    tests = [f"{reader.namespace.constant(len, 'len')}({reader.read(shape_source(source))}) == {len(expected.shape)}"]
    shape = reader.again(shape_source(source))
    own: list[tuple[Expr, Source, str]] = []
    for dim, size in enumerate(expected.shape):
        if isinstance(size, Expr):
            place = size_source(source, dim)
            own.append((size, place, reader.read(place)))
        else:
            tests.append(f"{shape}[{dim}] == {size}")
    values = {name: (read, reader.read(read)) for name, read in expected.symbols}
    texts = {name: text for name, (_, text) in values.items()}
    for size, place, text in own:
        read = values.get(size.text(), (None, ""))[0]
        tests += _within(text, *size.bounds()) if read == place else [f"{text} == {_ints([size], texts)[1:-2]}"]
    for dim, step in enumerate(expected.stride):
        if isinstance(step, Expr) and stride_source(source, dim) == values.get(step.text(), (None,))[0]:
            tests += _within(values[step.text()][1], *step.bounds())
    return tests, f"{again}.stride() == {_ints(expected.stride, texts)}"


def _within(value: str, lo: int | None, hi: int | None) -> list[str]:
    if lo is not None:
        return [f"{lo} <= {value} <= {hi}" if hi is not None else f"{value} >= {lo}"]
    return [f"{value} <= {hi}"] if hi is not None else []


def _ints(values: Sequence[int | Expr], symbols: Mapping[str, str] | None = None) -> str:
    texts = [sources.with_symbols(v.text(), symbols or {}) if isinstance(v, Expr) else repr(v) for v in values]
    return f"({', '.join(texts)}{',' if len(values) == 1 else ''})"


def disjoint(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no two of `tensors` share a storage; empty ones share nothing."""
    addresses = [address for t in tensors if (address := t.untyped_storage().data_ptr())]
    return len(set(addresses)) == len(addresses)


def distinct(values: Sequence[object]) -> bool:
    """Whether no two of `values` are the same object."""
    return len({id(value) for value in values}) == len(values)


def numbers(tensor: torch.Tensor) -> str:
    """What is in a tensor, as text."""
    return str(tensor.tolist()) if tensor.data_ptr() else ""


def storage_offset(tensor: torch.Tensor) -> int:
    """Where the elements of a tensor begin in its storage."""
    with torch._C.DisableTorchFunctionSubclass():
        return int(tensor.storage_offset())


def is_of_data(guard: Guard) -> bool:
    """Whether a guard compares what is in a tensor (see `input_data`)."""
    source = guard.source
    return source is not None and source.kind == "apply" and source.obj is numbers


def _global_conditions(expected: GlobalState, constant: Constant) -> list[str]:
    """`global_state() == expected and busy() is None`, in the cheapest calls, but for function modes, which come
    first (`native.check`)."""

    def flag(function: Callable[[], object], wanted: bool, hint: str) -> str:
        return f"{'' if wanted else 'not '}{constant(function, hint)}()"

    native = torch._C
    tests = [
        flag(native.is_grad_enabled, expected.grad, "grad_enabled"),
        f"not {constant(state, 'state')}.disabled",
        flag(native._len_torch_dispatch_stack, False, "dispatch_modes"),
        flag(native._is_any_autocast_enabled, bool(expected.autocast), "any_autocast"),
        flag(native.is_inference_mode_enabled, expected.inference, "inference_mode"),
        f"{constant(native.get_default_dtype, 'default_dtype')}() is {constant(expected.default_dtype, 'dtype')}",
        flag(native._get_deterministic_algorithms, expected.deterministic, "deterministic"),
        flag(native._get_deterministic_algorithms_warn_only, expected.only_warns, "only_warns"),
        f"{constant(native._functorch.peek_interpreter_stack, 'transforms')}() is None",
        f"{constant(forward_ad, 'forward_ad')}._current_level < 0",
        f"{constant(native._get_tracing_state, 'jit_tracing')}() is None",
        flag(is_fx_symbolic_tracing, False, "fx_tracing"),
    ]
    if expected.autocast:
        tests.append(f"{constant(autocast_state, 'autocast')}() == {constant(expected.autocast, 'autocast')}")
        tests.append(flag(torch.is_autocast_cache_enabled, expected.autocast_cache, "autocast_cache"))
    return tests


# ---- order, and failures ---------------------------------------------------------------------------------------------


def prepare(guards: Iterable[Guard], now: GlobalState) -> list[Guard]:
    """Distinct guards in the order of checking: what the caller passed first, then the global state, then the rest as
    it was read.

    A ``global_state`` guard without a snapshot gets `now`; there is always exactly one.
    """
    arguments: list[Guard] = []
    rest: list[Guard] = []
    seen: set[tuple[object, ...]] = set()
    surroundings = now
    for guard in guards:
        if guard.kind == "global_state":
            surroundings = guard.expected or now
            continue
        key = (guard.kind, guard.source, _identity(guard))
        if key not in seen and not (guard.kind == "same" and guard.source == guard.expected):
            seen.add(key)
            source = guard.source
            near = source is not None and (
                source.kind == "local"
                or (source.base is not None and source.base.kind == "local" and source.kind not in ("apply", "attr"))
            )  # an attribute may be computed by then: what its class has comes first
            kinds = ("type", "tensor", "length", "dict_keys", "equals", "integer")
            (arguments if near and guard.kind in kinds else rest).append(guard)
    return [*arguments, Guard(None, "global_state", surroundings), *rest]


def _identity(guard: Guard) -> Any:
    if isinstance(guard.expected, ClassAttribute):
        return guard.expected.name, guard.expected.after
    known = guard.kind == "distinct" or isinstance(guard.expected, (Source, TensorGuard, Relation))
    return guard.expected if known else id(guard.expected)


def classes_of(guards: Iterable[Guard]) -> dict[Source, type]:
    """The classes that sources are guarded to have exactly."""
    return {g.source: g.expected for g in guards if g.kind == "type" and g.source is not None}
