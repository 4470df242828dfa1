"""Programs and models, compiled by the default backend and compared with eager on the same device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from gpu_programs import PROGRAMS, Maker, Program
from torch import Tensor
from torch.utils._pytree import tree_leaves

from benchmarks.models import build
from benchmarks.worker import difference, observed, stepper
from bolide.dynamo.config import config as options
from bolide.support.events import Compiled, Event, subscribed

LIMITS = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Largest difference from float64, relative to the magnitude of the tensor, unless eager's own is a quarter of it."""

SIZES = (33, 64, 257)
"""What programs are called with, one after the other."""

ULPS = {torch.float64: 8}
"""Of results that are compared one by one: largest difference in units in the last place, 4 where nothing else is said.
Of float64 there is nothing truer than eager's, which has up to 5 itself (erfc, of CUDA's documentation)."""

MODELS = ("mlp", "gpt2", "bert", "llama", "resnet18", "vit", "t5", "unet", "lstm")
MODEL_LIMITS = {"float32": 1e-3, "bfloat16": 6e-2, "autocast": 6e-2}


class Wrong(AssertionError):
    """A result is not eager's."""


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], train: bool) -> tuple[Any, list[Tensor]]:
    """The result, and with `train` the gradients of the arguments for a gradient of random numbers."""
    if not train:
        return function(*arguments), []
    wanted = [x for x in arguments if isinstance(x, Tensor) and x.is_floating_point()]
    for x in wanted:
        x.requires_grad_()
    result = function(*arguments)
    outputs = [r for r in tree_leaves(result) if isinstance(r, Tensor) and r.requires_grad]
    source = torch.Generator().manual_seed(5)
    given = [torch.randn(r.shape, generator=source).to(r.device, r.dtype) for r in outputs]
    gradients = torch.autograd.grad(outputs, wanted, given, allow_unused=True)
    return result, [g for g in gradients if g is not None]


def _layout(results: Iterable[Any], gradients: list[Tensor], arguments: tuple[Any, ...]) -> list[Any]:
    """What must be as eager's besides the numbers: shapes, dtypes, devices, whose memory it is, and of results the
    strides."""
    found: list[Any] = []
    owners = [x.untyped_storage().data_ptr() for x in arguments if isinstance(x, Tensor)]
    for t in results:
        if not isinstance(t, Tensor):
            found.append(t)
            continue
        memory = t.untyped_storage().data_ptr()
        owner = owners.index(memory) if memory and memory in owners else None
        strides = t.stride() if t.numel() else None
        found.append((tuple(t.shape), t.dtype, t.device.type, strides, owner, t.requires_grad))
    return [*found, *((tuple(g.shape), g.dtype, g.device.type) for g in gradients)]


def _wide(argument: Any) -> Any:
    return argument.double() if isinstance(argument, Tensor) and argument.is_floating_point() else argument


def _near(got: list[Tensor], eager: list[Tensor], exact: list[Tensor] | None, dtype: torch.dtype) -> None:
    for g, e in zip(got, eager, strict=True):
        if not e.is_floating_point() and not e.is_complex() and not torch.equal(g, e):
            raise Wrong(f"{int((g != e).sum())} of {e.numel()} integers differ: {g.flatten()[:4]}, {e.flatten()[:4]}")
    floating = [i for i, e in enumerate(eager) if e.is_floating_point()]
    wide = [[some[i].detach().double() for i in floating] for some in (got, eager, exact or eager)]
    error, own = difference(wide[0], wide[2]), difference(wide[1], wide[2])
    limit = max(LIMITS.get(each, 2e-5) for each in (dtype, *(eager[i].dtype for i in floating)))
    if not error <= max(limit, 4 * own):
        raise Wrong(f"differs from float64 by {error:.2g} of the magnitude, eager by {own:.2g}")


def _each(got: list[Tensor], eager: list[Tensor], exact: list[Tensor], arguments: tuple[Any, ...]) -> None:
    for g, e, x in zip(got, eager, exact, strict=True):
        if not torch.equal(g.isnan(), e.isnan()):
            at = int((g.isnan() != e.isnan()).nonzero()[0])
            raise Wrong(f"of {_at(arguments, at)}: {g[at].item()!r}, eager {e[at].item()!r}")
        true = x.to(e.dtype) if e.dtype == torch.float32 else e
        unit = (torch.nextafter(true.abs(), true.abs() + torch.inf) - true.abs()).nan_to_num(1.0, 1.0)
        error = ((g.double() - true.double()).abs() / unit.double()).nan_to_num(0.0, torch.inf)
        error = torch.where(((g == e) | (g == true)), 0.0, error)
        at = int(error.argmax())
        if float(error[at]) > ULPS.get(e.dtype, 4):
            raise Wrong(
                f"of {_at(arguments, at)}: {g[at].item()!r}, eager {e[at].item()!r}, {float(error[at]):.3g} ulp"
            )


def _at(arguments: tuple[Any, ...], place: int) -> str:
    return ", ".join(repr(x[place].item()) for x in arguments)


