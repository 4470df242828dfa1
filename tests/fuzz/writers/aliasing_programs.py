"""Random programs over tensors that share memory: arguments that are views of each other, twice the same, no leaves or
of other dtypes, writes, views of what is computed, results that alias arguments and each other, operations with several
results, `out=`, random numbers, autocast; and what a caller does with the results."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fuzz.writers.choices import Choices

FLOATS = (torch.float32, torch.float32, torch.float32, torch.float64, torch.complex64, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.bool)

_UNARY: tuple[Callable[..., Any], ...] = (
    *(torch.sin, torch.tanh, torch.neg, torch.exp, torch.square, torch.clone, torch.conj, torch.sigmoid, torch.abs),
    *(lambda t: t * 0.5, lambda t: t.contiguous(), lambda t: t + 1, lambda t: t / 3, lambda t: t.to(t.dtype)),
    *(lambda t: t.detach() * 2, lambda t: t.real * 1, lambda t: t.roll(1, -1), lambda t: t.flip(0), F.gelu),
    *(lambda t: t.sum(0, keepdim=True), lambda t: t - t.mean(), lambda t: t.softmax(-1), lambda t: t.cumsum(0)),
    *(lambda t: t.float(), lambda t: t.double(), lambda t: t > 0, lambda t: t.argmax(-1), lambda t: t.sort(-1).values),
    *(lambda t: t.bfloat16(), lambda t: t.to(torch.int64), lambda t: t.type(torch.complex64), lambda t: t.sum()),
    *(lambda t: t[[0, -1]], lambda t: t.index_select(-1, torch.tensor([0, 0])), lambda t: t.repeat(2, 1), torch.angle),
    *(lambda t: F.layer_norm(t, t.shape[-1:]), lambda t: t.pow(2).mean(-1), lambda t: F.pad(t, (1, 0)), F.silu),
    *(
        lambda t: t.logsumexp(0),
        lambda t: t.amax(-1),
        lambda t: t.norm(dim=-1),
        lambda t: t.tril(),
        lambda t: t.prod(0),
    ),
    *(lambda t: torch.empty_like(t).copy_(t), lambda t: t.new_zeros(t.shape) + t, lambda t: t.clamp(-0.5, 0.5)),
    *(
        lambda t: F.batch_norm(t, t.detach().mean(0), t.detach().var(0), training=True),
        lambda t: t.masked_fill(t > 0, 0),
    ),
)
_BINARY: tuple[Callable[..., Any], ...] = (
    *(torch.add, torch.mul, torch.sub, torch.maximum, torch.atan2, torch.div, torch.eq),
    *(lambda a, b: torch.where(a > b, a, b), lambda a, b: a @ b.mT, lambda a, b: torch.cat([a, b])),
    *(lambda a, b: torch.stack([a, b]), lambda a, b: torch.addcmul(a, a, b), lambda a, b: a.lerp(b, 0.3)),
    *(lambda a, b: a + b[..., :1], lambda a, b: a * b.sum(), lambda a, b: a - b[:1], lambda a, b: a.type_as(b)),
    *(lambda a, b: torch.cat([a, b], -1), lambda a, b: F.linear(a, b), lambda a, b: F.mse_loss(a, b), torch.hypot),
    *(lambda a, b: torch.einsum("ij,kj->ik", a, b), lambda a, b: torch.addmm(a, a, b), lambda a, b: b.expand_as(a) * 2),
    *(lambda a, b: a.scatter_add(0, (b > 0).long(), b), lambda a, b: torch.gather(a, 0, (b > 0).long()), torch.dist),
)
_VIEWS: tuple[Callable[..., Any], ...] = (
    *(lambda t: t.transpose(0, -1), lambda t: t[1:], lambda t: t[..., ::2], lambda t: t[0], lambda t: t[..., 1]),
    *(lambda t: t.unsqueeze(0), lambda t: t.view(t.shape), lambda t: t.detach(), lambda t: t.reshape(-1)),
    *(lambda t: t.expand(2, *t.shape), lambda t: t.narrow(0, 0, 1), lambda t: t.diagonal(), lambda t: t.squeeze()),
    *(lambda t: t.chunk(2)[0], lambda t: t.unbind(0)[-1], lambda t: t.split(1, -1)[0], lambda t: t.T, torch.conj),
    *(lambda t: t.real, lambda t: torch.view_as_real(t), lambda t: t.flatten(), lambda t: t.data, lambda t: t[None]),
    *(lambda t: t.as_strided(t.shape, t.stride(), t.storage_offset()), lambda t: t.permute(*range(t.dim())[::-1])),
    *(lambda t: t[1:][..., 1:], lambda t: t[::2][:, None], lambda t: t.unfold(-1, 2, 2), lambda t: t.unfold(0, 2, 1)),
    *(lambda t: (t * 1).as_strided((2, 2), (2, 1)), lambda t: (t * 1).as_strided((2, 2), (1, 1), 1), lambda t: t.imag),
    *(
        lambda t: t.view(-1),
        lambda t: t.movedim(0, -1),
        lambda t: t.unflatten(0, (1, -1)),
        lambda t: t.view(torch.int32),
    ),
    *(
        lambda t: torch.view_as_complex(t[..., :2]),
        lambda t: t.mT,
        lambda t: t.select(-1, 0),
        lambda t: t.swapaxes(0, 1),
    ),
    *(lambda t: t[-1:], lambda t: t.view_as(t), lambda t: t.tensor_split(2, -1)[1], lambda t: t.unbind(-1)[0]),
    *(
        lambda t: t.broadcast_to(3, *t.shape)[1],
        lambda t: t.adjoint(),
        lambda t: t.conj().imag,
        lambda t: t.ravel(),
    ),
)
_SEVERAL: tuple[Callable[..., Any], ...] = (
    *(lambda t: t.max(-1), lambda t: torch.var_mean(t, 0), lambda t: t.topk(1), lambda t: t.sort(0), torch.aminmax),
    *(lambda t: t.split(2), lambda t: t.unbind(-1), lambda t: t.chunk(2, -1), lambda t: t.tensor_split(3), torch.frexp),
    *(lambda t: t.cummax(0), lambda t: torch.meshgrid(t[0], t[0], indexing="ij"), lambda t: t.median(0)),
    *(
        lambda t: torch.broadcast_tensors(t, t[:1]),
        lambda t: t.hsplit(2),
        lambda t: torch.std_mean(t),
        torch.atleast_2d,
    ),
    *(lambda t: F.max_pool1d(t, 2, return_indices=True), lambda t: torch._foreach_mul([t, t[0]], 2)),
)
_WRITES: tuple[Callable[..., Any], ...] = (
    *(lambda t, u: t.add_(u), lambda t, u: t.mul_(2), lambda t, u: t.copy_(u), lambda t, u: t.zero_()),
    *(lambda t, u: t.sin_(), lambda t, u: t.fill_(0.3), lambda t, u: t.masked_fill_(t > 0.3, 0.25)),
    *(lambda t, u: t[0].mul_(3), lambda t, u: t[..., 1:].copy_(u[..., :-1].clone()), lambda t, u: t.detach().add_(1)),
    *(lambda t, u: t.data.mul_(2), lambda t, u: t.addcmul_(u, u), lambda t, u: t.transpose(0, -1).sub_(1)),
    *(lambda t, u: t.clamp_(-1, 1), lambda t, u: t.index_fill_(0, torch.tensor([0]), 1), lambda t, u: t.neg_()),
    *(
        lambda t, u: t.unfold(-1, 2, 2).add_(1),
        lambda t, u: t.unfold(0, 1, 2).mul_(2),
        lambda t, u: t.diagonal().zero_(),
    ),
    *(lambda t, u: t.as_strided((2, 2), (2, 1)).mul_(2), lambda t, u: t.expand(2, *t.shape).add_(1)),
    *(lambda t, u: t[1:][..., 1:].mul_(2), lambda t, u: t[::2].copy_(u[::2]), lambda t, u: t.add_(u[..., :1].clone())),
    *(lambda t, u: t.__setitem__(0, u[0]), lambda t, u: t.__setitem__(t > 0, 0), lambda t, u: t.__setitem__([0], 1)),
    *(lambda t, u: t.index_add_(0, torch.tensor([0]), u[:1].clone()), lambda t, u: t.scatter_(0, (u > 0).long(), 0.5)),
    *(lambda t, u: torch.add(t, u, out=t), lambda t, u: torch.mul(u, 2, out=t[...]), lambda t, u: t.div_(2)),
    *(
        lambda t, u: torch.sin(u, out=torch.empty_like(u)),
        lambda t, u: F.relu(t, inplace=True),
        lambda t, u: t.mul_(1).cumsum_(0),
    ),
    *(lambda t, u: torch._foreach_add_([t, t[0]], 1), lambda t, u: t.lerp_(u, 0.5), lambda t, u: t.sub_(u.sum())),
    *(lambda t, u: t.real.mul_(2), lambda t, u: t.index_put_((torch.tensor([0, 0]),), u[0].clone(), accumulate=True)),
    *(lambda t, u: t.unbind(0)[0].add_(1), lambda t, u: t.select(-1, 0).exp_(), lambda t, u: t.conj().mul_(2)),
    *(lambda t, u: t.view(-1).add_(1), lambda t, u: t.chunk(2, -1)[1].zero_(), lambda t, u: t.logical_not_()),
)
_RESHAPES: tuple[Callable[..., Any], ...] = (
    *(lambda t, u: t.t_(), lambda t, u: t.unsqueeze_(0), lambda t, u: t.transpose_(0, -1), lambda t, u: t.squeeze_()),
    *(lambda t, u: t.swapaxes_(0, 1), lambda t, u: t.as_strided_(t.shape, t.stride())),
)
_RANDOM: tuple[Callable[..., Any], ...] = (
    *(lambda t: F.dropout(t, 0.5), lambda t: torch.rand_like(t) * t, lambda t: t + torch.randn(t.shape[-1])),
    *(lambda t: torch.bernoulli(t.detach().sigmoid()), lambda t: t.normal_(), lambda t: t.uniform_(0, 1)),
    *(lambda t: F.dropout(t, 0.3, inplace=True), lambda t: t[torch.randperm(2)], lambda t: t.bernoulli_(0.5)),
    *(lambda t: F.rrelu(t, training=True), lambda t: torch.randint(0, 3, t.shape) + t, lambda t: t.exponential_()),
)
#: what eager refuses
REFUSALS = (RuntimeError, IndexError, NotImplementedError, ValueError, TypeError, AttributeError)
LOW = (torch.bfloat16, torch.float16)


@dataclass
class Arguments:
    """`leaves`: what gradients are taken of; `given`: the arguments, which are made of these."""

    leaves: list[torch.Tensor]
    given: list[torch.Tensor]


_ALIASES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    *(lambda t: t[1:], lambda t: t.transpose(0, 1), lambda t: t[:, ::2], lambda t: t.view(-1), lambda t: t[0]),
    *(
        lambda t: t[1:][:, :2],
        lambda t: t.diagonal(),
        lambda t: t.real,
        lambda t: t.chunk(2)[1],
        lambda t: t.unfold(0, 2, 2),
    ),
)
_LAYOUTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    *(lambda t: t.mT, lambda t: torch.stack([t, t], -1)[..., 0], lambda t: t.repeat(2, *[1] * (t.dim() - 1))[::2]),
    *(lambda t: t[:1].expand(t.shape), lambda t: t.conj(), lambda t: t.flip(0)),
)


class RoundingOtherwise(TorchDispatchMode):
    """While it is active, what operations compute is off by a last bit here and there."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        if any(value.alias_info is not None for value in func._schema.returns):
            return result
        for value in pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.dtype in FLOATS:
                steps = torch.randint(-1, 2, value.shape, generator=self.generator)
                value.mul_((1 + steps * torch.finfo(value.dtype).eps).to(value.dtype))
        return result


