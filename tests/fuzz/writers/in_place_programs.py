"""Random programs that write to their arguments, as text: in place, through views, by index, under masks, between reads
of the old and of the new elements. Each fits arguments of two sets of sizes; some may have gradients."""

from __future__ import annotations

import random

import torch

Env = dict[str, object]

_UNARY = ["torch.sin({a})", "{a} * 0.5 + 1", "torch.relu({a})", "-{a}", "{a}.clamp(-1, 1)", "{a}.abs().sqrt()"]
_BINARY = ["{a} + {b}", "{a} * {b}", "torch.maximum({a}, {b})", "{a} - 2 * {b}", "torch.where({b} > 0, {a}, {b})"]
_REDUCED = [
    "{a}.sum({d}, keepdim=True)",
    "{a}.softmax({d})",
    "{a}.amax({d}, keepdim=True)",
    "{a} - {a}.mean({d}, True)",
]
_WRITES = [
    "{a}.add_({b})",
    "{a}.mul_({b})",
    "{a}.sub_({b}, alpha=0.25)",
    "{a}.copy_({b})",
    "{a}.lerp_({b}, 0.1)",
    "{a}.addcmul_({b}, {b}, value=0.5)",
    "{a}.clamp_(-1, 2)",
    "{a}.fill_(0.75)",
    "{a}.zero_()",
    "{a}.masked_fill_({b} > 0.3, 1.5)",
    "{a}[{b} < 0] = -0.5",
    "{a}.copy_(({b}).flip(-1))",
    "torch._foreach_mul_([{a}], 0.9)",
]
_ALONG = [
    "{a}.index_copy_({d}, {i}, {s})",
    "{a}.index_add_({d}, {i}, {s})",
    "{a}.index_fill_({d}, {i}, 0.25)",
    "{a}.scatter_({d}, {i}.view({iv}).expand({s}.shape), {s})",
    "{a}.scatter_add_({d}, {i}.view({iv}).expand({s}.shape), {s})",
    "{a}.movedim({d}, 0)[{i}] = {s}.movedim({d}, 0)",
]