def _shares(got: list[Tensor], eager: list[Tensor]) -> None:
    for g, e in zip(got, eager, strict=True):
        ours, theirs = float(g.double().mean()), float(e.double().mean())
        if abs(ours - theirs) > 0.01 + 6 * (2 / g.numel()) ** 0.5:
            raise Wrong(f"a mean of {ours:.4g}, eager's is {theirs:.4g}")


def kernels_of(events: list[Event]) -> int:
    """How many kernels of ours the compiled graphs have."""
    artifacts = [event.artifact for event in events if isinstance(event, Compiled)]
    return sum(len(getattr(artifact, "kernels", ())) for artifact in artifacts)


def check_program(program: Program, device: str, seed: int) -> str:
    """Raises where the compiled program is not eager's, at all its sizes; says how many kernels were made."""
    import bolide

    bolide.reset()
    events: list[Event] = []
    with subscribed(events.append), options.patch(suppress_errors=False):
        compiled = bolide.compile(program.function)
        for n in SIZES:
            arguments = []
            for _ in range(3):
                torch.manual_seed(seed + n)
                arguments.append(program.make(Maker(device, program.dtype, n)))
            theirs, ours, wide = arguments
            want, want_gradients = _run(program.function, theirs, program.train)
            got, got_gradients = _run(compiled, ours, program.train)
            layouts = [
                _layout(tree_leaves(r), g, a)
                for r, g, a in ((want, want_gradients, theirs), (got, got_gradients, ours))
            ]
            for w, g in zip(*layouts, strict=True):
                if w != g:
                    raise Wrong(f"n = {n}: {g}, eager's is {w}")
            results = [
                [t for t in [*tree_leaves(r), *g, *a] if isinstance(t, Tensor)]
                for r, g, a in ((want, want_gradients, theirs), (got, got_gradients, ours))
            ]
            eager, mine = ([t.detach() for t in some] for some in results)
            try:
                _compare(program, mine, eager, tuple(map(_wide, wide)))
            except Wrong as wrong:
                raise Wrong(f"n = {n}: {wrong}") from None
    return f"{kernels_of(events)} kernels"


def _compare(program: Program, got: list[Tensor], eager: list[Tensor], wide: tuple[Any, ...]) -> None:
    if program.judge == "shares":
        return _shares(got, eager)
    exact: list[Tensor] | None = None
    if (program.dtype.is_floating_point and program.dtype != torch.float64) or program.judge == "each":
        try:
            result, gradients = _run(program.function, wide, program.train)
            exact = [t.detach() for t in [*tree_leaves(result), *gradients, *wide] if isinstance(t, Tensor)]
        except RuntimeError:  # mixes dtypes, or has no kernel for float64
            exact = None
    if program.judge == "each":
        return _each(got, eager, exact or eager, wide)
    if exact is not None and len(exact) != len(eager):
        exact = None
    return _near(got, eager, exact, program.dtype)


def check_model(name: str, mode: str, dtype: str, device: str, seed: int) -> str:
    """Raises where a tiny model's results, gradients or buffers are not eager's, in two calls; says how many kernels
    were made, or what eager refuses, as bolide then has to."""
    import bolide

    bolide.reset()
    events: list[Event] = []
    kept: dict[str, list[list[Tensor]]] = {}
    refused = ""
    for kind in ("eager", "bolide", "exact"):
        workload = build(name, "tiny", seed)
        if dtype == "bfloat16" and kind != "exact":
            workload.cast(torch.bfloat16)
        if kind == "exact":
            workload.cast(torch.float64 if dtype == "float32" else torch.float32)
        where = "cpu" if kind == "exact" else device  # which refuses nothing
        workload.to(where).module.train(mode == "train")
        call = bolide.compile(workload.module) if kind == "bolide" else workload.module
        with subscribed(events.append), options.patch(suppress_errors=False):
            step = stepper(workload, call, mode, "float32" if kind == "exact" else dtype, where)
            try:
                kept[kind] = [[t.cpu() for t in observed(workload, step)] for _ in range(2)]
            except RuntimeError as error:
                if kind == "eager":
                    refused = str(error)
                    continue
                if refused and kind == "bolide" and refused in str(error):
                    return f"eager refuses: {refused}"
                raise
    for got, eager, exact in zip(kept["bolide"], kept["eager"], kept["exact"], strict=True):
        error, own = difference(got, eager), difference(eager, exact)
        if not error <= max(MODEL_LIMITS[dtype], 4 * own):
            raise Wrong(f"differs from eager by {error:.2g} of the magnitude, eager from the exact by {own:.2g}")
    return f"{kernels_of(events)} kernels"


def all_checks() -> dict[str, Callable[[str, int], str]]:
    """Everything that is checked: a function of the device and a seed, by its name; the slowest first."""
    found: dict[str, Callable[[str, int], str]] = {}
    for name in MODELS:
        for mode in ("inference", "train"):
            for dtype in MODEL_LIMITS:
                found[f"model {name} {mode} {dtype}"] = _bound(check_model, name, mode, dtype)
    for program in PROGRAMS:
        assert program.title not in found, program.title
        found[program.title] = _bound(check_program, program)
    return found


def _bound(function: Callable[..., str], *given: Any) -> Callable[[str, int], str]:
    return lambda device, seed: function(*given, device, seed)
