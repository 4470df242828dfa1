"""What eager refuses of operations that write: found out while tracing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.fx

from bolide.support.errors import Unsupported, UserFrame
from bolide.symbolic import hint_of
from bolide.tracing.meta import found_in, meta_of
from bolide.tracing.rules import overlaps, types
from bolide.tracing.rules.common import may_be_negative, surely
from bolide.tracing.tensor import TracedTensor


def refuse_overlaps(
    where: UserFrame | None, func: Any, args: Any, kwargs: dict[str, Any], targets: Sequence[Any]
) -> None:
    """Raises what eager does where elements of a target are one in memory, or an operand shares some with it."""

    def place(arg: Any) -> str:
        if any(arg is target for target in targets):
            return overlaps.INSIDE if overlaps.inside(arg.meta) else overlaps.TARGET
        shares = (target for target in targets if target.__class__ is TracedTensor and target.group is arg.group)
        return overlaps.PARTLY if any(overlaps.partly(t.meta, arg.meta) for t in shares) else overlaps.APART

    traced = found_in((args, kwargs), TracedTensor)
    places = [place(tensor) for tensor in traced]
    if overlaps.PARTLY not in places and overlaps.INSIDE not in places:
        return
    if types.is_chosen_by_size(func):
        reason = "a product is written to an out= argument that overlaps: only some of its kernels refuse that"
        raise Unsupported(reason, where, kind="tensor_write")
    known = {id(tensor): (tensor.meta, place) for tensor, place in zip(traced, places)}

    def described(arg: Any) -> Any:
        if isinstance(arg, (list, tuple)):
            return [described(item) for item in arg]
        if isinstance(arg, torch.Tensor):
            return known.get(id(arg)) or (meta_of(arg), overlaps.APART)
        return arg

    refused = overlaps.refusal(func, described(args), {key: described(arg) for key, arg in kwargs.items()})
    if refused is not None:
        raise type(refused)(*refused.args)


def refuse_types(
    where: UserFrame | None,
    func: Any,
    args: Any,
    kwargs: dict[str, Any],
    out: Collection[str],
    results: Sequence[torch.fx.Node],
) -> None:
    """Raises what eager does where an `out=` argument is of a type that the operation does not write."""
    given = [kwargs[name].dtype for name in kwargs if name in out]
    wanted = [result.meta["val"].dtype for result in results]
    if given == wanted or len(given) != len(wanted):
        return

    def described(arg: Any) -> Any:
        if isinstance(arg, (list, tuple)):
            return [described(item) for item in arg]
        return (
            arg.node.meta["val"]
            if arg.__class__ is TracedTensor
            else meta_of(arg)
            if isinstance(arg, torch.Tensor)
            else arg
        )

    options = {key: described(arg) for key, arg in kwargs.items() if key not in out}
    names = [name for name in kwargs if name in out]
    refused = types.out_refusal(func, described(args), options, dict(zip(names, given)), dict(zip(names, wanted)))
    if refused is not None:
        raise type(refused)(*refused.args)
    if not all(map(torch.can_cast, wanted, given)):
        reason = "an out= argument of a type to which the result is not converted"
        raise Unsupported(reason, where, "give it the right type", kind="tensor_write")


def refuse_negative(shape: Any, make: Callable[[list[int]], torch.Tensor] = torch.empty) -> None:
    """Raise what eager does where tensors of a negative size are made; `make` is a function that does so."""
    if not all(surely(size >= 0) for size in shape if may_be_negative(size)):
        with torch._C._DisableTorchDispatch():
            make(list(map(hint_of, shape)))
