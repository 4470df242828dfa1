"""`bolide.dynamo.export`: what programs it takes, and what their graphs say of themselves."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import warnings
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import bolide

LEVELS = pytest.mark.parametrize("aten", [False, True], ids=["calls", "aten"])
Make = Callable[[], Any]


def agree(found: Any, wanted: Any) -> None:
    ours, theirs = pytree.tree_flatten(found), pytree.tree_flatten(wanted)
    assert ours[1] == theirs[1]
    for a, b in zip(ours[0], theirs[0]):
        assert type(a) is type(b)
        if isinstance(b, Tensor):
            torch.testing.assert_close(a, b, equal_nan=True)
        else:
            assert a == b


def exported(f: Any, *args: Any, **options: Any) -> Any:
    return bolide.dynamo.export(f, **options)(*args).graph_module


@bolide.assume_constant_result
def places(x: Tensor) -> dict[str, Any]:
    return {"x": x, "pair": (x.nonzero(), x.sum().item())}


def constants(x: Tensor) -> Any:
    return [x + torch.tensor([0.5, 1.5, -2.0]), torch.arange(3) * 2, None, "text", (3, 1.5, torch.float64)]


def sizes(x: Tensor) -> Any:
    return x.shape, x.shape[0] / 2, x.numel() + 1, x * math.sqrt(x.shape[0]), x[: x.shape[0] // 2]


def data(x: Tensor) -> Any:
    return x.sum().item(), x[x > 0] + 1, x.abs().argmax().item()


def transformed(x: Tensor) -> Any:
    return torch.func.grad(lambda z: z.sin().sum())(x), torch.vmap(lambda z: z.cos())(x)


def modes(x: Tensor) -> Any:
    with torch.inference_mode():
        first = x.sin() + 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return first.clone(), (x[:, None] @ x[None]).float()


@LEVELS
@pytest.mark.parametrize("program", [constants, sizes, data, transformed, modes], ids=lambda f: f.__name__)
def test_programs_are_exported_for_all_sizes(program: Any, aten: bool) -> None:
    count = 3 if program is constants else 6
    gm = exported(program, torch.randn(count), aten_graph=aten)
    gm.graph.lint()
    for size in (count,) if program is constants else (count, 4, 9):
        x = torch.randn(size)
        agree(gm(x), program(x))
    agree(copy.deepcopy(gm)(x), program(x))


@LEVELS
def test_results_of_functions_that_are_constant_are_those_of_the_example(aten: bool) -> None:
    def program(x: Tensor) -> Any:
        known = places(x * 1)
        return known["x"] + 1, known["pair"], places(x)["x"] * 2

    x = torch.randn(4)
    gm = exported(program, x, aten_graph=aten)
    wanted = program(x)
    x.zero_()
    agree(gm(torch.randn(4)), wanted)


def test_that_of_an_argument_is_no_parameter() -> None:
    weight = nn.Parameter(torch.randn(3))

    @bolide.assume_constant_result
    def same(w: Tensor) -> Tensor:
        return w

    gm = exported(lambda x: x * same(weight), torch.randn(3))
    x = torch.randn(3)
    gm(x).sum().backward()
    torch.testing.assert_close(weight.grad, x)


# ---- signatures ------------------------------------------------------------------------------------------------------


def gathers(first: Tensor, pair: tuple[Tensor, Tensor], *more: Tensor, key: Any = None, **others: Tensor) -> Tensor:
    return functools.reduce(torch.mul, [*pair, *more, key, *others.values()], first)


def defaults(first: Tensor, scale: float = 2.0, other: Tensor | None = None) -> Tensor:
    return first * scale + (1 if other is None else other)


@functools.wraps(gathers)
def wrapped(*args: Any, **kwargs: Any) -> Tensor:
    return gathers(*args, **kwargs)


class Holder:
    def __init__(self) -> None:
        self.weight = torch.randn(4)

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight

    def method(self, x: Tensor, *, key: Tensor) -> Tensor:
        return x - self.weight * key


def some() -> Tensor:
    return torch.randn(4)


NAMES = ["first", "pair", "more_0", "more_1", "key", "a"]
SIGNATURES: dict[str, tuple[Any, Make, list[str]]] = {
    "gathers": (gathers, lambda: ((some(), (some(), some()), some(), some()), {"key": some(), "a": some()}), NAMES),
    "wrapped": (wrapped, lambda: ((some(), (some(), some()), some(), some()), {"key": some(), "a": some()}), NAMES),
    "defaults": (defaults, lambda: ((some(),), {}), ["first"]),
    "by name": (defaults, lambda: ((), {"other": some(), "first": some()}), ["other", "first"]),
    "callable": (Holder(), lambda: ((some(),), {}), ["x"]),
    "method": (Holder().method, lambda: ((some(),), {"key": some()}), ["x", "key"]),
    "module": (nn.Linear(4, 2), lambda: ((torch.randn(3, 4),), {}), ["input"]),
    "builtin": (torch.sin, lambda: ((some(),), {}), ["args_0"]),
    "partial": (functools.partial(gathers, key=torch.ones(4)), lambda: ((some(), [some(), some()]), {}), NAMES[:2]),
}


@LEVELS
@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_have_the_names_of_the_function(name: str, aten: bool) -> None:
    f, make, names = SIGNATURES[name]
    args, kwargs = make()
    gm = bolide.dynamo.export(f, aten_graph=aten)(*args, **kwargs).graph_module
    assert inspect.getfullargspec(gm.forward).args[1:] == names
    args, kwargs = make()
    agree(gm(*args, **kwargs), f(*args, **kwargs))
    again = bolide.dynamo.export(gm, aten_graph=aten)(*args, **kwargs).graph_module
    agree(again(*args, **kwargs), f(*args, **kwargs))


@dataclass
class Pair:
    first: Tensor
    second: Tensor


@dataclass
class Unknown:
    first: Tensor


pytree.register_dataclass(Pair)
Named = namedtuple("Named", "first second")


def test_containers_that_pytree_knows_go_in_and_out() -> None:
    def program(pair: Pair, named: Named, nested: dict[str, Any]) -> Any:
        return Pair(pair.first + named.second, pair.second), Named(nested["a"][0], {"b": named.first}), nested

    example = Pair(some(), some()), Named(some(), some()), {"a": (some(), None)}
    gm = exported(program, *example)
    fresh = Pair(some(), some()), Named(some(), some()), {"a": (some(), None)}
    found, wanted = gm(*fresh), program(*fresh)
    agree(found, wanted)
    assert isinstance(found[0], Pair) and found[0].second is fresh[0].second


def test_what_pytree_does_not_know_is_an_error() -> None:
    for f, arg in ((lambda x: Unknown(x + 1), some()), (lambda u: u.first + 1, Unknown(some()))):
        with pytest.raises(bolide.Unsupported, match="not supported or pytree-flattenable"):
            exported(f, arg)


def test_without_the_signature_tensors_go_in_and_out() -> None:
    gm = exported(
        lambda d: {"sum": d["a"] + d["c"][0], "n": 3}, {"a": some(), "b": 1, "c": [some()]}, same_signature=False
    )
    x, y = some(), some()
    (found,) = gm(x, y)
    torch.testing.assert_close(found, x + y)


def test_the_call_may_stand_with_the_function() -> None:
    with pytest.warns(FutureWarning, match="deprecated"):
        gm, _ = bolide.dynamo.export(lambda x, *, k: x + k, torch.ones(2), k=torch.ones(2))
    agree(gm(torch.ones(2), k=torch.ones(2)), torch.full((2,), 2.0))


# ---- sizes -----------------------------------------------------------------------------------------------------------


def test_sizes_are_fixed_where_that_is_asked_for() -> None:
    def program(x: Tensor) -> Tensor:
        return x * x.shape[0]

    for options in ({"tracing_mode": "fake"}, {"assume_static_by_default": True}, {"dynamic_shapes": {"x": None}}):
        result = bolide.dynamo.export(program, **options)(torch.randn(5, 3))
        assert any("float32[5, 3]" in guard for guard in result.guards)
    assert any(
        "float32[x.shape[0], x.shape[1]]" in guard
        for guard in bolide.dynamo.export(program)(some()[:, None] @ some()[None])[1]
    )


@LEVELS
def test_each_size_is_one_of_its_own(aten: bool) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        return x.sum(0) * y.shape[0], y.view(y.shape[0], -1)

    gm = exported(program, torch.randn(3, 3), torch.randn(3, 3), aten_graph=aten)
    fresh = torch.randn(5, 2), torch.randn(4, 6)
    agree(gm(*fresh), program(*fresh))


def test_names_of_sizes_are_promises() -> None:
    n, m = Dim("n"), Dim("m")

    def small(x: Tensor) -> Tensor:
        return x.sin() if x.shape[0] <= 4 else x.cos()

    def equal(x: Tensor, y: Tensor) -> Tensor:
        return x + y if x.shape[0] == y.shape[0] else x

    def shifted(x: Tensor, y: Tensor) -> Tensor:
        return x + y[1:]

    x, y = torch.randn(3), torch.randn(3)
    bounded = Dim("n", min=2, max=4)
    agree(exported(small, x, dynamic_shapes={"x": {0: bounded}})(y), small(y))
    agree(exported(equal, x, y, dynamic_shapes=({0: n}, {0: n}))(x, y), x + y)
    gm = exported(shifted, x, torch.randn(4), dynamic_shapes=({0: n}, {0: n + 1}))
    fresh = torch.randn(7), torch.randn(8)
    agree(gm(*fresh), shifted(*fresh))
    for f, args, shapes, text in (
        (small, (x,), {"x": {0: n}}, "x.shape\\[0\\] is 'n' in dynamic_shapes"),
        (equal, (x, y), ({0: n}, {0: m}), "x.shape\\[0\\]"),
        (equal, (x, y), ({0: n}, None), "x.shape\\[0\\]"),
        (shifted, (x, torch.randn(4)), ({0: n}, {0: m}), "in dynamic_shapes"),
        (small, (torch.randn(1),), {"x": {0: n}}, "x.shape\\[0\\] == 1 only"),
    ):
        with pytest.raises(bolide.ConstraintError, match=text):
            exported(f, *args, dynamic_shapes=shapes)
    agree(exported(small, x, dynamic_shapes={"x": {0: Dim.AUTO}})(y), small(y))


def test_shapes_that_contradict_the_example_are_errors() -> None:
    n = Dim("n")
    for shapes in (({0: n}, {0: n}), ({0: 4}, None), ({0: n}, {0: n + 3})):
        with pytest.raises(ValueError, match="dynamic_shapes"):
            exported(torch.add, torch.randn(3, 1), torch.randn(5), dynamic_shapes=shapes)


# ---- what graphs say -------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(self.linear(x) + torch.randn(4)).relu() * self.scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) + 1


@LEVELS
def test_nodes_say_where_they_come_from(aten: bool) -> None:
    from torch.fx.passes.utils.source_matcher_utils import get_source_partitions

    model = Model()
    gm = exported(model, torch.randn(3, 4), aten_graph=aten)
    for node in gm.graph.nodes:
        if node.op != "output":
            assert isinstance(node.meta["val"], Tensor) and node.meta["val"].dtype is torch.float32
        if node.op in ("call_function", "call_method"):
            assert __file__ in node.stack_trace and node.meta["source_fn_stack"]
            assert Model in {kind for _, kind in node.meta["nn_module_stack"].values()}
            assert not aten or node.meta["original_aten"] is node.target
        if node.op == "get_attr":
            assert Block in {kind for _, kind in node.meta["nn_module_stack"].values()}
    assert len(get_source_partitions(gm.graph, [nn.Linear])[nn.Linear]) == 1
    names = {name for name, _ in (*gm.named_parameters(), *gm.named_buffers())}
    assert names == {"L__self___block_linear_weight", "L__self___block_linear_bias", "L__self___block_scale"}


@LEVELS
def test_conditions_on_data_are_checked_by_the_graph(aten: bool) -> None:
    def program(x: Tensor) -> Tensor:
        assert x.sum() > 0, "the sum is positive"
        return x * 2

    gm = exported(program, torch.rand(3) + 1, aten_graph=aten)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    x = torch.rand(5) + 1
    agree(gm(x), x * 2)
    with pytest.raises(RuntimeError, match="the sum is positive"):
        gm(-x)


def test_conditions_on_numbers_in_tensors_are_checked_by_the_graph() -> None:
    def program(x: Tensor) -> Tensor:
        n = x[0].item()
        torch._check(n > 2)
        return torch.zeros(n) + x.sum()

    gm = exported(program, torch.tensor([5, 6]))
    x = torch.tensor([3, 8, 1])
    agree(gm(x), program(x))
    with pytest.raises(RuntimeError, match=r"torch\._check\(n > 2\)"):
        gm(torch.tensor([1, 8]))


def test_a_table_of_decompositions() -> None:
    def program(x: Tensor) -> Tensor:
        return x.t() + x.t()

    x = torch.randn(5)
    plain, replaced = (
        exported(program, x, aten_graph=True, decomposition_table=table)
        for table in (None, {torch.ops.aten.t.default: torch.cos})
    )
    assert sum(node.target is torch.ops.aten.t.default for node in plain.graph.nodes) == 2
    agree(plain(x), x * 2)
    agree(replaced(x), x.cos() * 2)
    for options in ({"decomposition_table": {}}, {"pre_dispatch": True}):
        with pytest.raises(AssertionError, match="aten_graph=True"):
            exported(program, x, **options)


# ---- gradients -------------------------------------------------------------------------------------------------------


@LEVELS
def test_graphs_are_differentiated_as_the_program(aten: bool) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            first, second = (x * w).chunk(2)
        return torch.cat((first.sin() + x[2:], x[:2].detach() * second)) * w

    gm = exported(program, *(torch.randn(4, requires_grad=True) for _ in range(2)), aten_graph=aten)
    x, w = (torch.randn(4, requires_grad=True) for _ in range(2))
    ours, theirs = (torch.autograd.grad(f(x, w).square().sum(), (x, w)) for f in (gm, program))
    agree(ours, theirs)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def test_operations_of_aten_do_not_stand_in_for_derivatives_of_its_own() -> None:
    def program(x: Tensor) -> Tensor:
        return Doubled.apply(x)[x > 0]

    with pytest.raises(bolide.Unsupported, match="derivatives of its own"):
        exported(program, torch.randn(3, requires_grad=True))
    x = torch.randn(3)
    agree(exported(program, torch.randn(3))(x), program(x))


def test_a_function_that_is_disabled_is_refused_with_its_reason() -> None:
    @bolide.disable(reason="it talks to a device")
    def outside(x: Tensor) -> Tensor:
        return x + 1

    with pytest.raises(bolide.Unsupported, match="it talks to a device"):
        exported(lambda x: outside(x) * 2, some())


def test_warnings_are_for_who_exports() -> None:
    def program(x: Tensor) -> Tensor:
        warnings.warn(f"it has {x.dim()} dimensions", UserWarning, stacklevel=1)
        return x.sin()

    with pytest.warns(UserWarning, match="it has 1 dimensions") as seen:
        graph = exported(program, torch.randn(3))
    assert {warning.filename for warning in seen} == {__file__}
    x = torch.randn(3)
    agree(graph(x), x.sin())  # and does not warn


class Assigning(nn.Module):
    """Buffers that are given other tensors: one that was not read, two that change places, one of a part, and one
    whose earlier value is returned and differentiated."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("count", "last", "one", "two"):
            self.register_buffer(name, torch.randn(3))
        self.norm = nn.BatchNorm1d(3).eval()

    def forward(self, x: Tensor) -> Any:
        before, y = self.count, x * self.count
        self.count = self.count * 2 + x.sum(0).detach()
        self.last = x.detach().amax(0)
        self.one, self.two = self.two, self.one
        self.norm.running_mean = self.norm.running_mean * 2
        return before, self.norm(y) * self.one, self.last, self.norm.running_mean


