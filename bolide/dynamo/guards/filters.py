"""Which guards are kept: by options of capture, and by a function of the user's.

Every guard that is left out is an assumption that is no longer looked at: the compiled function goes on using what it
saw. That is for users who know that it will not change, or that nothing depends on it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from bolide.dynamo.config import config
from bolide.dynamo.program import sources
from bolide.dynamo.program.captured import Guard, Source
from bolide.dynamo.program.kinds import MODULE_HOOKS


class GuardFail(NamedTuple):
    """A guard that did not hold, as ``guard_fail_fn`` is told: as text, and the code of the function."""

    reason: str
    orig_code: types.CodeType


GuardFailed = Callable[[GuardFail], object]


@dataclass(frozen=True)
class GuardFilterEntry:
    """A guard as a filter function sees it."""

    name: str  # the path of the value, as text (``self.layers[0].weight``), "" for the global state
    guard_type: str  # see `program.GuardKind`
    has_value: bool
    value: object  # what is expected, if `has_value` (constants and objects expected by identity)
    is_global: bool  # whether it is read from a module's globals or the global state
    orig_guard: Guard
    derived_guard_types: tuple[str, ...] = ()


GuardFilter = Callable[[Sequence[GuardFilterEntry]], Sequence[bool]]


def entry(guard: Guard) -> GuardFilterEntry:
    """What a filter function is shown of a guard."""
    known = guard.kind in ("is", "equals")
    shared = guard.source is None or [*guard.source.steps()][-1].kind in ("global", "object")
    name = sources.text(guard.source) if guard.source is not None else ""
    return GuardFilterEntry(name, guard.kind, known, guard.expected if known else None, shared, guard)


def _inside(source: Source | None, owners: set[Source]) -> bool:
    """Whether a path leads through one of `owners`."""
    return source is not None and source.base is not None and any(step in owners for step in source.base.steps())


def _of_module_class(guard: Guard, package: str = "") -> bool:
    return guard.kind == "class_attr" and guard.source is not None and _is_module_class(guard.source.obj, package)


def _of_hooks(guard: Guard) -> bool:
    steps = () if guard.source is None else guard.source.steps()
    return any(step.key in MODULE_HOOKS and step.kind in ("attr", "member") for step in steps)


# ---- filters for users -----------------------------------------------------------------------------------------------


def keep_tensor_guards_unsafe(entries: Sequence[GuardFilterEntry], keep_parameters: bool = False) -> list[bool]:
    """Keeps what is assumed of tensors, of parameters only with `keep_parameters`."""
    return [e.guard_type == "tensor" and (keep_parameters or not _of_parameter(e.orig_guard)) for e in entries]


def keep_portable_guards_unsafe(entries: Sequence[GuardFilterEntry]) -> list[bool]:
    """Keeps what is assumed of tensors that are no globals, of sizes, and of torch's global state."""
    kinds = ("global_state", "relation", "integer", "not_aliased")
    return [e.guard_type in kinds or (e.guard_type == "tensor" and not e.is_global) for e in entries]


def skip_guard_on_globals_unsafe(entries: Sequence[GuardFilterEntry]) -> list[bool]:
    """Leaves out what is assumed of globals."""
    return [not e.is_global or e.guard_type == "global_state" for e in entries]


def skip_guard_on_all_nn_modules_unsafe(entries: Sequence[GuardFilterEntry]) -> list[bool]:
    """Leaves out what is assumed of modules and of what they hold."""
    return _outside_modules(entries, "")


def skip_guard_on_inbuilt_nn_modules_unsafe(entries: Sequence[GuardFilterEntry]) -> list[bool]:
    """Leaves out what is assumed of torch's own modules and of what they hold."""
    return _outside_modules(entries, "torch.nn.")


def skip_all_guards_unsafe(entries: Sequence[GuardFilterEntry]) -> list[bool]:
    """Leaves out everything: what is compiled first is used for every call."""
    return [False] * len(entries)


def _of_parameter(guard: Guard) -> bool:
    return issubclass(guard.expected.cls, nn.Parameter)


def _outside_modules(entries: Sequence[GuardFilterEntry], package: str) -> list[bool]:
    """Which guards are not about modules whose classes are of a package."""
    guards = [e.orig_guard for e in entries]
    modules = _module_sources(guards, package)
    return [not (g.source in modules or _inside(g.source, modules) or _of_module_class(g, package)) for g in guards]


def _module_sources(guards: Sequence[Guard], package: str = "") -> set[Source]:
    return {
        guard.source
        for guard in guards
        if guard.kind == "type" and guard.source is not None and _is_module_class(guard.expected, package)
    }


def _is_module_class(cls: type, package: str) -> bool:
    return issubclass(cls, nn.Module) and cls.__module__.startswith(package)


# ---- what is kept ----------------------------------------------------------------------------------------------------


def select(guards: Sequence[Guard], wanted: GuardFilter | None = None) -> list[Guard]:
    """The guards that are kept. Sizes stay guarded where code relies on them: guards of tensors that are passed, of
    symbolic sizes and of the global state are never left out by options; `wanted` may leave out any.

    Raises TypeError when `wanted` does not answer one truth value for each guard.
    """
    kept = list(guards)
    if config.skip_nnmodule_hook_guards:
        kept = [guard for guard in kept if not _of_hooks(guard)]
    if not config.guard_nn_modules:
        modules = _module_sources(kept)
        kept = [guard for guard in kept if not (_inside(guard.source, modules) or _of_module_class(guard))]
    if wanted is None:
        return kept
    answers = list(wanted([entry(guard) for guard in kept]))
    if len(answers) != len(kept) or not all(isinstance(answer, bool) for answer in answers):
        raise TypeError(f"guard_filter_fn has to answer {len(kept)} truth values, one for each guard")
    return [guard for guard, answer in zip(kept, answers) if answer]
