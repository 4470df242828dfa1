"""Wrapper subclasses of Tensor: those that say what they are made of (`__tensor_flatten__`) and have a
`__torch_dispatch__`; gradients with respect to them, and of those that leave a program.

One from outside is taken apart: its tensors are inputs, and it is put together again around the traced ones, as an
instance of a *stand-in*, a subclass of the user's class whose `__torch_dispatch__` and `__torch_function__` are
interpreted. One that leaves is put together from its real parts.

Autograd sees a wrapper as one tensor; the graph knows plain tensors only. So each wrapper from outside that requires
grad comes with *handles*, inputs of the graph without data: one for each plain tensor that it is made of, and one for
itself. In the program its history begins at them (`Given`); when the call is made they are the results of `Handles`,
which puts the gradient together. A wrapper that leaves is taken apart (`Opened`) and put together (`Closed`) likewise.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nested._internal import nested_tensor as jagged
from torch.nested._internal.nested_tensor import NestedTensor

from bolide.dynamo.library.handlers import Args, Kwargs, answers, intercept_each
from bolide.dynamo.machine.calls import LATE, NATIVE
from bolide.dynamo.machine.interpreter import Machine, Slot
from bolide.dynamo.machine.native_calls import for_real, runs_as_is
from bolide.dynamo.machine.stand_ins import class_of
from bolide.dynamo.program.captured import Recipe, Source
from bolide.dynamo.program.kinds import is_constant
from bolide.dynamo.torch_calls.autograd import later
from bolide.dynamo.world.outside import attribute_source
from bolide.dynamo.world.rebuild import RECIPES, Rebuilder
from bolide.dynamo.world.world import World
from bolide.support.errors import Unsupported
from bolide.symbolic.nodes import RaggedNode
from bolide.tracing import STANDS_FOR, TracedTensor, is_stand_in
from bolide.tracing.wrappers import (
    Form,
    Value,
    closed,
    comparable,
    form_from,
    form_of,
    given,
    handles,
    has_gradient,
    layout_of,
    opened,
    plain_parts,
    unflatten,
    without_history,
)

_PROTOCOL = ("__tensor_flatten__", "__tensor_unflatten__")


def _written_in_python(cls: type, name: str) -> Any:
    """The function of a class method that an interpreted subclass of Tensor has of its own, else None."""
    holder = next(base for base in cls.__mro__ if name in vars(base))
    member = vars(holder)[name]
    is_own = type(member) is classmethod and _is_interpreted(holder)
    return member.__func__ if is_own else None


def _is_interpreted(cls: type) -> bool:
    """Whether the code of a class is interpreted; that of torch's classes is not, with exceptions by name."""
    return not runs_as_is(cls.__module__, cls.__qualname__)


def is_wrapper(cls: type) -> bool:
    """Whether tensors of this class are captured."""
    if not all(hasattr(cls, name) for name in _PROTOCOL) or not _is_interpreted(cls):
        return False
    of_torch = (torch._C._disabled_torch_function_impl, vars(torch.Tensor)["__torch_function__"].__func__)
    asked = cls.__torch_function__  # type: ignore[attr-defined]
    own = getattr(asked, "__func__", asked) in of_torch or _written_in_python(cls, "__torch_function__") is not None
    hooks = any("__init_subclass__" in vars(base) for base in cls.__mro__ if base is not object)
    return own and not hooks and _written_in_python(cls, "__torch_dispatch__") is not None


# ---- stand-ins -------------------------------------------------------------------------------------------------------


_STAND_INS: Slot[dict[type, Any]] = Slot(dict)


