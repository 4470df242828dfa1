"""Functions of torch that call back into the program, written anew so that they can be interpreted like the program."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._higher_order_ops import map as torchs_map
from torch._higher_order_ops import scan as torchs_scan
from torch._higher_order_ops import while_loop as torchs_while_loop
from torch.utils import _pytree as pytree


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
    """`TransformerEncoder.forward`, interpreted. Answered by an intercept (`torch_calls.layers`)."""
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


def choose(function: Program, truth: object, where_true: Given, where_false: Given) -> object:
    """A call with a truth as an argument that the graph decides."""
    if truth:
        return function(*where_true[0], **where_true[1])
    return function(*where_false[0], **where_false[1])


def identity(value: Any) -> Any:
    return value


def torch_override(function: Any, owners: Any, classes: Any, args: Any, kwargs: Any) -> Any:
    """What torch's functions do with arguments that have a `__torch_function__`."""
    for owner in owners:
        result = owner.__torch_function__(function, classes, args, kwargs)
        if result is not NotImplemented:
            return result
    raise TypeError(f"no implementation found for '{function.__name__}' on types that implement __torch_function__")


def ask_mode(mode: Any, *question: Any) -> Any:
    """What torch's functions do under a function mode."""
    return mode.__torch_function__(*question)


def refuse_history() -> None:
    """Answered by an intercept (`torch_calls.autograd`)."""
    raise NotImplementedError


def linearize(func: Program, *primals: Any) -> object:
    """`torch.func.linearize`: the derivative of the derivative by its cotangents, in which it is linear, so that `func`
    is not called for each tangent. As in eager, it is called twice: for the output, and to be derived, where all that
    it uses is constant."""
    output = func(*primals)
    leaves, spec = pytree.tree_flatten(output)
    zeros = [torch.zeros_like(leaf) for leaf in leaves]
    with torch.no_grad():
        pull = torch.func.vjp(func, *pytree.tree_map(torch.Tensor.detach, primals))[1]
        push = torch.func.vjp(lambda *cotangents: pull(pytree.tree_unflatten(cotangents, spec)), *zeros)[1]
    if any(leaf.requires_grad for leaf in push(pytree.tree_map(torch.zeros_like, primals))):
        refuse_history()

    def derivative(*tangents: object) -> object:
        known, given = pytree.tree_flatten(primals), pytree.tree_flatten(tangents)
        alike = [a.shape == b.shape and a.dtype is b.dtype and a.device == b.device for a, b in zip(known[0], given[0])]
        if known[1] != given[1] or not all(alike):
            raise RuntimeError("the tangents of a linearized function are not as its arguments")
        return pytree.tree_unflatten(push(tangents), spec)

    return output, derivative


# ---- control flow: loops of known length are unrolled, derivatives included ------------------------------------------


_inner = [part for part in torchs_scan.__code__.co_consts if isinstance(part, types.CodeType)]
MOVES_RESULTS = any("movedim" in part.co_names for part in _inner)
"""Whether this torch stacks the results of a scan along the dimension that it goes over."""


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    return true_fn(*operands) if pred else false_fn(*operands)


def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any, arranged: Any) -> Any:
    """`while_loop`: the body gives the next carried values, arranged as in `arranged`."""
    spec, carried = pytree.tree_structure(carried_inputs), pytree.tree_leaves(carried_inputs)
    while cond_fn(*pytree.tree_unflatten(carried, spec)):
        carried = pytree.tree_leaves(body_fn(*pytree.tree_unflatten(carried, spec)))
    return pytree.tree_unflatten(carried, pytree.tree_structure(arranged))


