"""Compiled modules: an object whose class is a subclass of the user's and which shares the module's ``__dict__``.

Sharing the dictionary makes parameters, buffers, hooks, `training`, `state_dict` keys and every attribute *the same
things* for both, whichever of the two is changed. Only ``__call__`` differs, so that methods which call ``self(...)``
(such as ``generate``) are compiled as well. ``__class__`` is the module's: what is made of it is a plain module
(``compiled[:2]``), and who assigns it (parametrizations) changes the module.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from bolide.dynamo.torch_calls.state import GLOBAL_HOOKS, HOOKS


def call_target(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What is captured for a module or another callable object."""
    return self(*args, **kwargs)


def forward_of(target: object) -> types.FunctionType | None:
    """The method that a call of a module gives its very arguments: none where a hook or other code sees them before."""
    if not isinstance(target, nn.Module):
        return None
    cls, state = type(target), vars(target)
    hooked = any(GLOBAL_HOOKS) or any(state.get(name) for name in HOOKS)
    calls = cls.__call__ is nn.Module.__call__ and cls._call_impl is nn.Module._call_impl
    if hooked or "forward" in state or not calls:
        return None
    return cls.forward if type(cls.forward) is types.FunctionType else None


class CompiledModule:
    """First base of the class of every compiled module."""

    __slots__ = ()
    _orig_mod: nn.Module
    _bolide_call: Callable[..., object]
    _bolide_user: type
    _bolide_rebuild: Callable[[nn.Module], nn.Module]

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Not passed on: the user's own ``__init_subclass__`` must not see a class the user did not write."""

    def __new__(cls, /, *args: object, **kwargs: object) -> Any:
        """``type(compiled)(...)`` makes what ``type(module)(...)`` makes."""
        return cls._bolide_user(*args, **kwargs)

    @property
    def __class__(self) -> type:
        return type(self._orig_mod)

    @__class__.setter
    def __class__(self, value: type) -> None:
        self._orig_mod.__class__ = value

    def __getattr__(self, name: str) -> Any:
        """What only the module has: in slots of its own, or since its class was changed."""
        return getattr(self._orig_mod, name)

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        return self._bolide_call(self._orig_mod, *args, **kwargs)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return type(self)._bolide_rebuild, (self._orig_mod,)

    def __copy__(self) -> nn.Module:
        return type(self)._bolide_rebuild(copy.copy(self._orig_mod))

    def __deepcopy__(self, memo: dict[int, object]) -> nn.Module:
        return type(self)._bolide_rebuild(copy.deepcopy(self._orig_mod, memo))


def wrap(module: nn.Module, call: Callable[..., Any], rebuild: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """A compiled `module`: calling it calls ``call(module, *args, **kwargs)``. `rebuild` compiles a copy of the module
    in the same way, and can be pickled.
    """
    user = type(module)
    body: dict[str, Any] = {
        "__slots__": ("_orig_mod", "_bolide_call"),
        "__module__": user.__module__,
        "__qualname__": user.__qualname__,
        "__doc__": user.__doc__,
        "_bolide_user": user,
        "_bolide_rebuild": staticmethod(rebuild),
    }
    if hasattr(user, "__del__"):
        body["__del__"] = lambda self: None  # the module itself is what is finalised
    metaclass: Any = type(user)
    derived = metaclass(user.__name__, (CompiledModule, user), body)
    wrapper: nn.Module = object.__new__(derived)  # classes such as GraphModule make others in __new__
    object.__setattr__(wrapper, "__dict__", module.__dict__)
    derived._orig_mod.__set__(wrapper, module)
    derived._bolide_call.__set__(wrapper, call)
    return wrapper
