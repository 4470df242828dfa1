"""Every row of `library_programs`, captured and replayed, against CPython; docs/python-coverage.md is written from it.

Each program runs with its values made inside, passed as arguments, and read from globals. Results (with the identities
among results and outside values), exceptions, and what the outside values are afterwards must agree.

`python tests/correctness/python/test_library_coverage.py [--write] [TOPIC …]` prints what is not captured, or writes
the page.
"""

from __future__ import annotations

import ast
import collections
import enum
import functools
import logging
import os
import pathlib
import re
import subprocess
import sys
import types
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch

import bolide
from bolide.dynamo.entry.capture import capture
from bolide.support.errors import BolideWarning, Unsupported

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from library_programs import OTHERS, PRELUDE, PROGRAMS, VALUES

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "python-coverage.md"
PLACES = ("made inside", "argument", "global")


def _prelude() -> types.ModuleType:
    module = types.ModuleType("library_prelude")
    sys.modules[module.__name__] = module
    module.__dict__["__file__"] = "library_prelude.py"
    exec(compile(PRELUDE, "library_prelude.py", "exec", dont_inherit=True), module.__dict__)
    return module


MODULE = _prelude()


@dataclass(frozen=True)
class Row:
    topic: str
    name: str
    body: tuple[ast.stmt, ...]
    values: tuple[str, ...]  # the names of VALUES that it uses


def rows(topic: str) -> Iterator[Row]:
    """The rows of one topic."""
    current: list[str] = []
    for line in [*PROGRAMS[topic].strip("\n").split("\n"), "end"]:
        if line.startswith("  ") and current:
            current.append(line[2:])
            continue
        if current:
            name, _, first = current[0].partition("  ")
            body = ast.parse("\n".join([first, *current[1:]])).body
            used = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
            yield Row(topic, name, tuple(body), tuple(value for value in VALUES if value in used))
        current = [line]


