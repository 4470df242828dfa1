"""Operators that have no function in C: the native driver calls them by name, without a step in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.inductor.config import config
from bolide.inductor.plan import Call, View
from bolide.inductor.plan.schemas import operator_of
from bolide.inductor.runtime.native import assemble as assembling
from bolide.inductor.runtime.native.driver import _method, build, handle_offset
from bolide.inductor.runtime.native.instructions import FORM_TENSOR, HANDLE, LITERAL, WORD
from bolide.inductor.runtime.native.linking import Surroundings
from bolide.inductor.runtime.native.program import Argument, PythonStep, Writer
from bolide.inductor.runtime.native.shims import is_called_by_name
from bolide.support.symbols import symbol_address
from tests.plan_tools import plans_of
from tests.thread_tools import together

R = torch.randn
SILENT = symbol_address("torch_exception_get_what") is not None
"""Whether torch keeps errors of its functions in C to itself: operators that refuse data are called by name then."""


@pytest.fixture(autouse=True)
def in_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Native drivers from the second call on; what is made in Python while all is well."""
    found: list[str] = []
    python = assembling.Writer.python

    def noted(self: assembling.Writer, step: assembling.PythonStep) -> None:
        of = step.function._make.args[2]
        found.append(str(of.operator) if isinstance(of, Call) else type(of).__name__)
        python(self, step)

    monkeypatch.setattr(assembling.Writer, "python", noted)
    bolide.reset()
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with config.patch(native_after=2), bolide.dynamo.config.patch(**settings):
        yield found
    bolide.reset()


def test_an_integer_that_an_operator_gives_is_a_word() -> None:
    writer, offset = Writer(), handle_offset()
    assert offset is not None
    slot, place = writer.slot("x"), writer.named_word("rows")
    operator = operator_of(torch.ops.aten.sym_size.int)
    otherwise = PythonStep(None, [], [])
    writer.dispatch(operator, [Argument((HANDLE, slot), FORM_TENSOR), Argument((LITERAL, 1))], [(place, -2)], otherwise)
    written = writer.finish([(HANDLE, slot)], [(WORD, place)], 1)
    program = written.linked(Surroundings((), (), lambda number: None, lambda values: None, offset))
    assert _method().bind(program.address, program)([R(3, 7)]) == (7,)


def resized(x):
    bigger = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    smaller = F.interpolate(x, size=(3, x.shape[3] + 1), mode="bicubic", antialias=False)
    return bigger, smaller, F.interpolate(x[0], scale_factor=2.0, mode="nearest-exact")


def sampled(x):
    n, _, h, w = x.shape
    theta = torch.eye(2, 3, dtype=x.dtype).expand(n, 2, 3) * 0.9
    return F.grid_sample(x, F.affine_grid(theta, [n, 2, h, w], False), "bilinear", "border", False)


def pooled(x):
    return F.adaptive_max_pool2d(x, (2, 3)), F.avg_pool3d(x, 2), F.fractional_max_pool2d(x.abs(), 2, output_size=2)[0]


def transformed(x):
    spectrum = torch.fft.rfft2(x)
    return torch.fft.irfft2(spectrum * spectrum.conj(), s=x.shape[-2:]), torch.fft.fft(x).abs()


def multiplied(x):
    z = torch.complex(x[0, 0], x[0, 1])
    return torch.view_as_real(z.mH @ z), (z.conj().T.contiguous() + z.T).abs()


def solved(x):
    a = x[0, 0] @ x[0, 0].mT + 5 * torch.eye(x.shape[2], dtype=x.dtype)
    return torch.linalg.solve(a, x[0, 0]), torch.linalg.eigvalsh(a), torch.linalg.det(a)


def chosen(x):
    flat = x.flatten()
    edges = flat.sort()[0][::3].contiguous()
    mode = (flat * 3).round().mode()[0]
    return (
        flat.median(),
        flat.kthvalue(3)[0],
        mode,
        torch.searchsorted(edges, flat),
        flat.cummax(0)[0],
        x.logcumsumexp(1),
    )


