"""Branches on the data of tensors: both ways are interpreted, each as a part of the graph, up to where they meet.

What the program is after them is compared. What is equal stays; tensors of the same kind in one place become a result
of `bolide::branch`, numbers of the same type a number that the graph chooses, a tensor and a number an `Either`;
whatever else differs is a difference that no graph can make, and the branch is a break.
"""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch

from bolide.dynamo.bytecode.flow import END, joins_of, live_locals
from bolide.dynamo.bytecode.instructions import Code
from bolide.dynamo.bytecode.uniform import OPERATORS, UNIFORM
from bolide.dynamo.machine.interpreter import OPCODES, Handler, Machine, Slot, part_of
from bolide.dynamo.opcodes.undo import Contents, Either, State, is_fresh, put_back, reachable_groups, read_here, settled
from bolide.dynamo.policy import is_python_class
from bolide.dynamo.program.kinds import CONSTANT_TYPES, MISSING, ordered_keys, own_namespace, same_constant, tuple_of
from bolide.dynamo.world.frames import Frame
from bolide.dynamo.world.inputs import Chosen
from bolide.dynamo.world.outside import Deferred, Torn, is_finalised
from bolide.dynamo.world.parts import Write
from bolide.support.errors import Unsupported, forgive
from bolide.symbolic import Expr, same_size, same_sizes
from bolide.tracing import Trace, TracedTensor
from bolide.tracing.called.branches import Part, choose
from bolide.tracing.numbers import data, scalars
from bolide.tracing.rules.common import is_dense
from bolide.tracing.tensor import AliasGroup

aten = torch.ops.aten
_DEEPEST = 24  # branches in ways of branches
_MOST_WAYS = 48  # that are gone for one branch, before only the first place is tried where ways meet
_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)
_NUMBERS: dict[type, torch.dtype] = {
    **dict.fromkeys((bool, torch.SymBool), torch.bool),
    **dict.fromkeys((int, torch.SymInt), torch.int64),
    **dict.fromkeys((float, torch.SymFloat, scalars.TracedFloat), torch.float64),
}


class Different(Unsupported):
    """The ways of a branch differ where they meet; further on they may not."""


class Passed(Different):
    """A branch in a way of another one, in the same frame, has ways that meet only behind where those around it do."""


def fork(vm: Machine, frame: Frame, condition: object, target: int, wanted: bool) -> None:
    """Let the top frame, which stands behind a branch on data, go on where the ways of the branch have met. The way for
    `wanted` begins at `target`.

    Raises Unsupported where the ways are too different; the machine is of no use then."""
    starts = {wanted: target, not wanted: frame.pc}
    if isinstance(condition, torch.SymBool):
        told = [flag for expr, flag in _FLAGS.of(vm) if expr == condition.node.expr]
        condition = told[0] if told else condition
    stack = frame.stack
    _fork(vm, frame, condition, [(starts[truth], stack) for truth in (True, False)], joins_of(frame.code, frame.pc - 1))


def settle(vm: Machine, frame: Frame, handler: Handler, arg: object) -> bool:
    """Whether the instruction that the top frame has come to reads an `Either`: it has been a branch then, that does
    the same with the tensor and with the number, in the graph."""
    code, at = frame.code, frame.pc - 1
    if OPCODES.get(code.ops[at]) is not handler:
        return False
    either = read_here(vm, frame)
    if either is None:
        return False
    count = len(frame.stack) - max(UNIFORM[code.ops[at]].taken(arg), 1)
    first, second = [
        [*frame.stack[:count], *settled(frame.stack[count:], either, choice)]
        for choice in (either.tensor, either.number)
    ]
    for flag, truth in _SUPPOSED.of(vm):
        if flag is either.flag:
            frame.stack[:] = first if truth else second
            return settle(vm, frame, handler, arg)
    ways, joins = [(at, first), (at, second)], _joins_behind(vm, code, at)
    sure = [either.tensor] if either.made else []
    bound = code.bound
    assert bound is not None
    if _in_place(code, at) and frame.stack[-2] is either and _is_apart(vm, frame, either):
        code.bound = [*bound]
        code.bound[at] = handler, getattr(operator, OPERATORS[code.args[at]].forward)
    try:
        refused = attempted(vm, frame, lambda: _fork(vm, frame, either.flag, ways, joins, sure) if joins else None)
    finally:
        code.bound = bound
    if refused is not None or not joins:
        reason = f"a tensor or a number, as data decide, is read (and no branch of the graph: {refused})"
        raise vm.unsupported(reason, "data_branch")
    return True


