"""NumPy code in captured functions: results, dtypes and writes as NumPy's; what has no counterpart breaks."""

from __future__ import annotations

import copy
import operator
import warnings

import numpy as np
import pytest
import torch

import bolide
from tests.ordinary_tools import check_whole


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
        return np.interp(b, [-1.0, 0.0, 1.0], [0.0, 5.0, 6.0], period=3.0) + b

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


def _written(make):
    """A program that makes something of an array and then writes to both: who shares memory with whom can be seen."""

    def program(a):
        b = make(a)
        b[0] += 100
        a[1] -= 100
        return b + 0, b is a

    return program


MEMORY = {
    "array": np.array,
    "array of another type": lambda a: np.array(a, dtype=np.float32),
    "array, not copied": lambda a: np.array(a, copy=None if np.__version__ >= "2" else False),
    "asarray": np.asarray,
    "asarray of the same type": lambda a: np.asarray(a, dtype=np.float64),
    "asarray of another type": lambda a: np.asarray(a, dtype=np.float32),
    "contiguous": np.ascontiguousarray,
    "contiguous copy": lambda a: np.ascontiguousarray(a.T),
    "astype": lambda a: a.astype(np.float64),
    "astype, not copied": lambda a: a.astype(np.float64, copy=False),
    "flatten": lambda a: a.flatten(),
    "ravel": lambda a: a.ravel(),
    "ravelled copy": lambda a: a.T.ravel(),
    "reshape": lambda a: a.reshape(-1, 2),
    "reshaped copy": lambda a: a.T.reshape(-1),
    "copy": lambda a: a.copy(),
    "copied transpose": lambda a: a.T.copy(),
    "transpose": np.transpose,
    "positive": np.positive,
    "clipped": lambda a: np.clip(a, -1000, 1000),
    "one array joined": lambda a: np.concatenate([a]),
    "rolled by nothing": lambda a: np.roll(a, 0),
    "flipped": np.flip,
    "flipped rows": lambda a: np.flip(a, 0),
    "backward": lambda a: a[::-1],
    "columns backward": lambda a: a[..., 2:0:-1],
    "rotated": np.rot90,
    "rotated by nothing": lambda a: np.rot90(a, 0),
    "rows": lambda a: a[1:],
    "chosen rows": lambda a: a[[1, 0]],
    "split": lambda a: np.split(a, [2])[0],
    "swapped": lambda a: a.swapaxes(0, 1),
    "one more dimension": lambda a: a[None][0],
}


@pytest.mark.parametrize("name", MEMORY)
def test_what_shares_memory_is_what_shares_it_in_numpy(name):
    program = _written(MEMORY[name])
    compiled = bolide.compile(program)
    rng = np.random.default_rng(torch.randint(1 << 30, ()).item())
    for rows in (3, 5, 4):
        a = rng.standard_normal((rows, 4))
        b = a.copy()
        found, expected = compiled(a), program(b)
        assert found[0].strides == expected[0].strides
        assert found[1] is expected[1]
        same(found[0], expected[0])
        same(a, b)


def test_a_flipped_array_that_nobody_writes_to_is_captured():
    def program(a, x):
        return x + torch.from_numpy(np.flip(a, 0).copy()), np.rot90(a) * 2

    compiled = bolide.compile(program, fullgraph=True)
    for rows in (3, 5):
        a, x = np.random.default_rng(rows).standard_normal((rows, rows)), torch.randn(rows, rows)
        same(compiled(a, x), program(a, x))


BACKWARD = [
    np.s_[::-1],
    np.s_[..., ::-1],
    np.s_[None, ::-1],
    np.s_[1, :, ::-2],
    np.s_[:, 3:1:-1],
    np.s_[-1:-3:-1],
    np.s_[:0:-1],
    np.s_[9:-9:-1, ..., -9:9],
    np.s_[np.array([1, 0]), ..., ::-1],
    np.s_[np.array([True, False]), ::-1],
]


