"""Launches on a GPU that become one: kernels that are equal but for how far they go (the update of each parameter in an
optimizer's step), where neither needs the other.

A launch takes some microseconds, in which the device does the work of many small ones. So launches that follow one
another, with no call in between, are put in *batches*: each goes to the first batch of its kind behind all that it
needs, which never delays it. The memory of what it makes is taken earlier, then; where that is not a result, and more
than a little, it stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from bolide.inductor.ir.loops import Kernel
from bolide.inductor.ir.rewrites import of_any_extent
from bolide.inductor.ir.structure import Structure, structure_of
from bolide.inductor.ir.verify import InvalidKernel, verify
from bolide.inductor.plan.steps import (
    Alloc,
    Block,
    Launch,
    Reuse,
    Step,
    View,
    all_steps,
    defined_names,
    used_names,
    with_blocks,
)
from bolide.inductor.plan.verify import span_of
from bolide.symbolic import Expr

#: Words that a kernel's parameters have room for; each set of arguments takes one more, its first block.
MOST_WORDS = 4096 // 8
#: Bytes of a tensor that may be taken earlier than needed.
MOST_EARLY = 1 << 20


@dataclass(slots=True)
class _Batch:
    """Launches of one kind, each behind the steps that make its tensors."""

    kind: int
    launches: list[tuple[list[Step], Launch]]


@dataclass(slots=True)
class Batcher:
    """Puts launches of `kernels`, a plan's, in batches, for which it adds kernels to these; `sources` tells for each of
    them the kernels that it stands for. `is_wanted`: whether a kernel runs on a GPU."""

    kernels: list[Kernel]
    is_wanted: Callable[[Kernel], bool]
    sources: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _kinds: dict[int, tuple[int, Kernel, tuple[Expr, ...]]] = field(default_factory=dict)
    _numbers: dict[Structure, int] = field(default_factory=dict)
    _made: dict[tuple[int, int], int] = field(default_factory=dict)

    def batched(self, steps: Sequence[Step], kept: Collection[str], shared: Collection[str]) -> list[Step]:
        """The steps, without Free steps, of which those that follow one another and launch equal kernels do so at once.
        `kept`: the tensors that outlive them; `shared`: those that may be in the memory of others without a step that
        says so."""
        done: list[Step] = []
        run: list[Step] = []
        roots: dict[str, str] = {}  # a tensor -> the one whose memory it is in
        for step in (*steps, None):
            if isinstance(step, (Reuse, View)):
                roots[step.name] = roots.get(step.base, step.base)
            if isinstance(step, (Alloc, Reuse, View)) or (
                isinstance(step, Launch)
                and self.is_wanted(self.kernels[step.kernel])
                and not any(name in shared for name in step.arguments)
            ):
                run.append(step)
                continue
            done += self._batched(run, kept, roots) if sum(isinstance(one, Launch) for one in run) > 1 else run
            run = []
            done += [] if step is None else [step]
        return done

    def _batched(self, run: Sequence[Step], kept: Collection[str], roots: Mapping[str, str]) -> list[Step]:
        batches: list[_Batch] = []
        made: dict[str, int] = {}  # a tensor -> the batch before which it is made
        written: dict[str, int] = {}  # memory -> the last batch that writes it
        touched: dict[str, int] = {}  # the same of those that read or write it
        before: list[Step] = []
        for step in run:
            if not isinstance(step, Launch):
                before.append(step)
                continue
            params = self.kernels[step.kernel].launch_params
            writes = {roots.get(n, n) for n, param in zip(step.arguments, params) if param.role != "in"}
            reads = {roots.get(name, name) for name in step.arguments}
            names = {name for one in before for name in (*used_names(one), *defined_names(one))}.union(step.arguments)
            first = max(made.get(name, 0) for name in names)
            first = max([first, *(written.get(n, -1) + 1 for n in reads), *(touched.get(n, -1) + 1 for n in writes)])
            kind = self._kind(step.kernel)[0]
            fits = [at for at in range(first, len(batches)) if batches[at].kind == kind]
            if not fits or any(_is_large(one) and one.name not in kept for one in before if isinstance(one, Alloc)):
                fits = [len(batches)]
                batches.append(_Batch(kind, []))
            at = fits[0]
            batches[at].launches.append((before, step))
            made.update({name: at for one in before for name in defined_names(one)})
            written.update({name: max(at, written.get(name, 0)) for name in writes})
            touched.update({name: max(at, touched.get(name, 0)) for name in reads})
            before = []
        return [step for batch in batches for step in self._steps(batch)] + before

    def _kind(self, place: int) -> tuple[int, Kernel, tuple[Expr, ...]]:
        """The number of a kernel's kind, the kernel that does for all of the kind, and the sizes that it has more."""
        if place not in self._kinds:
            kernel = self.kernels[place]
            common, sizes = of_any_extent(kernel)
            if sizes and not _is_valid(common):  # it was proved for this extent only
                common, sizes = kernel, ()
            number = self._numbers.setdefault(structure_of(common), len(self._numbers))
            self._kinds[place] = number, common, sizes
        return self._kinds[place]

    def _steps(self, batch: _Batch) -> list[Step]:
        """The steps of a batch: as few launches as there is room for, of as equal numbers."""
        kernel = self.kernels[batch.launches[0][1].kernel]
        count = len(batch.launches)
        most = max(1, MOST_WORDS // (len(kernel.params) + len(kernel.sizes) + 2))
        launches = -(-count // most)
        edges = [count * at // launches for at in range(launches + 1)]
        steps: list[Step] = []
        for start, end in pairwise(edges):
            some = batch.launches[start:end]
            steps += [step for before, _ in some for step in before]
            steps += [launch for _, launch in some] if len(some) == 1 else [self._launch(batch.kind, some)]
        return steps

    def _launch(self, kind: int, some: Sequence[tuple[list[Step], Launch]]) -> Launch:
        launches = [launch for _, launch in some]
        places = tuple([launch.kernel for launch in launches])
        place = self._made.get((kind, len(launches)))
        if place is None:
            place = self._made[kind, len(launches)] = len(self.kernels)
            common = self._kind(places[0])[1]
            name = f"k{place}_{common.name.partition('_')[2]}"
            self.kernels.append(replace(common, name=name, batch=len(launches)))
        self.sources[place] = tuple(dict.fromkeys((*self.sources.get(place, ()), *places)))
        arguments = tuple([name for launch in launches for name in launch.arguments])
        sizes = [size for launch in launches for size in (*launch.sizes, *self._kind(launch.kernel)[2])]
        return Launch(place, arguments, tuple(sizes))


def _is_valid(kernel: Kernel) -> bool:
    try:
        verify(kernel)
    except InvalidKernel:
        return False
    return True


def _is_large(step: Alloc) -> bool:
    span = span_of(step.type)
    return not span.is_const or span.value * step.type.dtype.itemsize > MOST_EARLY


def without_unused(block: Block, kernels: Sequence[Kernel]) -> tuple[Block, list[int]]:
    """A block whose launches have new numbers, and the numbers of the kernels that it launches, in the order of the new
    ones."""
    used = {step.kernel for step in all_steps(block.steps) if isinstance(step, Launch)}
    places = [place for place in range(len(kernels)) if place in used]
    numbers = {place: number for number, place in enumerate(places)}
    return _renumbered(block, numbers), places


def _renumbered(block: Block, numbers: Mapping[int, int]) -> Block:
    def changed(step: Step) -> Step:
        if isinstance(step, Launch):
            return replace(step, kernel=numbers[step.kernel])
        return with_blocks(step, lambda inner: _renumbered(inner, numbers))

    return replace(block, steps=tuple(map(changed, block.steps)))