def masked(x):
    return x[:, :, x[0, 0, :, 0].isfinite()], x.masked_select(x > 0).sum(), torch.triu_indices(x.shape[2], 4)


def counted(x):
    counts = (x.flatten() * 2).round().abs().long().bincount(minlength=4)
    return counts, torch.histc(x.detach(), 5, -2, 2), torch.unique((x.detach() * 2).round())


def listed(x):
    pairs = x.detach().flatten()[: 2 * (x.numel() // 2)].view(-1, 2)
    return torch.histogramdd(pairs, [3, 4], [-2.0, 2.0, -2.0, 2.0])


def special(x):
    return (
        torch.special.i0e(x),
        torch.digamma(x.abs() + 1),
        torch.special.zeta(x.detach().abs() + 1.5, x.abs()),
        torch.polygamma(1, x),
    )


PROGRAMS = (resized, sampled, pooled, transformed, multiplied, solved, chosen, masked, counted, listed, special)
DATA = (solved, masked, counted, chosen, pooled)
"""They have operators that refuse some data."""


def results_of(program: Callable[..., Any], x: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """All results, and the gradient of x."""
    x = x.clone().requires_grad_()
    torch.manual_seed(5)
    found = [each for each in torch.utils._pytree.tree_leaves(program(x)) if isinstance(each, torch.Tensor)]
    losses = [each.sin().sum() for each in found if each.requires_grad]
    if losses:
        sum(losses[1:], losses[0]).backward()
    return [each.detach() for each in found], x.grad


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_and_gradients_are_eagers(program, dynamic: bool, in_python: list[str]) -> None:
    compiled = bolide.compile(program, dynamic=dynamic)
    sizes = ((2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4), *(((3, 2, 7, 6), (2, 2, 6, 6)) if dynamic else ()))
    for size in sizes:
        x = R(size)
        (mine, gradient), (theirs, wanted) = results_of(compiled, x), results_of(program, x)
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-3)
        assert [each.stride() for each in mine] == [each.stride() for each in theirs]
    expected = {"aten.full.default"} if program is transformed else set()  # its number is complex
    if SILENT or program not in DATA:  # torch 2.11 would print what is wrong with data
        assert set(in_python) == expected, in_python


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers_of_changing_length(kind: str, bidirectional: bool, in_python: list[str]) -> None:
    layer = getattr(torch.nn, kind)(4, 6, 2, bidirectional=bidirectional)
    compiled = bolide.compile(layer, dynamic=True)
    with torch.no_grad():
        for length, batch in ((5, 3), (5, 3), (5, 3), (7, 3), (2, 1), (9, 4)):
            x = R(length, batch, 4)
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)
    assert not in_python, in_python
    for length in (5, 5, 5, 3):
        x = R(length, 3, 4)
        gradients = []
        for call in (layer, compiled):
            layer.zero_grad()
            call(x)[0].sin().sum().backward()
            gradients.append([each.grad.clone() for each in layer.parameters()])
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert set(in_python) <= {"bolide.recurrent_forward.default", "bolide.recurrent_backward.default"}, in_python


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_loss_and_its_gradient(zero_infinity: bool, in_python: list[str]) -> None:
    def program(x, targets, lengths, wanted):
        return F.ctc_loss(x.log_softmax(-1), targets, lengths, wanted, reduction="none", zero_infinity=zero_infinity)

    compiled = bolide.compile(program, dynamic=True)
    for time, batch in ((9, 3), (9, 3), (9, 3), (12, 2), (7, 4)):
        x, targets = R(time, batch, 5), torch.randint(1, 5, (batch, 4))
        wanted = torch.randint(1, 4, (batch,))
        lengths = torch.randint(time // 2 + 2, time + 1, (batch,))
        found = []
        for call in (program, compiled):
            leaf = x.clone().requires_grad_()
            loss = call(leaf, targets, lengths, wanted)
            loss.sum().backward()
            found.append((loss.detach(), leaf.grad))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert not SILENT or not in_python, in_python


def test_draws_and_the_state_they_leave_are_those_of_the_readable_driver(in_python: list[str]) -> None:
    def program(x):
        return torch.multinomial(x.abs() + 0.1, 3), torch.empty_like(x).exponential_(), torch.randperm(x.shape[0])

    compiled = bolide.compile(program)
    x, found = R(4, 6), []
    for _ in range(4):
        torch.manual_seed(11)
        found.append((compiled(x), torch.get_rng_state()))
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], rtol=0, atol=0)
    assert not SILENT or not in_python, in_python


