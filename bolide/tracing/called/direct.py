"""Programs that are called while they are recorded, not interpreted: what torch's functions do for them then."""

from __future__ import annotations

import dis
import functools
import re
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import NoReturn, Protocol

import torch
from torch.fx import traceback
from torch.overrides import TorchFunctionMode

from bolide.support.errors import Unsupported, UserFrame
from bolide.support.origins import is_plumbing
from bolide.tracing.calls import READS
from bolide.tracing.tensor import TracedTensor
from bolide.tracing.trace import Trace

Function = Callable[..., object]

_LINE = re.compile(r'File "(.+)", line (\d+), in (.+)')


class _Handler(Protocol):
    """An entry of the table of exceptions: instructions from `start` to `end` are handled at `target`."""

    start: int
    end: int
    target: int


class Owner(Protocol):
    """What knows the real tensors behind a trace."""

    def stand_in(self, real: torch.Tensor) -> torch.Tensor:
        """The tensor that stands for a real one in the program."""

    def flag(self, tensor: TracedTensor, wanted: bool) -> None:
        """An input requires grad, or does not, before the graph runs. Raises Unsupported where that changes more."""


class Calling(TorchFunctionMode):
    """While it is active, calls of torch's functions know the user's line, and get what stands for real tensors that
    require grad and for what torch takes no symbols for. `handles`: one was made where the program handles errors."""

    def __init__(self, trace: Trace, owner: Owner) -> None:
        super().__init__()
        self.trace, self.owner, self.handles = trace, owner, False
        self._outside = sys._getframe(1)
        self._lines: dict[tuple[CodeType, int], UserFrame] = {}

    def __torch_function__(
        self, func: Function, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func in READS:
            return func(*args, **kwargs)
        self.trace.where = self._line() or self.trace.where
        self.handles = self.handles or self._is_handled()
        args = tuple([self._taken(arg) for arg in args])
        kwargs = {name: self._taken(arg) for name, arg in kwargs.items()}
        answer = _ANSWERS.get(func)
        if answer is not None and isinstance(args[0], TracedTensor):
            return answer(self, *args, **kwargs)
        return self.trace.perform(func, args, kwargs)

    def _taken(self, arg: object) -> object:
        cls = arg.__class__
        if cls is TracedTensor:
            return arg
        if isinstance(arg, (list, tuple)) and (cls is list or cls is tuple):
            return cls([self._taken(item) for item in arg])
        if cls is torch.SymBool:
            return bool(arg)
        return self.owner.stand_in(arg) if isinstance(arg, torch.Tensor) and arg.requires_grad else arg

    def _line(self) -> UserFrame | None:
        """The line of the user's (or a model library's) code that is running. For the nodes of a graph that is run it
        is the one that made the node, if the graph knows it."""
        known = traceback.get_current_meta().get("stack_trace") if traceback.has_preserved_node_meta() else None
        if known:
            lines = reversed(_LINE.findall(known))
            return next((UserFrame(file, int(line), name) for file, line, name in lines if not is_plumbing(file)), None)
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and is_plumbing(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return None
        place = frame.f_code, frame.f_lineno
        if place not in self._lines:
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # from 3.11 on
            self._lines[place] = UserFrame(frame.f_code.co_filename, frame.f_lineno, name)
        return self._lines[place]

    def _is_handled(self) -> bool:
        """Whether the program has a handler for what a call raises."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame is not self._outside:
            if not is_plumbing(frame.f_code.co_filename) and _has_handler(frame.f_code, frame.f_lasti):
                return True
            frame = frame.f_back
        return False

    def refused(self, operation: str, reason: str, remedy: str) -> Unsupported:
        return Unsupported(reason, self.trace.where, remedy, "tensor_method", operation)


@functools.lru_cache(maxsize=4096)
def _has_handler(code: CodeType, at: int) -> bool:
    """Whether an instruction is in the body of a ``try``; those of ``with`` pass errors on."""
    targets = [entry.target for entry in _handlers(code) if entry.start <= at < entry.end]
    steps = {step.offset: step.opname for step in dis.get_instructions(code)} if targets else {}
    offsets = [*steps]
    following = (offsets[offsets.index(target) :][:2] for target in targets)
    names = [[steps[offset] for offset in pair] for pair in following]
    return any(pair[0] == "PUSH_EXC_INFO" and pair[1] != "WITH_EXCEPT_START" for pair in names)


def _handlers(code: CodeType) -> list[_Handler]:
    return dis.Bytecode(code).exception_entries  # type: ignore[attr-defined,no-any-return]


# ---- what changes more than a graph tells ----------------------------------------------------------------------------


def _requires_grad(call: Calling, tensor: TracedTensor, requires_grad: bool = True) -> torch.Tensor:
    if tensor.requires_grad is not bool(requires_grad) and call.trace.is_input(tensor):
        call.owner.flag(tensor, bool(requires_grad))
    return tensor.requires_grad_(requires_grad)


def _hook(call: Calling, tensor: TracedTensor, hook: Function) -> object:
    """The engine calls it while the backward is recorded."""
    if tensor.is_leaf:
        raise call.refused("register_hook", "an argument is given a hook", "register it outside of the function")
    call.trace.derivation.lost = True
    call.trace.derivation.hooked.add(tensor.grad_fn)
    return tensor.register_hook(hook)  # type: ignore[no-untyped-call]


def _keep(call: Calling, tensor: TracedTensor, *args: object) -> NoReturn:
    raise call.refused("a tensor's gradient", "gradients are kept, or used, as they come", "do this outside")


def _grad(call: Calling, tensor: TracedTensor, *value: torch.Tensor | None) -> object:
    """``tensor.grad``, read or (with a value) set: that of an argument is state of the outside."""
    if call.trace.is_input(tensor) and tensor.requires_grad:
        raise call.refused("Tensor.grad", "the gradient of an argument is read or set", "do this outside")
    with torch._C.DisableTorchFunction():
        if value:
            (tensor.grad,) = value
        return tensor.grad


_ANSWERS: dict[Function, Function] = {
    torch.Tensor.grad.__get__: _grad,  # type: ignore[union-attr]
    torch.Tensor.grad.__set__: _grad,  # type: ignore[union-attr]
    torch.Tensor.requires_grad_: _requires_grad,
    torch.Tensor.requires_grad.__set__: _requires_grad,  # type: ignore[attr-defined]
    torch.Tensor.register_hook: _hook,
    torch.Tensor.retain_grad: _keep,
    torch.Tensor.register_post_accumulate_grad_hook: _keep,
}
