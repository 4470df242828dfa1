"""itertools, bisect and heapq, for iterables and functions of the program. As generators, which are lazy like the
originals.
"""

from __future__ import annotations

import collections
import operator
from typing import Any

from bolide.dynamo.polyfills.generic import rest_of

NOTHING: Any = type("Nothing", (), {"__slots__": ()})


def iter_until(function: Any, sentinel: Any) -> Any:
    if not callable(function):
        raise TypeError("iter(v, w): v must be callable")
    return _until(function, sentinel)


def _until(function: Any, sentinel: Any) -> Any:
    while True:
        try:
            value = function()
        except StopIteration:
            return
        if sentinel is value or sentinel == value:
            return
        yield value


def accumulate(iterable: Any, func: Any = None, *, initial: Any = None) -> Any:
    return _accumulate(iter(iterable), func, NOTHING if initial is None else initial, False)


def _accumulate(iterator: Any, func: Any, total: Any, begun: Any) -> Any:
    if not begun:
        if total is NOTHING:
            try:
                total = next(iterator)
            except StopIteration:
                return
        begun = True
        yield total
    for item in rest_of(iterator):
        total = total + item if func is None else func(total, item)
        yield total


def batched(iterable: Any, n: Any, *, strict: Any = False) -> Any:
    if n < 1:
        raise ValueError("n must be at least one")
    iterator = iter(iterable)
    while True:
        batch: list[object] = []
        while len(batch) < n:
            try:
                batch.append(next(iterator))
            except StopIteration:
                break
        if not batch:
            return
        if strict and len(batch) != n:
            raise ValueError("batched(): incomplete batch")
        yield tuple(batch)


def chain(*iterables: Any) -> Any:
    return _chain(iter(iterables), iter(()))


def chain_from_iterable(iterables: Any) -> Any:
    return _chain(iter(iterables), iter(()))


def _chain(rest: Any, active: Any) -> Any:
    while True:
        for item in rest_of(active):  # noqa: UP028  (chains close nothing)
            yield item
        pending, rest = rest, iter(())  # there is no more if this raises
        iterable = next(pending, NOTHING)
        if iterable is NOTHING:
            return
        active = iter(iterable)
        rest = pending


def compress(data: Any, selectors: Any) -> Any:
    return _compress(iter(data), iter(selectors))


def _compress(data: Any, selectors: Any) -> Any:
    for item in rest_of(data):
        try:
            selected = next(selectors)
        except StopIteration:
            return
        if selected:
            yield item


def count(start: Any = 0, step: Any = 1) -> Any:
    return _count(start, step)


def _count(following: Any, step: Any) -> Any:
    while True:
        given, following = following, following + step
        yield given


def cycle(iterable: Any) -> Any:
    return _cycle(iter(iterable), [], False)


def _cycle(iterator: Any, saved: Any, again: Any) -> Any:
    if not again:
        for item in rest_of(iterator):
            saved.append(item)
            yield item
        again, iterator = True, iter(saved)
    while saved:
        for item in iterator:
            yield item
        iterator = iter(saved)


def _dropwhile(predicate: Any, iterator: Any) -> Any:
    rest = rest_of(iterator)
    for item in rest:
        if not predicate(item):
            predicate = never
            yield item
            break
    for item in rest:
        yield item


def never(item: Any) -> Any:
    return False


def _takewhile(predicate: Any, iterator: Any) -> Any:
    for item in rest_of(iterator):
        if not predicate(item):
            return
        yield item


def _filterfalse(predicate: Any, iterator: Any) -> Any:
    for item in rest_of(iterator):
        if not (item if predicate is None else predicate(item)):
            yield item


def groupby(iterable: Any, key: Any = None) -> Any:
    return _groupby(iter(iterable), key, {"value": NOTHING, "key": NOTHING, "target": NOTHING, "number": 0})


def _groupby(iterator: Any, key: Any, state: Any) -> Any:
    """`state`: an item that no group has given yet, its key, the key of the group given last, and its number."""
    while True:
        state["number"] += 1  # the group given before has come to its end
        try:
            while state["key"] is NOTHING or _is_key(state["target"], state["key"]):
                _take_keyed(iterator, key, state)
        except StopIteration:
            return
        state["target"] = state["key"]
        yield state["target"], _group(iterator, key, state, state["target"], state["number"])


def _group(iterator: Any, key: Any, state: Any, target: Any, number: Any) -> Any:
    while state["number"] == number:
        if state["value"] is NOTHING:
            try:
                _take_keyed(iterator, key, state)
            except StopIteration:
                return
        if not _is_key(target, state["key"]):
            return
        value = state["value"]
        state["value"] = state["key"] = NOTHING
        yield value


def _is_key(target: Any, key: Any) -> Any:
    return target is not NOTHING and (target is key or target == key)


def _take_keyed(iterator: Any, key: Any, state: Any) -> None:
    value = next(iterator)
    state["key"] = value if key is None else key(value)
    state["value"] = value


