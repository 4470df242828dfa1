"""A minimum cut of a small flow network, by Dinic's algorithm (Soviet Math. Doklady 11, 1970).

In plain Python on purpose: the networks have a few thousand edges, on which this takes some 10 ms, while importing
scipy's maximum flow takes 200.
"""

from __future__ import annotations

from collections.abc import Sequence

INFINITE = float("inf")


class Network:
    """Edge e goes to `head[e]` and can still carry `room[e]`; e ^ 1 is the same edge in the other direction."""

    def __init__(self, vertices: int, edges: Sequence[tuple[int, int, float]]) -> None:
        self.head: list[int] = []
        self.room: list[float] = []
        self.leaving: list[list[int]] = [[] for _ in range(vertices)]
        for start, end, capacity in edges:
            self.leaving[start].append(len(self.head))
            self.leaving[end].append(len(self.head) + 1)
            self.head += (end, start)
            self.room += (capacity, 0.0)

    def distances_to(self, sink: int) -> list[int]:
        """For each vertex the number of edges with room to the sink; -1 where there is no such way."""
        head, room, leaving = self.head, self.room, self.leaving
        distance = [-1] * len(leaving)
        distance[sink] = 0
        layer = [sink]
        while layer:
            following = []
            for vertex in layer:
                further = distance[vertex] + 1
                for edge in leaving[vertex]:
                    start = head[edge]
                    if distance[start] < 0 and room[edge ^ 1] > 0:
                        distance[start] = further
                        following.append(start)
            layer = following
        return distance

    def block(self, source: int, sink: int, distance: list[int]) -> None:
        """Fills shortest ways from source to sink until none is left."""
        head, room, leaving = self.head, self.room, self.leaving
        position = [0] * len(leaving)
        path: list[int] = []
        vertex = source
        while True:
            if vertex == sink:
                amount = min([room[edge] for edge in path])
                if amount == INFINITE:
                    raise ValueError("no finite cut")
                full = -1
                for index, edge in enumerate(path):
                    room[edge] -= amount
                    room[edge ^ 1] += amount
                    if full < 0 and room[edge] <= 0:
                        full = index
                vertex = head[path[full] ^ 1]
                del path[full:]
                continue
            edges, at, nearer = leaving[vertex], position[vertex], distance[vertex] - 1
            while at < len(edges) and not (room[edges[at]] > 0 and distance[head[edges[at]]] == nearer):
                at += 1
            position[vertex] = at
            if at < len(edges):
                path.append(edges[at])
                vertex = head[edges[at]]
            elif path:
                distance[vertex] = -1  # a dead end
                vertex = head[path.pop() ^ 1]
            else:
                return


def minimum_cut(vertices: int, edges: Sequence[tuple[int, int, float]], source: int, sink: int) -> list[bool]:
    """For each vertex, whether it is on the source's side of a minimum cut: the one nearest to the sink if there are
    several.

    `edges` are (from, to, capacity), capacities from 0 to `INFINITE`. Raises ValueError if every cut is infinite.
    """
    network = Network(vertices, edges)
    while True:
        distance = network.distances_to(sink)
        if distance[source] < 0:
            return [steps < 0 for steps in distance]
        network.block(source, sink, distance)
