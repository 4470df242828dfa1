"""`python -m benchmarks.in_place`: programs that write to their arguments: KV caches, parameters, optimizers, decoding.

All compilers run in one process, in turn, each on tensors of its own; a ratio is the median over the rounds of the
ratio within a round, a time the smallest of all rounds. What was written is compared with eager's first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.memory.__main__ import interleaved, keep_memory, median_ratio
from benchmarks.models import build
from benchmarks.report import number, table
from benchmarks.worker import compiler, difference

Compile = Callable[[Any], Any]


@dataclass(frozen=True)
class Lane:
    """One compiler's run of a case: what is timed, and the tensors that it writes."""

    step: Callable[[], Any]
    written: list[Tensor]


Maker = Callable[[str], Lane]
CASES: dict[str, Maker] = {}
"""By title: from the name of a compiler to its lane. ``fused`` is eager with the optimizer's own fused kernel."""


def case(title: str) -> Callable[[Maker], Maker]:
    def register(make: Maker) -> Maker:
        CASES[title] = make
        return make

    return register


def _calls(name: str, fn: Callable[..., Any], *args: Any) -> Lane:
    compiled = compiler(name)(fn)
    return Lane(lambda: compiled(*args), [args[0]])


@case("index_copy_ into 1×8×4096×64")
def _heads(name: str) -> Lane:
    fn = lambda cache, pos, k: done(cache.index_copy_(2, pos, k))  # noqa: E731
    return _calls(name, fn, torch.randn(1, 8, 4096, 64), torch.tensor([7]), torch.randn(1, 8, 1, 64))


@case("index_copy_ into 1×4096×512")
def _rows(name: str) -> Lane:
    fn = lambda cache, pos, k: done(cache.index_copy_(1, pos, k))  # noqa: E731
    return _calls(name, fn, torch.randn(1, 4096, 512), torch.tensor([7]), torch.randn(1, 1, 512))


@case("cache[:, :, 7:8] = k")
def _slice(name: str) -> Lane:
    def fn(cache: Tensor, k: Tensor) -> None:
        cache[:, :, 7:8] = k

    return _calls(name, fn, torch.randn(1, 8, 4096, 64), torch.randn(1, 8, 1, 64))


@case("p.sub_(x), 10⁶ elements")
def _sub(name: str) -> Lane:
    return _calls(name, lambda p, x: done(p.sub_(x)), torch.randn(10**6), torch.randn(10**6) * 1e-3)


@case("masked_fill_, 10⁶ elements")
def _mask(name: str) -> Lane:
    mask = torch.rand(10**6) < 0.3
    return _calls(name, lambda p, m: done(p.masked_fill_(m, 0.5)), torch.randn(10**6), mask)


@case("BatchNorm in training, 8×64×28×28, no gradients")
def _statistics(name: str) -> Lane:
    norm = torch.nn.BatchNorm2d(64)
    forward, x = compiler(name)(norm), torch.randn(8, 64, 28, 28)
    return Lane(lambda: forward(x), list(norm.buffers()))


def _gpt2(scale: str) -> list[torch.nn.Parameter]:
    parameters = list(build("gpt2", scale).module.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters


@case("AdamW.step, GPT-2 of 12 layers, 768 wide")
def _large_adamw(name: str) -> Lane:
    return _adamw(name, "base")


@case("AdamW.step, GPT-2 of 12 layers, 256 wide")
def _adamw(name: str, scale: str = "small12") -> Lane:
    parameters = _gpt2(scale)
    kinds = {"fused": True} if name == "fused" else {"foreach": True}
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, **kinds)
    optimizer.step()
    return Lane(compiler("eager" if name == "fused" else name)(lambda: done(optimizer.step())), parameters)


@case("AdamW by hand (foreach), the same")
def _by_hand(name: str) -> Lane:
    parameters = _gpt2("small12")
    if name == "fused":
        return Lane(torch.optim.AdamW(parameters, lr=1e-4, fused=True).step, [])  # which corrects biases, too
    means, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    grads = [p.grad for p in parameters]
    weights = [p.detach() for p in parameters]

    def step() -> None:
        torch._foreach_mul_(weights, 1 - 1e-6)
        torch._foreach_lerp_(means, grads, 0.1)
        torch._foreach_mul_(squares, 0.999)
        torch._foreach_addcmul_(squares, grads, grads, 0.001)
        scale = torch._foreach_sqrt(squares)
        torch._foreach_add_(scale, 1e-8)
        torch._foreach_addcdiv_(weights, means, scale, -1e-4)

    return Lane(compiler(name)(step), parameters)


@case("one token of a Llama of 4 layers, 256 wide, static cache of 512")
def _decoding(name: str) -> Lane:
    from transformers import StaticCache

    model = build("llama", "small").module.eval()
    cache = StaticCache(config=model.config, max_cache_len=512)
    token, position = torch.tensor([[5]]), torch.tensor([3])

    def decode(token: Tensor, position: Tensor) -> Tensor:
        given = {"position_ids": position[None], "cache_position": position}
        logits: Tensor = model(input_ids=token, past_key_values=cache, use_cache=True, **given).logits
        return logits

    decode(token, position)
    compiled = compiler(name)(decode)

    def step() -> Tensor:
        for layer in cache.layers:
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length.fill_(3)
        result: Tensor = compiled(token, position)
        return result

    return Lane(step, [layer.keys for layer in cache.layers])


def done(*_: object) -> None:
    """What a program gives that only writes."""


def measured(make: Maker, compilers: list[str], rounds: int, seconds: float) -> dict[str, list[float]]:
    """ms of each compiler by round."""
    lanes: dict[str, Lane] = {}
    with torch.no_grad():
        for name in compilers:
            torch.manual_seed(0)
            lanes[name] = make(name)
            for _ in range(3):
                lanes[name].step()
        for name, lane in lanes.items():
            wanted = lanes["eager"].written if lane.written else []
            error = difference([t.detach() for t in lane.written], [t.detach() for t in wanted])
            if error > 1e-4:
                raise RuntimeError(f"{name} is wrong by {error:.2g} of the magnitude")
        return interleaved({name: lane.step for name, lane in lanes.items()}, rounds, seconds)


def rows(args: argparse.Namespace) -> Iterator[list[str]]:
    for title, make in CASES.items():
        if args.only and not any(part in title for part in args.only):
            continue
        optimizer = "AdamW" in title
        compilers = [name for name in args.compilers if optimizer or name != "fused"]
        times = measured(make, compilers, args.rounds, args.seconds)
        micros = [number(min(times[name]) * 1e3) if name in times else "" for name in args.compilers]
        others = [name for name in args.compilers if name != "bolide"]
        ratios = [number(median_ratio(times[name], times["bolide"])) if name in times else "" for name in others]
        print(title, *micros, file=sys.stderr, flush=True)
        yield [title, *micros, *ratios]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.in_place", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases whose title contains one of these")
    parser.add_argument("--threads", type=int, help="torch's number of threads")
    parser.add_argument("--compilers", nargs="+", default=["eager", "fused", "torch", "bolide"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each compiler and case")
    args = parser.parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    keep_memory()
    others = [f"× {name}" for name in args.compilers if name != "bolide"]
    print("\n".join(table(["program", *(f"{name} µs" for name in args.compilers), *others], list(rows(args)))))


if __name__ == "__main__":
    main()
