"""State of the interpreter that a program sets and puts back: context variables, the filters of warnings."""

from __future__ import annotations

import contextvars
import warnings
from dataclasses import dataclass
from typing import Any

from bolide.dynamo.library.handlers import Args, Kwargs, answers, refuse
from bolide.dynamo.machine.calls import NATIVE, intercept
from bolide.dynamo.machine.interpreter import Machine, Slot
from bolide.dynamo.machine.operations import is_plain
from bolide.dynamo.program.captured import Effect, Recipe, Source
from bolide.dynamo.program.kinds import MISSING
from bolide.dynamo.state import state
from bolide.dynamo.world.rebuild import RECIPES, Rebuilder
from bolide.support.errors import Unsupported
from bolide.support.leaks import fleeting

_Var = contextvars.ContextVar[Any]

# ---- context variables -----------------------------------------------------------------------------------------------


@fleeting
class _Token:
    """What `ContextVar.set` answers while capturing."""

    __slots__ = ("before", "used", "var")

    def __init__(self, var: _Var, before: object) -> None:
        self.var, self.before, self.used = var, before, False


@dataclass(slots=True)
class _Variable:
    """The value of a context variable (MISSING where it has none), at the start and now."""

    at_first: object
    now: object


_VARIABLES: Slot[dict[_Var, _Variable]] = Slot(dict, undone=True)


def _variable(vm: Machine, var: _Var) -> _Variable:
    """What is known of a context variable; its value is guarded when it is first asked for."""
    known = _VARIABLES.of(vm)
    if var not in known:
        source = Source("apply", Source("object", None, None, var), (MISSING,), contextvars.ContextVar.get)
        value = var.get(MISSING)
        if value is MISSING:
            vm.world.guards.add(source, "is", MISSING)
        wrapped = value if value is MISSING else vm.world.wrap(value, source)
        known[var] = _Variable(wrapped, wrapped)
    return known[var]


@answers(contextvars.ContextVar.get)
def _get(vm: Machine, var: _Var, *default: object) -> object:
    value = _variable(vm, var).now
    return var.get(*default) if value is MISSING else value  # its default, or a LookupError


@answers(contextvars.ContextVar.set)
def _set(vm: Machine, var: _Var, value: object) -> _Token:
    variable = _variable(vm, var)
    token = _Token(var, variable.now)
    variable.now = value
    return token


@answers(contextvars.ContextVar.reset)
def _reset(vm: Machine, var: _Var, token: object) -> None:
    if type(token) is not _Token or token.var is not var or token.used:
        raise vm.unsupported("a context variable is reset by a token from elsewhere", "context")
    token.used = True
    _variable(vm, var).now = token.before


refuse(
    *(contextvars.copy_context, contextvars.Context.run),
    reason="another context is used",
    kind="context",
    remedy="do this outside the compiled function",
)


def _token(rebuilder: Rebuilder, token: _Token) -> Recipe:
    reason = "the token of a context variable outlives the graph"
    raise Unsupported(reason, rebuilder.world.guards.where(), kind="context")


RECIPES[_Token] = _token


def context_effects(vm: Machine, rebuilder: Rebuilder) -> list[Effect]:
    """What sets the context variables that the program has given other values."""
    changed = [(var, known.now) for var, known in _VARIABLES.of(vm).items() if known.now is not known.at_first]
    return [
        Effect("call", None, None, Recipe("call", type(var).set, (*rebuilder.constants(var), rebuilder.recipe(value))))
        for var, value in changed
    ]


# ---- warnings --------------------------------------------------------------------------------------------------------


def _filters_are_own(vm: Machine) -> bool:
    """Whether the program is in a ``with warnings.catch_warnings()`` of its own."""
    return any(isinstance(manager, warnings.catch_warnings) for manager in vm.modes.entered)


@intercept(warnings.warn)
def _warn(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    """A warning waits until the graph has run, unless filters of the program's own say what becomes of it, or no entry
    will show it: an exported graph is silent, who exports it is told."""
    warn = vm.within(warnings.warn)
    if not _filters_are_own(vm):
        if state.exporting and all(isinstance(arg, type) or is_plain(arg) for arg in (*args, *kwargs.values())):
            return warn(*args, **kwargs)
        vm.later.calls.append((warn, args, kwargs))
        return None
    message = args[0] if args else kwargs.get("message")
    if not (isinstance(message, Warning) or is_plain(message)):
        raise vm.unsupported("a warning made of an object", "side_effect")
    if any(getattr(manager, "_record", False) for manager in vm.modes.entered):
        return warn(*args, **kwargs)
    with warnings.catch_warnings(record=True) as shown:
        warn(*args, **kwargs)
    if shown:
        raise vm.unsupported("a warning is shown by filters of the program's own", "side_effect")
    return None


@intercept(warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings)
def _filter(vm: Machine, args: Args, kwargs: Kwargs) -> object:
    if _filters_are_own(vm):
        return NATIVE
    raise vm.unsupported("the filters of warnings are changed", "side_effect", "use warnings.catch_warnings()")
