"""Programs as users of other fields write them: meta-learning, contrastive learning, reinforcement learning."""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import bolide

NET = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
PARAMETERS = {"outer": {name: value.detach() for name, value in NET.named_parameters()}}


def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(functional_call(NET, parameters, (x,)), y)


def adapted(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    steps = grad(loss)(parameters, x, y)
    return loss({name: parameters[name] - 0.1 * steps[name] for name in parameters}, x, y)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: grad(loss)(PARAMETERS["outer"], x, y),
        lambda x, y: grad(lambda all, x, y: loss(all["outer"], x, y))(PARAMETERS, x, y),
        lambda x, y: vmap(loss, (None, 0, 0))(PARAMETERS["outer"], x, y),
        lambda x, y: vmap(grad(loss), (None, 0, 0))(PARAMETERS["outer"], x, y),
        lambda x, y: grad(lambda p: vmap(adapted, (None, 0, 0))(p, x, y).mean())(PARAMETERS["outer"]),
    ],
)
def test_transforms_take_parameters_from_outside(backend: str, program: Callable[..., Any]) -> None:
    x, y = torch.randn(4, 5, 1), torch.randn(4, 5, 1)
    torch.testing.assert_close(bolide.compile(program, backend=backend, fullgraph=True)(x, y), program(x, y))


class Queue(nn.Module):
    """A queue of keys with a pointer among the buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 3), nn.Linear(4, 3)
        self.register_buffer("queue", F.normalize(torch.randn(3, 8), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        start = int(self.pointer)
        self.queue[:, start : start + keys.shape[0]] = keys.T
        self.pointer[0] = (start + keys.shape[0]) % 8

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        query = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            key = F.normalize(self.key(b), dim=1)
        near = torch.einsum("nc,nc->n", query, key).unsqueeze(-1)
        far = torch.einsum("nc,ck->nk", query, self.queue.clone().detach())
        logits = torch.cat([near, far], 1) / 0.07
        self.enqueue(key)
        return logits


class Counting(nn.Module):
    """A module that keeps a record of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.warm = 0, True
        self.norms: dict[str, list[Tensor]] = defaultdict(list)
        self.linear = nn.Linear(4, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        self.steps += 1
        y = self.linear(a - b)
        self.norms["y"].append(y.detach().norm())
        if self.steps >= 2 and self.warm:
            self.warm = False
            y = y * 2
        return y


def teacher_and_student() -> Any:
    student = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    teacher = copy.deepcopy(student).requires_grad_(False)

    def step(a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(b)
        found = F.cosine_similarity(student(a), wanted).mean()
        with torch.no_grad():
            for ours, theirs in zip(student.parameters(), teacher.parameters()):
                theirs.data.mul_(0.9).add_(0.1 * ours.detach().data)
        return found

    return step, lambda: [*student.state_dict().values(), *teacher.state_dict().values()]


def replay() -> Any:
    online, target = nn.Linear(4, 2), nn.Linear(4, 2)
    memory: deque[tuple[Tensor, Tensor]] = deque(maxlen=3)
    optimizer = torch.optim.SGD(online.parameters(), 0.1, momentum=0.9)
    count = {"steps": 0}

    def step(a: Tensor, b: Tensor) -> Tensor | None:
        memory.append((a, b))
        count["steps"] += 1
        if len(memory) < 2:
            return None
        now, then = (torch.cat(items) for items in zip(*memory))
        values = online(now).max(1).values
        with torch.no_grad():
            wanted = target(then).max(1).values
        error = F.smooth_l1_loss(values, wanted)
        optimizer.zero_grad()
        error.backward()
        for parameter in online.parameters():
            parameter.grad.data.clamp_(-1, 1)
        optimizer.step()
        if count["steps"] % 2 == 0:
            target.load_state_dict(online.state_dict())
        return error.detach()

    return step, lambda: [*online.parameters(), *target.parameters(), torch.tensor([count["steps"], len(memory)])]


def module(kind: type[nn.Module]) -> Callable[[], Any]:
    def make() -> Any:
        made: Any = kind()
        return made, lambda: [*made.state_dict().values(), *getattr(made, "norms", {"y": []})["y"]]

    return make


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("make", [module(Queue), module(Counting), teacher_and_student, replay])
def test_steps_leave_the_state_that_eager_leaves(backend: str, make: Callable[[], Any]) -> None:
    seed = torch.initial_seed()
    steps, states = [], []
    for _ in range(2):
        torch.manual_seed(seed)
        step, state = make()
        steps.append(step)
        states.append(state)
    steps[0] = bolide.compile(steps[0], backend=backend)
    for _ in range(5):
        a, b = torch.randn(4, 4), torch.randn(4, 4)
        found, wanted = (step(a, b) for step in steps)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(states[0](), states[1](), rtol=1e-4, atol=1e-5)


def test_sequences_of_tensors_are_indices() -> None:
    def program(points: Tensor) -> Any:
        free = torch.full((4, 12), True)
        rows, columns = zip(*points)
        free[rows, columns] = False
        return free, free[rows, columns], free[[0, 1], columns[:2]]

    points = torch.stack([torch.randint(0, 4, (6,)), torch.randint(0, 12, (6,))], 1)
    found = bolide.compile(program, fullgraph=True)(points)
    for ours, theirs in zip(found, program(points)):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("asked", ["output_hidden_states", "output_attentions"])
def test_a_models_first_call_installs_its_hooks_in_the_graphs_effects(asked: str) -> None:
    """transformers installs them under a lock of its own, when a model is first asked for what they record."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=64
    )
    config._attn_implementation = "eager"
    model = transformers.BertModel(config).eval()
    twin = copy.deepcopy(model)
    compiled = bolide.compile(model, fullgraph=True, backend="eager")
    ids = torch.randint(0, 64, (2, 7))
    for _ in range(2):
        found, wanted = (call(ids, **{asked: True}) for call in (compiled, twin))
        recorded = found[asked.removeprefix("output_")]
        assert len(recorded) >= 2
        for ours, theirs in zip(recorded, wanted[asked.removeprefix("output_")], strict=True):
            assert torch.equal(ours, theirs)
    hooks = [[len(part._forward_hooks) for part in each.modules()] for each in (model, twin)]
    assert hooks[0] == hooks[1]
