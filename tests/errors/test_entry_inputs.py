"""Unusual arguments and surroundings: compiled where that is right, else eager with a reason; never another answer."""

from __future__ import annotations

import random
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import bolide


class Tagged(torch.Tensor):
    """A subclass of Tensor whose instances cannot be stood for."""

    __slots__ = ("tag",)


def scale(x):
    return x * 2


def make(kind: str) -> torch.Tensor:
    x = torch.randn(3, 4)
    match kind:
        case "sparse":
            return x.to_sparse()
        case "quantised":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
        case "subclass":
            return x.as_subclass(Tagged)
        case "nested":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.nested.nested_tensor([x, x[:2]])
        case "conjugate":
            return torch.complex(x, x).conj()
        case "negated":
            return torch._neg_view(x)
        case "device meta":
            return x.to("meta")
    raise AssertionError(kind)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("sparse", "sparse"),
        ("quantised", "quantised"),
        ("subclass", "Tagged"),
        ("nested", "nested"),
        ("conjugate", "conjugate"),
        ("negated", "negated"),
        ("device meta", "device meta"),
    ],
)
def test_tensors_that_cannot_be_compiled_run_in_eager(kind: str, reason: str) -> None:
    x = make(kind)
    f = bolide.compile(lambda x: x.clone())
    with pytest.warns(bolide.BolideWarning, match=reason):
        y = f(x)
    assert type(y) is type(x) and y.layout == x.layout
    with pytest.raises(bolide.Unsupported, match=reason):
        bolide.compile(lambda x: x.clone(), fullgraph=True)(x)
    plain = torch.randn(2)
    torch.testing.assert_close(f(plain), plain)
    assert len(f._bolide.entries) == 1


