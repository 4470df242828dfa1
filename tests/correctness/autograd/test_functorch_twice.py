"""Gradients of gradients through compiled code."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import bolide
from bolide.support import events


def small():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 1)
    )


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 1)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(torch.softmax(q @ k.transpose(1, 2) / 4.0, -1) @ v)


def penalty(model, x):
    """A loss with the squared norm of the gradient with respect to the input (as WGAN-GP's)."""
    x = x.clone().requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out.square().mean() + (slope.flatten(1).norm(dim=1) - 1).square().mean()


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        pytest.param(small, (5, 6), id="linear"),
        pytest.param(convolutional, (3, 3, 6, 6), id="convolutional"),
        pytest.param(Attention, (2, 7, 16), id="attention"),
    ],
)
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_gradient_penalty_trains_as_in_eager(make, shape, backend):
    model = make().double()
    x = torch.randn(shape, dtype=torch.float64)
    wanted = torch.autograd.grad(penalty(model, x), list(model.parameters()), allow_unused=True)
    got = torch.autograd.grad(
        penalty(bolide.compile(model, backend=backend), x), list(model.parameters()), allow_unused=True
    )
    for mine, theirs in zip(got, wanted):
        if theirs is None:  # eager leaves out a gradient that is zero
            assert mine is None or not mine.any()
        else:
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def test_the_second_derivative_is_compiled_once_for_each_layout():
    compiled = bolide.compile(lambda x: (x.sin() * x).sum())
    kinds = []
    with events.subscribed(lambda e: kinds.append(e.kind) if isinstance(e, events.Compiled) else None):
        for _ in range(3):
            x = torch.randn(8, requires_grad=True)
            (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            torch.testing.assert_close(second, 2 * x.detach().cos() - x.detach() * x.detach().sin())
    assert kinds == ["forward", "forward", "backward"]


def test_derivatives_of_third_order():
    compiled = bolide.compile(lambda x: (x**4).sum())
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    value = compiled(x)
    for factor, power in ((4, 3), (12, 2), (24, 1)):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        torch.testing.assert_close(value.detach(), factor * x.detach() ** power)


LINEAR = {
    "scaled": lambda x, w: x * w,
    "detached": lambda x, w: x * x.detach(),
    "product": lambda x, w: x @ w,
    "constant": lambda x, w: x * 3 + w,
    "moved": lambda x, w: torch.cat([x, x.flip(0)]).roll(1, 1),
    "convolved": lambda x, w: F.conv1d(x[None], w[..., None])[0],
}


@pytest.mark.parametrize("name", LINEAR)
def test_third_derivatives_of_what_is_linear(name):
    """Its backward saves none of its inputs, and the tangents of its first backward are the program's to drop."""
    fn = LINEAR[name]
    compiled = bolide.compile(fn, fullgraph=True)
    for size in random.sample(range(2, 9), 2):
        x, w = torch.randn(size, size, dtype=torch.double, requires_grad=True), torch.randn(size, size).double()
        found = []
        for function in (compiled, fn):
            value, known = function(x, w), []
            for _ in range(3):
                (value,) = torch.autograd.grad(value.sin().sum(), x, create_graph=True)
                known.append(value.detach())
            found.append(known)
        torch.testing.assert_close(*found)


def test_no_derivative_is_lost_with_an_input_that_is_dropped():
    compiled = bolide.compile(lambda x, w: x * w)
    leaf, w = torch.randn(4, requires_grad=True), torch.randn(4)
    out = compiled(leaf * 2, w)
    (first,) = torch.autograd.grad(out.sin().sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="written to or dropped since"):
        torch.autograd.grad(first.sum() + leaf.sum(), leaf)


def test_random_numbers_are_the_same_in_both_derivatives():
    def program(x, w):
        return F.dropout(torch.sin(x @ w), 0.5, training=True).pow(2).sum()

    compiled = bolide.compile(program)
    x, w = torch.randn(6, 6, requires_grad=True), (torch.eye(6) + torch.rand(6, 6) / 12).requires_grad_()
    (slope,) = torch.autograd.grad(compiled(x, w), x, create_graph=True)
    # d/dx sum(m² sin²(xw)) with m in {0, 2}: the mask follows from the first derivative
    mask = torch.zeros(6, 6)
    projected = slope.detach() @ torch.linalg.inv(w.detach()).T  # 4·[m]·2·sin·cos
    mask[projected.abs() > 1e-5] = 2.0  # where none is dropped it is this small by chance only
    wanted_loss = (mask * torch.sin(x @ w)).pow(2).sum()
    (wanted,) = torch.autograd.grad(wanted_loss, x, create_graph=True)
    torch.testing.assert_close(slope, wanted, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        torch.autograd.grad(slope.square().sum(), w)[0],
        torch.autograd.grad(wanted.square().sum(), w)[0],
        rtol=1e-3,
        atol=1e-3,
    )


def test_an_inner_step_of_meta_learning():
    model = small().double()
    x, y = torch.randn(9, 6, dtype=torch.float64), torch.randn(9, 1, dtype=torch.float64)
    parameters = dict(model.named_parameters())

    def adapted(call):
        inner = F.mse_loss(call(parameters, x), y)
        slopes = torch.autograd.grad(inner, list(parameters.values()), create_graph=True)
        moved = {name: p - 0.1 * g for (name, p), g in zip(parameters.items(), slopes)}
        return F.mse_loss(call(moved, x), y)

    def call(weights, x):
        return torch.func.functional_call(model, weights, (x,))

    wanted = torch.autograd.grad(adapted(call), list(parameters.values()))
    got = torch.autograd.grad(adapted(bolide.compile(call)), list(parameters.values()))
    for mine, theirs in zip(got, wanted):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def test_an_input_that_was_written_to_since_is_refused():
    compiled = bolide.compile(lambda x, b: (x * b.exp()).exp().sum())
    x, b = torch.randn(4, requires_grad=True), torch.randn(4)
    out = compiled(x, b)
    b.add_(1.0)
    with pytest.raises(RuntimeError, match=r"written to or dropped since|modified by an inplace operation"):
        (first,) = torch.autograd.grad(out, x, create_graph=True)
        first.sum().backward()


def test_inputs_are_not_kept_alive_for_it():
    compiled = bolide.compile(lambda x: (x + 1.0).sum())
    leaf = torch.randn(1000, requires_grad=True)
    compiled(leaf * 3.0)
    x = leaf * 2.0
    watch = StorageWeakRef(x.untyped_storage())
    out = compiled(x)
    del x
    assert watch.expired()
    out.backward()
    torch.testing.assert_close(leaf.grad, torch.full_like(leaf, 2.0))


def test_an_operation_without_a_second_derivative_raises_as_in_eager():
    def program(q, k):
        return F.scaled_dot_product_attention(q, k, k)

    for call in (program, bolide.compile(program)):
        q, k = torch.randn(2, 2, 8, 4, requires_grad=True), torch.randn(2, 2, 8, 4, requires_grad=True)
        (slope,) = torch.autograd.grad(call(q, k).sum(), q, create_graph=True)
        with pytest.raises(RuntimeError, match=r"is not implemented|no second derivative"):
            slope.square().sum().backward()


def detached(x):
    return x * x.detach() ** 2 + x**3


def without_grad(x):
    with torch.no_grad():
        scale, row = x.sin().abs(), x[0]
    return x * scale * x + row


def straight_through(x):
    kept = x.round()
    return (x + (kept - x).detach()) ** 3 + ((kept.detach() - x) ** 2)


def past_autograd(x):
    y = x * 2
    return y * y.data.exp() + y.detach().clone().mul_(3) * x**2


def written_views(x):
    y = x * x.detach()
    with torch.no_grad():
        before = y[0].clone()
    y[0] = y[1] * 2
    return y * x * before + y[0].detach() * x


def derived_inside(x):
    (slope,) = torch.autograd.grad((x**3).tanh().sum(), x, create_graph=True)
    (constant,) = torch.autograd.grad((x**2).sum(), x)
    return slope * constant * x


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("fn", [detached, without_grad, straight_through, past_autograd, written_views, derived_inside])
def test_what_no_derivative_goes_through(fn, backend):
    """It has none either where gradients are computed anew, to be differentiated: the first and the second one."""
    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        start = torch.randn(3, 4, dtype=torch.float64)
        found = []
        for function in (compiled, fn):
            x = start.clone().requires_grad_()
            (first,) = torch.autograd.grad(function(x).sin().sum(), x, create_graph=True)
            found.append((first, *torch.autograd.grad(first.square().sum(), x)))
        torch.testing.assert_close(*found)


def test_where_all_is_detached_there_is_no_second_derivative():
    def fn(x):
        return x * x.detach()

    x = torch.randn(3, requires_grad=True)
    for function in (fn, bolide.compile(fn, backend="aot_eager", fullgraph=True)):
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        torch.testing.assert_close(first, x.detach())
        assert not first.requires_grad


def test_what_a_detached_alias_writes_is_refused():
    def fn(x):
        y = x * 2
        y.detach().mul_(3)
        return y * x

    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    found = []
    for function in (fn, bolide.compile(fn, backend="aot_eager", fullgraph=True)):
        found.append(torch.autograd.grad(function(x).sum(), x, create_graph=True)[0])
    torch.testing.assert_close(*found)
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(found[1].sum(), x)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_forwards_that_write_what_their_results_depend_on(norm, backend):
    """A step of a power iteration is not made again: its vectors are kept."""

    def build():
        torch.manual_seed(5)
        return nn.Sequential(norm(nn.Linear(6, 5)), nn.Tanh(), norm(nn.Linear(5, 4), n_power_iterations=2)).double()

    model, twin = build(), build()
    compiled = bolide.compile(model, backend=backend)
    for _ in range(3):
        x = torch.randn(3, 6, dtype=torch.float64)
        found = [
            torch.autograd.grad(penalty(function, x), list(function.parameters())) for function in (compiled, twin)
        ]
        torch.testing.assert_close(*found)
        torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))


