"""Activation checkpointing inside compiled functions: eager's gradients, and values that are really computed again."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import bolide
from bolide.support import events

WIDTH, ROWS = 32, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x)))) * scale


class Stack(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, **self.options) if self.options else block(x)
        return x


class Watcher:
    """The graphs that are compiled, and the bytes saved in between."""

    def __init__(self) -> None:
        self.graphs: dict[str, fx.Graph] = {}
        self.saved = 0

    def __call__(self, event: Any) -> None:
        if isinstance(event, events.Graph):
            self.graphs[event.kind] = event.graph.graph
        elif isinstance(event, events.Stage) and event.stage == "differentiate":
            self.saved = event.detail["saved bytes"]


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    watching = Watcher()
    events.subscribers.append(watching)
    yield watching
    events.subscribers.remove(watching)


def gradients(model: Any, fn: Any, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    out = fn(x)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), [x, *model.parameters()])]


def matmuls(graph: fx.Graph) -> int:
    names = [str(node.target) for node in graph.nodes]
    return sum(name.startswith(("aten.mm", "aten.addmm")) for name in names)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_values_are_computed_again(watcher: Watcher, backend: str, reentrant: bool) -> None:
    model = Stack(use_reentrant=reentrant)
    x = torch.randn(ROWS, WIDTH)
    plain = Stack()
    plain.load_state_dict(model.state_dict())
    expected = gradients(plain, plain, x)
    got = gradients(model, bolide.compile(model, backend=backend, fullgraph=True), x)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    # what is saved: the input of each block but the first; one block in eager saves 9 times as much
    assert watcher.saved == 3 * ROWS * WIDTH * 4
    assert matmuls(watcher.graphs["backward"]) == 4 * 4 + 4  # of the two products, only the first is needed again


def test_each_region_is_computed_again_when_its_turn_comes(watcher: Watcher) -> None:
    model = Stack(use_reentrant=False)
    gradients(model, bolide.compile(model, backend="aot_eager", fullgraph=True), torch.randn(ROWS, WIDTH))
    alive, peak = 0, 0
    graph = watcher.graphs["backward"]
    last = {source: node for node in graph.nodes for source in node.all_input_nodes}
    for node in graph.nodes:
        if node.op == "call_function" and str(node.target).startswith(("aten.addmm", "aten.gelu", "aten.mm")):
            alive += node.meta["val"].numel
            peak = max(peak, alive)
        for source in node.all_input_nodes:
            if last[source] is node and str(source.target).startswith(("aten.addmm", "aten.gelu", "aten.mm")):
                alive -= source.meta["val"].numel
    assert peak < 2 * 4 * WIDTH * ROWS + 4 * 2 * 4 * WIDTH * WIDTH + 3 * 4 * WIDTH * ROWS


def _statistics(model: nn.Module, x: torch.Tensor) -> Any:
    return checkpoint(model, x, use_reentrant=False)


def _counter(model: Any, x: torch.Tensor) -> Any:
    def region(x: torch.Tensor) -> torch.Tensor:
        model.calls = getattr(model, "calls", 0) + 1
        return model(x).tanh()

    return checkpoint(region, x * 2, use_reentrant=False)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fn", [_statistics, _counter])
def test_what_a_region_writes_is_written_again(fn: Any, backend: str) -> None:
    """Eager computes the region again with all that it does: so it is called for real."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
    twin = copy.deepcopy(model)
    compiled = bolide.compile(fn, backend=backend)
    for _ in range(2):
        x = torch.randn(2, 3, 8, 8, requires_grad=True)
        found, expected = (torch.autograd.grad(f(m, x).square().sum(), x) for f, m in ((compiled, model), (fn, twin)))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(model.state_dict(), twin.state_dict())
        assert getattr(model, "calls", 0) == getattr(twin, "calls", 0)
    with pytest.raises(bolide.Unsupported, match="a checkpointed region writes outside"):
        bolide.compile(fn, backend=backend, fullgraph=True)(model, x)
    with torch.no_grad():  # nothing is computed again
        bolide.compile(fn, backend=backend, fullgraph=True)(model, x)


