"""The texts of tensors and of numbers of the graph, in every form that programs write them: eager's, on the default
backend, with changing sizes and with gradients; and no break where a text is only made."""

# ruff: noqa: UP030, UP031, UP032

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import logging
import pprint
import string
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import bolide

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Metrics:
    loss: Any
    steps: int = 3


linear = torch.nn.Linear(4, 3)
holder = torch.nn.Identity()
log = logging.getLogger("bolide.tests.texts")


def f_strings(x: Any) -> Any:
    s = x.sum()
    return (
        x + 1,
        f"{s} {s:.2f} {s!r} {x} {x!s} {x!a} {s:>10.3e} {x.shape} {x.shape[0]:>4} {x.dtype} {x.numel() / 2:.1f}",
    )


def percent(x: Any) -> Any:
    s = x.sum().detach()
    said = ["%s" % s, "%s %r" % (s, x), "%.3f" % s, "%d items" % s, "%5.1f|%-8s|" % (s, x.shape[0])]
    return x * 2, said, "%(a)s %(b).2f %(n)d" % {"a": x, "b": s, "n": x.shape[0]}


def formats(x: Any) -> Any:
    s = x.sum()
    said = ["{} {:.3f} {!r}".format(x, s, s), format(s, ".4f"), format(s), format(x), "{0.shape}".format(x)]
    return x * 2, said, "{:{w}.{p}f}".format(s, w=10, p=3), "{a:.1f} {b}".format(a=s, b=x.shape)


def calls_of_str(x: Any) -> Any:
    said = [str(x), repr(x), str(x.sum()), ascii(x), ", ".join(map(str, [x.sum(), x.max(), 3]))]
    return said, ", ".join(f"{k}={v:.2f}" for k, v in {"a": x.sum(), "b": x.max()}.items()), str(torch.max(x, 0))


def containers(x: Any) -> Any:
    s = x.sum()
    said = [str([s, 1]), repr((s,)), str({"x": [s, (s, 2)]}), str(Pair(s, 1)), repr(Metrics(s)), str(x.size())]
    made = collections.OrderedDict(a=s), collections.defaultdict(list, {"a": [s]}), collections.deque([s], 3)
    return said, [str(each) for each in made], f"{made}"


def printed(x: Any) -> Any:
    s = x.sum()
    print("sum", s, x.shape[0])
    print(x, 1, sep="|", end=";\n")
    y = x * 2
    print(f"{y.sum():.3f}", file=sys.stdout)
    print("y", y.shape, y.dtype, y.requires_grad)
    return y


def printed_to_a_file(x: Any) -> Any:
    with io.StringIO() as file:
        print("v", x.sum(), x.shape[0], file=file)
        print(f"{x}", file=file)
        return x * 2, file.getvalue()


def redirected(x: Any) -> Any:
    file = io.StringIO()
    with contextlib.redirect_stdout(file):
        print("in", x.detach().sum())
    return x + 1, file.getvalue()


def logged(x: Any) -> Any:
    s = x.sum()
    log.info("loss %s", s)
    log.info("loss %.3f and %d", s.detach(), x.shape[0])
    log.info(f"l {s:.2f}")
    log.debug("no %s", x)
    log.warning("w %s %r", [s], {"a": x})
    y = x * 2
    log.info("%s", y)
    y += 1
    return y


def of_the_moment(x: Any) -> Any:
    y = x * 2
    before = f"{y.sum():.3f}"
    y += 1
    y.mul_(3)
    return y, before, f"{y.sum():.3f}"


def asserted(x: Any) -> Any:
    assert x.shape[0] > 0, f"bad {x}"
    assert x.sum() > -1e9, f"bad {x.sum()}"
    torch._check(bool((x.sum() > -1e9).item()), lambda: f"bad {x}")
    return x + 1


def caught(x: Any) -> Any:
    try:
        raise ValueError(f"bad {x.sum()} {x.shape}")
    except ValueError as error:
        return x + 1, str(error), repr(error), error.args


def raised(x: Any) -> Any:
    y = x * 2
    raise ValueError(f"bad {y.sum():.3f}", x.shape)


def template(x: Any) -> Any:
    return string.Template("$a and $b").substitute(a=x.detach().sum(), b=2), x + 1


def pretty(x: Any) -> Any:
    return pprint.pformat({"a": x.detach().sum(), "b": [x.detach()]}), x + 1


