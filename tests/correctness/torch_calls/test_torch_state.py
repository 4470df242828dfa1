"""Torch's state around and inside captured code: modes, flags, hooks of saved tensors, the random state."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence
from torch.overrides import TorchFunctionMode

import bolide
from bolide.tracing import modes

BACKENDS = ["eager", "aot_eager", "inductor"]


def halves() -> Any:
    """Saved tensors lose half of their bits: gradients show whether the hooks were there."""
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float())


def gradient(function: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    function(x).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernels", [SDPBackend.MATH, [SDPBackend.FLASH_ATTENTION], [SDPBackend.MATH]])
@pytest.mark.parametrize("priority", [False, True])
def test_chosen_attention_kernels(backend: str, kernels: Any, priority: bool) -> None:
    def fn(q: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(kernels, set_priority=priority):
            return F.scaled_dot_product_attention(q, q * 2, q, is_causal=True)

    q = torch.randn(2, 4, 8, 16)
    before = modes.settings()
    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    if backend == "eager":
        assert torch.equal(gradient(compiled, q), gradient(fn, q))
    torch.testing.assert_close(gradient(compiled, q), gradient(fn, q), rtol=1e-4, atol=1e-5)
    assert modes.settings() == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_state_that_stays_changed_and_state_in_between(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        made = x * torch.ones(3)
        torch.set_default_dtype(torch.float32)
        with torch.backends.mkldnn.flags(enabled=False), torch.autograd.detect_anomaly():
            made = made + torch.ones(3)
        torch.set_float32_matmul_precision("high")
        return made

    x = torch.randn(3)
    compiled = bolide.compile(fn, backend=backend)
    before = modes.settings()
    try:
        with pytest.warns(UserWarning, match="Anomaly"):
            want = fn(x)
        after = modes.settings()
        assert after != before
        for _ in range(2):
            modes.apply(before)
            torch.testing.assert_close(compiled(x), want, rtol=0, atol=0)
            assert modes.settings() == after
    finally:
        modes.apply(before)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("outside", [False, True])
def test_hooks_of_saved_tensors(backend: str, outside: bool) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with contextlib.nullcontext() if outside else halves():
            return x * x.detach().sin() * 2.0

    def call(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            with halves() if outside else contextlib.nullcontext():
                return function(x)

        return run

    x = torch.randn(5)
    want = gradient(call(fn), x)
    compiled = bolide.compile(fn, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(gradient(call(compiled), x), want, rtol=1e-2, atol=1e-2)  # halves are saved
        if backend == "eager" or not outside:
            assert torch.equal(gradient(call(compiled), x), want)


def test_compiling_draws_no_random_numbers() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x + torch.rand(3), torch.randperm(5), torch.multinomial(torch.ones(4), 2)

    x = torch.randn(3)
    compiled = bolide.compile(fn, backend="eager")
    start = torch.get_rng_state()
    want, state = fn(x), torch.get_rng_state()
    for _ in range(2):
        torch.set_rng_state(start)
        assert all(torch.equal(a, b) for a, b in zip(compiled(x), want))
        assert torch.equal(torch.get_rng_state(), state)


class Cosine(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.cos(*args) if func is torch.sin else func(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_break_inside_a_function_mode(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with Cosine():
            y = torch.sin(x)
            bolide.graph_break()
            y = y + torch.sin(x)
        return y + torch.sin(x)

    x = torch.randn(4)
    compiled = bolide.compile(fn, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), fn(x))
    assert not modes.stacks()[0]


def test_a_break_in_a_function_that_torch_interprets_leaves_no_mode() -> None:
    class Distance(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            bolide.graph_break()
            return (a - b).abs().sum(-1)

    loss = nn.TripletMarginWithDistanceLoss(distance_function=Distance())
    args = [torch.randn(3, 4) for _ in range(3)]
    compiled = bolide.compile(loss, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(*args), loss(*args))
    assert not modes.stacks()[0]


RUNS: list[int] = []


@torch.library.custom_op("bolide_tests::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    RUNS.append(x.numel())
    return x * 2


@counted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_of_the_user_do_not_run_while_capturing(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return counted(x + 1) * 3

    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    RUNS.clear()
    for calls in (1, 2, 3):
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x), (x + 1) * 6)
        assert len(RUNS) == calls


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_does_not_look_for_data_where_there_is_none(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        (inner,) = torch.autograd.grad((x * x).sqrt().sum(), x)
        return torch.cond(x.sum() > 0, torch.sqrt, torch.abs, (x,)) + inner.detach()

    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    for watched, rows in ((True, 3), (False, 3), (True, 5), (True, 4)):
        with torch.autograd.set_detect_anomaly(watched):
            x = torch.rand(rows, 2) + 0.1
            torch.testing.assert_close(gradient(compiled, x), gradient(fn, x))
    root = bolide.compile(torch.sqrt, backend=backend)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values"):
        (root(torch.zeros(3, requires_grad=True)) * 0).sum().backward()


@pytest.mark.parametrize(
    "flag", [(torch.backends.mkldnn, "enabled"), (torch.backends.cudnn, "benchmark"), (torch.backends.cudnn, "enabled")]
)
def test_flags_of_backends_are_read_and_guarded(flag: tuple[Any, str]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if getattr(owner, name) else x - 1

    owner, name = flag
    compiled, x = bolide.compile(fn, backend="eager", fullgraph=True), torch.randn(3)
    for value in (True, False, True):
        with owner.flags(**{name: value}):  # torch's own tests forbid assignment, for the whole process
            assert torch.equal(compiled(x), fn(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_have_the_default_dtype_that_the_program_has_chosen(backend: str) -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        torch.set_default_dtype(torch.float64)
        made = [torch.arange(3.0), torch.arange(0, x.shape[0], 0.5), torch.linspace(0, 1, 3), torch.eye(2)]
        made += [
            i / 3,
            i * 1.5,
            i**0.5,
            i.sin(),
            torch.atan2(i, i),
            (i > 1) * 0.5,
            i * 1j,
            torch.where(i > 1, 1.0, 2.0),
        ]
        made += [
            torch.hann_window(3),
            torch.full((2,), 1j),
            x + torch.ones(1),
            i.float().mean(),
            i.sigmoid() @ i.sqrt(),
        ]
        torch.set_default_dtype(torch.float32)
        return [*made, i / 3, torch.arange(2.0)]

    compiled = bolide.compile(fn, backend=backend)
    for size in (3, 5, 4):
        x, i = torch.randn(size, requires_grad=True), torch.arange(size)
        for want, found in zip(fn(x, i), compiled(x, i), strict=True):
            torch.testing.assert_close(found, want)


COMPOSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "affine_grid": lambda x: F.affine_grid(x[:, :6].reshape(-1, 2, 3), (x.shape[0], 2, 4, 5), align_corners=False),
    "bilinear": lambda x: F.bilinear(x, x, x.new_ones(3, 8, 8)),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "tensordot": lambda x: torch.tensordot(x, x.T, 1),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x.T, x]),
    "matrix_power": lambda x: torch.linalg.matrix_power(x @ x.T, 3),
    "inner": lambda x: torch.inner(x, x),
    "cdist": lambda x: torch.cdist(x, x),
    "cov": lambda x: torch.cov(x),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", COMPOSED)
def test_products_inside_of_functions_under_autocast(name: str, dynamic: bool | None) -> None:
    """What a function of torch's computes by products is what autocast makes of these, whether sizes are symbols."""
    function = COMPOSED[name]
    compiled = bolide.compile(function, dynamic=dynamic)
    for size in random.sample(range(2, 9), 3):
        x = torch.rand(size, 8)
        with torch.autocast("cpu", torch.bfloat16):
            expected, found = function(x), compiled(x)
        assert found.dtype == expected.dtype
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)