def recurrent():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.out = random.choice([nn.GRU, nn.LSTM])(6, 8, batch_first=True), nn.Linear(8, 1)

        def forward(self, x):
            return self.out(self.layer(x)[0][:, -1])

    return Last()


def critic():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(6, 4, 3, bias=False),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 1),
    )


def normalised():
    norms = [nn.BatchNorm1d(6, affine=random.random() < 0.5), nn.InstanceNorm1d(6, affine=True), nn.GroupNorm(2, 6)]
    model = nn.Sequential(nn.Conv1d(3, 6, 3), norms[0], nn.SiLU(), norms[1], nn.Tanh(), norms[2])
    model.extend([nn.SiLU(), nn.RMSNorm(7, eps=1e-5), nn.LayerNorm(7), nn.Flatten(), nn.BatchNorm1d(42)])
    model[-1].eval()
    for weight in model.parameters():  # normalised values that are only added give 0, whose norm has no derivative
        nn.init.normal_(weight)
    return model


def curvature(model, x):
    """A product of the Hessian with a vector, made differentiable."""
    slopes = torch.autograd.grad(model(x).square().mean(), list(model.parameters()), create_graph=True)
    return sum((slope * slope.detach()).sum() for slope in slopes)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        pytest.param(small, (6,), id="linear"),
        pytest.param(critic, (3, 9, 9), id="convolutional"),
        pytest.param(Attention, (7, 16), id="attention"),
        pytest.param(recurrent, (5, 6), id="recurrent"),
        pytest.param(normalised, (3, 9), id="normalised"),
    ],
)
def test_other_sizes_are_derived_twice_by_what_is_compiled(make, shape, inside):
    """Whether a loss derives a compiled model or is compiled itself. Batches are no sizes of the model's: what is as
    large as one behind a break is taken for one, which costs one more version."""
    model, loss = make().double(), random.choice([penalty, curvature])
    batches = set(range(2, 30)).difference(shape, *(weight.shape for weight in model.parameters()))
    program = bolide.compile(loss if inside else model)
    kinds = []
    with events.subscribed(lambda e: kinds.append(e.kind) if isinstance(e, events.Compiled) else None):
        for call, size in enumerate(random.sample(sorted(batches), 6)):
            x = torch.randn(size, *shape, dtype=torch.double)
            found = [
                torch.autograd.grad(value, list(model.parameters()), allow_unused=True, materialize_grads=True)
                for value in (program(model, x) if inside else loss(program, x), loss(model, x))
            ]
            torch.testing.assert_close(*found)
            assert call < 2 or not kinds
            kinds.clear()


