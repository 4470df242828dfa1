"""Functions of one item that `torch.vmap` calls for a batch, and their gradients for each item, are compiled once for
all numbers of items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap

from tests.ordinary_tools import check_whole

Item = Callable[[Tensor, Tensor], Tensor]
WEIGHT, CHANNELS = torch.arange(3.0, dtype=torch.float64), torch.arange(4.0, dtype=torch.float64)
ITEMS: dict[str, Item] = {
    "gather": lambda a, i: a.gather(1, i[:, None]),
    "gather_from_the_end": lambda a, i: a.gather(-2, i[:, None].clamp(max=3)),
    "scatter": lambda a, i: a.scatter(1, i[:, None], 1.5),
    "scatter_source": lambda a, i: a.scatter(1, i[:, None], a[:, :1] * 2),
    "scatter_add": lambda a, i: torch.zeros(4, 3).scatter_add(1, i[:, None].expand(4, 3), a),
    "take_along_dim": lambda a, i: torch.take_along_dim(a, i[:, None], 1),
    "index_select": lambda a, i: a.index_select(0, i),
    "index_select_columns": lambda a, i: a.index_select(-1, torch.tensor([2, 0])),
    "index_add": lambda a, i: torch.zeros(3, 3).index_add(0, i, a, alpha=2),
    "index_add_columns": lambda a, i: a.index_add(1, torch.tensor([0, 2]), a[:, 1:]),
    "embedding": lambda a, i: F.embedding(i, a),
    "embedding_padded": lambda a, i: F.embedding(i, a, padding_idx=1),
    "embedding_shared": lambda a, i: F.embedding(i, torch.ones(3, 2)) * a.sum(),
    "embedding_of_each": lambda a, i: F.embedding(torch.tensor([2, 0, 2]), a, padding_idx=2),
    "convolved": lambda a, i: F.conv1d(a[None], torch.ones(2, 4, 2)),
    "convolved_in_groups": lambda a, i: F.conv1d(a[None], torch.ones(6, 2, 2) * 0.5, groups=2),
    "concatenated": lambda a, i: torch.cat([a, torch.ones(2, 3), a * 2]),
    "negative_log_likelihood": lambda a, i: F.nll_loss(a, i),
    "weighted": lambda a, i: F.nll_loss(a, i, torch.tensor([1.0, 2.0, 0.5]), ignore_index=2, reduction="sum"),
    "cross_entropy": lambda a, i: F.cross_entropy(a, i, reduction="none"),
    "layer_norm": lambda a, i: F.layer_norm(a.double(), (3,), WEIGHT, WEIGHT.exp()),  # rows may be nearly constant
    "layer_norm_of_all": lambda a, i: F.layer_norm(a, (4, 3)),
    "layer_norm_of_each": lambda a, i: F.layer_norm(a.double(), (3,), a[0].double(), a[1].double()),
    "layer_norm_shifted": lambda a, i: F.layer_norm(a.double(), (3,), WEIGHT, a[1].double()),
    "group_norm": lambda a, i: F.group_norm(a[None].double(), 2, CHANNELS, CHANNELS.exp()),
    "group_norm_of_each": lambda a, i: F.group_norm(a.expand(2, 4, 3).double(), 2, a[:, 0].double(), a[:, 1].double()),
    "batch_norm": lambda a, i: F.batch_norm(a.T.double(), None, None, CHANNELS, CHANNELS.exp(), training=True),
    "batch_norm_of_each": lambda a, i: F.batch_norm(
        a.double(), a[0].detach().double(), a[1].detach().double().exp(), a[2].double(), a[3].double()
    ),
    "batch_norm_of_images": lambda a, i: F.batch_norm(
        a.double().expand(2, 4, 3), CHANNELS, CHANNELS.exp(), None, a[:, 0].double()
    ),
    "instance_norm": lambda a, i: F.instance_norm(a[None].double(), None, None, a[:, 0].double(), CHANNELS),
    "parts": lambda a, i: a[1] * 2 + a[-2:, 1:].sum() + a[::2].prod(),
    "pooled": lambda a, i: F.max_pool2d(a[None], 2, 1) + F.adaptive_avg_pool2d(a[None], (3, 2)),
    "sorted": lambda a, i: a.sort(0)[0] + a.topk(2)[0].sum(),
    "attention": lambda a, i: F.scaled_dot_product_attention(a[None], a[None], a[None]),
    "mean": lambda a, i: F.mse_loss(a, i[:, None].to(a)),
}


def inputs(place: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of several sizes, with the items along a dimension."""
    return [(torch.randn(n, 4, 3).movedim(0, place), torch.randint(3, (n, 4))) for n in (3, 6, 5, 9, 7)]


