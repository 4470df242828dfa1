"""Writes random programs of views and pieces: slices, selections, splits, loops over chunks, writes into slices,
gathers, matrix products, at integers and sizes that differ from call to call.

A program is grown statement by statement; one is kept if eager runs it for every set of arguments. Names tell kinds:
``t…`` tensors of floats, ``i…`` integers.
"""

from __future__ import annotations

import math
import random
import re
import warnings
from typing import Any

import torch
import torch.nn.functional as F

PARAMETERS = "x, y, w, z, a, b, c, counts"
GLOBALS = {"torch": torch, "F": F, "math": math}
_MOST = 600  # elements of a tensor

#: {t}: a tensor, {i}: an integer, {c}: a small number, {d}: a dimension, {s}: a slice, {n}: the name that is assigned
INTEGERS = (
    *("{t}.shape[0]", "{t}.shape[-1]", "{i} + {c}", "{i} - {c}", "-{i}", "{i} // 2", "{i} % 3", "{t}.shape[0] // 2"),
    *(
        "{i} + {i}",
        "{t}.shape[0] - {i}",
        "min({i}, {t}.shape[0])",
        "max({i}, -{t}.shape[0])",
        "len({t}) - 1",
        "abs({i})",
    ),
    *("{i}.bit_length()", "2 ** (abs({i}) % 4)", "int(abs({i}) ** 0.5)", "round({i} / 3)", "{i} & 3", "{i} ^ {c}"),
    *("1 << (abs({i}) % 3)", "math.gcd({i}, 6)", "math.ceil({i} / 2)", "math.isqrt(len({t}))", "divmod({i}, 3)[0]"),
    *("torch.Size([abs({i}), 2]).numel()", "math.floor(math.sqrt(len({t})))", "int({i} * 0.7)", "{i} & ({i} - 1)"),
    *("counts[0]", "counts[-1]", "sum(counts[:2])", "{t}.shape[-1] - {c}", "{i} * 2", "{i} % {t}.shape[0]"),
)
SLICES = (
    *("{i}:", ":{i}", "{i}:{i}", "-{c}:", ":-{c}", "{c}:", "{i}::2", ":{i}:2", "{i}:{i} + 2", "::{c}", "-{c}:-1"),
    *("{i} - 1:{i}", "{i}:-1", ":", "{t}.shape[0] // 2:", ":{t}.shape[0] - 1", "{i}:{t}.shape[0]"),
)
VIEWS = (
    *(
        "{t}[{s}]",
        "{t}[{s}]",
        "{t}[:, {s}]",
        "{t}[..., {s}]",
        "{t}[{s}, {s}]",
        "{t}[{s}][{s}]",
        "{t}[{i}]",
        "{t}[..., {i}]",
    ),
    *(
        "{t}[{i}, {s}]",
        "{t}[{s}, {i}]",
        "{t}.select({d}, {i})",
        "{t}.narrow({d}, {i}, {c})",
        "{t}.narrow({d}, {i}, {i})",
    ),
    *("{t}.unbind({d})[{c}]", "{t}.unbind({d})[-1]", "{t}.unfold({d}, {c}, {c})", "{t}.unfold({d}, 2, 1)", "{t}.mT"),
    *("{t}.transpose(0, -1)", "{t}.movedim({d}, 0)", "{t}.reshape(-1)", "{t}.reshape({t}.shape[0], -1)", "{t}.t()"),
    *("{t}.reshape(-1, {c})", "{t}.view(-1, {t}.shape[-1])", "{t}.flatten()", "{t}.unsqueeze({d})", "{t}.squeeze({d})"),
    *(
        "{t}[None].expand({c}, *{t}.shape)",
        "{t}.diagonal({c} - 2)",
        "{t}.unflatten({d}, (-1, {c}))",
        "{t}.contiguous()",
    ),
    *("{t}.swapaxes(0, 1)", "{t}[..., None, :]", "{t}.view({t}.shape)", "{t}.flatten()[{s}]", "{t}.expand_as({t})"),
)
PIECES = (
    *("{t}.split({c}, {d})[{c}]", "{t}.split({c}, {d})[-1]", "{t}.split({i})[-1]", "{t}.split({i}, {d})[0]"),
    *("{t}.split([{i}, {t}.shape[0] - {i}])[1]", "{t}.split([{i}, {t}.shape[0] - {i}])[0]", "{t}.split(counts)[{c}]"),
    *("{t}.chunk({c}, {d})[-1]", "{t}.chunk({c})[0]", "torch.tensor_split({t}, {c}, {d})[-1]", "{t}.split(counts)[-1]"),
    *(
        "torch.tensor_split({t}, ({i}, {i}))[1]",
        "torch.cat({t}.chunk({c}, {d}), {d})",
        "torch.cat({t}.split(counts)[::-1])",
    ),
    *("torch.stack({t}.unbind({d}), -1)", "sum({t}.unbind({d}))", "torch.cat({t}.tensor_split({c})[::-1])"),
    *("torch.hsplit({t}, 2)[1]", "torch.unsafe_split({t} * 1, {c}, {d})[0] * 1", "{t}.split_with_sizes(counts)[1]"),
)
TOGETHER = (
    *("torch.cat([{t}, {t}], {d})", "torch.cat([{t}[{s}], {t}[{s}]])", "torch.stack([{t}, {t}], {d})", "{t} + {t}"),
    *(
        "{t} * {t}",
        "{t} - {t}[{s}]",
        "{t}[{s}] * {t}[{s}]",
        "torch.cat([{t}, {t}[{s}], {t}])",
        "torch.where({t} > 0, {t}, {t})",
    ),
    *("{t} @ {t}", "{t} @ {t}.mT", "{t}[{s}] @ w", "F.linear({t}, w)", "F.linear({t}[{s}], w)", "{t}.mT @ {t}"),
    *("torch.einsum('...i,...i->...', {t}, {t})", "torch.outer({t}.flatten()[:5], {t}.flatten()[{s}])", "{t}[{i}] @ w"),
    *(
        "torch.addmm({t}, {t}, w)",
        "{t} * {t}[{i}]",
        "{t} + {t}[..., {i}, None]",
        "torch.bmm({t}[None], {t}.mT[None])[0]",
    ),
)
COPIES = (
    *(
        "{t}.roll({i}, {d})",
        "{t}.roll({i})",
        "{t}.roll(({i}, {c}), (0, -1))",
        "F.pad({t}, ({c}, {i}))",
        "{t}.flip({d})",
    ),
    *(
        "F.pad({t}, ({i}, -1, {c}, 0))",
        "F.pad({t}, (-{c}, {c}))",
        "{t}.repeat(2, 1)",
        "{t}.repeat_interleave({c}, {d})",
    ),
    *("torch.select_scatter({t}, {t}[0] * 2, 0, {i})", "torch.slice_scatter({t}, {t}[{i}:] * 2, 0, {i})"),
    *("torch.slice_scatter({t}, {t}[..., {s}].cos(), -1, {i}, {i})", "torch.select_scatter({t}, {t}[..., 0], -1, {i})"),
    *("{t}.index_select(0, z % {t}.shape[0])", "{t}[z % {t}.shape[0]]", "{t}[:, z % {t}.shape[1]]", "{t}.clone()"),
    *("{t}.gather(0, (z % {t}.shape[0])[:, None].expand(-1, {t}.shape[1]))", "{t}[z % {t}.shape[0], {i}]"),
    *(
        "{t}.index_add(0, z % {t}.shape[0], {t}[z % {t}.shape[0]])",
        "torch.take_along_dim({t}, z[:1, None] % len({t}), 0)",
    ),
    *(
        "{t}.index_copy(0, z[:1] % len({t}), {t}[{i}][None])",
        "{t}.tril({c} - 2)",
        "{t}[z % len({t})][{s}]",
        "{t}.sum({d})",
    ),
    *(
        "{t}.cumsum({d})",
        "{t}.softmax({d})",
        "{t}.sort({d})[0]",
        "{t}.mean({d}, keepdim=True)",
        "{t}.amax({d})",
        "{t}.tanh()",
    ),
    *(
        "F.layer_norm({t}, {t}.shape[-1:])",
        "{t}.logsumexp({d})",
        "{t}[..., 1:] - {t}[..., :-1]",
        "{t}.exp().clamp(max=3)",
    ),
    *("F.conv1d({t}[None, {s}].mT, w[:, :, None])[0]", "F.avg_pool1d({t}[None], 2)[0]", "{t}[{s}].flatten().cumsum(0)"),
)
#: numbers made of sizes, and tensors made of such numbers
MADE = (
    *("{t} * round({i} / 3, 2)", "{t} * 2.0 ** ({i} % 3)", "{t} / len({t}) ** 0.5", "{t} + math.log2(len({t}) + 1)"),
    *("torch.linspace(0, {i}, len({t}), dtype=torch.float64)[:, None] * {t}", "{t} * (1 << (len({t}) % 4))"),
    "torch.linspace(-1 + 1 / len({t}), 1.0, len({t}), dtype=torch.float64) @ {t}",
    *("torch.arange(0, {i} / 2, 0.5, dtype=torch.float64)", "torch.tensor([{i}, {i} / 2], dtype=torch.float64)"),
    *("torch.hann_window(abs({i}) + 1, dtype=torch.float64)", "{t}.T * torch.hamming_window(len({t})).double()"),
    *("F.one_hot(z % len({t}), len({t})).double() @ {t}", "{t} * torch.tensor({t}.shape).double().sum()"),
    *("{t}.unfold({d}, max({i}, 1), 2)", "{t}.unfold(0, len({t}) // 2, 1).sum(0)", "{t}.unfold(0, 2, max({i}, 1)) * 2"),
    *("F.adaptive_avg_pool1d({t}[None], max({i}, 1))[0]", "{t}[torch.tril_indices(len({t}), len({t}))[0]][{s}]"),
)
#: the ends of a dimension, nothing at all, masks, other dtypes, reductions, pieces of one weight
EDGES = (
    *("{t}[:0]", "{t}[{i}:{i}]", "torch.cat([{t}[:0], {t}, {t}[{i}:{i}]])", "{t}.new_zeros(0, {t}.shape[-1])"),
    *(
        "{t}[{t}.shape[0] - 1]",
        "{t}[-{t}.shape[0]]",
        "{t}[-{t}.shape[0]:]",
        "{t}[{t}.shape[0]:]",
        "{t}[:-{t}.shape[0]]",
    ),
    *("{t}.narrow(0, {t}.shape[0] - {c}, {c})", "{t}.narrow({d}, -{c}, {c})", "{t}.select({d}, {t}.shape[{d}] - 1)"),
    *("{t}.masked_fill({t} > {t}.mean(), 0.5)", "torch.where({t} > {t}[{i}], {t}, -{t})", "{t} * ({t} > 0)"),
    *("{t}[{t}[..., 0] > 0].sum(0)", "{t}.masked_fill(({t} > 0)[{i}], 2)", "({t} > 0).double() + {t}"),
    *(
        "{t}.float().double()",
        "{t}.float()[{s}].double() * 2",
        "{t}.long().double() + {t}",
        "({t} * 4).int()[{s}] + {t}[{s}]",
    ),
    *(
        "{t}.var({d}, unbiased=False)",
        "{t}.norm(dim={d})",
        "{t}.sum(({d},), keepdim=True) + {t}",
        "{t}.prod({d}).tanh()",
    ),
    *("{t}[{t}.argmax(0)[0]]", "{t}.amin({d}, keepdim=True) * {t}", "{t}.topk(1, {d})[0]", "{t}.cummax({d})[0]"),
    *("{t} @ w[:, {s}]", "{t} @ w[{i}]", "F.linear({t}, w[:{c}])", "F.linear({t}, w[{s}], w[0, {s}])"),
    *("({t} @ w)[{s}] + {t}[{s}]", "{t}[..., :{c}] + ({t} @ w)[..., :{c}]", "({t}[{s}] @ w)[:{c}] + {t}[:{c}] @ w"),
    *("({t} @ w).tanh() @ w.mT", "torch.softmax({t} @ {t}.mT, -1) @ {t}", "{t} @ w @ w[{i}, :, None]"),
    *("{t}.as_strided({t}.shape, {t}.stride())[{s}]", "{t}.unfold(0, 2, 1).sum(0)", "{t}.unfold(0, 2, 1)[..., {i}]"),
    *(
        "{t}.flatten()[{i}:].reshape(-1, 1)",
        "{t}.view(-1)[-{c}:]",
        "{t}[::2][{s}]",
        "{t}[..., ::2].flip(-1)",
        "{t}.ravel()[::3]",
    ),
)
#: several lines each; ``{n}`` is what they make
STATEMENTS = (
    "base = {t} * 1\nbase.view(-1)[{s}].mul_(2)\n{n} = base[{s}]",
    "base = {t} * 1\n{n} = base.mT[..., {s}].mT\n{n} *= 2\n{n} = {n} + base.sum()",
    "base = {t} * 1\nbase[{s}][{s}] += {t}[{i}]\nbase.unbind()[{i}].sub_(1)\n{n} = base",
    "base = {t} * 1\nbase.chunk({c}, {d})[0].mul_(3)\nbase.diagonal().add_(1)\n{n} = base[{s}]",
    "base = {t} * 1\nwindows = base.unfold(0, 2, 1)\nwindows[{i}] = 2\n{n} = windows * 1",
    "base = {t} * 1\nbase.masked_fill_(base > 1, 0.5)\nbase[{t}.shape[0] - 1].add_(base[0])\n{n} = base.flip(0)",
    "base = {t}.new_zeros({t}.shape)\nfor k, row in enumerate({t}):\n    base[k] = row * k\n{n} = base",
    "left, right = w[:, :2], w[:, 2:]\n{n} = torch.cat([{t} @ left, ({t} @ right).tanh()], -1)",
    "{n} = {t}\nfor k in range(2):\n    {n} = ({n} @ w[:, k * 2 : k * 2 + 2]) @ w[k * 2 : k * 2 + 2]",
    "{n} = sum({t}[..., k : k + 1] * w[k] for k in range({t}.shape[-1]))",
    "q, k, v = ({t} @ w[j : j + 4 - j] if j == 0 else {t} * (j + 1) for j in range(3))\n"
    "{n} = torch.softmax(q @ k.mT, -1)[..., : {t}.shape[0]] @ v",
    "parts = []\nfor start in range(0, {t}.shape[0], {c}):\n    parts.append({t}[start : start + {c}].cumsum(0))\n"
    "{n} = torch.cat(parts)",
    "{n} = {t} * 1\n{n}[{s}] = {t}[{s}] * 2",
    "{n} = {t} * 1\n{n}[{i}] = {n}[{c}] * 2",
    "{n} = {t} * 1\n{n}[..., {s}] += 1.5",
    "{n} = {t} * 1\n{n}[{s}] *= {t}[{i}]",
    "{n} = {t} * 1\n{n}[{s}, {i}] = 0.25",
    "{n} = {t} * 1\n{n}.select({d}, {i}).mul_(2)\n{n}.narrow(0, {i}, 1).add_({n}[{c}])",
    "base = {t} * 1\n{n} = base[{s}]\nbase[{s}] *= 2",
    "base = {t} * 1\n{n} = base[{s}]\n{n} += 1\n{n} = torch.cat([base, {n}])",
    "base = {t} * 1\n{n} = base.mT[{s}]\nbase[{i}] = 0\n{n}[{i}] = 3",
    "{n} = torch.zeros_like({t})\n{n}[{s}] = {t}[{s}]\n{n}[{i}] += {t}[{i}]",
    "{n} = {t}.new_zeros({t}.shape[0] + {c}, *{t}.shape[1:])\n{n}[{c}:] = {t}",
    "{n} = {t} * 1\n{n}[z % len({n})] = {t}[{i}]",
    "{n} = {t} * 1\nfor k, piece in enumerate({t}.split(counts)):\n    {n} = {n} + piece.sum(0) * k",
    "start, parts = 0, []\nfor k, count in enumerate(counts):\n"
    "    parts.append({t}[start : start + count] @ (w * k + 1))\n    start += count\n{n} = torch.cat(parts)",
    "start, {n} = 0, {t} * 1\nfor count in counts:\n"
    "    {n}[start : start + count] *= {t}[start : start + count].sum()\n    start = start + count",
    "parts = []\nfor piece in {t}.chunk({c}, {d}):\n    parts.append(piece.tanh() * (len(parts) + 1))\n"
    "{n} = torch.cat(parts[::-1], {d})",
    "{n} = {t}[0]\nfor piece in {t}.split(({t}.shape[0] + 1) // 2):\n    {n} = {n} * 0.5 + (piece @ w).sum(0)",
    "half = {t}.shape[0] // 2\n{n} = torch.cat([{t}[half:], {t}[:half]]) * {t}[{i}]",
    "left, right = {t}.split([{i}, {t}.shape[{d}] - {i}], {d})\n{n} = torch.cat([right, left * 2], {d})",
    "{n} = torch.cat([row[{s}] for row in {t}[:2]])",
    "state, parts = {t}[0] * 0, []\nfor k in range(3):\n    state = (state + {t}[k + {i}]) @ w\n"
    "    parts.append(state)\n{n} = torch.stack(parts)",
)
KINDS = ((VIEWS, 6), (PIECES, 3), (TOGETHER, 4), (COPIES, 4), (EDGES, 4), (MADE, 4), (INTEGERS, 3), (STATEMENTS, 4))


