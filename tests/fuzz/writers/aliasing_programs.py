"""Random programs over tensors that share memory: arguments that are views of each other, twice the same, no leaves or
of other dtypes, writes, views of what is computed, results that alias arguments and each other; and what a caller does
with the results."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.fuzz.writers.choices import Choices

DTYPES = (torch.float32, torch.float32, torch.float32, torch.float64, torch.complex64, torch.bfloat16, torch.int64)

_UNARY: tuple[Callable[..., Any], ...] = (
    *(torch.sin, torch.tanh, torch.neg, torch.exp, torch.square, torch.clone, torch.conj, torch.sigmoid),
    *(lambda t: t * 0.5, lambda t: t.contiguous(), lambda t: t + 1, lambda t: t / 3, lambda t: t.to(t.dtype)),
    *(lambda t: t.detach() * 2, lambda t: t.real * 1, lambda t: t.roll(1, -1), lambda t: t.flip(0)),
    *(lambda t: t.sum(0, keepdim=True), lambda t: t - t.mean(), lambda t: t.softmax(-1), lambda t: t.cumsum(0)),
    *(lambda t: t.float(), lambda t: t.double(), lambda t: t > 0, lambda t: t.argmax(-1), lambda t: t.sort(-1).values),
)
_BINARY: tuple[Callable[..., Any], ...] = (
    *(torch.add, torch.mul, torch.sub, torch.maximum, torch.atan2),
    *(lambda a, b: torch.where(a > b, a, b), lambda a, b: a @ b.mT, lambda a, b: torch.cat([a, b])),
    *(lambda a, b: torch.stack([a, b]), lambda a, b: torch.addcmul(a, a, b), lambda a, b: a.lerp(b, 0.3)),
)
_VIEWS: tuple[Callable[..., Any], ...] = (
    *(lambda t: t.transpose(0, -1), lambda t: t[1:], lambda t: t[..., ::2], lambda t: t[0], lambda t: t[..., 1]),
    *(lambda t: t.unsqueeze(0), lambda t: t.view(t.shape), lambda t: t.detach(), lambda t: t.reshape(-1)),
    *(lambda t: t.expand(2, *t.shape), lambda t: t.narrow(0, 0, 1), lambda t: t.diagonal(), lambda t: t.squeeze()),
    *(lambda t: t.chunk(2)[0], lambda t: t.unbind(0)[-1], lambda t: t.split(1, -1)[0], lambda t: t.T, torch.conj),
    *(lambda t: t.real, lambda t: torch.view_as_real(t), lambda t: t.flatten(), lambda t: t.data, lambda t: t[None]),
    *(lambda t: t.as_strided(t.shape, t.stride(), t.storage_offset()), lambda t: t.permute(*range(t.dim())[::-1])),
)
_WRITES: tuple[Callable[..., Any], ...] = (
    *(lambda t, u: t.add_(u), lambda t, u: t.mul_(2), lambda t, u: t.copy_(u), lambda t, u: t.zero_()),
    *(lambda t, u: t.sin_(), lambda t, u: t.fill_(0.3), lambda t, u: t.masked_fill_(t > 0.3, 0.25)),
    *(lambda t, u: t[0].mul_(3), lambda t, u: t[..., 1:].copy_(u[..., :-1].clone()), lambda t, u: t.detach().add_(1)),
    *(lambda t, u: t.data.mul_(2), lambda t, u: t.addcmul_(u, u), lambda t, u: t.transpose(0, -1).sub_(1)),
    *(lambda t, u: t.clamp_(-1, 1), lambda t, u: t.index_fill_(0, torch.tensor([0]), 1), lambda t, u: t.neg_()),
)
_RESHAPES: tuple[Callable[..., Any], ...] = (
    *(lambda t, u: t.t_(), lambda t, u: t.unsqueeze_(0), lambda t, u: t.transpose_(0, -1), lambda t, u: t.squeeze_()),
)
#: what eager refuses
REFUSALS = (RuntimeError, IndexError, NotImplementedError, ValueError, TypeError)


@dataclass
class Arguments:
    """`leaves`: what gradients are taken of; `given`: the arguments, which are made of these."""

    leaves: list[torch.Tensor]
    given: list[torch.Tensor]


def arguments(number: int, size: int) -> Arguments:
    """The arguments of a program: fresh ones in each call, always alike."""
    choose = random.Random(number)
    generator = torch.Generator().manual_seed(number + size)
    with_grad = choose.random() < 0.75
    leaves: list[torch.Tensor] = []
    given: list[torch.Tensor] = []
    for _ in range(choose.randint(1, 4)):
        kind = choose.choice(["leaf", "leaf", "plain", "made", "made", "view", "view", "same", "gaps", "detached"])
        if kind in ("view", "same", "detached") and given:
            like = choose.choice(given)
            views = {"same": lambda t: t, "detached": lambda t: t.detach()[1:]}
            ways = [
                lambda t: t[1:],
                lambda t: t.transpose(0, 1),
                lambda t: t[:, ::2],
                lambda t: t.view(-1),
                lambda t: t[0],
            ]
            way = views.get(kind) or choose.choice(ways)
            try:
                given.append(way(like))
            except REFUSALS:
                given.append(like)
            continue
        dtype = choose.choice(DTYPES)
        shape = choose.choice([(size, 4), (size, size), (4, size), (2, size, 3)])
        data = torch.randn(shape, generator=generator, dtype=torch.float64).mul(2).to(dtype)
        if kind == "gaps":
            data = choose.choice(
                [data.mT, torch.stack([data, data], -1)[..., 0], data.repeat(2, *[1] * (data.dim() - 1))[::2]]
            )
        grad = with_grad and kind != "plain" and dtype is not torch.int64 and choose.random() < 0.8
        leaf = data.detach().requires_grad_(grad)
        leaves.append(leaf)
        given.append(leaf * 1 if kind == "made" else leaf)
    return Arguments(leaves, given)


def program(number: int) -> Callable[..., Any]:
    """A random function of these arguments; it takes the same decisions whenever it is called. Steps that eager refuses
    for the shapes and dtypes that it meets are left out."""

    owners = [place for place, tensor in enumerate(arguments(number, 5).given) if not tensor._is_view()]

    def run(*tensors: torch.Tensor) -> Any:
        choose = Choices(number)
        pool = list(tensors)
        whole = [tensors[place] for place in owners]  # what shape others may be given in place
        for _ in range(2 + choose.below(9)):
            kind = choose.choice(["unary", "binary", "view", "view", "write", "write", "no_grad"])
            one, other = choose.choice(pool), choose.choice(pool)
            if kind == "unary":
                step, operands = choose.choice(_UNARY), (one,)
            elif kind == "view":
                step, operands = choose.choice(_VIEWS), (one,)
            elif kind == "write":
                if choose.below(6) == 0 and whole:
                    one = other = choose.choice(whole)
                    step = choose.choice(_RESHAPES)
                else:
                    step = choose.choice(_WRITES)
                operands = (one, other if other is one else other.clone())  # or eager may read what it has written
            else:
                step, operands = choose.choice(_BINARY), (one, other)
            try:
                with torch.set_grad_enabled(kind != "no_grad" and torch.is_grad_enabled()):
                    made = step(*operands)
            except REFUSALS:
                continue
            if kind != "write" or choose.below(3) == 0:
                pool.append(made)
        found = [choose.choice(pool[-6:] if choose.below(2) else pool) for _ in range(1 + choose.below(4))]
        return found[0] if len(found) == 1 and choose.below(2) else tuple(found)

    return run


def use(results: list[torch.Tensor], given: list[torch.Tensor], number: int) -> str | None:
    """What a caller does with results: writes to one of them, as far as eager lets it; the error's text otherwise."""
    choose = random.Random(number)
    target = choose.choice(results)
    write = choose.choice(
        [lambda t: t.mul_(2), lambda t: t.add_(1), lambda t: t.detach().add_(1), lambda t: t.data.mul_(3)]
    )
    try:
        with torch.set_grad_enabled(choose.random() < 0.7):
            write(target)
    except RuntimeError as error:
        return str(error)[:40]
    return None


def gradients(results: list[torch.Tensor], made: Arguments, number: int) -> list[Any]:
    """Gradients of a random part of the results, and of arguments that have changed, with tangents in any layout."""
    choose = random.Random(number)
    known: dict[int, torch.Tensor] = {
        id(tensor): tensor for tensor in (*results, *made.given) if tensor.grad_fn is not None
    }
    roots = [root for root in known.values() if choose.random() < 0.7] or list(known.values())[:1]
    wanted = [leaf for leaf in made.leaves if leaf.requires_grad]
    if not roots or not wanted:
        return []
    generator = torch.Generator().manual_seed(number)
    tangents = []
    for root in roots:
        tangent = torch.randn(root.shape, generator=generator, dtype=torch.float64).to(root.dtype)
        way = choose.randrange(3)
        tangents.append(tangent.mT.contiguous().mT if way == 0 and tangent.dim() > 1 else tangent)
        if way == 1:
            tangents[-1] = torch.ones((), dtype=root.dtype).expand(root.shape)
    return list(torch.autograd.grad(roots, wanted, tangents, allow_unused=True))
