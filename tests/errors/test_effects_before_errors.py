"""Operations that refuse data, in compiled programs: eager's error, with the effects that come before it and none of
those behind; what a program that handles the error goes on with; generators as eager leaves them."""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.support import events
from bolide.support.errors import BolideError

BAD = torch.tensor([1, 40])
FAILING: dict[str, Callable[[Any], Any]] = {
    "index": lambda x: x[BAD],
    "gather": lambda x: x.gather(0, BAD.expand(3, 2)),
    "embedding": lambda x: F.embedding(BAD, x),
    "index_select": lambda x: x.index_select(1, BAD),
    "take": lambda x: x.take(BAD),
    "index_add": lambda x: x.index_add(0, BAD, x[:2]),
    "index_put": lambda x: x.index_put((BAD,), x[0]),
    "index_fill": lambda x: x.index_fill(0, BAD, 1.0),
    "scatter": lambda x: x.scatter(0, BAD.expand(3, 2), 1.0),
    "cross_entropy": lambda x: F.cross_entropy(x[:2], BAD),
    "nll_loss": lambda x: F.nll_loss(x[:2].log_softmax(1), BAD),
    "one_hot": lambda x: F.one_hot(BAD, 3) * x[:2],
    "one_hot below": lambda x: F.one_hot(-BAD, 3) * x[:2],
    "cholesky": lambda x: torch.linalg.cholesky(-x @ x.t()),
    "inv": lambda x: torch.linalg.inv(x * 0),
    "solve": lambda x: torch.linalg.solve(x * 0, x),
    "lu_factor": lambda x: torch.linalg.lu_factor(x * 0)[0],
    "integer division": lambda x: (x * 100).long() // (x * 0).long() + x,
    "integer remainder": lambda x: (x * 100).long() % (x * 0).long() + x,
    "multinomial": lambda x: torch.multinomial(-x.abs() - 1, 1) * x,
    "bernoulli": lambda x: torch.bernoulli(x.abs() + 2),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.abs() + 2, x),
}


class Box:
    def __init__(self) -> None:
        self.count, self.said = 0, []


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def run(compile: Callable[[Any], Any], failing: Callable[[Any], Any], handles: bool, grad: bool, sizes: Any) -> Any:
    """What calls of a program leave behind: results, errors, counts, texts, the tensor written to, gradients."""
    box, seen = Box(), []

    def program(x: Any, leaf: Any, fails: bool) -> Any:
        box.count += 1
        x.mul_(2)
        box.said.append(f"before {box.count}")
        y = torch.sin(x) * leaf
        if fails:
            y = y + failing(y).sum()
        box.said.append("behind")
        x.add_(1)
        return y

    def handling(x: Any, leaf: Any, fails: bool) -> Any:
        try:
            return program(x, leaf, fails)
        except (RuntimeError, IndexError) as error:
            box.said.append(type(error).__name__)
            return leaf * 3

    function = compile(handling if handles else program)
    for size in sizes:
        for fails in (False, True):
            x = torch.linspace(-1, 1, size * size).view(size, size)
            leaf = torch.linspace(1, 2, size).requires_grad_(grad)
            result = outcome(function, x, leaf, fails)
            if grad and isinstance(result, torch.Tensor):
                result.sum().backward()
            seen += [result, x, leaf.grad, box.count, list(box.said)]
    return seen


@pytest.mark.parametrize("name", FAILING)
def test_errors_come_with_the_effects_before_them(name: str) -> None:
    for grad, handles in ((False, False), (True, True)):
        expected = run(lambda f: f, FAILING[name], handles, grad, (3, 4, 5))
        assert any(type(item) is tuple for item in expected) is not handles
        found = run(bolide.compile, FAILING[name], handles, grad, (3, 4, 5))
        bolide.reset()
        compare(expected, found)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["index", "cholesky", "one_hot", "scatter"])
def test_other_backends_do_as_well(name: str, backend: str) -> None:
    for handles in (False, True):
        expected = run(lambda f: f, FAILING[name], handles, True, (3, 4))
        found = run(lambda f: bolide.compile(f, backend=backend), FAILING[name], handles, True, (3, 4))
        bolide.reset()
        compare(expected, found)


def compare(expected: list[Any], found: list[Any]) -> None:
    for left, right in zip(expected, found, strict=True):
        if isinstance(left, torch.Tensor):
            torch.testing.assert_close(right, left)
        else:
            assert left == right


def test_a_factorisation_nobody_reads_is_a_check() -> None:
    def is_positive(x: Any) -> bool:
        try:
            torch.linalg.cholesky(x)
        except torch.linalg.LinAlgError:
            return False
        return True

    for backend in ("inductor", "eager"):
        compiled = bolide.compile(is_positive, backend=backend)
        assert [compiled(torch.eye(2) * sign) for sign in (1, -1, 1)] == [True, False, True]


def test_jitter_is_added_until_it_suffices() -> None:
    def factor(a: Any) -> Any:
        for jitter in (0.0, 1e-3, 1.0, 3.0):
            try:
                return torch.linalg.cholesky(a + jitter * torch.eye(3)), jitter
            except torch.linalg.LinAlgError:
                continue
        return None

    compiled = bolide.compile(factor)
    for scale in (1.0, -1.0, -0.5, 2.0, -9.0):
        expected, found = factor(torch.eye(3) * scale), compiled(torch.eye(3) * scale)
        torch.testing.assert_close(found, expected)