def make(row: Row, place: str) -> Any:
    """The function of a row, whose values are found at `place`, in globals of its own."""
    made = [ast.parse(f"{name} = {VALUES[name]}").body[0] for name in row.values] if place == "made inside" else []
    body = [*made, *row.body]
    last = body[-1]
    if isinstance(last, ast.Expr):
        body[-1] = ast.copy_location(ast.Return(last.value), last)
    names = ["x", "m", *(row.values if place == "argument" else ())]
    stored = {
        node.id
        for part in row.body
        for node in ast.walk(part)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    changed = [name for name in row.values if name in stored] if place == "global" else []
    if changed:
        body.insert(0, ast.Global(changed))
    source = ast.parse(f"def program({', '.join(names)}): pass")
    definition = source.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.body = body
    namespace = dict(MODULE.__dict__, __name__="library_program", __file__="library_program.py")
    exec(compile(ast.fix_missing_locations(source), f"<{row.topic}: {row.name}>", "exec", dont_inherit=True), namespace)
    return namespace["program"]


def values(row: Row, seed: int, expressions: dict[str, str]) -> dict[str, Any]:
    """Fresh tensors and values of a row."""
    torch.manual_seed(seed)
    scope = dict(MODULE.__dict__, x=torch.randn(3, requires_grad=True), m=torch.randn(2, 3))
    made = {name: eval(expressions[name], scope) for name in row.values}
    return {"x": scope["x"], "m": scope["m"], **made}


class Describer:
    """Turns values into comparable data. What was described before is named by its number, so that identities are part
    of it.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[int, Any]] = {}

    def __call__(self, value: Any) -> Any:
        cls = type(value)
        if value is None or cls in (int, bool, str, bytes, complex, type(...)) or value is NotImplemented:
            return value
        if cls is float:
            return ("float", value.hex())
        if isinstance(value, numpy.generic):
            return (cls.__name__, value.item())
        if isinstance(value, (type, enum.Enum, types.BuiltinFunctionType, torch.dtype, torch.device, torch.Size)):
            return (cls.__name__, getattr(value, "__qualname__", None) or repr(value))
        if cls in (tuple, range, slice, types.GenericAlias, types.MethodType) or cls.__module__ in (
            "operator",
            "decimal",
            "fractions",
            "uuid",
        ):
            return (cls.__name__, *self.parts(value))  # nobody relies on their identity
        if id(value) in self.known:
            return ("same", self.known[id(value)][0])
        self.known[id(value)] = (len(self.known), value)
        return (cls.__name__, *self.parts(value))

    def parts(self, value: Any) -> Iterator[Any]:
        if isinstance(value, torch.Tensor):
            yield str(value.dtype), tuple(value.shape), value.requires_grad, value.tolist()
            return
        if isinstance(value, types.MethodType):
            yield self(value.__func__)
            yield self(value.__self__)
            return
        if isinstance(value, types.FunctionType):
            yield value.__qualname__
            return
        if isinstance(value, (set, frozenset)):
            yield sorted(map(repr, map(self, value)))
        elif isinstance(value, dict):
            items = value.items() if type(value) is collections.OrderedDict else dict.items(value)
            yield [(self(key), self(item)) for key, item in items]
        elif isinstance(value, (list, tuple, collections.deque)):
            yield [self(item) for item in value]
        elif isinstance(value, (int, str)):
            yield value.real if isinstance(value, int) else str.__str__(value)
        elif isinstance(value, collections.deque):
            yield value.maxlen
        if isinstance(value, BaseException):
            yield [self(item) for item in value.args]
        state = None if isinstance(value, torch.nn.Module) else self.state(value)
        if state:
            yield [(key, self(item)) for key, item in sorted(state.items())]

    @staticmethod
    def state(value: Any) -> dict[str, Any]:
        try:
            state = dict(object.__getattribute__(value, "__dict__"))
        except AttributeError:
            state = {}
        for base in type(value).__mro__:
            for name, found in vars(base).items():
                if isinstance(found, types.MemberDescriptorType) and name[:2] != "__" and hasattr(value, name):
                    state[name] = getattr(value, name)
        return state


def _message(error: BaseException) -> str:
    """Without memory addresses; a tensor is a tensor."""
    return re.sub(r"0x[0-9a-f]+", "0x", str(error)).replace("TracedTensor", "Tensor")


def _alike(error: BaseException, expected: BaseException) -> bool:
    """Whether capture met the exception that eager raises, with the same ones behind it."""
    return _told(error) == _told(expected)


def _told(error: BaseException | None) -> list[tuple[type, str, bool, bool]]:
    told = []
    while error is not None:
        told.append((type(error), _message(error), error.__suppress_context__, error.__cause__ is None))
        error = error.__context__
    return told


def outcome(row: Row, place: str, given: dict[str, Any], program: Any, function: Any) -> Any:
    """(result or exception of each of two calls of `function`, outside values afterwards). `function` is `program` or
    made of it; the second call gets the values as the first has left them.
    """
    tensors = [given["x"], given["m"]]
    names = row.values if place != "made inside" else ()
    if place == "global":
        program.__globals__.update({name: given[name] for name in names})
    args = [*tensors, *([given[name] for name in names] if place == "argument" else [])]
    describe = Describer()
    for tensor in tensors:
        describe(tensor)
    for name in names:
        describe.known.setdefault(id(given[name]), (len(describe.known), given[name]))
    before = dict(describe.known)
    results: list[Any] = []
    for _ in range(1 if place == "made inside" else 2):
        try:
            results.append(("returns", describe(function(*args))))
        except Unsupported:
            if not results:
                raise
            return None
        except (Exception, SystemExit) as error:
            results.append(("raises", _told(error)))
    after = Describer()
    after.known = {key: entry for key, entry in before.items() if isinstance(entry[1], torch.Tensor)}
    current = [program.__globals__[name] if place == "global" else given[name] for name in names]
    return results, [after(value) for value in current]


def checked(program: Any) -> Any:
    """The compiled program; an exception that it raises under capture must be eager's own."""
    compiled = bolide.compile(program, backend="eager", fullgraph=True)

    def run(*args: Any) -> Any:
        error = raised_under_capture(program, args)
        if error is not None:
            try:
                program(*args)
            except (Exception, SystemExit) as expected:
                assert _alike(error, expected), f"raised {error!r}"
                raise
            raise AssertionError(f"only the captured program raises {error!r}") from error
        return compiled(*args)

    return run


def raised_under_capture(program: Any, args: tuple[Any, ...]) -> BaseException | None:
    try:
        capture(program, args, {})
    except Unsupported as error:
        if error.kind != "user_exception":
            raise
        return error.__cause__
    return None


def verdict(row: Row, place: str, seed: int) -> str:
    """ "" when captured and right, else the reason why it is not captured. Raises AssertionError when wrong.

    What was captured is then called with other values, and with the first ones again: guards must tell them apart."""
    program, plain = make(row, place), make(row, place)
    function = checked(program)
    calls = [(seed, VALUES)] if place == "made inside" else [(seed, VALUES), (seed + 1, OTHERS), (seed, VALUES)]
    for number, (numbers, expressions) in enumerate(calls):
        expected = outcome(row, place, values(row, numbers, expressions), plain, plain)
        try:
            actual = outcome(row, place, values(row, numbers, expressions), program, function)
        except Unsupported as error:
            if number == 0:
                return re.sub(r" at 0x[0-9a-f]+", "", error.reason)
            continue
        title = f"{row.topic}: {row.name}, {place}, call {number + 1}"
        assert actual is None or actual == expected, f"{title}\nexpected {expected}\nactual   {actual}"
    return ""


def page(verdicts: dict[tuple[str, str, str], str]) -> str:
    """docs/python-coverage.md."""
    captured = sum(not reason for reason in verdicts.values())
    lines = [
        "# What of Python is captured",
        "",
        "Written by `python tests/correctness/python/test_library_coverage.py --write`; a test keeps it true. Each row",
        "is one or more small programs (`library_programs.py` beside it) compared with CPython: results, identities,",
        "exceptions and effects, with the values they use made inside, passed as arguments, or read from globals.",
        "A row that is not captured says why; there the compiled function breaks, or runs as eager does.",
        "",
        f"{captured} of {len(verdicts)} captured.",
    ]
    for topic in PROGRAMS:
        lines += ["", f"## {topic}", "", f"| | {' | '.join(PLACES)} |", "|---|---|---|---|"]
        for row in rows(topic):
            cells = [verdicts[topic, row.name, place] or "yes" for place in PLACES]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in [row.name, *cells]) + " |")
    return "\n".join(lines) + "\n"


