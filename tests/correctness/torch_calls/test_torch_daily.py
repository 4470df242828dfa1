"""What programs of every day use of torch: inference mode inside, results taken for constants, files in memory, the
fast path of encoders; and the names by which they reach bolide's own configuration, guards and figures."""

from __future__ import annotations

import copy
import importlib
import io
import itertools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bolide

# ---- inference mode --------------------------------------------------------------------------------------------------


def inside(x: Any) -> Any:
    with torch.inference_mode():
        y = x.detach() * 2
        y.add_(1)
        return y, torch.ones(3), y[1:], y.sum()


@torch.inference_mode()
def decorated(x: Any) -> Any:
    return x * 2, x


def views_and_what_is_computed_later(x: Any) -> Any:
    with torch.inference_mode():
        y = x * 2
        views = x[1:], y[1:]
    return y, views, y + 1, y.clone()


def asked(x: Any) -> Any:
    with torch.inference_mode():
        y = x * 2
        said = y.is_inference(), x.is_inference(), x[1:].is_inference(), torch.is_inference_mode_enabled()
    return y, said, y.is_inference(), torch.is_inference(x), x + (1 if x.is_inference() else 2)


def behind_a_break(x: Any) -> Any:
    with torch.inference_mode():
        y = x * 2
        bolide.graph_break()
        z = y + 1
    bolide.graph_break()
    return y, z, y + 1


def left_inside(x: Any) -> Any:
    with torch.inference_mode():
        with torch.inference_mode(False):
            z = x * 3
        y = x * 2
    return y, z


def saved_for_the_backward(x: Any) -> Any:
    with torch.inference_mode():
        y = x * 2
    return x * y


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.requires_grad, value.is_inference()
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def outcome(program: Callable[[Any], Any], x: Any) -> Any:
    try:
        return plain(program(x))
    except RuntimeError as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    "program",
    [inside, decorated, views_and_what_is_computed_later, asked, behind_a_break, left_inside, saved_for_the_backward],
    ids=lambda program: program.__name__,
)
def test_what_is_made_in_inference_mode_is_as_in_eager(program: Callable[[Any], Any]) -> None:
    compiled = bolide.compile(program)
    for size, (grad, made_in_it) in itertools.product((3, 4, 6), ((False, False), (True, False), (False, True))):
        with torch.inference_mode(made_in_it):
            x = (torch.arange(size) / 2).requires_grad_(grad)
        assert outcome(compiled, x) == outcome(program, x)


# ---- results that are constants --------------------------------------------------------------------------------------


def test_a_constant_is_computed_of_tensors() -> None:
    calls = []

    @bolide.assume_constant_result
    def number(x: Any, scale: float = 1.0) -> float:
        calls.append(x.clone())
        return float(x.sum()) * scale

    @bolide.assume_constant_result
    def of_containers(parts: Any, named: Any) -> Any:
        return parts[0].sum().item() + named["a"].max().item()

    linear = nn.Linear(3, 3)

    def program(x: Any) -> Any:
        y = linear(x.relu())
        return y * number(y.detach(), scale=2.0) + of_containers([x, x], {"a": x * 3}).__float__()

    for dynamic in (None, True):
        x = torch.randn(3, 3)
        expected = program(x)
        compiled = bolide.compile(program, fullgraph=True, dynamic=dynamic)
        assert torch.allclose(compiled(x), expected, atol=1e-5)
        assert torch.allclose(calls[-1], linear(x.relu()), atol=1e-6)
        seen = len(calls)
        compiled(torch.randn(3, 3)).sum().backward()  # no guard: the first call's number
        assert len(calls) == seen


# ---- files in memory -------------------------------------------------------------------------------------------------


def test_files_in_memory_are_entered() -> None:
    def text(x: Any) -> Any:
        with io.StringIO() as file:
            file.write("four")
            return x + len(file.getvalue()), file.closed

    def data(x: Any) -> Any:
        with io.BytesIO() as file:
            file.write(b"four")
            file.seek(1)
            y = x + len(file.read())
        return y, file.closed

    for program in (text, data):
        compiled = bolide.compile(program, fullgraph=True)
        for size in (2, 3):
            x = torch.randn(size)
            (y, closed), (wanted, was_closed) = compiled(x), program(x)
            assert torch.equal(y, wanted) and closed is was_closed


