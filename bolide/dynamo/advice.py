"""What helps against a recompilation, by the guard that failed."""

from __future__ import annotations

from bolide.dynamo.program import Guard, GuardKind

_ADVICE: dict[GuardKind, str] = {
    "type": "pass the same kinds of objects",
    "is": "pass the same object each time, or make the function take what it needs of it",
    "integer": "keep it an integer",
    "equals": "keep the value fixed, or make it a tensor; integers and floats become symbols by themselves when they "
    "change",
    "tensor": "a size that changes becomes a symbol in the next version (but 0, 1, and with dynamic=False); keep "
    "dtype, device, strides and requires_grad the same, or call mark_dynamic on what will change",
    "length": "keep the length fixed, or stack the elements into one tensor",
    "dict_keys": "keep the keys the same",
    "has_key": "keep the keys the same",
    "has_attr": "set the attribute before the first call",
    "class_attr": "change methods and other attributes of classes before the first call",
    "not_aliased": "pass tensors that do not share memory",
    "same": "pass the same object in both places, or different ones each time",
    "distinct": "pass the same object in both places, or different ones each time",
    "global_state": "call the function under the same grad mode, autocast and default dtype; modes inside of it are "
    "compiled",
    "relation": "the program depends on this relation of sizes or floats: keep it, or remove the branch on them",
}


def remedy(guard: Guard) -> str:
    """One line of advice; "" where there is none."""
    if guard.kind == "is" and (guard.expected is None or isinstance(guard.expected, bool)):
        return "True, False and None are compiled each for itself: keep the value fixed, or make it a tensor"
    return _ADVICE.get(guard.kind, "")