def all_verdicts(topics: list[str], seed: int) -> dict[tuple[str, str, str], str]:
    return {
        (topic, row.name, place): verdict(row, place, seed)
        for topic in topics
        for row in rows(topic)
        for place in PLACES
    }


@pytest.mark.parametrize("topic", PROGRAMS)
def test_the_library_agrees_with_cpython_and_the_page(topic: str, seed: int) -> None:
    written = PAGE.read_text()
    section = written[written.index(f"## {topic}\n") :].split("\n## ")[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="quiet")
        found = all_verdicts([topic], seed)
    for row in rows(topic):
        cells = [found[topic, row.name, place] or "yes" for place in PLACES]
        line = "| " + " | ".join(cell.replace("|", "\\|") for cell in [row.name, *cells]) + " |"
        assert line in section, f"docs/python-coverage.md is out of date: {line}"


class _Once(logging.Logger):
    @functools.lru_cache(None)  # noqa: B019
    def warning_once(self, *args: Any) -> None:
        self.warning(*args)


def test_a_cached_method_of_a_logger_speaks_once() -> None:
    logger = _Once("bolide.tests.once")
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)

    def program(x: torch.Tensor) -> torch.Tensor:
        logger.warning_once("said %s", "once")
        return x + 1

    function = bolide.compile(program, backend="eager", fullgraph=True)
    for _ in range(3):
        function(torch.randn(3))
    assert said == ["said once"]


