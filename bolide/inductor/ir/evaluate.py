"""The oracle of the tensor level: runs a `Program` with torch operations over whole index grids. Slow,
memory-hungry, and simple enough to be believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bolide.inductor.ir.definitions import Computed, Element, Extern, Program, Scatter, View
from bolide.inductor.ir.loops import Node
from bolide.inductor.ir.scalar_ops import NARROW_FLOATS, SCALAR_OPS, reduced
from bolide.inductor.ir.walks import map_leaves, programs_in
from bolide.symbolic import Expr
from bolide.tracing import rng

Index = int | torch.Tensor  # one number, or an int64 grid
Env = dict[str, Index]  # of axes, sizes and operands by name
Memory = dict[str, torch.Tensor]


def evaluate(program: Program, inputs: Sequence[torch.Tensor], sizes: Mapping[str, int] | None = None) -> list[object]:
    """The results of `program` on `inputs` (one tensor per `program.inputs`), which write-backs change in place.

    `sizes`: the value of every size variable that occurs in shapes."""
    env: Env = dict(sizes or {})
    buffers = {given.name: tensor for given, tensor in zip(program.inputs, inputs, strict=True)}
    for definition in program.definitions:
        if isinstance(definition, Computed):
            buffers[definition.name] = _computed(definition, buffers, env)
        elif isinstance(definition, Scatter):
            buffers[definition.name] = _scattered(definition, buffers, env)
        elif isinstance(definition, Extern):
            _call(definition, buffers, env)
        else:
            buffers[definition.target].copy_(_view(definition.source, buffers, env))
    return [_argument(result, buffers, env) for result in program.results]


def index_value(expr: Expr, env: Mapping[str, Index]) -> Index:
    """The value of an index expression: a grid if `env` holds grids."""
    if expr.is_const:
        return expr.value
    text = expr.text().replace("$", "_operand")
    names = {name.replace("$", "_operand"): value for name, value in env.items()}
    value: Index = eval(text, {"min": _minimum, "max": lambda a, b: -_minimum(-a, -b), "__builtins__": {}}, names)
    return value


def _minimum(a: Index, b: Index) -> Index:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else torch.minimum(grid(a), grid(b))


def grid(value: Index) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.int64)


def _shape(shape: Sequence[Expr], env: Env) -> list[int]:
    return [int(index_value(size, env)) for size in shape]


# ---- definitions ----------------------------------------------------------------------------------------------------


def _grids(names: Sequence[str], extents: Sequence[int], rank: int, start: int) -> Env:
    """Index grids that broadcast against each other over `rank` dimensions; the first axis is dimension `start`."""
    return {
        name: torch.arange(extent).reshape([-1 if d == start + k else 1 for d in range(rank)])
        for k, (name, extent) in enumerate(zip(names, extents))
    }


def _computed(definition: Computed, buffers: Memory, env: Env) -> torch.Tensor:
    shape = _shape(definition.shape, env)
    if definition.scan is None and definition.run is not None:
        return _computed_in_parts(definition, definition.run, buffers, env)
    along = _shape([extent for _, extent in definition.reduce_axes], env)
    rank = len(shape) + len(along)
    scope = env | _grids(definition.axes, shape, rank, 0)
    scope |= _grids([name for name, _ in definition.reduce_axes], along, rank, len(shape))
    scalars = NodeValues(buffers, scope)
    value = scalars.value(definition.value).expand(shape + along)
    if definition.scan is not None:
        dim = definition.axes.index(definition.scan)
        runs = torch.split(value, definition.run or max(value.shape[dim], 1), dim)
        value = torch.cat([scanned(definition.reduce_op, run, dim) for run in runs], dim)
    elif definition.reduce_op is not None:
        value = reduced(definition.reduce_op, value.flatten(len(shape)) if along else value.unsqueeze(-1))
    if definition.position is not None:
        position = scalars.value(definition.position).expand(shape + along).flatten(len(shape))
        value = position.gather(-1, value.unsqueeze(-1)).squeeze(-1)
    result = torch.empty(shape, dtype=definition.dtype)
    if definition.layout is not None:
        result = torch.empty_strided(shape, _shape(definition.layout.stride, env), dtype=definition.dtype)
    return result.copy_(value)


def _computed_in_parts(definition: Computed, run: int, buffers: Memory, env: Env) -> torch.Tensor:
    """The reductions of the runs of an axis, one below the other."""
    ((name, extent),), op = definition.reduce_axes, str(definition.reduce_op)
    (_, *axes), (count, *shape) = definition.axes, _shape(definition.shape, env)
    along, rank = _shape([extent], env), len(axes) + 1
    scope = env | _grids(axes, shape, rank, 0) | _grids([name], along, rank, len(shape))
    value = NodeValues(buffers, scope).value(definition.value).expand(shape + along)
    result = torch.empty([count, *shape], dtype=definition.dtype)
    for place, part in zip(range(count), torch.split(value, run, len(shape))):
        result[place] = reduced(op, part)
    return result


def scanned(op: str | None, value: torch.Tensor, dim: int) -> torch.Tensor:
    """The reductions of the elements up to each one along `dim`, or all in order."""
    if op == "sort":
        return value.sort(dim).values
    return value.cumprod(dim, dtype=value.dtype) if op == "prod" else value.cumsum(dim, dtype=value.dtype)


def _scattered(definition: Scatter, buffers: Memory, env: Env) -> torch.Tensor:
    result = buffers[definition.base].clone(memory_format=torch.contiguous_format)
    extents = _shape(definition.extents, env)
    scope = env | _grids(definition.axes, extents, len(extents), 0)
    scalars = NodeValues(buffers, scope)
    value = scalars.value(definition.value).expand(extents).reshape(-1)
    scope, _ = scalars.operands(definition.operands, masked=False)
    linear = torch.zeros(extents, dtype=torch.int64)
    for coord, size in zip(definition.coords, _shape(definition.shape, env)):
        linear = linear * size + index_value(coord, scope)
    flat, linear = result.view(-1), linear.reshape(-1)
    if definition.mode != "set":
        joined_into(flat, linear, value, definition.mode)
    else:
        for place, element in zip(linear.tolist(), value):
            flat[place] = element
    return buffers[definition.base].copy_(result) if definition.name == definition.base else result


def joined_into(flat: torch.Tensor, places: torch.Tensor, value: torch.Tensor, mode: str) -> None:
    """Changes the elements at these places to what `mode` gives of them and of the values."""
    mode = mode.removeprefix("atomic_")
    if mode == "add":
        flat.index_put_((places,), value, accumulate=True)
    else:
        flat.scatter_reduce_(0, places, value, {"mul": "prod", "min": "amin", "max": "amax"}[mode])


def _with_programs(args: Sequence[Any], programs: Sequence[Program], buffers: Memory) -> list[Any]:
    """What an operation that runs programs gives: a region has one, a branch a flag, a loop none."""
    *flag, operands, sizes, _ = args

    def run(program: Program, operands: Sequence[torch.Tensor]) -> list[object]:
        constants = [buffers[given.name] for given in program.inputs[len(operands) :]]
        return evaluate(program, [*operands, *constants], dict(zip(program.size_vars, sizes)))

    first, second = programs[0], programs[-1]
    if first is second:  # a region
        return run(first, operands)
    if flag:
        return run(first if flag[0] else second, operands)
    values = [operand.clone() for operand in operands[: len(second.results)]]
    rest = operands[len(values) :]
    while all(run(first, [*values, *rest])):
        values = list(run(second, [*values, *rest]))
    return values


def _call(definition: Extern, buffers: Memory, env: Env) -> None:
    args = [_argument(arg, buffers, env) for arg in definition.args]
    programs = programs_in(args)
    kwargs = {key: _argument(arg, buffers, env) for key, arg in definition.kwargs.items()}
    results = _with_programs(args, programs, buffers) if programs else definition.op(*args, **kwargs)
    if not isinstance(results, (tuple, list)):
        results = (results,)
    for name, result, layout in zip(definition.names, results, definition.layouts):
        if name is not None:
            declared = _shape(layout.stride, env)
            agree = all(size == 1 or a == b for size, a, b in zip(result.shape, result.stride(), declared))
            if result.numel() and not agree:
                raise AssertionError(f"{definition.op} gives strides {result.stride()}, declared {declared}")
            buffers[name] = result


def _argument(arg: object, buffers: Memory, env: Env) -> object:
    numbers = map_leaves(arg, Expr, lambda expr: index_value(expr, env))
    return map_leaves(numbers, View, lambda view: _view(view, buffers, env))


def _view(view: View, buffers: Memory, env: Env) -> torch.Tensor:
    base = buffers[view.buffer]
    if view.stride is None or view.offset is None:
        return base
    offset = base.storage_offset() + int(index_value(view.offset, env))
    return base.as_strided(_shape(view.shape, env), _shape(view.stride, env), offset)


# ---- scalars --------------------------------------------------------------------------------------------------------


class NodeValues:
    """Values of scalar nodes as grids."""

    def __init__(self, buffers: Mapping[str, torch.Tensor], env: Env) -> None:
        self.buffers, self.env = buffers, env
        self.memo: dict[Node, torch.Tensor] = {}

    def value(self, node: Node) -> torch.Tensor:
        value = self.memo.get(node)
        if value is None:
            value = self.memo[node] = self.compute(node)
            assert value.dtype == node.dtype, f"{node.op}: {value.dtype}, declared {node.dtype}"
        return value

    def compute(self, node: Node) -> torch.Tensor:
        if node.op == "const":
            return torch.tensor(node.arg, dtype=node.dtype)
        if node.op == "index":
            return grid(index_value(node.arg, self.env))
        if node.op == "load":
            return self.load(node.arg, *self.operands(node.src, node.arg.masked))
        src = [self.value(operand) for operand in node.src]
        if node.op in ("philox", "philox_normal"):
            return self._random(node, int(src[0]))
        if node.op == "cast":
            return src[0].to(node.dtype)
        known = SCALAR_OPS[node.op]
        assert known.evaluate is not None, f"{node.op} stands for nothing here"
        assert known.result == "own" or node.dtype not in NARROW_FLOATS, f"{node.op} on {node.dtype}"
        return known.evaluate(*src)

    def operands(self, nodes: Sequence[Node], masked: bool) -> tuple[Env, torch.Tensor]:
        """The environment of an access with these operands, and where it takes place."""
        values = [self.value(node) for node in nodes]
        mask = values.pop() if masked else torch.tensor(True)
        return self.env | {f"${k}": value.long() for k, value in enumerate(values)}, mask

    def load(self, element: Element, env: Env, mask: torch.Tensor) -> torch.Tensor:
        """The elements at all points of the grid; 0 where `mask` is off."""
        buffer = self.buffers[element.buffer]
        mask, *coords = torch.broadcast_tensors(mask, *[grid(index_value(coord, env)) for coord in element.coords])  # type: ignore[no-untyped-call]
        if not bool(mask.any()):
            return torch.zeros(mask.shape, dtype=buffer.dtype)
        for coord, size in zip(coords, buffer.shape):
            used = coord[mask]
            assert int(used.min()) >= 0 and int(used.max()) < size, f"{element}: out of bounds"
        elements = buffer[tuple([torch.where(mask, coord, 0) for coord in coords])]
        return torch.where(mask, elements, torch.zeros((), dtype=buffer.dtype))

    def _random(self, node: Node, seed: int) -> torch.Tensor:
        counter, element = node.arg
        places = grid(index_value(element, self.env))
        draw = rng.uniform if node.op == "philox" else rng.normal
        count = int(places.max()) + 1 if places.numel() else 0
        return torch.from_numpy(draw(seed, counter, count))[places]
