"""Containers from outside that are others from call to call: layers that are frozen, names that are wanted, batches
with other entries, losses by name."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.support import events


def versions(program: Callable[..., Any], arguments: Callable[[int], tuple[Any, ...]], count: int = 12) -> int:
    """How many versions calls make, each of which is compared with eager's, what it does to its arguments included."""
    told: list[object] = []
    compiled = bolide.compile(program)
    with events.subscribed(told.append):
        for number in range(count):
            expected, result = outcome(program, arguments(number)), outcome(compiled, arguments(number))
            assert result == expected, number
    return sum(isinstance(event, events.Captured) for event in told)


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    args = copy.deepcopy(args)
    try:
        result = shown(function(*args))
    except Exception as error:
        result = repr(error)
    return f"{result} {shown(args)}"


def shown(value: Any) -> str:
    """The text of a value; of a set one that says nothing of its order, which depends on how it was made."""
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__} of {sorted(map(repr, value))}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} of {list(map(shown, value))}"
    if isinstance(value, dict):
        return f"{type(value).__name__} of {[(shown(key), shown(held)) for key, held in value.items()]}"
    return repr(value)


SETS: list[set[Any]] = [{1, 2}, {2, 7, 9}, set(), {"sin", 2.5, None}, {"cos"}, {(1, 2), 3, True}, {40, 3, 21, 8}]

ASKED_OF_SETS = """
2 in s, 7 not in s, "sin" in s, True in s, 1.0 in s, (1, 2) in s, None in s, x.shape[0] in s
[3] in s
len(s), bool(s), not s, s or 3, x * len(s), len(s) > 2
[type(item) for item in s], list(s), tuple(s), [x * 2 for item in s]
sorted(s, key=str), sorted(map(str, s)), max(s, key=str, default=None), sum(1 for item in s)
sum(s)
{*s, 2}, [*s], set(s), frozenset(s), s == {1, 2}, s != {2}, s <= {1, 2, 3}, s.isdisjoint({2}), s.issubset({1, 2})
s | {1}, s & {1, 2}, s - {2}, s ^ {2}, {1} | s, {1, 2} - s, s.copy(), s.union([5]), s.intersection({1})
isinstance(s, (set, frozenset)), type(s), hash(s) if type(s) is frozenset else 0, s is s, s == s, id(s) == id(s)
(s.add(5), 5 in s, len(s)), 2 in s, s.discard(2), 2 in s
s.update({2, 4}), s.pop(), len(s) > 1
s, [s], {"s": s}, (s, 2 in s)
repr(s), f"{s}", str(s)
{s: 1}[s]
dict.fromkeys(s, 1), {item: 1 for item in s}, any(s), all(s), list(enumerate(s)), list(zip(s, s)), next(iter(s))
set.__contains__(s, 2), s.__contains__(2), s.__len__(), len(list(iter(s)))
torch.tensor(sorted(item for item in s if type(item) is int), dtype=torch.float64) + x.sum()
"""


@pytest.mark.parametrize("text", ASKED_OF_SETS.strip().splitlines())
@pytest.mark.parametrize("cls", [set, frozenset])
@pytest.mark.parametrize("place", ["argument", "attribute", "behind"])
def test_whatever_is_asked_of_a_set_that_changes(text: str, cls: type, place: str) -> None:
    scope: dict[str, Any] = {"torch": torch, "bolide": bolide}
    start = {"argument": "", "attribute": "    s = s.held\n", "behind": "    bolide.graph_break()\n"}[place]
    exec(f"def program(x, s):\n{start}    return x + 1, ({text})", scope)
    x = torch.rand(3)
    versions(scope["program"], lambda n: (x, Holder(cls(SETS[n % 7])) if place == "attribute" else cls(SETS[n % 7])), 9)


class Holder:
    def __init__(self, held: object) -> None:
        self.held = held

    def __repr__(self) -> str:
        return f"Holder({shown(self.held)})"


def test_a_set_that_changes_is_asked() -> None:
    def program(x: torch.Tensor, wanted: set[object]) -> list[torch.Tensor]:
        found = [x.sin()] if "sin" in wanted else []
        return [*found, x * len(wanted)] if wanted else found

    x = torch.rand(3)
    assert versions(program, lambda n: (x, {"sin", n, n + 1} if n % 2 else {n, "cos", "tan"})) <= 3
    assert versions(program, lambda n: (x, set(range(n, 2 * n + 3)))) <= 3


def test_the_items_of_a_set_that_changes_are_symbols() -> None:
    def program(x: torch.Tensor, chosen: set[int]) -> object:
        return x[:, sorted(chosen)], sum(chosen), max(chosen), [x[:, place] for place in chosen]

    x = torch.rand(2, 40)
    choices = [set(random.Random(call).sample(range(2, 40), 3)) for call in range(12)]
    assert versions(program, lambda call: (x, choices[call])) <= 4