_SUPPOSED: Slot[list[tuple[TracedTensor, bool]]] = Slot(list)  # what is known in the ways that are gone
_FLAGS: Slot[list[tuple[Expr, TracedTensor]]] = Slot(list)  # truths that say whether there is a tensor


def _joins_behind(vm: Machine, code: Code, at: int) -> list[int]:
    """Where the ways of an instruction meet that reads an `Either`."""
    operation = UNIFORM[code.ops[at]]
    if operation.suspends or (code, at) in vm.world.symbols.history.learnt.apart:
        return []
    if operation.goes == "branches":
        return joins_of(code, at)
    return [at + 1] if operation.goes == "on" else []


def _in_place(code: Code, at: int) -> bool:
    return code.ops[at] == "BINARY_OP" and OPERATORS[code.args[at]].in_place is not None


def _is_apart(vm: Machine, frame: Frame, either: Either) -> bool:
    """Whether nobody can tell if an operator in place, whose left operand it is, writes to the tensor or makes another
    one: neither autograd nor the program, which has it where the result is put."""
    if not (either.made and is_fresh(either)):
        return False
    state = State(vm)
    held = [*frame.locals, *frame.stack[:-2], *[value for _, inner in state.kept.values() for _, value in inner]]
    same = [value for value in held if type(value) is TracedTensor and value.group is either.tensor.group]
    return len(same) == 1 and sum(value is either for value in held) <= 1


def attempted(vm: Machine, frame: Frame, fork: Callable[[], None]) -> str | None:
    """Let a fork happen; or answer why it cannot be, and the machine is where it was."""
    frames, at, trace = list(vm.frames), frame.pc, vm.trace
    try:
        fork()
    except (KeyboardInterrupt, Passed):
        raise
    except BaseException as error:
        why = getattr(error, "reason", None) or f"a way of it raises {type(error).__name__}"
        vm.frames[:], vm.trace, vm.progress.lost, frame.pc = frames, trace, None, at
        return str(why)
    return None


Beginning = tuple[int, list[object]]
"""The instruction that a way begins with, and the stack there."""


def _fork(
    vm: Machine,
    frame: Frame,
    condition: object,
    beginnings: list[Beginning],
    joins: list[int],
    sure: Sequence[TracedTensor] = (),
) -> None:
    if vm.world.journal.forks >= _DEEPEST:
        raise vm.unsupported("branches in branches, too deep", "control_flow")
    if isinstance(condition, _SYMBOLIC):
        condition = data.as_tensor(vm.trace, condition)
    if type(condition) is not TracedTensor or condition.numel() != 1:
        raise vm.unsupported("a branch on what is not one number", "control_flow")
    tick = frame.tick
    if not vm.world.journal.forks:
        vm.world.journal.ways = 0
    vm.world.journal.forks += 1
    refused: Unsupported | None = None
    try:
        before = State(vm)
        last = [(joins[-1], True)] if joins[-1] != END else []  # where variables differ that may be read no more
        for join, tears in [*((join, False) for join in joins), *last]:
            if refused is not None and (vm.world.journal.ways > _MOST_WAYS or (tears and type(refused) is Passed)):
                break  # the ways between would be gone again for each branch in them
            refused = _try(vm, frame, beginnings, join, before, condition, sure, tears)
            if refused is None:
                return
            forgive(refused)
        assert refused is not None
        raise refused
    finally:
        refused = None  # its traceback leads to this frame: a cycle would keep alive the values of the program
        vm.world.journal.forks -= 1
        frame.tick = tick
        if not vm.world.journal.forks:
            vm.world.journal.writes.clear()


def _try(
    vm: Machine,
    frame: Frame,
    beginnings: list[Beginning],
    join: int,
    before: State,
    condition: TracedTensor,
    sure: Sequence[TracedTensor],
    tears: bool,
) -> Different | None:
    """Join the ways at an instruction; if they differ there, everything is as before and the difference is answered.
    `tears`: variables may differ."""
    where, place = vm.trace.where, (frame.code, frame.pc - 1)
    ways: list[Way] = []
    try:
        for truth, (start, stack) in zip((True, False), beginnings):
            _SUPPOSED.of(vm).append((condition, truth))
            try:
                ways.append(_go(vm, frame, start, list(stack), join, before))
            finally:
                _SUPPOSED.of(vm).pop()
            if len(ways) < len(beginnings):
                ways[-1].undo(frame, before)
    except Passed as error:
        frame.pc = place[1] + 1
        return error
    finally:
        vm.trace.where = where
    try:
        _join(frame, _Merge(vm, before, ways, condition, sure), join, place, tears)
    except Different as error:
        ways[-1].undo(frame, before)
        frame.pc = place[1] + 1
        return error
    return None


