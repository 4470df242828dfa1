"""NumPy code in captured functions: results, dtypes and writes as NumPy's; what has no counterpart breaks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bolide


def same(mine, theirs):
    assert type(mine) is type(theirs)
    if isinstance(theirs, (tuple, list)):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs):
            same(a, b)
    elif isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(mine, theirs)
    else:
        assert np.asarray(mine).dtype == np.asarray(theirs).dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


PROGRAMS = {
    "ufuncs": lambda a, b: np.sin(a) * 2 + np.exp(-b) / (np.maximum(a, b) ** 2 + 1),
    "operators": lambda a, b: (a + 1.5 - b) ** 2 // 1 % 3 - -a,
    "scalars on the left": lambda a, b: np.float32(2.0) * a + 3 * b,
    "reductions": lambda a, b: (a.sum(), np.mean(a, axis=0), a.max(axis=1), np.var(b), b.argmax()),
    "shapes": lambda a, b: (a.reshape(2, -1).T, np.concatenate([a, b], axis=1), np.stack((a, b)), a[None, 1:, ::2]),
    "comparisons": lambda a, b: np.where(a > b, a, b) + (a <= 0).astype(np.float64),
    "linear algebra": lambda a, b: (a @ b.T, np.dot(a, b.T), np.linalg.norm(a), np.einsum("ij,kj->ik", a, b)),
    "attributes": lambda a, b: np.zeros(a.shape, a.dtype) + a.ndim + a.size + len(a),
    "types": lambda a, b: a.astype("float32") + b.astype(np.int64).astype(np.float32),
    "indices": lambda a, b: a[np.array([2, 0, 1])] + b[[0, 0, 2]],
    "constants": lambda a, b: a * np.pi + np.linspace(0, 1, 4) + np.arange(3.0)[:, None],
    "sorting": lambda a, b: (np.sort(a, axis=1), np.argsort(b, axis=0), np.cumsum(a, axis=1)),
    "integers": lambda a, b: (a > 0) / (np.argsort(b, axis=0) + 1) + np.sqrt(np.argmax(a)) / 3,
    "clip": lambda a, b: np.clip(a, -0.5, 0.5) + b.clip(0, 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_programs(name, dtype):
    program = PROGRAMS[name]
    rng = np.random.default_rng(torch.randint(1 << 30, ()).item())
    compiled = bolide.compile(program, fullgraph=True)
    for _ in range(2):
        a, b = (rng.standard_normal((3, 4)).astype(dtype) for _ in range(2))
        same(compiled(a, b), program(a, b))


def test_writes_reach_the_array():
    def program(a):
        a[0] = 7.0
        a += 1
        a[1:, 2] *= np.float64(3)
        return a

    a = np.random.default_rng(0).standard_normal((3, 4))
    b = a.copy()
    assert bolide.compile(program, fullgraph=True)(a) is a
    program(b)
    np.testing.assert_allclose(a, b)


def test_between_tensors_and_arrays_with_gradients():
    def program(x, a):
        scale = torch.from_numpy(np.abs(a) + 1)
        offset = torch.as_tensor(np.cos(x.detach().numpy()))
        return (x * scale + offset).sum() + torch.tensor(a).mean()

    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    a = np.random.default_rng(1).standard_normal(5)
    compiled = bolide.compile(program, fullgraph=True)
    torch.testing.assert_close(compiled(x, a), program(x, a))
    (mine,), (theirs,) = (torch.autograd.grad(f(x, a), x) for f in (compiled, program))
    torch.testing.assert_close(mine, theirs)


def test_a_tensor_that_requires_grad_refuses_as_in_eager():
    with pytest.raises(RuntimeError, match="requires grad"):
        bolide.compile(lambda x: x.numpy())(torch.randn(3, requires_grad=True))


def test_what_has_no_counterpart_runs_for_real():
    def program(a):
        b = np.sin(a)
        return np.interp(b, [-1.0, 0.0, 1.0], [0.0, 5.0, 6.0]) + b

    a = np.random.default_rng(2).standard_normal(6)
    found = bolide.explain(program)(a)
    assert len(found.breaks) == 1
    np.testing.assert_allclose(bolide.compile(program)(a), program(a))


def test_branches_on_data():
    def program(a):
        return a + 1 if a.sum() > 0 else float(a.mean()) - a

    compiled = bolide.compile(program)
    for sign in (1, -1):
        a = sign * np.random.default_rng(3).random(4)
        np.testing.assert_allclose(compiled(a), program(a))


@pytest.mark.parametrize("make", [lambda: np.array(["a", "b"]), lambda: np.arange(6.0)[::-1], lambda: np.array([None])])
def test_arrays_that_cannot_be_tensors_run_in_eager(make):
    with pytest.warns(bolide.BolideWarning):
        assert bolide.compile(lambda a, x: (len(a), x + 1))(make(), torch.ones(2))[0] == len(make())


def test_another_shape_or_type_compiles_again():
    compiled = bolide.compile(lambda a: np.tanh(a) * 2, fullgraph=True)
    for a in (np.random.rand(3), np.random.rand(3, 2), np.random.rand(3).astype(np.float32), np.arange(4)):
        same(compiled(a), np.tanh(a) * 2)


def test_a_wrapped_numpy_function_is_differentiable_in_compiled_code():
    @bolide.wrap_numpy
    def program(a, factors):
        return {"y": np.tanh(a) * factors[0] + np.sum(a**2), "n": 3}

    x = torch.randn(4, dtype=torch.float64)
    w = torch.randn(4, dtype=torch.float64)
    torch.testing.assert_close(program(x, [w])["y"], torch.tanh(x) * w + (x**2).sum())
    compiled = bolide.compile(lambda x, w: program(x, [w])["y"].sum(), fullgraph=True)
    x.requires_grad_()
    (mine,) = torch.autograd.grad(compiled(x, w), x)
    (theirs,) = torch.autograd.grad((torch.tanh(x) * w + (x**2).sum()).sum(), x)
    torch.testing.assert_close(mine, theirs)
    with pytest.raises(RuntimeError, match="requires grad"):
        program(x, [w])


@pytest.mark.parametrize(
    "program",
    [
        lambda x, a: x + x.new_tensor(a),
        lambda x, a: x.new_tensor(a, dtype=torch.float64),
        lambda x, a: x + torch.FloatTensor(a.astype(np.float32)),
        lambda x, a: x + torch.LongTensor(a),
        lambda x, a: torch.Tensor(a),
        lambda x, a: x[:, a[a.shape[0] - 2 :] - 1],
        lambda x, a: x[a[:2] - 1],
    ],
)
def test_arrays_become_tensors_and_indices(program):
    x, a = torch.randn(2, 3), np.array([0, 1, 2])
    same(bolide.compile(program, fullgraph=True)(x, a), program(x, a))


def test_an_item_is_written_at_an_arrays_places():
    def program(x, a):
        x[:, a[:2]] = 3.0
        return x * 2

    x, a = torch.randn(2, 3), np.array([0, 2, 1])
    same(bolide.compile(program, fullgraph=True)(x.clone(), a), program(x, a))


OTHERWISE_IN_TORCH = {
    "median": np.median,
    "covariance": np.cov,
    "correlation": np.corrcoef,
    "fourier": np.fft.fft,
    "fourier back": lambda a: np.fft.ifft(np.fft.fft(a)).real,
    "sum so far": np.cumsum,
    "as a method": lambda a: a.cumprod(axis=0),
    "square": np.square,
    "reciprocal": np.reciprocal,
    "rounded": lambda a: (np.rint(a), np.trunc(a), np.fabs(a)),
    "parts": np.modf,
    "gradient": np.gradient,
    "grid": lambda a: np.meshgrid(a[0], a[1]),
    "bins": lambda a: np.histogram(a, bins=3),
    "clipped by nothing": lambda a: (np.clip(a, None, None), a.clip()),
    "of complex numbers": lambda a: (np.ptp(a + 1j), np.rint(a * 1.5j), np.sign(a - 2j)),
    "type": lambda a: np.zeros(2, np.result_type(a, np.float32)),
}


@pytest.mark.parametrize("name", OTHERWISE_IN_TORCH)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_results_have_numpys_types(name, dtype):
    """Where torch's NumPy layer has others, NumPy's function is called for real."""
    program = OTHERWISE_IN_TORCH[name]
    compiled = bolide.compile(lambda a: program(a + 1), backend="eager")
    rng = np.random.default_rng(torch.randint(1 << 30, ()).item())
    for _ in range(2):
        a = (rng.random((3, 4)) * 5 + 1).astype(dtype)
        same(compiled(a), program(a + 1))


def test_results_come_in_numpys_containers():
    def program(a):
        found = np.linalg.svd(a)
        values, q = np.linalg.eigh(a @ a.T), np.linalg.qr(a)
        return found[1], type(found).__name__, type(values).__name__, values[0], np.abs(q[1]), np.linalg.slogdet(a)[1]

    a = np.random.default_rng(torch.randint(1 << 30, ()).item()).standard_normal((3, 3))
    found, expected = bolide.compile(program, backend="aot_eager", fullgraph=True)(a), program(a)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == theirs if isinstance(theirs, str) else np.allclose(mine, theirs)


def test_a_part_of_a_result_becomes_a_tensor():
    def program(x):
        return torch.from_numpy(np.linalg.svd(x.numpy())[1]) + 1

    x = torch.randn(3, 3)
    torch.testing.assert_close(bolide.compile(program, fullgraph=True)(x), program(x))