class Writer:
    """Grows one program, beside what eager makes of it for each set of arguments."""

    def __init__(self, rng: random.Random, calls: list[tuple[Any, ...]]) -> None:
        self.rng = rng
        names = PARAMETERS.split(", ")
        self.scopes = [{**GLOBALS, **dict(zip(names, call))} for call in calls]
        self.tensors, self.integers = ["x", "y"], ["a", "b", "c"]
        self.lines: list[str] = []
        self.unused = ["x", "y"]

    def program(self, length: int) -> str:
        """The source of a function `program` of about this many statements."""
        for _ in range(length * 12):
            if len(self.lines) < length:
                self.grow()
        results = [name for name in self.unused if name not in "xy"] or [self.tensors[-1]]
        body = "".join(f"    {line}\n" for statement in self.lines for line in statement.split("\n"))
        return f"def program({PARAMETERS}):\n{body}    return [{', '.join(results)}]\n"

    def grow(self) -> None:
        """Try one more statement."""
        (kind,) = self.rng.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])
        name = f"{'i' if kind is INTEGERS else 't'}{len(self.lines)}"
        text = self.filled(self.rng.choice(kind), name)
        text = text if kind is STATEMENTS else f"{name} = {text}"
        made = [dict(scope) for scope in self.scopes]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for scope in made:
                    exec(text, scope)
        except (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError, AttributeError):
            return
        wanted = int if kind is INTEGERS else torch.Tensor
        if not all(isinstance(scope[name], wanted) and _fine(scope[name]) for scope in made):
            return
        self.scopes = made
        self.lines.append(text)
        if kind is INTEGERS:
            self.integers.append(name)
            return
        read = set(re.findall(r"\w+", text))
        self.unused = [known for known in self.unused if known not in read] + [name]
        self.tensors.append(name)

    def filled(self, template: str, name: str) -> str:
        """A template with names and numbers in its places; the newest tensors are taken most often."""
        rng = self.rng
        template = re.sub(r"\{s\}", lambda _: rng.choice(SLICES), template)
        same = rng.choice(self.tensors[-3:])  # what most places of a statement are about

        def fill(match: re.Match[str]) -> str:
            place = match.group(1)
            if place == "t":
                return same if rng.random() < 0.7 else rng.choice(self.tensors)
            if place == "i":
                return rng.choice(self.integers)
            return {"n": name, "c": str(rng.randint(1, 3)), "d": str(rng.choice([0, 0, 1, -1]))}[place]

        return re.sub(r"\{([tincd])\}", fill, template)


def _fine(value: Any) -> bool:
    """Whether a program may go on with a value."""
    if isinstance(value, int):
        return abs(value) < 100
    if value.dim() > 4 or value.numel() > _MOST:
        return False
    return not value.numel() or float(value.detach().abs().max()) < 1e3