def modules(x: Any) -> Any:
    return str(linear), repr(torch.nn.ReLU()), f"{linear}", x + 1


def parameters(x: Any) -> Any:
    y = linear(x.new_ones(2, 4))
    return f"{linear.bias}", str(linear.bias), repr(linear.weight[0]), str(y), f"{y.sum():.3f}", x + linear.bias.sum()


def methods(x: Any) -> Any:
    s = f"v={x.sum():.1f}"
    said = [s.upper(), s.ljust(20) + "|", s.replace("v", "w"), s.strip(), s + "a", "a" + s, f"{s:>20}", f"{s!r}"]
    return said, isinstance(s, str), isinstance(s, (int, str)), type(s) is str, 1 if s else 0, x + 1


def looked_into(x: Any) -> Any:
    s = f"v={x.sum():.1f}"
    said = [len(s), s[:2], s.startswith("v"), "v" in s, s == "q", s.split("="), s * 2, sorted(s), s < "w", {s: 1}]
    return said, x + 1


def sizes_as_keys(x: Any) -> Any:
    key = f"k{x.shape[0]}"
    table = {key: x.sum()}
    return table, table[f"k{x.shape[0]}"], key in table, getattr(x, "sha" + "pe"), key == "k5", len(key)


def kept(x: Any) -> Any:
    holder.note = f"{x.sum():.2f}"
    return x + 1, holder.note


def warned(x: Any) -> Any:
    warnings.warn(f"odd {x.sum():.2f}", stacklevel=1)
    return x + 1


