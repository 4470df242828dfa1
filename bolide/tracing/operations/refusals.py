"""What eager refuses of operations that write: found out while tracing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.fx

from bolide.support.errors import Unsupported, UserFrame
from bolide.symbolic import hint_of
from bolide.tracing.graph import mapped
from bolide.tracing.meta import found_in, meta_of
from bolide.tracing.rules import kernels
from bolide.tracing.rules.common import crosses, may_be_negative, repeats, surely
from bolide.tracing.rules.kernels import Placed
from bolide.tracing.tensor import TracedTensor


def refuse_overlaps(
    where: UserFrame | None, func: Any, args: Any, kwargs: dict[str, Any], targets: Sequence[Any]
) -> None:
    """Raises what eager does where elements of a target are one in memory, or an operand shares some with it."""

    def placed(arg: TracedTensor) -> Placed:
        if any(arg is target for target in targets):
            return Placed(arg.meta, "repeated" if repeats(arg.meta) else "target")
        shares = (target for target in targets if target.__class__ is TracedTensor and target.group is arg.group)
        return Placed(arg.meta, "partly" if any(crosses(t.meta, arg.meta) for t in shares) else "apart")

    known = {id(tensor): placed(tensor) for tensor in found_in((args, kwargs), TracedTensor)}
    if not any(each.place in ("partly", "repeated") for each in known.values()):
        return
    if kernels.is_chosen_by_size(func):
        reason = "a product is written to an out= argument that overlaps: only some of its kernels refuse that"
        raise Unsupported(reason, where, kind="tensor_write")

    def described(arg: object) -> object:
        return known.get(id(arg)) or Placed(meta_of(arg), "apart") if isinstance(arg, torch.Tensor) else arg

    refused = kernels.overlap_refusal(func, mapped(args, described), mapped(kwargs, described))
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

    def described(arg: object) -> object:
        if isinstance(arg, TracedTensor):
            return arg.node.meta["val"]
        return meta_of(arg) if isinstance(arg, torch.Tensor) else arg

    options = {key: mapped(arg, described) for key, arg in kwargs.items() if key not in out}
    names = [name for name in kwargs if name in out]
    written = dict(zip(names, given)), dict(zip(names, wanted))
    refused = kernels.out_refusal(func, mapped(args, described), options, *written)
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
