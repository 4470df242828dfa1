"""Torch's global modes that a program may change while it is captured: read as data, put back, set by effects or by
calls in a graph.

Inference mode and the profiler's regions are not among them: they can only be entered and left.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

from bolide.tracing.traits import traits_of

_native: Any = torch._C
AUTOCAST_DEVICES = ("cpu", "cuda")
Setting = tuple[Callable[..., object], tuple[Any, ...]]


def _nesting() -> int:
    torch.autocast_increment_nesting()
    depth: int = torch.autocast_decrement_nesting()
    return depth


def set_nesting(depth: int) -> None:
    """How many autocast regions are entered."""
    for _ in range(_nesting(), depth):
        torch.autocast_increment_nesting()
    for _ in range(depth, _nesting()):
        torch.autocast_decrement_nesting()
    if depth == 0:
        torch.clear_autocast_cache()


def _pairs(names: str, getter: str, setter: str) -> list[tuple[Any, Any]]:
    """The functions of torch that read and write these states, as far as this torch has them."""
    named = [(getter.format(name), setter.format(name)) for name in names.split()]
    return [(getattr(_native, get), getattr(_native, put)) for get, put in named if hasattr(_native, put)]


FLAGS = (
    *_pairs("flash mem_efficient math cudnn overrideable", "_get_{}_sdp_enabled", "_set_sdp_use_{}"),
    *_pairs(
        "cudnn_enabled cudnn_benchmark cudnn_deterministic mkldnn_enabled mkldnn_deterministic nnpack_enabled "
        "sdp_priority_order float32_matmul_precision",
        "_get_{}",
        "_set_{}",
    ),
    *_pairs("multithreading_enabled", "_is_{}", "_set_{}"),
)
"""What chooses between kernels, and how the autograd engine runs."""


def settings() -> list[Setting]:
    """The calls that bring the present state about, always of the same setters in the same order."""
    calls: list[Setting] = [(_native._set_grad_enabled, (torch.is_grad_enabled(),))]
    for device in AUTOCAST_DEVICES:
        calls.append((torch.set_autocast_enabled, (device, torch.is_autocast_enabled(device))))
        calls.append((torch.set_autocast_dtype, (device, torch.get_autocast_dtype(device))))
    calls.append((torch.set_autocast_cache_enabled, (torch.is_autocast_cache_enabled(),)))
    calls.append((set_nesting, (_nesting(),)))
    return calls + shared()


def shared() -> list[Setting]:
    """As `settings`, of what is one for all threads (but for how autograd's engine runs)."""
    calls: list[Setting] = [(torch.set_default_dtype, (torch.get_default_dtype(),))]
    anomalies = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    calls.append((torch.set_anomaly_enabled, anomalies))
    calls += [(setter, (getter(),)) for getter, setter in FLAGS]
    return calls


SHARED = frozenset(setter for setter, _ in shared())


def own(settings: list[Setting], setters: Collection[object]) -> list[Setting]:
    """Those that are this thread's, and those of all threads that have one of `setters`."""
    return [setting for setting in settings if setting[0] not in SHARED or setting[0] in setters]


def engine_pass(*args: object, **kwargs: object) -> Sequence[Any]:
    """The gradients that autograd's engine computes, of traced tensors: as these have no data, anomaly mode does not
    look for NaN in them. Takes what the engine's own `run_backward` does."""
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    run: Callable[..., Sequence[Any]] = torch.autograd.Variable._execution_engine.run_backward
    if not all(before):
        return run(*args, **kwargs)
    torch.set_anomaly_enabled(True, False)
    try:
        return run(*args, **kwargs)
    finally:
        torch.set_anomaly_enabled(*before)


def changed(before: list[Setting], after: list[Setting]) -> list[Setting]:
    """The settings of `after` that differ from those of `before`."""
    return [new for old, new in zip(before, after, strict=True) if old[1] != new[1]]


def apply(wanted: list[Setting]) -> None:
    """Make these calls."""
    for setter, args in wanted:
        setter(*args)


# ---- stacks ----------------------------------------------------------------------------------------------------------

Stacks = tuple[tuple[TorchFunctionMode, ...], int, object]


def stacks() -> Stacks:
    """What is entered and can only be left: function modes, dispatch modes (how many), hooks of saved tensors."""
    functions = tuple(_native._get_function_stack_at(i) for i in range(_native._len_torch_function_stack()))
    return functions, _native._len_torch_dispatch_stack(), saved_tensor_hooks()


def functions_change() -> bool:
    """Whether function modes are entered under which torch's functions do something else than without: all but that of
    a default device which is the CPU."""
    return not all(map(_is_cpu_by_default, stacks()[0]))


def _is_cpu_by_default(mode: object) -> bool:
    return is_device_context(mode) and mode.device.type == "cpu"  # type: ignore[attr-defined]


def asked() -> tuple[bool, bool]:
    """Whether torch asks the classes of tensors what its functions return, and whether it asks nobody."""
    return _native._is_torch_function_enabled(), _native._is_torch_function_all_disabled()


class AskingMode(TorchFunctionMode):
    """Stands on torch's stack for a function mode of a program, whose code is interpreted when torch asks it.

    `evaluate(function, args, kwargs)` interprets a call; `device`: of the mode of a default device."""

    mode: object
    evaluate: Callable[..., object]
    device: torch.device


def asks_program() -> bool:
    """Whether torch would ask such a mode now."""
    count = _native._len_torch_function_stack()
    return bool(count) and isinstance(_native._get_function_stack_at(count - 1), AskingMode)


class _Aside(threading.local):
    """The function modes of this thread while they are not on torch's stack, outermost first."""

    functions: list[TorchFunctionMode] | None = None


_aside = _Aside()


def _entered_functions() -> list[TorchFunctionMode]:
    known = _aside.functions
    return list(stacks()[0]) if known is None else known


def functions_around() -> tuple[TorchFunctionMode, ...]:
    """The function modes that a program runs under, outermost first; () where none of them changes anything."""
    entered = tuple(_entered_functions())
    return () if all(map(_is_cpu_by_default, entered)) else entered


def count_functions() -> int:
    """How many function modes a program runs under."""
    return len(functions_around())


def function_mode_at(place: int) -> TorchFunctionMode:
    """One of these modes."""
    return _entered_functions()[place]


def is_device_context(mode: object) -> bool:
    """Whether a function mode is that of a default device."""
    cls = type(mode)
    return (cls.__module__, cls.__name__) == ("torch.utils._device", "DeviceContext")


def is_foreign(mode: object) -> bool:
    """Whether the code of a function mode is not captured: torch's own, and ours. That of a default device is answered,
    and the one that libraries enter to build masks of attention (`TransformGetItemToIndex`) is a program's like any."""
    if is_device_context(mode) or type(mode).__module__ == "torch._dynamo._trace_wrapped_higher_order_op":
        return False
    asked = type(mode).__torch_function__  # type: ignore[attr-defined]
    if type(asked) is not types.FunctionType:
        return True
    return asked.__module__ != "torch.overrides" and asked.__module__.partition(".")[0] in ("torch", "bolide")


def foreign_function_mode() -> str | None:
    """The name of a function mode around that is not captured, if there is one."""
    return next((type(mode).__qualname__ for mode in functions_around() if is_foreign(mode)), None)


def _taken_off() -> list[TorchFunctionMode]:
    taken = [_native._pop_torch_function_stack() for _ in range(_native._len_torch_function_stack())]
    return taken[::-1]


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """For the time of what is no part of a program: function modes do not see it."""
    if _aside.functions is not None:
        yield
        return
    _aside.functions = _taken_off()
    try:
        yield
    finally:
        functions, _aside.functions = _aside.functions, None
        for mode in functions:
            _native._push_on_torch_function_stack(mode)


@contextlib.contextmanager
def seen() -> Iterator[None]:
    """Function modes see again what they do not otherwise, inside of `unseen`."""
    functions, _aside.functions = _aside.functions, None
    for mode in functions or ():
        _native._push_on_torch_function_stack(mode)
    try:
        yield
    finally:
        if functions is not None:
            _aside.functions = _taken_off()


def enter_functions(kept: int, *entered: TorchFunctionMode) -> None:
    """Leave all function modes but for the outermost `kept` ones, and enter others."""
    functions = [*_entered_functions()[:kept], *entered]
    if _aside.functions is not None:
        _aside.functions = functions
        return
    _taken_off()
    for mode in functions:
        _native._push_on_torch_function_stack(mode)


def saved_tensor_hooks() -> Any:
    """The innermost pair of functions that saved tensors go through, or None."""
    return _native._autograd._top_saved_tensors_default_hooks(False)


Factory = Callable[[], object]
HookSetting = tuple[Factory | None, bool]  # what is called to capture a pass, and whether sizes are symbolic


class _Depth(threading.local):
    here = 0


class _Hook:
    """The hook of torch's engine that captures backward passes, which is one for the process. While a thread is inside
    of this context, no pass is captured: the first thread that comes switches the hook off, the last that goes on.

    From where the engine looks for the hook until it has called it, nothing may be changed: see `hold`.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may compile at any time
        self.off = 0  # how many are inside
        self.wanted: HookSetting = (None, False)  # where nobody is
        self.depth = _Depth()

    def put(self, factory: Factory | None, dynamic: bool) -> HookSetting:
        """What captures from now on (None: nothing does), and what did before."""
        with self.lock:
            before = self.wanted if self.off else _set_hook(factory, dynamic)
            self.wanted = factory, dynamic
            return before

    def hold(self) -> bool:
        """Whether the next pass is captured. If so nobody changes that until `let_go`; only the engine may run."""
        self.lock.acquire()
        if not self.off and self.wanted[0] is not None:
            return True
        self.lock.release()
        return False

    def let_go(self) -> None:
        self.lock.release()

    @property
    def off_here(self) -> bool:
        """Whether this thread is inside."""
        return self.depth.here > 0

    def __enter__(self) -> None:
        with self.lock:
            if not self.off:
                self.wanted = _set_hook(None, False)
            self.off += 1
        self.depth.here += 1

    def __exit__(self, *error: object) -> None:
        self.depth.here -= 1
        with self.lock:
            self.off -= 1
            if not self.off:
                _set_hook(*self.wanted)


def _set_hook(factory: Factory | None, dynamic: bool) -> HookSetting:
    before: HookSetting = _native._dynamo.compiled_autograd.set_autograd_compiler(factory, dynamic)
    return before


uncaptured = _Hook()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """For the time of compiling. Hooks of saved tensors are put aside: they are for what the compiled program will
    save; so are function modes, which the captured program asks itself. Signal handlers run outside of any recording.
    A recording that has failed halfway out is left. Backward passes are not captured from the engine."""
    aside: list[Any] = []
    dispatch = _native._len_torch_dispatch_stack()
    while (pair := saved_tensor_hooks()) is not None:
        aside.append(pair)
        _native._autograd._pop_saved_tensors_default_hooks()
    try:
        with handlers_apart(), uncaptured, unseen():
            functions = _native._len_torch_function_stack()
            try:
                yield
            finally:
                while _native._len_torch_function_stack() > functions:
                    _native._pop_torch_function_stack()
    finally:
        while _native._len_torch_dispatch_stack() > dispatch:
            _native._pop_torch_dispatch_stack(None)
        for pair in reversed(aside):
            _native._autograd._push_saved_tensors_default_hooks(*pair)


def may_draw(func: OpOverload) -> bool:
    """Whether an operation may draw from torch's own generator."""
    return func.namespace != "aten" or traits_of(func).seeded


@contextlib.contextmanager
def random_kept() -> Iterator[None]:
    """Torch's random numbers go on afterwards where they were. The generator is every thread's, so this is for short
    times only: what others draw meanwhile comes again."""
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


class Interrupted(KeyboardInterrupt):
    """A handler of a signal has raised `error`, which nobody in between may take for one of its own."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__()


@contextlib.contextmanager
def handlers_apart() -> Iterator[None]:
    """While it is active, what handlers of signals do with tensors is done for real: they run in between, wherever the
    main thread is, and are no part of a program that is recorded there. What they raise comes out as `Interrupted`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    keys = _native._dispatch_tls_local_include_set(), _native._dispatch_tls_local_exclude_set()
    wrapped = {}
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            wrapped[number] = handler, functools.partial(_apart, handler, keys)
            signal.signal(number, wrapped[number][1])
    try:
        yield
    finally:
        for number, (handler, ours) in wrapped.items():
            if signal.getsignal(number) is ours:
                signal.signal(number, handler)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Handlers are apart, and what they raise comes out as it is."""
    try:
        with handlers_apart():
            yield
    except Interrupted as interrupted:
        raise interrupted.error from None


def _apart(handler: Callable[..., Any], keys: tuple[Any, Any], *args: Any) -> Any:
    functions = [_native._pop_torch_function_stack() for _ in range(_native._len_torch_function_stack())]
    dispatch = [_native._pop_torch_dispatch_stack(None) for _ in range(_native._len_torch_dispatch_stack())]
    try:
        with _native._ForceDispatchKeyGuard(*keys):  # it may have come inside of an operation
            return handler(*args)
    except Exception as error:
        raise Interrupted(error) from error
    finally:
        for mode in reversed(dispatch):
            _native._push_on_torch_dispatch_stack(mode)
        for mode in reversed(functions):
            _native._push_on_torch_function_stack(mode)


def leave_to(wanted: Stacks) -> None:
    """Leave function modes and hooks of saved tensors entered since, and enter again those that were left."""
    functions, _, hooks = wanted
    while stacks()[0] != functions[: _native._len_torch_function_stack()]:
        _native._pop_torch_function_stack()
    for mode in functions[_native._len_torch_function_stack() :]:
        _native._push_on_torch_function_stack(mode)
    while saved_tensor_hooks() not in (hooks, None):
        _native._autograd._pop_saved_tensors_default_hooks()
