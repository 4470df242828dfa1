"""Views of containers of the outside, and namespaces with keys that are no names: reads see what the call has
written, and writes arrive."""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.support.errors import BolideWarning
from tests.everyday_tools import described

pytestmark = pytest.mark.filterwarnings(f"error::{BolideWarning.__module__}.{BolideWarning.__name__}")


class Thing:
    pass


class Reader:
    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


def a_dict() -> Any:
    made = {"a": 1, "b": torch.ones(2)}
    return made, types.MappingProxyType(made)


def an_ordered_dict() -> Any:
    made = OrderedDict(a=1, b=torch.ones(2))
    return made, types.MappingProxyType(made)


def an_object() -> Any:
    made = Thing()
    made.a, made.b = 1, torch.ones(2)  # type: ignore[attr-defined]
    return made, types.MappingProxyType(made.__dict__)


def a_class() -> Any:
    made = type("Made", (), {"a": 1, "b": torch.ones(2)})
    return made, made.__dict__


def parameters() -> Any:
    made = torch.nn.Module()
    made.a, made.b = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.ones(2))
    return made, types.MappingProxyType(made._parameters)


def write(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    elif isinstance(owner, torch.nn.Module):
        setattr(owner, name, torch.nn.Parameter(torch.zeros(2) + value))
    else:
        setattr(owner, name, value)


def seen_later(x: torch.Tensor, owner: Any, view: Any) -> Any:
    before = len(view), view["a"]
    write(owner, "a", before[1] + 8)
    write(owner, "c", x * 2)
    return view["a"] + x, view["c"] + 1, "c" in view, [key for key in view if key in "abc"], len(view) - before[0]


def seen_behind_breaks(x: torch.Tensor, owner: Any, view: Any) -> Any:
    said = [view["a"]]
    for value in (5, 6):
        bolide.graph_break()
        write(owner, "a", value)
        said.append(view["a"])
    return x + said[-1], said


@pytest.mark.parametrize("make", [a_dict, an_ordered_dict, an_object, a_class, parameters])
@pytest.mark.parametrize("program", [seen_later, seen_behind_breaks])
def test_read_only_views_show_what_the_call_has_written(program: Callable[..., Any], make: Callable[[], Any]) -> None:
    compiled, (mine, my_view), (its, its_view) = bolide.compile(program), make(), make()
    with torch.no_grad():
        for size in (2, 2, 1):
            expected = described(program(torch.ones(size), mine, my_view))
            assert described(compiled(torch.ones(size), its, its_view)) == expected


def test_read_only_views_leave_with_what_they_show() -> None:
    @bolide.compile(fullgraph=True)
    def program(x: torch.Tensor, given: Any) -> Any:
        view, own = types.MappingProxyType(given), {"own": x}
        given["new"] = x
        return view, types.MappingProxyType(own), own.keys().mapping, own  # type: ignore[attr-defined]

    for count in range(1, 4):
        given: dict[str, Any] = {"count": count}
        view, first, second, own = program(torch.ones(count), given)
        given["later"] = own["later"] = count
        assert [*view] == ["count", "new", "later"] and [*first] == [*second] == ["own", "later"]
        assert {type(each) for each in (view, first, second)} == {types.MappingProxyType}


KEY = ("a", 1)


def of_every_kind(x: torch.Tensor, thing: Any) -> Any:
    table = vars(thing)
    said = [table.get(1), table.get(KEY), len(table), list(table)]
    table[2], table[KEY] = x + 1, len(table)
    table.pop(1, None)
    return x + table.get(3, 5), said, thing.__dict__[2], KEY in table


@pytest.mark.parametrize("cls", [Thing, Reader])
@pytest.mark.parametrize(
    "program",
    [
        of_every_kind,
        lambda x, thing: (vars(thing).update({2: 10}), x + 1)[1],
        lambda x, thing: (x + thing.__dict__[1], len(vars(thing))),
    ],
)
def test_keys_of_a_namespace_that_are_no_names(program: Callable[..., Any], cls: Any) -> None:
    compiled = bolide.compile(program)
    mine, its = cls(), cls()
    for step in range(4):
        for each in (mine, its):
            each.__dict__.update({1: step, "name": 3} if step < 3 else {1: 3, 3: torch.ones(2)})
        expected = described([program(torch.ones(2), mine), mine.__dict__])
        assert described([compiled(torch.ones(2), its), its.__dict__]) == expected