def _stand_in(vm: Machine, cls: type) -> Any:
    stand_in = _STAND_INS.of(vm).get(cls)
    if stand_in is None:
        namespace: dict[str, Any] = {STANDS_FOR: cls, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        for name in (*_PROTOCOL, "__torch_dispatch__", "__torch_function__"):
            vm.world.classes.rely_on(cls, name)
        for name in ("__torch_dispatch__", "__torch_function__"):
            function = _written_in_python(cls, name)
            if function is not None:
                text = f"{cls.__name__}.{name}"
                namespace[name] = classmethod(_asked(vm, cls, later(vm, function, text)))
        stand_in = _STAND_INS.of(vm)[cls] = type(cls)(cls.__name__, (cls,), namespace)
    return stand_in


def _asked(vm: Machine, cls: type, function: Callable[..., Any]) -> Callable[..., Any]:
    """What torch calls: `function`, of the user's class, is told of the classes that the program knows."""

    def call(_: object, func: object, classes: Any, args: Any = (), kwargs: Any = None) -> object:
        given: Any = args[0] if args and is_stand_in(type(args[0])) else None
        writes = isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable
        if writes and torch.is_grad_enabled() and vm.world.identities.is_outside(given) and given.requires_grad:
            raise _refused(vm, cls, "that requires grad is written to")
        return function(cls, func, tuple(as_program_sees(classes)), args, kwargs or {})

    return call


def as_program_sees(classes: Iterable[type]) -> list[Any]:
    """The classes that the program knows, for those of traced tensors."""
    return [vars(cls).get(STANDS_FOR, torch.Tensor if cls is TracedTensor else cls) for cls in classes]


@answers(torch.Tensor._make_wrapper_subclass, recorded=True)
def _make_wrapper(vm: Machine, cls: type, *others: Any, **options: Any) -> object:
    (cls,) = as_program_sees([cls])
    if not is_wrapper(cls):
        raise _refused(vm, cls, "does not say what it is made of, or inherits how it computes")
    vm.world.trace.functional_only, vm.world.trace.derivation.lost = "a subclass of Tensor computes", True
    return torch.Tensor._make_wrapper_subclass(_stand_in(vm, cls), *others, **options)


def _refused(vm: Machine, cls: Any, why: str) -> Unsupported:
    reason = f"a {getattr(cls, '__name__', cls)}, a subclass of Tensor, {why}"
    remedy = "do this outside the compiled function"
    return vm.unsupported(reason, "input", remedy, "a tensor subclass is made")


def as_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a leaf of autograd's graph."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


# ---- jagged tensors ----------------------------------------------------------------------------------------------


_RAGGED: Slot[dict[int, tuple[torch.Tensor, torch.SymInt]]] = Slot(dict)
"""The size that offsets or lengths make, by their ids."""
_OUTSIDE: Slot[dict[int, tuple[torch.SymInt, Source]]] = Slot(dict)
"""Those that outside ones make, by the id of torch's size for them, and where that is found."""


@answers(jagged.get_tensor_symint)
def _ragged_size(vm: Machine, tensor: torch.Tensor, *, coeff: int = 1) -> torch.SymInt:
    known = _RAGGED.of(vm)
    if id(tensor) not in known:
        outside = vm.world.real_of(tensor)
        known[id(tensor)] = tensor, vm.trace.shapes.ragged() if outside is None else _outside_size(vm, *outside)
    return known[id(tensor)][1] * coeff


def _ragged_sizes() -> list[tuple[torch.Tensor, torch.SymInt]]:
    """All of them, and what makes them, so far."""
    return []


@answers(_ragged_sizes)
def _sizes_so_far(vm: Machine) -> object:
    return [*_RAGGED.of(vm).values()]


def _outside_size(vm: Machine, real: object, source: Source) -> torch.SymInt:
    """The size that an outside tensor makes: that it is another one than those of others, or the same, is guarded."""
    known, size = _OUTSIDE.of(vm), for_real(jagged.get_tensor_symint, real)
    own = Source("apply", source, (), jagged.get_tensor_symint)
    if id(size) in known:
        vm.world.guards.add(own, "same", known[id(size)][1])
    else:
        others = tuple([other for _, other in known.values()])
        if others:
            vm.world.guards.add(None, "distinct", (own, *others))
        known[id(size)] = vm.trace.shapes.ragged(), own
    return known[id(size)][0]


@answers(NestedTensor.__new__, recorded=True)
def _make_jagged(
    vm: Machine, cls: type, values: Value, offsets: Value, *, lengths: Value = None, **options: Value
) -> object:
    """As the class does it, but for the size of its memory, which traced tensors do not have."""
    if offsets is None or offsets.ndim != 1 or isinstance(values, NestedTensor) or values.device != offsets.device:
        return NATIVE
    size, count = _ragged_size(vm, offsets if lengths is None else lengths), offsets.shape[0] - 1
    if lengths is not None and count != lengths.shape[0]:
        return NATIVE
    place, stride = options.get("_ragged_idx", 1), values.stride()
    sizes = (count, *values.shape[: place - 1], size, *values.shape[place:])
    strides = (size * stride[place - 1], *stride)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.NestedTensor).add(torch._C.DispatchKey.AutogradNestedTensor)
    vm.world.trace.functional_only, vm.world.trace.derivation.lost = "a subclass of Tensor computes", True
    made: Value = torch.Tensor._make_wrapper_subclass(
        _stand_in(vm, NestedTensor),
        *(sizes, strides, 0, torch.contiguous_format, values.dtype, torch.jagged, values.device, False),
        *(options.get("requires_grad", False), "sizes", False, True, keys),
        storage_size=0,
    )
    made.__dict__.update(_ragged_idx=place, _size=sizes, _strides=strides)
    return made


