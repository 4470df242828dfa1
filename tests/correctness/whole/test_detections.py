"""Random programs that work on detections, as what follows a detector's heads does: boxes, scores and labels of which
some are kept, sorted, suppressed, grouped. Results and exceptions are eager's, at changing sizes.

By hand: `python tests/correctness/whole/test_detections.py COUNT [SEED]`.
"""

from __future__ import annotations

import linecache
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bolide
from bolide.dynamo.config import config as capturing

SEED = int(os.environ.get("BOLIDE_TEST_SEED", "0"))
GROUPS, PROGRAMS = 2, 4
SIZES = (9, 6, 14, 0, 1, 11, 4, 9)

# ---- what programs call ----------------------------------------------------------------------------------------------


def overlap(a: Tensor, b: Tensor) -> Tensor:
    area = [(x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (a, b)]
    low, high = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    return shared / (area[0][:, None] + area[1] - shared)


def by_rest(b: Tensor, s: Tensor, limit: float) -> Tensor:
    order, keep = s.argsort(descending=True), []
    while order.numel() > 0:
        keep.append(order[0])
        rest = order[1:]
        order = rest[overlap(b[order[:1]], b[rest])[0] <= limit]
    return torch.stack(keep) if keep else order


def by_number(b: Tensor, s: Tensor, limit: float) -> Tensor:
    order, keep = s.argsort(descending=True), []
    while len(order):
        i = order[0].item()
        keep.append(i)
        if order.numel() == 1:
            break
        order = order[1:][overlap(b[i][None], b[order[1:]])[0] < limit]
    return torch.tensor(keep, dtype=torch.long)


def by_rows(b: Tensor, s: Tensor, limit: float) -> Tensor:
    order = s.argsort(descending=True)
    near, dropped = overlap(b[order], b[order]) > limit, torch.zeros(len(b), dtype=torch.bool)
    for i in range(b.shape[0]):
        if dropped[i]:
            continue
        dropped[i + 1 :] |= near[i, i + 1 :]
    return order[~dropped]


def by_matrix(b: Tensor, s: Tensor, limit: float) -> Tensor:
    order = s.argsort(descending=True)
    iou = overlap(b[order], b[order]).triu(1)
    if iou.numel() == 0:
        return order
    return order[iou.max(0)[0] <= limit]


def decayed(b: Tensor, s: Tensor) -> Tensor:
    left, total = s.clone(), torch.zeros_like(s)
    for _ in range(min(3, len(s))):
        top = left.argmax()
        if left[top] < 0.3:
            break
        total[top] = left[top]
        left = left * torch.exp(-(overlap(b[top][None], b)[0] ** 2))
        left[top] = -1
    return total


SCOPE = {"torch": torch, "F": F, **{f.__name__: f for f in (overlap, by_rest, by_number, by_rows, by_matrix, decayed)}}

# ---- writing programs ------------------------------------------------------------------------------------------------


class Writer:
    """Writes one program. The rows of `b` are boxes, those of `e` further values; `s` has scores, `l` labels from 0 to
    3: as many as there are boxes, always. `out` collects results, `n` is a number. `writes`: to tensors, which segments
    may have saved where eager saves others; such programs get no gradients."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.writes = chance, False
        self.lines = ["def program(b, s, l, e):", "    out, n = [], 3"]

    def program(self) -> str:
        for _ in range(self.chance.randint(3, 7)):
            self.step(1)
        self.line(1, self.pick("return b, s, l, out", "return b, s, l, e, n, out", "return {'b': b, 's': s}, out, n"))
        return "\n".join(self.lines)

    def line(self, depth: int, *texts: str) -> None:
        self.lines += ["    " * depth + text for text in texts]

    def pick(self, *texts: Any) -> Any:
        return self.chance.choice(texts)

    def share(self) -> float:
        return self.chance.randint(1, 9) / 10

    def mask(self) -> str:
        return self.pick(
            f"s > {self.share()}", f"(s > {self.share()}) & (l != 1)", f"l == {self.chance.randint(0, 3)}",
            "(b[:, 2] - b[:, 0] >= 9) & (b[:, 3] - b[:, 1] > 5)", f"(e > {self.share()}).any(1)",
            "s >= s.mean() - 0.01",
            f"torch.isin(l, torch.tensor([0, {self.chance.randint(1, 3)}]))", "b.amin(1) < 30", "l.bool() | (s < 0.5)",
        )  # fmt: skip

    def count(self) -> str:
        k = self.chance.randint(1, 8)
        return self.pick(
            f"min({k}, s.shape[0])", f"min(len(s), {k})", f"min({k}, s.numel())", "s.shape[0] // 2", "(len(b) + 1) // 2"
        )

    def taken(self, depth: int, index: str) -> None:
        if self.chance.random() < 0.3:
            self.line(depth, f"b, s, l, e = [t[{index}] for t in (b, s, l, e)]")
        else:
            self.line(depth, f"b, s, l, e = b[{index}], s[{index}], l[{index}], e[{index}]")

    def step(self, depth: int) -> None:
        kinds = [self.kept, self.kept, self.ordered, self.suppressed, self.changed, self.changed, self.written]
        kinds += [self.measured, self.measured, self.numbered]
        if depth == 1:
            kinds += [self.guarded, self.decided, self.looped, self.grouped]
        self.pick(*kinds)(depth)

    def kept(self, depth: int) -> None:
        mask = self.mask()
        how = self.pick("mask", "mask", "where", "nonzero", "select")
        if how == "mask":
            self.line(depth, f"m = {mask}")
            self.taken(depth, "m")
            return
        if how == "nonzero":
            text = self.pick(
                f"({mask}).nonzero().squeeze(1)", f"({mask}).nonzero(as_tuple=True)[0]", f"({mask}).nonzero()[:, 0]"
            )
            self.line(depth, f"i = {text}")
        else:
            self.line(depth, f"i = torch.where({mask})[0]")
        if how == "select":
            self.line(depth, "b, s, l, e = [t.index_select(0, i) for t in (b, s, l, e)]")
        else:
            self.taken(depth, "i")

    def ordered(self, depth: int) -> None:
        how = self.chance.random()
        if how < 0.4:
            self.line(depth, f"k = {self.count()}", "s, i = s.topk(k)", "b, l, e = b[i], l[i], e[i]")
        elif how < 0.7:
            end = self.pick("", "", "[:5]", f"[:{self.count()}]")
            self.line(depth, f"i = s.argsort(descending={self.chance.random() < 0.7}){end}")
            self.taken(depth, "i")
        elif how < 0.85:
            self.line(
                depth, "s, i = s.sort(descending=True)", "b, l, e = b[i], l[i], e.gather(0, i[:, None].expand(-1, 3))"
            )
        else:
            self.taken(
                depth,
                self.pick("slice(None, 6)", "slice(1, None)", "slice(None, None, 2)", "torch.arange(len(s)).flip(0)"),
            )

    def suppressed(self, depth: int) -> None:
        name, limit = self.pick("by_rest", "by_number", "by_rows", "by_matrix"), self.share()
        given = self.pick("b", "b", "b + l[:, None] * 100.0")
        self.line(depth, f"i = {name}({given}, s, {limit}){self.pick('', '', '[:4]')}")
        self.taken(depth, "i")

    def changed(self, depth: int) -> None:
        self.line(
            depth,
            self.pick(
                "b = b.clamp(0, 50)",
                "b = torch.stack([b[:, 0::2].clamp(0, 40), b[:, 1::2].clamp(0, 60)], 2).flatten(1)",
                "b = torch.cat([(b[:, :2] + b[:, 2:]) / 2, b[:, 2:] - b[:, :2]], 1)", "s = s * e.amax(1)",
                "b = torch.cat([b[:, :2] - b[:, 2:].abs() / 2, b[:, :2] + b[:, 2:].abs() / 2], 1)", "s = s.sqrt()",
                "x1, y1, x2, y2 = b.unbind(1); b = torch.stack([x1, y1, torch.max(x1, x2), torch.max(y1, y2)], -1)",
                f"s = torch.where({self.mask()}, s, s * 0.5)", "e = e.softmax(-1)",
                "l = e.argmax(1)", "s = decayed(b, s)",
                "b = b * torch.tensor([0.5, 1.0, 0.5, 1.0])",
                "s = s * torch.gather(e, 1, l.clamp(max=2)[:, None]).squeeze(1)",
                f"s = s.masked_fill({self.mask()}, 0.01) + s", "e = F.normalize(e, dim=1)", "s = s / s.sum()",
            ),
        )  # fmt: skip

    def written(self, depth: int) -> None:
        mask, self.writes = self.mask(), True
        self.line(depth, self.pick("s, b = s.clone(), b.clone()", "s, b = s * 1, b + 0", "pass"))
        self.line(
            depth,
            self.pick(
                f"s[{mask}] *= 0.5", f"b[{mask}] = b[{mask}] / 2", f"b[:, :2][{mask}] += 1", f"s[~({mask})] -= 0.1",
                "b[:, 2:] += b[:, :2]", "b[:1] = 1", f"i = torch.where({mask})[0]; s[i] = s[i] / 2", "s[:2] += 1",
                f"s.mul_(({mask}).float() + 0.5)", f"b.masked_fill_(({mask})[:, None], 2.0)",
            ),
        )  # fmt: skip

    def measured(self, depth: int) -> None:
        self.line(
            depth,
            self.pick(
                f"out.append({self.mask()})", "out.append(overlap(b, b).sum())", "out.append(l.unique())",
                "out.append(torch.bincount(l, minlength=4))",
                "out.append(torch.cat([b, s[:, None], l[:, None].float()], 1))",
                f"out.append(b[{self.mask()}].mean(0))", f"out.append(({self.mask()}).sum())",
                "out.append(s.cumsum(0))",
                "r = torch.zeros(16, 5); r[: len(s)] = torch.cat([b, s[:, None]], 1); out.append(r)",
                "out.append(s.max())",
                "out.append(F.pad(b, (0, 0, 0, max(0, 10 - len(b)))))", f"out.append(torch.where({self.mask()})[0])",
                "out.append(torch.zeros(4).index_add_(0, l, s))", "out.append(torch.zeros(4, 3).index_add(0, l, e))",
                "out.append(torch.zeros(4).scatter_reduce_(0, l, s, 'amax'))",
                "out.append(l.unique(return_counts=True))",
                "out.append([t.split(2) for t in (b, s)])", "out.append(b.tolist())",
                f"out.append(torch.masked_select(s, {self.mask()}))", "out.append((s.shape[0], b.numel()))",
                "out.append(overlap(b, b).max(1))", "out.append(e.flatten().sort()[0][-3:])",
                "out.append(b.new_empty(0, 4))",
            ),
        )  # fmt: skip

    def numbered(self, depth: int) -> None:
        mask = self.mask()
        self.line(
            depth,
            self.pick(
                f"n = int(({mask}).sum())",
                f"n = ({mask}).sum().item()",
                f"n = len(b[{mask}])",
                "n = s.shape[0] - 1",
                f"n = torch.where({mask})[0].numel()",
            ),
        )
        self.line(
            depth,
            self.pick(
                "out.append(s[:n])",
                "out.append(b[: n // 2 + 1] * n)",
                "out.append(torch.arange(n))",
                "out.append(n)",
                "out.append(s / (n + 1))",
            ),
        )

    def condition(self) -> str:
        return self.pick(
            f"({self.mask()}).any()", f"({self.mask()}).sum() > 3", f"len(b[{self.mask()}]) > 2", "b.numel() == 0",
            "len(s) > 5", "s.sum() > 2", f"not ({self.mask()}).all()", "n > 3",
            "b.shape[0] < n", f"s.mean() < {self.share()}",
        )  # fmt: skip

    def guarded(self, depth: int) -> None:
        self.line(
            depth, f"if {self.pick('b.numel() == 0', 'len(s) == 0', 'not len(b)', 's.shape[0] < 2', self.condition())}:"
        )
        self.line(
            depth + 1, self.pick("return b, s, l, out", "return []", "return b.new_zeros(0, 4), out", "return n, out")
        )

    def decided(self, depth: int) -> None:
        self.line(depth, f"if {self.condition()}:")
        self.step(depth + 1)
        if self.chance.random() < 0.5:
            self.line(depth, "else:")
            self.step(depth + 1)

    def looped(self, depth: int) -> None:
        if self.chance.random() < 0.5:
            self.line(
                depth,
                self.pick(
                    "for x, y in zip(b, s):",
                    "for x, y in zip(b[:3], s[:3]):",
                    "for x, y in zip(b.unbind(), s.unbind()):",
                ),
            )
            self.line(depth + 1, f"if y > {self.share()}:", "    out.append(x * y)")
        else:
            self.line(depth, f"for k in range({self.pick('len(b)', 'min(3, b.shape[0])', 's.shape[0] // 2')}):")
            if self.chance.random() < 0.5:
                self.line(depth + 1, f"if s[k] < {self.share()}:", f"    {self.pick('continue', 'break')}")
            self.line(
                depth + 1,
                self.pick("out.append(b[k] + k)", "out.append(s[k].item() > 0.5)", "out.append(e[k, l[k] % 3])"),
            )

    def grouped(self, depth: int) -> None:
        head = self.pick(
            "for c in range(4):", "for c in l.unique():", "for c in l.unique().tolist():", "for c in (0, 2):"
        )
        self.line(depth, "parts = []", head, "    m = l == c")
        if self.chance.random() < 0.6:
            self.line(depth + 1, self.pick("if not m.any():", "if m.sum() == 0:", "if len(s[m]) == 0:"), "    continue")
        self.line(
            depth + 1,
            self.pick(
                "parts.append(torch.cat([b[m], s[m, None]], 1))",
                f"i = by_matrix(b[m], s[m], {self.share()}); parts.append(b[m][i])",
                f"i = by_rest(b[m], s[m], {self.share()}); parts.append(s[m][i])",
                "parts.append(s[m].topk(min(2, len(s[m])))[0])",
                "i = torch.where(m)[0]; parts.append(i[s[i].argsort()])",
            ),
        )  # fmt: skip
        self.line(depth, self.pick("out.append(torch.cat(parts) if parts else s)", "out.append(parts)", "out += parts"))


def compiled_source(source: str, name: str) -> Callable[..., Any]:
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = dict(SCOPE)
    exec(compile(source, name, "exec"), scope)
    return scope["program"]  # type: ignore[no-any-return]


# ---- comparing -------------------------------------------------------------------------------------------------------


def inputs(chance: random.Random, size: int, grad: bool) -> list[Tensor]:
    torch.manual_seed(chance.randint(0, 1 << 30))
    low, extent = torch.rand(size, 2) * 48, torch.rand(size, 2) * 24 + 1
    scores = torch.rand(size) * chance.choice((0.4, 1.0, 1.0))
    made = [torch.cat([low, low + extent], 1), scores, torch.randint(0, 4, (size,)), torch.rand(size, 3)]
    return [each.requires_grad_(grad and each.is_floating_point()) for each in made]


def outcome(fn: Callable[..., Any], given: list[Tensor]) -> Any:
    """The results, the arguments afterwards, and gradients."""
    own = [each.detach().clone().requires_grad_(each.requires_grad) for each in given]
    try:
        results = fn(*own)
        made = [each for each in torch.utils._pytree.tree_leaves(results) if isinstance(each, Tensor)]
        losses = [each.sum() for each in made if each.requires_grad]
        wanted = [each for each in own if each.requires_grad]
        gradients = torch.autograd.grad(losses, wanted, allow_unused=True) if losses else ()
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error)
    return results, own, gradients


def facts(a: Tensor) -> tuple[object, ...]:
    """What is to be as in eager, besides the values; what has no effect on memory may be any stride."""
    strides = [stride for size, stride in zip(a.shape, a.stride()) if size != 1 and a.numel()]
    return (*a.shape, a.dtype, *strides, a.requires_grad)


def difference(found: Any, wanted: Any) -> str | None:
    if isinstance(found, type) or isinstance(wanted, type):
        return None if found is wanted else f"{found} in place of {wanted}"
    mine, one = torch.utils._pytree.tree_flatten(found)
    theirs, other = torch.utils._pytree.tree_flatten(wanted)
    if one != other:
        return f"{one} in place of {other}"
    for a, b in zip(mine, theirs):
        if type(a) is not type(b):
            return f"{a!r} in place of {b!r}"
        if not isinstance(a, Tensor):
            if a != b and (type(b) is not float or a != pytest.approx(b, rel=1e-4, abs=1e-5, nan_ok=True)):
                return f"{a!r} in place of {b!r}"
        elif facts(a) != facts(b):
            return f"{facts(a)} in place of {facts(b)}"
        elif not torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"{a} in place of {b}"
    return None


def wrong(seed: int) -> str | None:
    """What differs from eager in the program of a seed, with its text."""
    chance = random.Random(seed)
    writer = Writer(chance)
    source = writer.program()
    fn = compiled_source(source, f"<detections {seed}>")
    bolide.reset()
    compiled = bolide.compile(fn, dynamic=chance.choice((None, None, True)))
    for size in SIZES:
        given = inputs(chance, size, chance.random() < 0.3 and not writer.writes)
        grad = torch.set_grad_enabled(chance.random() < 0.5)
        with grad, capturing.patch(cache_size_limit=32, suppress_errors=False):
            problem = difference(outcome(compiled, given), outcome(fn, given))
        if problem is not None:
            return f"seed {seed}, size {size}: {problem}\n{source}"
    return None


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_programs_on_detections(group: int) -> None:
    first = (SEED * GROUPS + group) * PROGRAMS
    for seed in range(first, first + PROGRAMS):
        problem = wrong(seed)
        assert problem is None, problem


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from sweep_tools import by_hand

    by_hand(wrong)