def arguments(number: int, size: int) -> Arguments:
    """The arguments of a program: fresh ones in each call, always alike."""
    choose = random.Random(number)
    generator = torch.Generator().manual_seed(number + size)
    with_grad = choose.random() < 0.75
    leaves: list[torch.Tensor] = []
    given: list[torch.Tensor] = []
    for _ in range(choose.randint(1, 4)):
        kind = choose.choice(
            ["leaf", "leaf", "plain", "made", "made", "view", "view", "same", "gaps", "detached", "parameter"]
        )
        if kind in ("view", "same", "detached") and given:
            like = choose.choice(given)
            ways = {"same": lambda t: t, "detached": lambda t: t.detach()[1:]}
            way = ways.get(kind) or choose.choice(_ALIASES)
            try:
                with torch.set_grad_enabled(choose.random() < 0.9):
                    given.append(way(like))
            except REFUSALS:
                given.append(like)
            continue
        dtype = choose.choice(DTYPES)
        shape = choose.choice(
            [(size, 4), (size, size), (4, size), (2, size, 3), (size, 1), (1, size), (size,), (), (0, size), (size, 2)]
            if choose.random() < 0.3
            else [(size, 4), (size, size), (4, size), (2, size, 3)]
        )
        data = torch.randn(shape, generator=generator, dtype=torch.float64).mul(2).to(dtype)
        if kind == "gaps" and data.dim() > 1:
            data = choose.choice(_LAYOUTS)(data)
        grad = with_grad and kind != "plain" and dtype in FLOATS and choose.random() < 0.8
        leaf = data.detach().requires_grad_(grad)
        leaf = torch.nn.Parameter(leaf, grad) if kind == "parameter" and dtype in FLOATS else leaf
        leaves.append(leaf)
        given.append(leaf * 1 if kind == "made" else leaf)
    return Arguments(leaves, given)


