"""Random generators of the user's: they are handed to operations; what asks or changes their state runs for real."""

from __future__ import annotations

from typing import Any

import torch

from bolide.dynamo.calls import Intercept, intercept
from bolide.dynamo.interpreter import Machine
from bolide.dynamo.program import Source
from bolide.dynamo.values.outside import attribute_source
from bolide.dynamo.values.world import WRAPPERS, World
from bolide.support.errors import Unsupported
from bolide.tracing.generators import is_default


def _refusal(name: str) -> Intercept:
    def refuse(vm: Machine, args: list[Any], kwargs: dict[str, Any]) -> Any:
        raise Unsupported(
            "a random number generator is made, asked for its state or changed",
            vm.where(),
            "do this outside the compiled function",
            kind="generator_state",
            operation=name,
        )

    return refuse


intercept(torch.Generator)(_refusal("torch.Generator"))
for _name, _method in vars(torch.Generator).items():
    if callable(_method) and not _name.startswith("__"):
        intercept(_method)(_refusal(f"Generator.{_name}"))


def _wrap(world: World, real: torch.Generator, source: Source) -> torch.Generator:
    if is_default(real):
        world.guard(source, "is", real)
        return world.mirror(real, source)  # type: ignore[no-any-return]
    world.guard(attribute_source(source, "device"), "equals", real.device)
    stand_in, slot = world.trace.generator(real.device)
    world.drawn_from.append((slot, source))
    return world.mirror(stand_in, source)  # type: ignore[no-any-return]


WRAPPERS[torch.Generator] = _wrap