def islice(iterable: Any, *bounds: Any) -> Any:
    limits = slice(*bounds)
    start, stop, step = [None if part is None else _bound(part) for part in (limits.start, limits.stop, limits.step)]
    if stop is not None and stop == -1:
        raise ValueError("Stop argument for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if any(part is not None and part < 0 for part in (start, stop)):
        raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if step is not None and step < 1:
        raise ValueError("Step for islice() must be a positive integer or None.")
    return _islice(iter(iterable), 0 if start is None else start, stop, 1 if step is None else step)


def _bound(value: Any) -> Any:
    """A bound as an integer; -1 for what is none."""
    try:
        return operator.index(value)
    except Exception:
        return -1


def _islice(iterator: Any, skipped: Any, left: Any, step: Any) -> Any:
    """`left`: how many items may still be taken, `skipped`: how many of them come before the next one."""
    try:
        while True:
            for _ in range(skipped if left is None else min(skipped, left)):
                next(iterator)
            if left is not None and left <= skipped:
                return
            item = next(iterator)
            left, skipped = None if left is None else left - skipped - 1, step - 1
            yield item
    except StopIteration:
        return


def pairwise(iterable: Any) -> Any:
    iterator = iter(iterable)
    try:
        left = next(iterator)
    except StopIteration:
        return
    for right in rest_of(iterator):
        yield left, right
        left = right


def _starmap(function: Any, iterator: Any) -> Any:
    for args in rest_of(iterator):
        yield function(*args)


def tee(iterable: Any, n: Any = 2) -> Any:
    iterator = iter(iter(iterable))  # as in C
    queues = [collections.deque() for _ in range(n)]  # type: ignore[var-annotated]
    return tuple([_branch(iterator, queues, queue) for queue in queues])


def _branch(iterator: Any, queues: Any, mine: Any) -> Any:
    while True:
        if not mine:
            try:
                item = next(iterator)
            except StopIteration:
                return
            for queue in queues:
                queue.append(item)
        yield mine.popleft()


def zip_longest(*iterables: Any, fillvalue: Any = None) -> Any:
    iterators = [iter(iterable) for iterable in iterables]
    return _zip_longest(iterators, [True] * len(iterators), fillvalue)


def _zip_longest(iterators: Any, alive: Any, fillvalue: Any) -> Any:
    alive = list(alive)
    while True:
        row = []
        for position, iterator in enumerate(iterators):
            item = fillvalue
            if alive[position]:
                try:
                    item = next(iterator)
                except StopIteration:
                    alive[position] = False
            row.append(item)
        if True not in alive:
            return
        yield tuple(row)


# ---- bisect, heapq ---------------------------------------------------------------------------------------------------


def _range(a: Any, lo: Any, hi: Any) -> Any:
    """Where to search, from arguments `lo` and `hi`."""
    lo, hi = operator.index(lo), -1 if hi is None else operator.index(hi)
    if lo < 0:
        raise ValueError("lo must be non-negative")
    return lo, len(a) if hi == -1 else hi


def bisect(left: Any, a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> Any:
    """`bisect_left` or `bisect_right`."""
    lo, hi = _range(a, lo, hi)
    while lo < hi:
        middle = (lo + hi) // 2
        item = a[middle] if key is None else key(a[middle])
        if item < x if left else not x < item:
            lo = middle + 1
        else:
            hi = middle
    return lo


def insort(left: Any, a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> Any:
    """`insort_left` or `insort_right`."""
    a.insert(bisect(left, a, x if key is None else key(x), lo, hi, key=key), x)


def _rise(heap: Any, start: Any, position: Any) -> None:
    item = heap[position]
    while position > start:
        parent = (position - 1) >> 1
        if not item < heap[parent]:
            break
        heap[position] = heap[parent]
        position = parent
    heap[position] = item


def _sink(heap: Any, position: Any) -> None:
    """The item at `position` goes down to a leaf along the smaller children, then up to where it belongs."""
    start, size, item = position, len(heap), heap[position]
    child = 2 * position + 1
    while child < size:
        if child + 1 < size and not heap[child] < heap[child + 1]:
            child += 1
        heap[position] = heap[child]
        position = child
        child = 2 * position + 1
    heap[position] = item
    _rise(heap, start, position)


def heappush(heap: Any, item: Any) -> None:
    heap.append(item)
    _rise(heap, 0, len(heap) - 1)


def heappop(heap: Any) -> Any:
    last = heap.pop()
    return heapreplace(heap, last) if heap else last


def heapify(heap: Any) -> None:
    for position in reversed(range(len(heap) // 2)):
        _sink(heap, position)


def heapreplace(heap: Any, item: Any) -> Any:
    first = heap[0]
    heap[0] = item
    _sink(heap, 0)
    return first


def heappushpop(heap: Any, item: Any) -> Any:
    return heapreplace(heap, item) if heap and heap[0] < item else item
