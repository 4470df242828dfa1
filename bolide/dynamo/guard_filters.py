"""Which guards are kept: by options of capture, and by a function of the user's.

Every guard that is left out is an assumption that is no longer looked at: the compiled function goes on using what it
saw. That is for users who know that it will not change, or that nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from bolide.dynamo import sources
from bolide.dynamo.config import config
from bolide.dynamo.program import Guard, Source

HOOKS = frozenset(
    ["_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"]
    + ["_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs"]
)


@dataclass(frozen=True)
class GuardFilterEntry:
    """A guard as a filter function sees it.

    name: the path of the value, as text (``self.layers[0].weight``), "" for the global state; guard_type: see
    `program.GuardKind`; value: what is expected, if `has_value` (constants and objects expected by identity);
    is_global: whether it is read from a module's globals or the global state; orig_guard: the guard itself.
    """

    name: str
    guard_type: str
    has_value: bool
    value: Any
    is_global: bool
    orig_guard: Guard
    derived_guard_types: tuple[str, ...] = ()


GuardFilter = Callable[[Sequence[GuardFilterEntry]], Sequence[bool]]


def _root(source: Source) -> Source:
    while source.base is not None:
        source = source.base
    return source


def entry(guard: Guard) -> GuardFilterEntry:
    """What a filter function is shown of a guard."""
    known = guard.kind in ("is", "equals")
    shared = guard.source is None or _root(guard.source).kind in ("global", "object")
    name = sources.text(guard.source) if guard.source is not None else ""
    return GuardFilterEntry(name, guard.kind, known, guard.expected if known else None, shared, guard)


def _inside(source: Source | None, owners: set[Source]) -> bool:
    """Whether a path leads through one of `owners`."""
    step = source.base if source is not None else None
    while step is not None:
        if step in owners:
            return True
        step = step.base
    return False


def _of_module_class(guard: Guard) -> bool:
    return guard.kind == "class_attr" and guard.source is not None and issubclass(guard.source.obj, nn.Module)


def _of_hooks(guard: Guard) -> bool:
    source: Source | None = guard.source
    while source is not None:
        if source.key in HOOKS and source.kind in ("attr", "member"):
            return True
        source = source.base
    return False


def select(guards: Sequence[Guard], wanted: GuardFilter | None = None) -> list[Guard]:
    """The guards that are kept. Sizes stay guarded where code relies on them: guards of tensors that are passed, of
    symbolic sizes and of the global state are never left out by options; `wanted` may leave out any.

    Raises TypeError when `wanted` does not answer one truth value for each guard.
    """
    kept = list(guards)
    if config.skip_nnmodule_hook_guards:
        kept = [guard for guard in kept if not _of_hooks(guard)]
    if not config.guard_nn_modules:
        modules = {g.source for g in kept if g.kind == "type" and g.source and issubclass(g.expected, nn.Module)}
        kept = [guard for guard in kept if not (_inside(guard.source, modules) or _of_module_class(guard))]
    if wanted is None:
        return kept
    answers = list(wanted([entry(guard) for guard in kept]))
    if len(answers) != len(kept) or not all(isinstance(answer, bool) for answer in answers):
        raise TypeError(f"guard_filter_fn has to answer {len(kept)} truth values, one for each guard")
    return [guard for guard, answer in zip(kept, answers) if answer]
