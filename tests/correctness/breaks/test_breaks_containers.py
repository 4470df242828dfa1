"""What is carried over a break in containers and iterators: keys that say themselves what they equal, iterators that
share what they draw from, attributes of dicts."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import bolide
from bolide.support import events


class Key:
    def __init__(self, value: Any, before: Any = None) -> None:
        self.before = before
        bolide.graph_break()
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.value == other.value


def a_key_is_completed_behind_a_break(n: int) -> Any:
    return [{Key(n): "a", Key(n + 1): "b"}.get(Key(n + 1)), len({Key(n), Key(n), Key(2)})]


def a_key_is_in_what_contains_itself(n: int) -> Any:
    around: list[Any] = []
    key = Key(n)
    around.append(around)
    around.append({key: 3})
    bolide.graph_break()
    return [around[1][key], around[1][Key(n)], around[0] is around, next(iter(around[1])) is key]


def a_key_contains_itself(n: int) -> Any:
    key = Key(n)
    key.before = key
    bolide.graph_break()
    return [key.before is key, {key: n}[Key(n)]]


def a_key_changes_behind_a_break(n: int) -> Any:
    kept = {Key(n): 1}
    key = Key(n + 1)
    bolide.graph_break()
    key.value = n
    return [kept.get(key), key in kept, [*{**kept, key: 4}.values()]]


def a_cycle_is_in_its_first_round(n: int) -> Any:
    cycle = itertools.cycle([1, 0, n])
    seen = [next(cycle)]
    bolide.graph_break()
    seen += [next(cycle)]
    bolide.graph_break()
    return seen + list(itertools.islice(cycle, 7))


def an_iterator_is_drawn_from_twice(n: int) -> Any:
    pairs = zip(*[iter([n, 2, 3, 4, 5, 6])] * 2)
    seen = [next(pairs)]
    bolide.graph_break()
    return seen + [*pairs]


def an_iterator_draws_from_another(n: int) -> Any:
    numbers = iter([n, 2, 3, 4, 5, 6])
    pairs = zip(range(3), numbers)
    bolide.graph_break()
    seen = [*pairs, next(numbers)]
    bolide.graph_break()
    return [*seen, *numbers]


def an_iterator_cannot_be_copied(n: int) -> Any:
    pairs = itertools.pairwise([n, 2, 3])
    seen = [next(pairs)]
    bolide.graph_break()
    return seen + [*pairs]


@bolide.disable
def made_for_real(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def a_chain_goes_on_to_generators(n: int) -> Any:
    log: list[Any] = []

    def noted() -> Iterator[int]:
        for i in range(n):
            log.append(i)
            yield i

    chain = made_for_real(itertools.chain.from_iterable, [[1, 2], noted()])
    seen = [next(chain)]
    bolide.graph_break()
    seen += [*chain]
    return seen, log


class Sequence:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        self.log.append(index)
        return index


def a_sequence_is_reversed(n: int) -> Any:
    log: list[Any] = []
    backwards = made_for_real(reversed, Sequence(log))
    seen = [next(backwards)]
    bolide.graph_break()
    return [*seen, *backwards], log


def an_ordered_dict_has_attributes(n: int) -> Any:
    made: Any = collections.OrderedDict(a=n)
    made.note = [n]
    bolide.graph_break()
    made.note.append(2)
    return made, made.note


PROGRAMS = [
    a_key_is_completed_behind_a_break,
    a_key_is_in_what_contains_itself,
    a_key_contains_itself,
    a_key_changes_behind_a_break,
    a_cycle_is_in_its_first_round,
    an_iterator_is_drawn_from_twice,
    an_iterator_draws_from_another,
    an_iterator_cannot_be_copied,
    a_chain_goes_on_to_generators,
    a_sequence_is_reversed,
    an_ordered_dict_has_attributes,
]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_containers_are_over_a_break_what_they_are_in_eager(fn: Callable[[int], Any]) -> None:
    told: list[Any] = []
    compiled = bolide.compile(fn, backend="eager")
    for n in (5, 6, 6):
        with events.subscribed(told.append):
            actual = compiled(n)
        assert actual == fn(n)
    assert any(isinstance(event, events.Captured) for event in told)


def _sorted_in_place(x: torch.Tensor) -> Any:
    pairs = [(str(place), v.item()) for place, v in enumerate(x)]
    pairs.sort(key=lambda pair: pair[1])
    return pairs


SORTS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: sorted([v.item() for v in x]),
    lambda x: sorted(enumerate(x.tolist()), key=lambda pair: -pair[1]),
    lambda x: sorted([(v.item(), place) for place, v in enumerate(x)], reverse=True),
    _sorted_in_place,
]


@pytest.mark.parametrize("sort", SORTS)
def test_what_is_sorted_by_data_is_not_compiled_for_each_order(sort: Callable[[torch.Tensor], Any]) -> None:
    compiled = bolide.compile(sort)
    xs = [torch.randperm(5).double() * 1.5 for _ in range(6)]
    found = [compiled(xs[0])]
    told: list[Any] = []
    with events.subscribed(told.append):
        found += [compiled(x) for x in xs[1:]]
    assert found == [sort(x) for x in xs]
    assert not any(isinstance(event, events.Captured) for event in told)


def nest(lengths: list[int], kinds: list[type]) -> Any:
    """Tensors in lists and tuples, the lengths of which are given from the outside in."""
    if not lengths:
        return torch.randn(2)
    return kinds[0](nest(lengths[1:], kinds[1:]) for _ in range(lengths[0]))


def stacked(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.stack([stacked(part) for part in value])


@pytest.mark.parametrize("reading", [True, False])
def test_lengths_that_change_inside_of_an_argument(reading: bool) -> None:
    """However deep it is, the length that changes is a break where the argument is read; until there, and where it is
    not, the program is compiled (what is left to eager warns)."""
    depth = random.randint(2, 3)
    kinds = [random.choice((list, tuple)) for _ in range(depth)]
    changing = random.randrange(1, depth)

    def program(nested: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        return y * stacked(nested).sum(tuple(range(depth))) if reading else y * 2

    compiled = bolide.compile(program)
    for length in random.sample(range(2, 12), 8):
        lengths = [length if place == changing else 2 for place in range(depth)]
        nested, x = nest(lengths, kinds), torch.randn(2)
        torch.testing.assert_close(compiled(nested, x), program(nested, x))
    assert not compiled._bolide.given_up
