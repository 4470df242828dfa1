"""Random functions of four matrices, with views, writes and parts without gradients, and what they give."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from tests.functorch_tools import flat, fresh
from tests.fuzz.writers.choices import Choices

REFUSALS = (
    "modified by an inplace operation",
    "is a view",
    "refer to a single memory location",
    "a leaf Variable that",
)

UNARY = [torch.sin, torch.tanh, torch.relu, lambda t: t * 0.5, lambda t: t.clone(), torch.sigmoid, lambda t: -t]
BINARY = [torch.add, torch.mul, torch.maximum, lambda a, b: torch.where(a > b, a, b.sin())]
VIEWS = [
    lambda t: t.transpose(0, -1),
    lambda t: t[1:],
    lambda t: t.narrow(-1, 0, 2),
    lambda t: t.unsqueeze(0).squeeze(0),
    lambda t: t[..., ::2],
    lambda t: t.detach(),
    lambda t: t.view(t.shape),
]
SHRINKING = [lambda t: t.sum(0, keepdim=True).expand(t.shape), lambda t: t.softmax(-1), lambda t: t - t.mean()]
IN_PLACE = [
    lambda t, u: t.add_(u),
    lambda t, u: t.mul_(0.7),
    lambda t, u: t.copy_(u),
    lambda t, u: t.zero_(),
    lambda t, u: t.sin_(),
    lambda t, u: t.fill_(0.3),
]


def matrices(seed: int, size: int = 4) -> list[torch.Tensor]:
    """Four square matrices, two of which require gradients."""
    torch.manual_seed(seed)
    return [torch.randn(size, size, requires_grad=index < 2) for index in range(4)]


def program(seed: int) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A random function of four matrices; it takes the same decisions whenever it is called."""
    inputs = matrices(seed)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        choose = Choices(seed)
        pool = list(tensors)
        for _ in range(3 + choose.below(11)):
            kind = choose.choice(["unary", "binary", "binary", "view", "shrink", "write", "no_grad"])
            one = choose.choice(pool)
            same = [tensor for tensor in pool if tensor.shape == one.shape]
            other = choose.choice(same)
            if kind == "unary":
                pool.append(choose.choice(UNARY)(one))
            elif kind == "binary":
                pool.append(choose.choice(BINARY)(one, other))
            elif kind == "view" and min(one.shape) > 2:
                pool.append(choose.choice(VIEWS)(one))
            elif kind == "shrink":
                pool.append(choose.choice(SHRINKING)(one))
            elif kind == "write":
                write = choose.choice(IN_PLACE)
                owned = one._base if one._base is not None else one
                if not (owned.is_leaf and owned.requires_grad) and 0 not in one.stride():
                    write(one, other)
            elif kind == "no_grad":
                with torch.no_grad():
                    pool.append(one * other)
        return tuple([choose.choice(pool) for _ in range(1 + choose.below(4))])

    return run, inputs


def backward(outputs: list[torch.Tensor], inputs: list[torch.Tensor], choose: random.Random) -> list[Any]:
    roots = [out for out in outputs if out.grad_fn is not None]
    roots = [root for root in roots if choose.random() < 0.7] or roots[:1]
    if not roots:
        return []
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(root.shape, generator=generator) for root in roots]
    wanted = [tensor for tensor in inputs if tensor.requires_grad and tensor.is_leaf]
    return list(torch.autograd.grad(roots, wanted, weights, allow_unused=True))


def outcome(fn: Callable[..., Any], inputs: list[torch.Tensor], seed: int) -> tuple[Any, ...]:
    tensors = fresh(inputs)
    outputs = flat(fn(*tensors))
    return outputs, tensors, backward(outputs, tensors, random.Random(seed))
