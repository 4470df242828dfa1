"""What eager refuses is refused while tracing, with the same type of exception; what cannot be traced says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bolide
from bolide.support.errors import Unsupported
from bolide.tracing import DataDependent, Trace, UserFrame

REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "shapes do not broadcast": lambda x: x + torch.ones(5),
    "matrix product": lambda x: x @ torch.ones(5, 2),
    "matrix product of mixed types": lambda x: x @ torch.ones(4, 2, dtype=torch.float64),
    "vectors of unequal length": lambda x: x[0] @ torch.ones(3),
    "bad view": lambda x: x.view(5, -1),
    "view across strides": lambda x: x.t().view(-1),
    "bad dimension": lambda x: x.sum(3),
    "bad index": lambda x: x[7],
    "bad expand": lambda x: x.expand(2, 3, 5),
    "concatenation": lambda x: torch.cat([x, torch.ones(2, 2)]),
    "stack": lambda x: torch.stack([x, torch.ones(2, 2)]),
    "mean of integers": lambda x: x.long().mean(),
    "gelu of integers": lambda x: F.gelu(x.long()),
    "minus a mask": lambda x: -(x > 0),
    "difference of masks": lambda x: (x > 0) - (x < 1),
    "in place, type": lambda x: x.long().add_(0.5),
    "in place, shape": lambda x: x[0].add_(torch.ones(3, 4)),
    "layer norm": lambda x: F.layer_norm(x, (5,)),
    "linear": lambda x: F.linear(x, torch.ones(2, 5)),
    "convolution channels": lambda x: F.conv2d(x[None, None], torch.ones(2, 3, 1, 1)),
    "embedding with floats": lambda x: F.embedding(x, torch.ones(9, 2)),
    "labels of another batch": lambda x: F.cross_entropy(x, torch.zeros(5, dtype=torch.int64)),
    "gather": lambda x: x.gather(0, torch.zeros(1, dtype=torch.int64)),
    "pooling": lambda x: F.max_pool2d(x[None, None], 9),
    "split sizes": lambda x: x.split([1, 5], 1),
    "split dimension": lambda x: x.split(2, 5),
    "split of no dimension": lambda x: x[0, 0].split(1),
    "sizes of no dimension": lambda x: x[0, 0].split([1]),
    "unbind dimension": lambda x: x.unbind(3),
    "unbind of no dimension": lambda x: x[0, 0].unbind(),
    "parameter of a loss": lambda x: F.huber_loss(x, x, delta=-1.0),
    "divisor of a pool": lambda x: F.avg_pool2d(x[None, None], 1, divisor_override=0),
    "form of gelu": lambda x: F.gelu(x, approximate="most"),
    "dimension twice": lambda x: x.amax((0, 0)),
    "weights of other classes": lambda x: F.cross_entropy(x, torch.zeros(3, dtype=torch.int64), x[0, :2]),
    "type of out=": lambda x: torch.mm(x, x.t(), out=torch.empty(3, 3, dtype=torch.float64)),
    "type of out= of a gather": lambda x: torch.gather(
        x, 0, (x > 9).long(), out=torch.empty(3, 4, dtype=torch.float64)
    ),
    "overlapping copy": lambda x: x[1:].copy_(x[:-1]),
    "overlapping sum": lambda x: x[1:].add_(x[:-1]),
    "overlapping flat": lambda x: x.view(-1)[1:].sub_(x.view(-1)[:-1]),
    "overlapping out=": lambda x: torch.sin(x[1:], out=x[:-1]),
    "expanded target": lambda x: x[0].expand(3, 4).add_(1),
    "expanded copy": lambda x: x[:1].expand(3, 4).copy_(x),
    "expanded draw": lambda x: x[:1].expand(3, 4).normal_(),
    "topk": lambda x: x.topk(9),
    "mask of another shape": lambda x: x.index_put((torch.ones(2, dtype=torch.bool),), x[0]),
    "mask of another shape, later": lambda x: x.index_put((None, torch.ones(3, dtype=torch.bool)), x[0, 0]),
    "mask with too many dimensions": lambda x: x.index_put((torch.ones(3, 4, 1, dtype=torch.bool),), x[0, 0]),
    "too many indices": lambda x: x.index_put((torch.tensor(0),) * 3, x[0, 0]),
    "writing another type at places": lambda x: x.index_put((torch.tensor([0, 1]),), x[:2].double()),
    "writing another type at a mask": lambda x: x.index_put((torch.ones(3, dtype=torch.bool),), x.double()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_in_eager(name: str) -> None:
    x = torch.randn(3, 4)
    with pytest.raises(Exception) as eager:
        REFUSED[name](x.clone())
    trace = Trace()
    traced = trace.input(x, "x")
    with trace.recording(), pytest.raises(eager.type):
        REFUSED[name](traced)


DATA_DEPENDENT: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.long().sum().item(),
    "truth value": lambda x: bool(x.sum() > 0),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x + 1),
    "int": lambda x: list(range(int(x.sum()))),
}


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_data_dependent(name: str) -> None:
    trace = Trace()
    trace.where = UserFrame("model.py", 7, "forward")
    with trace.recording(), pytest.raises(DataDependent) as error:
        DATA_DEPENDENT[name](trace.input(torch.randn(3, 4), "x"))
    text = str(error.value)
    kinds = {"nonzero": "data_shape", "mask": "data_shape", "unique": "data_shape", "truth value": "data_branch"}
    assert error.value.kind == kinds.get(name, "data_value")
    assert 'File "model.py", line 7, in forward' in text and "remedy" in text


UNSUPPORTED: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape changed in place": lambda x: x.t_(),
    "out of another shape": lambda x: torch.add(x, 1, out=torch.empty(2)),
    "own generator": lambda x: torch.rand(3, generator=torch.Generator()) + x,
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_says_why(name: str) -> None:
    trace = Trace()
    with trace.recording(), pytest.raises(Unsupported) as error:
        UNSUPPORTED[name](trace.input(torch.randn(3, 3), "x"))
    assert error.value.reason


def test_writing_a_tensor_of_the_outside_world() -> None:
    trace, outside = Trace(), torch.zeros(3)
    with trace.recording(), pytest.raises(Unsupported, match="neither an argument nor made here"):
        outside.add_(trace.input(torch.ones(3), "x"))
    assert outside.eq(0).all()


def test_known_constants_answer() -> None:
    trace = Trace()
    with trace.recording():
        assert torch.tensor(3).item() == 3


KERNELS: dict[str, tuple[Callable[..., Any], torch.dtype]] = {
    "argmax of masks": (torch.argmax, torch.bool),
    "gelu of integers": (F.gelu, torch.int64),
    "bits of floats": (lambda x: x & x, torch.float32),
    "softmax of integers": (lambda x: x.softmax(0), torch.int32),
    "relu of masks": (torch.relu, torch.bool),
    "elu of integers": (F.elu, torch.int8),
    "division": (lambda x: torch.addcdiv(x, x, x), torch.int64),
    "norm of integers": (torch.linalg.vector_norm, torch.int64),
    "layer norm of integers": (lambda x: F.layer_norm(x, (4,)), torch.int64),
    "group norm of integers": (lambda x: F.group_norm(x, 2), torch.int64),
    "batch norm of integers": (lambda x: F.batch_norm(x, None, None, training=True), torch.int64),
    "halves of integers": (F.glu, torch.int64),
    "no rule": (F.hardshrink, torch.int64),
    "no tag": (lambda x: F.prelu(x, x[0]), torch.int64),
    "trace of masks": (torch.trace, torch.bool),
    "no elements": (lambda x: x[:0].abs(), torch.bool),
    "uniform integers": (torch.rand_like, torch.int64),
    "an empty range": (lambda x: x.uniform_(2, 1), torch.float32),
    "negative deviation": (lambda x: x.normal_(0, -1), torch.float32),
    "integers of no range": (lambda x: torch.randint_like(x, 5, 3), torch.int64),
    "integers out of range": (lambda x: torch.randint_like(x, 0, 300), torch.uint8),
    "no probability": (lambda x: x.bernoulli_(1.5), torch.float32),
    "integers as probabilities": (torch.bernoulli, torch.int64),
    "no bounds": (lambda x: x.clamp(), torch.float32),
    "full of what does not fit": (lambda x: torch.full_like(x, 300), torch.uint8),
}


@pytest.mark.parametrize("name", KERNELS)
def test_types_without_a_kernel_are_refused_as_in_eager(name: str) -> None:
    function, dtype = KERNELS[name]
    x = torch.ones(4, 4, dtype=dtype)
    with pytest.raises((RuntimeError, NotImplementedError)) as eager:
        function(x)
    trace = Trace()
    traced = trace.input(x, "x")
    with trace.recording(), pytest.raises(eager.type) as ours:
        function(traced)
    assert str(ours.value) == str(eager.value)


def test_a_kernel_that_dislikes_values_takes_the_types() -> None:
    trace = Trace()
    with trace.recording():
        x = trace.input(torch.tensor([3, 5]), "x")
        assert (x % x).dtype is (x // x).dtype is torch.int64
        table, places = trace.input(torch.ones(7, 2), "table"), trace.input(torch.tensor([6]), "places")
        assert F.embedding(places, table).shape == (1, 2)
        assert F.nll_loss(table, trace.input(torch.ones(7, dtype=torch.long), "target")).shape == ()


def test_asking_a_kernel_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    trace = Trace()
    with trace.recording():
        trace.input(torch.randn(3, 5), "x").var(1)
    assert not recwarn.list


def test_refusals_are_runtime_errors_that_programs_do_not_catch() -> None:
    """As PyTorch's compiler's are: who calls a compiled function may catch them, a handler in the program sees none."""

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            print(x.sum().item())
            return x + 1
        except RuntimeError:
            return x - 100

    x = torch.randn(3)
    torch.testing.assert_close(bolide.compile(program)(x), x + 1)
    with pytest.raises(RuntimeError, match="print"):
        bolide.compile(program, fullgraph=True)(x)
