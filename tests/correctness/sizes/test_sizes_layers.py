"""Recurrent layers, and operations whose C++ kernels ask for sizes: one version serves every length."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bolide
from tests.model_tools import installed

LENGTHS = (3, 5, 7, 11, 4, 2, 16)


LAYERS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {"batch_first": True}),
    "lstm_projected": (nn.LSTM, {"proj_size": 3, "bidirectional": True}),
    "lstm_deep": (nn.LSTM, {"num_layers": 2, "bias": False}),
    "gru": (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers(name: str, training: bool) -> None:
    kind, options = LAYERS[name]
    model = kind(4, 5, **options)
    other = copy.deepcopy(model)
    compiled: Any = bolide.compile(other, fullgraph=True)
    versions = []
    with torch.set_grad_enabled(training):
        for length in LENGTHS:
            x = torch.randn((2, length, 4) if options.get("batch_first") else (length, 2, 4), requires_grad=training)
            y = x.detach().clone().requires_grad_(training)
            (got, got_state), new = installed(lambda y=y: compiled(y))
            versions.append(new)
            want, want_state = model(x)
            assert got.stride() == want.stride()
            torch.testing.assert_close((got, got_state), (want, want_state))
            if training:
                want.square().sum().backward()
                got.square().sum().backward()
                torch.testing.assert_close(y.grad, x.grad)
                for mine, theirs in zip(other.parameters(), model.parameters()):
                    torch.testing.assert_close(mine.grad, theirs.grad)
    assert versions == [1, 1] + [0] * (len(LENGTHS) - 2)


def test_recurrent_layer_that_is_given_its_state_trains_it_too() -> None:
    model = nn.GRU(4, 5)
    other = copy.deepcopy(model)
    compiled: Any = bolide.compile(other, fullgraph=True, dynamic=True)
    for length in LENGTHS:
        x, start = torch.randn(length, 2, 4), torch.randn(1, 2, 5, requires_grad=True)
        mine = start.detach().clone().requires_grad_()
        want, got = model(x, start)[1], compiled(x, mine)[1]
        torch.testing.assert_close(got, want)
        want.sum().backward()
        got.sum().backward()
        torch.testing.assert_close(mine.grad, start.grad)


def test_a_diagonal_is_filled() -> None:
    def program(x: Any) -> Any:
        similar = x @ x.T * 2
        return similar.fill_diagonal_(float("-inf")).softmax(1), x.clone().fill_diagonal_(2)

    compiled: Any = bolide.compile(program, fullgraph=True)
    for length in LENGTHS:
        x = torch.randn(length, 3, requires_grad=True)
        got, count = installed(lambda x=x: compiled(x))
        want = program(x)
        torch.testing.assert_close(got, want)
        grads = [torch.autograd.grad(out.square().sum(), x) for out in (got[0], want[0])]
        torch.testing.assert_close(*grads)
    assert count == 0


class _Stateful(nn.Module):
    """Recurrent layers in a model that keeps tensors, too: layers ask weak references whether their weights live."""

    def __init__(self) -> None:
        super().__init__()
        self.weighted = nn.utils.weight_norm(nn.Linear(4, 4))
        self.first, self.second = nn.LSTM(4, 5), nn.GRU(5, 5)
        self.state: Any = None
        self.mean = torch.zeros(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, state = self.first(self.weighted(x), self.state)
        self.state, self.mean = tuple(part.detach() for part in state), y.mean((0, 1)).detach()
        return self.second(y - self.mean)[0]


def test_recurrent_layers_of_a_model_that_keeps_tensors_are_no_break(seed: int) -> None:
    torch.manual_seed(seed)
    theirs = _Stateful()
    torch.manual_seed(seed)
    ours = _Stateful()
    compiled: Any = bolide.compile(ours, fullgraph=True)
    for length in LENGTHS[:3]:
        x = torch.randn(length, 2, 4)
        torch.testing.assert_close(compiled(x), theirs(x))
        torch.testing.assert_close((ours.state, ours.mean), (theirs.state, theirs.mean))


def test_a_reference_to_a_weight_that_may_have_gone_is_a_break() -> None:
    def program(x: torch.Tensor, box: types.SimpleNamespace) -> Any:
        kept = box.weight.sum()
        box.weight = x + kept
        return x * 2, box.seen() is None

    compiled: Any = bolide.compile(program, backend="eager")
    for function in (program, compiled, compiled):
        box = types.SimpleNamespace(weight=torch.ones(3))
        box.seen = weakref.ref(box.weight)
        assert function(torch.ones(3), box)[1]


def test_dropout_in_evaluation_gives_the_tensor_itself() -> None:
    def program(x: Any, n: int) -> Any:
        y = x * 1
        torch.nn.functional.dropout(y, 0.5, training=False).add_(n)
        return y

    compiled: Any = bolide.compile(program, fullgraph=True, dynamic=True)
    x = torch.randn(6, 3)
    torch.testing.assert_close(compiled(x, 4), x + 4)


R = functools.partial(torch.randn, dtype=torch.float64)  # what is asked is how many versions there are
#: Operations whose C++ kernels ask for the values of sizes; inputs for a size.
OF_SIZES: dict[str, tuple[Any, Any]] = {
    "cov": (torch.cov, lambda n: (R(3, n),)),
    "cov of columns": (lambda x: torch.cov(x.T, correction=0), lambda n: (R(n, 5),)),
    "corrcoef": (torch.corrcoef, lambda n: (R(n, 5),)),
    "kron": (torch.kron, lambda n: (R(n, 3), R(2, n))),
    "multi_dot of three": (lambda *x: torch.linalg.multi_dot(x), lambda n: (R(3, n), R(n, n + 1), R(n + 1, 40))),
    "multi_dot of vectors": (lambda *x: torch.linalg.multi_dot(x), lambda n: (R(n), R(n, 3), R(3, n), R(n))),
    "gradient": (torch.gradient, lambda n: (R(n, n + 2),)),
    "gradient, spacing": (lambda x: torch.gradient(x, spacing=(2.0, 0.5), edge_order=2), lambda n: (R(n, 4),)),
    "pdist": (torch.pdist, lambda n: (R(n, 3),)),
    "combinations": (torch.combinations, lambda n: (R(n),)),
    "combinations, repeated": (lambda x: torch.combinations(x, with_replacement=True), lambda n: (R(n),)),
    "arange": (lambda x: x * torch.arange(0.0, x.shape[0] / 2, 0.5), lambda n: (R(n),)),
    "arange to a size": (lambda x: torch.arange(0.0, x.shape[0], 0.5), lambda n: (R(n),)),
    "fftfreq": (lambda x: x * torch.fft.fftfreq(x.shape[0], 0.1), lambda n: (R(n),)),
    "block_diag": (torch.block_diag, lambda n: (R(n, 2), R(n), R(3, n))),
    "cov, weighted": (
        lambda x, w: torch.cov(x, aweights=w.abs(), fweights=torch.arange(1, len(w) + 1)),
        lambda n: (R(3, n), R(n)),
    ),
    "gradient, places": (
        lambda x: torch.gradient(x, spacing=(torch.linspace(0, 2, len(x), dtype=x.dtype).exp(),), dim=0, edge_order=2),
        lambda n: (R(n, 3),),
    ),
    "combinations of three": (lambda x: torch.combinations(x, 3), lambda n: (R(n),)),
    "cumprod": (lambda x: (x * (x > -0.7)).cumprod(0), lambda n: (R(n, 3),)),
    "masked_select": (lambda x, y: x.masked_select(y > 0), lambda n: (R(n, 1), R(n, 3))),
    "conv_tbc": (lambda x, w: torch.conv_tbc(x, w, w[0, 0], 1), lambda n: (R(n, 2, 3), R(3, 3, 4))),
    "multilabel margin": (
        lambda x: F.multilabel_margin_loss(x, torch.arange(5).expand(len(x), 5)),
        lambda n: (R(n, 5),),
    ),
    "frames": (
        lambda x: torch.stft(x, 8, 2, window=HANN, center=False, return_complex=True).abs(),
        lambda n: (R(n, 8 * n),),
    ),
    "istft": (lambda x: torch.istft(spectrum(x), 8, 2, window=HANN), lambda n: (R(2, 4 * n),)),
    "istft to a length": (
        lambda x: torch.istft(spectrum(x), 8, 2, window=HANN, length=x.shape[1] - 1),
        lambda n: (R(2, 4 * n),),
    ),
    "rfft2 and back": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape), lambda n: (R(n, n + 3),)),
    "rfftfreq": (lambda x: x * torch.fft.rfftfreq(2 * len(x) - 2), lambda n: (R(n),)),
    "pool of an image": (lambda x: F.avg_pool2d(x, x.shape[2:]), lambda n: (R(2, 3, n, n + 1),)),
    "pool of a row": (lambda x: F.max_pool1d(x, x.shape[2]), lambda n: (R(2, 3, n),)),
    "pool of parts": (lambda x: F.max_pool2d(x, (x.shape[2] // 2, 2), 1), lambda n: (R(2, 3, n, n + 1),)),
    "affine_grid": (lambda x, y: F.affine_grid(x, y.shape, False), lambda n: (R(2, 2, 3), R(2, 1, n, n + 2))),
    "resized by areas": (lambda x: F.interpolate(x, scale_factor=1.5, mode="area"), lambda n: (R(2, 3, n),)),
    "hsplit": (lambda x: torch.hsplit(x, [x.shape[1] // 2]), lambda n: (R(3, n),)),
    "window of a signal": (lambda x: x * torch.signal.windows.gaussian(len(x), std=2.0), lambda n: (R(n),)),
    "jvp": (lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1], lambda n: (R(n),)),
}
HANN = torch.hann_window(8)


def spectrum(x: Any) -> Any:
    return torch.stft(x, 8, 2, window=HANN, return_complex=True)


@pytest.mark.parametrize("name", OF_SIZES)
def test_operations_that_ask_for_sizes_have_two_versions(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    function, inputs = OF_SIZES[name]
    compiled: Any = bolide.compile(function)
    versions = []
    for length in (4, 6, 9, 5):
        mine = [x.requires_grad_() for x in inputs(length)]
        theirs = [x.detach().clone().requires_grad_() for x in mine]
        got, count = installed(lambda mine=mine: compiled(*mine))
        want = function(*theirs)
        versions.append(count)
        torch.testing.assert_close(got, want)
        results = [list(x) if isinstance(x, (list, tuple)) else [x] for x in (got, want)]
        assert [x.stride() for x in results[0]] == [x.stride() for x in results[1]]
        if results[1][0].requires_grad:
            for parts in results:
                sum([part.square().sum() for part in parts]).backward()
            torch.testing.assert_close([x.grad for x in mine], [x.grad for x in theirs], rtol=1e-3, atol=1e-4)
    assert versions == [1, 1, 0, 0]
