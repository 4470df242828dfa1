"""State of torch and of the interpreter that is no value of the program's: how many threads there are, which kernels
may be used, how deep recursion may go; calls of modules. The answer is guarded; what may not change
inside of captured code is refused where it is set.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, handle_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_each, intercept_table, refuse
from bolide.dynamo.library.standard import ask
from bolide.dynamo.machine import operations
from bolide.dynamo.machine.attributes import load_attribute
from bolide.dynamo.machine.calls import NATIVE, SWITCHED, intercept
from bolide.dynamo.machine.interpreter import Call, FunctionModes, Machine
from bolide.dynamo.machine.stand_ins import class_of, makes_tensors, overridden, overrides
from bolide.dynamo.polyfills import torch_functions
from bolide.dynamo.program.captured import Effect, Recipe, Source
from bolide.dynamo.program.kinds import MISSING, Watch
from bolide.dynamo.torch_calls.autograd import refuse_for_real
from bolide.dynamo.torch_calls.masks import classes_asked
from bolide.dynamo.world.outside import Outside, attribute_source
from bolide.dynamo.world.rebuild import Rebuilder
from bolide.tracing import DataDependent, TracedTensor, modes


@intercept_each((torch.nn.Parameter, torch.nn.Buffer))
def _make(cls: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    vm.trace.where = vm.where()
    return cls(*args, **kwargs)


@answers(torch.is_inference, torch.Tensor.is_inference, TracedTensor.is_inference)
def _is_inference(vm: Machine, tensor: object) -> object:
    if type(tensor) is not TracedTensor:
        return NATIVE
    return vm.world.inputs.is_inference(tensor.group, vm.trace.input_of(tensor.group))


@answers(torch.Tensor.untyped_storage, TracedTensor.untyped_storage)
def _storage(vm: Machine, tensor: object) -> object:
    if type(tensor) is not TracedTensor:
        return NATIVE
    raise DataDependent("Tensor.untyped_storage", vm.where(), "data_pointer")


refuse(
    *(getattr(torch.cuda, name) for name in ("get_rng_state", "set_rng_state", "manual_seed", "manual_seed_all")),
    *(torch.set_default_device, torch.set_num_threads, torch.use_deterministic_algorithms, torch.save, torch.load),
    reason="torch's global state is read or changed",
    kind="global_state",
    remedy="do this outside the compiled function",
)

HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
GLOBAL_HOOKS = [getattr(torch.nn.modules.module, f"_global{name}") for name in HOOKS]
_CALL_IMPL: Any = torch.nn.Module._call_impl


@intercept(torch.nn.Module.__call__)
def _module_called(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    implementation = vm.world.classes.lookup(class_of(args[0]), "_call_impl")
    return _module_call(vm, args, kwargs) if implementation is _CALL_IMPL else Call(implementation, args, kwargs)


@intercept(torch.nn.Module._call_impl)
def _module_call(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """`Module.__call__` without hooks is a call of `forward`; with hooks, torch's own code is interpreted."""
    module = args[0]
    if type(module) is Outside and issubclass(module.cls, torch.jit.ScriptModule):
        name = module.cls.__name__
        reason, remedy = f"a call of an outside {name} object", "compile the module that it was made from"
        raise vm.unsupported(reason, "outside_object", remedy, f"{name}(...)")
    if type(module) is Outside and vm.world.symbols.history.called_for_real:
        refuse_for_real(vm, Watch(module.real))
    if type(module) is Outside and not _has_global_hooks(vm):
        if vm.world.guards.first("global hooks"):
            for hooks in GLOBAL_HOOKS:
                vm.world.guards.add(Source("object", None, None, hooks), "length", 0)
        hooks = [module.namespace.peek(name) for name in HOOKS]
        if not any(hook is MISSING or operations.truth(vm, hook) for hook in hooks):
            forward = load_attribute(vm, module, "forward")
            if type(forward) is not Call:
                return Call(forward, args[1:], kwargs)
    vm.enter(_CALL_IMPL, args, kwargs)
    return SWITCHED


# What TorchScript takes as no longer None; None itself is refused, in eager.
answers(torch.jit._script._unwrap_optional)(lambda vm, x: NATIVE if x is None else x)


def _has_global_hooks(vm: Machine) -> bool:
    """Whether there are hooks for all modules, those included that the program has put there."""
    overlays = [vm.world.journal.overlay_of.get(id(hooks)) for hooks in GLOBAL_HOOKS]
    return any(hooks if known is None else known.length() for hooks, known in zip(GLOBAL_HOOKS, overlays))