class Start(NamedTuple):
    """The values of a frame."""

    stack: list[Any]
    locals: list[Any]


@dataclass
class Way:
    """How one way has ended: the values of the frame, and what was changed in lists, dicts and cells, and outside."""

    part: Part
    start: Start
    end: Start
    changed: dict[int, tuple[Any, Contents, Contents]]
    writes: dict[tuple[int, Any], tuple[Write, Any]]

    def undo(self, frame: Frame, before: State) -> None:
        """Let everything be as it was before the branch."""
        before.restore(self.changed)
        frame.stack[:], frame.locals[:] = self.start


def _go(vm: Machine, frame: Frame, start: int, stack: list[object], join: int, before: State) -> Way:
    """Interpret one way, from instruction `start` with this stack to where it meets the other."""
    vm.world.journal.ways += 1
    code, depth, base = frame.code, len(vm.frames), vm.base
    beginning, errors = Start(list(frame.stack), list(frame.locals)), list(frame.exceptions)
    bound = code.bound
    assert bound is not None
    frame.pc, frame.stack[:], vm.base = start, stack, depth - 1
    code.bound = list(bound)
    for index, (handler, arg) in enumerate(bound):
        if index == join or code.ops[index] == "RETURN_VALUE":
            code.bound[index] = _stopping(frame, handler, index == join or join == END), arg
    try:
        with part_of(vm) as part:
            vm.run_on(itertools.repeat(0))
        if vm.progress.lost is not None or len(vm.frames) != depth or vm.frames[-1] is not frame:
            raise vm.unsupported("a way of a branch does not come to where the other one does", "control_flow")
        if frame.pc != join and not (join == END and code.ops[frame.pc] == "RETURN_VALUE"):
            raise Passed("the ways of a branch meet behind those around it", vm.where(), kind="control_flow")
    except Passed:
        frame.stack[:], frame.locals[:] = beginning
        frame.exceptions[:] = errors
        before.restore(before.changed())
        raise
    finally:
        code.bound, vm.base = bound, base
    if len(errors) != len(frame.exceptions) or any(a is not b for a, b in zip(errors, frame.exceptions)):
        raise vm.unsupported("a way of a branch handles an exception", "control_flow")
    part.check(writes=True)
    end = Start(list(frame.stack), list(frame.locals))
    for old, new in zip(beginning.locals, end.locals):
        if old is not new and old is not MISSING and is_finalised(old):
            raise vm.unsupported("a way of a branch drops an object whose end can be seen", "control_flow")
    return Way(part, beginning, end, before.changed(), before.writes())


def _check_writes(vm: Machine, first: Part, second: Part) -> None:
    """What one way alone writes to is nothing that autograd may have saved."""
    both = set(map(id, first.written())) & set(map(id, second.written()))
    for part in (first, second):
        for outer in part.written():
            if id(outer) not in both:
                _check_unsaved(vm, part, outer)


def _check_unsaved(vm: Machine, part: Part, written: TracedTensor) -> None:
    """Autograd counts the writes to what it has saved, and a write after the branch counts for either way: none is
    made to what it may have saved, here or before the call."""
    place = part.input_of(part.adopt(written).group)
    if vm.world.inputs.is_inference(written.group, place):
        return
    if place is not None:
        raise vm.unsupported("a way of a branch writes to an argument, which autograd may have saved", "control_flow")
    if written.requires_grad or vm.world.trace.may_have_saved:
        raise vm.unsupported("a way of a branch writes to a tensor that autograd may have saved", "control_flow")


def _stopping(frame: Frame, handler: Callable[..., Any], meets: bool) -> Callable[..., Any]:
    """The handler of an instruction in front of which a run stops, if it is in this frame."""

    def stop(vm: Machine, current: Frame, arg: object) -> object:
        if current is not frame:
            return None if vm.settle and vm.settle(vm, current, handler, arg) else handler(vm, current, arg)
        if not meets:
            raise vm.unsupported("a way of a branch returns", "control_flow")
        current.pc -= 1
        vm.base = len(vm.frames)
        return True

    return stop


