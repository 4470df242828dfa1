"""Views of dicts: what `keys()`, `values()` and `items()` give."""

from __future__ import annotations

import collections
from typing import Any

from bolide.dynamo.program.captured import Source
from bolide.dynamo.program.kinds import viewed
from bolide.dynamo.world.world import WRAPPERS, World
from bolide.support.errors import Unsupported

VIEWS: dict[type, Any] = {
    type(getattr(made, name)()): getattr(type(made), name)
    for made in ({}, collections.OrderedDict())  # type: ignore[var-annotated]
    for name in ("keys", "values", "items")
}
"""The method that makes a view, by the view's class."""


def _wrap(world: World, real: Any, source: Source) -> Any:
    """A view from outside: one of the dict as the program sees it."""
    owner = viewed(real)
    if "__module__" in owner:  # the namespace of a class, perhaps, which is written to in other ways
        raise Unsupported("a view of a namespace is read", world.where(), kind="outside_object")
    seen = world.wrap(owner, Source("apply", source, (), viewed))
    return world.mirror(VIEWS[type(real)](seen.dict_items.materialise()), source)


for _kind in VIEWS:
    WRAPPERS[_kind] = _wrap