def test_second_derivatives_of_recurrent_layers_are_captured_for_fixed_sizes():
    """A break says that it is the sizes, whichever of them is symbolic, and its remedy holds."""
    model, reasons = recurrent().double(), []
    given = [torch.randn(size, 5, 6, dtype=torch.double) for size in random.sample(range(10, 20), 2)]
    given.append(torch.randn(given[1].shape[0], 7, 6, dtype=torch.double))
    for dynamic in (None, False):
        bolide.reset()
        program = bolide.compile(penalty, dynamic=dynamic)
        with events.subscribed(lambda e: reasons.append(e.reason) if isinstance(e, events.Break) else None):
            for x in given:
                weights = list(model.parameters())
                found = [torch.autograd.grad(call(model, x), weights, allow_unused=True) for call in (program, penalty)]
                torch.testing.assert_close(*found)
        if dynamic is None:
            assert reasons and all("of a recurrent layer with symbolic sizes" in reason for reason in reasons)
            reasons.clear()
    assert not reasons


def derivatives(function, x, weights, order):
    """Of the parts that are asked for, weighted; what has none is left out. And the error of one that is refused."""
    value, found, inputs = function(x, *weights), [], [x, *weights]
    for step in range(order):
        scale = torch.linspace(1, 2, value.numel(), dtype=value.dtype).view(value.shape)
        try:
            grads = torch.autograd.grad((value * scale).sum(), inputs, create_graph=True, allow_unused=True)
        except RuntimeError as error:
            return found, str(error)
        found += [None if each is None else each.detach() for each in grads]
        some = [each for place, each in enumerate(grads) if each is not None and each.requires_grad and place != step]
        if not some:
            break
        value = torch.cat([each.reshape(-1) ** 2 for each in some])
    return found, None


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norms_are_derived_to_any_order(train, affine):
    """As in eager, to which statistics are constants: with third derivatives of its own, or none."""
    shape = random.choice([(3,), (3, 4), (3, 4, 2)])
    means, variances = torch.randn(3).double(), torch.rand(3).double() + 0.5

    def program(x, *weights):
        return F.batch_norm(x, means.clone(), variances.clone(), *weights, training=train)

    compiled, counts = bolide.compile(program, fullgraph=True), [0]

    def count(event):
        counts[-1] += isinstance(event, events.Compiled)

    with events.subscribed(count):
        for size in random.sample(range(3, 12), 4):
            x = torch.randn(size, *shape, dtype=torch.double, requires_grad=True)
            weights = [torch.randn(3).double().requires_grad_() for _ in range(2 if affine else 0)]
            found = [derivatives(function, x, weights, 3) for function in (program, compiled)]
            (expected, refused), (got, also) = found
            assert refused or not also
            for theirs, mine in zip(expected, got, strict=not refused):
                if theirs is not None and mine is not None:
                    torch.testing.assert_close(mine, theirs)
                else:
                    assert all(each is None or not each.any() for each in (mine, theirs))
            counts.append(0)
    assert not any(counts[2:])


