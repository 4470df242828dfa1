"""Steps of training are compiled whole, whatever they are made of: layers, optimizer, scheduler, clipping, averages."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import operator
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.ordinary_tools import check_whole

WIDTH = 4


class Recurrent(nn.Module):
    """The last state of a recurrent layer over the features, each a step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = random.choice((nn.LSTM, nn.GRU, nn.RNN))(1, 5, num_layers=random.choice((1, 2)), batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x[..., None])[0][:, -1])  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(WIDTH, 6), nn.GELU(), nn.Linear(6, 3)),
    "recurrent": Recurrent,
    "normed": lambda: nn.Sequential(nn.Linear(WIDTH, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)),
    "weight_normed": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 6)), nn.Tanh(), nn.Linear(6, 3)
    ),
}
OPTIMIZERS: list[Callable[[Any], optim.Optimizer]] = [
    lambda parameters: optim.SGD(parameters, 0.1, momentum=0.9),
    lambda parameters: optim.AdamW(parameters, 0.01, eps=1e-3, foreach=random.random() < 0.5),
    lambda parameters: optim.RMSprop(parameters, 0.01, eps=1e-3),
]
SCHEDULERS: list[Callable[[optim.Optimizer], lr_scheduler.LRScheduler]] = [
    lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
    lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9),
    lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
]


@pytest.mark.parametrize("name", MODELS)
def test_steps_of_training(name: str) -> None:
    make, scheduled, clipped, averaged = random.choice(OPTIMIZERS), *(random.random() < 0.7 for _ in range(3))
    schedule, to_none, given = random.choice(SCHEDULERS), random.random() < 0.7, random.random() < 0.5
    print({"scheduled": scheduled, "clipped": clipped, "averaged": averaged, "to_none": to_none, "given": given})

    def program(compile: Any) -> object:
        model = MODELS[name]()
        optimizer = make(model.parameters())
        scheduler, average = schedule(optimizer) if scheduled else None, AveragedModel(model) if averaged else None

        def step(x: Tensor, labels: Tensor, optimizer: optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad(set_to_none=to_none)
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            if clipped:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return loss

        run, seen = compile(step), []
        for n in (4, 4, 5, 3, 6):
            x, labels = torch.randn(n, WIDTH), torch.randint(3, (n,))
            seen.append(run(x, labels, optimizer) if given else run(x, labels))
            if scheduler is not None:
                scheduler.step()
            if average is not None:
                average.update_parameters(model)
        return seen, model, average, optimizer.state_dict()

    check_whole(program, versions=4)  # the first step, which makes the state; the second; rates and sizes that change


@pytest.mark.parametrize("kind", ("mean", "ema", "own"))
def test_averages_of_weights(kind: str) -> None:
    """An average that counts its updates in a tensor, and treats the first one in another way, has two versions."""
    options: dict[str, Any] = {
        "mean": {},
        "ema": {"multi_avg_fn": get_ema_multi_avg_fn(0.8)},
        "own": {"avg_fn": lambda average, weight, count: average + (weight - average) / (count + 2)},
    }[kind]
    buffers, given = random.random() < 0.5, random.random() < 0.5

    def program(compile: Any) -> object:
        model = MODELS["normed"]()
        average = AveragedModel(model, use_buffers=buffers, **options)
        update, seen = compile(average.update_parameters if not given else AveragedModel.update_parameters), []
        for _ in range(6):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter))
            update(average, model) if given else update(model)
            seen.append(copy.deepcopy(average.state_dict()))
        return seen

    check_whole(program)


KEPT: dict[str, Callable[[Tensor], object]] = {
    "bool": lambda count: bool(count >= 2),
    "bool_of_number": lambda count: bool(count.item() % 2),
    "not": lambda count: not count > 3,
    "truth": lambda count: operator.truth(count - 1),
    "not_": lambda count: operator.not_(count % 3),
}


@pytest.mark.parametrize("name", KEPT)
def test_answers_that_are_kept(name: str) -> None:
    """What the program keeps of a counter is a truth: each of the two has a version, however the counter goes on."""

    def program(compile: Any) -> object:
        count, weight = torch.tensor(0), torch.ones(3)

        def update(x: Tensor) -> object:
            special = KEPT[name](count)
            for _ in range(2):
                if special:
                    weight.copy_(x)
                else:
                    weight.lerp_(x, 0.5)
            count.add_(1)
            return special, weight * 2

        run = compile(update)
        return [run(torch.randn(3)) for _ in range(9)], count, weight

    check_whole(program, versions=3)  # the first one has read the counter


@dataclasses.dataclass
class Tracker:
    best: float = 1e9
    steps: int = 0


HOLDERS: dict[str, Callable[..., Any]] = {
    "dataclass": Tracker,
    "simple_namespace": types.SimpleNamespace,
    "argparse_namespace": argparse.Namespace,
}


@pytest.mark.parametrize("made", (False, True))
@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_kept_of_the_best_step(name: str, made: bool) -> None:
    """A step that notes its best loss by a branch on data is compiled whole, whatever the note is made in."""

    def program(compile: Any) -> object:
        model, kept = MODELS["linear"](), HOLDERS[name](best=1e9, steps=0)
        optimizer = optim.SGD(model.parameters(), 0.1)

        def step(x: Tensor, labels: Tensor) -> object:
            notes = HOLDERS[name](best=1.5, steps=3) if made else kept
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            notes.steps += 1
            if loss.item() < notes.best:
                notes.best = loss.item()
            return notes.best, notes.steps, loss.detach()

        run = compile(step)
        return [run(torch.randn(n, WIDTH), torch.randint(3, (n,))) for n in (4, 4, 3, 5)], vars(kept)

    check_whole(program, versions=4)
