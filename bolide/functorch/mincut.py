"""A minimum cut of a small flow network, by scipy's maximum flow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

INFINITE = float("inf")
_LARGEST = 2**31 - 1  # scipy counts capacities in 32 bits


def minimum_cut(vertices: int, edges: Sequence[tuple[int, int, float]], source: int, sink: int) -> list[bool]:
    """For each vertex, whether it is on the source's side of a minimum cut: the one nearest to the sink if there are
    several.

    `edges` are (from, to, capacity), capacities from 0 to `INFINITE`; parallel edges add up. Raises ValueError if
    every cut is infinite.
    """
    from scipy.sparse import csr_array  # heavy, and needed in training only
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    start, end, price = (np.array(column) for column in zip(*edges))
    finite = np.isfinite(price)
    unit = max(1.0, float(price[finite].sum()) / 2**30)
    capacity = np.full(len(price), _LARGEST, dtype=np.int64)
    capacity[finite] = np.ceil(price[finite] / unit)
    network = csr_array((capacity, (start, end)), shape=(vertices, vertices))
    network.data = np.minimum(network.data, _LARGEST).astype(np.int32)
    flow = maximum_flow(network.astype(np.int32), source, sink)
    if flow.flow_value >= 2**30 + len(price):
        raise ValueError("no finite cut")
    residual = csr_array(network - flow.flow)
    residual.eliminate_zeros()
    backwards = breadth_first_order(csr_array(residual.T), sink, return_predecessors=False)
    side = np.ones(vertices, dtype=bool)
    side[backwards] = False
    return side.tolist()
