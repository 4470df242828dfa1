"""What is run as it is, what is interpreted, what is refused: names of modules and sets of functions, as data."""

from __future__ import annotations

import bisect
import collections
import contextlib
import datetime
import functools
import gc
import heapq
import inspect
import itertools
import locale
import math
import operator
import os
import platform
import sys
import threading
import types
import typing
import uuid
import weakref
from collections.abc import Mapping

import torch


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Modules whose Python functions are run natively: they neither keep state nor call back into the program, or torch
# itself is what they are.
NATIVE_ROOTS = _names(
    "torch numpy inspect re abc _abc typing enum dataclasses os posixpath ntpath genericpath importlib string textwrap "
    "types "
    "numbers copyreg packaging sys operator fractions decimal math sre_parse collections "
    "keyword warnings tokenize linecache typing_extensions ast dis opcode copy platform json statistics cmath "
    "_pydecimal _pydatetime datetime calendar uuid"
)
# Exceptions to that, by the beginning of module and qualified name.
INTERPRETED = tuple(
    _names(
        "torch.nn.modules torch.nn.parallel torch.nn.init torch.nn.utils torch.nn.functional.gaussian_nll_loss "
        "torch.nn.attention.flex_attention torch.signal.windows. "
        "torch._functorch.functional_call.stack_module_state torch.nn.parameter "
        "torch._tensor.Tensor.__torch_function__ torch._tensor._convert torch.utils._pytree "
        "torch._dynamo.external_utils torch._dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex. "
        "torch.utils.checkpoint torch.utils.hooks.RemovableHandle torch.random.fork_rng "
        "torch.optim torch.ao torch.amp.grad_scaler torch.testing._internal.two_tensor torch.typename "
        "torch.utils._python_dispatch.transform_subclass torch.overrides.TorchFunctionMode. torch.overrides._push_mode "
        "torch.overrides.BaseTorchFunctionMode. "
        "torch.overrides._pop_mode torch.overrides._get_current_function_mode collections.abc "
        "collections.ChainMap collections.UserDict collections.UserList collections.Counter. dataclasses.replace "
        "dataclasses._replace dataclasses.asdict dataclasses._asdict_inner dataclasses.astuple "
        "dataclasses._astuple_inner dataclasses.fields dataclasses.is_dataclass dataclasses._is_dataclass_instance "
        "inspect.getgenerator inspect.getcoroutine inspect.getattr_static inspect._static_getmro "
        "inspect._get_dunder_dict_of_class inspect._check_class inspect._check_instance inspect._shadowed_dict "
        "inspect._is_type operator.attrgetter operator.itemgetter operator.methodcaller os.getenv os._Environ. "
        "torch.nested."
    )
)
# Modules whose functions give another result at every call, or have effects outside of Python's objects.
_REFUSED_MODULES = _names(
    "random time socket subprocess _random io _io shutil tempfile secrets numpy.random "
    "numpy.random.mtrand numpy.random._generator threading "
    "torch.utils.data.dataloader "
    # Streams and events order what runs on a device, and memory is what it is now.
    "torch.cuda.streams torch.cuda.memory torch.cuda.graphs torch.accelerator.memory "
    # Compilers, exporters and recorders of torch's: on the program's values they would record bolide's work.
    "torch.jit._trace torch.jit._script torch.jit._freeze torch.jit._serialization torch.jit._recursive "
    "torch.jit._async torch.jit._fuser torch.jit.frontend torch.export torch.export.exported_program torch.onnx "
    "torch.onnx.utils torch.fx._symbolic_trace torch.fx.experimental.proxy_tensor torch.package.package_exporter "
    "torch.package.package_importer torch.serialization torch.multiprocessing.spawn"
)

# Functions of an interpreted module that are. What a checkpoint outside has computed in eager is computed again in
# eager, with the same random numbers and the same saved tensors.
_REFUSED_FUNCTIONS: Mapping[str, frozenset[str]] = {
    "torch.utils.checkpoint": _names("_checkpoint_hook.__init__.<locals>.unpack_hook CheckpointFunction.backward"),
}

#: Functions of theirs that ask whether they are at work: they are not where a compiled function runs (`guards.busy`);
#: and contexts that change options of TorchDynamo's, which mean nothing here. By module and name, with the answer.
ANSWERS: Mapping[str, Mapping[str, object]] = {
    "torch.onnx": {"is_in_onnx_export": False},
    "torch.fx._symbolic_trace": {"is_fx_tracing": False, "is_fx_symbolic_tracing": False},
    "torch.fx.experimental.proxy_tensor": {"maybe_enable_thunkify": contextlib.nullcontext()},
    "torch._dynamo.decorators": {f"DynamoConfigPatchProxy.__{name}__": None for name in ("enter", "exit")},
}

# Packages that draw, write or log, or run event loops, threads and processes: what they do is no work for a graph.
_REFUSED_ROOTS = _names(
    "tqdm rich wandb mlflow tensorboard tensorboardX matplotlib PIL IPython ipywidgets "
    "asyncio concurrent multiprocessing"
)


@functools.cache
def is_refused(module: object, name: str = "") -> bool:
    """Whether a function or class of a module, or any without a name, is called for real."""
    if not isinstance(module, str):
        return False
    if module in _REFUSED_MODULES or module.partition(".")[0] in _REFUSED_ROOTS:
        return True
    return module in _REFUSED_FUNCTIONS and name in _REFUSED_FUNCTIONS[module]