class _Packed(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        out, state = self.layer(pack_padded_sequence(x, torch.tensor([x.shape[0], x.shape[0] - 1])))
        return out.data, state


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(4, 3),
    "lstm_deep": lambda: nn.LSTM(4, 3, num_layers=2, batch_first=True, bidirectional=True),
    "lstm_projected": lambda: nn.LSTM(4, 3, proj_size=2),
    "lstm_packed": lambda: _Packed(nn.LSTM(4, 3)),
    "gru": lambda: nn.GRU(4, 3, num_layers=2),
    "gru_packed": lambda: _Packed(nn.GRU(4, 3)),
    "tanh": lambda: nn.RNN(4, 3, bias=False),
    "relu_packed": lambda: _Packed(nn.RNN(4, 3, nonlinearity="relu")),
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(),
    "encoders": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2).eval(),
}


def flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [tensor for part in value for tensor in flat(part)]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_are_one_operation_under_autocast(name: str, dynamic: bool | None, training: bool) -> None:
    """Autocast converts inside of them, which is seen in the types of results and states."""
    model = LAYERS[name]()
    other = copy.deepcopy(model)
    compiled = bolide.compile(other, dynamic=dynamic)
    for size in random.sample(range(3, 9), 3):
        x, found = torch.randn(size, 2, 4), []
        for run, module in ((model, model), (compiled, other)):
            leaf = x.clone().requires_grad_(training)
            module.zero_grad()
            with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(training):
                results = flat(run(leaf))
            if training:
                torch.stack([result.float().square().sum() for result in results]).sum().backward()
                results += [leaf.grad, *(parameter.grad for parameter in module.parameters())]
            found.append(results)
        for expected, got in zip(*found, strict=True):
            assert got.dtype == expected.dtype
            assert got.stride() == expected.stride()
            torch.testing.assert_close(
                got, expected, rtol=5e-2, atol=5e-2 * float(expected.detach().abs().max().clamp(1))
            )


