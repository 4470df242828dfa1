"""Texts from outside that are others from call to call: names of layers, pieces of an answer, kinds of layers."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.support import events

NAMES = ("sin", "cos", "tan", "abs", "exp", "neg", "log1p", "ceil")


def calls(program: Callable[..., Any], arguments: Callable[[int], tuple[Any, ...]], count: int = 8) -> list[Any]:
    """The results of calls, each compared with eager's, and how many versions were made."""
    told: list[object] = []
    compiled = bolide.compile(program)
    with events.subscribed(told.append):
        for number in range(count):
            expected = outcome(program, arguments(number))
            assert outcome(compiled, arguments(number)) == expected, number
    return [event.name for event in told if isinstance(event, events.Captured)]


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    torch.manual_seed(0)
    try:
        return str(function(*args))
    except Exception as error:
        return repr(error)


PROGRAMS = """
t.split("i"), t.upper(), len(t), t[0], t[::-1], list(t), t * 2, t < "m", t.startswith("s"), "s" in t, sorted(t)
"%s-%s" % (t, 1), f"{t!r:>8}", t.encode(), ord(t[0]), hash(t) == hash(t), isinstance(t, str), type(t)
t in ("sin", "cos"), t in {"sin": 1}, t == "sin", t != "sin", t is None, not t, t or 1, t and 1
getattr(torch, t)(x)
{t: x, t + "x": 1}, {t: 1}.get("sin"), {"sin": 1}.get(t, 2), {t}, (t, 1) == ("cos", 1), [t].index(t)
dict(**{"k" + t: 1}), (lambda **named: sorted(named))(**{t: 1})
torch.div(x, 2, rounding_mode="floor" if t == "sin" else "trunc"), torch.einsum(f"{t[0]},{t[0]}->{t[0]}", x, x)
torch.nn.ModuleDict({t: torch.nn.Identity()})[t](x)
types.SimpleNamespace(name=t, **{t: 1}), ValueError(t, x), KeyError(f"no {t}")
int(t)
{}[t]
torch.zeros(2, device=t)
"""


@pytest.mark.parametrize("text", PROGRAMS.strip().splitlines())
@pytest.mark.parametrize("behind", [False, True])
def test_whatever_is_asked_of_a_text_that_changes(text: str, behind: bool) -> None:
    scope: dict[str, Any] = {"torch": torch, "bolide": bolide, "types": types}
    pause = "    bolide.graph_break()\n" if behind else ""
    exec(f"def program(x, t):\n{pause}    return x + 1, ({text})", scope)
    x = torch.rand(3)
    calls(scope["program"], lambda number: (x, NAMES[number % 4]), 5)


def test_a_text_that_grows_makes_no_version_for_each() -> None:
    def answer(rows: list[torch.Tensor], words: list[str]) -> str:
        text = ""
        for row in rows:
            text += words[int(row.argmax())]
        return text

    rows, words = [torch.randn(10) for _ in range(8)], [chr(97 + place) for place in range(10)]
    assert len(calls(answer, lambda number: (rows[number:] + rows[:number], words))) <= 4


def test_names_of_a_dict_make_no_version_for_each() -> None:
    def total(layers: dict[str, torch.Tensor], weights: dict[str, Any], said: list[Any]) -> Any:
        total = torch.zeros(())
        for name, layer in layers.items():
            bolide.graph_break()
            said.append(f"{name}: {layer.mean().item():.3f}")
            total = total + layer.sum() * weights[name]
        return total, said

    layers = {f"layer{number}": torch.randn(3) for number in range(9)}
    numbers = {name: place / 2 for place, name in enumerate(layers)}
    for weights in (numbers, {name: torch.tensor(weight) for name, weight in numbers.items()}):
        assert len(calls(total, lambda number: (layers, weights, []), 4)) <= 12  # noqa: B023


@pytest.mark.parametrize("place", ["argument", "attribute", "item", "cell"])
def test_a_text_that_is_only_passed_on_is_not_guarded(place: str) -> None:
    box, held, cell = types.SimpleNamespace(text=""), {"text": ""}, ""

    def program(x: torch.Tensor, piece: str) -> Any:
        nonlocal cell
        if place == "attribute":
            box.text = f"{box.text}-{piece}"
        elif place == "item":
            held["text"] += piece
        elif place == "cell":
            cell += piece
        return x + 1, "got " + piece, len(piece) if place == "argument" and piece == "abs" else 0

    x = torch.randn(3)
    made = calls(program, lambda number: (x, NAMES[number]))
    assert len(made) <= 4
    said = {"argument": "", "attribute": box.text, "item": held["text"], "cell": cell}[place]
    assert said.count("exp") == 2 * (place != "argument")


def test_kinds_that_are_compared_are_versions() -> None:
    def program(x: torch.Tensor, kind: str) -> torch.Tensor:
        if kind == "sin":
            return x.sin()
        match kind:
            case "cos" | "tan":
                return x.cos()
        return x * 2

    x = torch.randn(3)
    assert len(calls(program, lambda number: (x, NAMES[number]))) <= 4


@pytest.mark.parametrize("place", ["argument", "attribute", "behind"])
def test_what_is_true_of_a_text_is_guarded_and_not_the_text(place: str) -> None:
    """Names of parameters, layers and losses."""

    def program(x: torch.Tensor, held: Any) -> Any:
        if place == "behind":
            bolide.graph_break()
        name = held.name if place == "attribute" else held
        if name.startswith("aux") or name.endswith((".bias", ".scale")):
            x = x * 0.5
        return x.sin() if "norm" in name else x, "head" not in name, name.isdigit()

    def arguments(number: int) -> tuple[Any, ...]:
        name = f"{('aux', 'layer')[number % 2]}{number}.{('norm', 'conv')[number // 2 % 2]}.weight"
        return torch.ones(3), types.SimpleNamespace(name=name) if place == "attribute" else name

    assert len(calls(program, arguments, 24)) <= (12 if place == "behind" else 6)