def test_layers_are_frozen_in_training() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
            self.frozen: set[int] = set()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for place, layer in enumerate(self.layers):
                y = layer(x).tanh()
                x = y.detach() + x if place in self.frozen else y
            return x

    torch.manual_seed(0)
    eager = Model()
    models = eager, copy.deepcopy(eager)
    compiled = bolide.compile(models[1])
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    for step in range(12):
        x = torch.randn(3 + step % 4, 8)
        frozen = {layer for layer in range(4) if layer < step // 3} | {100 + step}
        for model, call, optimizer in zip(models, (models[0], compiled), optimizers, strict=True):
            model.frozen = frozen
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()
        for mine, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
            assert (mine.grad is None) is (theirs.grad is None)
    assert len(compiled._bolide_call._bolide.entries) <= 6


@pytest.mark.parametrize("seed", range(40))
def test_sets_keep_their_order(seed: int) -> None:
    """It depends on what has been put in and taken out, which no copy knows of."""

    def gone_through(x: torch.Tensor, s: set[int]) -> object:
        return x + 1, list(s), [x * item for item in s]

    def taken_out(x: torch.Tensor, s: set[int]) -> object:
        return x + 1, s.pop(), 5 in s, len(s)

    def made() -> set[int]:
        choice = random.Random(seed)
        found = set(choice.sample(range(100), 7)) | set(choice.sample(range(100), choice.randrange(6)))
        for item in choice.sample(sorted(found), choice.randrange(6)):
            found.discard(item)
        return found

    x = torch.rand(2)
    for program in (gone_through, taken_out):
        assert str(bolide.compile(program)(x, made())) == str(program(x, made()))


def test_keys_are_sizes_and_other_numbers() -> None:
    def program(x: torch.Tensor, n: int, k: object) -> object:
        made = {n: 1, k: 2}
        return x + len(made), made, {k, n}, made.get(n)

    numbers = [(1, True), (2, True), (3, True), (1, True), (5, 5.0), (4, 2.5), (0, False), (3, 3.0)]
    versions(program, lambda call: (torch.ones(1), *numbers[call]), 8)


HISTORIES = """
h.held.append(y); return y * len(h.held)
n = len(h.held); h.held.append(n); return y + n, len(h.held), len(h.held) > 3
h.held.append(y); n = len(h.held); h.held += [n]; return len(h.held), n, h.held[-1]
n = len(h.held); return y, sum(h.held), n
a = h.held; a.append(1); h.held.append(2); return len(a), len(h.held), y
h.held.append(y) if len(h.held) < 3 else h.held.clear(); return len(h.held)
a = h.held; n = len(h.held); a.pop(0) if n > 2 else a.append(y); return n, len(a), len(h.held)
h.held.append(len(h.held)); bolide.graph_break(); h.held.append(y); return len(h.held), len(h.held) % 2
[h.held.append(i) for i in range(len(h.held) // 3 + 1)]; return y, len(h.held)
h.held.append(y) if y.sum() > 0.3 else h.held.append(0); return y + len(h.held)
h.held = [*h.held, 1]; return y, len(h.held)
h.held.append(y); return y.new_zeros(len(h.held) + 1), list(range(len(h.held)))
"""


@pytest.mark.parametrize("text", HISTORIES.strip().splitlines())
def test_histories_grow(text: str) -> None:
    scope: dict[str, Any] = {"torch": torch, "bolide": bolide}
    exec(f"def program(x, h):\n    y = x.square().mean()\n    {text}", scope)
    program = scope["program"]
    compiled = bolide.compile(program)
    mine, theirs = Holder([]), Holder([])
    for call in range(14):
        x = torch.rand(3 + call % 4)
        assert repr(compiled(x, mine)) == repr(program(x, theirs)), call
        assert repr(mine) == repr(theirs), call


def test_the_length_of_a_list_that_grows_is_a_symbol() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.history: dict[str, list[object]] = {"losses": [], "steps": []}

        def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
            loss = self.layer(x).square().mean()
            self.history["losses"].append(loss.detach())
            self.history["steps"].append(step)
            return loss * 0.5 if len(self.history["losses"]) > 5 else loss / (1 + len(self.history["steps"]))

    torch.manual_seed(0)
    eager = Model()
    twin = copy.deepcopy(eager)
    compiled = bolide.compile(twin)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (eager, twin)]
    for step in range(14):
        x = torch.randn(3 + step % 3, 4)
        losses = []
        for call, optimizer in zip((eager, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(call(x, step))
            losses[-1].backward()
            optimizer.step()
        torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(twin.history, eager.history)
    dispatcher = compiled._bolide_call._bolide
    assert len(dispatcher.entries) <= 4 and not dispatcher.points