def both(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    """`torch.cond` where a transform has one condition for each item of a batch, or derives: each item, and each
    gradient of an operand, comes from the branch that is taken."""
    taken = pred.to(torch.bool).reshape(())
    first = true_fn(*pytree.tree_map(lambda x: _through(taken, x), operands))
    second = false_fn(*pytree.tree_map(lambda x: _through(~taken, x), operands))
    return pytree.tree_map(lambda a, b: torch.where(taken, a, b), first, second)


def _through(taken: torch.Tensor, operand: object) -> object:
    """An operand that only the branch which is taken gives a gradient: what the other one computes may be NaN."""
    if not torch.is_tensor(operand) or not (operand.is_floating_point() or operand.is_complex()):
        return operand
    return torch.where(taken, operand, operand.detach())


def applied(function: Any, *args: Any) -> Any:
    """A step of a loop that is unrolled. Answered by an intercept (`torch_calls.control`)."""
    return function(*args)


def scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """`scan`: (last carry, results stacked along the first dimension, in later versions of torch along `dim`)."""
    leaves = pytree.tree_leaves(xs)
    if not leaves:
        return init, []
    if dim < 0:
        dim += leaves[0].dim()
    slices, spec = _slices(xs, dim)
    carry, stacked = init, []
    for position in range(len(slices))[:: -1 if reverse else 1]:
        carry, result = applied(combine_fn, carry, pytree.tree_unflatten(slices[position], spec))
        stacked.append(result)
    return carry, moved_results(_stacked(stacked[::-1] if reverse else stacked), dim)


def moved_results(results: object, dim: int) -> object:
    """Results of a scan along `dim`, stacked along the first dimension."""
    if not dim or not MOVES_RESULTS:
        return results
    return pytree.tree_map(lambda result: result.movedim(0, dim) if dim < result.dim() else result, results)


def associative_scan(combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    """`associative_scan`: the running combination along `dim`, neighbours first: as deep as the length's logarithm, in
    torch's order, so rounding is the same.
    """
    leaves, spec = pytree.tree_flatten(xs)
    elements = [leaf.movedim(dim, 0) for leaf in leaves]
    if reverse:
        elements = [element.flip(0) for element in elements]
    over = pytree.tree_unflatten([0] * len(leaves), spec)
    combine = torch.vmap(combine_fn, (over, over)) if combine_mode == "generic" else combine_fn

    def combined(left: Any, right: Any) -> Any:
        result = combine(pytree.tree_unflatten(left, spec), pytree.tree_unflatten(right, spec))
        return pytree.tree_leaves(result)

    def scanned(items: Any) -> Any:
        count = items[0].shape[0]
        if count < 2:
            return items
        odd = scanned(combined([item[:-1:2] for item in items], [item[1::2] for item in items]))
        if count == 2:
            even = [item[:1] for item in items]
        else:
            before = odd if count % 2 else [item[:-1] for item in odd]
            rest = combined(before, [item[2::2] for item in items])
            even = [torch.cat([item[:1], others]) for item, others in zip(items, rest)]
        return [_interleaved(*both) for both in zip(even, odd)]

    results = scanned(elements)
    if reverse:
        results = [result.flip(0) for result in results]
    return pytree.tree_unflatten([result.movedim(0, dim) for result in results], spec)


def _interleaved(even: Any, odd: Any) -> Any:
    count = odd.shape[0]
    pairs = torch.stack([even[:count], odd], 1).flatten(0, 1)
    return pairs if even.shape[0] == count else torch.cat([pairs, even[count:]])


def map_over(f: Any, xs: Any, *args: Any) -> Any:
    """`map`: f of every slice along the first dimension, stacked."""
    slices, spec = _slices(xs, 0)
    return _stacked([applied(f, pytree.tree_unflatten(leaves, spec), *args) for leaves in slices])


def map_step(f: Callable[..., object], args: Sequence[object], items: object) -> object:
    return f(items, *args)


def _slices(xs: Any, dim: int) -> Any:
    leaves, spec = pytree.tree_flatten(xs)
    return [list(items) for items in zip(*[leaf.unbind(dim) for leaf in leaves], strict=True)], spec


def _stacked(slices: Any) -> Any:
    flat = [pytree.tree_flatten(item) for item in slices]
    spec = flat[0][1]
    return pytree.tree_unflatten([torch.stack(items) for items in zip(*[leaves for leaves, _ in flat])], spec)


# ---- the operators that these functions are, called by themselves ----------------------------------------------------


Program = Callable[..., Any]
Given = tuple[list[object], dict[str, object]]  # arguments
Tensors = Sequence[torch.Tensor]


def while_loop_operator(
    cond_fn: Program, body_fn: Program, carried_inputs: Tensors, additional_inputs: Tensors
) -> object:
    """`torch.ops.higher_order.while_loop`."""
    return torchs_while_loop(  # type: ignore[no-untyped-call]
        lambda *carried: cond_fn(*carried, *additional_inputs),
        lambda *carried: tuple(body_fn(*carried, *additional_inputs)),
        tuple(carried_inputs),
    )


def map_operator(f: Program, xs: Tensors, args: Tensors) -> object:
    """`torch.ops.higher_order.map_impl`."""
    return torchs_map(lambda items: f(*items, *args), list(xs))  # type: ignore[arg-type, misc]


def scan_operator(combine_fn: Program, init: Tensors, xs: Tensors, additional_inputs: Tensors = ()) -> object:
    """`torch.ops.higher_order.scan`: the functions' results are flat."""

    def combine(carry: Tensors, items: Tensors) -> object:
        results = list(combine_fn(*carry, *items, *additional_inputs))
        return results[: len(init)], results[len(init) :]

    carry, stacked = torchs_scan(combine, list(init), list(xs))  # type: ignore[arg-type]
    return [*carry, *stacked]


def associative_scan_operator(combine_fn: Program, xs: Tensors, additional_inputs: Tensors = ()) -> object:
    """`torch.ops.higher_order.associative_scan`, whose function takes slices of any length."""
    return associative_scan(lambda a, b: list(combine_fn(*a, *b, *additional_inputs)), list(xs), 0)


def untie(module: torch.nn.Module, parameters_and_buffers: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`torch.nn.utils.stateless._untie_named_tensors_map`, which goes through sets of names, in the module's order."""
    tied: dict[torch.Tensor, list[str]] = {}
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            tied.setdefault(tensor, []).append(name)
    untied = parameters_and_buffers.copy()
    for names in tied.values():
        given = [name for name in names if name in parameters_and_buffers] if len(names) > 1 else []
        if len(given) > 1 and any(
            parameters_and_buffers[name] is not parameters_and_buffers[given[0]] for name in names
        ):
            raise ValueError(
                f"functional_call got multiple values for keys {sorted(names)}, which are tied. Consider using "
                "tie_weights=False"
            )
        for name in given:
            untied.update(dict.fromkeys(names, parameters_and_buffers[name]))
    return untied


def begin_nested() -> None:
    """Answered by an intercept (`torch_calls.control`)."""


def end_nested() -> None:
    """Answered by an intercept (`torch_calls.control`)."""


def nested(function: Program, args: Sequence[object], kwargs: dict[str, object]) -> object:
    """What `torch.compiler.nested_compile_region` has marked."""
    begin_nested()
    try:
        return function(*args, **kwargs)
    finally:
        end_nested()


def call_with(
    function: Program, args: Sequence[object], kwargs: dict[str, object] | None = None, hints: object = None
) -> object:
    """`torch.ops.higher_order.strict_mode` and `hints_wrapper`: regions that are marked for others' compilers."""
    return function(*args, **(kwargs or {}))


def call_subgraph(subgraph: Program, identifier: str, *operands: object) -> object:
    """`torch.ops.higher_order.invoke_subgraph`."""
    return subgraph(*operands)


def by_lists(operation: Callable[..., object], owner: torch.Tensor, key: object, *rest: object) -> object:
    """An operation on the items of a tensor whose places lists name: tensors, as torch makes them of lists."""
    where = tuple([_of_list(part, owner) for part in key]) if isinstance(key, tuple) else _of_list(key, owner)
    return operation(owner, where, *rest)


def _of_list(part: object, owner: torch.Tensor) -> object:
    if not isinstance(part, (list, tuple)) or not part or {type(item) for item in part} != {int}:
        return part
    return torch.tensor(part, dtype=torch.int64, device=owner.device)
