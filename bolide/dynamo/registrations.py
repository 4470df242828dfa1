"""The modules whose import fills the interpreter's tables: opcodes, intercepts of calls."""

from __future__ import annotations

from bolide.dynamo import (  # noqa: F401  (imported for what they register)
    builtins,
    builtins_breaks,
    builtins_contexts,
    builtins_iteration,
    builtins_library,
    builtins_torch,
    opcodes,
    opcodes_classes,
    opcodes_control,
    opcodes_exceptions,
    opcodes_generators,
    opcodes_generics,
    text,
    torch_autograd,
    torch_checkpoint,
    torch_control,
    torch_control_flow,
    torch_distributed,
    torch_distributions,
    torch_hooks,
    torch_losses,
    torch_modes,
    torch_nested,
    torch_numpy,
    torch_optimizers,
    torch_sizes,
    torch_tensors,
    torch_transforms,
)
