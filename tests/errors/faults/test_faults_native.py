"""The native guard check proves itself before it is used; functions that a build of torch lacks end no process."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import re
import sys
import warnings
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo.config import config
from bolide.dynamo.native import check as checks
from bolide.dynamo.native import layout, native, proof
from bolide.inductor.codegen.math_calls import MATH_CALLS
from bolide.support import artifacts, symbols
from bolide.support.engine import Method, load


def run(f: Callable[..., Any], calls: int = 4) -> None:
    """Compiled with the default backend, a function gives what it gives in eager, at first and when guards hold."""
    bolide.reset()
    compiled = bolide.compile(f)
    for _ in range(calls):
        x = torch.rand(3, 40, requires_grad=True)
        expected, actual = f(x), compiled(x)
        torch.testing.assert_close(actual, expected)
        grads = [torch.autograd.grad(result.sum(), x) for result in (actual, expected)]
        torch.testing.assert_close(*grads)
    torch.testing.assert_close(compiled(x.detach().double()), f(x.detach().double()))
    with torch.no_grad():
        assert not compiled(x).requires_grad


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """What is done without `name` is done by ATen, with one warning for each graph; or otherwise, without one."""
    with config.patch(suppress_errors=True), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    ours = [str(each.message) for each in said if issubclass(each.category, bolide.BolideWarning)]
    assert len(ours) <= 4 and all(name in text and "remedy" in text for text in ours), ours


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes a function one that is not in this build of torch."""

    def hidden(name: str) -> None:
        known = symbols.symbol_address
        for module in [module for key, module in sys.modules.items() if key.startswith("bolide.")]:
            if getattr(module, "symbol_address", None) is known:
                monkeypatch.setattr(module, "symbol_address", lambda each: None if each == name else known(each))
        _forget()

    yield hidden
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    """What was found with other functions."""
    bolide.reset()
    for table in (layout.layout, proof.proved, native.method):
        table.cache_clear()
    artifacts.reset()


@pytest.mark.parametrize("name", proof.SYMBOLS)
def test_a_function_that_the_check_lacks_keeps_it_in_python(name: str, hide: Callable[[str], None]) -> None:
    hide(name)
    assert proof.proved(checks.readable) is None
    with told(name):
        run(lambda x: x * 2 + 1)


UNARY = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh atanh erf erfc lgamma"
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in UNARY.split()},
    "acosh": lambda x: torch.acosh(x + 1),
    "pow": lambda x: torch.pow(x, x),
    "atan2": lambda x: torch.atan2(x, x + 1),
    "hypot": lambda x: torch.hypot(x, x + 1),
    "fmod": lambda x: torch.fmod(x, 0.3),
    "nextafter": lambda x: torch.nextafter(x, x + 1),
}


def test_functions_that_kernels_lack(hide: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one: code is generated without them, or eager takes over with one warning."""
    assert FUNCTIONS.keys() == MATH_CALLS.keys()
    hidden: set[str] = set()
    for f in FUNCTIONS.values():
        for dtype in (torch.float32, torch.float64):
            x = torch.rand(70, dtype=dtype)
            with monkeypatch.context() as patch:
                asked = _asked(patch)
                bolide.compile(f)(x)
            for name in sorted(asked - hidden):
                hidden.add(name)
                hide(name)
                with told(name):
                    torch.testing.assert_close(bolide.compile(f)(x), f(x))
                monkeypatch.undo()
                _forget()
    assert len(hidden) > 30


def _asked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the functions that are looked up from now on."""
    _forget()
    found: set[str] = set()
    known = symbols.symbol_address

    def noted(name: str) -> int | None:
        found.add(name)
        return known(name)

    for module in [module for key, module in sys.modules.items() if key.startswith("bolide.")]:
        if getattr(module, "symbol_address", None) is known:
            monkeypatch.setattr(module, "symbol_address", noted)
    return found


# ---- the proof -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(layout.layout() is None, reason="this build keeps its objects elsewhere")
@pytest.mark.parametrize(("field", "step"), [("kind", 8), ("requires_grad", 1), ("flags", 1), ("flags_mask", 1)])
def test_a_wrong_layout_is_noticed(field: str, step: int) -> None:
    found = layout.layout()
    assert found is not None
    wrong = found.flags_mask & ~3 if field == "flags_mask" else getattr(found, field) + step
    with pytest.raises(proof.Unproved):
        proof._prove(dataclasses.replace(found, **{field: wrong}), checks.readable)


@pytest.mark.skipif(layout.layout() is None, reason="this build keeps its objects elsewhere")
@pytest.mark.parametrize("name", ["tensor_fits", "state_is", "equals", "words_match"])
def test_wrong_machine_code_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that takes everything for right."""
    found = layout.layout()
    assert found is not None
    proof._prove(found, checks.readable)
    known = native.text(found)
    pattern = rf"(define internal i1 @{name}\(.*?\n)(.*?)(\n}})"

    def blind(text: re.Match[str]) -> str:
        return text[1] + re.sub(r"ret i1 \S+", "ret i1 true", text[2]) + text[3]

    text, count = re.subn(pattern, blind, known, count=1, flags=re.DOTALL)
    assert count == 1 and text != known
    monkeypatch.setattr(native, "text", lambda layout: text)
    native.method.cache_clear()
    try:
        with pytest.raises(proof.Unproved):
            proof._prove(found, checks.readable)
    finally:
        monkeypatch.undo()
        native.method.cache_clear()
    proof._prove(found, checks.readable)


def test_what_is_not_proved_stays_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise proof.Unproved("for a test")

    monkeypatch.setattr(proof, "_prove", fail)
    _forget()
    run(lambda x: x * 3 - 1)
    assert proof.proved(checks.readable) is None
    monkeypatch.undo()
    _forget()
    assert (proof.proved(checks.readable) is None) == (layout.layout() is None)


# ---- the end of native functions -------------------------------------------------------------------------------------


def test_what_a_native_function_reads_when_it_dies_is_not_cleared() -> None:
    """CPython reads the flags of its PyMethodDef then. In a cycle the collector has cleared dicts, and structures of
    ctypes, by that time; arrays it has not."""
    text = "define i8* @itself(i8* %self, i8** %args, i64 %count) {\n  ret i8* %self\n}"
    function = Method("itself", load(text, ("itself",), "", ""), "itself").bind(7, None)
    gc.collect()
    assert function() == 7 and function.__name__ == "itself"
    read = ctypes.c_void_p.from_address(id(function) + 2 * ctypes.sizeof(ctypes.c_void_p)).value  # m_ml
    kept = [part for part in gc.get_referents(*gc.get_referents(function)) if isinstance(part, array)]
    assert read in [part.buffer_info()[0] for part in kept]
