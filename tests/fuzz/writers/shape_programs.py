"""Writes random programs over sizes: integers, floats and tensors made of the sizes of tensors.

A program is grown statement by statement; one is kept if eager runs it for every set of arguments. Names tell kinds:
``i…`` integers, ``f…`` floats, ``t…`` tensors of floats, ``z…`` tensors of integers.
"""

from __future__ import annotations

import ast
import math
import random
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

PARAMETERS = "x, y, z, n, h"
GLOBALS = {"torch": torch, "F": F, "math": math, "cond": lambda which, yes, no, values: (yes if which else no)(*values)}

INTEGERS = (
    *("{t}.shape[0]", "{t}.shape[-1]", "{t}.size(0)", "{t}.numel()", "len({t})", "{t}.dim()"),
    *("{i} + {i}", "{i} - {i}", "{i} * {i}", "{i} + {c}", "{i} * {c} - {c}", "-{i}", "abs({i} - {i})", "{i} ** 2"),
    *("{i} // {c}", "{i} % {c}", "{i} // max({i}, 1)", "{i} % max(abs({i}), 1)", "-({i} // -{c})", "{i} >> 1"),
    *("min({i}, {i})", "max({i}, {c})", "min({i}, {i}, {c})", "sum([{i}, {i}, {c}])", "math.prod({t}.shape)"),
    *("divmod({i}, {c})[0]", "int({i} / {c})", "math.ceil({i} / {c})", "math.floor({i} * 0.5)", "round({i} / 2)"),
    *("{i} if {i} > {i} else {c}", "{i} or {c}", "int({i} == {i}) + {c}", "({i} + {c}) * ({i} - {c})", "{i} & 6"),
    *("torch.sym_max({i}, {c})", "torch.Size([{i}, {c}])[0]", "(lambda k: k * 2 + 1)({i})", "int({f})"),
    *("[k for k in ({i}, {c}) if k > 2][-1]", "{{'a': {i}}}['a']", "math.gcd({i}, 12)"),
)
FLOATS = (
    *("{i} / {c}", "{i} * 0.5", "float({i})", "math.sqrt(abs({i}))", "{f} + {i}", "{f} * {f}", "{f} / {c}", "-{f}"),
    *("min({f}, 1.5)", "max({f}, {i} / 2)", "1.0 / max({i}, 1)", "{i} / max(abs({i}), 1)", "{f} - {i} / 4"),
    *("{f} if {f} > 0.75 else {i} / 2", "abs({f})", "round({f}, 1)", "max({i}, 1) ** -0.5"),
)
ELEMENTWISE = (
    *("{t} * {i}", "{t} + {f}", "{t} - {t}", "{t} * {t}", "{t}.sin()", "{t} / max({i}, 1)", "{t}.relu()", "{t} * {f}"),
    *("{t}.clamp(-{c}, {c})", "torch.where({t} > 0, {t}, {f})", "{t}.sigmoid() * {i}", "torch.add({t}, {t}, alpha=2)"),
    *("{t}.masked_fill({t} > {f}, 0.5)", "{t}.clone()", "{t}.contiguous()", "torch.maximum({t}, {t})", "{z} * {f}"),
    *(
        "{t}.tanh()",
        "F.gelu({t})",
        "F.dropout({t}, 0.5, False)",
        "{t}.new_full({t}.shape, {f})",
        "{t}.double().float()",
    ),
)
VIEWS = (
    *("{t}[:{i}]", "{t}[{i}:]", "{t}[{i}:{i}]", "{t}[::{c}]", "{t}[-{c}:]", "{t}[..., :{i}]", "{t}[..., {c}:]"),
    *("{t}[:-{c}]", "{t}[{i} % max(len({t}), 1)]", "{t}[-1]", "{t}.narrow(0, 0, {i})", "{t}.narrow(-1, {c}, 1)"),
    *("{t}.view(-1)", "{t}.reshape(-1, {c})", "{t}.reshape({i}, -1)", "{t}.view({t}.shape)", "{t}.flatten()"),
    *(
        "{t}.reshape(-1, {t}.shape[0])",
        "{t}.transpose(0, -1)",
        "{t}.mT",
        "{t}.unsqueeze(1)",
        "{t}[None]",
        "{t}.squeeze()",
    ),
    *("{t}[None].expand({i}, *{t}.shape)", "{t}.unsqueeze(-1).expand(*{t}.shape, {c})", "{t}.unfold(0, {c}, 1)"),
    *("{t}.view({t}.shape[0], 1, -1)", "{t}.unflatten(0, (-1, {c}))", "{t}.movedim(0, -1)", "{t}.diagonal()"),
    *("{t}.reshape({i}, {i})", "{t}.as_strided(({c},), (1,))", "{t}.swapaxes(0, 1)", "{t}[..., None, :]", "{t}[:, -1]"),
)
PIECES = (
    *("{t}.split({c})[0]", "{t}.split({c})[-1]", "{t}.split([{i}, len({t}) - {i}])[1]", "{t}.chunk({c})[-1]"),
    *("{t}.chunk({c}, -1)[0]", "{t}.unbind(0)[0]", "{t}.unbind(0)[-1]", "torch.tensor_split({t}, {c})[0]"),
    *(
        "{t}.split({i})[0]",
        "{t}.split(len({t}) // 2 + 1)[1]",
        "torch.cat({t}.chunk({c}))",
        "torch.cat({t}.split({c}), 0)",
    ),
    *("torch.stack({t}.unbind(0), 1)", "sum({t}.unbind(-1))", "torch.stack([row * 2 for row in {t}])"),
)
SHAPES = (
    *("torch.cat([{t}, {t}])", "torch.cat([{t}, {t}], -1)", "torch.stack([{t}, {t}], 1)", "torch.arange({i}) * 0.5"),
    *("torch.zeros({i}, {c})", "torch.ones({t}.shape[0], {i})", "{t}.new_zeros({i})", "torch.eye({i}, {c})"),
    *(
        "torch.full(({i},), {f})",
        "torch.linspace(0, {f}, {i})",
        "torch.arange({i}, {i}).float()",
        "torch.zeros({t}.shape)",
    ),
    *("F.pad({t}, ({c}, {i}))", "F.pad({t}, (0, {i} - {t}.shape[-1]))", "{t}.roll({i}, 0)", "{t}.roll({c}, -1)"),
    *("{t}.flip(0)", "{t}.repeat({c}, 1)", "{t}.repeat(2, *[1] * {t}.dim())", "torch.tril({t})", "{t}.tile((2,))"),
    *(
        "torch.triu(torch.ones({i}, {i}), 1)",
        "{t}.repeat_interleave({c}, 0)",
        "torch.outer({t}[..., 0].flatten(), {t}[0].flatten())",
    ),
    *("torch.cat([{t}, {t}.new_zeros({i}, *{t}.shape[1:])])", "torch.ones({i}, 3).cumsum(0)"),
    *("torch.meshgrid(torch.arange({i}), torch.arange({c}), indexing='ij')[0] * 0.5", "{t}.new_tensor([{f}, {i}])"),
)
REDUCTIONS = (
    *("{t}.sum()", "{t}.sum(0)", "{t}.mean(-1, keepdim=True)", "{t}.cumsum(0)", "{t}.softmax(-1)", "{t}.amax(0)"),
    *(
        "{t}.var(-1)",
        "{t}.norm()",
        "{t}.sort(0)[0]",
        "{t}.logsumexp(-1)",
        "{t}.mean()",
        "{t}.sum(tuple(range({t}.dim())))",
    ),
    *("{t}.max(0)[0]", "{t}.topk({c}, 0)[0]", "F.layer_norm({t}, ({t}.shape[-1],))", "F.normalize({t}, dim=-1)"),
    *("{t} @ {t}", "{t} @ {t}.mT", "torch.einsum('...i,...i->...', {t}, {t})", "F.linear({t}, {t})", "{t}.prod(-1)"),
    *(
        "F.avg_pool1d({t}[None], {c})[0]",
        "F.max_pool1d({t}[None], 2)[0]",
        "F.interpolate({t}[None], scale_factor=2.0)[0]",
    ),
    *(
        "F.interpolate({t}[None], size={i})[0]",
        "F.adaptive_avg_pool1d({t}[None], {c})[0]",
        "torch.bmm({t}[None], {t}.mT[None])",
    ),
    *(
        "F.conv1d({t}[None, :1], torch.ones(2, 1, {c}))[0]",
        "F.scaled_dot_product_attention({t}[None], {t}[None], {t}[None])[0]",
    ),
)
INDICES = (
    *("torch.arange({i})", "{t}.argmax(0)", "{z} + {c}", "{z}[:{i}]", "{z}.flip(0)", "{t}.argsort(0)", "{z} % {c}"),
    *("torch.full(({i},), {c})", "{z}.cumsum(0)", "({t} > 0).long()", "torch.cat([{z}, {z}])", "{z} * {i}"),
)
GATHERS = (
    *("{t}[{z} % len({t})]", "{t}[..., {z} % {t}.shape[-1]]", "{t}.index_select(0, {z}.flatten() % len({t}))"),
    *("{t}[torch.arange(len({t}))]", "F.embedding({z} % len({t}), {t})", "{t}.gather(0, {z} % len({t}))"),
    *(
        "F.one_hot({z} % {c}, {c}) * {f}",
        "torch.zeros({i}).index_add(0, {z} % {i}, {z} * 0.5)",
        "{t}.take({z} % {t}.numel())",
    ),
)
WRITES = (
    *("{n} = {t}.clone(); {n}[{i}:] += 1", "{n} = {t}.clone(); {n}[:{c}] = {f}", "{n} = {t} * 1; {n}.mul_({i})"),
    *("{n} = torch.zeros({i}, {c}); {n}[0] = {f}", "{n} = {t}.clone(); {n}.narrow(0, 0, {c}).zero_()"),
    *("{n} = {t}.clone(); {n}[{z} % len({t})] = {f}", "{n} = {t}.clone(); {n}[..., -1].add_({t}[..., 0])"),
    *("{n} = {t}.clone(); {n}.view(-1)[{c}:].fill_({i})", "{n} = {t}.clone(); {n}.copy_({t})"),
)
LOOPS = (
    "{n} = {t}\nfor k in range({i}):\n    {n} = {n} + k",
    "{n} = {t}.new_zeros({t}.shape[1:])\nfor row in {t}:\n    {n} = {n} * 0.5 + row",
    "{n} = 0.0\nfor a, b in zip({t}, {t}):\n    {n} = {n} + (a * b).sum()\n{n} = {t} + {n}",
    "{n} = {t}\nfor k, row in enumerate({t}):\n    {n} = {n} + row.sum() * k",
    "{n} = {t}\nfor k, (a, b) in enumerate(zip({t}, {t})):\n    {n} = {n} + a.mean() * k - b.sum()",
    "{n} = {t}\nfor part in {t}.split({c}):\n    {n} = {n} + part.sum() / {c}",
    "{n} = {t}\nfor part in {t}.chunk({c}):\n    {n} = {n} - part.mean()",
    "{n} = {t}\nfor part in {t}.unbind(-1):\n    {n} = {n} + part.sum()",
    "{n} = {t}\nfor k in reversed(range(len({t}))):\n    {n} = {n} + {t}[k].sum() * k",
    "parts = []\nfor k in range(0, len({t}), {c}):\n    parts.append({t}[k : k + {c}] * k)\n{n} = torch.cat(parts)",
    "{n} = {t}\nk = {i}\nwhile k > 1:\n    {n} = {n} * 0.5 + k\n    k = k // 2",
)
BRANCHES = (
    "if {i} > {i}:\n    {n} = {t} + 1\nelse:\n    {n} = {t} * 2",
    "if {i} % 2 == 0:\n    {n} = {t}.sum(0)\nelse:\n    {n} = {t} - 3",
    "{n} = {t} if {i} == {i} else {t}.neg()",
    "if {f} < {f}:\n    {n} = {t} - 1\nelse:\n    {n} = {t} / 2",
    "if {t}.shape[0] == {t}.shape[0]:\n    {n} = {t} + 1\nelse:\n    {n} = {t}",
    "if {t}.numel() > {c} * {i} and {i} != 0:\n    {n} = {t}.cos()\nelse:\n    {n} = {t}.sin()",
    "try:\n    {n} = {t}.view({i}, {i})\nexcept RuntimeError:\n    {n} = {t} + 1",
    "assert {i} < {c} * 1000\n{n} = {t} * 2",
    "torch._check({i} > -5000)\n{n} = {t} * 3",
    "{n} = cond({t}.sum() > 0, lambda a, b: a * 2 + b, lambda a, b: a.sin() - b, ({t}, {t} + 1))",
    "{n} = cond({i} > {i}, lambda a: a * 2, lambda a: a.sin(), ({t},))",
)
DATA = (
    "{n} = {t}[{t} > 0]",
    "{n} = {t}.nonzero() * 0.5",
    "{n} = torch.masked_select({t}, {t} > {f})",
    "{n} = torch.unique({z}) * 0.5",
    "{n} = {t}.repeat_interleave({z}.flatten()[: len({t})].remainder(3), 0)",
    "{n} = torch.zeros(int(({t} > 0).sum().item()) + 1)",
    "{n} = {t} * {z}.flatten()[:2].tolist()[0]",
    "{n} = {t} * {t}.sum().item()",
    "k = ({z} % 5).max().item()\ntorch._check(k >= 0)\n{n} = torch.ones(k, {c}) + {f}",
)
_GROUPS = {"i": (INTEGERS,), "f": (FLOATS,), "z": (INDICES,)}
_TENSORS = ((ELEMENTWISE, 3), (VIEWS, 5), (PIECES, 2), (SHAPES, 3), (REDUCTIONS, 2), (GATHERS, 2))


