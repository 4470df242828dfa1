"""Random generators of Python and NumPy in captured code: their numbers are drawn when the function is called."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import bolide
from bolide.support import events
from bolide.support.errors import Unsupported

SEED = int(os.environ["BOLIDE_TEST_SEED"]) % 2**32
OWN = random.Random(SEED)


def scaled(x: Tensor) -> Tensor:
    return x * random.random() + random.uniform(-2, 3) - random.gauss(0, 1)


def whole_numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * random.randint(1, 9), x + random.randrange(5)


def loop(x: Tensor) -> Tensor:
    for _ in range(3):
        x = x.cos() * random.random()
    return x


def seeded(x: Tensor) -> tuple[Tensor, float]:
    first = random.random()
    random.seed(7)
    return x * random.random(), first


def numbers_alone(x: Tensor) -> tuple[Any, ...]:
    return random.random(), random.randint(0, 3), random.random() * 2 + 1, x.sin()


def drawn_and_dropped(x: Tensor) -> Tensor:
    random.random()
    return x + random.random()


def own_generator(x: Tensor) -> Tensor:
    return x * OWN.random() + OWN.random()


def numpys_numbers(x: Tensor) -> Tensor:
    return x * np.random.rand() + np.random.normal(1.0, 2.0)


def numpys_arrays(x: Tensor) -> tuple[Tensor, Any]:
    noise = np.random.uniform(size=(3,)).astype(np.float32)
    permutation = np.random.permutation(3)
    noise[0] = 5.0
    return x + torch.from_numpy(noise), permutation + 1


def array_as_it_is(x: Tensor) -> tuple[Tensor, Any, Any]:
    noise = np.random.standard_normal((2, 3))
    same = noise
    noise += 1
    return x * 2, noise, same


def tensors_as_they_are(x: Tensor) -> tuple[Tensor, Any, Tensor, Tensor]:
    order, noise = np.random.permutation(3), np.random.standard_normal(3)
    index, tensor = torch.from_numpy(order), torch.from_numpy(noise)
    tensor[0] = 5.0
    return x[index], noise, tensor, index


def never_dropped(x: Tensor) -> Tensor:
    if random.random() < 0.0 or np.random.uniform(0, 1) < 0 or random.uniform(-1, 2) > 2.0 or np.random.rand() >= 1:
        return x
    return x * 2


def dropped_layer(x: Tensor) -> Tensor:
    return x * 2 if random.random() < 0.5 else x.cos() * random.random()


def chosen(x: Tensor) -> Tensor:
    return x * [1.0, 2.0, 3.0][random.randint(0, 2)] + random.random()


def later_needed(x: Tensor) -> Tensor:
    a, b = random.random(), random.random()
    x = x * a
    return x + 1 if b < 0.3 else x - a


def rounded(x: Tensor) -> Tensor:
    a = random.random()
    return x * a + round(random.random(), 2)


def dropped_layers(x: Tensor) -> Tensor:
    for _ in range(2):
        skip = np.random.uniform(0, 1) < 0.4
        if not skip:
            x = x.cos() * 2
        if random.uniform(0, 1) < 0.5:
            x = x.sin()
        if OWN.random() > 0.5:
            x = x - 1
    return x + 1


def told_apart(x: Tensor) -> tuple[Tensor, bool]:
    return x + 1, random.random() < 0.5


def listed(x: Tensor) -> tuple[Tensor, str]:
    order = [1, 2, 3]
    random.shuffle(order)
    return x * order[0], f"{random.random():.3f}"


WHOLE = [
    never_dropped,
    scaled,
    whole_numbers,
    loop,
    seeded,
    numbers_alone,
    drawn_and_dropped,
    own_generator,
    numpys_numbers,
    numpys_arrays,
    array_as_it_is,
    tensors_as_they_are,
    later_needed,
    dropped_layers,
    told_apart,
]


def seed_all() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    OWN.seed(SEED)


def states() -> tuple[Any, ...]:
    return random.getstate(), OWN.getstate(), [str(part) for part in np.random.get_state()]


def calls(function: Callable[..., Any], count: int = 6) -> tuple[list[Any], Any]:
    seed_all()
    x = torch.randn(3, generator=torch.Generator().manual_seed(SEED))
    found = [function(x) for _ in range(count)]
    return found, states()


def agree(a: Any, b: Any, exact: bool) -> None:
    assert type(a) is type(b)
    if isinstance(a, (tuple, list)):
        for left, right in zip(a, b, strict=True):
            agree(left, right, exact)
    elif isinstance(a, Tensor):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b, **({"rtol": 0, "atol": 0} if exact else {}))
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0 if exact else 1e-12)
    else:
        assert a == b


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_draws_are_made_at_each_call(program: Callable[..., Any], backend: str) -> None:
    print("seed", SEED)
    expected, after = calls(program)
    found, state = calls(bolide.compile(program, backend=backend, fullgraph=True))
    agree(expected, found, backend == "eager")
    assert state == after


@pytest.mark.parametrize("program", [dropped_layer, chosen, rounded, listed], ids=lambda program: program.__name__)
def test_a_number_that_decides_is_drawn_for_real(program: Callable[..., Any]) -> None:
    print("seed", SEED)
    expected, after = calls(program)
    found, state = calls(bolide.compile(program, backend="eager"))
    agree(expected, found, True)
    assert state == after


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_what_was_drawn_goes_over_breaks(program: Callable[..., Any]) -> None:
    def broken(x: Tensor) -> Any:
        before = program(x)
        bolide.graph_break()
        after = program(x.cos())
        return before, after, random.random()

    print("seed", SEED)
    expected, after = calls(broken, 3)
    found, state = calls(bolide.compile(broken, backend="aot_eager"), 3)
    agree(expected, found, False)
    assert state == after


def test_fullgraph_says_what_decides() -> None:
    with pytest.raises(Unsupported, match=r"needs to know what Random.random draws(?s:.*)test_python_random.py"):
        bolide.compile(rounded, backend="eager", fullgraph=True)(torch.ones(2))


def test_what_decides_costs_one_break() -> None:
    segments = bolide.explain(rounded)(torch.ones(2))
    assert len(segments.breaks) == 1


def test_a_generator_is_an_argument_like_others() -> None:
    def program(x: Tensor, generator: random.Random) -> Tensor:
        return x * generator.random()

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(2)
    for seed in (1, 2, 1):
        assert torch.equal(compiled(x, random.Random(seed)), program(x, random.Random(seed)))


@pytest.mark.parametrize("items", [(1, 2, 7), (0.5, 1.5), (1, 0.5, True), (1, 2**70), ("a", "b")])
def test_what_is_chosen_has_its_type(items: tuple[Any, ...]) -> None:
    def program(x: Tensor) -> tuple[Tensor, str]:
        chosen = random.choice(items)
        return x * len(str(chosen)), f"{chosen} {type(chosen).__name__}"

    compiled = bolide.compile(program)
    for seed in range(8):
        seen = []
        for function in (program, compiled):
            random.seed(SEED + seed)
            seen.append(function(torch.ones(2 + seed % 3)))
        agree(*seen, True)


METHODS: dict[str, Callable[[Any, Tensor], Any]] = {
    "normal": lambda generator, x: x + torch.from_numpy(generator.normal(size=x.shape)),
    "uniform": lambda generator, x: (x * generator.uniform(0.5, 1.5), generator.uniform()),
    "permutation": lambda generator, x: x[torch.from_numpy(generator.permutation(x.size(0)))],
    "choice": lambda generator, x: (x[generator.choice(x.size(0))], generator.choice(3, 2)),
    "whole": lambda generator, x: x * draw_whole(generator, 1, x.size(0)) + draw_whole(generator, 9),
    "place": lambda generator, x: x[draw_whole(generator, x.size(0)) :].sum(0),
}


def draw_whole(generator: Any, *bounds: int) -> Any:
    return generator.integers(*bounds) if isinstance(generator, np.random.Generator) else generator.randint(*bounds)


@pytest.mark.parametrize("kind", [np.random.default_rng, np.random.RandomState])
@pytest.mark.parametrize("method", METHODS)
def test_generators_of_numpy_are_arguments_and_attributes(method: str, kind: Any) -> None:
    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = kind(SEED)

        def forward(self, x: Tensor) -> Any:
            return METHODS[method](self.generator, x)

    eager, module = Noisy(), bolide.compile(Noisy(), fullgraph=True)
    compiled, counted = bolide.compile(METHODS[method], fullgraph=True), []
    with events.subscribed(lambda event: counted.append(event) if isinstance(event, events.Captured) else None):
        for rows in (4, 6, 3, 9, 2):
            x = torch.randn(rows, 3, dtype=torch.float64)
            agree(eager(x), module(x), False)
            agree(METHODS[method](kind(rows), x), compiled(kind(rows), x), False)
    assert len(counted) == 4


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_place_is_drawn_within_a_size(backend: str) -> None:
    def crop(x: Tensor) -> tuple[Tensor, Tensor]:
        top = random.randint(0, x.shape[0] - 3)
        return x[top : top + 3] * 2, x.narrow(1, random.randrange(x.shape[1] - 2), 2)

    compiled = bolide.compile(crop, backend=backend, fullgraph=True)
    for rows in (5, 9, 3, 7, 11):
        x, state = torch.randn(rows, 2 * rows), random.getstate()
        expected = crop(x)
        random.setstate(state)
        agree(expected, compiled(x), True)


def test_gradients_go_past_drawn_numbers() -> None:
    def program(x: Tensor) -> Tensor:
        return (x.sin() * random.random()).sum()

    compiled = bolide.compile(program, fullgraph=True)
    for _ in range(3):
        x = torch.randn(5, requires_grad=True)
        state = random.getstate()
        (expected,) = torch.autograd.grad(program(x), x)
        random.setstate(state)
        (found,) = torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(found, expected)


def test_a_call_that_is_made_again_draws_once() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * random.random()
        assert x.sum() > 0, "not positive"
        return y

    compiled = bolide.compile(program, backend="eager", fullgraph=True)
    random.seed(SEED)
    compiled(torch.ones(2))
    state = random.getstate()
    with pytest.raises(AssertionError, match="not positive"):
        compiled(-torch.ones(2))
    after = random.getstate()
    random.setstate(state)
    random.random()
    assert random.getstate() == after


def test_a_draw_that_fails_raises_as_in_eager() -> None:
    def program(x: Tensor) -> Tensor:
        return x * random.randint(3, 1)

    with pytest.raises(ValueError, match="empty range"):
        bolide.compile(program, backend="eager")(torch.ones(2))


def test_export_refuses_draws() -> None:
    with pytest.raises(Unsupported, match="draws random numbers"):
        bolide.dynamo.export(scaled)(torch.ones(2))


def test_a_checkpointed_region_that_draws_is_run_for_real() -> None:
    """Eager draws again when it computes the region again."""

    def program(x: Tensor) -> Tensor:
        return checkpoint(scaled, x.sin(), use_reentrant=False).sum()

    found = []
    for function in (program, bolide.compile(program, backend="eager")):
        random.seed(SEED)
        for _ in range(2):
            x = torch.ones(2, requires_grad=True)
            function(x).backward()
            found.append((x.grad, random.getstate()))
    for (grad, state), (other, after) in zip(found[:2], found[2:]):
        assert torch.equal(grad, other) and state == after


def test_system_random_stays_a_break() -> None:
    system = random.SystemRandom()

    def program(x: Tensor) -> Tensor:
        return x * system.random()

    with pytest.raises(Unsupported, match="differs from call to call"):
        bolide.compile(program, backend="eager", fullgraph=True)(torch.ones(2))


def test_bounds_of_draws_are_computed_from_sizes_that_are_used_again() -> None:
    def program(x: torch.Tensor, log: list[Any]) -> Any:
        bound = x.size(0) * 2 + 1
        start = random.randint(0, bound)
        log.append([start, bound])
        row = np.random.randint(0, bound + 1, size=(2,))
        return x * start + bound, row

    compiled = bolide.compile(program, fullgraph=True)
    for rows in (3, 5, 4, 6):
        x, seen = torch.randn(rows), []
        for function in (program, compiled):
            random.seed(rows)
            np.random.seed(rows)
            log: list[Any] = []
            out, row = function(x, log)
            seen.append((out.tolist(), row.tolist(), log))
        assert seen[0] == seen[1]


def test_bits_that_are_drawn_are_no_break() -> None:
    def program(x: Tensor) -> tuple[Tensor, int]:
        drawn = random.getrandbits(8)
        return x * (drawn % 3) + random.getrandbits(40) / 2**40, drawn

    compiled = bolide.compile(program, fullgraph=True)
    for size in (3, 5, 4):
        x, seen = torch.randn(size, dtype=torch.float64), []
        for function in (program, compiled):
            random.seed(size)
            grad = x.clone().requires_grad_()
            out, number = function(grad)
            out.sum().backward()
            seen.append((out.tolist(), number, grad.grad.tolist(), random.getstate()))
        assert seen[0] == seen[1]


SHAPES: dict[str, Callable[[int, int], Any]] = {
    "permutation": lambda n, m: np.random.permutation(n),
    "choice": lambda n, m: np.random.choice(n, n, False),
    "fewer": lambda n, m: np.random.choice(n, n // 2 + 1, False),
    "rand": lambda n, m: np.random.rand(n, 2, m + 1),
    "square": lambda n, m: np.random.randn(n, n),
    "size": lambda n, m: np.random.normal(0.5, 2.0, size=m),
    "bound": lambda n, m: np.random.randint(0, n, 3),
    "tuple": lambda n, m: np.random.uniform(-1, 1, (n, m)),
    "named": lambda n, m: np.random.normal(size=(n, 2, m * 2)),
    "events": lambda n, m: np.random.multinomial(n, [0.3, 0.7], m),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_drawn_arrays_have_the_sizes_that_they_are_given(shape: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Any]:
        drawn = SHAPES[shape](x.size(0), x.shape[1])
        return torch.from_numpy(drawn) * 2 + x.sum(), drawn + drawn.shape[0]

    compiled = bolide.compile(program, fullgraph=shape != "events")  # which breaks
    for rows in (4, 6, 9, 2, 5):
        x, seen = torch.randn(rows, rows + 3, dtype=torch.float64), []
        for function in (program, compiled):
            np.random.seed(SEED)
            seen.append(function(x))
        agree(*seen, False)


def mixed(x: Tensor) -> Tensor:
    share = np.random.beta(0.4, 0.4)
    return share * x + (1 - share) * x[torch.from_numpy(np.random.permutation(x.size(0)))]


def pasted(x: Tensor) -> tuple[Tensor, Any]:
    height, width = x.shape[-2:]
    ratio = np.sqrt(1 - np.random.beta(1.0, 1.0))
    h, w = int(height * ratio), int(width * ratio)
    row, column = np.random.randint(height), np.random.randint(width)
    top, bottom = np.clip(row - h // 2, 0, height), np.clip(row + h // 2, a_min=0, a_max=height)
    left, right = np.clip(column - w // 2, 0, width), np.clip(column + w // 2, 0, width)
    made = x.clone()
    made[..., top:bottom, left:right] = x.flip(0)[..., top:bottom, left:right]
    return made, 1 - (bottom - top) * (right - left) / (height * width)


def noisy(x: Tensor) -> Tensor:
    return x + torch.tensor(np.random.normal(0.0, 0.1, x.shape)) * np.log(x.size(1))


@pytest.mark.parametrize("program", [mixed, pasted, noisy])
def test_augmentation_needs_no_version_for_each_number(program: Callable[[Tensor], Any]) -> None:
    compiled = bolide.compile(program, fullgraph=True)
    counted = []
    with events.subscribed(lambda event: counted.append(event) if isinstance(event, events.Captured) else None):
        for place, rows in enumerate((4, 6, 9, 2, 5, 7)):
            seen = []
            start = torch.randn(rows, rows + 3, 11, dtype=torch.float64)
            for function in (program, compiled):
                np.random.seed(SEED + place)
                x = start.clone().requires_grad_()
                found = function(x)
                torch.utils._pytree.tree_leaves(found)[0].square().sum().backward()
                seen.append((found, x.grad))
            agree(*seen, False)
    assert len(counted) == 2
