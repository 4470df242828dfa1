"""Places of maxima, which a pooling saves for its backward, take 16 bits where a kernel reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx as fx

from bolide.functorch.graphs import aten
from bolide.functorch.passes.norms import Writer
from bolide.symbolic import ShapeEnv
from bolide.tracing import TensorMeta
from bolide.tracing.libraries import policy_of


def narrow(pools: Sequence[fx.Node], forward: set[fx.Node], shapes: ShapeEnv | None) -> None:
    """Lets the gradients of `pools` (``max_pool2d_with_indices``) read the maxima's places, which nobody else reads,
    from a copy of fewer bits. `forward`: the nodes that the forward computes; `shapes` as for `infer`."""
    for pool in pools:
        x: TensorMeta = pool.args[0].meta["val"]  # type: ignore[union-attr]
        if not (policy_of(x.device).narrows_places and _fits(x) and _is_kernel(*pool.args[1:])):
            continue
        for places in [user for user in pool.users if user.args[1] == 1]:
            readers = list(places.users)
            if not all(_is_gradient(reader) and reader not in forward for reader in readers):
                continue
            write = Writer(places.next, shapes)
            short = write(aten._to_copy.default, places, dtype=torch.int16)
            wide = write(aten._to_copy.default, short, dtype=torch.int64)
            for reader in readers:
                reader.replace_input_with(places, wide)


def _fits(x: TensorMeta) -> bool:
    """Whether 16 bits hold the places in a plane of `x`."""
    rows, columns = x.shape[-2:]
    return isinstance(rows, int) and isinstance(columns, int) and rows * columns <= 1 << 15


def _is_gradient(node: fx.Node) -> bool:
    return node.target is aten.max_pool2d_with_indices_backward.default


def _is_kernel(kernel: object, stride: object = (), padding: object = 0, dilation: object = 1, *_: object) -> bool:
    """Whether windows are small, and few of them meet (`inductor.lowering.pooling`)."""
    sizes, steps, apart = _pair(kernel), _pair(stride or kernel), _pair(dilation)
    if sizes is None or steps is None or apart != (1, 1):
        return False
    return max(sizes) <= 5 and all(1 <= step <= 2 and size <= 2 * step for size, step in zip(sizes, steps))


def _pair(value: object) -> tuple[int, int] | None:
    """The two numbers that a size or a list of sizes stands for; None if they are symbols."""
    first, *_, last = value if isinstance(value, (list, tuple)) and len(value) > 1 else (value, value)
    return (first, last) if isinstance(first, int) and isinstance(last, int) else None
