"""Operations that write their arguments and have no functional form (users' operators, lists that are written): in the
graph they are ``bolide::functional``, which lets them write to copies and gives the copies as results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from bolide.support.errors import Unsupported
from bolide.tracing.meta import TensorMeta
from bolide.tracing.rules import infer
from bolide.tracing.rules.common import like_strides
from bolide.tracing.rules.registry import rule
from bolide.tracing.tables import enter, lookup
from bolide.tracing.tensor import TracedTensor

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace


@dataclass(frozen=True)
class Writing:
    """One call: the operation, its arguments in flat form (a tensor or a symbolic number is None there: they are
    arguments of the node), the places of the tensors and of the numbers, which of the tensors are written (as positions
    among them), and the metas of all results: the operation's own `returned` ones that are no argument, then the
    copies."""

    func: Any
    leaves: list[Any]
    spec: Any
    places: list[int]
    numbers: list[int]
    written: list[int]
    returned: int
    metas: list[TensorMeta]


def call_on_copies(trace: Trace, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], op: Any = None) -> Any:
    """Records a call of `func` as one of `op` (`functional`, or `drawn`); the result is as the operation's. Raises
    Unsupported where it returns what it was given, unless that is the tensor it writes."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[place] for place in places]
    targets = {id(leaf) for leaf in pytree.tree_leaves(_written(func, args, kwargs)) if isinstance(leaf, torch.Tensor)}
    written = [position for position, tensor in enumerate(tensors) if id(tensor) in targets]
    nodes = [trace.unwrap(tensor) for tensor in tensors]
    numbers = [place for place, leaf in enumerate(leaves) if type(leaf) is torch.SymInt]
    plain = [None if isinstance(leaf, (torch.Tensor, torch.SymInt)) else trace.unwrap(leaf) for leaf in leaves]
    metas: list[TensorMeta] = []
    returns, itself = func._schema.returns, None
    if op is drawn and len(returns) == 1 and returns[0].alias_info is not None and written:
        returns, itself = [], tensors[written[0]]
    if returns:
        if any(value.alias_info is not None for value in returns):
            raise Unsupported(f"{func} returns an argument that it writes", trace.where, kind="operator")
        full = [None if hasattr(leaf, "put") else leaf for leaf in plain]  # no generator for the shapes
        for place, known in (*zip(places, nodes), *[(place, leaves[place]) for place in numbers]):
            full[place] = known
        node_args, node_kwargs = pytree.tree_unflatten(full, spec)
        found = infer(func, node_args, node_kwargs, trace.shapes if trace.shapes.hints else None)
        metas = [found] if isinstance(found, TensorMeta) else list(found)
    returned = len(metas)
    for position in written:
        meta = nodes[position].meta["val"]
        metas.append(TensorMeta(meta.shape, like_strides(meta), 0, meta.dtype, meta.device))
    table = enter(Writing(func, plain, spec, places, numbers, written, returned, metas))
    results = trace.call(op or functional, nodes, [trace.unwrap(leaves[place]) for place in numbers], table)
    for position, node in zip(written, results[returned:]):
        target = tensors[position]
        trace.write(target if target.__class__ is TracedTensor else trace.lift(target), node)
    if itself is not None:
        return itself
    made = [trace.wrap(node) for node in results[:returned]]
    return None if not made else made[0] if len(func._schema.returns) == 1 else tuple(made)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    arguments = func._schema.arguments
    named = {**dict(zip([argument.name for argument in arguments], args)), **kwargs}
    return [
        named[argument.name]
        for argument in arguments
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in named
    ]


def _functional(tensors: Sequence[torch.Tensor], numbers: Sequence[int], table: int) -> list[torch.Tensor]:
    call: Writing = lookup(table)
    own = list(tensors)
    for position in call.written:
        own[position] = own[position].clone()
    leaves = [leaf.get() if hasattr(leaf, "put") else leaf for leaf in call.leaves]
    for place, value in (*zip(call.places, own), *zip(call.numbers, numbers)):
        leaves[place] = value
    args, kwargs = pytree.tree_unflatten(leaves, call.spec)
    result = call.func(*args, **kwargs)
    returned = [] if result is None else [result] if isinstance(result, torch.Tensor) else list(result)
    return [*returned[: call.returned], *[own[position] for position in call.written]]


_library: Any = torch.library.Library("bolide", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("functional(Tensor[] tensors, SymInt[] numbers, int table) -> Tensor[]")
_library.impl("functional", _functional, "CompositeExplicitAutograd")
functional = torch.ops.bolide.functional.default
_library.define(
    "drawn(Tensor[] tensors, SymInt[] numbers, int table) -> Tensor[]", tags=(torch.Tag.nondeterministic_seeded,)
)
_library.impl("drawn", _functional, "CompositeExplicitAutograd")
drawn = torch.ops.bolide.drawn.default
"""As `functional`, of an operation that draws from a generator of the user's (see `generators`)."""


@rule("bolide::functional", "bolide::drawn")
def _metas(tensors: list[TensorMeta], numbers: list[Any], table: int) -> list[TensorMeta]:
    return list(lookup(table).metas)
