"""What a tensor has beside its value: gradients and attributes of tensors that the program makes, and their copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bolide

KEPT: list[Any] = []
PROGRAMS: dict[str, Callable[..., Any]] = {}


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[fn.__name__] = fn
    return fn


def leaf(x: Any) -> Any:
    return x.detach().clone().requires_grad_()


@program
def of_a_parameter(x: Any) -> Any:
    p = nn.Parameter(torch.ones(3))
    (p * p * x).sum().backward()
    KEPT.append(p)
    return p


@program
def of_a_module(x: Any) -> Any:
    layer = nn.Linear(3, 1)
    nn.init.ones_(layer.weight), nn.init.zeros_(layer.bias)
    layer(x).sum().backward()
    KEPT.append(layer)
    return x + 1


@program
def behind_a_break(x: Any) -> Any:
    y = leaf(x)
    (y * y).sum().backward()
    bolide.graph_break()
    before = y.grad
    (y * x).sum().backward()
    return before, y.grad, before is y.grad, y


@program
def made_before_a_break(x: Any) -> Any:
    y = leaf(x)
    bolide.graph_break()
    (y * y).sum().backward()
    return y


@program
def assigned(x: Any) -> Any:
    y = x + 10
    y.grad = x
    return y, y.grad is x


@program
def accumulated(x: Any) -> Any:
    y = leaf(x)
    (y * y).sum().backward()
    first = y.grad
    (y * x).sum().backward()
    y.grad.mul_(3)
    return y, first, first is y.grad


@program
def taken_away(x: Any) -> Any:
    y, z = leaf(x), leaf(x)
    (y * z).sum().backward()
    y.grad = None
    del z.grad
    return y, z


@program
def of_some_inputs(x: Any) -> Any:
    y, z = leaf(x), leaf(x)
    (y * y * z).sum().backward(inputs=[z])
    return {"y": y, "z": [z]}


@program
def of_each_other(x: Any) -> Any:
    a, b = x + 1, x + 2
    a.grad, b.grad = b, a
    return a, a.grad.grad is a


@program
def of_a_buffer(x: Any) -> Any:
    a = nn.Buffer(x + 1)
    a.grad = x * 2
    return a


@program
def after_a_step(x: Any) -> Any:
    layer = nn.Linear(3, 1)
    nn.init.ones_(layer.weight), nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()
    return list(layer.parameters())


@program
def on_an_input(x: Any) -> Any:
    y = leaf(x)
    (y * y).sum().backward()
    x.cache = y
    return x + 1


@program
def copies_of_a_leaf(x: Any) -> Any:
    y, p = leaf(x), nn.Parameter(x.detach().clone())
    (y * y * p).sum().backward()
    return copy.deepcopy(y), copy.copy(y), copy.deepcopy(p), copy.copy(p), copy.deepcopy([y, y.grad])


@program
def a_copy_goes_on(x: Any) -> Any:
    y = leaf(x)
    (y * y).sum().backward()
    z = copy.deepcopy(y)
    (z * z).sum().backward()
    return y, z, z.grad


@program
def copies_of_an_input(x: Any) -> Any:
    y, (a, b) = copy.deepcopy(x), copy.deepcopy([x, x])
    return y, y.grad, hasattr(y, "mark"), a, a is b, copy.copy(x)


@program
def a_copy_of_a_buffer(x: Any) -> Any:
    made = copy.deepcopy(nn.Buffer(x + 1, persistent=False))
    return isinstance(made, nn.Buffer), made


@program
def copies_in_one_memory(x: Any) -> Any:
    whole = x.detach() + 1
    a, b = copy.deepcopy([whole, whole[0]])
    b.add_(10)
    return a, b


@program
def attributes_of_a_value(x: Any) -> Any:
    y = x + 1
    y.tag, y.other, y.gone = [y], x * 2, 1
    del y.gone
    names = [name for name in dir(y) if name in ("tag", "gone", "other", "group")]
    return y, y.tag[0] is y, names, hasattr(y, "gone"), hasattr(y, "group")


@program
def attributes_with_names_of_our_own(x: Any) -> Any:
    y = x + 1
    y.group, y.node = 3, 4
    return y.group, y, y * 2


@program
def attributes_behind_a_break(x: Any) -> Any:
    y = x + 1
    y.tag = x * 2
    bolide.graph_break()
    return y.tag + 1, y


@program
def attributes_of_copies(x: Any) -> Any:
    y, p = x.detach() + 1, nn.Parameter(x.detach() + 1)
    y.tag = p.tag = [1]
    shallow, deep, own, whole = copy.copy(y), copy.deepcopy(y), copy.copy(p), copy.deepcopy(p)
    y.tag.append(2)
    return y, shallow, deep, own, whole, shallow.tag is y.tag


@program
def attributes_that_are_not_there(x: Any) -> Any:
    texts = []
    for tensor in (x, x + 1, nn.Parameter(x.detach())):
        try:
            del tensor.nothing
        except AttributeError as error:
            texts.append(str(error))
        try:
            print(tensor.nothing)
        except AttributeError as error:
            texts.append(str(error))
    return texts


@program
def written_and_deleted(x: Any) -> Any:
    x.mark = 1
    del x.mark
    return x + 1


@program
def namespaces(x: Any) -> Any:
    y = x + 1
    y.tag = 1
    return sorted(vars(x)), list(y.__dict__), "mark" in dir(x)


def seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        of_leaf = value.is_leaf and value.grad is not None
        own = {name: seen(item) for name, item in vars(value).items() if item is not value and name != "tag"}
        gradient = (value.grad.tolist(), value.grad.requires_grad) if of_leaf else None
        return type(value).__name__, value.tolist(), value.requires_grad, gradient, own, len(getattr(value, "tag", ()))
    if isinstance(value, nn.Module):
        return seen(list(value.parameters()))
    if isinstance(value, dict):
        return {key: seen(item) for key, item in value.items()}
    return [seen(item) for item in value] if isinstance(value, (list, tuple)) else value


def outcome(fn: Callable[..., Any], turn: int) -> Any:
    x = (torch.arange(3.0) + turn).requires_grad_(turn == 2)
    if turn == 2:
        (x * x).sum().backward()
    if turn == 1:
        x.mark = [turn]
    KEPT.clear()
    torch.manual_seed(0)
    return seen([fn(x), x, KEPT])


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_tensor_has_beside_its_value(name: str) -> None:
    compiled = bolide.compile(PROGRAMS[name])
    for turn in (0, 1, 0, 2, 1):
        expected, got = outcome(PROGRAMS[name], turn), outcome(compiled, turn)
        assert got == expected, turn


@pytest.mark.parametrize("name", ["attributes_of_a_value", "attributes_of_copies", "of_a_parameter", "a_copy_goes_on"])
def test_in_one_graph(name: str) -> None:
    compiled = bolide.compile(PROGRAMS[name], fullgraph=True)
    for turn in (0, 2):
        assert outcome(compiled, turn) == outcome(PROGRAMS[name], turn)


class Plain:
    pass


class Slotted:
    __slots__ = ("name",)


def attribute(o: Any, x: Any) -> Any:
    o.name = x
    del o.name
    return x + 1


def item(o: Any, x: Any) -> Any:
    o["name"] = x
    del o["name"]
    return x + 1


@pytest.mark.parametrize("cls", [Plain, Slotted, dict])
def test_what_is_written_and_deleted_is_gone(cls: Any) -> None:
    """Also where it was there before, which the program has not asked."""
    fn = item if cls is dict else attribute
    compiled = bolide.compile(fn)
    for there in (False, True, False, True):
        o = cls()
        if there:
            _put(o)
        compiled(o, torch.ones(2))
        assert not (o if cls is dict else hasattr(o, "name"))


def _put(o: Any) -> None:
    if isinstance(o, dict):
        o["name"] = 7
    else:
        o.name = 7


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "floor_divide", "true_divide"])
@pytest.mark.parametrize("out", [0.0, 0, [0.0, 0.0, 0.0]], ids=str)
def test_numbers_only_and_an_out(name: str, out: Any) -> None:
    fn = getattr(torch, name)

    def call(run: Callable[..., Any], a: Any, b: Any) -> Any:
        target = torch.tensor(out)
        try:
            result = run(a, b, target)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return result.tolist(), result.dtype, target.tolist(), result is target

    def program(a: Any, b: Any, target: Any) -> Any:
        return fn(a, b, out=target)

    for first in (2, 2.5, True):
        compiled = bolide.compile(program)
        for a in (first, first + 1, first + 2):
            assert call(compiled, a, 3) == call(program, a, 3)
