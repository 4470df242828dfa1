"""Calls that hardly anybody makes inside a compiled function, each in a process of its own: what comes out is eager's,
result or exception, and the process lives.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import bolide
from bolide.dynamo.config import config

CASES: dict[str, Callable[[torch.Tensor], Any]] = {}
CALLS = 3


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


torch.manual_seed(0)
layer = Layer()
scripted = torch.jit.script(Layer())


def case(function: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    CASES[function.__name__.strip("_")] = function
    return function


# ---- compilers, exporters, recorders ---------------------------------------------------------------------------------


@case
def jit_trace(x: torch.Tensor) -> Any:
    return torch.jit.trace(layer, (x,))(x) + 1


@case
def jit_trace_function(x: torch.Tensor) -> Any:
    return torch.jit.trace(lambda y: y * 2, (x + 1,))(x) + 1


@case
def jit_script(x: torch.Tensor) -> Any:
    return torch.jit.script(Layer())(x).shape, x * 2


@case
def jit_freeze(x: torch.Tensor) -> Any:
    return torch.jit.freeze(torch.jit.script(layer.eval()))(x) + 1


@case
def jit_call(x: torch.Tensor) -> Any:
    return scripted(x * 2).shape, x + 1


@case
def jit_save(x: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(layer), file)
    file.seek(0)
    return torch.jit.load(file)(x) + 1


@case
def jit_fork(x: torch.Tensor) -> Any:
    return torch.jit.wait(torch.jit.fork(torch.relu, x - 0.5)) + 1


@case
def symbolic_trace(x: torch.Tensor) -> Any:
    return fx.symbolic_trace(layer)(x) + 1


@case
def make_fx(x: torch.Tensor) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda y: y.sin() + 1)(x)(x)


@case
def bolide_inside(x: torch.Tensor) -> Any:
    return bolide.compile(lambda y: y * 2)(x) + 1


@case
def autograd_profiler(x: torch.Tensor) -> Any:
    with torch.autograd.profiler.profile() as profile:
        y = x * 2
        print(end="")
        y = y + 3
    return y, profile.function_events is not None


@case
def new_profiler(x: torch.Tensor) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        y = x * 2
        print(end="")
        y = y + 3
    return y, profile.key_averages() is not None


@case
def record_function(x: torch.Tensor) -> Any:
    with torch.profiler.record_function("mine"):
        y = x * 2
        print(end="")
    return y + 1


@case
def emit_nvtx(x: torch.Tensor) -> Any:
    with torch.autograd.profiler.emit_nvtx():
        return x * 2


@case
def emit_itt(x: torch.Tensor) -> Any:
    with torch.autograd.profiler.emit_itt(enabled=False):
        return x * 2


@case
def flop_counter(x: torch.Tensor) -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as mode:
        y = x @ x.T
    return y, mode.get_total_flops()


# ---- copies and files ------------------------------------------------------------------------------------------------


@case
def save(x: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save({"x": x * 2}, file)
    file.seek(0)
    return torch.load(file)["x"] + 1


@case
def save_state(x: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    return layer.load_state_dict(torch.load(file)), x + 1


@case
def copy_model(x: torch.Tensor) -> Any:
    return copy.deepcopy(layer)(x), copy.copy(layer)(x + 1)


@case
def pickle_model(x: torch.Tensor) -> Any:
    return pickle.loads(pickle.dumps(layer))(x) + 1


@case
def pickle_tensor(x: torch.Tensor) -> Any:
    return pickle.loads(pickle.dumps(x * 2)) + 1


@case
def from_file(x: torch.Tensor) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        name = str(Path(folder, "data"))
        return torch.from_file(name, shared=True, size=4).fill_(2) + x


@case
def storage(x: torch.Tensor) -> Any:
    y = x * 2
    return y.untyped_storage().nbytes(), y.storage_offset(), y.data_ptr() != 0, torch.tensor(y.storage().tolist())


# ---- bridges ---------------------------------------------------------------------------------------------------------


@case
def dlpack(x: torch.Tensor) -> Any:
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack((x * 2).detach())) + 1


@case
def numpy_bridge(x: torch.Tensor) -> Any:
    array = (x * 2).detach().numpy()
    array += 1
    return torch.from_numpy(array) + x, array.tolist()


@case
def from_buffer(x: torch.Tensor) -> Any:
    return torch.frombuffer(bytearray(range(16)), dtype=torch.uint8)[:4] + x


@case
def pointers(x: torch.Tensor) -> Any:
    y = (x + 1).detach()
    return ctypes.c_float.from_address(y.data_ptr()).value, y * 2


@case
def opaque(x: torch.Tensor) -> Any:
    return x.to_mkldnn().to_dense() + 1


# ---- kinds of tensors ------------------------------------------------------------------------------------------------


@case
def sparse(x: torch.Tensor) -> Any:
    y = x.to_sparse()
    return torch.sparse.mm(y, x.T), y.coalesce().values() * 2, torch.sparse.softmax(y, 1).to_dense()


@case
def sparse_csr(x: torch.Tensor) -> Any:
    return (x.to_sparse_csr() @ x.T) + 1


@case
def nested(x: torch.Tensor) -> Any:
    y = torch.nested.nested_tensor([x, x + 1])
    return torch.nested.to_padded_tensor(y * 2, 0.0)


@case
def jagged(x: torch.Tensor) -> Any:
    y = torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged)
    return torch.nested.to_padded_tensor(y + 1, 0.0)


@case
def named(x: torch.Tensor) -> Any:
    y = (x * 2).refine_names("N", "C")
    return y.names, y.sum("C").rename(None)


@case
def quantised(x: torch.Tensor) -> Any:
    y = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
    return y.int_repr(), y.dequantize() + 1, torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)


@case
def quantised_linear(x: torch.Tensor) -> Any:
    return torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear})(x).shape, x + 1


@case
def meta(x: torch.Tensor) -> Any:
    return x.to("meta").shape, torch.empty(3, device="meta").device, x + 1


@case
def complexes(x: torch.Tensor) -> Any:
    y = torch.complex(x, x).conj()
    return y.is_conj(), y.imag.is_neg(), torch.view_as_real(y.resolve_conj())


@case
def masked(x: torch.Tensor) -> Any:
    return torch.masked.masked_tensor(x, x > 0).sum().get_data(), x + 1


# ---- linear algebra --------------------------------------------------------------------------------------------------


@case
def ldl(x: torch.Tensor) -> Any:
    a = x @ x.T + torch.eye(len(x))
    factors, pivots = torch.linalg.ldl_factor(a)
    return torch.linalg.ldl_solve(factors, pivots, x), torch.linalg.ldl_factor_ex(a)[2]


@case
def ldl_of_arguments(x: torch.Tensor) -> Any:
    return torch.linalg.ldl_solve(x[:3, :3], torch.ones(3, dtype=torch.int32), x[:3])


@case
def lu(x: torch.Tensor) -> Any:
    a = x @ x.T + torch.eye(len(x))
    factors, pivots = torch.linalg.lu_factor(a)
    return (
        torch.linalg.lu_solve(factors, pivots, x),
        torch.lu_unpack(factors, pivots)[1],
        torch.lu_solve(x, factors, pivots),
    )


@case
def bad_pivots(x: torch.Tensor) -> Any:
    return torch.linalg.lu_solve(x[:3, :3], torch.full((3,), 2, dtype=torch.int32), x[:3])


@case
def householder(x: torch.Tensor) -> Any:
    factors, tau = torch.geqrf(x)
    return torch.ormqr(factors, tau, x[:, :2]), torch.linalg.householder_product(x[:, :2], tau[:2])


@case
def distances_of_few_rows(x: torch.Tensor) -> Any:
    few = [x[:rows].detach().requires_grad_() for rows in range(1, 5)]
    return [torch.autograd.grad(torch.pdist(rows).sum(), rows) for rows in few]


# ---- state of the process --------------------------------------------------------------------------------------------


@case
def threads_of_torch(x: torch.Tensor) -> Any:
    known = torch.get_num_threads()
    torch.set_num_threads(2)
    y = x * 2
    torch.set_num_threads(known)
    return y, torch.get_num_threads() == known


@case
def default_device(x: torch.Tensor) -> Any:
    torch.set_default_device("meta")
    try:
        return torch.ones(2).device, x + 1
    finally:
        torch.set_default_device(None)


@case
def default_dtype(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    y = torch.ones(2)
    torch.set_default_dtype(torch.float32)
    return y.dtype, y.sum() + x


@case
def flush_denormal(x: torch.Tensor) -> Any:
    torch.set_flush_denormal(False)
    return x * 2


@case
def a_thread(x: torch.Tensor) -> Any:
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(x * 2))
    thread.start()
    thread.join()
    return found[0] + 1


@case
def an_executor(x: torch.Tensor) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(lambda k: x * k, range(3)))


@case
def a_lock(x: torch.Tensor) -> Any:
    lock = threading.RLock()
    with lock, lock:
        return x + lock.acquire(timeout=1)


@case
def a_signal(x: torch.Tensor) -> Any:
    seen: list[int] = []
    known = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    y = x + 1
    signal.signal(signal.SIGUSR1, known)
    return y, seen


@case
def a_fork(x: torch.Tensor) -> Any:
    y = x + 1
    child = os.fork()
    if child == 0:
        os._exit(int((y * 2).sum().item() > 1e9))
    return os.waitpid(child, 0)[1], y


@case
def a_child(x: torch.Tensor) -> Any:
    import subprocess

    return subprocess.run([sys.executable, "-c", "print(3)"], capture_output=True, check=True).stdout, x + 1


@case
def a_loader(x: torch.Tensor) -> Any:
    data = torch.utils.data.TensorDataset(x.detach())
    return [batch[0] * 2 for batch in torch.utils.data.DataLoader(data, batch_size=2)]


@case
def a_loader_with_workers(x: torch.Tensor) -> Any:
    data = torch.utils.data.TensorDataset(x.detach())
    return [batch[0] * 2 for batch in torch.utils.data.DataLoader(data, batch_size=2, num_workers=1)]


@case
def shared_memory(x: torch.Tensor) -> Any:
    return (x * 2).detach().share_memory_().is_shared(), x + 1


@case
def distributed(x: torch.Tensor) -> Any:
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(x)
    return torch.distributed.get_rank() + x


@case
def collections_of_garbage(x: torch.Tensor) -> Any:
    gc.collect()
    return x + gc.isenabled()


@case
def warned(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warnings.warn("mine", stacklevel=1)
    return [str(each.message) for each in said], x + 1


@case
def inside_c(x: torch.Tensor) -> Any:
    return (
        torch._C._get_tracing_state(),
        torch._C._dispatch_keys(x) is not None,
        torch._C._len_torch_dispatch_stack(),
        x + 1,
    )


@case
def anomaly(x: torch.Tensor) -> Any:
    with torch.autograd.detect_anomaly(check_nan=False):
        return x * 2


@case
def deterministic(x: torch.Tensor) -> Any:
    torch.use_deterministic_algorithms(True)
    y = x.cumsum(0)
    torch.use_deterministic_algorithms(False)
    return y


@case
def saved_tensors(x: torch.Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda y: y.clone(), lambda y: y):
        return (x * x).sum()


@case
def on_cpu(x: torch.Tensor) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return (x * x).sum()


@case
def gradient_check(x: torch.Tensor) -> Any:
    y = x.detach().double().requires_grad_()
    return torch.autograd.gradcheck(lambda z: z.sin(), (y,)), x + 1


@case
def pins(x: torch.Tensor) -> Any:
    return x.is_pinned(), x.detach().clone().pin_memory() if torch.cuda.is_available() else x


@case
def cuda(x: torch.Tensor) -> Any:
    return torch.cuda.is_available() or x.cuda()


# ---- how a case is run -----------------------------------------------------------------------------------------------


def outcome(f: Callable[..., Any], x: torch.Tensor) -> Any:
    """What a call gives, as text where values have no equality of their own, or the class of what it raises."""
    try:
        return f(x)
    except Exception as error:
        if isinstance(error, bolide.BolideError):
            traceback.print_exc()
        return type(error)


def same(expected: Any, actual: Any) -> bool:
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, (tuple, list)):
        return len(expected) == len(actual) and all(map(same, expected, actual))
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, equal_nan=True)
        return expected.requires_grad == actual.requires_grad
    return str(expected) == str(actual) or bool(expected == actual)


def difference(f: Callable[[torch.Tensor], Any]) -> str:
    """What compiled differs from eager, "" for nothing."""
    compiled = bolide.compile(f)
    for number in range(CALLS):
        x = torch.rand(3 + number // 2, 4, requires_grad=number == 2)
        expected, actual = outcome(f, x), outcome(compiled, x)
        if not same(expected, actual):
            return f"call {number}: {expected!s:.600} {actual!s:.600}"
    return ""


def answer(name: str, seed: int, pipe: Connection) -> None:
    """Send what a case compiled differs from eager, or the traceback of what it raises."""
    signal.alarm(120)
    torch.manual_seed(seed)
    try:
        with config.patch(suppress_errors=False), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipe.send(difference(CASES[name]))
    except BaseException:
        pipe.send(traceback.format_exc())


def in_a_process_of_its_own(name: str, seed: int) -> str:
    """What a case answers in a process that is forked from one without threads, as this one may have had some; how
    that ended if it did not come to its end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "bolide", __name__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(name, seed, sender))
    process.start()
    sender.close()
    try:
        return str(receiver.recv())
    except EOFError:
        process.join()
        return f"the process ended with status {process.exitcode}"
    finally:
        process.join()


@pytest.mark.parametrize("name", CASES)
def test_calls_that_might_end_the_process(name: str, seed: int) -> None:
    assert in_a_process_of_its_own(name, seed) == ""
