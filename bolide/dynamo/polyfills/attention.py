"""`flex_attention` and the masks made for it, written anew so that they can be interpreted like the program: attention
with gradients on every device, in torch's fused kernel where the scores are masked only.

The formulas are those of eager's `torch._higher_order_ops.flex_attention.math_attention`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import _utils
from torch.nn.attention import flex_attention as flex

# What eager raises for a mask of another length. Newer versions of torch name the texts, which have no sizes then.
_TELLS_SIZES = not hasattr(flex, "_BLOCK_MASK_TOO_SMALL_ERROR")
_MISFIT: type[Exception] = ValueError if _TELLS_SIZES else RuntimeError
_TOO_SMALL: str = getattr(
    flex,
    "_BLOCK_MASK_TOO_SMALL_ERROR",
    "As the block mask was created for a smaller length than you're using it for, you likely need to create a new "
    "block mask.",
)
_TOO_LARGE: str = getattr(
    flex,
    "_BLOCK_MASK_TOO_LARGE_ERROR",
    "As the block mask was created for a larger length than you're using it for, you can either 1. create a new block "
    "mask with the correct length, or 2. 'adjust' the existing block mask to the correct length by calling "
    "block_mask._adjust(q_len, kv_len). This essentially 'crops' the block mask to the upper left corner, which does "
    "not work for all mask_mods!",
)

OfPlaces = Callable[..., Tensor]
"""A function of a score, if it takes one, and of a batch, head, query and key."""


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: OfPlaces | None = None,
    block_mask: flex.BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: object = None,
    *,
    return_aux: flex.AuxRequest | None = None,
) -> object:
    """`torch.nn.attention.flex_attention.flex_attention`. Options of kernels choose among eager's, of which there is
    none here."""
    _check(query, key, value, block_mask, enable_gqa)
    if return_lse and return_aux is not None:
        raise ValueError(
            "Cannot specify both return_lse and return_aux. "
            "return_lse is deprecated, please use return_aux=AuxRequest(lse=True) instead."
        )
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    wants_lse = return_lse or (return_aux is not None and return_aux.lse)
    wants_most = return_aux is not None and return_aux.max_scores
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = [x.to(dtype) if x.dtype is torch.float32 else x for x in (query, key, value)]
    key, value = [x.expand(query.size(0), *x.size()[1:]) for x in (key, value)]
    mask = None if block_mask is None or block_mask.mask_mod is flex.noop_mask else _mask(block_mask, query, key)
    with torch.autocast(query.device.type, enabled=False):
        plain = score_mod is None or score_mod is flex._identity
        if plain and not (wants_lse or wants_most) and query.dtype is key.dtype is value.dtype:
            out, lse, most = _fused(query, key, value, mask, scale), None, None
        else:
            out, lse, most = _unfused(query, key, value, None if plain else score_mod, mask, scale)
        out = _laid_out(out, query)
    if return_aux is not None:
        return out, flex.AuxOutput(lse=lse if wants_lse else None, max_scores=most if wants_most else None)
    return (out, lse) if return_lse else out


def _check(query: Tensor, key: Tensor, value: Tensor, block_mask: flex.BlockMask | None, enable_gqa: bool) -> None:
    """Raises what eager raises for shapes that do not fit."""
    _utils._validate_sdpa_input(query, key, value, allow_lowp_kv=True)
    flex._validate_embed_dim(query, key, value)
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise NotImplementedError("NYI: query, key, and value must be 4D tensors")
    heads, groups = query.size(1), key.size(1)
    if not enable_gqa and heads != groups:
        raise ValueError(
            f"Expect query and key/value to have the same number of heads but got Hq={heads} and Hkv={groups}. "
            "Try setting enable_gqa=True for GQA."
        )
    if heads % groups != 0:
        raise ValueError(
            f"Expect number of query heads to be a multiple of kv heads for GQA but got Hq={heads} and Hkv={groups}."
        )
    if query.size(0) != key.size(0) and block_mask is None:
        raise ValueError(
            "Expect query and key/value to have the same batch size, or non-none block_mask, "
            f"but got block_mask=None, Bq={query.size(0)}, and Bkv={key.size(0)}."
        )
    if block_mask is None:
        return
    if query.size(0) != key.size(0) and block_mask.kv_num_blocks.size(0) != query.size(0):
        raise ValueError(
            "Expect query and key/value to have the same batch size, or block_mask and query to have the same batch "
            f"size, but got Bq={query.size(0)}, Bkv={key.size(0)}, B_block_mask={block_mask.kv_num_blocks.size(0)}."
        )
    if block_mask.mask_mod is flex._sliced_mask_mod_error:
        raise RuntimeError("Cannot use mask_mod from a sliced BlockMask")
    if block_mask.BLOCK_SIZE[0] != flex._LARGE_SPARSE_BLOCK_SIZE:
        _check_lengths(query.size(2), key.size(2), block_mask)
    if query.device != block_mask.kv_num_blocks.device:
        raise RuntimeError(
            "Expect q/k/v and block_mask to be on the same device "
            f"but got {query.device} and {block_mask.kv_num_blocks.device}."
        )


def _check_lengths(queries: int, keys: int, block_mask: flex.BlockMask) -> None:
    rows, columns = block_mask.shape[-2], block_mask.shape[-1]
    sizes = (
        f"block_mask was created for block_mask.shape={block_mask.shape} but got q_len={queries} and kv_len={keys}. "
    )
    told = sizes if _TELLS_SIZES else ""
    if queries > rows or keys > columns:
        raise _MISFIT(told + _TOO_SMALL)
    if queries < rows or keys < columns:
        raise _MISFIT(told + _TOO_LARGE)


def _mask(block_mask: flex.BlockMask, query: Tensor, key: Tensor) -> Tensor:
    """Where queries see keys: (batch, heads, queries, keys), the first two of size 1 where the mask does not depend on
    them."""
    mask = _over_places(block_mask.mask_mod, (), query.size()[:3] + key.size()[2:3], query.device)
    for dim in (0, 1):
        if mask.stride(dim) == 0:
            mask = mask.narrow(dim, 0, 1)
    return mask


def _over_places(
    function: OfPlaces, scores: tuple[Tensor, ...], sizes: Sequence[int], device: torch.device | str
) -> Tensor:
    """What a function of places (after a score, if there is one) gives for each batch, head, query and key."""
    places = [torch.arange(size, device=device) for size in sizes]
    given = (0,) * len(scores)
    for dim in (3, 2, 1, 0):
        function = torch.vmap(function, given + tuple([0 if place == dim else None for place in range(4)]))
    return function(*scores, *places)


def _fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Scores that are masked only. Of a query that sees no key, both kernels and `_safe_softmax` make zeros."""
    grouped = query.size(1) != key.size(1)
    return functional.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=grouped)


