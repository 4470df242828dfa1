"""`flex_attention` and `create_mask`: calls are calls of polyfills. (Loaded when one of them is first called, as torch
does not import them by itself.)"""

from __future__ import annotations

from torch.nn.attention import flex_attention as flex

from bolide.dynamo.library.handlers import Args, Kwargs, intercept_table
from bolide.dynamo.machine.interpreter import Call, Machine
from bolide.dynamo.polyfills import attention


@intercept_table({flex.flex_attention: attention.flex_attention, flex.create_mask: attention.create_mask})
def _interpreted(function: object, polyfill: object, vm: Machine, args: Args, kwargs: Kwargs) -> Call:
    return Call(polyfill, args, kwargs)