@LEVELS
def test_assigned_buffers_are_written(aten: bool) -> None:
    eager, mod = Assigning(), Assigning()
    mod.load_state_dict(eager.state_dict())
    gm = exported(mod, torch.randn(4, 3), aten_graph=aten)
    agree(mod.state_dict(), eager.state_dict())
    for size in (5, 4, 7):
        x = torch.randn(size, 3, requires_grad=True)
        wanted, found = eager(x), gm(x)
        agree(found, wanted)
        agree(mod.state_dict(), eager.state_dict())
        gradients = [torch.autograd.grad(out[1].square().sum(), x)[0] for out in (wanted, found)]
        agree(*gradients)


@LEVELS
@pytest.mark.parametrize("other", [Tensor.double, Tensor.sum, lambda x: x.expand(2, 3), lambda x: None, nn.Buffer])
def test_buffers_that_get_another_form_are_refused(other: Any, aten: bool) -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("one", torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            self.one = other(x)
            return x + 1

    mod = Other()
    before = mod.one
    with pytest.raises(bolide.Unsupported, match="effect that a graph cannot have"):
        exported(mod, torch.randn(3), aten_graph=aten)
    assert mod.one is before


class Counted(nn.Module):
    def forward(self, x: Tensor, rest: dict[str, int], *more: int, **named: Any) -> Any:
        return x[: rest["rows"]] * more[1] + named["k"][0], rest["rows"] * 2 + more[0]


@LEVELS
def test_integers_may_be_dynamic(aten: bool) -> None:
    shapes = {"x": {0: Dim.AUTO}, "rest": {"rows": Dim.DYNAMIC}, "more_1": Dim.AUTO, "k": [Dim.DYNAMIC]}
    gm = exported_with(Counted(), aten, shapes, torch.randn(5, 3), {"rows": 3}, 2, 7, k=[3])
    for rows, times, k, size in ((2, 7, 5, 5), (4, 8, 3, 6), (3, -1, 0, 4)):
        args = torch.randn(size, 3), {"rows": rows}, 2, times
        agree(gm(*args, k=[k]), Counted()(*args, k=[k]))
    gm = exported_with(lambda x, n, m: x * n + n * m, aten, (None, Dim.DYNAMIC, Dim.STATIC), torch.ones(3), 4, 4)
    agree(gm(torch.ones(3), 6, 4), torch.full((3,), 30.0))


def exported_with(f: Any, aten: bool, shapes: Any, *args: Any, **kwargs: Any) -> Any:
    return bolide.dynamo.export(f, aten_graph=aten, dynamic_shapes=shapes)(*args, **kwargs).graph_module


def test_programs_for_one_value_of_a_dynamic_integer_are_refused() -> None:
    def once(x: Tensor, n: int) -> Tensor:
        return x + 1 if n == 4 else x

    with pytest.raises(bolide.ConstraintError, match="n == 4 only"):
        exported(once, torch.ones(2), 4, dynamic_shapes=(None, Dim.DYNAMIC))
    agree(exported(once, torch.ones(2), 4, dynamic_shapes=(None, Dim.AUTO))(torch.ones(2), 4), torch.full((2,), 2.0))
    with pytest.raises(TypeError, match="where a dict or a sequence"):
        exported(once, torch.ones(2), 4.0, dynamic_shapes=(None, Dim.DYNAMIC))


@LEVELS
@pytest.mark.parametrize("make", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_numbers_may_be_divided_by_what_a_module_has_counted(make: Any, aten: bool) -> None:
    """As a norm without a momentum does, which gives `batch_norm` a float of the graph."""
    eager, mod = make(3, momentum=None).double(), make(3, momentum=None).double()
    trailing = (4,) if make is nn.BatchNorm2d else ()
    gm = exported(mod, torch.randn(4, 3, *trailing, *trailing).double(), aten_graph=aten)
    for size in (5, 4, 7):
        x = torch.randn(size, 3, *trailing, *trailing).double().requires_grad_()
        wanted, found = eager(x), gm(x)
        agree(found, wanted)
        agree(mod.state_dict(), eager.state_dict())
        agree(*[torch.autograd.grad(out.square().sum(), x)[0] for out in (wanted, found)])


@LEVELS
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_a_division_by_data_that_are_zero_is_an_error(dtype: torch.dtype, aten: bool) -> None:
    def shares(x: Tensor, n: Tensor) -> Any:
        return x * (3.0 / float(n)), x * (n.item() / 7.0), x * (2.5 % n.item()), x * (x.sum().item() // float(n))

    x = torch.randn(3, dtype=torch.float64)
    gm = exported(shares, x, torch.tensor(2, dtype=dtype), aten_graph=aten)
    for value in (5, -3, 49):
        agree(gm(x, torch.tensor(value, dtype=dtype)), shares(x, torch.tensor(value, dtype=dtype)))
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        gm(x, torch.zeros((), dtype=dtype))