_DUMMY: Slot[list[Value]] = Slot(list)


@answers(jagged._nt_view_dummy, recorded=True)
def _dummy(vm: Machine) -> object:
    """What makes torch ask the class where it is given plain tensors."""
    dummies = _DUMMY.of(vm)
    if not dummies:
        values, offsets = torch.zeros(3, 3), torch.zeros(3, dtype=torch.int64)
        dummies.append(vm.evaluate(NestedTensor, [values, offsets]))
    return dummies[0]


@answers(NestedTensor.__init__)
def _fill_jagged(
    vm: Machine, made: Value, values: Value, offsets: Value, *, lengths: Value = None, **options: Value
) -> None:
    """As the class does it; sizes of what the program makes are not marked."""
    parts = {"_values": values, "_offsets": offsets, "_lengths": lengths}
    made.__dict__.update(parts, _metadata_cache=options.get("_metadata_cache") or {})


def _answer_for_operations() -> None:
    """What looks for the function of an operation reads a table that nobody changes."""
    operations = sys.modules["torch.nested._internal.ops"]

    def natively(function: Value, vm: Machine, args: Args, kwargs: Kwargs) -> object:
        return function(*args, **kwargs)

    intercept_each([operations.lookup_jagged, operations.check_schema])(natively)


LATE["torch.nested._internal.ops"] = _answer_for_operations


# ---- in and out ------------------------------------------------------------------------------------------------------


Place = tuple[int, int] | int


def _places(numbers: Iterable[int], of_parts: Sequence[Sequence[int]]) -> tuple[Place, ...]:
    """For each number the first place where one of the parts has it (which part, and where there), else itself."""
    first: dict[int, Place] = {}
    for part, own in enumerate(of_parts):
        for at, number in enumerate(own):
            first.setdefault(number, (part, at))
    return tuple([first.get(number, number) for number in numbers])


def _found(places: Iterable[Place], of_parts: Sequence[Sequence[Any]]) -> list[Any]:
    return [of_parts[place[0]][place[1]] if isinstance(place, tuple) else place for place in places]


def _layout(real: Any) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
    """Sizes and strides of a wrapper, as those of its parts; a jagged tensor finds its own."""
    if real.layout is torch.jagged:
        return (), ()
    shapes, strides = _layouts(getattr(real, name) for name in real.__tensor_flatten__()[0])
    return _places(real.shape, shapes), _places(real.stride(), strides)