Reader = Callable[..., Any]
Function = Callable[..., object]

#: How a state is read, and what a program sets it with (None: it cannot).
READERS: dict[Reader, Reader | None] = {
    sys.getrecursionlimit: None,
    torch.get_num_threads: None,
    torch.get_num_interop_threads: None,
    torch.cuda.current_device: None,
    torch.backends.mha.get_fastpath_enabled: None,
    torch.is_warn_always_enabled: None,
    torch.__future__.get_swap_module_params_on_conversion: None,
    torch.__future__.get_overwrite_module_params_on_conversion: None,
    torch.is_anomaly_enabled: torch.set_anomaly_enabled,
    torch.is_anomaly_check_nan_enabled: torch.set_anomaly_enabled,
    torch.get_autocast_dtype: torch.set_autocast_dtype,
    torch.is_autocast_cache_enabled: torch.set_autocast_cache_enabled,
    **dict(modes.FLAGS),
}
_SDP = ("flash", "mem_efficient", "math", "cudnn")
#: The functions of torch that only ask one of these.
BEHIND: dict[Reader, Reader] = {
    torch.get_float32_matmul_precision: torch._C._get_float32_matmul_precision,
    **{
        getattr(torch.backends.cuda, f"{name}_sdp_enabled"): getattr(torch._C, f"_get_{name}_sdp_enabled")
        for name in _SDP
    },
}


def read_state(vm: Machine, reader: Reader, args: list[Any]) -> Any:
    """What a reader says. It is guarded unless the program itself has changed it."""
    value = reader(*args)
    changed = modes.changed(vm.modes.before, modes.settings()) if READERS.get(reader) else []
    own = {setter for setter, _ in modes.own(changed, vm.modes.setters)}
    key = (reader, *args)
    if READERS.get(reader) not in own and vm.world.guards.first(key):
        vm.world.guards.add(Source("apply", Source("object", None, None, reader), tuple(args), ask), "equals", value)
    return value


def rely_on_current_device(vm: Machine) -> None:
    """The program says "cuda" without a number, which is the current device."""
    if torch.cuda.is_available():
        read_state(vm, torch.cuda.current_device, [])


