"""Operations at places along one dimension: `select` and `slice`, what writes there, and their gradients.

An index or a bound may count from the end. In graphs one that is a symbol counts from the front and lies within its
dimension: whether it is negative, or too large, is asked here, once, and is a guard from then on (or, of data, is found
when the program runs). So whoever reads a graph takes such a symbol for the place that it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bolide.tracing.numbers import data
from bolide.tracing.operations.handlers import functional, handler, record_view
from bolide.tracing.rules.views import bound_from_front, index_from_front

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace


@handler("select.int", "slice.Tensor")
def _view(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    return record_view(trace, func, *_from_front(trace, func, args, kwargs))


@handler(
    "select_copy.int",
    "slice_copy.Tensor",
    "select_scatter",
    "slice_scatter",
    "select_backward",
    "slice_backward",
)
def _copy(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    return functional(trace, func, *_from_front(trace, func, args, kwargs))


def _from_front(trace: Trace, func: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with symbolic indices and bounds counted from the front."""
    if not trace.has_symbols:
        return args, kwargs
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args)) | kwargs
    places = {name: given[name] for name in ("index", "start", "end") if given.get(name).__class__ is torch.SymInt}
    sizes = given["input_sizes"] if "input_sizes" in given else given["self"].shape
    dim = given.get("dim", 0)
    if not places or not -len(sizes) <= dim < len(sizes):
        return args, kwargs
    size = sizes[dim]
    for name, place in places.items():
        if data.may_count_from_end(trace, place):
            given[name] = (data.wrapped if name == "index" else data.clipped)(trace, place, size)
        else:
            given[name] = (index_from_front if name == "index" else bound_from_front)(place, size)
    return tuple(given[name] for name in names[: len(args)]), {name: given[name] for name in kwargs}