def test_a_region_draws_again_from_generators_of_the_users() -> None:
    """Eager puts back the state of torch's own only."""

    def fn(g: torch.Generator, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda t: (t * torch.rand(5, generator=g)).exp(), x, use_reentrant=False) * 2

    compiled = bolide.compile(fn, backend="eager")
    x = torch.randn(5, requires_grad=True)
    ours, theirs = (torch.Generator().manual_seed(3) for _ in range(2))
    for _ in range(2):
        found, expected = (torch.autograd.grad(f(g, x).sum(), x)[0] for f, g in ((compiled, ours), (fn, theirs)))
        torch.testing.assert_close(found, expected)
        assert torch.equal(ours.get_state(), theirs.get_state())


def test_a_break_inside_a_region() -> None:
    def region(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        bolide.graph_break()
        return y.exp()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(region, x * 2, use_reentrant=False) * 3

    compiled = bolide.compile(fn, backend="eager")
    x = torch.randn(5, requires_grad=True)
    for _ in range(2):
        found, expected = (torch.autograd.grad(function(x).sum(), x)[0] for function in (compiled, fn))
        torch.testing.assert_close(found, expected)


def test_dropout_is_the_same_again() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x.exp(), 0.5) ** 2

    @bolide.compile(fullgraph=True)
    def fn(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False)

    x = torch.randn(100, requires_grad=True)
    y = fn(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, 2 * y)


def save_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    wide = op is torch.ops.aten.addmm.default and args[2].shape[1] == 4 * WIDTH
    return CheckpointPolicy.MUST_SAVE if wide else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("choice", [save_products, [torch.ops.aten.addmm.default]])
def test_selective(watcher: Watcher, choice: Any) -> None:
    contexts = functools.partial(create_selective_checkpoint_contexts, choice)
    model = Stack(use_reentrant=False, context_fn=contexts)
    x = torch.randn(ROWS, WIDTH)
    expected = gradients(model, model, x)
    got = gradients(model, bolide.compile(model, backend="aot_eager", fullgraph=True), x)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert matmuls(watcher.graphs["backward"]) == 4 * 4  # no product is computed again
    assert watcher.saved == (3 + 4 * 4) * ROWS * WIDTH * 4


def test_sequential_and_keywords_and_nesting() -> None:
    model = nn.Sequential(Block(), Block(), Block())

    def inner(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(model[0], x, use_reentrant=False, scale=0.5).tanh()

    def fn(x: torch.Tensor) -> torch.Tensor:
        x = checkpoint_sequential(model, 2, x, use_reentrant=False)
        return checkpoint(inner, x, use_reentrant=False)

    x = torch.randn(ROWS, WIDTH)
    expected = gradients(model, fn, x)
    torch.testing.assert_close(gradients(model, bolide.compile(fn, fullgraph=True), x), expected, atol=1e-4, rtol=1e-4)


def test_reentrant_without_differentiable_arguments_gives_no_gradient() -> None:
    model = Block()
    compiled = bolide.compile(lambda x: checkpoint(model, x, use_reentrant=True), backend="eager", fullgraph=True)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        assert not compiled(torch.randn(2, WIDTH)).requires_grad


@pytest.mark.parametrize("name", ["Llama", "Bert"])
def test_gradient_checkpointing_of_hugging_face_models(watcher: Watcher, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
    config = getattr(transformers, f"{name}Config")(vocab_size=128, **sizes)
    kind = f"{name}ForCausalLM" if name == "Llama" else f"{name}ForMaskedLM"
    model = getattr(transformers, kind)(config).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    ids = torch.randint(0, 128, (2, 16))

    def run(fn: Any) -> list[torch.Tensor]:
        loss = fn(input_ids=ids, labels=ids, use_cache=False).loss if name == "Llama" else fn(ids, labels=ids).loss
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)]

    expected = run(model)
    run(bolide.compile(model, backend="aot_eager", fullgraph=True))
    without = watcher.saved
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    got = run(bolide.compile(model, backend="aot_eager", fullgraph=True))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    assert watcher.saved < without / 2


