"""What a program asks of a tensor besides its value: where it lies in its storage, what it is a view of, its history,
its own attributes. One compiled function meets tensors that differ in nothing else."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bolide
from bolide.dynamo.config import config

PLACES = [slice(0, 4), slice(3, 7), slice(2, 6), slice(0, 4), slice(16, 20)]


def written(t: Any) -> Any:
    t.as_strided((2,), (2,)).mul_(3)
    return t + 1


def written_at(t: Any) -> Any:
    t.as_strided((2,), (1,), 0).mul_(5)
    return t + 1


def written_past_its_end(t: Any) -> Any:
    t.as_strided((6,), (1,)).mul_(3)
    return t + 1


def branch(t: Any) -> Any:
    if t.sum() > 50:
        return t * 2
    return t * t[1:].storage_offset()


OFFSETS: dict[str, Callable[[Any], Any]] = {
    "decides": lambda t: t * 2 if t.storage_offset() == 0 else t * 3,
    "of a view": lambda t: t + t[1:].storage_offset(),
    "of a result": lambda t: (t + 1).storage_offset() + t,
    "in a transform": lambda t: torch.vmap(lambda v: v + v.storage_offset())(t.view(2, 2)),
    "strided at a place": lambda t: t.as_strided((2,), (1,), 0) * 1,
    "a view strided at a place": lambda t: t[1:].as_strided((2,), (1,), 1) * 1,
    "strided where it is": lambda t: t.as_strided((3, 2), (1, 1)) * 2,
    "strided past its end": lambda t: t.as_strided((6,), (1,)) + 1,
    "a view that leaves": lambda t: t.as_strided((2,), (1,)),
    "a view at a place leaves": lambda t: t.as_strided((2,), (1,), 0),
    "copied": lambda t: torch.as_strided_copy(t, (2,), (1,), 0),
    "scattered": lambda t: torch.as_strided_scatter(t, torch.ones(2), (2,), (1,), 0),
    "in a branch": lambda t: torch.cond(t.sum() > 50, lambda: t.as_strided((2,), (1,), 0) * 2, lambda: t[:2] * 3),
    "complex": lambda t: torch.view_as_complex(t.view(2, 2)).abs(),
    "as another type": lambda t: t.view(torch.float64) * 2,
    **{f.__name__: f for f in (written, written_at, written_past_its_end, branch)},
}


def outcomes(function: Callable[..., Any], make: Callable[[], list[Any]]) -> list[Any]:
    found: list[Any] = []
    for tensor in make():
        try:
            found.append(function(tensor))
        except (RuntimeError, AttributeError) as error:
            found.append(type(error))
    return found


@pytest.mark.parametrize("name", OFFSETS)
def test_where_an_argument_lies_in_its_storage(name: str) -> None:
    whole, other = torch.arange(20.0), torch.arange(20.0)
    expected = outcomes(OFFSETS[name], lambda: [whole[place] for place in PLACES])
    found = outcomes(bolide.compile(OFFSETS[name]), lambda: [other[place] for place in PLACES])
    for mine, theirs in zip([*found, other], [*expected, whole]):
        assert mine is theirs or torch.equal(mine, theirs)


def test_only_programs_that_ask_for_the_place_have_a_version_for_each() -> None:
    rows = torch.arange(20.0).view(5, 4)
    with config.patch(error_on_recompile=True):
        compiled = bolide.compile(lambda t: t.as_strided((3, 2), (1, 1)))
        for row in rows:
            assert torch.equal(compiled(row), row.unfold(0, 2, 1))


def split() -> torch.Tensor:
    made = torch.ones(4, requires_grad=True).split(2)[1]
    made.tag = 3  # type: ignore[attr-defined]
    return made


def watched() -> torch.Tensor:
    made = split()
    made.retain_grad()
    made.register_hook(lambda grad: grad * 2)
    return made


def kinds() -> list[torch.Tensor]:
    leaf, view = torch.ones(3), torch.ones(4)[1:]
    with_grad, computed = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True) * 2
    return [split(), leaf, with_grad, view, computed, watched(), torch.nn.Parameter(torch.ones(3)), split()]


def kept(t: Any) -> Any:
    if t.requires_grad and not t.is_leaf:
        t.retain_grad()
    return t.retains_grad


def hooked(t: Any) -> Any:
    if t.requires_grad:
        t.register_hook(lambda grad: grad)
    return t._backward_hooks is None


def alias(first: Any, second: Any) -> bool:
    return torch._C._is_alias_of(first, second)  # type: ignore[attr-defined, no-any-return]


FACTS: dict[str, Callable[[Any], Any]] = {
    "vars": lambda t: (list(vars(t)), list(vars(t + 1))),
    "__dict__": lambda t: (list(t.__dict__), dict(object.__getattribute__(t, "__dict__"))),
    "dir": lambda t: ("tag" in dir(t), "chain" in dir(t), "abs" in dir(t)),
    "__dir__": lambda t: ("tag" in t.__dir__(), "chain" in t.__dir__(), "abs" in t.__dir__()),
    "view": lambda t: (t._base is None, t._is_view(), t[1:]._base is t, t[1:]._is_view()),
    "view of a result": lambda t: ((t + 1)._base, (y := t + 1)[1:]._base is y, y._is_view()),
    "numbers of outputs": lambda t: (t.output_nr, t.chunk(2)[1].output_nr),
    "hooks": lambda t: (t._backward_hooks is None, t._post_accumulate_grad_hooks is None, t.retains_grad),
    "history": lambda t: (t.grad_fn is None, None is not t.grad_fn),
    "name of its node": lambda t: t.grad_fn.name(),
    "class of its node": lambda t: (type(t.grad_fn).__name__, isinstance(t.grad_fn, torch.autograd.graph.Node)),
    "nodes before": lambda t: t.grad_fn.next_functions[0][0] is None,
    "node before one made here": lambda t: (t * 2).grad_fn.next_functions[0][0].name(),
    "the same node": lambda t: (t + 1).grad_fn.next_functions[0][0] is t.grad_fn,
    "edge": lambda t: torch.autograd.graph.get_gradient_edge(t).output_nr,
    "storages": lambda t: (alias(t, t[1:]), alias(t[1:].detach(), t[:1]), alias(t, t.clone()), alias(t * 2, t.clone())),
    "storage of its base": lambda t: t._base is not None and alias(t, t._base),
    "kept": kept,
    "hooked": hooked,
}


@pytest.mark.parametrize("name", FACTS)
def test_facts_of_an_argument_are_those_of_the_real_tensor(name: str) -> None:
    assert outcomes(bolide.compile(FACTS[name]), kinds) == outcomes(FACTS[name], kinds)


def more_kinds() -> list[torch.Tensor]:
    made = [torch.ones(4, requires_grad=True) for _ in range(3)]
    made[0].register_post_accumulate_grad_hook(lambda leaf: None)
    made[1].grad = torch.ones(4)
    if hasattr(made[2], "grad_dtype"):  # not in older versions of torch
        made[2].grad_dtype = torch.float64
    conjugate = torch.ones(4, dtype=torch.complex64).conj()
    return [*kinds(), *made, torch.ones(4).share_memory_(), torch.ones(2, 4).t(), conjugate, conjugate.imag]


def said(value: object) -> object:
    """Of an attribute, what can be compared."""
    if isinstance(value, (tuple, list)):
        return type(value), [said(each) for each in value]
    if isinstance(value, torch.Tensor):
        return type(value), value.shape, value.stride(), value.requires_grad
    return value if isinstance(value, (bool, int, str, torch.dtype, torch.device, torch.layout)) else type(value)


ATTRIBUTES = [  # a node's class is compared above
    name
    for name in dir(torch.Tensor)
    if not (name.startswith("_") or name == "grad_fn" or callable(getattr(torch.Tensor, name, None)))
]


@pytest.mark.filterwarnings("ignore")
def test_every_attribute_of_arguments_is_that_of_the_real_tensor() -> None:
    for name in ATTRIBUTES:
        namespace: dict[str, Any] = {"said": said}
        exec(f"def program(t):\n    return said(t.{name})", namespace)
        program: Any = namespace["program"]
        assert outcomes(bolide.compile(program), more_kinds) == outcomes(program, more_kinds), name


@pytest.mark.parametrize("shares", [False, True])
def test_whether_two_arguments_share_a_storage(shares: bool) -> None:
    first, other = torch.ones(4), torch.ones(4)
    compiled = bolide.compile(lambda a, b: a + alias(a, b))
    for second in (first[1:], other[1:])[:: 1 if shares else -1]:
        assert torch.equal(compiled(first[:3], second), first[:3] + alias(first, second))


# ---- how often it was written to -------------------------------------------------------------------------------------


def _by_lists(x: Any) -> Any:
    parts = [x * 2, x * 3]
    torch._foreach_add_(parts, 1)
    torch._foreach_sqrt_(parts)
    return [part._version for part in parts]


def _by_views(x: Any) -> Any:
    y = x * 2
    view = y[1:]
    view.add_(1)
    y.detach().mul_(2)
    y.data.mul_(2)
    return y._version, view._version, y.detach()._version, y.data._version


def _before_a_break(x: Any) -> Any:
    y = (x * 2).mul_(3)
    found = y._version
    print(end="")
    return found, y


def _asked(x: Any) -> Any:
    y = x * 2
    for number in range(x.shape[0]):
        y.add_(number)
    return y + 1 if y._version > 4 else y


COUNTED: dict[str, Callable[[Any], Any]] = {
    "method": lambda x: (x * 2).mul_(3)._version,
    "random": lambda x: (x * 2).normal_()._version,
    "item": lambda x: operator.setitem(y := x * 2, 0, 1) or y._version,
    "out": lambda x: torch.add(x, 1, out=torch.empty_like(x))._version,
    "new": lambda x: (torch.zeros(3)._version, torch.tensor([1.0])._version, x.clone()._version),
    "lists": _by_lists,
    "views": _by_views,
    "break": _before_a_break,
    "question": _asked,
}


@pytest.mark.parametrize("name", COUNTED)
def test_writes_to_what_is_made_here_are_counted(name: str) -> None:
    compiled = bolide.compile(COUNTED[name])
    for size in (4, 4, 6):
        assert str(compiled(torch.ones(size))) == str(COUNTED[name](torch.ones(size)))


def test_what_was_saved_and_written_in_a_list_since_has_no_gradient() -> None:
    def program(x: Any) -> Any:
        parts = [x * 2]
        torch._foreach_sqrt_(parts)
        torch._foreach_add_(parts, 1)
        return parts[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = bolide.compile(program)(torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()
