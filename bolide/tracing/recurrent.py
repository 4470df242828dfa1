"""oneDNN's recurrent layer as an operation that always keeps its workspace.

`aten::mkldnn_rnn_layer` returns the workspace that its backward needs only while grad mode is on, whatever its
argument `train` says.
Compiled code runs without grad mode, so training records `bolide::rnn_layer` in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bolide.support.errors import Unsupported
from bolide.tracing.handlers import handler
from bolide.tracing.rules.registry import by_real_kernel, rule

if TYPE_CHECKING:
    from bolide.tracing.trace import Trace

_SCHEMA = str(torch.ops.aten.mkldnn_rnn_layer.default._schema)


def _run(*args: Any) -> Any:
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return torch.ops.aten.mkldnn_rnn_layer.default(*args)


_library: Any = torch.library.Library("bolide", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(_SCHEMA.replace("aten::mkldnn_rnn_layer", "rnn_layer"))
_library.impl("rnn_layer", _run, "CompositeExplicitAutograd")


@handler("mkldnn_rnn_layer")
def _rnn_layer(trace: Trace, func: Any, args: Any, kwargs: Any) -> Any:
    training = torch.is_grad_enabled()
    if training and args[0].dtype is not torch.float32 and torch.cpu._is_amx_tile_supported():
        # Seen with torch 2.11 on a CPU with AMX: the input's gradient has NaN in a few places, which eager's has not.
        raise Unsupported(
            "oneDNN's recurrent layers in 16-bit types are not trained in compiled code on CPUs with AMX",
            trace.where,
            "train the layer in float32",
            kind="operator",
        )
    op = torch.ops.bolide.rnn_layer.default if training else func
    nodes = [trace.unwrap(arg) for arg in (*args, *kwargs.values())]
    return trace.wrap(trace.call(op, *nodes))


@rule("bolide::rnn_layer")
def _kept(*args: Any) -> Any:
    """The workspace has a size only oneDNN knows, so the layer is run on zeros."""
    return by_real_kernel(torch.ops.bolide.rnn_layer.default, args, {})


@rule("mkldnn_rnn_layer")
def _dropped(*args: Any) -> Any:
    return by_real_kernel(torch.ops.aten.mkldnn_rnn_layer.default, args, {})
