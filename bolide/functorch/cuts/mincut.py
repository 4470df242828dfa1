"""A minimum cut of a flow network, by scipy's maximum flow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LARGEST = 2**31 - 1  # scipy counts capacities in 32 bits
_TOTAL = 2**29


def minimum_cut(vertices: int, edges: Sequence[tuple[int, int, float]], source: int, sink: int) -> list[bool]:
    """For each vertex, whether it is on the source's side of a minimum cut: the one nearest to the sink if there are
    several.

    `edges` are (from, to, capacity), capacities from 0 to `INFINITE`; parallel edges add up. Capacities are rounded to
    1 / 2**29 of the sum of the finite ones. Raises ValueError if every cut is infinite.
    """
    from scipy.sparse import csr_array  # takes 0.2 s to import, and is needed in training only
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    start, end, price = (np.array(column) for column in zip(*edges))
    finite = np.isfinite(price)
    unit = float(price[finite].sum()) / _TOTAL or 1.0
    capacity = np.full(len(price), _LARGEST, dtype=np.int64)
    capacity[finite] = np.rint(price[finite] / unit)
    network = csr_array((capacity, (start, end)), shape=(vertices, vertices))
    network.data = np.minimum(network.data, _LARGEST).astype(np.int32)
    flow = maximum_flow(network, source, sink)
    if flow.flow_value > _TOTAL + len(price):
        raise ValueError("no finite cut")
    residual = csr_array(network - flow.flow)
    residual.eliminate_zeros()
    before_sink = breadth_first_order(csr_array(residual.T), sink, return_predecessors=False)
    side = np.ones(vertices, dtype=bool)
    side[before_sink] = False
    return [bool(on_source_side) for on_source_side in side]
