"""Layers and losses as people write them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.ordinary_tools import case, fcase, program

R = torch.randn


# attention
class MHA(nn.Module):
    def __init__(s, d=8, h=2, causal=False):
        super().__init__()
        s.h = h
        s.qkv = nn.Linear(d, 3 * d)
        s.o = nn.Linear(d, d)
        s.causal = causal
        s.register_buffer("mask", torch.tril(torch.ones(16, 16)).bool(), persistent=False)

    def forward(s, x, pad=None):
        B, L, D = x.shape
        q, k, v = s.qkv(x).view(B, L, 3, s.h, D // s.h).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        if s.causal:
            a = a.masked_fill(~s.mask[:L, :L], float("-inf"))
        if pad is not None:
            a = a.masked_fill(pad[:, None, None, :], torch.finfo(a.dtype).min)
        return s.o((a.softmax(-1) @ v).transpose(1, 2).reshape(B, L, D))


case("mha", MHA, lambda n: (R(2, n, 8),))
case("mha_causal", lambda: MHA(causal=True), lambda n: (R(n, n + 1, 8),))
case("mha_pad", lambda: MHA(causal=True), lambda n: (R(n, 4, 8), torch.arange(4)[None] >= torch.randint(1, 5, (n, 1))))


class KV(nn.Module):
    def __init__(s):
        super().__init__()
        s.q = nn.Linear(8, 8)
        s.kv = nn.Linear(8, 16)

    def forward(s, x, cache=None):
        k, v = s.kv(x).chunk(2, -1)
        if cache is not None:
            k = torch.cat([cache[0], k], 1)
            v = torch.cat([cache[1], v], 1)
        return F.scaled_dot_product_attention(s.q(x)[:, None], k[:, None], v[:, None])[:, 0], (k, v)


@program
def kv_cache_loop(C):
    m = KV()
    f = C(m)
    out = []
    with torch.no_grad():
        cache = None
        x = R(2, 3, 8)
        for _i in range(6):
            o, cache = f(x, cache)
            x = o[:, -1:]
            out.append((o, cache[0].shape))
    return out


@program
def static_cache(C):
    m = nn.Linear(8, 16)
    K = torch.zeros(2, 10, 8)
    V = torch.zeros(2, 10, 8)

    @C
    def step(x, pos):
        k, v = m(x).chunk(2, -1)
        K[:, pos : pos + x.shape[1]] = k
        V[:, pos : pos + x.shape[1]] = v
        a = x @ K.transpose(1, 2)
        a = a.masked_fill(torch.arange(10)[None, None] >= pos + x.shape[1], -1e9)
        return a.softmax(-1) @ V

    out = []
    with torch.no_grad():
        x = R(2, 4, 8)
        pos = 0
        for _i in range(5):
            o = step(x, pos)
            pos += x.shape[1]
            x = o[:, -1:]
            out.append(o)
    return out, K, V


def rope(x, base=10000.0, offset=0):
    d = x.shape[-1]
    inv = 1.0 / (base ** (torch.arange(0, d, 2, dtype=torch.float32) / d))
    t = torch.arange(x.shape[-2], dtype=torch.float32) + offset
    f = torch.outer(t, inv)
    c, s = f.cos(), f.sin()
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack([x1 * c - x2 * s, x1 * s + x2 * c], -1).flatten(-2)


fcase("rope", rope, lambda n: (R(2, n, 8),))
fcase("rope_off", lambda x, o: rope(x, offset=o), lambda n: (R(2, 4, 8), n))


def rope_half(q, k, cos, sin):
    def rot(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((-b, a), dim=-1)

    return q * cos + rot(q) * sin, k * cos + rot(k) * sin


fcase("rope_half", rope_half, lambda n: (R(2, 2, n, 8), R(2, 1, n, 8), R(n, 8), R(n, 8)))


def rope_complex(x, f):
    return torch.view_as_real(torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * f).flatten(-2).type_as(x)


fcase("rope_complex", rope_complex, lambda n: (R(2, n, 8), torch.polar(torch.ones(n, 4), R(n, 4))))


def alibi(q, k):
    n = q.shape[-2]
    slopes = torch.tensor([2 ** (-8 * (i + 1) / 4) for i in range(4)])
    b = -(torch.arange(n)[:, None] - torch.arange(n)[None]).abs() * slopes[:, None, None]
    return (q @ k.mT + b).softmax(-1)


fcase("alibi", alibi, lambda n: (R(2, 4, n, 3), R(2, 4, n, 3)))


def relpos(q, emb):
    n = q.shape[1]
    idx = (torch.arange(n)[:, None] - torch.arange(n)[None]).clamp(-3, 3) + 3
    return torch.einsum("bid,ijd->bij", q, emb[idx])


fcase("relpos", relpos, lambda n: (R(2, n, 4), R(7, 4)))


def t5_bucket(n, num=8, maxd=20):
    r = torch.arange(n)[None] - torch.arange(n)[:, None]
    ret = (r > 0).long() * (num // 2)
    r = r.abs()
    me = num // 4
    small = r < me
    big = me + (torch.log(r.float() / me) / math.log(maxd / me) * (num // 2 - me)).long()
    big = torch.min(big, torch.full_like(big, num // 2 - 1))
    return ret + torch.where(small, r, big)


fcase("t5_bucket", lambda x: x @ F.one_hot(t5_bucket(x.shape[1]), 8).float().sum(0), lambda n: (R(2, n),))
fcase("one_hot_turned", lambda x: F.one_hot((x.T * 9).int().long() % 4, 4), lambda n: (R(3, n),))
fcase("sdpa_causal", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), lambda n: (R(2, 2, n, 4),))
fcase(
    "gqa",
    lambda q, k: F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), k.repeat_interleave(2, dim=1)),
    lambda n: (R(2, 4, n, 4), R(2, 2, n, 4)),
)
case("nn_mha", lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda n: (q := R(n, 4, 8), q, q))
case(
    "enc_layer",
    lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True),
    lambda n: (R(2, n, 8),),
)
case(
    "dec_layer",
    lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0),
    lambda n: (R(n, 2, 8), R(4, 2, 8), nn.Transformer.generate_square_subsequent_mask(n)),
)
case(
    "enc_eval",
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval(),
    lambda n: (R(2, n, 8),),
)


# moe
class MoE(nn.Module):
    def __init__(s, k=2, E=4):
        super().__init__()
        s.g = nn.Linear(6, E)
        s.e = nn.ModuleList(nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)) for _ in range(E))
        s.k = k

    def forward(s, x):
        w, i = s.g(x).softmax(-1).topk(s.k, -1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e, ex in enumerate(s.e):
            t, k = torch.where(i == e)
            if t.numel() == 0:
                continue
            out.index_add_(0, t, ex(x[t]) * w[t, k, None])
        return out


case("moe_loop", MoE, lambda n: (R(n * 3, 6),))


class MoE2(MoE):
    def forward(s, x):
        g = s.g(x)
        w, i = torch.topk(g, s.k)
        w = w.softmax(-1)
        mask = F.one_hot(i, 4).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for e in range(4):
            k, t = torch.where(mask[e])
            out.index_add_(0, t, s.e[e](x[None, t].reshape(-1, 6)) * w[t, k, None])
        aux = (F.one_hot(i[:, 0], 4).float().mean(0) * g.softmax(-1).mean(0)).sum() * 4
        return out, aux


case("moe_onehot", MoE2, lambda n: (R(n * 3, 6),))


class MoE3(MoE):
    def forward(s, x):
        idx = s.g(x).argmax(-1)
        order = idx.argsort(stable=True)
        counts = torch.bincount(idx, minlength=4)
        outs = []
        xs = x[order]
        st = 0
        for e, c in zip(s.e, counts.tolist()):
            outs.append(e(xs[st : st + c]))
            st += c
        o = torch.empty_like(x)
        o[order] = torch.cat(outs)
        return o


case("moe_sorted", MoE3, lambda n: (R(n * 3, 6),))


class MoE4(MoE):
    def forward(s, x):
        idx = s.g(x).argmax(-1)
        counts = torch.bincount(idx, minlength=4).tolist()
        o = idx.argsort(stable=True)
        parts = [e(c) for e, c in zip(s.e, x[o].split(counts))]
        return torch.cat(parts)[o.argsort()]


case("moe_split", MoE4, lambda n: (R(n * 3, 6),))


# rnn
class LSTM(nn.Module):
    def __init__(s, i=5, h=6):
        super().__init__()
        s.w = nn.Linear(i + h, 4 * h)
        s.hs = h

    def forward(s, x, st=None):
        B, T, _ = x.shape
        h, c = st if st else (x.new_zeros(B, s.hs), x.new_zeros(B, s.hs))
        out = []
        for t in range(T):
            i, f, g, o = s.w(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h)
        return torch.stack(out, 1), (h, c)


case("lstm_hand_batch", LSTM, lambda n: (R(n, 4, 5),))
case("lstm_hand_len", LSTM, lambda n: (R(2, n, 5),))
case("lstm_state", LSTM, lambda n: (R(n, 3, 5), (R(n, 6), R(n, 6))))
case("nn_lstm", lambda: nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True), lambda n: (R(n, 4, 5),))
case("nn_gru_len", lambda: nn.GRU(5, 6), lambda n: (R(n, 2, 5),))
case("nn_rnn", lambda: nn.RNN(5, 6, nonlinearity="relu"), lambda n: (R(n, 2, 5), R(1, 2, 6)))


class Packed(nn.Module):
    def __init__(s):
        super().__init__()
        s.r = nn.LSTM(5, 6, batch_first=True)

    def forward(s, x, l):
        p = nn.utils.rnn.pack_padded_sequence(x, l, batch_first=True, enforce_sorted=False)
        o, (h, _c) = s.r(p)
        o, ls = nn.utils.rnn.pad_packed_sequence(o, batch_first=True)
        return o, ls, h


case("packed", Packed, lambda n: (R(n, 6, 5), torch.randint(1, 7, (n,)).sort(descending=True)[0]))


class Cell(nn.Module):
    def __init__(s):
        super().__init__()
        s.c = nn.GRUCell(4, 4)
        s.l = nn.LSTMCell(4, 4)

    def forward(s, x):
        h = torch.zeros(x.shape[1], 4)
        st = None
        o = []
        for xt in x:
            h = s.c(xt, h)
            st = s.l(h, st)
            o += [st[0]]
        return torch.stack(o), h


case("cells", Cell, lambda n: (R(n, 3, 4),))


# conv
class Res(nn.Module):
    def __init__(s, ci=3, co=6, st=2):
        super().__init__()
        s.c1 = nn.Conv2d(ci, co, 3, st, 1, bias=False)
        s.b1 = nn.BatchNorm2d(co)
        s.c2 = nn.Conv2d(co, co, 3, padding=1)
        s.gn = nn.GroupNorm(2, co)
        s.d = nn.Conv2d(ci, co, 1, st)

    def forward(s, x):
        return F.relu(s.gn(s.c2(F.relu(s.b1(s.c1(x)), inplace=True))) + s.d(x))


case("resblock_b", Res, lambda n: (R(n, 3, 8, 8),))
case("resblock_hw", Res, lambda n: (R(2, 3, n + 4, n + 5),))


class UNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.a = nn.Conv2d(2, 4, 3, padding=1)
        s.b = nn.Conv2d(4, 8, 3, padding=1)
        s.u = nn.ConvTranspose2d(8, 4, 2, 2)
        s.o = nn.Conv2d(8, 1, 1)

    def forward(s, x):
        a = F.relu(s.a(x))
        b = F.relu(s.b(F.max_pool2d(a, 2)))
        u = s.u(b)
        dy, dx = a.shape[2] - u.shape[2], a.shape[3] - u.shape[3]
        return s.o(torch.cat([a, F.pad(u, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])], 1))


case("unet", UNet, lambda n: (R(2, 2, n + 4, n + 5),))
case(
    "dwsep",
    lambda: nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=4, padding=1),
        nn.Conv2d(4, 8, 1),
        nn.BatchNorm2d(8),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    ),
    lambda n: (R(n, 4, 6, 6),),
)
case(
    "conv1d_dil",
    lambda: nn.Sequential(
        nn.Conv1d(3, 4, 3, dilation=2, padding="same"),
        nn.ELU(),
        nn.AvgPool1d(2, ceil_mode=True),
        nn.InstanceNorm1d(4, affine=True),
    ),
    lambda n: (R(2, 3, n + 6),),
)


class Causal(nn.Module):
    def __init__(s):
        super().__init__()
        s.c = nn.Conv1d(3, 6, 3, dilation=2)

    def forward(s, x):
        a, b = s.c(F.pad(x, (4, 0))).chunk(2, 1)
        return a.tanh() * b.sigmoid()


case("wavenet", Causal, lambda n: (R(2, 3, n + 3),))
case("conv3d", lambda: nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.MaxPool3d(2)), lambda n: (R(n, 1, 4, 4, 4),))
case(
    "channels_last",
    lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1)),
    lambda n: (R(n, 3, 6, 6).to(memory_format=torch.channels_last),),
)


class SE(nn.Module):
    def __init__(s):
        super().__init__()
        s.f = nn.Sequential(nn.Linear(4, 2), nn.ReLU(True), nn.Linear(2, 4), nn.Sigmoid())

    def forward(s, x):
        b, c, _, _ = x.size()
        return x * s.f(x.mean((2, 3)).view(b, c)).view(b, c, 1, 1).expand_as(x)


case("se", SE, lambda n: (R(n, 4, 5, n + 2),))
fcase("pixel_shuffle", lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2) * 2, 2), lambda n: (R(2, 4, n, 3),))
fcase(
    "space_to_depth",
    lambda x: (
        x.reshape(x.shape[0], x.shape[1], x.shape[2] // 2, 2, x.shape[3] // 2, 2)
        .permute(0, 3, 5, 1, 2, 4)
        .reshape(x.shape[0], -1, x.shape[2] // 2, x.shape[3] // 2)
    ),
    lambda n: (R(n, 3, 4, 2 * n),),
)
fcase(
    "unfold_fold",
    lambda x: F.fold(F.unfold(x, 3, padding=1) * 2, x.shape[-2:], 3, padding=1),
    lambda n: (R(2, 2, n + 2, n + 3),),
)
fcase("unfold_method", lambda x: x.unfold(1, 3, 2).softmax(-1).sum(1), lambda n: (R(2, n + 4, 3),))
fcase(
    "patches",
    lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2),
    lambda n: (R(2, 3, 2 * n, 4),),
)


class ViT(nn.Module):
    def __init__(s):
        super().__init__()
        s.p = nn.Conv2d(3, 8, 4, 4)
        s.cls = nn.Parameter(R(1, 1, 8))
        s.pos = nn.Parameter(R(1, 5, 8))
        s.n = nn.LayerNorm(8)
        s.a = MHA()
        s.h = nn.Linear(8, 3)

    def forward(s, x):
        x = s.p(x).flatten(2).transpose(1, 2)
        x = torch.cat([s.cls.expand(x.shape[0], -1, -1), x], 1) + s.pos
        x = x + s.a(s.n(x))
        return s.h(x[:, 0])


case("vit", ViT, lambda n: (R(n, 3, 8, 8),))


class Swin(nn.Module):
    def __init__(s, w=4, sh=2):
        super().__init__()
        s.w, s.sh = w, sh
        s.a = MHA()

    def forward(s, x):
        B, H, W, Cc = x.shape
        w = s.w
        x = torch.roll(x, (-s.sh, -s.sh), (1, 2))
        x = x.view(B, H // w, w, W // w, w, Cc).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, w * w, Cc)
        x = s.a(x).view(B, H // w, W // w, w, w, Cc).permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, Cc)
        return torch.roll(x, (s.sh, s.sh), (1, 2))


case("swin", Swin, lambda n: (R(n, 8, 8, 8),))
case("swin_hw", Swin, lambda n: (R(2, 4 * (n - 1), 8, 8),))


class GLN(nn.Module):
    def __init__(s):
        super().__init__()
        s.g = nn.Parameter(torch.ones(6))
        s.b = nn.Parameter(torch.zeros(6))
        s.eps = 1e-5

    def forward(s, x):
        u = x.mean(-1, keepdim=True)
        v = (x - u).pow(2).mean(-1, keepdim=True)
        return s.g * ((x - u) / torch.sqrt(v + s.eps)) + s.b


case("ln_hand", GLN, lambda n: (R(n, 6),))


class RMS(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.ones(6))

    def forward(s, x):
        t = x.dtype
        x = x.float()
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(t) * s.w


case("rms", RMS, lambda n: (R(n, 6).bfloat16(),))


class BN(nn.Module):
    def __init__(s):
        super().__init__()
        s.register_buffer("rm", torch.zeros(4))
        s.register_buffer("rv", torch.ones(4))
        s.register_buffer("n", torch.tensor(0))
        s.w = nn.Parameter(torch.rand(4))

    def forward(s, x):
        if s.training:
            m, v = x.mean((0, 2)), x.var((0, 2), unbiased=False)
            with torch.no_grad():
                s.rm.lerp_(m, 0.1)
                s.rv.mul_(0.9).add_(0.1 * v)
                s.n += 1
        else:
            m, v = s.rm, s.rv
        return (x - m[None, :, None]) / (v[None, :, None] + 1e-5).sqrt() * s.w[:, None]


case("bn_hand", BN, lambda n: (R(n, 4, 3),), modes=("grad", "no_grad"))
for m_ in ("nearest", "bilinear", "bicubic", "area", "nearest-exact"):
    fcase("interp_" + m_, lambda x, m_=m_: F.interpolate(x, scale_factor=2, mode=m_), lambda n: (R(2, 2, n, n + 1),))
    fcase(
        "interp_size_" + m_,
        lambda x, y, m_=m_: F.interpolate(x, size=y.shape[-2:], mode=m_),
        lambda n: (R(2, 2, 4, 5), R(1, 1, n, n + 2)),
    )
fcase(
    "grid_sample",
    lambda x, t: F.grid_sample(x, F.affine_grid(t, x.shape, align_corners=False), align_corners=False),
    lambda n: (R(n, 2, 5, 6), R(n, 2, 3)),
)
case(
    "embbag",
    lambda: nn.EmbeddingBag(10, 4, mode="mean"),
    lambda n: (torch.randint(0, 10, (n * 3,)), torch.arange(0, n * 3, 3)),
)
case("emb_pad", lambda: nn.Embedding(10, 4, padding_idx=0, max_norm=None), lambda n: (torch.randint(0, 10, (n, 3)),))
case(
    "emb_maxnorm",
    lambda: nn.Embedding(10, 4, max_norm=1.0),
    lambda n: (torch.randint(0, 10, (n, 3)),),
    modes=("no_grad",),
)


def sinpos(x):
    n, d = x.shape[-2:]
    p = torch.arange(n).unsqueeze(1)
    dv = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
    pe = torch.zeros(n, d)
    pe[:, 0::2] = torch.sin(p * dv)
    pe[:, 1::2] = torch.cos(p * dv)
    return x + pe


fcase("sinpos", sinpos, lambda n: (R(2, n, 6),))


# gnn
class GCN(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(4, 5)

    def forward(s, x, ei):
        r, c = ei
        deg = torch.zeros(x.size(0)).scatter_add_(0, r, torch.ones(r.size(0)))
        dis = deg.pow(-0.5)
        dis[dis == float("inf")] = 0
        m = s.l(x)[c] * (dis[r] * dis[c])[:, None]
        return torch.zeros(x.size(0), 5).index_add(0, r, m)


case("gcn", GCN, lambda n: (R(n + 1, 4), torch.randint(0, n + 1, (2, 3 * n))))


class GAT(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(4, 4)
        s.a = nn.Parameter(R(8))

    def forward(s, x, ei):
        h = s.l(x)
        r, c = ei[0], ei[1]
        e = F.leaky_relu((torch.cat([h[r], h[c]], 1) * s.a).sum(1), 0.2)
        mx = torch.full((x.size(0),), -1e9).scatter_reduce(0, r, e, "amax")
        ex = (e - mx[r]).exp()
        den = torch.zeros(x.size(0)).index_add_(0, r, ex)
        al = ex / (den[r] + 1e-16)
        return F.elu(torch.zeros_like(h).scatter_add_(0, r[:, None].expand(-1, 4), al[:, None] * h[c]))


case("gat", GAT, lambda n: (R(n + 1, 4), torch.randint(0, n + 1, (2, 3 * n))))
fcase(
    "segment_mean",
    lambda x, i: torch.zeros(4, 3).index_add_(0, i, x) / torch.bincount(i, minlength=4).clamp(min=1)[:, None],
    lambda n: (R(2 * n, 3), torch.randint(0, 4, (2 * n,))),
)
fcase(
    "segment_max",
    lambda x, i: torch.zeros(4, 3).scatter_reduce(0, i[:, None].expand_as(x), x, reduce="amax", include_self=False),
    lambda n: (R(2 * n, 3), torch.randint(0, 4, (2 * n,))),
)
fcase(
    "segment_reduce",
    lambda x, l: torch.segment_reduce(x, "sum", lengths=l),
    lambda n: (R(2 * n, 3), torch.full((n,), 2)),
)
fcase(
    "global_pool",
    lambda x, b: torch.zeros(int(b.max()) + 1, 3).scatter_reduce(
        0, b[:, None].expand(-1, 3), x, "mean", include_self=False
    ),
    lambda n: (R(2 * n, 3), torch.arange(n).repeat_interleave(2)),
)
fcase(
    "adj_dense",
    lambda x, a: (lambda d: (d[:, None] * (a + torch.eye(a.shape[0])) * d) @ x)((a.sum(1) + 1).rsqrt()),
    lambda n: (R(n, 3), (R(n, n) > 0).float()),
)
# losses
fcase(
    "focal",
    lambda x, y: (lambda ce: (0.25 * (1 - torch.exp(-ce)) ** 2 * ce).mean())(F.cross_entropy(x, y, reduction="none")),
    lambda n: (R(n, 4), torch.randint(0, 4, (n,))),
)
fcase(
    "dice",
    lambda x, y: (
        1
        - (2 * (x.sigmoid().flatten(1) * y.flatten(1)).sum(1) + 1)
        / (x.sigmoid().flatten(1).sum(1) + y.flatten(1).sum(1) + 1)
    ),
    lambda n: (R(n, 1, 4, 4), (R(n, 1, 4, 4) > 0).float()),
)


def nt_xent(a, b, t=0.5):
    n = a.shape[0]
    z = F.normalize(torch.cat([a, b]), dim=1)
    s = z @ z.t() / t
    s.fill_diagonal_(float("-inf"))
    return F.cross_entropy(s, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))


fcase("nt_xent", nt_xent, lambda n: (R(n, 4), R(n, 4)))


def nt_xent2(a, b):
    n = len(a)
    z = F.normalize(torch.cat([a, b]))
    s = (z @ z.T)[~torch.eye(2 * n, dtype=torch.bool)].view(2 * n, -1)
    return s.logsumexp(1).mean()


fcase("nt_xent_mask", nt_xent2, lambda n: (R(n, 4), R(n, 4)))
fcase(
    "clip_loss",
    lambda i, t, s: (
        lambda l: (F.cross_entropy(l, torch.arange(len(l))) + F.cross_entropy(l.t(), torch.arange(len(l)))) / 2
    )(s.exp() * F.normalize(i, dim=-1) @ F.normalize(t, dim=-1).t()),
    lambda n: (R(n, 4), R(n, 4), torch.tensor(0.7)),
)
fcase(
    "ctc",
    lambda x, y, il, tl: F.ctc_loss(x.log_softmax(-1), y, il, tl, zero_infinity=True),
    lambda n: (R(8, n, 5), torch.randint(1, 5, (n, 3)), torch.full((n,), 8), torch.full((n,), 3)),
)
fcase("triplet", lambda a, p, q: F.triplet_margin_loss(a, p, q, margin=0.5), lambda n: (R(n, 4), R(n, 4), R(n, 4)))


def hardtrip(x, y):
    d = torch.cdist(x, x)
    same = y[:, None] == y[None]
    hp = (d * same).max(1)[0]
    hn = d.masked_fill(same, 1e9).min(1).values
    return F.relu(hp - hn + 0.2).mean()


fcase("hard_triplet", hardtrip, lambda n: (R(2 * n, 4), torch.arange(n).repeat(2)))
for k_, f_ in {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.huber_loss,
    "sl1": F.smooth_l1_loss,
    "kl": lambda a, b: F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean"),
    "cos": lambda a, b: 1 - F.cosine_similarity(a, b).mean(),
    "gnll": lambda a, b: F.gaussian_nll_loss(a, b, a.exp()),
    "pnll": F.poisson_nll_loss,
    "soft": lambda a, b: F.cross_entropy(a, b.softmax(-1)),
    "bce": lambda a, b: F.binary_cross_entropy(a.sigmoid(), (b > 0).float()),
}.items():
    fcase("loss_" + k_, f_, lambda n: (R(n, 4), R(n, 4)))
fcase(
    "ce_ignore",
    lambda x, y: F.cross_entropy(x.view(-1, x.size(-1)), y.view(-1), ignore_index=-100),
    lambda n: (R(n, 4, 5), torch.where(R(n, 4) > 0, torch.randint(0, 5, (n, 4)), -100)),
)
fcase(
    "ce_2d_w",
    lambda x, y, w: F.cross_entropy(x, y, weight=w, reduction="sum"),
    lambda n: (R(n, 3, 4, 4), torch.randint(0, 3, (n, 4, 4)), torch.tensor([1.0, 2.0, 0.5])),
)
fcase(
    "arcface",
    lambda x, w, y: (
        lambda c: F.cross_entropy(
            10 * torch.where(F.one_hot(y, 4).bool(), torch.cos(torch.acos(c.clamp(-0.99, 0.99)) + 0.5), c), y
        )
    )(F.linear(F.normalize(x), F.normalize(w))),
    lambda n: (R(n, 3), R(4, 3), torch.randint(0, 4, (n,))),
)
fcase(
    "vae_loss",
    lambda x, mu, lv: (
        F.binary_cross_entropy_with_logits(x, (x > 0).float(), reduction="sum")
        - 0.5 * torch.sum(1 + lv - mu.pow(2) - lv.exp())
    ),
    lambda n: (R(n, 4), R(n, 2), R(n, 2)),
)


# boxes
def iou(a, b):
    aa = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    ab = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    lt = torch.max(a[:, None, :2], b[:, :2])
    rb = torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    i = wh[:, :, 0] * wh[:, :, 1]
    return i / (aa[:, None] + ab - i)


def boxes(n):
    a = torch.rand(n, 2) * 5
    return torch.cat([a, a + 1 + torch.rand(n, 2) * 3], 1)


fcase("iou", iou, lambda n: (boxes(n), boxes(4)))


def nms(b, s, t):
    order = s.argsort(descending=True)
    keep = []
    while order.numel() > 0:
        i = order[0].item()
        keep.append(i)
        if order.numel() == 1:
            break
        o = iou(b[i][None], b[order[1:]])[0]
        order = order[1:][o <= t]
    return torch.tensor(keep)


fcase("nms", nms, lambda n: (boxes(2 * n), torch.rand(2 * n), 0.3), grad=False)


def giou_loss(a, b):
    i = iou(a, b).diagonal()
    return (1 - i).sum() + F.l1_loss(a, b)


fcase("giou", giou_loss, lambda n: (boxes(n), boxes(n)))
fcase(
    "cxcywh",
    lambda b: (lambda c, d, w, h: torch.stack([c - w / 2, d - h / 2, c + w / 2, d + h / 2], dim=-1))(*b.unbind(-1)),
    lambda n: (boxes(n),),
)


def anchors(f, scales=(1, 2)):
    h, w = f.shape[-2:]
    gy, gx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    g = torch.stack([gx, gy, gx, gy], -1).reshape(-1, 1, 4).float()
    base = torch.tensor([[-s, -s, s, s] for s in scales]).float()
    return (g + base).view(-1, 4) * f.mean()


fcase("anchors", anchors, lambda n: (R(1, 2, n, n + 1),))


def match(c):
    used = torch.zeros(c.shape[1], dtype=torch.bool)
    out = []
    for row in c:
        r = row.masked_fill(used, float("inf"))
        j = int(r.argmin())
        used[j] = True
        out.append(j)
    return out, used


fcase("greedy_match", match, lambda n: (R(n, n + 2),), grad=False)
