"""Program points as data: where a segment ends, or begins (docs/capture/breaks.md). Code is named like other objects;
what a point is found by says in words what its frames run."""

from __future__ import annotations

import types
from collections.abc import Sequence

from bolide.dynamo.breaks.segments import FrameShape, Shape
from bolide.dynamo.bytecode.instructions import decode, skipped
from bolide.saving.contents import CannotSave, Value, content_of, digest_of, module_of


def codes_of(shape: Shape | None) -> list[types.CodeType]:
    """The code of the frames at a point; of a function's beginning, which has none, nothing."""
    return [] if shape is None else [frame.code.code for frame in shape.frames]


def text_of(shape: Shape) -> str:
    """What tells a point from all others, in every process. Raises CannotSave."""
    rows = []
    for frame, namespace in zip(shape.frames, shape.namespaces):
        module = module_of(namespace)
        if not module:
            raise CannotSave(f"the globals of {frame.code.qualname} are those of no module")
        rows.append((digest_of(frame.code.code), module, *_places(frame), content_of(frame.constant)))
    return repr(rows)


def pack_shape(shape: Shape, namer: Value, value: Value) -> list[Value]:
    """A point as a row of values. Raises CannotSave for code and globals without a name."""
    rows = []
    for frame, namespace in zip(shape.frames, shape.namespaces):
        code = frame.code.code
        namer.meet_code(code, frame.code.qualname, namespace)
        rows.append([namer.of(code), namer.of(namespace), value(_places(frame)), value(frame.constant)])
    return rows


def unpack_shape(rows: Sequence[Value], objects: Sequence[Value], value: Value) -> Shape:
    """What `pack_shape` was given."""
    frames, namespaces = [], []
    for code, namespace, places, constant in rows:
        why, pc, bound, stack, errors, then, generator, snapshot = value(places)
        decoded = skipped(objects[code], why) if why else decode(objects[code])
        known = id(objects[namespace])
        frames.append(FrameShape(decoded, pc, known, bound, stack, errors, then, value(constant), generator, snapshot))
        namespaces.append(objects[namespace])
    return Shape(tuple(frames), tuple(namespaces))


def _places(frame: FrameShape) -> tuple[Value, ...]:
    """All of a frame but its code, its globals and its constant."""
    return (
        *(frame.code.skipped, frame.pc, frame.bound, frame.stack, frame.errors, frame.then),
        *(frame.generator, frame.snapshot),
    )