# ---- where the ways meet ---------------------------------------------------------------------------------------------


def _join(frame: Frame, merge: _Merge, join: int, place: tuple[Code, int], tears: bool) -> None:
    """Make the state of the program what it is after either way; it is now that after the second one."""
    first, second = merge.ways
    _check_writes(merge.vm, first.part, second.part)
    for merges in (False, True):
        if merges:
            merge.choose()
        _merge_frames(merge, frame, join, first, second, Torn(place) if tears else None)
        _merge_holders(merge, first, second)
        _merge_writes(merge, first, second)
    merge.note_aliases(place)


def _merge_frames(merge: _Merge, frame: Frame, join: int, first: Way, second: Way, torn: Torn | None) -> None:
    code = frame.code
    if join == END:
        frame.stack[-1] = merge.value(first.end.stack[-1], second.end.stack[-1])
    else:
        if len(first.end.stack) != len(second.end.stack):
            raise merge.refused("the ways of a branch leave different numbers of values on the stack")
        frame.stack[:] = [merge.value(a, b) for a, b in zip(first.end.stack, second.end.stack)]
    live = 0 if join == END else live_locals(code)[join]
    for index, (a, b) in enumerate(zip(first.end.locals, second.end.locals)):
        if a is b:
            continue
        if live >> index & 1 and not (torn is not None and merge.differ(index, a, b)):
            frame.locals[index] = merge.value(a, b)
        elif is_finalised(a) or is_finalised(b):
            raise merge.refused("a way of a branch leaves an object whose end can be seen")
        else:
            frame.locals[index] = torn if torn is not None and live >> index & 1 else MISSING


def _merge_holders(merge: _Merge, first: Way, second: Way) -> None:
    for key in {**first.changed, **second.changed}:
        ends = []
        for way in (first, second):
            holder, before, now = way.changed.get(key) or (first.changed.get(key) or second.changed[key])
            ends.append(now if key in way.changed else before)
        merge.items(holder, *ends)


def _merge_writes(merge: _Merge, first: Way, second: Way) -> None:
    for place in {**first.writes, **second.writes}:
        write = (first.writes.get(place) or second.writes[place])[0]
        ends = [way.writes[place][1] if place in way.writes else write.before for way in (first, second)]
        merged = merge.value(*ends)
        if merge.results is not None:
            write.put(merged)


