"""`flex_attention` in compiled code: with functions of scores and masks of the program's own, with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
)

import bolide

Mod = Callable[..., Tensor]
slopes = torch.tensor([0.5, 0.25])
document = torch.arange(400) // 37


def causal(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def near(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q - kv).abs() < 20 + 10 * h


def same_document(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return document[q] == document[kv]


def unseeing(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q > 3) & (kv < q)


def by_hand(q: Tensor, k: Tensor, v: Tensor, score_mod: Mod | None = None, mask: Mod | None = None) -> Any:
    """The result, and the logarithm of the sum of exponentials and the maximum of the scores."""
    k, v = [x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v)]
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    places = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
    if score_mod is not None:
        scores = score_mod(scores, *places)
    if mask is not None:
        scores = scores.masked_fill(~mask(*places), -math.inf)
    weights = torch.where(scores.isneginf().all(-1, keepdim=True), 0.0, scores.softmax(-1))
    return weights @ v, scores.logsumexp(-1), scores.amax(-1)


def inputs(length: int, heads: int = 2, groups: int = 2, keys: int | None = None) -> list[Tensor]:
    sizes = (2, heads, length, 8), (2, groups, keys or length, 8), (2, groups, keys or length, 8)
    return [torch.randn(size, requires_grad=True) for size in sizes]


def check(fn: Callable[..., Any], expected: Callable[..., Any], calls: list[list[Any]], versions: int = 2) -> None:
    compiled = bolide.compile(fn, fullgraph=True)
    for given in calls:
        wanted = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
        results = [function(*given) for function in (compiled, expected)]
        tangents = torch.randn_like(results[0])
        both = [(out, *torch.autograd.grad(out, wanted, tangents)) for out in results]
        for got, right in zip(*both):
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)
    assert len(compiled._bolide.entries) <= versions


SCORES: dict[str, Mod] = {
    "relative": lambda s, b, h, q, kv: s + (q - kv) * 0.1,
    "slopes by head": lambda s, b, h, q, kv: s + slopes[h] * (kv - q),
    "capped": lambda s, b, h, q, kv: 20 * torch.tanh(s / 20),
    "masked": lambda s, b, h, q, kv: torch.where(q >= kv, s, -math.inf),
    "by batch": lambda s, b, h, q, kv: s * (b + 1),
}


@pytest.mark.parametrize("score_mod", SCORES.values(), ids=SCORES)
def test_scores_that_the_program_changes(score_mod: Mod) -> None:
    check(
        lambda q, k, v: flex_attention(q, k, v, score_mod),
        lambda q, k, v: by_hand(q, k, v, score_mod)[0],
        [inputs(n) for n in (5, 9, 12)],
    )


MASKS = {"causal": causal, "by head": near, "by document": same_document, "rows without keys": unseeing}
MASKS["two at once"] = and_masks(causal, near)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_block_masks_are_arguments(mask: Mod) -> None:
    check(
        lambda q, k, v, block_mask: flex_attention(q, k, v, block_mask=block_mask),
        lambda q, k, v, block_mask: by_hand(q, k, v, mask=mask)[0],
        [[*inputs(n), create_block_mask(mask, None, 2, n, n, device="cpu")] for n in (130, 260, 300)],
    )


def test_block_masks_are_made_inside() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, owner: Tensor) -> Any:
        def mask(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return (owner[q] == owner[kv]) & (q >= kv)

        block_mask = create_block_mask(mask, None, None, q.shape[2], q.shape[2], device="cpu")
        return flex_attention(q, k, v, SCORES["relative"], block_mask)

    def expected(q: Tensor, k: Tensor, v: Tensor, owner: Tensor) -> Any:
        return by_hand(q, k, v, SCORES["relative"], lambda b, h, q, kv: (owner[q] == owner[kv]) & causal(b, h, q, kv))[
            0
        ]

    check(fn, expected, [[*inputs(n), torch.randint(3, (n,)).sort()[0]] for n in (150, 200)])


@pytest.mark.parametrize("score_mod", [None, SCORES["relative"]], ids=["plain", "relative"])
def test_heads_share_keys(score_mod: Mod | None) -> None:
    check(
        lambda q, k, v: flex_attention(q, k, v, score_mod, enable_gqa=True),
        lambda q, k, v: by_hand(q, k, v, score_mod)[0],
        [inputs(n, heads=4, keys=n + 3) for n in (5, 9, 12)],
    )


def test_what_scores_close_over_gets_gradients() -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.randn(2, 40))

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
            return flex_attention(q, k, v, self.score)

        def score(self, score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return score + self.bias[h, q - kv + 20]

    model = Biased()
    compiled = bolide.compile(model, fullgraph=True)
    for length in (5, 9, 12):
        given = inputs(length)
        wanted = [*given, model.bias]
        got, right = compiled(*given), by_hand(*given, model.score)[0]
        for a, b in zip(*[torch.autograd.grad(out.sin().sum(), wanted) for out in (got, right)]):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_statistics_of_scores() -> None:
    given = inputs(7)
    out, aux = bolide.compile(flex_attention, fullgraph=True)(
        *given, SCORES["capped"], return_aux=AuxRequest(lse=True, max_scores=True)
    )
    for got, right in zip((out, *aux), by_hand(*given, SCORES["capped"])):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


def test_a_transformer_block() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.split, self.join = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x: Tensor, attend: Callable[..., Any]) -> Tensor:
            q, k, v = self.split(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            return x + self.join(attend(q, k, v).transpose(1, 2).flatten(2))

    block = Block()
    compiled = bolide.compile(block, fullgraph=True)
    for length in (130, 200, 260):
        x, mask = torch.randn(2, length, 16), create_block_mask(causal, None, None, length, length, device="cpu")
        results = []
        for model, attend in (
            (compiled, lambda q, k, v, block_mask=mask: flex_attention(q, k, v, block_mask=block_mask)),
            (block, lambda q, k, v: by_hand(q, k, v, mask=causal)[0]),
        ):
            out = model(x, attend)
            results.append((out, *torch.autograd.grad(out.square().mean(), list(block.parameters()))))
        for got, right in zip(*results):
            torch.testing.assert_close(got, right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("compiler", [bolide.compile, torch.compile])
def test_functions_of_torch_are_compiled_themselves(compiler: Any) -> None:
    attend = compiler(flex_attention)
    fn = attend if compiler is bolide.compile else bolide.compile(lambda *given: attend(*given), fullgraph=True)
    for length in (5, 9):
        given = inputs(length)
        torch.testing.assert_close(fn(*given, SCORES["relative"]), by_hand(*given, SCORES["relative"])[0])


def test_masks_are_made_by_compiled_code() -> None:
    make = bolide.compile(create_block_mask, fullgraph=True)
    dense = bolide.compile(lambda x: create_mask(near, 1, 2, len(x), len(x), "cpu"), fullgraph=True)
    for length in (130, 300, 500):
        got, right = (create(near, None, 2, length, length, device="cpu") for create in (make, create_block_mask))
        assert type(got) is BlockMask and got.shape == right.shape and got.mask_mod is near
        for mine, theirs in zip(got.as_tuple(), right.as_tuple()):
            assert torch.equal(mine, theirs) if isinstance(theirs, Tensor) else mine == theirs
        assert torch.equal(dense(torch.randn(length)), create_mask(near, 1, 2, length, length, "cpu"))


def test_layouts_follow_the_queries() -> None:
    q, k, v = [torch.randn(2, 6, 3, 8).transpose(1, 2) for _ in range(3)]
    for score_mod in (None, SCORES["relative"]):
        with torch.no_grad():
            got = bolide.compile(flex_attention, fullgraph=True)(q, k, v, score_mod)
            assert got.stride() == flex_attention(q, k, v, score_mod).stride() == q.stride()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda q, k, v: flex_attention(q[:, :1], k, v), "same number of heads"),
        (lambda q, k, v: flex_attention(q[..., :4], k, v), "same embedding dimension"),
        (lambda q, k, v: flex_attention(q[:1], k, v), "same batch size"),
        (lambda q, k, v: flex_attention(q[0], k[0], v[0]), "must be 4D"),
        (
            lambda q, k, v: flex_attention(q, k, v, block_mask=create_block_mask(causal, 1, 1, 4, 4, device="cpu")),
            "smaller length",
        ),
        (
            lambda q, k, v: flex_attention(q, k, v, block_mask=create_block_mask(causal, 1, 1, 9, 9, device="cpu")),
            "larger length",
        ),
    ],
)
def test_what_does_not_fit_is_refused_as_in_eager(wrong: Callable[..., Any], text: str) -> None:
    given = [x.detach() for x in inputs(6)]
    errors = []
    for function in (wrong, bolide.compile(wrong, fullgraph=True)):
        with pytest.raises((ValueError, RuntimeError), match=text) as raised:
            function(*given)
        errors.append(raised)
    assert errors[0].type is errors[1].type and str(errors[0].value) == str(errors[1].value)