@pytest.mark.parametrize("name", ITEMS)
def test_operations_on_items(name: str) -> None:
    item, place = ITEMS[name], int(torch.randint(3, ()))

    def batch(a: Tensor, i: Tensor) -> object:
        def loss(a: Tensor, i: Tensor) -> Tensor:
            out = item(a, i)
            return (out * torch.linspace(1, 2, out.numel()).view(out.shape)).sum()

        return vmap(item, (place, 0))(a, i), vmap(grad(loss), (place, 0))(a, i), vmap(item, (place, None))(a, i[0])

    check_whole(lambda compile: [run(*given) for run in [compile(batch)] for given in inputs(place)])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6, padding_idx=0)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.embedding(ids)).relu().mean(-2))  # type: ignore[no-any-return]


def images() -> nn.Module:
    convolutions = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Conv2d(4, 6, 2, dilation=2)
    pools = nn.MaxPool2d(2, 1), nn.AvgPool2d(2, 1), nn.AdaptiveAvgPool2d(2)
    return nn.Sequential(
        convolutions[0], pools[0], nn.ReLU(), convolutions[1], *pools[1:], nn.Flatten(), nn.Linear(24, 3)
    )


def grouped() -> nn.Module:
    layers = nn.Conv2d(2, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.SiLU(), nn.Conv2d(4, 4, 2, groups=4, stride=2)
    return nn.Sequential(*layers, nn.GroupNorm(1, 4, affine=False), nn.Flatten(), nn.Linear(16, 3))


SAMPLES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "texts": (Classifier, lambda n: torch.randint(7, (n, 5))),
    "images": (images, lambda n: torch.randn(n, 1, 12, 13)),
    "groups": (grouped, lambda n: torch.randn(n, 2, 7, 6)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_gradients_for_each_sample(name: str) -> None:
    """The gradient of the loss of each sample, as for training with differential privacy."""
    make, samples = SAMPLES[name]

    def program(compile: Any) -> object:
        module = make()

        def loss(parameters: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
            logits = functional_call(module, parameters, (sample[None],))
            return F.cross_entropy(logits, label[None])

        def clipped(parameters: dict[str, Tensor], ids: Tensor, labels: Tensor) -> object:
            grads = vmap(grad(loss), (None, 0, 0))(parameters, ids, labels)
            norms = torch.stack([each.flatten(1).norm(dim=1) for each in grads.values()]).norm(dim=0)
            return {name: torch.einsum("i,i...->...", (1 / norms).clamp(max=1), each) for name, each in grads.items()}

        compiled = compile(clipped)
        parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
        return [compiled(parameters, samples(n), torch.randint(3, (n,))) for n in (3, 6, 4, 9, 7)]

    check_whole(program)


def test_ensembles() -> None:
    """Several models at once, each with its own weights, and their gradients, for batches of several sizes."""

    def program(compile: Any) -> object:
        models = [
            nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3)).double() for _ in range(3)
        ]
        weights, _ = stack_module_state(models)
        state = {name: weight.detach() for name, weight in weights.items()}

        def loss(state: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(models[0], state, (x,)), label)

        def step(state: dict[str, Tensor], x: Tensor, labels: Tensor) -> object:
            return vmap(grad(loss), (0, None, None))(state, x, labels), vmap(loss, (0, 0, None))(
                state, x.expand(3, -1, 4), labels
            )

        step = compile(step)
        return [step(state, torch.randn(n, 4).double(), torch.randint(3, (n,))) for n in (4, 6, 5, 9, 7)]

    check_whole(program)


def test_transforms_in_transforms() -> None:
    """Batches of batches, and Jacobians of functions of batches."""

    def nested(a: Tensor, i: Tensor) -> object:
        pairs = vmap(vmap(lambda x, j: x.gather(0, j[None]), (0, 0)), (0, 0))(a, i)
        slopes = jacrev(lambda a: vmap(lambda x, j: F.cross_entropy(x, j))(a, i).sum(0))(a)
        return pairs, slopes, grad(lambda a: vmap(lambda x: torch.cat([x, x]).sort()[0][3])(a.flatten(1)).sum())(a)

    check_whole(lambda compile: [run(*given) for run in [compile(nested)] for given in inputs(0)])