class _Merge:
    """What stands in one place after either way. Used twice: first the pairs of tensors are found, between which the
    graph chooses, then their values are put in place (`results`)."""

    def __init__(
        self, vm: Machine, before: State, ways: list[Way], pred: TracedTensor, sure: Sequence[TracedTensor]
    ) -> None:
        self.vm, self.before, self.ways, self.pred, self.sure = vm, before, ways, pred, sure
        self.pairs: dict[tuple[int, int], tuple[TracedTensor, TracedTensor]] = {}
        self.results: dict[tuple[int, int], TracedTensor] | None = None
        self.numbers: dict[tuple[int, int], tuple[TracedTensor, TracedTensor]] = {}
        self.chosen: dict[tuple[int, int], object] = {}  # the numbers between which the graph chooses
        self.paired: dict[tuple[str, int, int], tuple[TracedTensor, TracedTensor]] = {}  # of the parts of an `Either`
        self.fresh: dict[tuple[int, int], bool] = {}
        self.partners: dict[int, Any] = {}  # the new object of the other way that a new object goes with, by id
        self.merged: dict[tuple[int, int], Any] = {}
        self.torn: dict[int, bool] = {}  # whether variables are left in states that cannot be merged

    def differ(self, index: int, a: object, b: object) -> bool:
        """Whether no value stands for both that are in a variable. What was noted to find out is forgotten then."""
        if index not in self.torn:
            partners, merged = dict(self.partners), dict(self.merged)
            try:
                self.value(a, b)
                self.torn[index] = False
            except Different as error:
                forgive(error)
                self.torn[index], self.partners, self.merged = True, partners, merged
        return self.torn[index]

    def refused(self, why: str) -> Different:
        return Different(why, self.vm.where(), kind="control_flow")

    def choose(self) -> None:
        vm, pred, pairs = self.vm, self.pred, list(self.pairs.values())
        self.merged = {}
        self.results = {}
        written = list({id(outer): outer for way in self.ways for outer in way.part.written()}.values())
        if pairs or self.numbers or written:
            vm.world.trace.functional_only = "control flow depends on data"
        if pairs or written:
            parts = [way.part for way in self.ways]
            ways = [
                (part, [part.adopt(value) for value in (*[pair[side] for pair in pairs], *written)])
                for side, part in enumerate(parts)
            ]
            self._check_written(written, ways)
            results = choose(vm.trace, pred, ways, sure=self.sure)
            if written and any(result.requires_grad for result in results):
                raise vm.unsupported("a way of a branch with a history writes to an older tensor", "control_flow")
            for outer, value in zip(written, results[len(pairs) :]):
                vm.evaluate(torch.Tensor.copy_, [outer, value])
            for result, pair in zip(results, pairs):
                if result.requires_grad != any(each.requires_grad for each in pair):
                    raise vm.unsupported("a way of a branch gives a tensor another history", "control_flow")
            self.results = dict(zip(self.pairs, results))
        for key, (first, second) in self.numbers.items():
            number = self.results.get((id(first), id(second)))
            chosen = self.chosen[key] = _read(vm.trace, _chosen(pred, first, second) if number is None else number)
            if isinstance(chosen, torch.SymBool) and key == (id(True), id(False)):
                _FLAGS.of(vm).append((chosen.node.expr, pred))

    def _check_written(self, written: list[TracedTensor], ways: Sequence[tuple[Part, list[TracedTensor]]]) -> None:
        """What either way writes to from outside is given its new value after them: so it has to be alone in its
        memory."""
        for outer in written:
            if _is_special(outer) or any(part.is_shared(outer.group) for part, _ in ways):
                raise self.vm.unsupported(
                    "a way of a branch writes to memory that another tensor shares", "control_flow"
                )
            if not is_dense(outer.meta.shape, outer.meta.stride):
                raise self.vm.unsupported("a way of a branch writes to a tensor with gaps", "control_flow")

    def same_key(self, a: object, b: object) -> None:
        if not (a is b or (type(a) is type(b) and type(a) in CONSTANT_TYPES and same_constant(a, b))):
            raise self.refused("the ways of a branch leave different keys")

    def value(self, a: Any, b: Any) -> Any:
        """The value that stands for both. Raises Unsupported where there is none."""
        if a is b:
            return b
        if type(a) is Deferred or type(b) is Deferred:
            a, b = (self.vm.world.wrap(x.real, x.source) if type(x) is Deferred else x for x in (a, b))
            return self.value(a, b)
        a = a.tensor if type(a) is Either and a.flag is self.pred else a
        b = b.number if type(b) is Either and b.flag is self.pred else b
        cls = type(a)
        if cls in _NUMBERS and _NUMBERS[cls] is _NUMBERS.get(type(b)) and not _is_same_number(a, b):
            return self._number(a, b)
        if cls is not type(b) and all(type(each) in _SETTLED for each in (a, b)):
            return self._either(a, b)
        if cls is not type(b):
            raise self.refused(f"the ways of a branch leave {_named(a)} and {_named(b)}")
        if cls is TracedTensor:
            return self._tensor(a, b)
        if cls is Either:
            return self._either(a, b)
        if cls in CONSTANT_TYPES:
            if not same_constant(a, b):
                raise self.refused(f"the ways of a branch leave two values: {_named(a)} and {_named(b)}")
            return b
        if cls in _NUMBERS:
            return b
        if id(a) in self.before.seen or id(b) in self.before.seen:
            raise self.refused(f"the ways of a branch leave two objects: {_named(a)} and {_named(b)}")
        return self._object(a, b)

    def _either(self, a: object, b: object) -> object:
        """A tensor or a number, where one way leaves a tensor, the other a number. Numbers of two types are none."""
        key = id(a), id(b)
        if key in self.merged:
            return self.merged[key]
        fresh = self.fresh.setdefault(key, all(map(is_fresh, (a, b))))  # before anything reads them
        flags, tensors, numbers = zip(*map(_alternatives, (a, b)))
        if all(tensor is None for tensor in tensors):
            raise self.refused(f"the ways of a branch leave {_named(a)} and {_named(b)}")
        number = self.value(*numbers) if MISSING not in numbers else self._sole(numbers)
        tensor, flag = self._either_tensor(key, *tensors), self._either_flag(key, *flags)
        if self.results is None:
            return None
        self.vm.settle = settle
        merged = self.merged[key] = Either(cast(TracedTensor, flag), cast(TracedTensor, tensor), number)
        kept = any(tensor is each for each in tensors) and not any(tensor is each for each in self.sure)
        merged.made = not kept and all(each.made for each in (a, b) if type(each) is Either)
        merged.fresh = fresh
        return merged

    def _sole(self, numbers: Sequence[object]) -> object:
        """The number of the one way that has one."""
        side = int(numbers[0] is MISSING)
        known = self._symbolic(numbers[side], self.ways[side].part)
        if known is not None and known._trace is not self.vm.trace:
            raise self.refused("a way of a branch leaves a number that only it has")
        return numbers[side]

    def _either_tensor(self, key: tuple[int, int], *tensors: TracedTensor | None) -> object:
        known = [tensor for tensor in tensors if tensor is not None]
        if len(known) == 1 and known[0]._trace is not self.ways[tensors.index(known[0])].part:
            return known[0]  # from before
        if len(known) == 2:
            return self.value(*known)
        return self._paired(
            ("tensor", *key), *[self._like(known[0], tensor, way) for tensor, way in zip(tensors, self.ways)]
        )

    def _like(self, known: TracedTensor, tensor: TracedTensor | None, way: Way) -> TracedTensor:
        """What stands for a tensor in the way that has none."""
        if tensor is not None:
            return tensor
        self.check_plain(known)
        node = way.part.filled(known.meta._replace(requires_grad=False), 0)
        return cast(TracedTensor, way.part.wrap(node))

    def _either_flag(self, key: tuple[int, int], first: object, second: object) -> object:
        if isinstance(first, bool) and isinstance(second, bool):
            truth = self.pred.detach().reshape(()).ne(0)
            return truth if first else truth.logical_not()
        if first is second:
            return first
        flags = [
            way.part.wrap(way.part.call(aten.full.default, [], flag, dtype=torch.bool, device=self.pred.device))
            if isinstance(flag, bool)
            else flag
            for flag, way in zip((first, second), self.ways)
        ]
        return self._paired(("flag", *key), *cast(list[TracedTensor], flags))

    def _paired(self, key: tuple[str, int, int], first: TracedTensor, second: TracedTensor) -> object:
        """A result of the branch: of the tensors that were found first."""
        first, second = self.paired.setdefault(key, (first, second))
        if self.results is not None:
            return self.results[id(first), id(second)]
        self.pairs[id(first), id(second)] = first, second
        return None

    def _number(self, a: object, b: object) -> object:
        """A number of the graph, as the condition chooses between two."""
        key = id(a), id(b)
        if self.results is not None:
            return self.chosen[key]
        if any(type(value) is int and not -(2**63) <= value < 2**63 for value in (a, b)):
            raise self.refused(f"the ways of a branch leave two values: {_named(a)} and {_named(b)}")
        known = [self._symbolic(value, way.part) for value, way in zip((a, b), self.ways)]
        device = next((tensor.device for tensor in known if tensor is not None), self.pred.device)
        first, second = (
            self._constant(value, device) if tensor is None else tensor for value, tensor in zip((a, b), known)
        )
        self.numbers[key] = first, second
        if any(tensor._trace is not self.vm.trace for tensor in (first, second)):
            if first.device != second.device:
                raise self.refused("the ways of a branch leave numbers of two devices")
            self.pairs[id(first), id(second)] = first, second
        return None

    def _symbolic(self, value: object, part: Part) -> TracedTensor | None:
        """A number of the graph as a 0-dim tensor; None for others."""
        if isinstance(value, scalars.TracedFloat):
            return cast(TracedTensor, value.tensor)
        if not isinstance(value, _SYMBOLIC):
            return None
        is_own = not part.bound.isdisjoint(value.node.expr.free_vars)
        return cast(TracedTensor, data.as_tensor(part if is_own else self.vm.trace, value))

    def _constant(self, value: object, device: torch.device) -> TracedTensor:
        trace, dtype = self.vm.trace, _NUMBERS[type(value)]
        return cast(TracedTensor, trace.wrap(trace.call(aten.full.default, [], value, dtype=dtype, device=device)))

    def _tensor(self, a: TracedTensor, b: TracedTensor) -> object:
        first, second = a.meta, b.meta
        alike = (
            len(first.shape) == len(second.shape)
            and same_sizes(first.shape, second.shape)
            and (first.dtype, first.device, first.requires_grad) == (second.dtype, second.device, second.requires_grad)
        )
        if not alike:
            raise self.refused("the ways of a branch leave tensors of different shapes or types")
        if not same_sizes(first.stride, second.stride):
            raise self.refused("the ways of a branch leave tensors of different layouts")
        self.check_plain(a)
        self.check_plain(b)
        key = id(a), id(b)
        if self.results is None:
            self.pairs[key] = a, b
            self.fresh.setdefault(key, is_fresh(a) and is_fresh(b))
            return None
        if self.fresh[key]:
            self.results[key].node.meta["fresh"] = True
        return self.results[key]

    def check_plain(self, tensor: TracedTensor) -> None:
        if not is_dense(tensor.meta.shape, tensor.meta.stride):
            raise self.refused("a way of a branch leaves a tensor with gaps")
        if _is_special(tensor):
            raise self.refused("a way of a branch leaves a tensor of a special kind")

    def _object(self, a: Any, b: Any) -> Any:
        """Objects that the ways have made: they are alike if what is in them is."""
        key = id(a), id(b)
        if key in self.merged:
            return self.merged[key]
        if isinstance(a, tuple):
            return self._tuple(a, b)
        for one, other in ((a, b), (b, a)):
            if self.partners.setdefault(id(one), other) is not other:
                raise self.refused("the ways of a branch share objects differently")
        self.merged[key] = b
        kind = type(a)
        if kind not in (list, dict) and not _is_record(a):
            raise self.refused(f"the ways of a branch make a {kind.__name__} each")
        if isinstance(a, list):
            self.items(b, list(enumerate(list.__iter__(a))), list(enumerate(list.__iter__(b))))
        elif isinstance(a, dict):
            self.items(b, *[[(k, dict.__getitem__(each, k)) for k in ordered_keys(each)] for each in (a, b)])
        if kind not in (list, dict):
            spaces = own_namespace(a), own_namespace(b)
            self.items(spaces[1], *[list(each.items()) for each in spaces])
        return b

    def _tuple(self, a: Any, b: Any) -> Any:
        if len(a) != len(b) or own_namespace(a) or own_namespace(b):
            raise self.refused("the ways of a branch leave tuples of different lengths")
        parts = [self.value(x, y) for x, y in zip(tuple.__iter__(a), tuple.__iter__(b))]
        cls = type(b)
        merged = self.merged[id(a), id(b)] = tuple_of(cls, parts)
        return merged

    def items(self, holder: object, first: Contents, second: Contents) -> None:
        if len(first) != len(second):
            raise self.refused(f"the ways of a branch leave different numbers of items in a {type(holder).__name__}")
        merged = []
        for (key_a, a), (key_b, b) in zip(first, second):
            self.same_key(key_a, key_b)
            merged.append((key_b, self.value(a, b)))
        if self.results is not None:
            put_back(holder, merged)

    # ---- memory that is shared in eager, or not

    def note_aliases(self, place: Any) -> None:
        """In eager a result of the way taken may be a tensor that was there before, or share its memory with another
        result. Those of the graph are apart: neither may be written to, nor may both be seen at the end."""
        pairs = list(self._aliases())
        if not pairs:
            return
        self._tell_results()
        alive = reachable_groups(self.vm)
        for first, second in pairs:
            if second.source is not None or second.frozen or id(second) in alive:
                self.vm.world.aliases.add(first, second, place)

    def _tell_results(self) -> None:
        """Note of results which tensors from before they may be, if there is nothing else that they may share."""
        assert self.results is not None
        parts = [way.part for way in self.ways]
        flag = cast(TracedTensor, self.pred.detach().reshape(()).ne(0))
        made = [[pair[side].group for pair in self.pairs.values()] for side in (0, 1)]
        for key, result in self.results.items():
            given = [
                result
                if part.has_made(own)
                and len(self.vm.world.aliases.of(own.group)) == 1
                and sum(group is own.group for group in groups) == 1
                else own
                for own, part, groups in zip(self.pairs[key], parts, made)
            ]
            older = [each for each in given if each is not result]
            written = [outer for part in parts for outer in part.written()]
            if older and all(
                each._trace is self.vm.trace and not any(each is outer for outer in written) for each in older
            ):
                self.vm.world.aliases.told[id(result)] = Chosen(result, flag, *given)

    def _aliases(self) -> Iterator[tuple[AliasGroup, AliasGroup]]:
        assert self.results is not None
        for side, way in enumerate(self.ways):
            known: dict[int, AliasGroup] = {}
            unseen = {(id(first), id(second)) for (what, *_), (first, second) in self.paired.items() if what == "flag"}
            for key, result in self.results.items():
                if key in unseen:
                    continue
                own, aliases = self.pairs[key][side].group, self.vm.world.aliases
                before = way.part.origin(own)
                for group in (*aliases.of(own), *(aliases.of(before) if before is not own else ())):
                    origin = way.part.origin(group)
                    if group is not own or self.pairs[key][side]._trace is not way.part or origin is not own:
                        yield result.group, origin
                    other = known.setdefault(id(origin), result.group)
                    if other is not result.group:
                        yield result.group, other