# ---- the fast path of encoders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["aligned", "not aligned", "additive", "none"])
@pytest.mark.parametrize("gradients", ["off", "frozen", "on"])
def test_encoders_write_zeros_where_eager_does(mask: str, gradients: str) -> None:
    for norm, norm_first in itertools.product((False, True), repeat=2):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8) if norm else None).eval()
        encoder.requires_grad_(gradients == "on")
        compiled = bolide.compile(encoder, fullgraph=True)
        for batch, length in ((2, 5), (3, 4), (2, 6)):
            padding = torch.zeros(batch, length, dtype=torch.bool)
            padding[0, 3:] = True
            padding[1, 0 if mask == "not aligned" else -1] = True
            given = torch.zeros(batch, length).masked_fill(padding, -torch.inf) if mask == "additive" else padding
            x = torch.randn(batch, length, 8)
            with warnings.catch_warnings(), torch.set_grad_enabled(gradients != "off"):
                warnings.simplefilter("ignore")
                wanted = encoder(x, src_key_padding_mask=None if mask == "none" else given)
            with torch.set_grad_enabled(gradients != "off"):
                found = compiled(x, src_key_padding_mask=None if mask == "none" else given)
            assert torch.allclose(found, wanted, atol=1e-5)


def test_whether_the_fast_path_is_taken_is_guarded() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 1).eval()
    padding, x = torch.tensor([[False, True], [False, False]]), torch.randn(2, 2, 8)
    compiled = bolide.compile(encoder)
    with torch.no_grad():
        for enabled in (True, False, True):
            torch.backends.mha.set_fastpath_enabled(enabled)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    wanted = encoder(x, src_key_padding_mask=padding)
                found = compiled(x, src_key_padding_mask=padding)
            finally:
                torch.backends.mha.set_fastpath_enabled(True)
            assert torch.allclose(found, wanted, atol=1e-5)


# ---- bolide's own names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["dynamo", "inductor"])
def test_a_configuration_is_one_object(stage: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"import bolide.{stage}.config as a\nfrom bolide.{stage} import config as b", namespace)
    config = getattr(bolide, stage).config
    assert namespace["a"] is namespace["b"] is config is sys.modules[f"bolide.{stage}.config"]
    assert importlib.import_module(f"bolide.{stage}.config") is config
    exec(f"from bolide.{stage}.config import config as c, {type(config).__name__} as d", namespace)
    assert namespace["c"] is config and namespace["d"] is type(config)
    with pytest.raises(AttributeError):
        config.no_such_option = 1


def test_a_guard_that_fails_is_told() -> None:
    failures = []
    compiled = bolide.dynamo.optimize("eager", guard_fail_fn=failures.append)(function := lambda x, n: x * n)
    compiled(torch.ones(2), 3.0)
    assert not failures
    compiled(torch.ones(2, dtype=torch.float64), 3.0)
    (failure,) = failures
    assert "float32" in failure.reason and failure.orig_code is function.__code__
    with pytest.raises(TypeError):
        bolide.dynamo.optimize("eager", guard_fail_fn=3)


def test_figures_have_pytorchs_names() -> None:
    def program(x: Any) -> Any:
        return x.sin().cos()

    with bolide.dynamo.config.patch(log_compilation_metrics=True):
        bolide.compile(program)(torch.ones(2))
        made = bolide.dynamo.get_compilation_metrics()[-1]
    assert made.co_name.endswith("program") and made.co_filename == __file__
    assert made.co_firstlineno == program.__code__.co_firstlineno
    assert made.guard_count > 0 and made.graph_op_count >= 2 and made.cache_size == 0
    assert made.entire_frame_compile_time_s >= made.backend_compile_time_s > 0
    assert made.fail_type is None and made.fail_reason is None


# ---- regions of the profiler -----------------------------------------------------------------------------------------


def test_a_region_that_lasts_over_a_break_is_as_in_eager() -> None:
    named = torch.profiler.record_function("named")

    def fn(x: torch.Tensor) -> torch.Tensor:
        with named:
            y = x.sin()
            bolide.graph_break()
            y = y.cos()
        return y * 2

    compiled = bolide.compile(fn)
    for size in (3, 5):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), x.sin().cos() * 2)


