"""Every lowering against eager: values, dtypes and strides, through the oracle of the tensor level."""

from __future__ import annotations

import pytest
import torch
from lowering_samples import FAMILIES, aten
from lowering_tools import assert_same, graph_of, has_kernel, is_extern, run_op

from bolide.inductor.ir.definitions import Computed, Extern, View
from bolide.inductor.ir.evaluate import evaluate
from bolide.inductor.lowering import lower
from bolide.inductor.lowering.values import exprs
from bolide.inductor.lowering.views import reshape_map
from bolide.symbolic import Expr

TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
}


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_family_agrees_with_eager(family, dtype):
    for op, args, kwargs in family(lambda *shape: torch.randn(*shape).to(dtype)):
        if not has_kernel(op, args, kwargs):
            continue
        program, results, expected = run_op(op, *args, **kwargs)
        assert_same(results, expected, **TOLERANCE[dtype])
        exempt = op is aten.binary_cross_entropy_with_logits.default and dtype is torch.bfloat16
        assert exempt or not is_extern(program), f"{op} runs as an ATen call"


BITWISE = {
    "add scalar": (aten.add.Tensor, lambda x, y: (x, 1.00123)),
    "add alpha": (aten.add.Tensor, lambda x, y: (x, y), {"alpha": 0.1234}),
    "sub alpha": (aten.sub.Tensor, lambda x, y: (x, y), {"alpha": 0.1234}),
    "rsub": (aten.rsub.Scalar, lambda x, y: (x, 1.2345)),
    "mul scalar": (aten.mul.Tensor, lambda x, y: (x, 1.2345)),
    "div scalar": (aten.div.Tensor, lambda x, y: (x, 1.2345)),
    "div": (aten.div.Tensor, lambda x, y: (x, y)),
    "square": (aten.pow.Tensor_Scalar, lambda x, y: (x, 2)),
    "cube": (aten.pow.Tensor_Scalar, lambda x, y: (x, 3)),
    "inverse square": (aten.pow.Tensor_Scalar, lambda x, y: (x, -2)),
    "addcmul": (aten.addcmul.default, lambda x, y: (x, y, x), {"value": 0.1234}),
    "addcdiv": (aten.addcdiv.default, lambda x, y: (x, y, x), {"value": 0.1234}),
    "lerp": (aten.lerp.Scalar, lambda x, y: (x, y, 0.3)),
    "lerp tensor": (aten.lerp.Tensor, lambda x, y: (x, y, x)),
    "floor division": (aten.div.Tensor_mode, lambda x, y: (x, y), {"rounding_mode": "floor"}),
    "truncating division": (aten.div.Tensor_mode, lambda x, y: (x, y), {"rounding_mode": "trunc"}),
    "remainder": (aten.remainder.Tensor, lambda x, y: (x, y)),
    "less than a number": (aten.lt.Scalar, lambda x, y: (x, 0.3337)),
    "sigmoid backward": (aten.sigmoid_backward.default, lambda x, y: (x, y)),
    "threshold backward": (aten.threshold_backward.default, lambda x, y: (x, y, 0)),
    "squared error": (aten.mse_loss.default, lambda x, y: (x, y, 0)),
    "squared error backward": (aten.mse_loss_backward.default, lambda x, y: (x[0], x, y, 1)),
    "huber": (aten.huber_loss.default, lambda x, y: (x, y, 0, 0.7)),
    "huber backward": (aten.huber_loss_backward.default, lambda x, y: (x, y, x, 0, 0.7)),
    "smooth l1": (aten.smooth_l1_loss.default, lambda x, y: (x, y, 0, 0.7)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", list(BITWISE))
def test_rounding_is_eagers_to_the_bit(name, dtype):
    op, arguments, *keywords = BITWISE[name]
    args = arguments(
        *torch.randn(2, 1024).to(dtype)
    )  # whole vectors: eager rounds otherwise in the scalar rest of a loop
    program, results, expected = run_op(op, *args, **(keywords[0] if keywords else {}))
    assert not is_extern(program)
    assert_same(results, expected, rtol=0, atol=0)


def test_views_are_index_maps_of_one_buffer():
    x = torch.randn(2, 3, 4, 5)
    for op, args in (
        (aten.permute.default, ([0, 2, 1, 3],)),
        (aten.view.default, ([6, 20],)),
        (aten.slice.Tensor, (2, 1, 4, 2)),
        (aten.select.int, (1, -1)),
        (aten.expand.default, ([7, 2, 3, 4, 5],)),
        (aten.unsqueeze.default, (1,)),
        (aten.diagonal.default, (0, 1, 2)),
        (aten.as_strided.default, ([3, 4], [7, 2], 1)),
        (aten.unfold.default, (3, 2, 3)),
    ):
        program, (result,), (expected,) = run_op(op, x, *args)
        assert program.definitions == []
        assert isinstance(program.results[0], View)
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride() and result.data_ptr() == expected.data_ptr()


def test_reshape_keeps_the_coordinates_of_dimensions_that_stay():
    b, t, h = (Expr.var(name, 0, size - 1) for name, size in (("b", 2), ("t", 7), ("h", 12)))
    assert reshape_map(exprs((2, 7, 3, 4)), exprs((2, 7, 12)))((b, t, h)) == (b, t, h // 4, h % 4)


def test_softmax_is_four_definitions():
    program, _, _ = run_op(aten._softmax.default, torch.randn(3, 4), -1, False)
    assert [d.reduce_op for d in program.definitions if isinstance(d, Computed)] == ["max", None, "sum", None]


@pytest.mark.parametrize("index", [torch.tensor([0, 4]), torch.tensor([-1, 0])], ids=["beyond", "negative"])
def test_an_index_out_of_range_raises_as_eager_does(index):
    with pytest.raises(IndexError, match="index out of range in self"):
        aten.embedding.default(torch.randn(4, 2), index)
    weight, good = torch.randn(4, 2), torch.tensor([0, 1])
    gm, _, _ = graph_of(aten.embedding.default, (weight, good), {})
    with pytest.raises(IndexError, match="index out of range in self"):
        evaluate(lower(gm), [weight, index])


def test_gather_out_of_range_raises_as_eager_does():
    x, index = torch.randn(4, 2), torch.tensor([[4, 0]])
    with pytest.raises(RuntimeError, match="out of bounds"):
        aten.gather.default(x, 0, index)
    gm, _, _ = graph_of(aten.gather.default, (x, 0, torch.tensor([[3, 0]])), {})
    with pytest.raises(RuntimeError, match="out of bounds"):
        evaluate(lower(gm), [x, index])


def test_an_op_without_lowering_is_a_call_with_eagers_strides():
    x = torch.randn(4, 5).t()
    program, results, expected = run_op(aten.sort.default, x, 0)
    assert [d.op for d in program.definitions if isinstance(d, Extern)] == [aten.sort.default]
    assert_same(results, expected)


def test_complex_tensors_run_as_calls():
    x = torch.randn(3, dtype=torch.complex64)
    program, results, expected = run_op(aten.add.Tensor, x, x)
    assert is_extern(program)
    assert_same(results, expected)