def _is_same_number(a: object, b: object) -> bool:
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return same_size(a, b)
    if isinstance(a, _SYMBOLIC) or isinstance(b, _SYMBOLIC):
        return isinstance(a, torch.SymBool) and isinstance(b, torch.SymBool) and bool(a.node.expr == b.node.expr)
    return type(a) is type(b) and same_constant(a, b)


def _chosen(pred: TracedTensor, first: TracedTensor, second: TracedTensor) -> TracedTensor:
    with torch.no_grad():
        condition = pred.detach().reshape(()).bool()
        number = cast(TracedTensor, torch.where(condition, *[value.to(pred.device) for value in (first, second)]))
    values = [tensor.node.args[1] for tensor in (first, second) if tensor.node.target is aten.full.default]
    known = [value for value in values if type(value) is int]
    if len(known) == 2:
        number.node.meta["within"] = min(known), max(known)
    return number


def _read(trace: Trace, tensor: TracedTensor) -> object:
    """The number in a 0-dim tensor."""
    return scalars.of_tensor(trace, tensor) if tensor.is_floating_point() else data.number(trace, tensor)


def _is_special(tensor: TracedTensor) -> bool:
    marked = tensor.face is not None or tensor.attributes or isinstance(tensor, torch.nn.Parameter)
    return bool(marked or tensor.is_conj() or tensor.is_neg() or not tensor.counts)


