"""Where the nodes of a graph for a foreign backend come from, in the words of TorchDynamo, which its users know: the
names of inputs, and the modules and lines around a call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from bolide.dynamo.machine.interpreter import Machine
from bolide.dynamo.program.captured import Captured, Source
from bolide.dynamo.world.outside import Deferred, Outside
from bolide.support.errors import UserFrame

Around = tuple[tuple[UserFrame, ...], tuple[tuple[nn.Module, Source], ...]]


def around(machine: Machine) -> Around:
    """The user's lines that have led to the present instruction, outermost first, and the modules whose `forward` is
    running.
    """
    lines, modules = [], []
    for frame in machine.frames[1:]:
        if not frame.code.plumbing:
            lines.append(frame.code.frame_at(frame.pc - 1))
        if frame.code.code.co_name == "forward" and frame.locals:
            owner = frame.locals[0]
            if type(owner) in (Outside, Deferred) and isinstance(owner.real, nn.Module):
                modules.append((owner.real, owner.source))
    return tuple(lines), tuple(modules)


def path(source: Source, parameters: Sequence[str]) -> str:
    """``L['self']._modules['layer']``. parameters: of a module or callable object that was compiled, which is captured
    as ``self(*args, **kwargs)``; () for functions.
    """
    base = source.base
    if source.kind == "drawn":
        return f"random[{source.key}]"
    if base is None:
        key = source.key[1] if source.kind == "global" else source.key
        if parameters and key == "self":
            key = parameters[0]
        return f"{'G' if source.kind == 'global' else 'L'}[{str(key)!r}]"
    if parameters and base.base is None and base.key == "args" and source.key + 1 < len(parameters):
        return f"L[{parameters[source.key + 1]!r}]"
    if parameters and base.base is None and base.key == "kwargs":
        return f"L[{source.key!r}]"
    inside = path(base, parameters)
    if source.kind in ("attr", "member"):
        return f"{inside}.{source.key}"
    return inside if source.kind in ("type", "namespace", "apply", "several") else f"{inside}[{source.key!r}]"


def input_names(captured: Captured, parameters: Sequence[str]) -> list[str]:
    """The names of the inputs of a graph: ``L_x_``, ``L_self_modules_layer_parameters_weight_``, and those of symbols
    for sizes.
    """
    paths = [path(source, parameters) for source in captured.inputs]
    names = [re.sub(r"[^a-zA-Z0-9]+", "_", each) for each in paths]
    return names + [symbol.name for symbol in captured.sizes]


def describe_modules(graph: fx.Graph, parameters: Sequence[str]) -> None:
    """Give nodes ``nn_module_stack``, the modules around them, and ``source_fn_stack``, the function that was called or
    the class of torch's own module that has called it.
    """
    names: dict[Source, str] = {}
    for node in graph.nodes:
        modules: tuple[tuple[nn.Module, Source], ...] = node.meta.pop("modules", ())
        stack: dict[str, Any] = {}
        for module, source in modules:
            name = names.get(source)
            if name is None:
                name = names[source] = re.sub(r"\._modules\['(.*?)'\]", r".\1", path(source, parameters))
            stack[str(id(module))] = name, type(module)
        if stack:
            node.meta["nn_module_stack"] = stack
        if node.op in ("call_function", "call_method"):
            last = type(modules[-1][0]) if modules else None
            made_by = last if last is not None and last.__module__.startswith("torch.nn.") else node.target
            node.meta["source_fn_stack"] = [(node.name, made_by)]