@pytest.mark.parametrize("index", BACKWARD, ids=str)
def test_indices_that_go_backward_are_read_and_written(index):
    def program(a, b):
        b[index] = a[index] * 2
        return a[index] + 1

    compiled = bolide.compile(program, fullgraph=True)
    for columns in (4, 6, 5):
        a, b = np.random.default_rng(columns).standard_normal((2, 2, columns, 3))
        c = b.copy()
        same(compiled(a, b), program(a, c))
        same(b, c)


def test_a_single_item_is_a_number_of_its_own():
    def program(a):
        first, total = a[0, 0], a.sum()
        a[0] = 7.0
        kinds = type(first).__name__, type(total), isinstance(total, float), isinstance(a, (list, np.ndarray))
        return first, [row[0] for row in a], kinds, a[..., 0, 0]

    compiled = bolide.compile(program, fullgraph=True)
    for rows in (3, 5):
        a = np.random.default_rng(rows).standard_normal((rows, 2))
        b = a.copy()
        found, expected = compiled(a), program(b)
        assert found[2] == expected[2]
        same(found[:2] + found[3:], expected[:2] + expected[3:])


def test_a_broadcast_array_cannot_be_written():
    def program(a):
        b = np.broadcast_to(a[:1], (3, 4))
        try:
            b[0] = 1
        except ValueError as error:
            return b, str(error)

    compiled = bolide.compile(program, fullgraph=True)
    a = np.random.default_rng(0).standard_normal((3, 4))
    found, expected = compiled(a), program(a)
    assert found[1] == expected[1] and found[0].flags.writeable is expected[0].flags.writeable is False
    same(found[0], expected[0])


