"""Types, layouts, indices, aliases and modes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.ordinary_tools import case, fcase, program

R = torch.randn
NS = (4, 7, 3, 4)


def I(*s):
    return torch.randint(-5, 6, s)


# complex
fcase(
    "cplx1",
    lambda x: torch.view_as_real((x * x.conj()).sqrt() + 1j * x.angle()),
    lambda n: (R(n, 3, dtype=torch.complex64),),
)
fcase(
    "fft_filter",
    lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.linspace(1, 0, x.shape[-1] // 2 + 1), n=x.shape[-1]),
    lambda n: (R(2, 2 * n),),
)
fcase("fft2", lambda x: torch.fft.fftshift(torch.fft.fft2(x).abs().log1p()), lambda n: (R(n, n + 1),))
fcase(
    "fno",
    lambda x, w: torch.fft.irfft(torch.einsum("bix,iox->box", torch.fft.rfft(x)[..., :3], w), n=x.shape[-1]),
    lambda n: (R(2, 3, 2 * n), R(3, 2, 3, dtype=torch.complex64)),
)
fcase(
    "stft",
    lambda x: torch.stft(x, 8, 4, window=torch.hann_window(8), return_complex=True).abs().pow(2).sum(1),
    lambda n: (R(2, 16 + n),),
)
fcase(
    "istft",
    lambda x: torch.istft(
        torch.stft(x, 8, 4, window=torch.hann_window(8), return_complex=True),
        8,
        4,
        window=torch.hann_window(8),
        length=x.shape[-1],
    ),
    lambda n: (R(2, 16 + 4 * n),),
)
fcase(
    "cplx_mm",
    lambda x, y: (x @ y.mH).real + torch.polar(x.abs(), x.angle()).imag.sum(),
    lambda n: (R(n, 3, dtype=torch.complex64), R(2, 3, dtype=torch.complex64)),
)
fcase("cplx_polar", lambda a, b: torch.complex(a, b).exp().abs(), lambda n: (R(n), R(n)))
fcase(
    "cplx_write",
    lambda x: (lambda z: (z.real.mul_(2), z.imag.zero_(), z)[-1])(x.clone()),
    lambda n: (R(n, 2, dtype=torch.complex64),),
)
# low prec
for dt in (torch.bfloat16, torch.float16, torch.float64):
    s_ = str(dt)[6:]
    fcase(
        "mlp_" + s_,
        lambda x, w, b: F.gelu(F.linear(x, w, b)).softmax(-1),
        lambda n, dt=dt: (R(n, 4).to(dt), R(3, 4).to(dt), R(3).to(dt)),
    )
    fcase("ln_" + s_, lambda x, w: F.layer_norm(x, (4,), w) + x.mean(), lambda n, dt=dt: (R(n, 4).to(dt), R(4).to(dt)))
    fcase(
        "mix_" + s_,
        lambda x, y: (
            x + y,
            x * 2,
            x / 3,
            x.float() @ y.float().T,
            (x > y),
            torch.where(x > 0, x, y),
            x.sum(dtype=torch.float32),
        ),
        lambda n, dt=dt: (R(n, 4).to(dt), R(n, 4)),
    )
    fcase(
        "red_" + s_,
        lambda x: (x.sum(), x.mean(0), x.std(1), x.var(), x.amax(0), x.cumsum(0), x.norm(), x.logsumexp(0), x.prod(1)),
        lambda n, dt=dt: (R(n, 4).to(dt),),
    )
# ints bools
fcase(
    "ints",
    lambda x, y: (
        x + y,
        x // 3,
        x % 3,
        x / 2,
        -x,
        x**2,
        x & y,
        x | 1,
        x ^ y,
        ~x,
        x << 1,
        x >> 1,
        x == y,
        x.abs(),
        x.sum(),
        x.float().mean(),
        x.cumsum(0),
        x.clamp(0, 3),
        x.sign(),
        x.max(0),
        x.min(),
        x.prod(),
    ),
    lambda n: (I(n, 3), I(n, 3)),
)
for dt in (torch.int32, torch.uint8, torch.int8, torch.int16):
    fcase(
        "ints_" + str(dt)[6:],
        lambda x, y: (
            x + y,
            x * 2,
            x * 2.5,
            x // 3,
            x % 3,
            x / 2,
            x.sum(),
            x.cumsum(0),
            x > 2,
            x + 300 if x.dtype != torch.uint8 else x + 3,
            -x,
            x.float() / 255,
            x.to(torch.int64) ** 2,
            x.bool(),
            x.prod(0),
            x.max(),
        ),
        lambda n, dt=dt: (torch.randint(0, 100, (n, 3)).to(dt), torch.randint(0, 100, (n, 3)).to(dt)),
    )
fcase(
    "bools",
    lambda a, b: (
        a & b,
        a | b,
        a ^ b,
        ~a,
        a.sum(),
        a.any(),
        a.all(1),
        a.float().mean(),
        a * 2,
        a + b,
        a.long().cumsum(0),
        a.nonzero(),
        a.logical_not(),
        a == b,
        a.int(),
        torch.where(a, 1.0, 0.0),
        torch.where(a, 1, 0),
    ),
    lambda n: (R(n, 3) > 0, R(n, 3) > 0),
)
fcase(
    "masks",
    lambda x, m: (x[m], x[m].sum(), x.masked_fill(m, 0), torch.masked_select(x, m), x[~m].mean(), x[m[:, 0]]),
    lambda n: (R(n, 3), R(n, 3) > 0),
)


def maskw(x, m):
    y = x.clone()
    y[m] = 0
    y[~m] *= 2
    y[m[:, 0], 1] = -1
    y[:, m[0]] += 1
    return y


fcase("mask_write", maskw, lambda n: (R(n, 3), R(n, 3) > 0))
fcase(
    "scalar0d",
    lambda x, s: (
        x * s,
        x + s.item() if False else x + s,
        s**2,
        torch.stack([s, s]),
        s.expand(3),
        x[0] * s,
        s.view(1),
        s.reshape(1, 1),
        s.unsqueeze(0),
    ),
    lambda n: (R(n), torch.tensor(float(n))),
)
fcase(
    "empty",
    lambda x: (
        x * 2,
        x.sum(),
        x.sum(0),
        x @ x.T,
        x.softmax(-1),
        torch.cat([x, x]),
        x.view(-1),
        x.relu().mean(1),
        x.any(),
        x.all(),
        x.cumsum(0),
        F.linear(x, torch.ones(2, 3)),
        x.shape,
        x.numel(),
    ),
    lambda n: (R(n, 3),),
    sizes=(0, 3, 1, 0, 5),
)
fcase(
    "empty_second",
    lambda x: (x * 2, x.sum(0), x[:, :0], torch.cat([x[:0], x]), x[x > 100], x.new_empty(0), F.pad(x, (1, 1))),
    lambda n: (R(3, n),),
    sizes=(4, 0, 1, 2),
)
case(
    "empty_module",
    lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).eval(),
    lambda n: (R(n, 3, 4, 4),),
    sizes=(2, 0, 1, 3),
)
case(
    "one_batch",
    lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Softmax(-1)),
    lambda n: (R(n, 3),),
    sizes=(1, 2, 1, 5),
)
fcase(
    "squeeze1",
    lambda x: (x.squeeze(), x.squeeze(0), x.mean(0).squeeze(), x.squeeze(-1), x.sum().squeeze(), x[:, None].squeeze(1)),
    lambda n: (R(n, 3, 1),),
    sizes=(1, 3, 2, 1),
)
# layouts
for k, g in {
    "t": lambda n: R(3, n).t(),
    "sl": lambda n: R(n, 6)[:, ::2],
    "exp": lambda n: R(n, 1).expand(n, 3),
    "perm": lambda n: R(3, 2, n).permute(2, 0, 1)[:, :, 1],
    "off": lambda n: R(n + 2, 3)[2:],
    "flip": lambda n: R(n, 3).flip(0),
    "diag": lambda n: R(n, 3, 3).diagonal(dim1=1, dim2=2),
    "strided": lambda n: torch.as_strided(R(5 * n), (n, 3), (4, 1)),
    "unf": lambda n: R(n + 2).unfold(0, 3, 1),
}.items():
    fcase(
        "lay_" + k,
        lambda x: (
            x * 2,
            x + 1,
            x.t(),
            x.reshape(-1),
            x.contiguous(),
            x.clone(),
            x.sum(0),
            x @ x.t(),
            x.softmax(1),
            torch.zeros_like(x),
            torch.empty_like(x).fill_(1),
            x.relu(),
            x[1:],
            x.double(),
            torch.cat([x, x]),
            x.to(torch.float32),
            x.exp().t() + x.t(),
            torch.stack([x, x]),
        ),
        lambda n, g=g: (g(n).detach(),),
    )


# views as inputs, aliasing
@program
def alias_out(C):
    f = C(
        lambda x: (
            x,
            x.view(-1),
            x[0],
            x.t(),
            x.detach(),
            x * 1,
            x.contiguous(),
            x.reshape(x.shape),
            x.expand_as(x),
            x.to(torch.float32),
            x[...],
            x.unsqueeze(0),
        )
    )
    out = []
    for n in NS:
        x = R(n, 2)
        r = f(x)
        out.append((r, [t.data_ptr() == x.data_ptr() for t in r], r[0] is x, [t._base is x for t in r]))
        r[1].add_(1)
        out.append((x.clone(), [t.clone() for t in r]))
    return out


@program
def alias_out_grad(C):
    f = C(lambda x, w: (x, x.view(-1), w.t(), x.detach(), w[0], (x @ w).relu()))
    out = []
    for n in NS:
        x = R(n, 2, requires_grad=True)
        w = nn.Parameter(R(2, 2))
        r = f(x, w)
        sum(t.sum() for t in r if t.requires_grad).backward()
        out.append((r, r[0] is x, x.grad, w.grad))
    return out


@program
def inplace_versions(C):
    f = C(lambda x: x.mul_(2))
    out = []
    for n in NS:
        x = R(n)
        v = x._version
        y = f(x)
        out.append((x._version > v, y is x, y))
    return out


@program
def inplace_leaf_errors(C):
    f = C(lambda x: x.add_(1))
    out = []
    for x in [
        R(3, requires_grad=True),
        R(3),
        R(3, requires_grad=True).view(3),
        R(1).expand(3),
        R(3, requires_grad=True) * 2,
    ]:
        try:
            out.append(f(x))
        except RuntimeError as e:
            out.append(str(e)[:60])
    return out


@program
def outs(C):
    @C
    def f(x, o, o2):
        torch.mul(x, 2, out=o)
        torch.sum(x, 0, out=o2)
        torch.add(o, 1, out=o[:])
        v, i = torch.max(x, 1, out=(torch.empty(0), torch.empty(0, dtype=torch.long)))
        return o, o2, v, i

    r = []
    for n in NS:
        o, o2 = torch.empty(n, 2), torch.empty(2)
        a = f(R(n, 2), o, o2)
        r.append((a, a[0] is o, o))
    return r


@program
def req_grad_changes(C):
    f = C(lambda x, w: (x * w).sum() + x.detach().sum())
    out = []
    for i, n in enumerate(NS * 2):
        x = R(n)
        w = R(n)
        if i & 1:
            x.requires_grad_()
        if i & 2:
            w.requires_grad_()
        r = f(x, w)
        out.append((r, r.requires_grad))
        if r.requires_grad:
            r.backward()
            out.append((x.grad, w.grad))
    return out


@program
def req_grad_inside(C):
    @C
    def f(x):
        y = x.detach().clone().requires_grad_(True)
        z = (y**3).sum()
        (g,) = torch.autograd.grad(z, y, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), y)
        return g.detach(), h, y.requires_grad, y.is_leaf

    return [f(R(n)) for n in NS]


@program
def no_grad_mixed(C):
    @torch.no_grad()
    def stats(x):
        return x.mean(), x.std()

    @C
    def f(x):
        m, s = stats(x)
        y = (x - m) / s
        with torch.no_grad():
            w = y.softmax(0)
        with torch.set_grad_enabled(x.shape[0] > 3):
            z = y * 2
        torch.set_grad_enabled(False)
        q = y + 1
        torch.set_grad_enabled(True)
        return (y * w).sum(), z, q, m

    out = []
    for n in NS:
        x = R(n, requires_grad=True)
        r = f(x)
        r[0].backward()
        out.append((r, x.grad))
    return out


@program
def grad_mode_leaks(C):
    @C
    def f(x, on):
        torch.set_grad_enabled(on)
        return x * 2

    out = []
    for i, n in enumerate(NS):
        x = R(n, requires_grad=True)
        r = f(x, i % 2 == 0)
        out.append((r, torch.is_grad_enabled()))
        torch.set_grad_enabled(True)
    return out


@program
def inference_modes(C):
    m = nn.Linear(2, 2)
    f = C(m)
    g = C(torch.inference_mode()(lambda x: m(x) * 2))
    out = []
    for n in NS:
        with torch.inference_mode():
            a = f(R(n, 2))
            out.append((a, a.is_inference()))
        b = g(R(n, 2))
        out.append((b, b.is_inference()))
        c = f(R(n, 2))
        c.sum().backward()
        out.append((c, c.is_inference(), f(a.clone())))
        try:
            out.append(f(a).sum().requires_grad)
        except RuntimeError as e:
            out.append(str(e)[:50])
        try:
            a.add_(1)
        except RuntimeError as e:
            out.append(str(e)[:50])
    return out


fcase(
    "indexing",
    lambda x, i: (
        x[i],
        x[:, i % 3],
        x[i, 0],
        x[-1],
        x[::2],
        x[..., None],
        x[:, [0, 2]],
        x[[0, -1]],
        x[0, 1:],
        x[i.tolist()[0]],
        x.index_select(0, i),
        x.take_along_dim(i[:, None].expand(-1, 3), 0),
        x.gather(0, i[:, None].expand(-1, 3)),
        torch.take(x, i),
        x[i][:, None] - x[None],
    ),
    lambda n: (R(n, 3), torch.randint(0, n, (4,))),
)


def iwrites(x, i, v):
    y = x.clone()
    y[i] = v
    y[0] += 1
    y[:, 1] = 2
    y[-1, -1] = 0
    y[1:] *= 2
    y[..., 0] = y[..., 2]
    y.index_fill_(1, torch.tensor([1]), 3.0)
    y.scatter_(0, i[:1, None].expand(1, 3), 9.0)
    y.index_put_((i,), v, accumulate=True)
    y[[0, 1]] = y[[1, 0]]
    return y


fcase(
    "operands_laid_out_otherwise",
    lambda x, y, w, i, image: (
        2**x,
        F.glu(x, 0),
        F.logsigmoid(x),
        x.roll(1),
        image.roll(1, 1),
        image.roll((2, image.shape[0]), (1, 0)),
        x.scatter_add(0, i, y),
        torch.scatter(x, 0, i, 2.0),
        x.scatter_reduce(0, i, y, "amax"),
        F.leaky_relu(x, 0.1),
        F.mse_loss(x, y),
        F.smooth_l1_loss(x, y),
        F.huber_loss(x, y),
        F.conv1d(x[None], w),
        F.interpolate(x[None], scale_factor=2.0, mode="nearest"),
        F.interpolate(x[None, :, :, None, None], scale_factor=2.0, mode="nearest"),
        torch.select_scatter(x, y[0], 0, 1),
        torch.slice_scatter(x, y[:1], 0, 2, 3),
        torch.diagonal_scatter(x, y.diagonal()),
        torch.as_strided_copy(x.mul(1), (2, 2), (1, 3), 1),
    ),
    lambda n: (
        R(n, 12).t()[::2],
        R(n, 6).t(),
        R(2, 3, 6).transpose(1, 2),
        torch.zeros(6, n, dtype=torch.int64),
        R(4, n, 3, 2).to(memory_format=torch.channels_last),
    ),
)


def into_empty(x):
    """Some operations lay an `out=` argument without elements out as their result."""
    square = x @ x.mT + torch.eye(x.shape[0])
    return (
        torch.add(x.mT, 1, out=torch.empty(0)),
        torch.lerp(x.mT, x.mT, 0.5, out=torch.empty(0)),
        torch.cumsum(x.mT, 0, out=torch.empty(0, dtype=torch.float64)),
        torch.linalg.inv(square, out=torch.empty(0)),
        torch.linalg.solve(square, x, out=torch.empty(0)),
        torch.max(x.mT, 1, out=(torch.empty(0), torch.empty(0, dtype=torch.int64))),
        torch.sort(x.mT, 0, out=(torch.empty(0), torch.empty(0, dtype=torch.int64))),
        torch.where(x.mT > 0, x.mT, 0.0, out=torch.empty(0)),
        torch.fft.fft2(x.mT, out=torch.empty(0, dtype=torch.complex64)),
        torch.slice_scatter(x.mT, x[:, :1].mT, 0, 0, 1, out=torch.empty(0)),
    )


fcase("into_empty", into_empty, lambda n: (R(n, n + 1),), grad=False)
fcase(
    "split_by_data",
    lambda x, i: (*torch.tensor_split(x.sin(), i.abs()), *x.tensor_split(tensor_indices_or_sections=i, dim=1)),
    lambda n: (R(n + 2, 5), torch.tensor([1, n])),
)
fcase("index_writes", iwrites, lambda n: (R(n, 3), torch.randperm(n)[:2], R(2, 3)))
fcase(
    "shapes",
    lambda x: (
        x.view(x.size(0), -1),
        x.flatten(1),
        x.reshape(-1, 2),
        x.permute(2, 0, 1),
        x.transpose(0, -1),
        x.unsqueeze(1).repeat(1, 2, 1, 1),
        x.expand(2, *x.shape),
        torch.cat(x.chunk(2, 1), -1),
        x.split([1, 3], 1),
        torch.stack(x.unbind(1), 0),
        x.tile(2),
        x.movedim(0, -1),
        x.swapaxes(0, 1),
        x.unflatten(1, (2, 2)),
        torch.atleast_3d(x),
        x.narrow(1, 1, 2),
        torch.tensor_split(x, 3, 1),
        x.roll(1, 0),
        x.rot90(1, (0, 1)),
        x.view_as(x),
        x.ravel(),
        torch.broadcast_to(x, (2, *x.shape)),
        x.mT,
        x[:, :, None].shape,
    ),
    lambda n: (R(n, 4, 2),),
)
fcase(
    "makers",
    lambda x: (
        torch.zeros(x.shape[0], 2),
        torch.ones_like(x),
        torch.full((x.size(0),), 2.0),
        torch.arange(x.size(0)),
        torch.arange(0, 1, 0.25),
        torch.linspace(0, 1, x.size(0)),
        torch.eye(x.size(0)),
        x.new_zeros(2),
        x.new_tensor([1, 2]),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor(x.shape),
        torch.tril(torch.ones(3, x.size(0))),
        torch.meshgrid(torch.arange(2), torch.arange(x.size(0)), indexing="xy"),
        torch.cartesian_prod(torch.arange(2), torch.arange(x.size(0))),
        torch.combinations(torch.arange(x.size(0))),
        torch.triu_indices(x.size(0), 3),
        torch.logspace(0, 1, 3),
        torch.scalar_tensor(2.0),
        torch.empty(x.size(0), 0),
        torch.as_tensor([x.size(0), 1.5]),
        torch.tensor([x.sum(), 1.0]),
        torch.diag(x[:, 0]),
        torch.block_diag(x, x),
        torch.vander(x[:, 0], 3),
    ),
    lambda n: (R(n, 2),),
)
fcase(
    "reduce_zoo",
    lambda x: (
        x.max(1),
        x.min(0),
        x.argmax(),
        x.argmin(1),
        x.median(),
        x.kthvalue(2, 0),
        x.quantile(0.3),
        x.nanmean(),
        x.aminmax(),
        x.count_nonzero(),
        x.unique().shape,
        torch.std_mean(x, 0),
        x.topk(2),
        x.sort(0),
        x.argsort(1, descending=True),
        x.cummax(0),
        x.logcumsumexp(1),
        x.diff(dim=0),
        torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 1.0])),
        x.msort(),
        torch.trapezoid(x),
        x.cov(),
        torch.cdist(x, x),
        torch.renorm(x, 2, 0, 1.0),
        x.nansum(),
        x.corrcoef(),
        torch.logaddexp(x, x * 2),
        torch.hypot(x, x),
        x.frac(),
        x.trunc(),
        torch.lerp(x, x * 2, 0.3),
        torch.addcmul(x, x, x, value=2),
        torch.clamp(x, max=0.5),
        torch.heaviside(x.detach(), torch.tensor(0.5)),
        x.xlogy(x.abs()),
        torch.special.expit(x),
        x.erf(),
        x.lgamma(),
        torch.isclose(x, x),
        torch.allclose(x, x),
        torch.equal(x, x),
        x.tril(),
        x.trace() if x.dim() == 2 else 0,
    ),
    lambda n: (R(n, 4),),
)
fcase(
    "linalg_zoo",
    lambda x: (
        lambda a: (
            torch.linalg.inv(a),
            torch.linalg.det(a),
            torch.linalg.slogdet(a),
            torch.linalg.solve(a, x),
            torch.linalg.cholesky(a),
            torch.linalg.eigvalsh(a),
            torch.linalg.norm(x),
            torch.linalg.svdvals(x),
            torch.linalg.matrix_norm(x),
            torch.linalg.pinv(a),
            torch.logdet(a),
            torch.linalg.qr(a)[1].abs(),
            torch.matrix_exp(a / 10),
            torch.linalg.matrix_power(a, 2),
            torch.trace(a),
            torch.linalg.cross(x[:, :3], x[:, :3].flip(1)),
            torch.kron(x, x),
            torch.outer(x[:, 0], x[:, 1]),
            torch.linalg.multi_dot([x, x.T, x]),
            torch.einsum("ij,kj->ik", x, x),
            torch.einsum("...i,i", x, x[0]),
            torch.baddbmm(x[None], x[None], torch.eye(3)[None]),
            torch.linalg.lstsq(a, x).solution,
        )
    )(x @ x.T + x.shape[0] * torch.eye(x.shape[0])),
    lambda n: (R(n, 3),),
)
fcase(
    "pads",
    lambda x: (
        F.pad(x, (1, 2)),
        F.pad(x, (1, 1), mode="reflect"),
        F.pad(x, (2, 0), mode="replicate"),
        F.pad(x, (1, 1), mode="circular"),
        F.pad(x, (-1, 0)),
        F.pad(x, (0, 0, 1, 0), value=3.0),
    ),
    lambda n: (R(2, 3, n + 1),),
)
fcase(
    "pools",
    lambda x: (
        F.max_pool2d(x, 2),
        F.avg_pool2d(x, 2, 1, 1),
        F.adaptive_avg_pool2d(x, (2, 3)),
        F.adaptive_max_pool2d(x, 2),
        F.max_pool2d(x, 3, 2, 1, return_indices=True),
        F.lp_pool2d(x.abs(), 2, 2),
        F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False, ceil_mode=True),
    ),
    lambda n: (R(2, 2, n + 3, n + 4),),
)
fcase(
    "acts",
    lambda x: tuple(
        f(x)
        for f in (
            F.relu,
            F.relu6,
            F.elu,
            F.selu,
            F.celu,
            F.gelu,
            F.silu,
            F.mish,
            F.softplus,
            F.softsign,
            F.hardtanh,
            F.hardswish,
            F.hardsigmoid,
            F.logsigmoid,
            F.tanhshrink,
            F.softshrink,
            F.hardshrink,
            lambda y: F.leaky_relu(y, 0.1),
            lambda y: F.glu(y, -1),
            lambda y: F.threshold(y, 0.1, 20),
            lambda y: F.prelu(y, torch.tensor(0.2)),
            lambda y: F.gelu(y, approximate="tanh"),
            lambda y: F.softmin(y, 1),
            lambda y: F.normalize(y, p=1),
            lambda y: F.log_softmax(y, 0, dtype=torch.float64),
        )
    ),
    lambda n: (R(n, 4),),
)