def test_what_the_system_answers_is_asked_again(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "file")

    def program(x: torch.Tensor) -> Any:
        return x + 1 if os.path.exists(path) else x - 1, os.path.isdir(path), os.getpid(), os.path.abspath("a")

    function, x = bolide.compile(program, backend="eager", fullgraph=True), torch.randn(3)
    for change in (lambda: None, lambda: pathlib.Path(path).touch(), lambda: os.remove(path), lambda: os.mkdir(path)):
        change()
        (found, *facts), (expected, *others) = function(x), program(x)
        assert torch.equal(found, expected) and facts == others


def test_what_is_written_to_the_environment_reaches_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLIDE_TEST_GONE", "1")
    monkeypatch.setenv("BOLIDE_TEST_WRITTEN", "")

    def program(x: torch.Tensor, value: str) -> torch.Tensor:
        os.environ["BOLIDE_TEST_WRITTEN"] = value
        os.environ.pop("BOLIDE_TEST_GONE", None)
        return x * len(os.environ["BOLIDE_TEST_WRITTEN"])

    function, x = bolide.compile(program, backend="eager", fullgraph=True), torch.randn(3)
    for value in ("a", "bc"):
        assert torch.equal(function(x, value), x * len(value))
        shown = subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines()
        assert f"BOLIDE_TEST_WRITTEN={value}" in shown
        assert not any(line.startswith("BOLIDE_TEST_GONE") for line in shown)


def test_a_weak_proxy_follows_its_object() -> None:
    def program(x: torch.Tensor, proxy: Any) -> Any:
        try:
            return x * proxy.scale
        except ReferenceError:
            return None

    class Scaled:
        scale = 2

    function, x, owner = bolide.compile(program, backend="eager", fullgraph=True), torch.randn(3), Scaled()
    proxy = weakref.proxy(owner)
    assert torch.equal(function(x, proxy), x * 2)
    owner.scale = 3
    assert torch.equal(function(x, proxy), x * 3)
    del owner
    assert function(x, proxy) is None


def _first_difference(message: str) -> str:
    """The two outcomes of a failed row from where they part."""
    title, expected, actual = message.split("\n", 2)
    expected, actual = expected[9:], actual[9:]
    at = next((i for i, (a, b) in enumerate(zip(expected, actual)) if a != b), 0)
    shown = slice(max(0, at - 60), at + 200)
    return f" {title[-6:]}\n    expected …{expected[shown]}\n    actual   …{actual[shown]}"


def _by_hand(arguments: list[str]) -> None:
    bolide.dynamo.config.suppress_errors = False
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", BolideWarning)
    chosen = [topic for topic in PROGRAMS if not arguments or any(word in topic for word in arguments)]
    found: dict[tuple[str, str, str], str] = {}
    for topic in chosen:
        for row in rows(topic):
            for place in PLACES:
                try:
                    found[topic, row.name, place] = verdict(row, place, 1)
                except AssertionError as error:
                    print(f"WRONG {topic}: {row.name} [{place}]{_first_difference(str(error))}")
                    found[topic, row.name, place] = "WRONG"
                except Exception as error:
                    print(f"CRASH {topic}: {row.name} [{place}] {type(error).__name__}: {str(error)[:300]}")
                    found[topic, row.name, place] = "CRASH"
    for key, reason in found.items():
        if reason not in ("", "WRONG", "CRASH"):
            print(f"{' / '.join(key)}: {reason}")
    print(sum(not reason for reason in found.values()), "of", len(found))


if __name__ == "__main__":
    if "--write" in sys.argv:
        warnings.simplefilter("ignore")
        bolide.dynamo.config.suppress_errors = False
        PAGE.write_text(page(all_verdicts(list(PROGRAMS), 1)))
    else:
        _by_hand(sys.argv[1:])