@dataclass(frozen=True)
class Style:
    """What a program may have in it besides expressions."""

    loops: bool = False
    branches: bool = False
    data: bool = False


class Writer:
    """Grows one program; `calls` are its arguments, one tuple for each call."""

    def __init__(self, rng: random.Random, calls: list[tuple[Any, ...]], style: Style) -> None:
        self.rng, self.style = rng, style
        names = PARAMETERS.split(", ")
        self.scopes = [{**GLOBALS, **dict(zip(names, call))} for call in calls]
        self.names = {"t": ["x", "y"], "z": ["z"], "i": ["n"], "f": ["h"]}
        self.statements: list[str] = []

    def program(self, length: int) -> str:
        """The source of a function `program`."""
        for text in ("i0 = x.shape[0]", "i1 = x.shape[1]"):
            self._keep(text, "i", text[:2])
        tries = 0
        while len(self.statements) < length + 2 and tries < 60 * length:
            tries += 1
            self._grow()
        body = "\n".join(self.statements).replace("\n", "\n    ")
        return f"def program({PARAMETERS}):\n    {body}\n    return {self._result()}\n"

    def _result(self) -> str:
        chosen = [name for kind in "tzif" for name in self.names[kind][-4:] if name not in PARAMETERS]
        self.rng.shuffle(chosen)
        tensor = self.rng.choice(self.names["t"])
        return f"({', '.join(chosen[:7])}, {tensor}.shape, {tensor} * 1)"

    def _grow(self) -> None:
        kind = self.rng.choices("tifz", (10, 5, 2, 1))[0]
        name = f"{kind}{sum(map(len, self.names.values()))}"
        groups = [(group, weight, "{n} = " + "%s") for group, weight in _TENSORS]
        extra = [(WRITES, 1, "%s")]
        for wanted, group in ((self.style.loops, LOOPS), (self.style.branches, BRANCHES), (self.style.data, DATA)):
            extra += [(group, 3, "%s")] if wanted else []
        if kind == "t":
            group, _, form = self.rng.choices([*groups, *extra], [weight for _, weight, _ in (*groups, *extra)])[0]
        else:
            group, form = _GROUPS[kind][0], "{n} = %s"
        self._keep(self._filled(form % self.rng.choice(group), name), kind, name)

    def _filled(self, template: str, name: str) -> str:
        """A template with names and constants in its gaps."""
        parts = template.replace("{n}", name)
        while True:
            at = min(
                (place for gap in ("{t}", "{i}", "{f}", "{z}", "{c}") if (place := parts.find(gap)) >= 0), default=-1
            )
            if at < 0:
                return parts.replace("{{", "{").replace("}}", "}")
            kind = parts[at + 1]
            known = self.names.get(kind, [])
            chosen = str(self.rng.randint(1, 5)) if kind == "c" else self.rng.choice((*known, *known[-3:]))
            parts = parts[:at] + chosen + parts[at + 3 :]

    def _keep(self, text: str, kind: str, name: str) -> None:
        """Add a statement if every call runs it, and the values are of use."""
        code = compile(ast.parse(text), "<grown>", "exec")
        made = []
        for scope in self.scopes:
            scope = dict(scope)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    exec(code, scope)
            except Exception:
                return
            if not _useful(scope[name], kind):
                return
            made.append(scope[name])
        for scope, value in zip(self.scopes, made):
            scope[name] = value
        self.names[kind].append(name)
        self.statements.append(text)


def _useful(value: Any, kind: str) -> bool:
    if kind in "if":
        return type(value) is (int if kind == "i" else float) and abs(value) < 3000
    wanted = isinstance(value, torch.Tensor) and value.numel() < 4000 and value.dim() < 5
    if not wanted or value.is_floating_point() is not (kind == "t"):
        return False
    return not value.numel() or bool(value.detach().abs().max() < 1000)