# Modules whose functions in C only compute: the same result from the same values, and nothing is changed but what they
# are given. Functions in C of all other modules are called for real.
_COMPUTING_ROOTS = _names(
    "builtins torch numpy math cmath operator _operator itertools functools _functools collections _collections "
    "_collections_abc re _sre string _string types typing _typing abc _abc enum copy copyreg struct _struct json _json "
    "datetime _datetime zoneinfo decimal _decimal fractions numbers statistics _statistics bisect _bisect heapq _heapq "
    "array zlib binascii base64 hashlib _hashlib _sha1 _sha2 _sha256 _sha512 _sha3 _md5 _blake2 unicodedata weakref "
    "_weakref _weakrefset inspect dis opcode _opcode warnings _warnings ast _ast posixpath os sys contextlib "
    "contextvars _contextvars keyword token traceback dataclasses textwrap calendar _codecs codecs graphlib pickle "
    "_pickle marshal regex bolide"
)


@functools.cache
def only_computes(module: object) -> bool:
    """Whether functions and classes in C of a module may be run while capturing."""
    return isinstance(module, str) and module.partition(".")[0] in _COMPUTING_ROOTS


_OF_THE_MOMENT = {
    os: "abort chdir chmod ctermid execv fork fstat get_terminal_size getlogin kill link "
    "listdir lstat makedirs mkdir open pipe popen read readlink remove rename rmdir scandir stat symlink "
    "system times umask uname unlink urandom utime walk write",
    os.path: "getatime getctime getmtime getsize realpath samefile",
    threading: "current_thread enumerate main_thread",
    sys: "_current_frames getrefcount settrace setprofile",
    gc: "collect get_count get_objects get_referrers get_stats",
    platform: "node platform uname",
    locale: "getlocale setlocale",
    torch: "set_num_interop_threads set_printoptions set_warn_always",
    torch._C: "_from_dlpack _to_dlpack _to_dlpack_versioned",
    torch.cuda: "StreamContext current_stream default_stream device device_of ipc_collect set_device set_stream stream "
    "synchronize",
    torch.accelerator: "current_stream device_index set_device_idx set_device_index set_stream synchronize",
    torch.Event: "elapsed_time query record synchronize wait",
    torch.Stream: "query record_event synchronize wait_event wait_stream",
    torch.utils.dlpack: "from_dlpack to_dlpack",
    torch.Tensor: "__dlpack__",
    uuid: "getnode uuid1 uuid4",
    datetime.datetime: "now today utcnow",
    datetime.date: "today",
}
MOMENT: frozenset[object] = frozenset(
    getattr(owner, name) for owner, names in _OF_THE_MOMENT.items() for name in names.split() if hasattr(owner, name)
)
"""Single functions of that kind."""

#: Questions about the surroundings that are asked again by the guards: the answer is a constant, and rarely another.
ASKED_AGAIN: frozenset[object] = frozenset(
    {os.getcwd, os.getpid, os.getppid, os.cpu_count, os.path.exists, os.path.lexists, os.path.isfile, os.path.isdir}
    | {os.path.islink, os.path.abspath, os.path.expanduser, threading.active_count, threading.get_native_id}
)

#: Functions that look at the signature or the annotations of what they are given, or at its code.
SIGNATURES: frozenset[object] = frozenset(
    {inspect.signature, vars(inspect.Signature)["from_callable"].__func__, inspect.getfullargspec, inspect.getcallargs}
    | {inspect.get_annotations, inspect.unwrap, inspect.isgeneratorfunction, inspect.iscoroutinefunction}
    | {inspect.isasyncgenfunction, typing.get_type_hints}
)

# ---- native functions ------------------------------------------------------------------------------------------------

# Methods of containers that store or look up what they are given.
ITEM_METHODS = _names(
    "append insert index count remove add discard get setdefault pop __setitem__ __getitem__ __delitem__ __contains__ "
    "appendleft move_to_end"
)
# Methods of containers that iterate over what they are given.
ITERATING_METHODS = _names(
    "extend extendleft update join union intersection difference symmetric_difference issubset issuperset isdisjoint "
    "intersection_update difference_update symmetric_difference_update __init__ __ior__ __iadd__"
)
# Functions that only store, look up or identify the objects they are given.
KEEPERS: frozenset[object] = frozenset(
    {id, object.__setattr__, slice, type, super, property, classmethod, staticmethod}
    | {types.MethodType, types.SimpleNamespace, types.CellType, functools.partial, functools._lru_cache_wrapper}
    | {weakref.ref, weakref.ref.__new__, weakref.proxy, weakref.getweakrefcount, collections.defaultdict}
    | {operator.is_, operator.is_not, itertools.repeat, contextlib.nullcontext}
    | {heapq.heappush, heapq.heappop, heapq.heapify, heapq.heappushpop, heapq.heapreplace}
)
# Functions that iterate over their arguments: what only the program can iterate over is made a list first.
ITERATING: frozenset[object] = frozenset(
    {list, tuple, set, frozenset, dict, sorted, sum, min, max, bytes, bytearray, reversed, torch.Size, math.prod}
    | {math.fsum, math.dist, collections.deque, collections.OrderedDict, collections.Counter, operator.countOf}
    | {operator.indexOf, bisect.bisect_left, bisect.bisect_right, itertools.product, itertools.permutations}
    | {itertools.combinations, itertools.combinations_with_replacement}
)
# Modules whose Python functions, run natively, call the functions they are given.
CALLING_ROOTS = frozenset({"torch", "re"})
# Methods of NumPy arrays that are captured.
ARRAY_METHODS = _names(
    "all any argmax argmin argsort astype clip conj conjugate copy cumprod cumsum diagonal dot fill flatten max mean "
    "min nonzero prod ptp ravel repeat reshape round searchsorted sort squeeze std sum swapaxes take trace transpose "
    "var"
)

_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # of `cls.__flags__`


def is_python_class(cls: type) -> bool:
    """Whether a class was made by Python code: classes of C code are static, or cannot be changed."""
    return cls.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) == _HEAP_TYPE