TRANSFORMED = {
    "hessian": lambda loss: torch.func.jacrev(torch.func.grad(loss)),
    "of_each": lambda loss: torch.vmap(torch.func.grad(loss), 1),
    "along_a_direction": lambda loss: lambda x: torch.func.vjp(torch.func.grad(loss), x)[1](x.cos())[0],
    "in_reverse": lambda loss: torch.func.grad(lambda x: torch.func.grad(loss)(x).sin().sum()),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_batch_norms_are_derived_by_transforms(name):
    """Where the derivative is a kernel in Python, at one level of several."""
    model = nn.BatchNorm1d(3, track_running_stats=random.random() < 0.5).double().requires_grad_(False)
    model.eval()
    program = TRANSFORMED[name](lambda x: (model(x) ** 3).sin().sum())
    compiled = bolide.compile(program, fullgraph=True)
    for size in random.sample(range(2, 9), 3):
        x = torch.randn(size, *([4] if name == "of_each" else []), 3).double()
        torch.testing.assert_close(compiled(x), program(x))


def clamped(x):
    y = x * x.exp()
    with torch.no_grad():
        y.clamp_(min=0.1)
    return y.sin() * y + y.detach() * x


def added(x):
    y, z = x.sin(), x[:1].exp() * 3
    with torch.no_grad():
        y.mul_(2).add_(z)
        z.clamp_(max=2.0)
    return y**3 * z + y


def similar(x):
    return F.cosine_similarity(x, x.flip(0) ** 2, dim=0)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("fn", [clamped, added, similar])
def test_what_is_written_without_gradients_keeps_its_history(fn, backend):
    compiled = bolide.compile(fn, backend=backend, fullgraph=True)
    for size in random.sample(range(2, 9), 3):
        start = torch.randn(size, 3, dtype=torch.float64)
        found = []
        for function in (compiled, fn):
            x = start.clone().requires_grad_()
            (first,) = torch.autograd.grad(function(x).sin().sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
            found.append((first, second))
        torch.testing.assert_close(*found)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Growth(torch.autograd.Function):
    """It saves its result, and has a number."""

    @staticmethod
    def forward(ctx, x, rate):
        y = (x * rate).exp()
        ctx.rate = rate
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return ctx.rate * y * grad, None


class Reversed(torch.autograd.Function):
    """Its result is a view."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad.reshape(ctx.shape)


class Gated(torch.autograd.Function):
    """What it makes in between is constant to further derivatives, and it gives a mask."""

    @staticmethod
    def forward(ctx, x):
        ctx.gate, mask = torch.sigmoid(x), x > 0
        ctx.save_for_backward(mask)
        return ctx.gate * x, mask

    @staticmethod
    def backward(ctx, grad, _):
        return grad * ctx.gate * ctx.saved_tensors[0]


class Pair(torch.autograd.Function):
    """Two results, of which one may be left out."""

    @staticmethod
    def forward(x, w):
        return x * w, (x + w).sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output[0])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, first, second):
        x, w, product = ctx.saved_tensors
        to_x = 0 if first is None else first * w + product
        to_w = 0 if first is None else first * x
        shared = 0 if second is None else second * (x + w).cos()
        return to_x + shared, to_w + shared


class Sine(torch.autograd.Function):
    """Its backward is a Function of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return SineBackward.apply(*ctx.saved_tensors, grad)


class SineBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, grad):
        ctx.save_for_backward(x, grad)
        return x.cos() * grad

    @staticmethod
    def backward(ctx, tangent):
        x, grad = ctx.saved_tensors
        return -0.5 * x.sin() * grad * tangent, x.cos() * tangent


OWN = {
    "squared": lambda x, w: Squared.apply(x),
    "growth": lambda x, w: Growth.apply(x, 0.3),
    "reversed": lambda x, w: Reversed.apply(x),
    "gated": lambda x, w: Gated.apply(x)[0],
    "pair": lambda x, w: Pair.apply(x, w)[1],
    "both": lambda x, w: sum(Pair.apply(w, x)),
    "sine": lambda x, w: Sine.apply(x),
    "written": lambda x, w: Squared.apply(x).mul_(2),
    "detached": lambda x, w: (y := Squared.apply(x)) * y.detach(),
    "turned": lambda x, w: Squared.apply(x.t())[:2].t().sum(1, keepdim=True) + x,
    "plain": lambda x, w: torch.tanh(x) * w,
}


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("case", range(4))
def test_functions_of_the_programs_own_are_derived_twice(case, backend):
    """And a third time, by their own code, in chains of some of them, for sizes that change."""
    names = random.sample(list(OWN), 3)

    def program(x, w):
        for name in names:
            x = OWN[name](x, w).sin()
        return x

    def derived(call, x, w):
        found, value = [], call(x, w)
        for _ in range(3):
            some = torch.autograd.grad(
                value.sum(), (x, w), create_graph=True, allow_unused=True, materialize_grads=True
            )
            found += some
            value = sum(each.square().sum() for each in some)
            if not value.requires_grad:
                break
        return [each.detach() for each in found]

    compiled, kinds = bolide.compile(program, backend=backend, fullgraph=True), []
    with events.subscribed(lambda e: kinds.append(e.kind) if isinstance(e, (events.Fallback, events.Break)) else None):
        for size in random.sample(range(2, 12), 3):
            x, w = (torch.randn(size, 4, dtype=torch.double, requires_grad=True) for _ in range(2))
            torch.testing.assert_close(derived(compiled, x, w), derived(program, x, w))
    assert not kinds


def test_a_function_knows_which_of_its_own_gradients_may_be_missing():
    """Contexts of calls without a history are gone when others are made."""

    def program(x, constant):
        for _ in range(5):
            x = x + Pair.apply(constant, constant)[0]
        for place in range(4):
            x = Two.apply(x)[place % 2]
        return x

    compiled = bolide.compile(program, fullgraph=True)
    x, constant = torch.randn(3, dtype=torch.double, requires_grad=True), torch.randn(3, dtype=torch.double)
    found = []
    for function in (compiled, program):
        (first,) = torch.autograd.grad(function(x, constant).sum(), x, create_graph=True)
        found.append((first, *torch.autograd.grad(first.square().sum(), x)))
    torch.testing.assert_close(*found)


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return first.mul(x.cos()) - second.mul(x.sin())


class Cubed(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.saved_tensors[0] ** 2


@pytest.mark.parametrize(
    "fn",
    [lambda x: torch.vmap(Cubed.apply)(x.sin()), lambda x: torch.func.grad(lambda y: Cubed.apply(y).sum())(x.sin())],
    ids=["vmap", "grad"],
)
def test_a_function_under_a_transform_is_not_derived_again_without_its_history(fn):
    x = torch.randn(3, 2, requires_grad=True)
    (first,) = torch.autograd.grad(bolide.compile(fn)(x).sum(), x, create_graph=True)
    torch.testing.assert_close(first, torch.autograd.grad(fn(x).sum(), x)[0])
    with pytest.raises(RuntimeError, match="cannot be called again"):
        torch.autograd.grad(first.sum(), x)


class OfTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x**3 * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return 3 * grad * x**2 * y, grad * x**3


@pytest.mark.parametrize(
    "fn",
    [lambda x, y: OfTwo.apply(x, y).sin() + y, lambda x, y: (x**3 * y.exp()).sin() * float(x.detach().sum())],
    ids=["function", "data"],
)
@pytest.mark.parametrize("alike", [False, True])
def test_inputs_that_depend_on_one_another_are_derived_twice_where_eager_derives(fn, alike):
    """Only by themselves: their histories are no part of the program."""
    compiled, order = bolide.compile(fn), random.sample([0, 1], 2)
    for size in random.sample(range(2, 20), 3):
        x = torch.randn(size, dtype=torch.double, requires_grad=True)
        scale = torch.randn(size, dtype=torch.double)

        def derived(function, x=x, scale=scale):
            middle = x.sin() * scale
            given = [middle, middle] if alike else [middle, x]
            value, found = function(*[given[place] for place in order]), []
            for wanted in (given, [x], [x]):
                grads = torch.autograd.grad(value.sum(), wanted, create_graph=True)
                value = sum((grad * scale).square().sum() for grad in grads)
                found += grads
            return found

        torch.testing.assert_close(derived(compiled), derived(fn))