def _labels(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.shape[0]) % 4


WITH_NUMBERS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "attention": lambda x, k: F.scaled_dot_product_attention(x[None], x[None] @ x.T @ x, x[None], scale=k),
    "batch_norm": lambda x, k: F.batch_norm(x @ x.T, None, None, training=True, momentum=k, eps=k / 99),
    "layer_norm": lambda x, k: F.layer_norm(x.T @ x, (8,), eps=k / 99),
    "rms_norm": lambda x, k: F.rms_norm(x.T @ x, (8,), eps=k / 99),
    "group_norm": lambda x, k: F.group_norm((x @ x.T @ x)[:, :, None], 2, eps=k / 99),
    "cross_entropy": lambda x, k: F.cross_entropy(x @ x.T @ x, _labels(x), label_smoothing=k),
    "huber": lambda x, k: F.huber_loss(x @ x.T @ x, x, delta=k),
    "hinge": lambda x, k: F.hinge_embedding_loss(x @ x.T @ x, x.sign(), margin=k),
    "distance": lambda x, k: torch.pairwise_distance(x @ x.T @ x, x, eps=k / 99),
    "lerp": lambda x, k: torch.lerp(x @ x.T, x @ x.T + 1, k),
    "celu": lambda x, k: F.celu(x @ x.T - 2, k),
    "softplus": lambda x, k: F.softplus(x @ x.T - 2, k),
    "pad": lambda x, k: F.pad(x @ x.T, (1, 1), value=k),
    "quantile": lambda x, k: torch.quantile(x, k, 0),
    "float_power": lambda x, k: torch.float_power(x @ x.T, k),
    "addmm": lambda x, k: torch.addmm(x, x @ x.T, x, beta=k, alpha=k),
    "addcmul": lambda x, k: torch.addcmul(x, x @ x.T @ x, x, value=k),
    "where": lambda x, k: torch.where(x.T @ x > 1, x.T @ x, k),
    "ctc": lambda x, k: F.ctc_loss(
        (x[:, None] * k @ x.T @ x).log_softmax(2), torch.ones(1, 1, dtype=torch.long), x.shape[:1], (1,)
    ),
    "pooled": lambda x, k: F.max_pool1d((x @ x.T @ x * k).T[None], 2),
    "embedding_bag": lambda x, k: F.embedding_bag(_labels(x)[None], x.T @ x * k, mode="mean"),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_functions_of_changing_sizes_and_numbers_under_autocast(name: str, dynamic: bool | None) -> None:
    function = WITH_NUMBERS[name]
    compiled = bolide.compile(function, dynamic=dynamic)
    for size in random.sample(range(4, 9), 3):
        x, number = torch.rand(size, 8) / 3, random.uniform(0.2, 0.9)
        found = []
        for run in (function, compiled):
            leaf = x.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16):
                result = run(leaf, number)
            result.float().square().sum().backward()
            found.append((result, leaf.grad))
        for expected, got in zip(*found, strict=True):
            assert (got.dtype, got.stride()) == (expected.dtype, expected.stride())
            torch.testing.assert_close(
                got, expected, rtol=5e-2, atol=5e-2 * float(expected.detach().abs().max().clamp(1))
            )
