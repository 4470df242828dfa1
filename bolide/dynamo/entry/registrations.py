"""The modules whose import fills the interpreter's tables: opcodes, intercepts of calls."""

# ruff: noqa: F401

from __future__ import annotations

import bolide.dynamo.library.builtins
import bolide.dynamo.library.contexts
import bolide.dynamo.library.frame_names
import bolide.dynamo.library.imports
import bolide.dynamo.library.iteration
import bolide.dynamo.library.marks
import bolide.dynamo.library.standard
import bolide.dynamo.library.text
import bolide.dynamo.opcodes.classes
import bolide.dynamo.opcodes.control
import bolide.dynamo.opcodes.exceptions
import bolide.dynamo.opcodes.generators
import bolide.dynamo.opcodes.stack
import bolide.dynamo.torch_calls.arrays
import bolide.dynamo.torch_calls.autograd
import bolide.dynamo.torch_calls.checkpoint
import bolide.dynamo.torch_calls.control
import bolide.dynamo.torch_calls.distributed
import bolide.dynamo.torch_calls.generators
import bolide.dynamo.torch_calls.hooks
import bolide.dynamo.torch_calls.layers
import bolide.dynamo.torch_calls.masks
import bolide.dynamo.torch_calls.sizes
import bolide.dynamo.torch_calls.state
import bolide.dynamo.torch_calls.subclasses
import bolide.dynamo.torch_calls.tensors
import bolide.dynamo.torch_calls.windows
