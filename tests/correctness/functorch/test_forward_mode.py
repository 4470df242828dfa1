"""Forward mode: dual levels and `torch.func.jvp` over norms of changing sizes, numbers, and infinities."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

import bolide
from tests.ordinary_tools import check_whole

Function = Callable[[Tensor], Tensor]


def dual(f: Function, x: Tensor, tangent: Tensor) -> Any:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(x, tangent))))


def pushed(f: Function, x: Tensor, tangent: Tensor) -> Any:
    return jvp(f, (x,), (tangent,))


WAYS: dict[str, Callable[[Function, Tensor, Tensor], Any]] = {
    "dual": dual,
    "jvp": pushed,
    "jvp of jvp": lambda f, x, tangent: pushed(lambda x: pushed(f, x, tangent)[1], x, tangent.sin()),
    "jvp of grad": lambda f, x, tangent: pushed(grad(lambda x: f(x).sin().sum()), x, tangent),
    "vmap": lambda f, x, tangent: vmap(lambda x, t: pushed(f, x, t), (None, 0))(x, torch.stack([tangent, x])),
}


def norms() -> dict[str, nn.Module]:
    made = {
        "layer": nn.LayerNorm(6),
        "layer without weights": nn.LayerNorm((6, 2), elementwise_affine=False),
        "group": nn.GroupNorm(2, 4),
        "instance": nn.InstanceNorm2d(4, affine=True),
        "batch": nn.BatchNorm2d(4).eval(),
        "batch in training": nn.BatchNorm2d(4, track_running_stats=False),
        "rms": nn.RMSNorm((6, 2)),
    }
    for module in made.values():
        for value in (*module.parameters(), *module.buffers()):
            if value.is_floating_point():
                nn.init.uniform_(value, 0.5, 2)
    return made


EXACT = ("group", "rms")  # of the others eager's second derivatives are wrong: its formulas give them here, too
CASES = [(name, way) for name in norms() for way in WAYS if way != "jvp of jvp" or name in EXACT]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_norms_of_changing_sizes(name: str, way: str) -> None:
    """ATen's formulas ask for the values of sizes."""

    def program(compile: Any) -> object:
        module = norms()[name]
        compiled = compile(lambda x, tangent: WAYS[way](lambda x: module(x.mT if name == "layer" else x), x, tangent))
        xs = [torch.randn(size, 4, 6, 2, dtype=torch.float64) for size in random.sample(range(2, 12), 3)]
        module.double()
        return [compiled(x, x.sin()) for x in xs]

    check_whole(program)


def test_running_statistics_are_as_in_eager() -> None:
    def program(compile: Any) -> object:
        module = nn.BatchNorm1d(4, momentum=0.3)
        compiled = compile(lambda x, tangent: dual(module, x, tangent))
        return [(compiled(x, x.sin()), dict(module.state_dict())) for x in (torch.randn(n, 4, 3) for n in (3, 5, 7))]

    check_whole(program)


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": lambda x, c: x * c,
    "div": lambda x, c: x / c,
    "rdiv": lambda x, c: c / x,
    "add": lambda x, c: torch.add(x, c, alpha=2) + torch.sub(c, x, alpha=3),
    "rows": lambda x, c: x * c[:1] - c * x[1:2],
    "square": lambda x, c: x * x * c,
    "addcmul": lambda x, c: torch.addcmul(x, c, c) + torch.addcdiv(c, x, c),
    "pow": lambda x, c: x**c + c**x,
    "atan2": lambda x, c: torch.atan2(x, c) + torch.hypot(c, x),
    "dot": lambda x, c: x.dot(c) * c,
    "view": lambda x, c: x.view(1, -1) * c.view(-1, 1),
    "complex": lambda x, c: torch.view_as_real(torch.complex(x, c) * 2),
}


@pytest.mark.parametrize("way", ["dual", "jvp", "jvp of jvp", "vmap"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_no_tangent_is_zero_whatever_it_is_multiplied_with(name: str, way: str) -> None:
    """Also by infinity, for which zeros would give NaN."""

    def program(x: Tensor, c: Tensor, tangent: Tensor) -> Any:
        return WAYS[way](lambda x: PRODUCTS[name](x, c), x, tangent)

    for backend in ("aot_eager", "inductor"):
        compiled = bolide.compile(program, backend=backend, fullgraph=True)
        for count in (5, 8):
            x, c, tangent = torch.randn(3, count)
            x[:2] = torch.tensor([math.inf, -math.inf])
            c[random.randrange(count)] = math.inf
            torch.testing.assert_close(compiled(x, c, tangent), program(x, c, tangent), equal_nan=True)


NUMBERS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "operators": lambda x, n: 3 - n * x * n / (n + x - n) + (n - x) / n - n,
    "quotient": lambda x, n: n / x + x.__rtruediv__(n),
    "functions": lambda x, n: torch.add(x, n, alpha=3) * torch.mul(x, n).sub(n, alpha=2).true_divide(n).subtract(n),
    "methods": lambda x, n: operator.iadd(x.multiply(n).divide(n).add(n), n).mul_(n).sub_(n).div_(n).add_(n),
    "rounded": lambda x, n: torch.div(x, n, rounding_mode="floor") * x,
    "where": lambda x, n: torch.where(x > n, x, n) ** 2,
    "integers": lambda x, n: x * (torch.arange(6) * n) + (torch.arange(6) + n),
    "no dimensions": lambda x, n: x.sum() * n + x.prod(1) * n,
    "functional": lambda x, n: F.silu(x * n) + F.gelu(x / n) + F.leaky_relu(x - n, 0.2) + F.softplus(x, beta=2),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_in_dual_levels(name: str, dynamic: bool | None) -> None:
    def program(x: Tensor, tangent: Tensor, n: Any) -> Any:
        return dual(lambda x: NUMBERS[name](x, n), x, tangent)

    compiled = bolide.compile(program, fullgraph=True, dynamic=dynamic)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for n in (2, 0.3, 3, 1.7):
            x = torch.rand(random.randint(2, 9), 6, dtype=dtype) + 0.5
            torch.testing.assert_close(compiled(x, x.sin(), n), program(x, x.sin(), n), rtol=2e-2, atol=2e-2)
