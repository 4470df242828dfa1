"""Random numbers as pure functions of a seed: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1,
2, 3", SC 2011).

Block `j` of the draw with number `counter` is philox(key=seed, counter=(j mod 2**32, j div 2**32, counter mod 2**32,
counter div 2**32)), of four words.
Uniform: (word >> 8) * 2**-24, where element `i` takes word i mod 4 of block i div 4. Normal (Box and Muller): sqrt(-2
ln u) cos(2 pi v) with u = ((word 0 >> 8) + 1) * 2**-24 and v = (word 1 >> 8) * 2**-24 of block `i`.
Generated kernels make the same words. The only impure operation is drawing the seed from torch's generator of the
device that the numbers are for, so `torch.manual_seed` makes a run repeatable.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.fx

from bolide.support.caches import on_reset
from bolide.tracing.graph import operator
from bolide.tracing.traits import traits_of

Floats = np.ndarray[tuple[int], np.dtype[np.float32]]
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_SEEDS = -(2**63), 2**63 - 1
_AT_ONCE = 256
_OFFSETS = 4  # a generator of CUDA counts draws in these
_count_dispatch_modes = torch._C._len_torch_dispatch_stack
_one_draws = threading.Lock()
_ahead: dict[tuple[int, int], tuple[tuple[int, int], torch.Tensor]] = {}  # by stream: of which states
_in_memory_of: Callable[..., torch.Tensor] = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]
on_reset(_ahead.clear)
_MASK = 0xFFFFFFFF


def philox_words(seed: int, counter: int, count: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint32]], ...]:
    """The four words (uint32 arrays of length `count`) of the blocks 0 … count - 1 of one draw."""
    index = np.arange(count, dtype=np.uint64)
    mask = np.uint64(_MASK)
    c0, c1 = index & mask, index >> np.uint64(32)
    c2 = np.full(count, counter & _MASK, dtype=np.uint64)
    c3 = np.full(count, (counter >> 32) & _MASK, dtype=np.uint64)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        p0, p1 = c0 * np.uint64(_M0), c2 * np.uint64(_M1)
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            p1 & mask,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            p0 & mask,
        )
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return (c0.astype(np.uint32), c1.astype(np.uint32), c2.astype(np.uint32), c3.astype(np.uint32))


def uniform(seed: int, counter: int, count: int) -> Floats:
    """`count` float32 numbers in [0, 1)."""
    word = np.stack(philox_words(seed, counter, -(-count // 4)), 1).reshape(-1)[:count]
    return (word >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def normal(seed: int, counter: int, count: int) -> Floats:
    """`count` float32 numbers of the standard normal distribution."""
    first, second, _, _ = philox_words(seed, counter, count)
    u = ((first >> np.uint32(8)).astype(np.float32) + np.float32(1)) * np.float32(2.0**-24)
    v = (second >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    numbers: Floats = np.sqrt(np.float32(-2) * np.log(u)) * np.cos(np.float32(2 * np.pi) * v)
    return numbers


class _Token(bytearray):
    """The memory of a tensor by which a graph finds a generator: it holds that as long as the tensor is there."""

    generator: torch.Generator


_tokens: weakref.WeakValueDictionary[int, _Token] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def token_of(generator: torch.Generator) -> torch.Tensor:
    """The tensor that stands for a generator of the user's among the inputs of a graph: a number of its own."""
    number = next(_numbers)
    memory = _Token(number.to_bytes(8, sys.byteorder))
    memory.generator = generator
    _tokens[number] = memory
    return torch.frombuffer(memory, dtype=torch.int64)


def held_by(token: torch.Tensor | None) -> torch.Generator:
    """The generator that a token stands for; torch's own for None."""
    return torch.default_generator if token is None else _tokens[int(token.item())].generator


_ATTENTIONS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention")
)


def drops_nothing(node: torch.fx.Node) -> bool:
    """Is this an attention without dropout? It draws no random numbers, although its kind may."""
    if node.target not in _ATTENTIONS:
        return False
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    given = {**dict(zip(names, node.args)), **node.kwargs}
    return bool(given.get("dropout_p", 0.0) == 0)


def draws(node: torch.fx.Node) -> bool:
    """Whether an operation of a graph draws from torch's random generator, or changes it."""
    return traits_of(node.target).seeded and not drops_nothing(node)


def _draw(
    numbers: Callable[[int, int, int], Floats], seed: torch.Tensor, counter: int, size: Sequence[int]
) -> torch.Tensor:
    drawn = torch.from_numpy(numbers(int(seed.item()), counter, math.prod(size)))
    return drawn.reshape(tuple(size)).to(seed.device)


def draw_seed(device: torch.device | None = None) -> torch.Tensor:
    """What `bolide::rng_seed` gives: drawn from torch's generator of the device, the CPU if none is named. Those of a
    GPU are made ahead; but a graph of CUDA that is captured has to draw one at each replay."""
    on_gpu = device is not None and device.type == "cuda"
    if on_gpu:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # raises where there is no GPU, as eager does
    if device is None or not on_gpu or _count_dispatch_modes() or torch.cuda.is_current_stream_capturing():
        return torch.randint(*_SEEDS, (), device=device)
    index = torch.cuda.current_device() if device.index is None else device.index
    return seed_ahead(torch.cuda.default_generators[index], device, (index, torch._C._cuda_getCurrentRawStream(index)))


def seed_ahead(generator: torch.Generator, device: torch.device, stream: tuple[int, int]) -> torch.Tensor:
    """A seed by the state of a generator, which advances. A launch for each would take the host longer than most
    kernels that draw do: so one makes many, of which those of later states are kept for these. `stream`: what runs
    behind the launch."""
    with _one_draws:
        offset = generator.get_offset()
        generator.set_offset(offset + _OFFSETS)
    part, place = divmod(offset // _OFFSETS, _AT_ONCE)
    key = generator.initial_seed(), part
    known = _ahead.get(stream)
    if known is None or known[0] != key:
        known = _ahead[stream] = key, _seeds(*key, device)
    return _in_memory_of(known[1], (), (), place)


def _seeds(seed: int, part: int, device: torch.device) -> torch.Tensor:
    """Those of `_AT_ONCE` states."""
    first, second, _, _ = (int(word[0]) for word in philox_words(seed, part, 1))
    own = torch.Generator(device).manual_seed(first << 32 | second)
    with torch.inference_mode(False):  # they may be saved for a backward pass
        return torch.randint(*_SEEDS, (_AT_ONCE,), generator=own, device=device)


_DRAW = "(Tensor seed, int counter, SymInt[] size) -> Tensor"
rng_seed = operator("rng_seed(*, Device? device=None) -> Tensor", draw_seed, torch.Tag.nondeterministic_seeded)
rand = operator(f"rand{_DRAW}", functools.partial(_draw, uniform))
randn = operator(f"randn{_DRAW}", functools.partial(_draw, normal))
DRAWS = frozenset({rng_seed, rand, randn})
