"""Models of the zoo in plain PyTorch; each `forward` gives its outputs or, when targets are given, its loss."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """`depth` hidden layers of width `hidden` with LayerNorm and GELU; (rows, features) → (rows, classes)."""

    def __init__(self, features: int, hidden: int, depth: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(depth):
            layers += [nn.Linear(features if i == 0 else hidden, hidden), nn.LayerNorm(hidden), nn.GELU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        logits = self.head(self.body(x))
        return logits if targets is None else F.cross_entropy(logits, targets)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut (He et al. 2015, figure 5 left)."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = projection(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 convolutions with a shortcut (He et al. 2015, figure 5 right)."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * self.expansion
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out)
        self.shortcut = projection(channels, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x), inplace=True)


def projection(channels: int, out: int, stride: int) -> nn.Module:
    """The shortcut of a residual block: the identity where shapes allow it."""
    if channels == out and stride == 1:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    """ResNet for (batch, 3, height, width) images; `depths` blocks in each of four stages, the first of width 64."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        stages: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for i in range(depth):
                stages.append(block(channels, width, 2 if stage > 0 and i == 0 else 1))
                channels = width * block.expansion
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        y = self.stages(self.stem(x))
        logits = self.head(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))
        return logits if targets is None else F.cross_entropy(logits, targets)


class UNetBlock(nn.Module):
    """Residual block of a diffusion UNet: GroupNorm, SiLU, convolution, with the time embedding added in the middle."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, channels)
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.norm2 = nn.GroupNorm(8, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.shortcut(x)


class UNetAttention(nn.Module):
    """Self-attention over the pixels of a feature map."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(batch, 3, self.heads, channels // self.heads, height * width)
        q, k, v = qkv.transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(batch, channels, height, width))


class UNet(nn.Module):
    """A diffusion UNet: noisy images (batch, 4, size, size) and times (batch,) → the noise, or its squared error."""

    def __init__(self, width: int, heads: int, multipliers: tuple[int, ...] = (1, 2, 4)) -> None:
        super().__init__()
        time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(4, width, 3, padding=1)
        widths = [width * m for m in multipliers]
        self.down = nn.ModuleList()
        self.shrink = nn.ModuleList()
        channels = width
        for out in widths:
            self.down.append(UNetBlock(channels, out, time))
            self.shrink.append(nn.Conv2d(out, out, 3, 2, 1))
            channels = out
        self.middle1 = UNetBlock(channels, channels, time)
        self.attention = UNetAttention(channels, heads)
        self.middle2 = UNetBlock(channels, channels, time)
        self.up = nn.ModuleList()
        for out in reversed(widths):
            self.up.append(UNetBlock(channels + out, out, time))
            channels = out
        self.norm = nn.GroupNorm(8, channels)
        self.head = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor, noise: Tensor | None = None) -> Tensor:
        half = self.width // 2
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(half, device=x.device) / half)
        angles = time[:, None].float() * frequencies[None]
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype))
        y = self.stem(x)
        skips = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            y = block(y, embedding)
            skips.append(y)
            y = shrink(y)
        y = self.middle2(self.attention(self.middle1(y, embedding)), embedding)
        for block in self.up:
            y = F.interpolate(y, scale_factor=2.0, mode="nearest")
            y = block(torch.cat([y, skips.pop()], 1), embedding)
        y = self.head(F.silu(self.norm(y)))
        return y if noise is None else F.mse_loss(y, noise)


class LSTMLanguageModel(nn.Module):
    """Embedding, `nn.LSTM`, linear head; tokens (batch, sequence) → logits, or the next-token loss."""

    def __init__(self, vocabulary: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        logits = self.head(self.lstm(self.embedding(tokens))[0])
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class HandLSTM(nn.Module):
    """An LSTM written by hand, step by step; (batch, steps, features) → last state, or its squared error."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.x2g = nn.Linear(features, 4 * hidden)
        self.h2g = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        h = x.new_zeros(x.shape[0], self.hidden)
        c = x.new_zeros(x.shape[0], self.hidden)
        for step in range(x.shape[1]):
            i, f, g, o = (self.x2g(x[:, step]) + self.h2g(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h if targets is None else F.mse_loss(h, targets)


class Stencil(nn.Module):
    """Explicit steps of the 2-D heat equation with a learned diffusivity; (size, size) → the same, or its error."""

    def __init__(self, size: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.diffusivity = nn.Parameter(torch.full((size, size), 0.2))

    def forward(self, u: Tensor, targets: Tensor | None = None) -> Tensor:
        for _ in range(self.steps):
            p = F.pad(u, (1, 1, 1, 1))
            laplacian = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4.0 * u
            u = u + self.diffusivity * laplacian
        return u if targets is None else F.mse_loss(u, targets)


def horner(x: Tensor, *coefficients: float) -> Tensor:
    """The polynomial with the given coefficients, lowest order first."""
    y = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        y = y * x + c
    return y


class EquationOfState(nn.Module):
    """Density of sea water in kg/m³ from salinity (PSS-78), temperature (°C, IPTS-68) and pressure (bar).

    EOS-80: Fofonoff and Millard, Unesco technical papers in marine science 44 (1983), section 3. The input is
    multiplied by a learned scale, so that there is something to differentiate.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, s: Tensor, t: Tensor, p: Tensor, targets: Tensor | None = None) -> Tensor:
        s, t, p = s * self.scale[0], t * self.scale[1], p * self.scale[2]
        s15 = s * torch.sqrt(s)
        surface = (
            horner(t, 999.842594, 6.793952e-2, -9.095290e-3, 1.001685e-4, -1.120083e-6, 6.536332e-9)
            + horner(t, 8.24493e-1, -4.0899e-3, 7.6438e-5, -8.2467e-7, 5.3875e-9) * s
            + horner(t, -5.72466e-3, 1.0227e-4, -1.6546e-6) * s15
            + 4.8314e-4 * s * s
        )
        k0 = (
            horner(t, 19652.21, 148.4206, -2.327105, 1.360477e-2, -5.155288e-5)
            + horner(t, 54.6746, -0.603459, 1.09987e-2, -6.1670e-5) * s
            + horner(t, 7.944e-2, 1.6483e-2, -5.3009e-4) * s15
        )
        a = (
            horner(t, 3.239908, 1.43713e-3, 1.16092e-4, -5.77905e-7)
            + horner(t, 2.2838e-3, -1.0981e-5, -1.6078e-6) * s
            + 1.91075e-4 * s15
        )
        b = horner(t, 8.50935e-5, -6.12293e-6, 5.2787e-8) + horner(t, -9.9348e-7, 2.0816e-8, 9.1697e-10) * s
        density = surface / (1.0 - p / (k0 + (a + b * p) * p))
        return density if targets is None else F.mse_loss(density, targets)