def test_functions_of_cpp_extensions_that_are_read_are_no_fault() -> None:
    """pybind11 binds its functions to a record of its own, whose class has no such name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        graph = torch.jit.script(nn.Linear(2, 2)).graph

    def fn(x: torch.Tensor) -> Any:
        with torch.autograd.profiler.profile() as profile:
            y = x * 2
            print(end="")
            y = y + 3
        nodes = graph.findAllNodes
        return y, len(profile.function_events) > 0, len(nodes("aten::linear")), nodes.__name__

    compiled = bolide.compile(fn)
    for size in (3, 5):
        x = torch.randn(size)
        (found, *others), (expected, *theirs) = compiled(x), fn(x)
        torch.testing.assert_close(found, expected)
        assert others == theirs


# ---- copies of tensors ---------------------------------------------------------------------------------------------


COPIES = {
    "leaf": "copy.deepcopy(x)",
    "history": "copy.deepcopy(x * 2)",
    "history in a dict": "copy.deepcopy({'t': [x * 2]})",
    "view": "copy.deepcopy(x[1:])",
    "detached": "copy.deepcopy((x * 2).detach())",
    "twice": "(lambda both: both[0] is both[1])(copy.deepcopy([x, x]))",
    "shallow": "copy.copy(x.detach())",
    "shallow, used": "(copy.copy(x) * 2).detach(), copy.copy(x * 2).is_leaf",
    "of a module": "copy.deepcopy(linear).weight",
}


def test_a_shallow_copy_is_a_leaf_in_the_same_memory() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return copy.copy(x) * w + copy.copy(w * 2) + w

    compiled = bolide.compile(program)
    for size in (3, 4, 6):
        x, w = torch.randn(size, requires_grad=True), torch.randn(size, requires_grad=True)
        found, wanted = [torch.autograd.grad(f(x, w).sum(), (x, w), allow_unused=True) for f in (compiled, program)]
        assert found[0] is wanted[0] is None
        torch.testing.assert_close(found[1], wanted[1])


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("grad", [False, True])
def test_copies_of_tensors(kind: str, grad: bool) -> None:
    """Eager refuses a deep copy of what has a history."""
    scope: dict[str, Any] = {"copy": copy, "linear": nn.Linear(3, 3)}
    body = f"    try: found = {COPIES[kind]}\n    except RuntimeError as error: found = str(error)\n"
    exec(f"def program(x):\n{body}    return x + 1, found", scope)
    compiled = bolide.compile(scope["program"])
    for size in (3, 4, 6):
        x = torch.randn(size, requires_grad=grad)
        (mine, found), (theirs, expected) = compiled(x), scope["program"](x)
        torch.testing.assert_close(mine, theirs)
        while isinstance(expected, (dict, list, tuple)):
            key = "t" if isinstance(expected, dict) else 0
            found, expected = found[key], expected[key]
        assert type(found) is type(expected) and found is not x
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(found, expected)
            assert (found.requires_grad, found.is_leaf) == (expected.requires_grad, expected.is_leaf)
        else:
            assert found == expected


def test_names_of_types_are_the_programs() -> None:
    def fn(x: torch.Tensor, value: Any) -> Any:
        asked = (value, x.shape[0], x.shape, x.max().item(), x.numpy()[0], (y for y in x), x, f"{x}")
        return [torch.typename(each) for each in asked]

    for values in ([2.5, 3.5, 4.5], [3, 4, 5], ["a", [1], nn.Linear, nn.Linear(2, 2), torch.float32]):
        compiled = bolide.compile(fn, dynamic=True)
        for size, value in enumerate(values, 2):
            x = torch.randn(size)
            assert compiled(x, value) == fn(x, value)


COPIED: list[tuple[torch.dtype, list[Any]]] = [
    (torch.float32, [1, 2, 3]),
    (torch.float64, [0.1, 0.2, 0.3]),
    (torch.int32, [2.7, -2.7, 3.5]),
    (torch.uint8, [300, -1, 7]),
    (torch.float32, [True, False]),
    (torch.complex64, [1j, 2 - 1j]),
]


@pytest.mark.parametrize("dtype, numbers", COPIED)
def test_numbers_are_copied_into_tensors(dtype: torch.dtype, numbers: list[Any]) -> None:
    def fn(x: torch.Tensor, number: Any) -> Any:
        y = x.new_zeros(2, 3)
        y[:, 1:].copy_(number)
        return y, x.copy_(number, non_blocking=True), y.sum().copy_(x.shape[0])

    compiled = bolide.compile(fn, fullgraph=True)
    for size, number in enumerate(numbers, 2):
        ours, theirs = torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)
        torch.testing.assert_close(compiled(ours, number), fn(theirs, number), rtol=0, atol=0)
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["add", "mul", "div", "true_divide"])
@pytest.mark.parametrize("numbers", [(2, 1.1), (3, 4), (2.5, 1), (True, 2), (2, 1j)])
def test_torchs_functions_of_numbers_write_to_a_tensor(name: str, numbers: tuple[Any, Any]) -> None:
    function: Any = getattr(torch, name)
    dtype = torch.complex64 if complex in map(type, numbers) else torch.float32
    called, inside = bolide.compile(function), bolide.compile(lambda out, a, b: function(a, b, out=out), fullgraph=True)
    for more in (0, 1, 2):
        a, b = numbers[0], numbers[1] + more
        expected, ours, theirs = (torch.zeros((), dtype=dtype) for _ in range(3))
        function(a, b, out=expected)
        called(a, b, out=ours)
        inside(theirs, a, b)
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(theirs, expected)
