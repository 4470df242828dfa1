"""Functions of torch that call back into the program, written anew so that they can be interpreted like the program."""

from __future__ import annotations

import warnings
from typing import Any

import torch


def region_result(region: Any, result: Any) -> Any:
    """Answered by an intercept (`torch_calls.checkpoint`)."""
    raise NotImplementedError


def end_region(region: Any) -> None:
    """Answered by an intercept (`torch_calls.checkpoint`)."""
    raise NotImplementedError


def checkpoint(function: Any, region: Any, args: Any, kwargs: Any) -> Any:
    """What is computed here is computed again in the backward pass instead of being saved."""
    try:
        return region_result(region, function(*args, **kwargs))
    finally:
        end_region(region)


def checkpoint_without_grad(function: Any, args: Any, requires: bool) -> Any:
    """A reentrant checkpoint without grad mode, or none of whose arguments `requires` grad: nothing in it gets a
    gradient."""
    if not requires:
        warnings.warn("None of the inputs have requires_grad=True. Gradients will be None")  # noqa: B028
    with torch.no_grad():
        result = function(*args)
        if type(result) is tuple:
            return tuple([_as_new(value, args) for value in result])
        return _as_new(result, args)


def _as_new(result: Any, args: Any) -> Any:
    """A result of an `autograd.Function`, which is no argument."""
    return result.detach() if any(result is arg and torch.is_tensor(arg) for arg in args) else result


def encode_plainly(encoder: Any, *args: Any, **kwargs: Any) -> Any:
    """`TransformerEncoder.forward`, interpreted. Answered by an intercept (`torch_encoders`)."""
    raise NotImplementedError


def encode(encoder: Any, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None) -> Any:
    """`TransformerEncoder.forward`: where eager takes its fast path, what it says of padding is zero."""
    if src_key_padding_mask is None or mask is not None or src.dim() != 3 or not _is_fast(encoder, src):
        return encode_plainly(encoder, src, mask, src_key_padding_mask, is_causal)
    padding = src_key_padding_mask if src_key_padding_mask.dtype is torch.bool else src_key_padding_mask != 0
    zeroed = padding
    if getattr(encoder, "mask_check", True):  # else nobody asks whether the padding comes last
        zeroed = padding & (padding[:, :-1] <= padding[:, 1:]).all()
    for layer in encoder.layers:
        src = layer(src, src_mask=None, is_causal=is_causal is True, src_key_padding_mask=src_key_padding_mask)
    src = src.masked_fill(zeroed.unsqueeze(-1), 0.0)
    return src if encoder.norm is None else encoder.norm(src)


def _is_fast(encoder: Any, src: Any) -> Any:
    """Whether eager computes an encoder on nested tensors."""
    layer = encoder.layers[0]
    if not torch.backends.mha.get_fastpath_enabled() or not getattr(encoder, "use_nested_tensor", False):
        return False
    if layer.training or torch.is_autocast_enabled():
        return False
    if not torch.is_grad_enabled():
        return True
    attention = layer.self_attn
    used = [src, attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias]
    for part in (layer.norm1, layer.norm2, layer.linear1, layer.linear2):
        used += [part.weight, part.bias]
    return not any(tensor.requires_grad for tensor in used)


def identity(value: Any) -> Any:
    return value


def torch_override(function: Any, owners: Any, classes: Any, args: Any, kwargs: Any) -> Any:
    """What torch's functions do with arguments that have a `__torch_function__`."""
    for owner in owners:
        result = owner.__torch_function__(function, classes, args, kwargs)
        if result is not NotImplemented:
            return result
    raise TypeError(f"no implementation found for '{function.__name__}' on types that implement __torch_function__")