class SoftActorCritic(nn.Module):
    """Squashed Gaussian actor, twin critics and the losses of Haarnoja et al. 2018; the noise is an input."""

    def __init__(self, observation: int, action: int, hidden: int) -> None:
        super().__init__()

        def net(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
            )

        self.actor = net(observation, 2 * action)
        self.critic1 = net(observation + action, 1)
        self.critic2 = net(observation + action, 1)
        self.log_alpha = nn.Parameter(torch.tensor(-1.0))

    def act(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action in (-1, 1) and its log probability (batch, 1)."""
        mean, log_std = self.actor(observation).chunk(2, -1)
        log_std = log_std.clamp(-20.0, 2.0)
        action = torch.tanh(mean + noise * log_std.exp())
        log_normal = -0.5 * noise * noise - log_std - 0.5 * math.log(2.0 * math.pi)
        return action, (log_normal - torch.log(1.0 - action * action + 1e-6)).sum(-1, keepdim=True)

    def value(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([observation, action], -1)
        return self.critic1(both), self.critic2(both)

    def forward(
        self,
        observation: Tensor,
        noise: Tensor,
        action: Tensor | None = None,
        reward: Tensor | None = None,
        following: Tensor | None = None,
        following_noise: Tensor | None = None,
    ) -> Tensor:
        if action is None or reward is None or following is None or following_noise is None:
            return self.act(observation, noise)[0]
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_log_p = self.act(following, following_noise)
            target = reward + 0.99 * (torch.minimum(*self.value(following, next_action)) - alpha * next_log_p)
        q1, q2 = self.value(observation, action)
        critic_loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        new_action, log_p = self.act(observation, noise)
        actor_loss = (alpha * log_p - torch.minimum(*self.value(observation, new_action))).mean()
        alpha_loss = -(self.log_alpha * (log_p.detach() - float(new_action.shape[-1]))).mean()
        return critic_loss + actor_loss + alpha_loss


class GraphNetwork(nn.Module):
    """Message passing with gather and index_add; features (nodes, width), edges (2, edges) → logits, or the loss."""

    def __init__(self, features: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.message = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.update = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, edges: Tensor, targets: Tensor | None = None) -> Tensor:
        source, target = edges[0], edges[1]
        degree = x.new_zeros(x.shape[0]).index_add(0, target, x.new_ones(target.shape[0])).clamp(min=1.0)
        h = F.relu(self.stem(x))
        for message, update in zip(self.message, self.update, strict=True):
            m = F.relu(message(torch.cat([h[source], h[target]], 1)))
            pooled = torch.zeros_like(h).index_add(0, target, m) / degree[:, None]
            h = h + F.relu(update(torch.cat([h, pooled], 1)))
        logits = self.head(h)
        return logits if targets is None else F.cross_entropy(logits, targets)


class MAML(nn.Module):
    """Meta-learning of a regression net: the loss after gradient steps that are differentiated as well (Finn 2017)."""

    def __init__(self, hidden: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.w1 = nn.Parameter(torch.randn(hidden, 1) * 0.5)
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter(torch.randn(1, hidden) / math.sqrt(hidden))
        self.b2 = nn.Parameter(torch.zeros(1))

    @staticmethod
    def predict(x: Tensor, weights: list[Tensor]) -> Tensor:
        w1, b1, w2, b2 = weights
        return F.linear(torch.tanh(F.linear(x, w1, b1)), w2, b2)

    def forward(self, support_x: Tensor, support_y: Tensor, query_x: Tensor, query_y: Tensor) -> Tensor:
        weights: list[Tensor] = [self.w1, self.b1, self.w2, self.b2]
        for _ in range(self.steps):
            loss = F.mse_loss(self.predict(support_x, weights), support_y)
            gradients = torch.autograd.grad(loss, weights, create_graph=True)
            weights = [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)]
        return F.mse_loss(self.predict(query_x, weights), query_y)