def test_generators_are_as_eager_leaves_them() -> None:
    mine = torch.Generator()

    def program(x: Any, index: Any) -> Any:
        y = F.dropout(x, 0.5) + random.random() + torch.rand(3, generator=mine)
        return y[index]

    def states(function: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(3), mine.manual_seed(5), random.seed(7)
        error = outcome(function, torch.ones(3), torch.tensor([7]))
        return [error[0], torch.get_rng_state().tolist(), mine.get_state().tolist(), random.getstate()]

    compiled = bolide.compile(program)
    compiled(torch.ones(3), torch.tensor([1]))
    assert states(compiled) == states(program)


def test_a_break_comes_before_the_error() -> None:
    said: list[Any] = []

    def program(x: Any, index: Any) -> Any:
        y = x + 1
        bolide.graph_break()
        said.append("first")
        try:
            z = y.mul_(2)[index]
        except IndexError:
            said.append("handled")
            z = y
        said.append("last")
        return z

    compiled = bolide.compile(program)
    for index in ([1], [9], [2]):
        torch.testing.assert_close(
            compiled(torch.ones(3), torch.tensor(index)), program(torch.ones(3), torch.tensor(index))
        )
    assert said == ["first", "last"] * 2 + ["first", "handled", "last"] * 2 + ["first", "last"] * 2


def test_custom_operators_errors_are_raised() -> None:
    @torch.library.custom_op("bolide_tests::positive", mutates_args=())
    def positive(x: torch.Tensor) -> torch.Tensor:
        if bool((x <= 0).any()):
            raise ValueError(f"not positive: {x.tolist()}")
        return x.clone()

    @positive.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    box = Box()

    def program(x: Any) -> Any:
        box.count += 1
        return positive(x * 2) + 1

    compiled = bolide.compile(program)
    compiled(torch.ones(2))
    with pytest.raises(ValueError, match=r"not positive: \[-2.0, -2.0\]"):
        compiled(-torch.ones(2))
    assert box.count == 2


class Late(Exception):
    pass


def test_what_a_signal_raises_is_no_error_of_the_graph() -> None:
    def handler(number: int, frame: Any) -> None:
        raise Late

    @torch.library.custom_op("bolide_tests::waits", mutates_args=())
    def waits(x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 5):
            signal.raise_signal(signal.SIGUSR1)
        return x.clone()

    waits.register_fake(lambda x: torch.empty_like(x))
    compiled = bolide.compile(lambda x: waits(x) + 1)
    compiled(torch.ones(2))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        assert threading.current_thread() is threading.main_thread()
        with pytest.raises(Late):
            compiled(torch.ones(9))
            compiled(torch.ones(9))
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.filterwarnings("error::bolide.BolideWarning")
def test_what_a_signal_raises_while_a_program_is_compiled() -> None:
    """At each event of compiling, forward and backward: it is the program's, and no fault of bolide's."""

    def handler(number: int, frame: Any) -> None:
        raise Late

    def program(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).sin()
        bolide.dynamo.graph_break()
        return (y @ y.T).sum()

    def is_late(at: int) -> bool:
        """Whether there are so many events."""
        bolide.reset()
        compiled, count = bolide.compile(program), itertools.count()
        with events.subscribed(lambda event: signal.raise_signal(signal.SIGUSR1) if next(count) == at else None):
            found = late(compiled)
        assert not late(compiled)
        return found

    def late(compiled: Any) -> bool:
        x = torch.randn(3, 4, requires_grad=True)
        try:
            total = compiled(x)
            found = torch.autograd.grad(total, x)
        except Late:
            return True
        torch.testing.assert_close((total, found), (program(x), torch.autograd.grad(program(x), x)))
        return False

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        assert sum(itertools.takewhile(bool, map(is_late, itertools.count(random.randrange(3), 3)))) > 10
    finally:
        signal.signal(signal.SIGUSR1, before)
        bolide.reset()


def test_what_bolide_raises_is_not_tried_again() -> None:
    class Verdict(BolideError):
        pass

    def backend(graph: Any, examples: Any) -> Any:
        def run(*args: Any) -> Any:
            raise Verdict

        return run

    box = Box()

    def program(x: Any) -> Any:
        box.count += 1
        return x + 1

    with pytest.raises(Verdict):
        bolide.compile(program, backend=backend)(torch.ones(2))
    assert box.count == 0


def interrupted(x: torch.Tensor, log: list[Any], caught: bool) -> Any:
    """A KeyboardInterrupt of the program's own, in a frame, below native code, and behind a break."""

    def interrupt(value: Any) -> Any:
        log.append(value)
        raise KeyboardInterrupt(value)

    try:
        sorted([2, 1], key=interrupt)
    except BaseException as error:
        log.append(error.args)
    bolide.graph_break()
    try:
        interrupt(x.sin())
    except KeyboardInterrupt:
        if not caught:
            raise
    return x.cos()


@pytest.mark.parametrize("caught", [True, False])
def test_an_interrupt_that_the_program_raises_is_its_own(caught: bool) -> None:
    compiled = bolide.compile(interrupted)
    for size in (2, 2, 3):
        said = []
        for run in (interrupted, compiled):
            log: list[Any] = []
            try:
                said.append(repr((run(torch.ones(size), log, caught), log)))
            except KeyboardInterrupt as error:
                said.append(repr((error.args, log)))
        assert said[0] == said[1]
