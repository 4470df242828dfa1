"""Containers whose classes say themselves how they are read, written, copied and iterated over, and views of containers
of the outside: results, writes and exceptions as in eager."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bolide.support.errors import BolideWarning
from tests.everyday_tools import Table

pytestmark = pytest.mark.filterwarnings(f"error::{BolideWarning.__module__}.{BolideWarning.__name__}")
TABLE = Table()


def caught(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return repr(error)


# ---- special methods for attributes that are written in C ------------------------------------------------------------


class Dotted(dict[str, Any]):
    __getattr__ = dict.get
    __setattr__ = dict.__setitem__  # type: ignore[assignment]
    __delattr__ = dict.__delitem__  # type: ignore[assignment]


class OrderedDotted(OrderedDict[str, Any]):
    __getattr__ = OrderedDict.__getitem__
    __setattr__ = OrderedDict.__setitem__  # type: ignore[assignment]
    __delattr__ = OrderedDict.__delitem__  # type: ignore[assignment]


class Bag(set[str]):
    __delattr__ = set.discard  # type: ignore[assignment]


class OnlyItems(dict[str, Any]):
    __getattribute__ = dict.get  # type: ignore[assignment]


def use(x: torch.Tensor, table: Any) -> Any:
    table.made = x + 1
    scale = table.scale
    table.scale = scale * 2
    said = [caught(getattr, table, "missing"), caught(hasattr, table, "missing")]
    del table.gone
    said += [caught(delattr, table, "gone"), caught(object.__delattr__, table, "gone"), list(table)]
    setattr(table, "later", 4)  # noqa: B010
    return x * scale, said, table.made, object.__getattribute__(table, "__dict__")


@TABLE.program(lambda n: torch.ones(3), lambda n: Dotted(scale=n // 2, gone=1))
def dotted(x: torch.Tensor, table: Any) -> Any:
    return use(x, table)


@TABLE.program(lambda n: torch.ones(3), lambda n: OrderedDotted(scale=n // 2, gone=1))
def dotted_in_order(x: torch.Tensor, table: Any) -> Any:
    return use(x, table)


@TABLE.program(lambda n: torch.ones(3))
def new_dotted(x: torch.Tensor) -> Any:
    first, second = Dotted(scale=2, gone=1), OrderedDotted(scale=3, gone=1)
    return use(x, first), use(x, second), first, second


@TABLE.program(lambda n: torch.ones(3), lambda n: Bag(["a", "b" * n, "d"]))
def bag(x: torch.Tensor, names: Any) -> Any:
    own = Bag("xy")
    del names.a, names.missing, own.x
    return x + len(names), own


@TABLE.program(lambda n: torch.ones(3), made=True)
def only_items() -> Any:
    table = OnlyItems(size=1)

    def program(x: torch.Tensor) -> Any:
        dict.__setitem__(table, "size", dict.get(table, "size", 0) + 1)
        return x + table.size, table.missing, table.__dict__, OnlyItems(new=5).new, len(table)

    return program


@pytest.mark.parametrize(**TABLE.params())
def test_containers_with_methods_of_their_own(program: Any) -> None:
    program.check()