class Program:
    """A random function of these arguments; it takes the same decisions whenever it is called. Steps that eager refuses
    for one of `sizes` are left out; one program in eight handles such errors itself. `rough`: in its last call it has
    rounded to few digits."""

    KINDS = ("unary", "unary", "binary", "binary", "view", "view", "view", "write", "write", "write")
    RARE = ("no_grad", "several", "random", "autocast", "enable_grad", "several")

    def __init__(self, number: int, sizes: Sequence[int] = (5, 6, 7)) -> None:
        self.number, self.rough, self.handles = number, False, number % 8 == 0
        self.refused: set[int] = set()
        given = arguments(number, 5).given
        self.owners = [place for place, tensor in enumerate(given) if not tensor._is_view()]
        known = -1
        while known < len(self.refused) and not self.handles:
            known, self.learns = len(self.refused), True
            for size in sizes:
                self(*arguments(number, size).given)
        self.learns = False

    def __call__(self, *tensors: torch.Tensor) -> Any:
        choose = Choices(self.number)
        pool = list(tensors)
        whole = [tensors[place] for place in self.owners]  # what shape others may be given in place
        for index in range(2 + choose.below(9)):
            kind = choose.choice(self.RARE if choose.below(4) == 0 else self.KINDS)
            one, other = choose.choice(pool), choose.choice(pool)
            step, operands = self._step(kind, choose, one, other, whole)
            if index in self.refused:
                continue
            try:
                with (
                    torch.set_grad_enabled(kind == "enable_grad" or (kind != "no_grad" and torch.is_grad_enabled())),
                    torch.autocast("cpu", enabled=kind == "autocast" or torch.is_autocast_enabled("cpu")),
                ):
                    made = step(*operands)
            except REFUSALS:
                if self.learns:
                    self.refused.add(index)
                elif not self.handles:
                    raise
                continue
            if kind == "write" and choose.below(3):
                continue
            pool += [value for value in pytree.tree_leaves(made) if isinstance(value, torch.Tensor)]
        self.rough = any(tensor.dtype in LOW for tensor in pool)
        found: list[Any] = [choose.choice(pool[-6:] if choose.below(2) else pool) for _ in range(1 + choose.below(4))]
        form = choose.below(8)
        if form == 0:
            return {"results": found, "sizes": list(found[0].shape), "nothing": None}
        return found[0] if len(found) == 1 and form < 4 else tuple(found)

    def _step(
        self, kind: str, choose: Choices, one: torch.Tensor, other: torch.Tensor, whole: list[torch.Tensor]
    ) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
        if kind in ("unary", "enable_grad"):
            return choose.choice(_UNARY), (one,)
        if kind in ("view", "several", "random"):
            return choose.choice({"view": _VIEWS, "several": _SEVERAL, "random": _RANDOM}[kind]), (one,)
        if kind != "write":
            return choose.choice(_BINARY), (one, other)
        if choose.below(6) == 0 and whole:
            one = choose.choice(whole)
            return choose.choice(_RESHAPES), (one, one)
        write = choose.choice(_WRITES)
        if other is one:
            return write, (one, one)
        return lambda t, u: write(t, u.clone()), (one, other)  # or eager may read what it has written


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
    """Gradients of a random part of the results, and of arguments that have changed, with tangents in any layout. An
    argument that a write has given a history is no place to ask at: what is compiled is one step from what it is given
    to its results (PyTorch's is, too)."""
    choose = random.Random(number)
    known: dict[int, torch.Tensor] = {
        id(tensor): tensor for tensor in (*results, *made.given) if tensor.grad_fn is not None
    }
    roots = [root for root in known.values() if choose.random() < 0.7] or list(known.values())[:1]
    wanted = [leaf for leaf in made.leaves if leaf.requires_grad and leaf.is_leaf]
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
