"""Graphs in folders: a graph as Python code with its tensors, and what is known of its inputs."""

from __future__ import annotations

import copy
import importlib.util
import os
import pickle
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from bolide.symbolic import contiguous_strides, hint_of

CODE = "module.py"


def save_graph(graph: fx.GraphModule, folder: Path) -> None:
    """Writes a graph to a new folder: its code to ``module.py``, as the class ``FxModule``, and its tensors."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    plain = copy.deepcopy(graph.graph)
    plain.set_codegen(fx.graph.CodeGen())  # takes its inputs one by one, whatever the program's structure was
    for node in plain.nodes:
        node.type = None  # annotations of the program's are names that the code would not know
    fx.GraphModule(graph, plain).to_folder(folder.resolve())


def load_graph(folder: str | os.PathLike[str]) -> fx.GraphModule:
    """The graph that was saved in a folder; its code is run."""
    spec = importlib.util.spec_from_file_location("saved_graph", Path(folder, CODE))
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"there is no saved graph in {os.fspath(folder)}")
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    module = code.FxModule()
    tracer = fx.Tracer()
    with _Recording(tracer):
        graph = tracer.trace(module)
    return fx.GraphModule(module, graph)


class _Recording(TorchFunctionMode):
    """Operations without a traced argument, which make new tensors, are nodes of the graph too."""

    def __init__(self, tracer: fx.Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if isinstance(func, (OpOverload, OpOverloadPacket)):
            return self.tracer.create_proxy("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


# ---- inputs ---------------------------------------------------------------------------------------------------------


def input_meta(value: object) -> object:
    """What is known of an input: (type, shape, stride, dtype, device) of a tensor, (int,) or (float,) of a number, a
    list of these for a list or tuple.

    Raises TypeError for anything else.
    """
    if isinstance(value, Tensor):
        shape = torch.Size(map(hint_of, value.shape))
        strides = value.stride() if value.layout is torch.strided else contiguous_strides(shape)
        kind = nn.Parameter if isinstance(value, nn.Parameter) else Tensor
        return (kind, shape, tuple(map(hint_of, strides)), value.dtype, value.device)
    if isinstance(value, (list, tuple)):
        return [input_meta(item) for item in value]
    if isinstance(value, (bool, torch.SymBool)):
        return (bool,)
    if isinstance(value, (int, torch.SymInt)):
        return (int,)
    if isinstance(value, (float, torch.SymFloat)):
        return (float,)
    raise TypeError(f"an input of a graph is a tensor or a number, not {type(value).__name__}")


def has_data(value: object) -> bool:
    """Whether an example of an input is a value, and not only says what the input is like."""
    if isinstance(value, (list, tuple)):
        return all(map(has_data, value))
    return not isinstance(value, (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool))


def with_data(value: object) -> object:
    """An example of an input, or random numbers like it where it has no data; in nested lists and tuples too."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(with_data, value))
    return value if has_data(value) else _random(input_meta(value))


def save_inputs(values: Sequence[object], path: Path) -> None:
    """Writes what is known of the inputs of a graph. Raises what `input_meta` raises."""
    metas = input_meta(list(values))
    with open(path, "wb") as file:
        pickle.dump(metas, file)


def get_inputs(input_data_path: str | os.PathLike[str]) -> list[Any]:
    """Random inputs as a ``.input`` file describes them; nested lists where it has nested lists, as for joint graphs.
    Integers are 0 or 1 in tensors, so that they may be indices. Reading the file runs no code of it.

    Raises pickle.UnpicklingError for a file that holds anything else.
    """
    with open(input_data_path, "rb") as file:
        metas = _Reader(file).load()
    if not isinstance(metas, list):
        raise pickle.UnpicklingError(f"{os.fspath(input_data_path)} does not hold a list of inputs")
    return [_random(meta) for meta in metas]


class _TensorType:
    """Stands for the type of a tensor in a file: what the file asks to do with that, it does to nothing."""


_TENSOR_TYPES = {
    ("torch", "Tensor"),
    ("torch.nn.parameter", "Parameter"),
    ("torch.nn.parameter", "Buffer"),
    ("torch._subclasses.fake_tensor", "FakeTensor"),
}
_NUMBERS: dict[str, Callable[[], object]] = {
    "int": lambda: random.randint(1, 8),
    "float": random.random,
    "bool": lambda: random.random() < 0.5,
}


class _Reader(pickle.Unpickler):
    """Reads descriptions of tensors and numbers, and refuses every other name."""

    def find_class(self, module: str, name: str) -> object:
        if module == "builtins" and name in _NUMBERS:
            return {"int": int, "float": float, "bool": bool}[name]
        if (module, name) in _TENSOR_TYPES:
            return _TensorType()
        if module == "torch" and name in ("Size", "device"):
            return getattr(torch, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"a file of inputs names {module}.{name}, which describes no input")


def _random(meta: Any) -> object:
    """An input of random numbers as it is described."""
    if isinstance(meta, list):
        return [_random(item) for item in meta]
    if isinstance(meta, tuple) and len(meta) == 1 and getattr(meta[0], "__name__", None) in _NUMBERS:
        return _NUMBERS[meta[0].__name__]()
    if isinstance(meta, tuple) and len(meta) == 5 and isinstance(meta[0], (_TensorType, type)):
        return _random_tensor(*meta[1:])
    raise pickle.UnpicklingError(f"{meta!r} describes no input")


def _random_tensor(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    elements = 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if all(shape) else 0
    if dtype.is_floating_point or dtype.is_complex:
        wide = dtype if dtype.itemsize >= 2 else torch.float32  # there are no random numbers of 8 bits
        memory = torch.rand(elements, dtype=wide, device=device).to(dtype)
    else:
        memory = torch.randint(0, 2, (elements,), device=device).to(dtype)
    return memory.as_strided(shape, stride)
