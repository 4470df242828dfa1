"""The values that are saved for the backward where memory for them is limited (`config.activation_memory_budget`).

Time and memory are both sums over a cut of the joint graph. So for every price of a byte a minimum cut of time +
price × bytes takes the least time for the bytes that it saves, and the higher the price the fewer these are. The two
such cuts next to the limit are found by going along the convex hull of (bytes, time), as M. Eisner and D. Severance do
("Mathematical techniques for efficient record segmentation in large shared databases", 1976). Layers that are alike
change sides at one price: of what the quicker cut saves and the other does not, the last values are saved as well, as
far as they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, replace

import torch
import torch.fx as fx
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from bolide.functorch.cost import hint, node_bytes, recompute
from bolide.functorch.graphs import aten, is_tensor, is_tuple
from bolide.functorch.partitioners import (
    Cut,
    Joint,
    Needs,
    Partition,
    analyse,
    cheapest,
    cut,
    price_of_again,
    price_of_saving,
    saved_bytes,
    split,
)
from bolide.tracing.graph import closure, mapped
from bolide.tracing.libraries import policy_of
from bolide.tracing.meta import TensorMeta
from bolide.tracing.traits import NEVER, traits_of

_FORMULA_OF = {aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention}
"""Operations that torch has no formula for, by those that do the same."""

_MOST_CUTS = 24
_PARTS = 32
_LARGE = 1e9  # time for a byte


@dataclass(frozen=True, slots=True)
class _Choice:
    """A cut, its bytes, and its time in bytes of traffic."""

    cut: Cut
    bytes: int
    time: float


def partition_within(joint: Joint, budget: float, recomputable: Container[object] | None = None) -> Partition:
    """As `partitioners.partition` with "min_cut", but at most the share `budget` of the bytes are saved."""
    needs = analyse(joint, recomputable)
    return split(joint, needs, within_budget(needs, cheapest(needs), budget), late=True)


def within_budget(needs: Needs, usual: list[fx.Node], budget: float) -> list[fx.Node]:
    """The values to save: at most the share `budget` of the bytes of the `usual` choice, where that can be reached, at
    least time. A larger budget never saves fewer bytes than a smaller one would.

    Raises ValueError for a budget outside of 0 to 1."""
    if not 0 <= budget <= 1:
        raise ValueError(f"activation_memory_budget is {budget}, not a share between 0 and 1")
    limit = budget * _activations(usual)
    needs = replace(needs, again=again, exposed=set())  # a budget asks for what is computed again from the inputs
    low, high = _choice(needs, 0.0), _choice(needs, _LARGE)
    if low.bytes <= limit:
        return low.cut.saved
    if high.bytes > limit:
        return high.cut.saved
    price = _LARGE
    for _ in range(_MOST_CUTS):
        price = (high.time - low.time) / (low.bytes - high.bytes)
        between = _choice(needs, price)
        if between.bytes in (low.bytes, high.bytes) or _total(between, price) >= _total(low, price) * (1 - 1e-6):
            break
        low, high = (low, between) if between.bytes <= limit else (between, high)
    return max((_with_last(needs, low, high, part) for part in range(_PARTS)), key=lambda saved: _fitting(saved, limit))


def _with_last(needs: Needs, low: _Choice, high: _Choice, parts: int) -> list[fx.Node]:
    """What `high` saves, and so many of `_PARTS` of what only `low` does, the last values first."""
    known = {*high.cut.saved}
    more = [node for node in reversed(low.cut.saved) if node not in known]
    saved = {*known, *more[: len(more) * parts // _PARTS]}
    read = closure(needs.demanded, lambda node: () if node in saved else node.all_input_nodes)
    return [node for node in needs.candidates if node in saved and node in read]


def _fitting(saved: list[fx.Node], limit: float) -> int:
    return size if (size := _activations(saved)) <= limit else -1


def _total(choice: _Choice, price: float) -> float:
    return choice.time + price * choice.bytes


def _choice(needs: Needs, price: float) -> _Choice:
    """The best choice where a byte has a price."""
    found = cut(needs, lambda node: price_of_saving(node, needs) + price * _bytes(node))
    time = sum(price_of_saving(node, needs) for node in found.saved)
    time += sum(price_of_again(node, needs) for node in found.again)
    return _Choice(found, _activations(found.saved), time)


def _activations(saved: Collection[fx.Node]) -> int:
    """The bytes of saved values that live for the backward alone: inputs live anyway."""
    return saved_bytes(node for node in saved if node.op != "placeholder")


def _bytes(node: fx.Node) -> int:
    return 0 if node.op == "placeholder" else node_bytes(node)


# ---- time ------------------------------------------------------------------------------------------------------------


def again(node: fx.Node) -> float:
    """What computing a value once more costs, as `cost.recompute`, but products and the like may be done again, for the
    time of their arithmetic. Only what is random, or unknown, must run once."""
    price = recompute(node)
    if price < NEVER or node.op != "call_function":
        return price
    target = node.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable or traits_of(target).seeded:
        return NEVER
    if torch.Tag.nondeterministic_seeded in target.tags or not _gives_tensors(node):
        return NEVER
    traffic = node_bytes(node) + sum(map(node_bytes, node.all_input_nodes))
    value = node.meta["val"]
    results = [meta for meta in (value if is_tuple(value) else (value,)) if isinstance(meta, TensorMeta)]
    return traffic + (flops(node) / policy_of(results[0].device).flops_per_byte if results else 0.0)


def _gives_tensors(node: fx.Node) -> bool:
    return is_tensor(node) or is_tuple(node.meta["val"])


def flops(node: fx.Node) -> float:
    """The arithmetic of an operation by torch's formulas, for the sizes that were seen; 0 where there is none."""
    if not isinstance(node.target, OpOverload):
        return 0.0
    packet = node.target.overloadpacket
    formula: Callable[..., float] | None = flop_registry.get(_FORMULA_OF.get(packet, packet))
    if formula is None:
        return 0.0
    args, kwargs, result = mapped((node.args, node.kwargs, node), _empty)
    return formula(*args, **kwargs, out_val=result)


def _empty(item: object) -> object:
    """A tensor without data in place of a node."""
    if not isinstance(item, fx.Node):
        return item
    return mapped(
        item.meta["val"],
        lambda meta: torch.empty(list(map(hint, meta.shape)), device="meta") if isinstance(meta, TensorMeta) else meta,
    )