def _unfused(
    query: Tensor, key: Tensor, value: Tensor, score_mod: OfPlaces | None, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and of the scores the logarithm of the sum of exponentials and the maximum."""
    precise = torch.float64 if query.dtype is torch.float64 else torch.float32
    key, value = [_repeated(x, query.size(1) // x.size(1)) for x in (key, value)]
    scores = query.to(precise) @ key.to(precise).transpose(-2, -1) * scale
    if score_mod is not None:
        scores = _over_places(score_mod, (scores,), scores.size(), query.device)
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf)
    scores = scores.to(precise)
    unseen = torch.all(scores == -math.inf, dim=-1)
    lse = torch.where(unseen, -math.inf, scores.logsumexp(dim=-1))
    most = torch.max(scores, dim=-1)[0]
    weights = torch._safe_softmax(scores, dim=-1)
    return weights.to(query.dtype) @ value.to(query.dtype), lse, most


def _repeated(x: Tensor, times: int) -> Tensor:
    """Each head so many times."""
    if times == 1:
        return x
    batch, heads, length, terms = x.size()
    return x[:, :, None].expand(batch, heads, times, length, terms).reshape(batch, heads * times, length, terms)


def _laid_out(out: Tensor, query: Tensor) -> Tensor:
    """The result with the order of dimensions of the queries, the terms last."""
    order = sorted((0, 1, 2), key=query.stride)[::-1]
    back = [order.index(dim) for dim in (0, 1, 2)]
    return out.permute(*order, 3).contiguous().permute(*back, 3)


def create_mask(
    mod_fn: OfPlaces,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str | None = None,
) -> Tensor:
    """`torch.nn.attention.flex_attention.create_mask`."""
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    if flex._get_mod_type(mod_fn) is flex._ModificationType.SCORE_MOD:
        scores = _over_places(mod_fn, (torch.zeros(sizes, device=device),), sizes, device)
        return torch.where(torch.isneginf(scores), False, True)
    return _over_places(mod_fn, (), sizes, device)
