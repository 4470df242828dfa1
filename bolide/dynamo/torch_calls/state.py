"""State of torch and of the interpreter that is no value of the program's: how many threads there are, which kernels
may be used, how deep recursion may go; calls of modules; function modes. The answer is guarded; what may not change
inside of captured code is refused where it is set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, handle_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_each, intercept_table, refuse
from bolide.dynamo.library.standard import ask
from bolide.dynamo.machine import operations
from bolide.dynamo.machine.attributes import load_attribute
from bolide.dynamo.machine.calls import NATIVE, SWITCHED, intercept
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.stand_ins import class_of, overridden, overrides
from bolide.dynamo.polyfills import torch_functions
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import MISSING, Watch
from bolide.dynamo.torch_calls.autograd import refuse_for_real
from bolide.dynamo.world.outside import Outside
from bolide.tracing import Trace, TracedTensor, modes


@intercept_each((torch.nn.Parameter, torch.nn.Buffer))
def _make(cls: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    vm.trace.where = vm.where()
    return cls(*args, **kwargs)


@answers(torch.is_inference, torch.Tensor.is_inference, TracedTensor.is_inference)
def _is_inference(vm: Machine, tensor: object) -> object:
    if type(tensor) is not TracedTensor:
        return NATIVE
    group = tensor.group
    if group.source is not None and type(vm.trace) is Trace:
        source = Source("apply", vm.world.inputs.sources[group.source], (), torch.Tensor.is_inference)
        vm.world.guards.add(source, "equals", group.inference)
    return group.inference


refuse(
    *(getattr(torch.cuda, name) for name in ("get_rng_state", "set_rng_state", "manual_seed", "manual_seed_all")),
    *(torch.set_default_device, torch.set_num_threads, torch.use_deterministic_algorithms, torch.save, torch.load),
    reason="torch's global state is read or changed",
    kind="global_state",
    remedy="do this outside the compiled function",
)

_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = [getattr(torch.nn.modules.module, f"_global{name}") for name in _HOOKS]
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
            for hooks in _GLOBAL_HOOKS:
                vm.world.guards.add(Source("object", None, None, hooks), "length", 0)
        hooks = [module.namespace.peek(name) for name in _HOOKS]
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
    overlays = [vm.world.journal.overlay_of.get(id(hooks)) for hooks in _GLOBAL_HOOKS]
    return any(hooks if known is None else known.length() for hooks, known in zip(_GLOBAL_HOOKS, overlays))


Reader = Callable[..., Any]

#: How a state is read, and what a program sets it with (None: it cannot).
READERS: dict[Reader, Reader | None] = {
    sys.getrecursionlimit: None,
    torch.get_num_threads: None,
    torch.get_num_interop_threads: None,
    torch.backends.mha.get_fastpath_enabled: None,
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


@intercept_table({**{reader: reader for reader in READERS}, **BEHIND})
def _read(function: object, reader: Reader, vm: Machine, args: Args, kwargs: Kwargs) -> object:
    return read_state(vm, reader, [*args, *kwargs.values()])


# An attribute such as `torch.backends.cudnn.deterministic`.
intercept(torch.backends.ContextProp.__get__)(lambda vm, args, kwargs: read_state(vm, args[0].getter, []))


@answers(torch.autocast)
def _autocast(vm: Machine, device_type: object = None, dtype: object = None, *_: object, **options: object) -> object:
    """Without a dtype, autocast takes the one that is set for the device."""
    if dtype is None and type(device_type) is str:
        read_state(vm, torch.get_autocast_dtype, [device_type])
    return NATIVE


# Compiled code runs under no modes, and the program enters its own outside of what is captured.
intercept(torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack)(lambda vm, args, kwargs: 0)


# ---- modes, nested compilation: what would be compiled inside is captured with the rest ------------------------------


@intercept_each([getattr(torch._C, f"_has_torch_function{name}") for name in ("", "_unary", "_variadic")])
def _asks(function: Callable[..., object], vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """The recorder of calls is no mode of the program's: it would have the interpreted function called anew."""
    if any(map(overrides, args)):
        return True
    recorder = vm.recorder
    return NATIVE if recorder is None else recorder.aside(function, args)


@answers(handle_torch_function)
def _handle(vm: Machine, function: object, relevant: Any, *given: Any, **kwargs: Any) -> object:
    return overridden(function, relevant, list(given), kwargs) if overrides(relevant) else NATIVE


@intercept(TorchFunctionMode.__enter__, TorchDispatchMode.__enter__)
def _enter_mode(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """Torch's own modes run natively; the program's would, too, and what they do outside would be seen once."""
    if type(args[0]).__module__.partition(".")[0] != "torch":
        name = f"{class_of(args[0]).__qualname__}.__enter__"
        raise vm.unsupported("a mode of the program's own is entered", "context", operation=name)
    return NATIVE


@intercept(vars(torch)["compile"])  # recognised, never called
def nested_compile(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """`compile(model)` is the model itself; without one, a decorator that changes nothing. (`bolide.compile` registers
    this for itself.)"""
    model = args[0] if args else kwargs.get("model")
    return torch_functions.identity if model is None else model