OPERATORS = {
    "t + a": lambda t, a: t + a,
    "t - a": lambda t, a: t - a,
    "t * a": lambda t, a: t * a,
    "a * t": lambda t, a: a * t,
    "a + t": lambda t, a: a + t,
    "a / t": lambda t, a: a / t,
    "t / a": lambda t, a: t / a,
    "t @ a": lambda t, a: t @ a.T,
    "a @ t": lambda t, a: a @ t.T,
    "t // a": lambda t, a: t // a,
    "truths": lambda t, a: (t > 0) & (a > 0),
    "t == a": lambda t, a: t == a,
    "a < t": lambda t, a: a < t,
    "in place": lambda t, a: operator.iadd(t, a),
    "array in place": lambda t, a: operator.iadd(a, t),
    "constant": lambda t, a: t * np.arange(4),
    "constant on the left": lambda t, a: np.ones(4) * t,
    "add": lambda t, a: np.add(t, a),
    "maximum": lambda t, a: np.maximum(a, t),
    "where": lambda t, a: np.where(t > 0, t, a),
    "item": lambda t, a: (t * a[0, 0], a[0, 0] - t, a.mean() < t, t / a.std()),
    "small item": lambda t, a: t * a.astype(np.float32).sum() + a.argmax() * t,
    "scalar": lambda t, a: (np.float32(2) * t, t - np.float64(2), np.int64(3) + t, t / np.float32(3)),
    "moments": lambda t, a: (t - a.mean(0)) / a.std(0),
    "history": lambda t, a: t.requires_grad_() * a,
    "history and item": lambda t, a: t.requires_grad_() * a.max(),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_tensors_and_arrays_give_what_eager_gives(name):
    """A tensor, an array or an error: that depends on the operator, the order, and NumPy's version."""

    def outcome(run, t, a):
        try:
            return run(t, a)
        except (TypeError, RuntimeError, AttributeError) as error:
            return type(error), str(error)

    program = OPERATORS[name]
    compiled = bolide.compile(program)
    for rows in (3, 5, 4):
        t, a = torch.randn(rows, 4), np.random.default_rng(rows).standard_normal((rows, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's about `Tensor.__array_wrap__`
            expected, found = outcome(program, t.clone(), a.copy()), outcome(compiled, t.clone(), a.copy())
        if isinstance(expected, tuple) and expected[0] in (TypeError, RuntimeError, AttributeError):
            assert found == expected
        else:
            same(found, expected)


NUMBERS = {
    "operators": lambda x, s: (x * s, s + x, x / s, s - x, x > s, s == x),
    "methods": lambda x, s: (x.mul(s).clamp(max=s), torch.full((2,), s), torch.add(x, x, alpha=s), x.fill_(s)),
    "arithmetic": lambda x, s: (x * (s * 2 + 1), s + s, -s, abs(s), s - 1),
    "divided": lambda x, s: (x + s / 2, s // 2, s % 2),
    "as tensors": lambda x, s: (torch.tensor(s), torch.as_tensor(s), torch.tensor([s, 1.0]), x.new_tensor(s)),
    "as numbers": lambda x, s: (x * s.item(), x + float(s)),
    "kind": lambda x, s: (x, str(type(s)), isinstance(s, (float, np.integer)), s.dtype, s.ndim),
    "kept": lambda x, s: {"x": x, "s": s, "list": [s, s]},
    "functions": lambda x, s: (x * np.sqrt(s), np.exp(-s) * x, np.maximum(s, 1)),
    "converted": lambda x, s: (x * np.float32(s), np.float64(s), s.astype(np.int32)),
    "with arrays": lambda x, s: (x.numpy() * s, np.ones(3) + s),
    "truth": lambda x, s: x + 1 if s else x,
    "compared": lambda x, s: x + 1 if s > -1 else x - 1,
    "normalised": lambda x, s: (x - x.mean()) / (x.std() + s),
}
SIZES = {
    "slice": lambda x, n: (x[: n - 1], x[n // 2 :]),
    "shape": lambda x, n: (x.view(n, 4) + 1, x.reshape((n, 2, 2)), torch.zeros([n, 4]), x.new_ones(n)),
    "narrow": lambda x, n: (x.narrow(0, 0, n), x[:1].expand(n, 4) + 1, torch.arange(n)),
    "index": lambda x, n: x[n - 1] + x[n - 1, 2],
    "compared with a size": lambda x, n: x + 1 if x.shape[0] == n else x - 1,
    "resized": lambda x, n: torch.nn.functional.interpolate(x[None, None], size=(n + 1, n)),
}


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.int32])
@pytest.mark.parametrize("name", [*NUMBERS, *SIZES])
def test_numbers_of_numpys_are_symbols_as_pythons_are(name, kind):
    program = NUMBERS.get(name) or SIZES[name]
    if name in SIZES and issubclass(kind, np.floating):
        return
    compiled = bolide.compile(program)
    for rows in (3, 5, 4, 7, 6):
        x, s = torch.randn(rows, 4), kind(rows if issubclass(kind, np.integer) else rows / 7)
        alike(compiled(x.clone(), s), program(x.clone(), s))
    assert len(compiled._bolide.entries) <= 2


def alike(mine, theirs):
    if isinstance(theirs, dict):
        assert list(mine) == list(theirs)
        mine, theirs = list(mine.values()), list(theirs.values())
    if isinstance(theirs, (tuple, list)):
        for one, other in zip(mine, theirs, strict=True):
            alike(one, other)
    elif theirs is None or isinstance(theirs, (str, bool, np.dtype)):
        assert mine == theirs
    else:
        same(mine, theirs)


def test_texts_and_keys_of_numbers_of_numpys():
    def program(x, s):
        return x + 1, f"{s} {s:.3f} {s!r} {s!s}", {s: 1}[s], [0] * np.int64(3), round(s, 2)

    compiled = bolide.compile(program)
    for number in (np.float64(0.25), np.float32(0.3), np.float64(0.7), np.float32(0.9), np.float64(1 / 3)):
        x = torch.randn(3)
        found, expected = compiled(x, number), program(x, number)
        assert found[1:] == expected[1:] and type(found[4]) is type(expected[4])
        same(found[0], expected[0])


def _error(run):
    try:
        return run()
    except (IndexError, ValueError, AttributeError) as error:
        return type(error).__name__, str(error)


def _write(a, place, value):
    a[place] = value


def _summed(a):
    total = kept = a.sum() * 0
    for row in a:
        total += row.sum()
    return total, kept


ORDINARY = {
    "lists of rows": lambda a: [list(row) for row in a],
    "copies": lambda a: (copy.copy(a), copy.deepcopy({"a": a})["a"], copy.copy(a[0, 0]), copy.copy(a) is a),
    "numbers are not changed in place": _summed,
    "scalars": lambda a: (np.isscalar(a[0, 0]), np.isscalar(a), isinstance(a[0, 0], np.floating)),
    "index out of range": lambda a: _error(lambda: a[100]),
    "written out of range": lambda a: _error(lambda: _write(a, 100, 1)),
    "written of another shape": lambda a: _error(lambda: _write(a, 0, np.ones(7))),
    "no such attribute": lambda a: (_error(lambda: a.foo), _error(lambda: a[0, 0].foo)),
    "no such shape": lambda a: _error(lambda: a.reshape(7, 11)),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_uses_of_arrays(name):
    program = ORDINARY[name]
    compiled = bolide.compile(program)
    for rows in (3, 5, 4):
        a = np.random.default_rng(rows).standard_normal((rows, 4))
        alike(compiled(a.copy()), program(a.copy()))


def test_an_array_has_what_numpys_have_and_no_more():
    names = ("tensor", "array", "writeable", "made", "number", "concrete", "shape", "item", "numpy", "__array__")

    def program(a):
        found = [hasattr(value, name) for value in (a, a[0]) for name in names]
        return found, getattr(a, "tensor", 3), a + 1

    compiled = bolide.compile(program, fullgraph=True)
    for rows in (3, 5):
        a = np.arange(rows * 1.0)
        found, expected = compiled(a), program(a)
        assert found[:2] == expected[:2]
        same(found[2], expected[2])


def test_bound_methods_of_arrays_live_across_a_break_and_leave():
    def program(a):
        item, length, put = a.item, a.__len__, a.__setitem__
        bolide.graph_break()
        put(slice(None, -1), a[1:])
        return item(0), length(), a.__getitem__, a.sum

    compiled = bolide.compile(program)
    for rows in (3, 5, 4):
        a = np.arange(rows * 1.0)
        b = a.copy()
        found, expected = compiled(a), program(b)
        assert found[:2] == expected[:2]
        assert [method.__self__ is a for method in found[2:]] == [True, True]
        assert found[2](1) == expected[2](1) and found[3]() == expected[3]()
        same(a, b)


@pytest.mark.parametrize(
    "shapes",
    [((3,), (3,)), ((3, 3), (3,)), ((2, 3, 3), (3,)), ((1, 3), (3,)), ((), (2, 2)), ((3,), (3, 3)), ((3,), (2, 3, 3))]
    + [((3, 3), (3, 3)), ((3, 3), (3, 2)), ((2, 3), (3, 3)), ((2, 3, 3), (3, 3)), ((3,), ())],
    ids=str,
)
def test_products_in_place(shapes):
    def program(a, b):
        a @= b
        return a

    compiled = bolide.compile(program)
    for _ in range(2):
        outcomes = []
        for fn in (program, compiled):
            a, b = (np.arange(1.0, 1 + np.prod(shape)).reshape(shape) for shape in shapes)
            try:
                outcomes.append((fn(a, b).tolist(), a.tolist()))
            except ValueError as error:
                outcomes.append((str(error), a.tolist()))
        assert outcomes[0] == outcomes[1]


def _from_numpy(value):
    try:
        return torch.from_numpy(value)
    except TypeError as error:
        return str(error)


MADE_OF_NUMBERS = {
    "from_numpy": lambda v: _from_numpy(v.numpy() * 2),
    "from_numpy of a sum": lambda v: _from_numpy(v.numpy().sum()),
    "from_numpy of an item": lambda v: _from_numpy(v.numpy().reshape(-1)[0]),
    "from_numpy of an array": lambda v: _from_numpy(np.asarray(v.numpy() * 2)),
    "as_tensor": lambda v: torch.as_tensor(v.numpy() * 2),
    "tensor": lambda v: torch.tensor(v.numpy() * 2),
    "shape of a class": lambda v: getattr(torch, f"{v.type().rpartition('.')[2]}")(v.numpy() * 2).shape,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("name", MADE_OF_NUMBERS)
def test_tensors_of_numbers_of_numpys(name, dtype):
    function = MADE_OF_NUMBERS[name]
    compiled = bolide.compile(function)
    for number in (3, 4, 4):
        outcomes = []
        for each in (compiled, function):
            try:
                outcomes.append(each(torch.tensor(number, dtype=dtype)))
            except (TypeError, ValueError) as error:
                outcomes.append(str(error))
        assert repr(outcomes[0]) == repr(outcomes[1])


INF, NAN = float("inf"), float("nan")
LACKING = {
    "a list": lambda a, b: np.isin(a, [1, 2, 5]),
    "arrays": lambda a, b: np.isin(a, b, invert=True),
    "floats": lambda a, b: (np.isin(a / 2, b), np.isin((a / 2).astype(np.float32), [0.5, 0.1, NAN])),
    "told unique": lambda a, b: np.isin(np.unique(a), np.unique(b), assume_unique=True),
    "narrow": lambda a, b: np.isin(a.astype(np.int8), b.astype(np.uint8)),
    "halves": lambda a, b: np.isin(a.astype(np.float16), b),
    "truths": lambda a, b: np.isin(a > 2, b[:1] > 2),
    "many": lambda a, b: np.isin(a / 2, np.tile(np.where(b > 3, b / 2, NAN), 40)),
    "a number": lambda a, b: (np.isin(3, a), np.isin(a.reshape(-1, 1), a[1])),
    "a table": lambda a, b: np.isin(a, b, kind="table"),
    "between": lambda a, b: np.interp(a / 3, [0.0, 1.0, 2.5], [1.0, NAN, 3.0]),
    "ends": lambda a, b: np.interp(a.reshape(-1, 1), [1, 3], [5, 2], left=-1, right=np.float32(9)),
    "one number": lambda a, b: np.interp(2.5, np.sort(a), a),
    "one knot": lambda a, b: np.interp(a, np.array([2.0]), b[:1]),
    "its own": lambda a, b: np.interp(b, np.sort(a), a * a),
    "not finite": lambda a, b: np.interp(
        [-INF, NAN, INF, 0.5, 1.0, 2.0, 3.0], [-INF, 1, 2, INF], (a[:1] + 1) * [1, INF, 2, 2]
    ),
}


@pytest.mark.parametrize("name", LACKING)
def test_functions_that_the_layer_lacks(name):
    def run(compile):
        compiled, seen = compile(lambda x, b: (LACKING[name](x.detach().numpy().astype(int), b), x * 2)), []
        for n in (3, 5, 4, 7, 6):
            x = (torch.rand(n) * 8).requires_grad_()
            result, y = compiled(x, np.random.randint(0, 8, n))
            y.sum().backward()
            seen.append((result, y, x.grad))
        return seen

    check_whole(run, breaks=2 if name == "a table" else 0)


@pytest.mark.parametrize(
    "program",
    [lambda a: np.interp(a, [], []), lambda a: np.interp(a, a, a[1:]), lambda a: np.interp(a, a[None], a[None])],
)
def test_points_that_numpy_refuses(program):
    for run in (program, bolide.compile(program)):
        with pytest.raises(ValueError, match=r"empty|same length|too deep"):
            run(np.arange(4.0))


def test_interpolation_is_differentiable_in_a_wrapped_function():
    @bolide.wrap_numpy
    def program(a, knots, values):
        return np.interp(a, knots, values)

    def by_hand(a, knots, values):
        low = torch.searchsorted(knots, a).clamp(1, len(knots) - 1) - 1
        share = ((a - knots[low]) / (knots[low + 1] - knots[low])).clamp(0, 1)
        return values[low] * (1 - share) + values[low + 1] * share

    inputs = [torch.randn(9, dtype=torch.float64), torch.randn(5, dtype=torch.float64).sort().values]
    inputs = [each.requires_grad_() for each in (*inputs, torch.randn(5, dtype=torch.float64))]
    mine, theirs = (
        [y, *torch.autograd.grad(y.sin().sum(), inputs)]
        for y in (bolide.compile(program, fullgraph=True)(*inputs), by_hand(*inputs))
    )
    torch.testing.assert_close(mine, theirs)