def test_other_random_numbers_in_the_backward_pass() -> None:
    """Without `preserve_rng_state` eager draws anew: so the region is called for real."""
    model = nn.Linear(4, 4)

    def fn(x: torch.Tensor, dropped: float) -> torch.Tensor:
        def region(x: torch.Tensor) -> torch.Tensor:
            return torch.dropout(model(x), dropped, True).sin()

        return checkpoint(region, x * 2, use_reentrant=False, preserve_rng_state=False) * x

    found = []
    for function in (fn, bolide.compile(fn, backend="eager")):
        torch.manual_seed(4)
        x = torch.ones(8, 4, requires_grad=True)
        function(x, 0.5).sum().backward()
        found.append((x.grad, torch.rand(2)))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    with pytest.raises(bolide.Unsupported, match="other random numbers"):
        bolide.compile(fn, backend="aot_eager", fullgraph=True)(x, 0.5)
    bolide.compile(fn, backend="aot_eager", fullgraph=True)(x, 0.0)


class Counting(nn.Module):
    """Breaks, and counts how often it is called."""

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.block, self.norm = Block(), nn.BatchNorm1d(WIDTH)
        self.breaks, self.calls = breaks, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.norm(self.block(x))
        if self.breaks:
            bolide.dynamo.graph_break()
        return (x @ x.T).sin()


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_compiled_functions_inside_of_a_checkpoint(reentrant: bool, breaks: bool, early: bool) -> None:
    """What is computed again stops at the last tensor that is needed; it is not made again in eager for that."""
    eager, found = Counting(breaks), []
    model = copy.deepcopy(eager)
    for fn in (eager, bolide.compile(model)):
        for rows in (3, 3, 4, 6):
            x = torch.linspace(-1, 1, rows * WIDTH).view(rows, WIDTH).requires_grad_()
            with torch.utils.checkpoint.set_checkpoint_early_stop(early):
                y = checkpoint(fn, x, use_reentrant=reentrant)
            y.sum().backward()
            found.append((y, x.grad))
    half = len(found) // 2
    torch.testing.assert_close(found[half:], found[:half], atol=1e-3, rtol=1e-3)
    grads = [[parameter.grad for parameter in fn.parameters()] for fn in (model, eager)]
    torch.testing.assert_close(*grads, atol=1e-3, rtol=1e-3)
    assert (
        model.calls in (eager.calls, half) if early else model.calls == eager.calls
    )  # writes come behind what is saved
    assert torch.equal(model.norm.num_batches_tracked, eager.norm.num_batches_tracked)


def _own_contexts() -> Any:
    return torch.autocast("cpu"), torch.autocast("cpu")


def _known_contexts() -> Any:
    return create_selective_checkpoint_contexts(policy_fn_or_list=[torch.ops.aten.mm.default])


def _reentrant(function: Any, **options: Any) -> Any:
    return lambda x: checkpoint(function, x * 1, use_reentrant=True, **options)


def _plain(function: Any, **options: Any) -> Any:
    return lambda x: checkpoint(function, x * 1, use_reentrant=False, **options)


def _as_it_is(x: torch.Tensor) -> Any:
    y = checkpoint(lambda x: x, x, use_reentrant=True)
    return y is x, y


def _without_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        return _as_it_is(x)


def _by_name(x: torch.Tensor) -> Any:
    return torch.autograd.grad(checkpoint(torch.sin, x, use_reentrant=True).sum(), x)


def _inputs_by_name(x: torch.Tensor) -> None:
    checkpoint(torch.sin, x, use_reentrant=True).sum().backward(inputs=[x])


