"""Python that people write around tensors is compiled whole."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tests.ordinary_tools import check_whole


class Base:
    scale = 3.0


class Derived(Base):
    scale = 4.0


def test_functions_by_the_type_of_an_argument() -> None:
    """`functools.singledispatch`, whose cache of classes fills in compiled code, and is emptied by a new function."""

    def program(compile: Any) -> object:
        @functools.singledispatch
        def encoded(value: object, x: Tensor) -> Tensor:
            raise NotImplementedError(type(value).__name__)

        encoded.register(int, lambda value, x: x * value)
        encoded.register(Base, lambda value, x: x + value.scale)
        compiled = compile(lambda value, x: encoded(value, x).sin())
        seen = [compiled(value, torch.randn(n)) for n, value in enumerate((2, Derived(), 3, Base(), Derived(), 5), 2)]
        encoded.register(Derived, lambda value, x: x - 1)
        return seen, [compiled(value, torch.randn(3)) for value in (Derived(), Base(), Derived())], encoded(7, seen[0])

    check_whole(program, versions=8)