@pytest.mark.filterwarnings("ignore::bolide.BolideWarning")
@pytest.mark.parametrize("kind", ["sparse", "quantised", "subclass", "nested", "conjugate", "negated"])
def test_what_cannot_be_compiled_is_not_tried_for_ever(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that are no inputs are left to eager after some calls, as arguments, in containers and where segments go
    on; other arguments are compiled for all the same."""
    monkeypatch.setattr(bolide.dynamo.config, "eager_if_faster", False)  # calls that eager runs in a trial

    def inside(x):
        bolide.graph_break()
        return [x.clone().detach(), x.dim()]

    def calls() -> int:
        return len(bolide.dynamo.get_compilation_metrics())  # the last ones only, of all that this process compiled

    bolide.reset()

    for fn, form in (
        (inside, lambda x: x),
        (lambda xs: xs[-1].clone(), lambda x: [1, x]),
        (lambda xs: xs["x"].clone(), lambda x: {"x": x}),
        (lambda *xs: xs[0].clone(), lambda x: x),
    ):
        f, x = bolide.compile(fn), make(kind)
        for _ in range(bolide.dynamo.config.cache_size_limit + random.randint(1, 4)):
            f(form(x))
        before = calls()
        found, expected = f(form(x)), fn(form(x))
        assert calls() == before
        found, expected = (each if isinstance(each, list) else [each] for each in (found, expected))
        assert str(found) == str(expected)
        plain = torch.randn(2)
        f(form(plain))
        assert calls() > before and f._bolide.entries


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(0, 3),
        torch.tensor(3.0),
        torch.randn(1, 3).expand(4, 3),
        torch.randn(10).as_strided((3, 3), (1, 1)),
        torch.randn(3, 4).t()[::2],
        torch.randn(3, 8)[:, 1::3],
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(3, dtype=torch.int8),
        torch.randn(3).half(),
        torch.randn(3, dtype=torch.complex64),
    ],
    ids=[
        "empty",
        "0-dim",
        "expanded",
        "overlapping",
        "transposed",
        "strided",
        "channels_last",
        "int8",
        "half",
        "complex",
    ],
)
def test_unusual_layouts_and_types(x: torch.Tensor) -> None:
    y = bolide.compile(scale, fullgraph=True)(x)
    torch.testing.assert_close(y, scale(x), rtol=0, atol=0)
    assert y.stride() == scale(x).stride()


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda a, b: a + b, (torch.ones(3, 4), torch.ones(5))),
        (lambda a, b: a @ b, (torch.ones(3, 4), torch.ones(5, 3))),
        (lambda a: a.view(5), (torch.ones(4),)),
        (lambda a: nn.functional.linear(a, torch.ones(3, 3)), (torch.ones(4),)),
        (lambda a: a[9], (torch.ones(4),)),
        (lambda a: {}["missing"], (torch.ones(4),)),
    ],
)
def test_the_users_errors_are_eagers(fn: Any, args: Any) -> None:
    with pytest.raises(Exception) as eager:
        fn(*args)
    with pytest.raises(eager.type) as compiled:
        bolide.compile(fn, fullgraph=True)(*args)
    assert str(compiled.value) == str(eager.value)
    assert any(str(frame.path) == __file__ for frame in compiled.traceback[1:])


def test_transforms_modes_and_tracing_run_in_eager() -> None:
    x = torch.randn(3)
    with pytest.warns(bolide.BolideWarning, match=r"torch\.func"):
        torch.testing.assert_close(torch.func.grad(bolide.compile(lambda x: scale(x).sum()))(x), torch.full((3,), 2.0))
    with forward_ad.dual_level(), pytest.warns(bolide.BolideWarning, match="forward-mode"):
        dual = bolide.compile(scale)(forward_ad.make_dual(x, torch.ones(3)))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, torch.full((3,), 2.0))
    with (
        bolide.dynamo.config.patch(error_on_nested_fx_trace=False),
        pytest.warns(bolide.BolideWarning, match=r"torch\.fx"),
    ):
        assert "mul" in torch.fx.symbolic_trace(bolide.compile(scale)).code


def test_disable_in_all_its_forms() -> None:
    compiled = bolide.compile(scale)
    x = torch.randn(3)
    compiled(x)
    before = len(compiled._bolide.entries)
    with bolide.disable():
        torch.testing.assert_close(compiled(torch.randn(4)).shape, torch.Size([4]))
    off = bolide.disable(compiled)
    off(torch.randn(5))
    off_inside = bolide.disable(lambda x: compiled(x))
    off_inside(torch.randn(6))
    assert len(compiled._bolide.entries) == before
    bolide.disable(lambda x: compiled(x), recursive=False)(torch.randn(6))
    assert len(compiled._bolide.entries) == before + 1


def test_callables_methods_and_nesting() -> None:
    class Scaler:
        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, x):
            return x * self.by

        @bolide.compile(fullgraph=True)
        def method(self, x):
            return inner(x) * self.by

    inner = bolide.compile(scale, fullgraph=True)
    x = torch.randn(3)
    s = Scaler(3.0)
    torch.testing.assert_close(bolide.compile(s, fullgraph=True)(x), x * 3)
    torch.testing.assert_close(s.method(x), x * 6)
    torch.testing.assert_close(bolide.compile(s.method, fullgraph=True)(x), x * 6)
    s.by = 4.0
    torch.testing.assert_close(s.method(x), x * 8)
    assert not inner._bolide.entries, "compiled functions inside compiled code are captured with it"


def test_reset_forgets_everything_and_is_safe_while_running() -> None:
    f = bolide.compile(scale, fullgraph=True)
    stop = threading.Event()
    errors: list[BaseException] = []

    def call() -> None:
        x = torch.randn(5)
        try:
            while not stop.is_set():
                assert torch.equal(f(x), x * 2)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    for _ in range(5):
        f(torch.randn(3))
        bolide.reset()
    stop.set()
    thread.join()
    assert not errors


def test_attribute_flipped_in_inference_and_training() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    compiled = bolide.compile(model, fullgraph=True)
    x = torch.randn(8, 4)
    for _ in range(2):
        compiled.train()
        compiled(x)
        compiled.eval()
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
        with torch.inference_mode():
            torch.testing.assert_close(compiled(x), model(x))
    assert len(compiled._bolide_call._bolide.entries) == 3


@pytest.mark.parametrize("kind", ["sparse", "quantised", "nested", "conjugate"])
def test_what_does_without_such_a_tensor_is_compiled(kind: str) -> None:
    """The function breaks where it reads the argument, and says so; what comes before and after is compiled."""

    def fn(given: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = y.sin() * 2
        z = given.dequantize() if kind == "quantised" else given.clone()
        return y.cos() + z.dim()

    given, y = make(kind), torch.randn(3)
    compiled = bolide.compile(fn, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            torch.testing.assert_close(compiled(given, y), fn(given, y))
    assert len(compiled._bolide.entries) == 1 and len(compiled._bolide.points) > 0
    with pytest.raises(bolide.Unsupported, match=kind) as raised:
        bolide.compile(fn, fullgraph=True)(given, y)
    assert raised.value.where is not None and raised.value.where.function.endswith("fn")
    assert bolide.compile(lambda given, y: y * 2, fullgraph=True)(given, y).equal(y * 2)


@pytest.mark.parametrize("size", [4, 40])
def test_norms_of_integers_raise_as_in_eager(size: int) -> None:
    x = torch.randint(5, (1, 8, size, size))
    for norm in (
        lambda x: torch.nn.functional.group_norm(x, 2),
        lambda x: torch.nn.functional.layer_norm(x, (size,)),
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
    ):
        with pytest.raises(NotImplementedError) as eager:
            norm(x)
        with pytest.raises(NotImplementedError) as ours:
            bolide.compile(norm)(x)
        assert str(ours.value) == str(eager.value)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_result_in_an_inputs_memory_has_a_history_of_its_own(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.detach()
        y.copy_(x)
        return y

    x = torch.randn(4, requires_grad=True)
    found = bolide.compile(program, backend=backend)(x)
    assert found is not x and not found.is_leaf and found.data_ptr() == x.data_ptr()
    (found * 3).sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 3.0))
