"""Programs over sizes, integers and floats that change from call to call: the second value compiles once more, later
ones never, and results are eager's."""

from __future__ import annotations

import importlib
import inspect
import math
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.dynamo.guards import texts as guards
from bolide.support import events

SHAPES = ((5, 4), (7, 4), (7, 6), (9, 5), (3, 3), (11, 7), (2, 4), (13, 4))
WEIGHT = torch.randn(8, 8)


def slices(x: Any) -> Any:
    return x[: x.shape[0] // 2] + x.shape[0] // 2, x[1:-1], x[:, -1], x.narrow(0, 1, x.shape[0] - 1)


def factories(x: Any) -> Any:
    n = x.shape[0]
    return x + torch.arange(n)[:, None], torch.zeros(n, 2), x.new_zeros(n + 1), torch.full((n,), n), torch.eye(n)


def views(x: Any) -> Any:
    flat = x.view(-1)
    tall = x[:, None].expand(x.shape[0], 5, x.shape[1]).reshape(-1, x.shape[1])
    return flat.view(x.shape), x.t(), tall.repeat(2, 1), x.reshape(x.shape[1], -1), x.flatten(), x.movedim(0, 1)


def pieces(x: Any) -> Any:
    n = x.shape[0]
    a, b = x.split([n // 2, n - n // 2])
    c, d = torch.cat([x, x]).chunk(2)
    return a, b * 2, c + d, x.chunk(2)[0]


def padding(x: Any) -> Any:
    return F.pad(x, (1, 2, 3, x.shape[0])), x.roll(1, 0), torch.cat([x, x * 2, x[:1]]), torch.stack([x, x]), x.flip(0)


def resizing(x: Any) -> Any:
    image = x[None, None]
    return F.interpolate(image, scale_factor=2, mode="nearest"), F.interpolate(image, scale_factor=1.5, mode="bilinear")


def integers(x: Any) -> Any:
    n, (whole, rest) = x.shape[0], divmod(x.shape[0], 3)
    fine = isinstance(n, int) and type(n) is int and not isinstance(n, float) and n is not None
    return x * whole + rest, x.numel() * 2, len(x), x.shape, n << 1, (n + 1) >> 1, abs(-n), min(n, 5), max(n, 3), fine


def floats(x: Any) -> Any:
    n = x.shape[0]
    return x / n, x.sum() / n, x * (1.0 / n), x / math.sqrt(n), x * n**0.5, n * 2.5, n / 2, int(n * 1.5), x * (n * 0.1)


def bits(x: Any) -> Any:
    n, m = x.shape[0], 5 - x.shape[0]
    whole = round(n / 2), round(m / 4), round(n / 3), round(m / 6), n & 6, m & 13, n & -4, m | 9, n ^ 7
    return x * (n & 1), whole


def masks(x: Any) -> Any:
    n = x.shape[0]
    causal = torch.tril(torch.ones(n, n, dtype=torch.bool))
    return torch.zeros(n, n).masked_fill(~causal, -1e9).softmax(-1) @ x


def orders(x: Any) -> Any:
    return x.sort(0)[0], x.topk(2, 0)[0], x.cumsum(0), x.argmax(0), x.max(0)[0], x.median(), x.std(0), x.var()


def writes(x: Any) -> Any:
    y = x.clone()
    y[1:] += 1
    y.mul_(x.shape[0])
    y.index_add_(0, torch.arange(x.shape[0]), x)
    x.add_(x.shape[0])
    return y, x[:2]


def products(x: Any) -> Any:
    return (
        torch.einsum("ij,kj->ik", x, x),
        x @ x.T,
        torch.matmul(x[None], WEIGHT[: x.shape[1], :3]),
        x[None] @ x.T[None],
    )


def layers(x: Any) -> Any:
    places = (x[:, 0].abs() * 2).long().clamp(0, 7)
    image = x[None, None]
    pooled = F.max_pool2d(F.conv2d(image, torch.ones(2, 1, 3, 3), padding=1), 2), F.avg_pool1d(x[None], 2)
    return F.embedding(places, WEIGHT), F.layer_norm(x, (x.shape[1],)), F.glu(torch.cat([x, x], 1), 1), *pooled


def nested(x: Any) -> Any:
    return {"a": (x.shape[0] + 1, [x * 2]), "b": [x.shape[0]] * 2, "c": x.size()}


#: program, and how many versions it may have: one more where the program treats some size of SHAPES otherwise
PROGRAMS: dict[Callable[[Any], Any], int] = {
    slices: 4,
    factories: 3,
    views: 3,
    pieces: 4,
    padding: 3,
    resizing: 3,
    integers: 3,
    floats: 3,
    bits: 3,
    masks: 3,
    orders: 3,
    writes: 4,
    products: 3,
    layers: 4,
    nested: 3,
}


def same(mine: Any, theirs: Any) -> None:
    assert type(mine) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    elif isinstance(theirs, (list, tuple)):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs):
            same(a, b)
    elif isinstance(theirs, dict):
        assert list(mine) == list(theirs)
        same(list(mine.values()), list(theirs.values()))
    else:
        assert mine == theirs


@pytest.mark.parametrize("backend", ["inductor", "eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs_over_sizes(program: Callable[[Any], Any], backend: str) -> None:
    compiled = bolide.compile(program, fullgraph=True, backend=backend)
    for shape in SHAPES:
        x = torch.randn(shape)
        same(compiled(x.clone()), program(x.clone()))
    made = versions(compiled)
    assumed = [guards.text(guard) for guard in compiled._bolide.entries[-1].guards if guard.kind == "relation"]
    assert made <= PROGRAMS[program], assumed


def versions(compiled: Any) -> int:
    return len(compiled._bolide.entries)


def test_branches_on_sizes_are_guarded() -> None:
    def f(x: Any) -> Any:
        return x + 1 if x.shape[0] > 6 else x - 1

    compiled = bolide.compile(f, fullgraph=True)
    for n in (3, 4, 5, 8, 9, 6, 7, 20):
        x = torch.randn(n)
        same(compiled(x), f(x))
    assert versions(compiled) == 3


def test_loops_over_sizes_fix_them_and_say_where() -> None:
    def f(x: Any) -> Any:
        for i in range(x.shape[0]):
            x = x + i
        return x

    told: list[Any] = []
    compiled = bolide.compile(f, fullgraph=True)
    with events.subscribed(told.append):
        for n in (3, 4, 5):
            x = torch.randn(n)
            same(compiled(x), f(x))
    fixed = [event for event in told if isinstance(event, events.Specialised)]
    assert fixed and all(event.source == "x.shape[0]" and "range" in event.where.text for event in fixed)
    assert versions(compiled) == 3


def test_texts_and_keys_have_the_value() -> None:
    def f(x: Any) -> Any:
        found = {x.shape[0]: "rows", tuple(x.shape): "shape"}
        n = x.shape[0]
        return f"{n}-{x.size(1):03d}", str(x.shape), repr(n), found, found[n], "%d" % n  # noqa: UP031

    compiled = bolide.compile(f, fullgraph=True)
    for n in (3, 4, 5, 3):
        x = torch.randn(n, 2)
        same(compiled(x), f(x))


@pytest.mark.parametrize("training", [False, True])
def test_views_of_arguments_and_gradients(training: bool) -> None:
    def f(x: Any, w: Any) -> Any:
        h = (x @ w).view(x.shape[0] // 2, 2, -1)
        return h, h.transpose(0, 1), x[1:], (h * x.shape[0]).sum()

    compiled = bolide.compile(f, fullgraph=True)
    for n in (4, 6, 8, 10, 2):
        x = torch.randn(n, 3, requires_grad=training)
        y = x.detach().clone().requires_grad_(training)
        w = torch.randn(3, 4)
        a, b = f(x, w), compiled(y, w)
        same(b, a)
        assert all(mine.stride() == theirs.stride() for mine, theirs in zip(b, a))
        assert b[2].untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
        assert b[1].untyped_storage().data_ptr() == b[0].untyped_storage().data_ptr()
        if training:
            a[3].backward()
            b[3].backward()
            same(y.grad, x.grad)
    assert versions(compiled) <= 3  # 2 // 2 is 1


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.linear(x) * self.calls


def test_floats_that_are_needed_are_logged_with_the_line() -> None:
    def f(x: Any, h: float) -> Any:
        return x * len(str(h))

    told: list[Any] = []
    compiled = bolide.compile(f, fullgraph=True)
    with events.subscribed(told.append):
        for h in (0.25, 0.5, 0.75):
            x = torch.randn(3)
            same(compiled(x, h), f(x, h))
    fixed = [event for event in told if isinstance(event, events.Specialised)]
    assert fixed and all(event.source == "h" and "str(h)" in event.where.text for event in fixed)


def test_a_counter_does_not_compile_for_ever() -> None:
    module = Counter()
    compiled = bolide.compile(module, fullgraph=True)
    x = torch.randn(3, 4)
    for call in range(1, 7):
        same(compiled(x), module.linear(x) * call)
    assert module.calls == 6 and type(module.calls) is int
    made = len(compiled._bolide_call._bolide.entries)
    assert made == 2


@pytest.mark.parametrize("values", [(3, 2, 5, 4, 100), (0.5, 0.25, 0.1, 3.5, 1e-9)], ids=["int", "float"])
def test_numbers_as_arguments(values: tuple[Any, ...]) -> None:
    def f(x: Any, n: Any, pair: Any) -> Any:
        return x * n + pair[1], n * 2, n + 1

    compiled = bolide.compile(f, fullgraph=True)
    x = torch.randn(6, 2)
    for n in values:
        same(compiled(x, n, (n, n)), f(x, n, (n, n)))
    assert versions(compiled) == 2
    with bolide.dynamo.config.patch(specialize_int=True, specialize_float=True):
        compiled = bolide.compile(f, fullgraph=True)
        for n in values:
            same(compiled(x, n, (n, n)), f(x, n, (n, n)))
        assert versions(compiled) == len(values)


def doubled(x: Any) -> Any:
    return x * 2 + x.shape[0]


def calls(compiled: Any, sizes: tuple[int, ...], mark: Callable[..., None] | None = None) -> int:
    """How many versions these sizes take."""
    for n in sizes:
        x = torch.randn(n, 3)
        if mark is not None:
            mark(x, 0)
        same(compiled(x), doubled(x))
    return versions(compiled)


def test_dynamic() -> None:
    assert calls(bolide.compile(doubled, dynamic=False), (5, 6, 7)) == 3
    assert calls(bolide.compile(doubled, dynamic=True), (5, 6, 7, 2)) == 1
    assert calls(bolide.compile(doubled), (5, 6, 7, 2, 1, 0)) == 4  # 0 and 1 are versions of their own
    with bolide.dynamo.config.patch(automatic_dynamic_shapes=False):
        assert calls(bolide.compile(doubled), (5, 6, 7)) == 3
    with bolide.dynamo.config.patch(assume_static_by_default=False):
        assert calls(bolide.compile(doubled), (5, 6, 7)) == 1


def test_marks() -> None:
    assert calls(bolide.compile(doubled), (5, 6, 7, 2), bolide.mark_dynamic) == 1
    assert calls(bolide.compile(doubled), (5, 6, 7, 2), bolide.maybe_mark_dynamic) == 1
    assert calls(bolide.compile(doubled), (5, 1, 7, 2), bolide.mark_unbacked) == 1
    assert calls(bolide.compile(doubled), (5, 6, 7), bolide.mark_static) == 3
    compiled = bolide.compile(doubled)
    x = torch.randn(5, 3)
    bolide.mark_dynamic(x, 0, min=4, max=9)
    compiled(x)
    assert calls(compiled, (4, 9)) == 1 and calls(compiled, (12,)) == 2
    with pytest.raises(ValueError, match="outside of"):
        bolide.mark_dynamic(x, 0, max=4)
    with pytest.raises(IndexError, match="2 dimensions"):
        bolide.mark_dynamic(x, 2)
    with pytest.raises(TypeError, match="tensor"):
        bolide.mark_static_address(3)


@pytest.mark.parametrize("module", ["bolide", "torch._dynamo.decorators"])
def test_bounds_and_names_of_unbacked_sizes(module: str) -> None:
    mark = importlib.import_module(module).mark_unbacked
    known = inspect.signature(mark).parameters
    together = bolide.compile(lambda x, y: (x + y, y.sum(0)), fullgraph=True)
    for size in (5, 1, 0, 7):
        x, y = torch.randn(size, 3), torch.randn(size, 3)
        mark(x, 0, shape_id="rows", strict=False, hint_override=8, specialize_on=[lambda n: n == 8])
        mark(y, [0], 8, False, None, "rows")
        same(together(x, y), (x + y, y.sum(0)))
    x, y = torch.randn(1, 3), torch.randn(4, 3)
    mark(x, 0, shape_id="rows")
    mark(y, 0, shape_id="rows")
    same(together(x, y), (x + y, y.sum(0)))
    if "min" in known:
        bounded = bolide.compile(doubled)
        for size, count in ((5, 1), (4, 1), (6, 1), (9, 2)):
            x = torch.randn(size, 3)
            if size < 7:
                mark(x, 0, min=4, max=6)
            same(bounded(x), doubled(x))
            assert versions(bounded) == count


def test_a_size_outside_of_the_bounds_that_torch_was_told() -> None:
    x = torch.randn(3, 2)
    vars(x).update(_dynamo_unbacked_indices={0}, _dynamo_unbacked_bounds={0: (4, 6)})
    same(bolide.compile(doubled)(x), doubled(x))
    with pytest.raises(ValueError, match="outside of"):
        bolide.mark_unbacked(x, 0, min=4)


def test_a_marked_size_that_is_needed_is_an_error() -> None:
    def f(x: Any) -> Any:
        return [x + i for i in range(x.shape[0])]

    x = torch.randn(4, 3)
    bolide.mark_dynamic(x, 0)
    with pytest.raises(bolide.ConstraintError, match=r"x\.shape\[0\] == 4 only\n.*test_sizes_programs.*\n.*range"):
        bolide.compile(f)(x)
    with bolide.dynamo.config.patch(allow_ignore_mark_dynamic=True):
        same(bolide.compile(f)(x), f(x))


def marked(n: int, **bounds: int) -> Any:
    x = torch.randn(n, 3)
    bolide.mark_dynamic(x, 0, **bounds)
    return x


CONTRADICTING: dict[str, Callable[[Any], Any]] = {
    "x.shape[0] == 4 else": lambda x: x + 1 if x.shape[0] == 4 else x - 1,
    "torch.ones(4, 3)": lambda x: x + torch.ones(4, 3),
    "x.view(4, 3)": lambda x: x.view(4, 3),
    "len(": lambda x: x * len("." * x.shape[0]),
    "[str(x.shape[0])]": lambda x: x * {"4": 2}[str(x.shape[0])],
}


@pytest.mark.parametrize("line", CONTRADICTING)
def test_each_contradiction_of_a_mark_names_the_line_and_the_remedy(line: str) -> None:
    fn = CONTRADICTING[line]
    for _ in range(2):  # also when it is asked again
        with pytest.raises(bolide.ConstraintError) as raised:
            bolide.compile(fn, backend="eager")(marked(4, min=2, max=9))
        text = str(raised.value)
        assert "x.shape[0] == 4 only" in text and line in text and "remedy" in text and __file__ in text
    x = torch.randn(4, 3)
    bolide.maybe_mark_dynamic(x, 0)
    same(bolide.compile(fn, backend="eager")(x), fn(x))


def test_a_contradiction_in_a_later_call_is_an_error_there() -> None:
    compiled = bolide.compile(CONTRADICTING["x.shape[0] == 4 else"], backend="eager")
    for n in (5, 6, 9):
        compiled(marked(n))
    assert versions(compiled) == 1
    with pytest.raises(bolide.ConstraintError, match="== 4 only"):
        compiled(marked(4))


def test_conditions_that_leave_a_marked_size_open_are_guards() -> None:
    def program(x: Any) -> Any:
        return x.view(x.shape[0] // 2, 2, 3) if x.shape[0] % 2 == 0 and x.shape[0] > 4 else x * 2

    compiled = bolide.compile(program, backend="eager")
    for n in (6, 8, 3, 5, 12, 7):
        same(compiled(x := marked(n, min=2, max=20)), program(x))
    assert versions(compiled) <= 3


SPECIAL = "mark_unbacked"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, SPECIAL),
        ({"automatic_dynamic_shapes": False}, "automatic_dynamic_shapes is off"),
        ({"specialize_int": True}, "specialize_int is on"),
        ({"specialize_float": True}, "specialize_float is on"),
    ],
)
def test_each_fixed_size_is_logged_with_its_cause(options: dict[str, bool], why: str) -> None:
    def program(x: Any, n: int, h: float) -> Any:
        return x * n + h

    compiled = bolide.compile(program, backend="eager")
    told: list[Any] = []
    with bolide.dynamo.config.patch(**options), events.subscribed(told.append):
        for size in (3, 4, 1, 0, 1, 0):
            compiled(torch.randn(size), size + 2, size / 8)
    fixed = {(e.source, e.value): e for e in told if isinstance(e, events.Specialised) and why in e.reason}
    place = {"specialize_int is on": "n", "specialize_float is on": "h"}.get(why, "x.shape[0]")
    assert {source for source, _ in fixed} == {place}
    assert all(event.where.file == __file__ for event in fixed.values())
    if why == SPECIAL:
        assert set(fixed) == {(place, "1"), (place, "0")}
    assert len([e for e in told if isinstance(e, events.Specialised) and why in e.reason]) == len(fixed)  # once each


def test_marks_parameters_and_dynamic_false_tell_why_a_size_is_fixed() -> None:
    def program(w: Any) -> Any:
        return w * 2

    def reasons(compiled: Any, make: Callable[[int], Any]) -> set[str]:
        told: list[Any] = []
        with events.subscribed(told.append):
            for n in (3, 4, 5):
                compiled(make(n))
        return {event.reason for event in told if isinstance(event, events.Specialised)}

    def static(n: int) -> Any:
        x = torch.randn(n)
        bolide.mark_static(x)
        return x

    (why,) = reasons(bolide.compile(program, backend="eager"), static)
    assert "marked static" in why
    (why,) = reasons(bolide.compile(program, backend="eager"), lambda n: torch.nn.Parameter(torch.randn(n)))
    assert "force_parameter_static_shapes" in why
    (why,) = reasons(bolide.compile(program, backend="eager", dynamic=False), torch.randn)
    assert "dynamic=False" in why
    assert not reasons(bolide.compile(program, backend="eager"), torch.randn)


def test_sizes_that_were_always_equal_share_a_symbol() -> None:
    def f(x: Any, y: Any) -> Any:
        return x + y

    compiled = bolide.compile(f, fullgraph=True)
    for n in (3, 4, 5):
        x = torch.randn(n, 2)
        same(compiled(x, x), x + x)
    tensors = [guard.expected for guard in compiled._bolide.entries[1].guards if guard.kind == "tensor"]
    assert {name for expected in tensors for name, _ in expected.symbols} == {"s0"} and versions(compiled) == 2


def test_sizes_of_parameters_are_fixed_unless_asked_for() -> None:
    def f(w: Any) -> Any:
        return w * 2

    for forced, wanted in ((True, 3), (False, 2)):
        with bolide.dynamo.config.patch(force_parameter_static_shapes=forced):
            compiled = bolide.compile(f, fullgraph=True)
            for n in (3, 4, 5):
                w = torch.nn.Parameter(torch.randn(n))
                same(compiled(w), f(w))
            assert versions(compiled) == wanted


def test_sympy_stays_out() -> None:
    code = (
        "import sys, torch, bolide, torch.nn.functional as F\n"
        "def f(x): return F.linear(x[None], torch.ones(4, 4)).softmax(-1) @ x.T[None] / x.shape[0] ** 0.5\n"
        "g = bolide.compile(f, fullgraph=True)\n"
        "for n in (3, 4, 5): assert torch.allclose(g(torch.ones(n, 4)), f(torch.ones(n, 4)))\n"
        "assert len(g._bolide.entries) == 2\n"
        "print([m for m in ('sympy', 'torch._dynamo', 'torch._inductor') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def broadcast(x: torch.Tensor, y: torch.Tensor) -> object:
    losses = F.mse_loss(x, y), F.l1_loss(x, y), F.huber_loss(x, y), F.smooth_l1_loss(x, y[:1].expand_as(x))
    rows, other = torch.broadcast_tensors(x, y[:1])
    return sum(losses), rows is x, rows * other, other.stride()


@pytest.mark.parametrize("dynamic", [None, True])
def test_broadcast_tensors_of_changing_sizes_leaves_sympy_out(dynamic: bool | None, monkeypatch) -> None:
    """torch's own formula imports sympy, which takes longer than compiling; losses begin with this operation."""
    name = "torch.fx.experimental.symbolic_shapes"
    compiled = bolide.compile(broadcast, fullgraph=True, dynamic=dynamic)
    for n in (3, 5, 2):
        x, y = torch.randn(n, 4, requires_grad=True), torch.randn(n, 4)
        expected = broadcast(x, y)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)  # an import raises
            found = compiled(x, y)
        same(found, expected)
        same(torch.autograd.grad(found[0], x), torch.autograd.grad(expected[0], x))
    assert versions(compiled) <= 2


COMMON = {
    "prelu": lambda x: F.prelu(x, x.detach()[0, :, 0, 0].sigmoid()),
    "prelu_of_one": lambda x: F.prelu(x, x[0, 0, 0, :1].sigmoid()),
    "glu": lambda x: F.glu(torch.cat([x, x.cos()], 1), 1)[..., :3] + F.glu(x, -1),
    "loss": lambda x: F.binary_cross_entropy(x.sigmoid(), x.detach().flip(1).sigmoid()),
    "losses": lambda x: F.binary_cross_entropy(x.sigmoid(), x.detach().cos().sigmoid(), reduction="none"),
}
LAID_OUT = {
    "rows": lambda n: torch.randn(n, 4, n + 1, 6),
    "columns": lambda n: torch.randn(n + 1, n, 4, 6).permute(1, 2, 0, 3),
    "channels_last": lambda n: torch.randn(n, n + 1, 6, 4).permute(0, 3, 1, 2),
    "part": lambda n: torch.randn(n, 4, n + 3, 12)[:, :, 1:-1, ::2],
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("layout", LAID_OUT)
@pytest.mark.parametrize("name", COMMON)
def test_common_functions_of_changing_sizes_leave_sympy_out(name: str, layout: str, monkeypatch) -> None:
    """Shapes and strides are known by rule, of gradients as well, and no kernel is asked that would warn."""
    function = COMMON[name]
    compiled = bolide.compile(lambda x: function(x), fullgraph=True)
    importlib.import_module("torch.fx.experimental.symbolic_shapes")  # autograd.grad of torch 2.11 does
    for n in (3, 5, 2):
        x = LAID_OUT[layout](n).requires_grad_()
        expected = function(x)
        tangent = torch.randn_like(expected)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "sympy", None)  # an import raises
            found = compiled(x)
            (grad,) = torch.autograd.grad(found, x, tangent)
        same(found, expected)
        same(grad, *torch.autograd.grad(expected, x, tangent))
    assert versions(compiled) <= 2


def test_division_by_a_number_that_becomes_zero_raises_pythons_error():
    def program(x, n):
        return x + 7 // n, 7 % max(n, 1)

    compiled = bolide.compile(program)
    x = torch.randn(2)
    for n in (2, 3, 5):
        assert torch.equal(compiled(x, n)[0], x + 7 // n)
    with pytest.raises(ZeroDivisionError, match="integer division or modulo by zero"):
        compiled(x, 0)


def scaled_below(x: Any, h: float) -> Any:
    return x * h if h < 0.5 else x + h


def clipped(x: Any, h: float) -> Any:
    return x * min(abs(h), 1.0) + max(-h, 0.25)


def computed(x: Any, h: float) -> Any:
    return x - h if not 1 - h * 2 > h**2 / 3 else x


def whole_part(x: Any, h: float) -> Any:
    return x + int(h * 3) + math.floor(h) + math.ceil(h)


def chosen(x: Any, h: float) -> Any:
    return x * 2 if not h else x if h in (0.5, 1.0) else -x


def with_size(x: Any, h: float) -> Any:
    n = x.shape[0]
    return x * (h + n) - n * h if h - n / 4 < 0.5 else max(h, n / 2) + x + (n - h)


def compared(x: Any, h: float) -> Any:
    return x.masked_fill(x > h, 0.5), x.new_full((2,), h), x.new_tensor([h, x.shape[0]]), x == h, x.remainder(h)


def nearest(x: Any, h: float) -> Any:
    return x * min(math.inf, h, h / 2) if h > -math.inf else x


@pytest.mark.parametrize(
    "fn",
    [scaled_below, clipped, computed, whole_part, chosen, nearest, with_size, compared],
    ids=lambda fn: fn.__name__,
)
def test_a_branch_on_a_float_compiles_once_for_each_way_it_goes(fn: Callable[..., Any]) -> None:
    compiled = bolide.compile(fn, backend="eager")
    x = torch.randn(5)
    for number in range(40):
        h = random.choice(
            (random.uniform(0, 0.2), random.uniform(0.7, 0.9), 0.0, -0.75, 0.5, math.inf, -math.inf)[: 2 + number % 6]
        )
        try:
            expected = fn(x, h)
        except OverflowError as error:
            with pytest.raises(type(error)):
                compiled(x, h)
        else:
            torch.testing.assert_close(compiled(x, h), expected, equal_nan=True)
    assert len(compiled._bolide.entries) <= 7


@pytest.mark.parametrize("shape", [(2, 1, 7, 4), (1, 2, 7, 4), (1, 1, 7, 4), (2, 7, 1, 4)], ids=str)
def test_strides_of_dimensions_of_one_follow_the_sizes_inside_of_them(shape: tuple[int, ...]) -> None:
    dim = shape.index(7)

    def append(cache: Any, x: Any) -> Any:
        cache = torch.cat([cache, x], dim)
        return cache, (cache * 2).sum(dim)

    compiled = bolide.compile(append, fullgraph=True)
    cache = torch.randn(shape)
    for _ in range(5):
        x = torch.randn([1 if i == dim else size for i, size in enumerate(shape)])
        expected = append(cache, x)
        cache, total = compiled(cache, x)
        same((cache, total), expected)
        assert cache.stride() == expected[0].stride()
    assert versions(compiled) == 2


def test_a_view_of_too_few_elements_raises_for_strided_empty_tensors_too() -> None:
    def f(x: Any, h: float) -> Any:
        try:
            return torch.full((1, x.shape[1]), h).expand(3, 1, -1).view(1, 1)
        except RuntimeError as error:
            return str(error)

    compiled = bolide.compile(f, fullgraph=True)
    for h in (1.0, 2.0):
        x = torch.randn(1, 0)
        assert compiled(x, h) == f(x, h)


@pytest.mark.parametrize("dynamic", [None, True])
def test_pieces_of_empty_tensors(dynamic: bool | None) -> None:
    def f(x: Any, n: int) -> Any:
        try:
            return x.split(n)
        except RuntimeError as error:
            return str(error)

    compiled = bolide.compile(f, fullgraph=True, dynamic=dynamic, backend="eager")
    for rows, n in ((5, 2), (0, 3), (0, 0), (4, 0), (6, -2), (1, 2), (7, 7)):
        x = torch.randn(rows)
        same(compiled(x, n), f(x, n))


def test_a_foreign_backend_gets_inputs_whose_elements_share_memory() -> None:
    def f(x: Any, n: int) -> Any:
        return x.view(x.shape).sin() if n else x.cos() + torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    compiled = bolide.compile(f, fullgraph=True, dynamic=True, backend="eager")
    for rows in (2, 3):
        x = torch.randn(rows, 1).expand(rows, 4)
        expected = x.cos() + (x.sin() if x.sum() > 0 else x.cos())
        same(compiled(x, 0), expected)


def test_a_view_of_negative_sizes_raises() -> None:
    def f(x: Any, n: int) -> Any:
        try:
            return x.view(n, n)
        except RuntimeError as error:
            return str(error)

    compiled = bolide.compile(f, fullgraph=True, backend="eager")
    for n in (2, -2, 3, -3, -1, 4):
        x = torch.randn(max(n * n, 1))
        same(compiled(x, n), f(x, n))


def test_a_needed_number_that_is_computed_of_a_marked_size_contradicts_the_mark() -> None:
    with pytest.raises(bolide.ConstraintError) as raised:
        bolide.compile(lambda x: x * len("." * x.shape[0].bit_length()), backend="eager")(marked(4, min=2, max=9))
    assert "bit_length" in str(raised.value) and "x.shape[0]" in str(raised.value)