class Writer:
    """Writes one program and runs it while it does, with arguments of both sets of sizes (`envs`), so that it knows the
    shapes. `lines` are its body. With `gradients` the last argument asks for one."""

    def __init__(self, number: int, gradients: bool) -> None:
        self.random = random.Random(number)
        self.lines: list[str] = []
        self.inputs: list[str] = []
        self.names: list[str] = []
        shape = [self.random.choice([1, 2, 3, 5, 8]) for _ in range(self.random.randint(1, 3))]
        other = [size + self.random.randint(0, 4) if size > 1 else 1 for size in shape]
        generator = torch.Generator().manual_seed(number)
        self.envs: list[Env] = [{"torch": torch}, {"torch": torch}]
        for place in range(self.random.randint(2, 4)):
            name, kind = f"x{place}", self.random.randrange(4)
            for env, sizes in zip(self.envs, (shape, other)):
                env[name] = _input(kind, sizes, generator)
            self.inputs.append(name)
            self.names.append(name)
        if gradients:
            for env in self.envs:
                given = env[self.inputs[-1]]
                assert isinstance(given, torch.Tensor)
                given.requires_grad_()

    def tensor(self, name: str, which: int = 0) -> torch.Tensor:
        value = eval(name, self.envs[which])
        assert isinstance(value, torch.Tensor)
        return value

    def run(self, line: str) -> bool:
        """Add a line, unless eager refuses it. Values here may be others than the program's then: shapes matter."""
        try:
            for env in self.envs:
                exec(line, env)
        except (RuntimeError, IndexError):
            return False
        self.lines.append(line)
        return True

    def define(self, text: str) -> str:
        name = f"v{len(self.lines)}"
        assert self.run(f"{name} = {text}"), text
        self.names.append(name)
        return name

    def like(self, target: str) -> str:
        """Something that broadcasts to `target`."""

        def broadcasts(name: str) -> bool:
            return all(_broadcasts(self.tensor(name, i).shape, self.tensor(target, i).shape) for i in (0, 1))

        fits = [name for name in self.names if broadcasts(name)]
        return self.random.choice(fits) if fits else "0.5 * torch.ones((), dtype=torch.float64)"

    def step(self) -> None:
        choose = self.random
        written = choose.random() < 0.5
        name = choose.choice(self.inputs if written or choose.random() < 0.5 else self.names)
        if written or choose.random() < 0.2:
            for _ in range(choose.randrange(3)):
                view = self._view(name)
                name = self.define(view) if choose.random() < 0.3 else f"{name}{view[len(name) :]}"
        value = self.tensor(name)
        rank = value.dim()
        dim = choose.randrange(rank) if rank else 0
        if written and rank and choose.random() < 0.4:
            self._write_along(name, dim)
        elif written:
            other = self.like(name)
            if other in self.envs[0] and _share(self.tensor(other), value):
                other = f"{other}.clone()"  # eager does not say in which order it reads and writes
            self.run(choose.choice(_WRITES).format(a=name, b=other))
        elif choose.random() < 0.3 and rank:
            self.define(choose.choice(_REDUCED).format(a=name, d=dim))
        elif choose.random() < 0.4:
            self.define(choose.choice(_UNARY).format(a=name))
        else:
            self.define(choose.choice(_BINARY).format(a=name, b=self.like(name)))

    def _write_along(self, name: str, dim: int) -> None:
        text = self.random.choice(_ALONG)
        rank, size = self.tensor(name).dim(), self._size(name, dim)
        adds = "add" in text
        count = self.random.randint(1, size)
        places = [self.random.randrange(size) for _ in range(count)] if adds else self.random.sample(range(size), count)
        index = self.define(f"torch.tensor({places})")
        self.names.remove(index)
        rows = f"{name}.index_select({dim}, {index})"
        source = self.define(f"({self.like(rows)}).expand({rows}.shape) * 1.25")
        along = [1] * rank
        along[dim] = count
        self.run(text.format(a=name, d=dim, i=index, s=source, iv=along))

    def _size(self, name: str, dim: int) -> int:
        """The smaller of the two sizes of a dimension."""
        return min(self.tensor(name, which).shape[dim] for which in (0, 1))

    def _view(self, name: str) -> str:
        rank = self.tensor(name).dim()
        if not rank:
            return f"{name}.unsqueeze(0)"
        dim = self.random.randrange(rank)
        size = self._size(name, dim)
        start = self.random.randrange(size)
        options = [
            f"{name}.select({dim}, {self.random.randrange(size)})",
            f"{name}.narrow({dim}, {start}, {self.random.randint(1, size - start)})",
            f"{name}.transpose({dim}, -1)",
            f"{name}.unsqueeze({dim})",
            f"{name}[{'::2' if size > 1 else ':'}]",
        ]
        options += [f"{name}[{start}:]", f"{name}[: -{start}]" if start else f"{name}[...]"] if dim == 0 else []
        options += [f"{name}.view(-1)"] if all(self.tensor(name, i).is_contiguous() for i in (0, 1)) else []
        options += [f"{name}.diagonal()"] if rank > 1 else []
        return self.random.choice(options)


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    return len(shape) <= len(to) and all(m in (1, n) for m, n in zip(reversed(shape), reversed(to)))


def program(number: int, length: int = 8, gradients: bool = False) -> tuple[str, list[list[torch.Tensor]]]:
    """The text of a function `f`, and two lists of arguments."""
    writer = Writer(number, gradients)
    before = [[_as_it_lies(writer.tensor(name, which)) for name in writer.inputs] for which in (0, 1)]
    for _ in range(length):
        writer.step()
    given = [name for name in writer.names if name not in writer.inputs]
    results = [writer.random.choice(given) for _ in range(2)] if given else []
    if writer.random.random() < 0.3:
        results.append(writer.random.choice(writer.inputs))
    body = "".join(f"    {line}\n" for line in writer.lines)
    return f"def f({', '.join(writer.inputs)}):\n{body}    return [{', '.join(results)}]\n", before


def _input(kind: int, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    """Dense, transposed, or with gaps."""
    if kind == 0 and len(shape) > 1:
        return torch.randn(shape[::-1], generator=generator, dtype=torch.float64).permute(*range(len(shape))[::-1])
    if kind == 1:
        return torch.randn([*shape[:-1], 2 * shape[-1]], generator=generator, dtype=torch.float64)[..., ::2]
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps included."""
    storage = tensor.untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    return copy.requires_grad_(tensor.requires_grad)


def copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Arguments for another run."""
    return [_as_it_lies(tensor) for tensor in tensors]