_SETTLED = frozenset({TracedTensor, Either, *_NUMBERS})


def _alternatives(value: object) -> tuple[object, TracedTensor | None, object]:
    """Whether it is a tensor, the tensor, and the number."""
    if type(value) is Either:
        return value.flag, value.tensor, value.number
    return (True, value, MISSING) if type(value) is TracedTensor else (False, None, value)


_BASES = (object, dict, collections.OrderedDict)


def _is_record(value: object) -> bool:
    """Whether an instance is nothing but the items of a dict and what is in its namespace (dataclasses, outputs of
    models)."""
    for base in type(value).__mro__:
        if base not in _BASES and (not is_python_class(base) or vars(base).get("__slots__") or "__del__" in vars(base)):
            return False
    return True


def _named(value: object) -> str:
    if value is MISSING:
        return "nothing"
    if type(value) is TracedTensor:
        return "a tensor"
    return repr(value) if type(value) in (int, float, bool, str) else f"a {type(value).__name__}"


# ---- copies that eager may not make ----------------------------------------------------------------------------------


def note_copy(vm: Machine, of: AliasGroup, copy: AliasGroup) -> None:
    """Two storages of the graph that may be one in eager. Raises Unsupported where the program is known to see that."""
    frame = vm.frames[-1]
    place = frame.code, frame.pc - 1
    if place in vm.world.symbols.history.learnt.apart:
        reason = "this may be a view in eager, not here, and what shares its memory is written to or leaves the program"
        raise vm.unsupported(reason, "data_condition", "clone the tensor before, or the result")
    vm.world.aliases.add(of, copy, place)


def is_shared(vm: Machine, group: AliasGroup) -> bool:
    """Whether the program can see, when it writes to a storage, that another one is apart from it."""
    world = vm.world
    if any(group is each for groups in world.inputs.storages.values() if len(groups) > 1 for each in groups):
        return True
    others = [other for other in world.aliases.of(group) if other is not group]
    seen = any(other.source is not None or other.frozen for other in others) or _is_reachable(vm, others)
    if seen:
        world.aliases.apart(group)
    return seen


def _is_reachable(vm: Machine, groups: list[AliasGroup]) -> bool:
    try:
        alive = reachable_groups(vm)
    except Unsupported as error:  # something cannot be looked into
        forgive(error)
        return True
    return any(id(group) in alive for group in groups)
