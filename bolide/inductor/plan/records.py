"""The classes that plans, kernels and programs are made of: for the codec, what stands in each field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from bolide.inductor.ir import definitions, loops
from bolide.inductor.plan import steps
from bolide.inductor.plan.plan import Plan
from bolide.inductor.schedule.nest import Schedule
from bolide.inductor.schedule.stages import Refusal
from bolide.symbolic import Expr

NAME, NOTE, TEXT = "name", "note", "text"
"""Roles of a text: what something is called, what is for people only, what counts as it is."""


class Many:
    """A tuple of things that are as `item` says; `container`: or a list, or the keys of a dict."""

    def __init__(self, item: Spec, container: type = tuple) -> None:
        self.item, self.container = item, container


@dataclass(frozen=True, slots=True)
class SavedGraph:
    """A compiled graph as it is kept: its plan, and what else is told of it."""

    plan: Plan
    schedules: tuple[Schedule, ...]
    strides: tuple[tuple[Expr, ...] | None, ...]
    refusals: tuple[Refusal, ...]


Spec = object
"""A class, a role of a text, `Many`, a tuple of what one or the other may be, or None."""

_LEAVES = (bool, float, complex, TEXT, torch.dtype, torch.device, torch.layout, torch.memory_format, None)
_EXPRS, _DEVICE, _DTYPE = Many(Expr), torch.device, torch.dtype
_ORIGIN = (definitions.Origin, None)
_LAYOUT = (definitions.Layout, None)
_VALUE: Spec = (steps.Ref, steps.Foreign, Expr, *_LEAVES, Many((steps.Ref, steps.Foreign, Expr, *_LEAVES)))
_ARGUMENT: Spec = object  # of an Extern: Views at any depth of lists and tuples; the schema is asked when it is called
_STATEMENTS = Many((loops.Loop, loops.Init, loops.Update, loops.Store))
_NODES = Many(loops.Node)
_GIVEN = (steps.TensorInput, steps.WordInput)
_RESULT = (steps.TensorResult, steps.WordResult, None)
_STEP = (
    *(steps.Alloc, steps.Reuse, steps.View, steps.Launch, steps.Call, steps.Copy, steps.Free),
    *(steps.Check, steps.Require, steps.Word, steps.Item, steps.Size, steps.Branch, steps.Repeat),
)
_DEFINITION = (definitions.Computed, definitions.Scatter, definitions.Extern, definitions.WriteBack)
_SPACE = Many(Many((NAME, Expr)))

RECORDS: Mapping[type, Mapping[str, Spec]] = {
    # loop IR
    loops.Access: {"buffer": NAME, "index": Expr, "masked": bool},
    loops.Axis: {"name": NAME, "extent": Expr, "kind": TEXT, "bound": (TEXT, None)},
    loops.Loop: {"axis": loops.Axis, "body": _STATEMENTS},
    loops.Init: {"name": NAME, "op": TEXT, "dtype": _DTYPE},
    loops.Update: {"name": NAME, "value": loops.Node, "position": (loops.Node, None)},
    loops.Store: {"access": loops.Access, "value": loops.Node, "operands": _NODES, "mode": TEXT},
    loops.Param: {"name": NAME, "dtype": _DTYPE, "role": TEXT, "numel": Expr},
    loops.Local: {"name": NAME, "dtype": _DTYPE, "numel": Expr},
    loops.Flag: {"name": NAME, "message": TEXT},
    loops.Kernel: {
        "name": NOTE,
        "params": Many(loops.Param),
        "body": _STATEMENTS,
        "sizes": Many(NAME),
        "locals": Many(loops.Local),
        "origins": Many(NOTE),
        "device": _DEVICE,
        "grain": (int, None),
        "team": int,
        "batch": int,
        "flags": Many(loops.Flag),
    },
    # plans
    steps.TensorType: {"dtype": _DTYPE, "device": _DEVICE, "shape": _EXPRS, "stride": _EXPRS},
    steps.TensorInput: {"name": NAME, "type": steps.TensorType},
    steps.WordInput: {"name": NAME},
    steps.Ref: {"name": NAME},
    steps.Operator: {"name": TEXT, "overload": TEXT},
    steps.TensorResult: {"name": NAME, "type": steps.TensorType},
    steps.WordResult: {"name": NAME},
    steps.Alloc: {"name": NAME, "type": steps.TensorType},
    steps.Reuse: {"name": NAME, "base": NAME},
    steps.View: {"name": NAME, "base": NAME, "type": steps.TensorType, "offset": Expr},
    steps.Launch: {"kernel": int, "arguments": Many(NAME), "sizes": _EXPRS},
    steps.Call: {
        "operator": steps.Operator,
        "arguments": Many(_VALUE),
        "results": Many((*_RESULT, Many(_RESULT))),
        "where": NOTE,
    },
    steps.Check: {"flag": NAME, "expected": bool, "error": TEXT, "message": TEXT},
    steps.Require: {"expr": Expr, "relation": TEXT, "error": TEXT, "message": TEXT},
    steps.Word: {"name": NAME, "expr": Expr},
    steps.Item: {"name": NAME, "tensor": NAME},
    steps.Size: {"name": NAME, "tensor": NAME, "dim": int},
    steps.Copy: {"target": NAME, "source": NAME},
    steps.Free: {"names": Many(NAME)},
    steps.Block: {"inputs": Many(_GIVEN), "steps": Many(_STEP), "results": Many(_VALUE)},
    steps.Branch: {
        "flag": NAME,
        "arguments": Many((steps.Ref, Expr)),
        "then": steps.Block,
        "otherwise": steps.Block,
        "results": Many(steps.TensorResult),
    },
    steps.Repeat: {
        "carried": Many(NAME),
        "arguments": Many((steps.Ref, Expr)),
        "condition": steps.Block,
        "body": steps.Block,
        "results": Many(steps.TensorResult),
    },
    Plan: {
        "inputs": Many(_GIVEN),
        "constants": Many(steps.TensorInput),
        "kernels": Many(loops.Kernel),
        "steps": Many(_STEP),
        "results": Many(_VALUE),
    },
    # compiled graphs
    Schedule: {
        "outer": Many(loops.Axis),
        "inner": Many(loops.Axis),
        "rename": _SPACE,
        "scratch": int,
        "jam": (Many((NAME, int)), None),
        "blocks": Many(Many((NAME, int))),
        "splits": Many(Many((NAME, Many(int)))),
        "grain": (int, None),
        "team": int,
        "why": Many(NOTE),
    },
    Refusal: {"first": NOTE, "second": NOTE, "reason": NOTE},
    SavedGraph: {
        "plan": Plan,
        "schedules": Many(Schedule),
        "strides": Many((_EXPRS, None)),
        "refusals": Many(Refusal),
    },
    # programs
    definitions.Origin: {"name": NOTE, "where": NOTE},
    definitions.Element: {"buffer": NAME, "coords": _EXPRS, "masked": bool},
    definitions.Layout: {"stride": _EXPRS, "offset": Expr},
    definitions.Input: {
        "name": NAME,
        "dtype": _DTYPE,
        "shape": _EXPRS,
        "layout": definitions.Layout,
        "device": _DEVICE,
    },
    definitions.Computed: {
        "name": NAME,
        "dtype": _DTYPE,
        "shape": _EXPRS,
        "axes": Many(NAME),
        "value": loops.Node,
        "reduce_op": (TEXT, None),
        "reduce_axes": _SPACE,
        "position": (loops.Node, None),
        "layout": _LAYOUT,
        "origin": _ORIGIN,
        "absorbed": Many(definitions.Origin),
        "scan": (NAME, None),
        "device": _DEVICE,
    },
    definitions.Scatter: {
        "name": NAME,
        "dtype": _DTYPE,
        "shape": _EXPRS,
        "base": NAME,
        "axes": Many(NAME),
        "extents": _EXPRS,
        "coords": _EXPRS,
        "operands": _NODES,
        "value": loops.Node,
        "mode": TEXT,
        "layout": _LAYOUT,
        "origin": _ORIGIN,
        "absorbed": Many(definitions.Origin),
        "device": _DEVICE,
    },
    definitions.View: {
        "buffer": NAME,
        "shape": _EXPRS,
        "stride": (_EXPRS, None),
        "offset": (Expr, None),
        "axes": Many(NAME),
        "coords": (_EXPRS, None),
    },
    definitions.Extern: {
        "names": Many((NAME, None)),
        "op": torch._ops.OpOverload,
        "args": Many(_ARGUMENT),
        "kwargs": Many(TEXT, dict),
        "dtypes": Many(_DTYPE),
        "shapes": Many(_EXPRS),
        "layouts": Many(definitions.Layout),
        "origin": _ORIGIN,
        "binds": bool,
        "device": _DEVICE,
        "devices": Many(_DEVICE),
    },
    definitions.WriteBack: {"target": NAME, "source": definitions.View},
    definitions.Program: {
        "inputs": Many(definitions.Input, list),
        "definitions": Many(_DEFINITION, list),
        "results": Many((definitions.View, Expr, int, None), list),
        "size_vars": Many(NAME, dict),
    },
}


def role_of(spec: Spec) -> str:
    """What the texts in a field are."""
    if isinstance(spec, Many):
        return role_of(spec.item)
    if isinstance(spec, tuple):
        return next((role for item in spec if (role := role_of(item)) != TEXT), TEXT)
    return spec if isinstance(spec, str) else TEXT


def conforms(value: object, spec: Spec) -> bool:
    """Whether a value is as a spec says."""
    if isinstance(spec, tuple):
        return any(conforms(value, item) for item in spec)
    if isinstance(spec, Many):
        return type(value) is spec.container and all(conforms(item, spec.item) for item in value)  # type: ignore[attr-defined]
    if isinstance(spec, str):
        return isinstance(value, str)
    if spec is None:
        return value is None
    assert isinstance(spec, type)
    return isinstance(value, spec) and not (spec is int and isinstance(value, bool))


def layout_text() -> str:
    """The classes and their fields, for the heading of bytes."""
    return "\n".join(f"{cls.__name__}: {', '.join(fields)}" for cls, fields in RECORDS.items())
