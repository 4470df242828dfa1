"""Reading state of torch and of the interpreter that is no value of the program's: how many threads there are, which
kernels may be used, how deep recursion may go. The answer is guarded.

What all programs depend on (grad mode, the default dtype, …) is in the guard of the global state; what may not change
inside of captured code is refused where it is set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from bolide.dynamo.calls import NATIVE, intercept
from bolide.dynamo.interpreter import Machine
from bolide.dynamo.program import Source
from bolide.tracing import modes

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
    changed = modes.own(modes.changed(vm.surroundings, modes.settings()), vm.modes_set) if READERS.get(reader) else []
    own = {setter for setter, _ in changed}
    key = (reader, *args)
    if READERS.get(reader) not in own and key not in vm.world.once:
        vm.world.once.add(key)
        vm.world.guard(Source("apply", Source("object", None, None, reader), tuple(args), answer), "equals", value)
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