@pytest.mark.parametrize("begin", [0, 2])
def test_views_of_what_others_may_have_kept_are_autograds(begin: int, in_python: list[str]) -> None:
    w = R(12, 4)

    def program(x):
        y = x @ w
        return y, y[begin:, ::2], y.t(), y.sum()

    compiled = bolide.compile(program)
    for _ in range(4):
        with torch.no_grad():
            x = R(6, 12)
            y, part, turned, _ = compiled(x)
            torch.testing.assert_close((y, part, turned), program(x)[:3], rtol=1e-4, atol=1e-4)
            before = y._version
            part.mul_(2)
            turned.add_(1)
        assert y._version == before + 2
    assert View.__name__ not in in_python, in_python


def test_errors_about_data_are_eagers_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    def program(x, lengths):
        spread = x.repeat_interleave(lengths, 0, output_size=6)
        return torch.linalg.cholesky(spread.T @ spread + x[0, 0] * torch.eye(2)), spread

    compiled = bolide.compile(program)
    good, lengths = torch.rand(3, 2) + 1, torch.tensor([1, 2, 3])
    for _ in range(4):
        torch.testing.assert_close(compiled(good, lengths), program(good, lengths))
    for bad in (good - 9, good * float("nan")):
        with pytest.raises(torch.linalg.LinAlgError) as wanted:
            program(bad, lengths)
        with pytest.raises(torch.linalg.LinAlgError) as found:
            compiled(bad, lengths)
        assert str(found.value) == str(wanted.value)
    torch.testing.assert_close(compiled(good, lengths), program(good, lengths))
    assert "aoti_torch" not in capfd.readouterr().err


def test_tensors_that_are_undefined_are_given_as_such(in_python: list[str]) -> None:
    """Python says None for one: where an operator asks for a tensor, it is handed on as an undefined one, which this
    operator refuses."""
    op = torch.ops.aten.batch_norm_backward.default

    def program(x, weight, mean):
        return op(x, x, weight, None, None, mean, mean, True, 1e-5, [True, True, True], x.new_empty(0))[0]

    (graph,) = plans_of(program, R(4, 3), R(3), R(3).abs())
    (call,) = [step for step in graph.plan.steps if isinstance(step, Call) and step.operator == operator_of(op)]
    lacking = replace(call, arguments=(*call.arguments[:2], None, *call.arguments[3:]))
    plan = replace(graph.plan, steps=tuple([lacking if step is call else step for step in graph.plan.steps]))
    run = build(plan, graph.binding, [kernel.compiled for kernel in graph.kernels], graph.run)
    assert run is not None and not in_python
    with pytest.raises(RuntimeError, match="undefined Tensor"):
        run([R(4, 3), R(3), R(3).abs()])


def test_results_that_the_dispatcher_would_mix_up_are_not_asked_of_it() -> None:
    aten = torch.ops.aten
    assert not is_called_by_name(aten._scaled_dot_product_flash_attention.default, may_log=True)
    assert not is_called_by_name(aten.histogramdd.default, may_log=True)
    assert is_called_by_name(aten._scaled_dot_product_flash_attention_backward.default, may_log=True)


def test_threads_call_at_the_same_time() -> None:
    compiled = bolide.compile(resized)
    for _ in range(3):
        compiled(R(2, 2, 5, 4))

    def work(_: int) -> None:
        for _ in range(40):
            x = R(2, 2, 5, 4)
            torch.testing.assert_close(compiled(x), resized(x), rtol=1e-5, atol=1e-4)

    together(work, 3)
