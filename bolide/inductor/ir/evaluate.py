"""The oracle of the tensor level: runs a `Program` with torch operations over whole index grids. Slow,
memory-hungry, and simple enough to be believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bolide.inductor.ir.definitions import Computed, Element, Extern, Program, Scatter, View, WriteBack
from bolide.inductor.ir.loops import BINARY_OPS, UNARY_OPS, Node
from bolide.symbolic import Expr
from bolide.tracing import rng

Env = dict[str, Any]  # names of axes, sizes and operands -> integers or index grids


def evaluate(program: Program, inputs: Sequence[torch.Tensor], sizes: Mapping[str, int] | None = None) -> list[Any]:
    """The results of `program` on `inputs` (one tensor per `program.inputs`), which write-backs change in place.

    `sizes`: the value of every size variable that occurs in shapes.
    """
    env: Env = dict(sizes or {})
    buffers = {source.name: tensor for source, tensor in zip(program.inputs, inputs, strict=True)}
    for definition in program.definitions:
        if isinstance(definition, Computed):
            buffers[definition.name] = _computed(definition, buffers, env)
        elif isinstance(definition, Scatter):
            buffers[definition.name] = _scattered(definition, buffers, env)
        elif isinstance(definition, Extern):
            _call(definition, buffers, env)
        elif isinstance(definition, WriteBack):
            buffers[definition.target].copy_(_view(definition.source, buffers, env))
    return [_argument(result, buffers, env) for result in program.results]


def integer(expr: Expr, env: Mapping[str, Any]) -> Any:
    """The value of an index expression: an int, or an int64 grid if `env` holds grids."""
    if expr.is_const:
        return expr.value
    text = expr.text().replace("$", "_operand")
    names = {name.replace("$", "_operand"): value for name, value in env.items()}
    return eval(text, {"min": _minimum, "max": _maximum, "__builtins__": {}}, names)


def _minimum(a: Any, b: Any) -> Any:
    return torch.minimum(*_tensors(a, b)) if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) else min(a, b)


def _maximum(a: Any, b: Any) -> Any:
    return torch.maximum(*_tensors(a, b)) if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) else max(a, b)


def _tensors(*values: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(value, dtype=torch.int64) for value in values]


def _shape(shape: Sequence[Expr], env: Mapping[str, Any]) -> list[int]:
    return [integer(size, env) for size in shape]


# ---- definitions ----------------------------------------------------------------------------------------------------


def _grid(names: Sequence[str], extents: Sequence[int], rank: int, start: int) -> Env:
    """Index grids that broadcast against each other over `rank` dimensions; the first axis is dimension `start`."""
    return {
        name: torch.arange(extent).reshape([-1 if d == start + k else 1 for d in range(rank)])
        for k, (name, extent) in enumerate(zip(names, extents))
    }


def _computed(definition: Computed, buffers: dict[str, torch.Tensor], env: Env) -> torch.Tensor:
    shape = _shape(definition.shape, env)
    reduced = _shape([extent for _, extent in definition.reduce_axes], env)
    rank = len(shape) + len(reduced)
    scope = env | _grid(definition.axes, shape, rank, 0)
    scope |= _grid([name for name, _ in definition.reduce_axes], reduced, rank, len(shape))
    value = Scalars(buffers, scope).value(definition.value).expand(shape + reduced)
    if definition.reduce_op is not None:
        position = definition.position
        where = (
            None
            if position is None
            else Scalars(buffers, scope).value(position).expand(shape + reduced).flatten(len(shape))
        )
        value = _reduced(definition.reduce_op, value.flatten(len(shape)) if reduced else value.unsqueeze(-1), where)
    result = torch.empty(shape, dtype=definition.dtype)
    if definition.layout is not None:
        result = torch.empty_strided(shape, _shape(definition.layout.stride, env), dtype=definition.dtype)
    return result.copy_(value)


def _reduced(op: str, value: torch.Tensor, position: torch.Tensor | None) -> torch.Tensor:
    if op == "sum":
        return value.sum(-1, dtype=value.dtype)
    if op == "prod":
        return value.prod(-1, dtype=value.dtype)
    if op in ("any", "all"):
        return value.any(-1) if op == "any" else value.all(-1)
    if op in ("argmin", "argmax"):
        assert position is not None
        first = value.argmin(-1) if op == "argmin" else value.argmax(-1)
        return position.gather(-1, first.unsqueeze(-1)).squeeze(-1)
    if op in ("min", "max"):
        return value.amin(-1) if op == "min" else value.amax(-1)
    raise NotImplementedError(f"reduction {op!r}")


def _scattered(definition: Scatter, buffers: dict[str, torch.Tensor], env: Env) -> torch.Tensor:
    result = buffers[definition.base].clone(memory_format=torch.contiguous_format)
    extents = _shape(definition.extents, env)
    scope = env | _grid(definition.axes, extents, len(extents), 0)
    scalars = Scalars(buffers, scope)
    value = scalars.value(definition.value).expand(extents).reshape(-1)
    places = scope | {f"${k}": scalars.value(operand) for k, operand in enumerate(definition.operands)}
    linear = torch.zeros(extents, dtype=torch.int64)
    for coord, size in zip(definition.coords, _shape(definition.shape, env)):
        linear = linear * size + integer(coord, places)
    flat, linear = result.view(-1), linear.reshape(-1)
    if definition.mode == "add":
        flat.index_put_((linear,), value, accumulate=True)
    else:
        for place, element in zip(linear.tolist(), value):
            flat[place] = element
    return result


def _call(definition: Extern, buffers: dict[str, torch.Tensor], env: Env) -> None:
    args = _argument(definition.args, buffers, env)
    kwargs = {key: _argument(arg, buffers, env) for key, arg in definition.kwargs.items()}
    results = definition.op(*args, **kwargs)
    if not isinstance(results, (tuple, list)):
        results = (results,)
    for name, result, layout in zip(definition.names, results, definition.layouts):
        if name is not None:
            declared = _shape(layout.stride, env)
            agree = all(size == 1 or a == b for size, a, b in zip(result.shape, result.stride(), declared))
            if result.numel() and not agree:
                raise AssertionError(f"{definition.op} gives strides {result.stride()}, declared {declared}")
            buffers[name] = result


def _argument(arg: Any, buffers: dict[str, torch.Tensor], env: Env) -> Any:
    if isinstance(arg, View):
        return _view(arg, buffers, env)
    if isinstance(arg, Expr):
        return integer(arg, env)
    if isinstance(arg, (list, tuple)):
        return type(arg)(_argument(item, buffers, env) for item in arg)
    return arg


def _view(view: View, buffers: dict[str, torch.Tensor], env: Env) -> torch.Tensor:
    base = buffers[view.buffer]
    if view.stride is None or view.offset is None:
        return base
    return base.as_strided(
        _shape(view.shape, env), _shape(view.stride, env), base.storage_offset() + integer(view.offset, env)
    )


# ---- scalars --------------------------------------------------------------------------------------------------------


class Scalars:
    """Values of scalar nodes as grids."""

    def __init__(self, buffers: Mapping[str, torch.Tensor], env: Env) -> None:
        self.buffers, self.env = buffers, env
        self.memo: dict[Node, torch.Tensor] = {}

    def value(self, node: Node) -> torch.Tensor:
        found = self.memo.get(node)
        if found is None:
            found = self.memo[node] = self._value(node)
            assert found.dtype == node.dtype, f"{node.op}: {found.dtype}, declared {node.dtype}"
        return found

    def _value(self, node: Node) -> torch.Tensor:
        if node.op == "const":
            return torch.tensor(node.arg, dtype=node.dtype)
        if node.op == "index":
            return torch.as_tensor(integer(node.arg, self.env), dtype=torch.int64)
        if node.op == "load":
            return self.load(node)
        if node.op in ("philox", "philox_normal"):
            return self._random(node)
        src = [self.value(operand) for operand in node.src]
        if node.op in ("cast", "bitcast"):
            return src[0].to(node.dtype) if node.op == "cast" else src[0].view(node.dtype)
        if node.op not in _UNTYPED:
            assert node.dtype not in (torch.bfloat16, torch.float16), f"{node.op} on {node.dtype}"
        return _FUNCTIONS[node.op](*src)

    def load(self, node: Node) -> torch.Tensor:
        element: Element = node.arg
        operands = [self.value(operand) for operand in node.src]
        mask = operands.pop() if element.masked else None
        env = self.env | {f"${k}": operand for k, operand in enumerate(operands)}
        coords = _tensors(*[integer(coord, env) for coord in element.coords])
        buffer = self.buffers[element.buffer]
        if mask is None:
            for coord, size in zip(coords, buffer.shape):
                assert not coord.numel() or (int(coord.min()) >= 0 and int(coord.max()) < size), (
                    f"{element}: out of bounds"
                )
            if not buffer.numel():
                return buffer.new_empty(()).expand(torch.broadcast_shapes(*[coord.shape for coord in coords]))  # type: ignore[no-untyped-call]
            return buffer[tuple(coords)]
        inside = torch.broadcast_tensors(mask, *coords)[0]  # type: ignore[no-untyped-call]
        if not bool(inside.any()):
            return torch.zeros(inside.shape, dtype=buffer.dtype)
        for coord, size in zip(coords, buffer.shape):
            chosen = coord.expand(inside.shape)[inside]
            assert int(chosen.min()) >= 0 and int(chosen.max()) < size, f"{element}: out of bounds under its mask"
        safe = tuple(torch.where(inside, coord, 0) for coord in coords)
        return torch.where(inside, buffer[safe], torch.zeros((), dtype=buffer.dtype))

    def _random(self, node: Node) -> torch.Tensor:
        counter, element = node.arg
        places = torch.as_tensor(integer(element, self.env), dtype=torch.int64)
        draw = rng.uniform if node.op == "philox" else rng.normal
        count = int(places.max()) + 1 if places.numel() else 0
        return torch.from_numpy(draw(int(self.value(node.src[0])), counter, count))[places]


_UNTYPED = frozenset({"where"})


_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "where": torch.where,
    "div": torch.div,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": torch.remainder,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "recip": torch.reciprocal,
    "fma": lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype),
    "erfinv": torch.special.erfinv,
}
_FUNCTIONS |= {name: getattr(torch, name) for name in (*BINARY_OPS, *UNARY_OPS) if name not in _FUNCTIONS}
