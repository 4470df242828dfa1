"""Random programs of views and writes: the functional graph gives eager's values, gradients, strides and mutations, and
so does the default backend, with sizes that change."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx

import bolide
from bolide.tracing import Trace

Step = Callable[[list[Any]], Any]


def _view_steps(rng: random.Random, pick: int, shape: tuple[int, ...]) -> Step:
    dims = list(range(len(shape)))
    rng.shuffle(dims)
    dim = rng.randrange(len(shape)) if shape else 0
    size = shape[dim] if shape else 1
    low = rng.randrange(size) if size else 0
    kind = rng.randrange(11)
    if not shape:
        return lambda pool: pool[pick].view(1)
    if kind == 0:
        return lambda pool: pool[pick].permute(dims)
    if kind == 1:
        return lambda pool: pool[pick].select(dim, low)
    if kind == 2:
        return lambda pool: pool[pick].narrow(dim, low, size - low)
    if kind == 3:
        return lambda pool: pool[pick][(slice(None),) * dim + (slice(low, None, 2),)]
    if kind == 4:
        return lambda pool: pool[pick].unsqueeze(dim)
    if kind == 5:
        return lambda pool: pool[pick].reshape(-1)
    if kind == 6:
        return lambda pool: pool[pick].split(2, dim)[-1]
    if kind == 7:
        return lambda pool: pool[pick].unbind(dim)[0]
    if kind == 8:
        return lambda pool: pool[pick].transpose(0, -1)
    if kind == 9:
        return lambda pool: pool[pick].detach()
    return lambda pool: torch.diagonal(pool[pick]) if len(shape) > 1 else pool[pick].view_as(pool[pick])


def _write_steps(rng: random.Random, pick: int, other: int) -> Step:
    kind = rng.randrange(12)
    number = rng.choice([2, 0.5, -1.5])
    if kind == 0:
        return lambda pool: pool[pick].add_(number)
    if kind == 1:
        return lambda pool: pool[pick].mul_(pool[other].sum())
    if kind == 2:
        return lambda pool: pool[pick].copy_(pool[other])
    if kind == 3:
        return lambda pool: pool[pick].fill_(number)
    if kind == 4:
        return lambda pool: pool[pick].zero_()
    if kind == 5:
        return lambda pool: pool[pick].sub_(pool[other], alpha=2)
    if kind == 6:
        return lambda pool: pool[pick].clamp_(min=-0.5)
    if kind == 7:
        return lambda pool: pool[pick].masked_fill_(pool[pick] > 0, number)
    if kind == 8:
        return lambda pool: pool[pick].sigmoid_()
    if kind == 9:
        return lambda pool: pool[pick].index_fill_(0, torch.tensor([0]), number)
    if kind == 10:
        return lambda pool: torch.add(pool[pick], 1, out=pool[pick])
    return lambda pool: pool[pick].addcmul_(pool[other], pool[other])


def _value_steps(rng: random.Random, pick: int, other: int) -> Step:
    kind = rng.randrange(8)
    if kind == 0:
        return lambda pool: pool[pick] * pool[other]
    if kind == 1:
        return lambda pool: pool[pick].clone()
    if kind == 2:
        return lambda pool: torch.cat([pool[pick], pool[other]])
    if kind == 3:
        return lambda pool: pool[pick].sin() + 1
    if kind == 4:
        return lambda pool: pool[pick].contiguous()
    if kind == 5:
        return lambda pool: pool[pick].to(torch.float64).sum(-1, keepdim=True).to(torch.float32)
    if kind == 6:
        return lambda pool: torch.zeros_like(pool[pick]) + pool[other]
    return lambda pool: torch.where(pool[pick] > 0, pool[pick], 0.0)


def _inputs(rng: random.Random, grad: bool) -> list[torch.Tensor]:
    shapes = [(4, 3), (2, 4, 3), (3,), (2, 3, 4, 2)]
    tensors = [torch.randn(rng.choice(shapes)) for _ in range(3)]
    if rng.random() < 0.4:
        tensors[0] = torch.randn(2, 3, 4, 2).to(memory_format=torch.channels_last)
    if rng.random() < 0.3:
        tensors[1] = torch.randn(3, 4).t()
    return [(tensor * 1).requires_grad_(grad) for tensor in tensors]


def _begin(tensors: list[torch.Tensor], grad: bool) -> list[Any]:
    """What the program works on: with gradients, copies, since a leaf must not be written."""
    return [tensor.clone() for tensor in tensors] if grad else list(tensors)


def _make_program(rng: random.Random, tensors: list[torch.Tensor], grad: bool) -> list[Step]:
    """Random steps, each of which eager accepts."""
    pool, program = _begin([tensor.detach().clone().requires_grad_(grad) for tensor in tensors], grad), []
    while len(program) < 14:
        pick, other = rng.randrange(len(pool)), rng.randrange(len(pool))
        kind = rng.random()
        if kind < 0.4:
            step = _view_steps(rng, pick, tuple(pool[pick].shape))
        elif kind < 0.7:
            same_storage = pool[pick].untyped_storage().data_ptr() == pool[other].untyped_storage().data_ptr()
            if same_storage and pick != other:
                continue  # reading what is being written: in eager the order of the elements decides
            step = _write_steps(rng, pick, other)
        else:
            step = _value_steps(rng, pick, other)
        try:
            before = [tensor.detach().clone() for tensor in pool]
        except RuntimeError:
            return program  # one of several views was written: eager does not let it be read any more
        try:
            result = step(pool)
            bounded = result.numel() and result.isfinite().all() and result.abs().max() < 1e4
        except (RuntimeError, IndexError, ValueError, TypeError):
            if any(not torch.equal(tensor, old) for tensor, old in zip(pool, before)):
                return program  # it failed half way
            continue
        if bounded:
            program.append(step)
            pool.append(result)
        else:
            return program
    return program


def _run(program: list[Step], tensors: list[Any], grad: bool) -> tuple[list[Any], Any]:
    pool = _begin(tensors, grad)
    for step in program:
        pool.append(step(pool))
    wanted = [tensor for tensor in pool if tensor.requires_grad]
    return pool, (sum((tensor * tensor).sum() for tensor in wanted) if wanted else None)


def _runs(program: list[Step], tensors: list[torch.Tensor], grad: bool) -> bool:
    """Whether eager lets all results be read: not one of several views after another one was written."""
    try:
        _run(program, [tensor.detach().clone().requires_grad_(grad) for tensor in tensors], grad)
    except RuntimeError:
        return False
    return True


def _layout(tensor: Any) -> Any:
    """Shape, dtype and the strides that mean something."""
    return (tuple(tensor.shape), tensor.dtype, [s for s, size in zip(tensor.stride(), tensor.shape) if size != 1])


def _gradients(loss: Any, leaves: list[Any]) -> list[Any]:
    if loss is None:
        return []
    try:
        return list(torch.autograd.grad(loss, leaves, allow_unused=True))
    except RuntimeError as error:
        return [str(error).split(":")[0]]  # a saved value was written: eager refuses, and so must we


def _has_views_made_anew(loss: Any) -> bool:
    """Whether eager has made a view anew, by as_strided, since its memory was written where autograd does not see it
    (through `detach()`). Its gradient is laid out as the base then, ours as that of the view itself: known, and not
    asked."""
    met, waiting = set(), [] if loss is None else [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        waiting += [following for following, _ in node.next_functions]
    return any(node.name().startswith("AsStrided") for node in met)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("index", range(25))
def test_random_programs(index: int, grad: bool) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    tensors = _inputs(rng, grad)
    program = _make_program(rng, tensors, grad)
    while not _runs(program, tensors, grad):
        program.pop()

    trace = Trace()
    traced = [trace.input(tensor, f"x{i}") for i, tensor in enumerate(tensors)]
    with trace.recording():
        pool, loss = _run(program, traced, grad)
        gradients = _gradients(loss, traced)
    outputs = [*pool, *(g for g in gradients if isinstance(g, torch.Tensor))]
    layouts = [_layout(output) for output in outputs]
    trace.graph.output(([output.node for output in outputs], [tensor.group.base for tensor in trace.inputs]))
    trace.graph.lint()
    module = torch.fx.GraphModule(trace.constants, trace.graph)
    told, mutated = module(*[tensor.detach().clone() for tensor in tensors])

    real = [tensor.detach().clone().requires_grad_(grad) for tensor in tensors]
    real_pool, real_loss = _run(program, real, grad)
    anew = _has_views_made_anew(real_loss)
    real_gradients = _gradients(real_loss, real)
    assert [type(g) for g in gradients] == [
        type(g) if not isinstance(g, torch.Tensor) else type(traced[0]) for g in real_gradients
    ]
    expected = [*real_pool, *(g for g in real_gradients if isinstance(g, torch.Tensor))]
    for place, (layout, value, wanted) in enumerate(zip(layouts, told, expected)):
        torch.testing.assert_close(value, wanted.detach(), rtol=1e-4, atol=1e-4)
        known = 2 if anew and place >= len(pool) else 3
        assert layout[:known] == _layout(wanted)[:known]
    for value, wanted in zip(mutated, real):
        torch.testing.assert_close(value, wanted.detach(), rtol=1e-4, atol=1e-4)


def _has_gradients(program: list[Step], tensors: list[torch.Tensor], grad: bool) -> bool:
    """Whether eager runs a program, and its backward."""
    try:
        found = _outcome(lambda *given: _run(program, list(given), grad)[0], tensors, grad)
    except RuntimeError:
        return False
    return not any(isinstance(value, str) for value in found)


def _larger(tensor: torch.Tensor, by: int) -> torch.Tensor:
    """Another tensor, laid out in the same order, whose last sizes are larger."""
    sizes = [
        size + by if dim >= tensor.dim() - 1 and tensor.dim() > 1 else size for dim, size in enumerate(tensor.shape)
    ]
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    made = torch.randn([sizes[dim] for dim in order])
    return made.permute([order.index(dim) for dim in range(tensor.dim())])


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("index", range(6))
def test_random_programs_on_the_default_backend(index: int, grad: bool) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    tensors = _inputs(rng, grad)
    program = _make_program(rng, tensors, grad)
    while not _has_gradients(program, tensors, grad):
        program.pop()

    def whole(*given: torch.Tensor) -> list[Any]:
        return _run(program, list(given), grad)[0]

    compiled = bolide.compile(whole)
    compared = 0
    for by in (0, 0, 1, 3):
        sized = [tensor.detach().clone() if not by else _larger(tensor.detach(), by) for tensor in tensors]
        if not _has_gradients(program, sized, grad):
            continue  # a step does not fit these sizes
        mine, theirs = (_outcome(function, sized, grad) for function in (compiled, whole))
        for value, wanted in zip(mine, theirs, strict=True):
            assert type(value) is type(wanted)
            if isinstance(wanted, torch.Tensor):
                torch.testing.assert_close(value, wanted, rtol=1e-3, atol=1e-3)
        compared += 1
    assert compared


def _outcome(function: Any, tensors: list[torch.Tensor], grad: bool) -> list[Any]:
    """The results, the arguments afterwards and the gradients."""
    own = [tensor.detach().clone().requires_grad_(grad) for tensor in tensors]
    pool = function(*own)
    wanted = [tensor for tensor in pool if tensor.requires_grad]
    gradients = _gradients(sum((tensor * tensor).sum() for tensor in wanted) if wanted else None, own)
    return [*[tensor.detach() for tensor in (*pool, *own)], *gradients]