def _catching(x: torch.Tensor) -> Any:
    try:
        return checkpoint(torch.sin, x, use_reentrant=False, context_fn=_own_contexts)
    except NotImplementedError:
        return x


def _hooked(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda tangent: tangent * 2)
    return x.sin()


LEFT_TO_EAGER = {  # what shows how eager runs a checkpoint, or what it refuses
    "contexts": _plain(lambda x: x @ x.T, context_fn=_own_contexts),
    "contexts for the second run only": _plain(torch.sin, context_fn=lambda: (_known_contexts()[0], torch.no_grad())),
    "contexts in a try": _catching,
    "grad mode": _reentrant(lambda x: x * (2 if torch.is_grad_enabled() else 3)),
    "a leaf": _reentrant(lambda x: x * (2 if x.is_leaf else 3)),
    "requires_grad": _reentrant(lambda x: x * (2 if (x * 2).requires_grad else 3)),
    "a hook": _reentrant(_hooked),
    "a write": _reentrant(lambda x: x.mul_(2).sin()),
    "a list": _reentrant(lambda x: [x * 2]),
    "a list in a tuple": _reentrant(lambda x: (x * 2, [x * 3])),
    "a dict": _reentrant(lambda x: {"a": x * 2}),
    "no history": _reentrant(lambda x: x.detach() * 2),
    "the argument": _as_it_is,
    "a view of the argument": _reentrant(lambda x: x.view(-1)),
    "pieces": _reentrant(lambda x: (x * 2).chunk(2)),
    "gradients by name": _by_name,
    "backward by name": _inputs_by_name,
    "debug": _reentrant(torch.sin, debug=True),
    "keywords": _reentrant(torch.sin, out=None),
    "a check that there is not": _plain(torch.sin, determinism_check="bogus"),
    "no function": lambda x: checkpoint(use_reentrant=False),
}
CAPTURED = {
    "known contexts": _plain(lambda x: x @ x.T, context_fn=_known_contexts),
    "a check": _plain(torch.sin, determinism_check="none"),
    "a tuple": _reentrant(lambda x: (x.sin(), x.argmax(), 3, None)),
    "a view": _reentrant(lambda x: (x * 2).t()),
    "backward": lambda x: _reentrant(torch.sin)(x).sum().backward(),
    "grad mode off": _without_grad,
    "nothing to derive": lambda x: checkpoint(lambda y: (y, y + 1), x.detach(), use_reentrant=True),
}


def _seen(fn: Any) -> list[Any]:
    found: list[Any] = []
    for rows in (2, 2, 3):
        x = torch.linspace(0, 1, 2 * rows).view(rows, 2).requires_grad_()
        try:
            result = fn(x)
        except Exception as error:
            found.append((type(error), str(error)))
            continue
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        found.append((str(torch.utils._pytree.tree_map(lambda leaf: torch.is_tensor(leaf) or leaf, result)), None))
        found.append([(tensor.tolist(), tensor.requires_grad) for tensor in tensors])
        derived = [tensor.sum() for tensor in tensors if tensor.requires_grad]
        try:
            torch.autograd.backward(derived)
        except RuntimeError as error:
            found.append(str(error))
        found.append(None if x.grad is None else x.grad.tolist())
    return found


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("name", [*LEFT_TO_EAGER, *CAPTURED])
def test_what_shows_how_eager_runs_a_checkpoint(name: str) -> None:
    program = (LEFT_TO_EAGER | CAPTURED)[name]
    assert str(_seen(bolide.compile(program))) == str(_seen(program))
    whole = bolide.compile(program, fullgraph=True)
    x = torch.ones(2, 2, requires_grad=True)
    if name in CAPTURED:
        whole(x)
    else:
        with pytest.raises(bolide.Unsupported) as caught:
            whole(x)
        assert caught.value.kind == "context"