def _layouts(parts: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Sizes and strides of those parts that are tensors."""
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    return [part.shape for part in tensors], [part.stride() for part in tensors]


def facts(real: Any) -> tuple[Any, ...]:
    """What is known of a wrapper beside its parts and its context."""
    layout = (*_layout(real), real.dtype, real.device)
    hooks = bool(real._backward_hooks) or bool(real._post_accumulate_grad_hooks)
    history = (real.requires_grad, real.is_leaf, hooks)
    return (tuple(real.__tensor_flatten__()[0]), *layout, *history, isinstance(real, torch.nn.Parameter))


def context_of(real: Any) -> Any:
    """What a wrapper says of itself."""
    return without_history(real.__tensor_flatten__()[1])


def known_context(real: Any) -> object:
    """As `context_of`, as a value that may be a constant."""
    return comparable(context_of(real))


def wrap_parts(world: World, real: Any, source: Source) -> Any:
    """The stand-in for a wrapper from outside, around its parts, which are inputs."""
    cls: Any = type(real)
    names, context = real.__tensor_flatten__()
    context = without_history(context)
    known = comparable(context)
    world.guards.add(source, "type", cls)
    world.guards.add(Source("apply", source, (), facts), "equals", facts(real))
    if is_constant(known):
        world.guards.add(Source("apply", source, (), known_context), "equals", known)
    else:
        context = world.wrap(context, Source("apply", source, (), context_of))
    parts = {name: world.wrap(getattr(real, name), attribute_source(source, name)) for name in names}
    size, stride = (_found(*each) for each in zip(_layout(real), _layouts(parts.values())))
    stand_in = world.program.evaluate(cls.__tensor_unflatten__, [parts, context, torch.Size(size), tuple(stride)])
    if class_of(stand_in) is not cls:
        reason = f"{cls.__name__}.__tensor_unflatten__ makes a {class_of(stand_in).__name__}"
        raise Unsupported(reason, world.guards.where(), None, "input")
    if real.requires_grad:
        stand_in = _with_history(world, real, source, stand_in)
    if isinstance(real, torch.nn.Parameter):
        stand_in._is_param = True
    return world.identities.mirror(stand_in, source)


def _with_history(world: World, real: Any, source: Source, stand_in: Any) -> Any:
    """The stand-in as one that requires grad, as the real wrapper does."""
    if torch.is_inference_mode_enabled():
        return stand_in.requires_grad_()
    root = Source("apply", source, (), handles)
    ends = for_real(handles, real)
    places = [place for place, handle in enumerate(ends) if handle.requires_grad]
    inputs: list[Any] = [None] * len(ends)
    for place in places:
        leaf = for_real(as_leaf, ends[place])
        inputs[place] = world.inputs.add(ends[place], Source("item", root, place), leaf)
    return given(stand_in, form_of(stand_in, class_of), inputs, class_of)


def is_handle(source: Source) -> bool:
    """Whether an input is what the gradient of a wrapper comes to (`handles`): it is no part of the wrapper itself."""
    return source.kind == "item" and source.base is not None and source.base.obj is handles


def _recipe(rebuilder: Rebuilder, value: Any) -> Recipe | None:
    if not is_stand_in(type(value)):
        return None
    cls = class_of(value)
    if value.requires_grad:
        return _with_history_outside(rebuilder, value)
    names, context = value.__tensor_flatten__()
    parts = rebuilder.recipe({name: getattr(value, name) for name in names})
    layout = [rebuilder.recipe(tuple(numbers)) for numbers in layout_of(value)]
    return Recipe("call", unflatten, (Recipe("constant", cls), parts, rebuilder.recipe(context), *layout))


def _with_history_outside(rebuilder: Rebuilder, value: Any) -> Recipe:
    """A wrapper that requires grad is made of results with its history."""
    world, form = rebuilder.world, form_of(value, class_of)
    derived = any(map(has_gradient, plain_parts(value)))
    if not derived or value.is_leaf:
        reason = f"a {form.cls.__name__}, a subclass of Tensor, that requires grad leaves the function"
        raise Unsupported(reason, world.guards.where(), "return what it is made of", "escape")

    def make(cls: Any, *given: Any) -> Any:
        return world.program.evaluate(cls.__tensor_unflatten__, list(given))

    plain, known = opened(value, form, make), plain_parts(value)
    parts = [rebuilder.recipe(new if has_gradient(old) else old) for new, old in zip(plain, known)]
    return Recipe("call", closed, (_form_recipe(rebuilder, form), *parts))


def _form_recipe(rebuilder: Rebuilder, form: Form) -> Recipe:
    others, context, size, stride = map(rebuilder.recipe, (form.others, form.context, form.size, form.stride))
    parts = [Recipe("constant", None) if part is None else _form_recipe(rebuilder, part) for part in form.parts]
    constants = (Recipe("constant", form.cls), Recipe("constant", form.names))
    return Recipe("call", form_from, (*constants, others, context, size, stride, *parts))


def _ragged_recipe(rebuilder: Rebuilder, value: torch.SymInt) -> Recipe | None:
    """The size of a ragged dimension, or a stride that is made of it."""
    if not isinstance(value.node, RaggedNode):
        return None
    for tensor, size in rebuilder.world.program.evaluate(_ragged_sizes, []):
        times = value.node.hint // size.node.hint
        if (size.node.expr * times) == value.node.expr:
            made = Recipe("call", jagged.get_tensor_symint, (rebuilder.recipe(tensor),))
            return Recipe("call", operator.mul, (made, Recipe("constant", times)))
    reason = "what is computed of the size of a ragged dimension leaves the function"
    raise Unsupported(reason, rebuilder.world.guards.where(), None, "escape")


RECIPES[torch.Tensor] = _recipe
RECIPES[torch.SymInt] = _ragged_recipe