@intercept_table({**{reader: reader for reader in READERS}, **BEHIND})
def _read(function: object, reader: Reader, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return read_state(vm, reader, [*args, *kwargs.values()])


@intercept(torch.backends.ContextProp.__get__)
def _read_flag(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """An attribute such as `torch.backends.cudnn.deterministic`."""
    flag = args[0].real if type(args[0]) is Outside else args[0]
    return read_state(vm, flag.getter, [])


@answers(torch.autocast)
def _autocast(vm: Machine, device_type: object = None, dtype: object = None, *_: object, **options: object) -> object:
    """Without a dtype, autocast takes the one that is set for the device."""
    if dtype is None and type(device_type) is str:
        read_state(vm, torch.get_autocast_dtype, [device_type])
    return NATIVE


# Compiled code runs under no dispatch modes, and the program enters its own outside of what is captured.
intercept(torch._C._len_torch_dispatch_stack)(lambda vm, args, kwargs: 0)


# ---- function modes: torch asks them, by stand-ins on its stack; their code is interpreted ---------------------------


class _Asked(modes.AskingMode):
    """Stands for a mode of the program's."""

    def __torch_function__(self, func: object, types: Iterable[type], args: Args = (), *words: object) -> object:  # type: ignore[assignment]
        return self.evaluate(
            torch_functions.ask_mode, [self.mode, func, classes_asked(func, types, args), args, *words]
        )


@functools.cache
def _asked_device(cls: type) -> type[modes.AskingMode]:
    """The class that stands for modes of this class of torch's, those of a default device: of what makes tensors, it
    says where."""

    def asked(self: modes.AskingMode, func: Function, _: object, args: Args, words: Kwargs | None = None) -> object:
        if not makes_tensors(func) or (words and words.get("device") is not None):
            return func(*args, **(words or {}))
        return self.evaluate(func, list(args), {**(words or {}), "device": self.device})

    return type(cls.__name__, (modes.AskingMode, cls), {"__init__": object.__init__, "__torch_function__": asked})


def _stand_in(vm: Machine, mode: object) -> TorchFunctionMode:
    is_device = modes.is_device_context(mode)
    stand_in = _asked_device(type(mode))() if is_device else _Asked()  # type: ignore[arg-type]
    stand_in.mode, stand_in.evaluate = mode, vm.evaluate
    if is_device:
        stand_in.device = mode.device  # type: ignore[attr-defined]
    return stand_in


FunctionModes.stand_in = staticmethod(_stand_in)  # type: ignore[assignment]


def enter_around(vm: Machine, around: Iterable[TorchFunctionMode]) -> list[object]:
    """The modes around the program are those that it begins with, which are guarded; their number is a part of the
    global state."""
    active = vm.modes.functions.active = [_around(vm, *item) for item in enumerate(around)]
    return active


def _around(vm: Machine, place: int, mode: TorchFunctionMode) -> object:
    source = Source("apply", Source("object", None, None, modes.function_mode_at), (place,), ask)
    if not modes.is_device_context(mode):
        return vm.world.wrap(mode, source)
    vm.world.guards.add(source, "type", type(mode))
    vm.world.guards.add(attribute_source(source, "device"), "equals", mode.device)  # type: ignore[attr-defined]
    return vm.world.identities.mirror(mode, source)


def function_mode_effects(rebuilder: Rebuilder, first: list[object], last: list[object]) -> list[Effect]:
    """What brings the modes that were active at the beginning to those at the end."""
    kept = next((place for place, (a, b) in enumerate(zip(first, last)) if a is not b), min(len(first), len(last)))
    if kept == len(first) == len(last):
        return []
    entered = map(rebuilder.recipe, last[kept:])
    call = Recipe("call", modes.enter_functions, (*rebuilder.constants(kept), *entered))
    return [Effect("call", None, None, call)]


@answers(torch._C._push_on_torch_function_stack)
def _push(vm: Machine, mode: object) -> None:
    real = mode.real if type(mode) is Outside else mode
    if modes.is_foreign(real):
        name = f"{type(real).__qualname__}.__enter__"
        reason = f"a function mode is entered whose code is not captured, {type(real).__qualname__}"
        raise vm.unsupported(reason, "context", operation=name)
    vm.modes.functions.active = [*vm.modes.functions.active, mode]


@answers(torch._C._pop_torch_function_stack)
def _pop(vm: Machine) -> object:
    functions = vm.modes.functions
    if not functions.active:
        raise vm.unsupported("a function mode is left that the program has not entered", "context")
    *functions.active, last = functions.active
    return last


@answers(torch._C._len_torch_function_stack)
def _count(vm: Machine) -> int:
    return len(vm.modes.functions.active)


@answers(torch._C._get_function_stack_at)
def _at(vm: Machine, place: int) -> object:
    return vm.modes.functions.active[place]


@answers(torch.device.__enter__)
def _enter_device(vm: Machine, device: torch.device) -> torch.device:
    functions = vm.modes.functions
    with functions.on_stack():
        device.__enter__()
        entered = torch._C._pop_torch_function_stack()
    functions.active = [*functions.active, entered]
    return device


@answers(torch.device.__exit__)
def _leave_device(vm: Machine, device: torch.device, *raised: object) -> Call:
    return Call(torch._C._pop_torch_function_stack, [])


# ---- nested compilation: what would be compiled inside is captured with the rest -------------------------------------


@intercept_each([getattr(torch._C, f"_has_torch_function{name}") for name in ("", "_unary", "_variadic")])
def _asks(function: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """The recorder of calls is no mode of the program's: it would have the interpreted function called anew."""
    if vm.modes.functions.asks or any(map(overrides, args)):
        return True
    recorder = vm.recorder
    return NATIVE if recorder is None else recorder.aside(function, args)


@answers(handle_torch_function)
def _handle(vm: Machine, function: object, relevant: Any, *given: Any, **kwargs: Any) -> object:
    return overridden(function, relevant, list(given), kwargs) if overrides(relevant) else NATIVE


@intercept(TorchDispatchMode.__enter__)
def _enter_mode(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Torch's own modes run natively; the program's would, too, and what they do outside would be seen once."""
    if type(args[0]).__module__.partition(".")[0] != "torch":
        name = f"{class_of(args[0]).__qualname__}.__enter__"
        raise vm.unsupported("a dispatch mode of the program's own is entered", "context", operation=name)
    return NATIVE


@intercept(vars(torch)["compile"])  # recognised, never called
def nested_compile(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """`compile(model)` is the model itself; without one, a decorator that changes nothing. (`bolide.compile` registers
    this for itself.)"""
    model = args[0] if args else kwargs.get("model")
    return torch_functions.identity if model is None else model
