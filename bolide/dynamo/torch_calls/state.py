"""State of torch and of the interpreter that is no value of the program's: how many threads there are, which kernels
may be used, how deep recursion may go; and calls of modules. The answer is guarded.

What all programs depend on (grad mode, the default dtype, …) is in the guard of the global state; what may not change
inside of captured code is refused where it is set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.machine import operations
from bolide.dynamo.machine.attributes import load_attribute
from bolide.dynamo.machine.calls import NATIVE, SWITCHED, intercept
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.machine.operations import class_of
from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import MISSING, Watch
from bolide.dynamo.torch_calls.autograd import refuse_for_real
from bolide.dynamo.world.outside import Outside
from bolide.support.errors import Unsupported
from bolide.tracing import Trace, TracedTensor, modes

Args = list[Any]
Kwargs = dict[str, Any]


@intercept(torch.nn.Parameter)
def _parameter(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    vm.trace.where = vm.where()
    return torch.nn.Parameter(*args, **kwargs)


@intercept(torch.nn.Buffer)
def _buffer(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    vm.trace.where = vm.where()
    return torch.nn.Buffer(*args, **kwargs)


@intercept(torch.is_inference, torch.Tensor.is_inference, TracedTensor.is_inference)
def _is_inference(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or type(args[0]) is not TracedTensor:
        return NATIVE
    group = args[0].group
    if group.source is not None and type(vm.trace) is Trace:
        source = Source("apply", vm.world.inputs.sources[group.source], (), torch.Tensor.is_inference)
        vm.world.guards.add(source, "equals", group.inference)
    return group.inference


@intercept(
    *(getattr(torch.cuda, name) for name in ("get_rng_state", "set_rng_state", "manual_seed", "manual_seed_all")),
    torch.set_default_device,
    torch.set_num_threads,
    torch.use_deterministic_algorithms,
    torch.save,
    torch.load,
)
def _torch_state(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    raise Unsupported(
        "torch's global state is read or changed",
        vm.where(),
        "do this outside the compiled function",
        kind="global_state",
    )


_GLOBAL_HOOKS = [
    getattr(torch.nn.modules.module, name)
    for name in (
        "_global_backward_pre_hooks",
        "_global_backward_hooks",
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
    )
]
_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


@intercept(torch.nn.Module.__call__)
def _module_called(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    implementation = vm.world.classes.lookup(class_of(args[0]), "_call_impl")
    return _module_call(vm, args, kwargs) if implementation is _CALL_IMPL else Call(implementation, args, kwargs)


@intercept(torch.nn.Module._call_impl)
def _module_call(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """`Module.__call__` without hooks is a call of `forward`; with hooks, torch's own code is interpreted."""
    module = args[0]
    if type(module) is Outside and issubclass(module.cls, torch.jit.ScriptModule):
        name = module.cls.__name__
        reason, remedy = f"a call of an outside {name} object", "compile the module that it was made from"
        raise Unsupported(reason, vm.where(), remedy, kind="outside_object", operation=f"{name}(...)")
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


@intercept(torch.jit._script._unwrap_optional)
def _unwrap_optional(vm: Machine, args: Args, kwargs: Kwargs) -> Any:
    """What TorchScript takes as no longer None; None itself is refused, in eager."""
    return args[0] if args and args[0] is not None else NATIVE


def _has_global_hooks(vm: Machine) -> bool:
    """Whether there are hooks for all modules, those included that the program has put there."""
    overlays = [vm.world.journal.overlay_of.get(id(hooks)) for hooks in _GLOBAL_HOOKS]
    return any(hooks if known is None else known.length() for hooks, known in zip(_GLOBAL_HOOKS, overlays))


_CALL_IMPL: Any = torch.nn.Module._call_impl


Reader = Callable[..., Any]

_sdp = torch.backends.cuda
# How a state is read, and what a program sets it with (None: it cannot).
READERS: dict[Reader, Reader | None] = {
    sys.getrecursionlimit: None,
    torch.get_num_threads: None,
    torch.get_num_interop_threads: None,
    torch.is_anomaly_enabled: torch.set_anomaly_enabled,
    torch.is_anomaly_check_nan_enabled: torch.set_anomaly_enabled,
    torch.get_autocast_dtype: torch.set_autocast_dtype,
    torch.is_autocast_cache_enabled: torch.set_autocast_cache_enabled,
    **dict(modes.FLAGS),
}
# The functions of torch that only ask one of these.
BEHIND: dict[Reader, Reader] = {
    torch.get_float32_matmul_precision: torch._C._get_float32_matmul_precision,
    _sdp.flash_sdp_enabled: torch._C._get_flash_sdp_enabled,
    _sdp.mem_efficient_sdp_enabled: torch._C._get_mem_efficient_sdp_enabled,
    _sdp.math_sdp_enabled: torch._C._get_math_sdp_enabled,
    _sdp.cudnn_sdp_enabled: torch._C._get_cudnn_sdp_enabled,
}


def answer(function: Reader, *args: Any) -> Any:
    """A call, as a step of a source."""
    return function(*args)


def read_state(vm: Machine, reader: Reader, args: list[Any]) -> Any:
    """What a reader says. It is guarded unless the program itself has changed it."""
    value = reader(*args)
    changed = modes.changed(vm.modes.before, modes.settings()) if READERS.get(reader) else []
    own = {setter for setter, _ in modes.own(changed, vm.modes.setters)}
    key = (reader, *args)
    if READERS.get(reader) not in own and vm.world.guards.first(key):
        vm.world.guards.add(Source("apply", Source("object", None, None, reader), tuple(args), answer), "equals", value)
    return value


def _serve(function: Reader, reader: Reader) -> None:
    @intercept(function)
    def read(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return read_state(vm, reader, [*args, *kwargs.values()])


for _reader in READERS:
    _serve(_reader, _reader)
for _function, _reader in BEHIND.items():
    _serve(_function, _reader)


@intercept(torch.backends.ContextProp.__get__)
def _property(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """An attribute such as `torch.backends.cudnn.deterministic`."""
    return read_state(vm, args[0].getter, [])


@intercept(torch.autocast)
def _autocast(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Without a dtype, autocast takes the one that is set for the device."""
    device, dtype, *_ = [*args, None, None]
    device, dtype = kwargs.get("device_type", device), kwargs.get("dtype", dtype)
    if dtype is None and type(device) is str:
        read_state(vm, torch.get_autocast_dtype, [device])
    return NATIVE


@intercept(torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack)
def _no_modes(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Compiled code runs under no modes, and the program enters its own outside of what is captured."""
    return 0