def histories(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2
        said = [f"{y}", f"{x}", str(y.sum())]
    return said, f"{x.detach()}", f"{x * 2}", str(x.requires_grad), y


def kinds(x: Any) -> Any:
    said = [f"{x[:0]}", f"{x[:, None][:0]}", f"{x > 0}", f"{x.long()}", f"{x.double()}", f"{(x + 1j * x).sum()}"]
    return said, f"{(x > 0).any()} {(x > 0).sum():d} {x.shape[0] > 3}", f"{torch.tensor([1, 2])} {torch.ones(2).sum()}"


def refused_formats(x: Any) -> Any:
    said = []
    for attempt in (lambda: f"{x:.2f}", lambda: f"{x.sum():d}", lambda: "%.2f" % x, lambda: "%x" % x.sum()):
        try:
            said.append(attempt())
        except Exception as error:
            said.append((type(error).__name__, str(error)))
    return said, x + 1


def arrays(x: Any) -> Any:
    array = x.detach().numpy()
    return f"{array.sum():.3f}", str(array.shape), f"{array}", x + 1


def collected(x: Any) -> Any:
    return " ".join([f"{i}:{v:.2f}" for i, v in enumerate(x)]), x * 2


PROGRAMS = [
    *(f_strings, percent, formats, calls_of_str, containers, printed, printed_to_a_file, redirected, logged),
    *(of_the_moment, asserted, caught, raised, template, pretty, modules, parameters, methods, looked_into),
    *(sizes_as_keys, kept, warned, histories, kinds, refused_formats, arrays, collected),
]
WHOLE = [
    *(f_strings, percent, formats, calls_of_str, containers, logged, of_the_moment, caught, parameters),
    *(methods, kept, warned, histories, kinds, collected),
]


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.tolist(), value.requires_grad
    if isinstance(value, (list, tuple)):
        return type(value), [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def outcome(program: Callable[[Any], Any], size: int, grad: bool) -> Any:
    """What a call answers, prints, logs and warns of. The numbers are multiples of 1/4: sums of them are exact."""
    x = (torch.arange(size) % 5 / 4 - 0.5).requires_grad_(grad)
    records, printed = Records(), io.StringIO()
    log.addHandler(records)
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            result = plain(program(x))
    except ValueError as error:
        result = type(error), error.args
    finally:
        log.removeHandler(records)
    mine = [str(each.message) for each in warned if "to a scalar" not in str(each.message)]
    return result, printed.getvalue(), records.said, mine


@pytest.fixture(autouse=True)
def _logging() -> Any:
    log.setLevel(logging.INFO)
    log.propagate = False
    yield
    log.propagate = True


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
def test_texts_are_eagers(program: Callable[[Any], Any], grad: bool) -> None:
    compiled = bolide.compile(program)
    for size in (3, 5, 7, 5):
        expected = outcome(program, size, grad)
        assert outcome(compiled, size, grad) == expected


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_making_a_text_is_no_break(program: Callable[[Any], Any]) -> None:
    compiled = bolide.compile(program, fullgraph=True)
    for size in (3, 5, 7):
        assert outcome(compiled, size, True) == outcome(program, size, True)


def test_a_size_in_a_text_that_nobody_reads_makes_no_version() -> None:
    versions = []

    def backend(graph: Any, inputs: Any) -> Any:
        versions.append(graph)
        return graph

    def program(x: Any) -> Any:
        message = f"{x.shape[0]} tokens of {x.sum()}"
        torch._check(x.shape[0] > 1, lambda: message)
        return x * 2

    compiled = bolide.compile(program, backend=backend, dynamic=True)
    for size in (3, 5, 7, 9):
        x = torch.randn(size)
        assert torch.equal(compiled(x), x * 2)
    assert len(versions) == 1


def test_a_message_of_a_failed_check_has_the_numbers() -> None:
    def program(x: Any) -> Any:
        found = (x > 0).sum()
        assert found == x.shape[0], f"{found} of {x.shape[0]}"
        return torch.distributions.Normal(x, x).mean

    compiled = bolide.compile(program)
    for x in (torch.tensor([1.0, 2.0]), torch.tensor([1.0, -2.0, 3.0]), torch.tensor([1.0, -2.0, -3.0, 4.0])):
        expected = _answer(program, x)
        assert _answer(compiled, x) == expected
    for x in (torch.ones(2), -torch.ones(3)):
        expected = _answer(lambda x: torch.distributions.Normal(x, x).mean, x)
        assert _answer(bolide.compile(lambda x: torch.distributions.Normal(x, x).mean), x) == expected


def _answer(program: Callable[[Any], Any], x: Any) -> Any:
    try:
        return plain(program(x))
    except (AssertionError, ValueError) as error:
        return type(error), str(error)


def test_output_goes_to_what_stdout_is_now() -> None:
    def program(x: Any) -> Any:
        print("said", file=sys.stdout)
        sys.stdout.write("written")
        return x + 1

    compiled = bolide.compile(program)
    for _ in range(3):
        file = io.StringIO()
        with contextlib.redirect_stdout(file):
            compiled(torch.ones(2))
        assert file.getvalue() == "said\nwritten"


@pytest.mark.parametrize(
    "part", ["n", "[n]", "(n, [n])", "{1: [n]}", "collections.deque([n])", "collections.Counter([n])"]
)
def test_a_text_beside_a_value_that_contains_itself(part: str) -> None:
    """Such a value is made empty and filled at the end: what a text is made of is there before."""
    names: dict[str, Any] = {"collections": collections}
    lines = ["def program(x, box):", "def again(p): return again(p)", "n = int(x.sum().item())"]
    lines += [
        f"box.text = f'{{box.size:>3}}|{{{part}}}'",
        f"box.size = len(f'<{{{part}}}>{{n:03d}}')",
        "return again, n",
    ]
    exec("\n    ".join(lines), names)
    compiled = bolide.compile(names["program"])
    for size in (3, 5, 5):
        x, boxes = torch.arange(float(size)), [types.SimpleNamespace(size=7), types.SimpleNamespace(size=7)]
        assert compiled(x, boxes[0])[1] == names["program"](x, boxes[1])[1]
        assert boxes[0] == boxes[1]


CONSTANT_TEXTS: dict[str, Callable[[], str]] = {
    "str": lambda: str(torch.tensor([1.23456789])),
    "repr": lambda: repr(torch.tensor([1.23456789])),
    "format": lambda: f"{torch.tensor([1.23456789])!r:>30}",
    "percent": lambda: "%s" % torch.tensor([1.23456789]),
    "in a list": lambda: str([torch.tensor([1.23456789])]),
    "array": lambda: str(numpy.array([1.23456789])),
}


@pytest.mark.parametrize("name", CONSTANT_TEXTS)
def test_texts_of_constants_are_written_as_the_options_say(name: str) -> None:
    program = CONSTANT_TEXTS[name]
    compiled = bolide.compile(lambda x: (x + 1, program()))
    options = numpy.get_printoptions()
    try:
        for digits in (4, 2, 2, 4, 1):
            torch.set_printoptions(precision=digits)
            numpy.set_printoptions(precision=digits)
            assert compiled(torch.ones(2))[1] == program(), digits
    finally:
        torch.set_printoptions(profile="default")
        numpy.set_printoptions(**options)
