"""What scheduling and code generation must know of the machine that kernels run on."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from bolide.support.engine import host

FAR = 1 << 60  # no two elements are farther apart


@dataclass(frozen=True, slots=True)
class Target:
    """Instructions of a CPU, or of one thread of a GPU (then `triple` is LLVM's name for the kind of machine).
    `vector_bits`: width of its registers. `sleef_f32`, `sleef_f64`: lanes of the Sleef functions that suit it (0: call
    the C library lane by lane). `scales`: has an instruction for x · 2^n. `dots`: has one that adds products of 16-bit
    numbers. `rounds`: has one that rounds to bfloat16. `adds_four`: has one that adds four float32s to memory that
    other threads add to."""

    name: str
    cpu: str
    features: str
    vector_bits: int
    sleef_f32: int
    sleef_f64: int
    scales: bool
    dots: bool = False
    #: Lanes at most so far apart, and within so many elements, are taken out of whole vectors, not gathered one by one.
    near: int = 4
    span: int = 64
    rounds: bool = False
    adds_four: bool = False
    triple: str = ""

    @property
    def attributes(self) -> str:
        """Function attributes: keeps LLVM from splitting vectors of the full width on CPUs whose tuning prefers
        narrower ones."""
        bits = self.vector_bits
        return f'nounwind "min-legal-vector-width"="{bits}" "prefer-vector-width"="{bits}"'


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, as passes ask for it. Two that are equal get the same code.

    `caches`: bytes of the data caches that a core sees, the first level's first; `threads`: torch's number.
    `grain`: vector instructions' worth of work (elements × cost) that a thread must have before a second one is worth
    its start, some 5 µs."""

    target: Target
    caches: tuple[int, ...] = (1 << 15,)
    threads: int = field(default=1, compare=False)
    device: str = "cpu"
    grain: int = 1 << 16
    #: A kernel has at most so many stages and arguments, and rows of scratch memory.
    most_stages: int = 40
    most_buffers: int = 48
    most_scratch: int = 4
    #: A row of scratch memory lies on the stack of one of torch's OpenMP threads, or in the shared memory of a block,
    #: which partial results need as well.
    most_local_bytes: int = 256 << 10
    #: A reduction over fewer rows, each longer than `long_row`, does not pull work over its whole space into its
    #: kernel.
    few_rows: int = 8
    long_row: int = 1 << 14
    #: Reductions along memory of at least `row_length` elements to fewer results than `split_rows`, and such across it
    #: of at least `split_length` to fewer than `split_columns`, get partial results: between `fewest_parts` and
    #: `most_parts` of them. Where these are not all of one length, at least `least_with_rest`; of `steps_length`
    #: elements a third step is worth its time (and for a GPU, more than one, if caches do not hold the columns).
    split_rows: int = 16
    row_length: int = 1 << 15
    split_columns: int = 128
    split_length: int = 1 << 15
    steps_length: int = 1 << 17
    fewest_parts: int = 4
    most_parts: int = 64
    least_with_rest: int = 64
    #: Sums of the columns of what is reduced by rows as well are made in parts of at least `part_rows` rows (0: not
    #: so), by the teams that reduce these rows, if a row has so many elements; a kernel makes at most so many of each
    #: column. (H200, LayerNorm's gradients: 512 parts take 0.98 of the time of 1024, 2048 parts 1.08.)
    part_rows: int = 0
    most_row_parts: int = 1 << 9
    part_columns: tuple[int, int] = (1 << 8, 1 << 13)
    most_columns: int = 3
    #: As many parts of all results as there are threads are enough. Reductions to places (argmax) get parts from so
    #: many elements on: their places go through memory with the values.
    enough_parts: int = 1 << 18
    #: As `enough_parts`, of what is stored as it is summed: a thread does more for each element. (H200, GELU's gradient
    #: and its sum: 0.82 of the time in bfloat16; sums alone 1.07.)
    parts_with_stores: int = 1 << 18
    places_length: int = 1 << 17
    #: Scans that fewer threads than `scan_threads` would share (0: none) are made in runs, of at least `scan_row`
    #: elements along memory, or `scan_column` across it.
    scan_threads: int = 0
    scan_row: int = 1 << 12
    scan_column: int = 1 << 6
    #: Products of at most so many multiplications are kernels. An operand that must be laid out by rows before has at
    #: most so many elements for each row that it is multiplied by.
    most_multiplications: int = 1 << 18
    most_laid_out: int = 1 << 12
    #: So many rows of a product are summed side by side, in registers.
    rows_at_once: int = 4
    #: Of a GPU's products of at most so many rows, each of sums of at least so many, kernels are tried.
    most_rows: int = 8
    least_summed: int = 1 << 8
    #: The weight gradient of a convolution over at most so many places (batch × height × width of the result) with at
    #: least so many weights is a matrix product: oneDNN's own way reorders the weights at great cost.
    most_places: int = 128
    fewest_weights: int = 1 << 20
    #: Work (`ir.scalar_ops`) that is done again in every reader of a value, with one load or none; and at a second
    #: point of the same reader, or for every element of a broadcast. `holds_rows`: loads of what is the same along some
    #: axes do not count, caches hold that.
    free_work: int = 6
    cheap_work: int = 16
    holds_rows: bool = False
    #: The work of a load under a mask, or lane by lane. A value of `scratch_work` that several passes need is kept in
    #: scratch memory; one of `stored_work` that is stored anyway is read back.
    irregular_load: int = 8
    scratch_work: int = 10
    stored_work: int = 2
    #: Checks of indices are made by whoever reads there, at each point, rather than once for each index.
    spreads_marks: bool = False
    #: Where runs of so many elements are copied, loops go along what is read: they fill lines of memory.
    shortest_run: int = 32
    #: A nest that reads across memory runs in blocks of so many iterations of its vector axis (so many rows are read
    #: side by side) and tiles of so many along what is read. `line`: bytes that memory is read in.
    block: int = 64
    tile: int = 16
    line: int = 64
    #: Threads of a GPU that share a tile which is whole.
    tile_team: int = 256
    #: A scatter updates rows in the first of these blocks, in elements, of which a row has at least `fewest_blocks`,
    #: for threads to share.
    row_blocks: tuple[int, ...] = (256, 128, 64, 32)
    fewest_blocks: int = 4
    #: A loop is split at conditions on its axis into at most so many pieces. (A vector axis only if one fills a
    #: register.)
    most_pieces: int = 4
    #: Windows of pooling of more places than this are ATen's, as are the gradients of those of which more than so many
    #: meet in an element, or with elements of more phases: a kernel's code has them all, one after the other.
    most_window: int = 25
    most_windows: int = 4
    most_phases: int = 4
    #: Convolutions of each channel by itself are kernels, and the gradients of their inputs, for windows of at most so
    #: many places in planes of at least so many; the weight gradients for windows of at least so many. One thread,
    #: AMD EPYC (Zen 5), forward and backward in row-major float32: 3×3 on 2×96×32×32 takes 2.2 ms in eager, 0.5 by
    #: kernels, on 8×32×112×112 27 and 12; with the weight gradient by a kernel 7×7 on 8×96×56×56 takes 80 and 25,
    #: 5×5 on 2×144×32×32 takes 2.5 and 0.9.
    most_small_window: int = 9
    least_plane: int = 1 << 10
    least_large_window: int = 25
    #: More tensors than this are joined to one by ATen, one by one: a kernel selects among them at every element.
    most_joined: int = 8
    #: Definitions of more nodes are not inlined further, and a loop that is split has at most so many in its pieces:
    #: compile time grows, and registers run out.
    most_inlined: int = 400
    most_split: int = 250
    #: A group is joined with readers of the same data this many definitions back: what lies between is in the caches.
    reach: int = 48
    #: Units change places in time for so many bytes less at their peak.
    fewest_bytes: int = 1 << 16
    #: The body of a vector loop is light up to this cost: what waits for itself is then done for more lanes. A loop
    #: inside it is long from so many iterations on.
    light: int = 24
    long: int = 64
    #: The body of a vector loop of more than so many instructions is written once, with a mask in every iteration, not
    #: twice (whole vectors, then the rest). Loops of at most so many instructions all in all are written out.
    twice: int = 30
    written_out: int = 16
    #: What the extent of a loop is taken for when it depends on other axes and has no bound.
    unknown_extent: int = 64
    #: The threads of a GPU that share a loop: the fewest of which each has at most `most_turns` iterations. Where there
    #: are fewer results than `split_rows`, each has so much of the GPU that `largest_team` is one of them.
    teams: tuple[int, ...] = (1,)
    largest_team: int = 1
    most_turns: int = 32
    #: So few teams are alone on a GPU: their time is that of loads that wait for each other, and each thread has fewer.
    lone_rows: int = 16
    lone_turns: int = 8
    #: Fewer threads than this leave a GPU idle: so teams share reductions of at least `least_shared` elements that
    #: lie across memory, if all in all these are so few that caches hold them.
    few_threads: int = 0
    least_shared: int = 64
    most_gathered: int = 1 << 22
    #: The mean and the variance of rows of more bytes than this, which caches do not hold for all threads, are made in
    #: one pass. (H200, GroupNorm: rows of 256 KiB take 0.80 of the time so, of 128 KiB 1.06.)
    long_moments: int = FAR

    @property
    def lanes(self) -> int:
        """The float32 numbers in a register, or the threads of a warp: a shorter axis leaves lanes idle."""
        return 32 if self.device == "cuda" else self.target.vector_bits // 32

    @property
    def longest_row(self) -> int:
        """The elements of a row in scratch memory, which must stay in the first-level cache, and on the stack."""
        return 1 << (self.caches[0] // 4).bit_length() - 1


#: A GPU of NVIDIA's Hopper generation. Matrix products and convolutions are libraries' there, conditions are masks, and
#: a warp of 32 threads is what a vector is elsewhere.
HOPPER = Machine(
    Target(
        *("nvptx", "sm_90", "+ptx81", 32, 0, 0, False),
        near=FAR,
        span=FAR,
        rounds=True,
        adds_four=True,
        triple="nvptx64-nvidia-cuda",
    ),
    caches=(1 << 15,),
    device="cuda",
    teams=(32, 128, 256, 512),
    largest_team=1024,
    most_scratch=1,
    most_local_bytes=32 << 10,
    split_rows=256,
    row_length=3 << 16,
    split_columns=1 << 13,
    part_rows=8,
    split_length=1 << 12,
    steps_length=1 << 9,
    least_with_rest=16,
    most_parts=1 << 10,
    places_length=1 << 9,
    parts_with_stores=1 << 20,
    scan_threads=1 << 18,
    most_multiplications=0,
    most_places=0,
    most_small_window=0,
    least_large_window=1 << 30,
    unknown_extent=1 << 11,
    long_moments=1 << 17,
    few_threads=1 << 14,
    tile=32,
    line=128,
    holds_rows=True,
    spreads_marks=True,
)


#: (feature the host must have, name, register bits, Sleef lanes for float32 and float64, scales, feature for dots); the
#: first that fits is taken.
LEVELS = (
    ("avx512f", "avx512", 512, 16, 8, True, "avx512vnni"),
    ("avx2", "avx2", 256, 8, 4, False, "avxvnni"),
    ("", "generic", 128, 0, 0, False, ""),
)


def host_machine() -> Machine:
    """The machine this process runs on, with torch's number of threads as it is now."""
    return Machine(host_target(), _host_caches() or (1 << 15,), torch.get_num_threads())


def machine_for(device: torch.device) -> Machine:
    """The machine that kernels on a device run on."""
    return _gpu(torch.cuda.get_device_capability(device)) if device.type == "cuda" else host_machine()


@functools.cache
def _gpu(capability: tuple[int, int]) -> Machine:
    """A GPU by its compute capability: newer ones than Hopper's run Hopper's code. NotImplementedError for one that
    cannot compute in bfloat16."""
    if capability < (8, 0):
        version = ".".join(map(str, capability))
        raise NotImplementedError(f"there is no code for GPUs of compute capability {version}, only from 8.0 on")
    if capability >= (9, 0):
        return HOPPER
    major, minor = capability
    target = replace(HOPPER.target, cpu=f"sm_{major}{minor}", features="+ptx78", adds_four=False)
    return replace(HOPPER, target=target)


@functools.cache
def host_target() -> Target:
    """The instructions of the CPU this process runs on."""
    return target_of(host().cpu, host().features)


def target_of(cpu: str, features: Mapping[str, bool]) -> Target:
    """The instructions of a CPU, by LLVM's name, that has these features (others are as for that CPU)."""
    level = next(level for level in LEVELS if not level[0] or features.get(level[0]))
    _, name, bits, f32, f64, scales, dots = level
    wanted = ",".join([f"{'+' if there else '-'}{feature}" for feature, there in sorted(features.items())])
    return Target(name, cpu, wanted, bits, f32, f64, scales, features.get(dots, False))


@functools.cache
def _host_caches() -> tuple[int, ...]:
    """The sizes of the data caches of the first core, as Linux tells them; none elsewhere."""
    return tuple([size for _, size in sorted(_caches(Path("/sys/devices/system/cpu/cpu0/cache")))])


def _caches(folder: Path) -> Iterator[tuple[int, int]]:
    """(level, bytes) of each cache for data."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    for index in folder.glob("index*"):
        try:
            level, kind, size = [(index / name).read_text().strip() for name in ("level", "type", "size")]
            if kind != "Instruction":
                yield int(level), int(size[:-1]) * units[size[-1]]
        except (OSError, ValueError, KeyError):
            continue
