"""Options of capture and dispatch (`bolide.dynamo.config`). Names are PyTorch's where PyTorch has the option; each is
read from the environment under bolide's name or PyTorch's. `note` says of an option why it has no effect of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bolide.dynamo.state import is_compiling, is_dynamo_compiling
from bolide.support.config import Config, option, publish

_LEGACY = "no effect, as in PyTorch: kept for compatibility"
_DISTRIBUTED = "used by distributed training, which is not there yet"
_ALWAYS = "always so here"


class DynamoConfig(Config):
    _aliases = {
        "recompile_limit": "cache_size_limit",
        "accumulated_recompile_limit": "accumulated_cache_size_limit",
        "fail_on_cache_limit_hit": "fail_on_recompile_limit_hit",
    }

    # ---- what is said, and where
    log_file_name: str | None = option(
        None, "A file that receives what bolide logs, besides standard error.", compiled=False, types=(str,)
    )
    verbose: bool = option(
        False,
        "Warnings about failures of bolide carry the whole traceback.",
        env=("BOLIDE_VERBOSE", "TORCHDYNAMO_VERBOSE"),
        compiled=False,
    )
    log_compilation_metrics: bool = option(
        True, "Keep figures of every compilation (bolide.dynamo.get_compilation_metrics()).", compiled=False
    )
    report_guard_failures: bool = option(
        True, "Say which guard failed.", compiled=False, note="always said, to logs and explain"
    )
    force_disable_caches: bool = option(
        False,
        "Nothing is read from the cache on disk, or kept there.",
        env=("BOLIDE_FORCE_DISABLE_CACHES", "TORCHINDUCTOR_FORCE_DISABLE_CACHES"),
        compiled=False,
    )
    cprofile: bool | str = option(
        False,
        "Profile each compilation; a string names the directory that receives it, True prints it.",
        env=("BOLIDE_CPROFILE", "TORCH_COMPILE_CPROFILE"),
        compiled=False,
        types=(str,),
    )
    base_dir: str = option(
        str(Path(__file__).resolve().parent.parent.parent),
        "The directory that holds the package.",
        compiled=False,
        note="for tools; messages show whole paths, which editors can open",
    )
    debug_dir_root: str = option(
        "bolide_debug",
        "The directory where files for debugging are written.",
        env=("BOLIDE_DEBUG_DIR", "TORCH_COMPILE_DEBUG_DIR"),
        compiled=False,
    )
    replay_record_enabled: bool = option(
        False,
        "When bolide fails, write the graph, and a record of the call (bolide replay), below debug_dir_root.",
        env=("BOLIDE_REPLAY_RECORD", "TORCH_COMPILE_REPLAY_RECORD"),
        compiled=False,
    )

    # ---- whether to compile, and what happens when that fails
    disable: bool = option(
        False, "Run everything in eager.", env=("BOLIDE_DISABLE", "TORCH_COMPILE_DISABLE"), compiled=False
    )
    suppress_errors: bool = option(
        True,
        "When bolide itself fails on a program: warn and run it in eager. Off: raise CompileError.",
        env=("BOLIDE_SUPPRESS_ERRORS", "TORCHDYNAMO_SUPPRESS_ERRORS"),
        compiled=False,
    )
    verify_correctness: bool = option(
        False,
        "Run each compiled forward or inference graph once beside ATen calls and raise when they differ.",
        compiled=False,
    )
    detect_leaks: bool = option(
        False,
        "After each call that has captured something, look for objects that stand for values of the program only while "
        "it is captured: one that is alive, or in what the call gives or raises, is an error that says where it is.",
        env=("BOLIDE_DETECT_LEAKS",),
        compiled=False,
    )
    minimum_call_count: int = option(1, "Programs with fewer tensor operations than this run in eager.")
    dead_code_elimination: bool = option(True, "Drop operations whose results nothing needs.")
    cache_size_limit: int = option(
        8,
        "Most versions of one function for calls of one form, and an eighth of those for all; then most calls that "
        "none fits run in eager. Also called recompile_limit.",
        compiled=False,
    )
    accumulated_cache_size_limit: int = option(
        256,
        "Most compiled versions of all functions that share one code object. Also called accumulated_recompile_limit.",
        compiled=False,
    )
    eager_if_faster: bool = option(
        True,
        "Measure functions with breaks that are compiled again and again, and run them in eager if that is faster.",
        compiled=False,
    )
    fail_on_recompile_limit_hit: bool = option(
        False, "Raise RecompileError when a limit of compiled versions is reached, instead of eager.", compiled=False
    )
    error_on_recompile: bool = option(False, "Raise RecompileError when a guard fails.", compiled=False)
    raise_on_ctx_manager_usage: bool = option(
        True, "Using the result of bolide.dynamo.optimize as a context manager is an error.", compiled=False
    )
    raise_on_unsafe_aot_autograd: bool = option(
        False, "Raise where ahead-of-time autograd would be unsafe.", note="what would be unsafe is never compiled"
    )
    error_on_nested_jit_trace: bool = option(
        True, "Calling a compiled function inside torch.jit.trace is an error; off: it runs in eager."
    )
    error_on_nested_fx_trace: bool = option(
        True, "Calling a compiled function inside torch.fx.symbolic_trace is an error; off: it runs in eager."
    )

    # ---- sizes and numbers
    specialize_int: bool = option(False, "Integers are always constants of a compiled version.")
    specialize_float: bool = option(False, "Floats are always constants of a compiled version.")
    specialize_data: int = option(
        64,
        "Integers and booleans may be read from tensors on the CPU with at most this many elements, as long as they "
        "stay the same: they are compared at every call. When they change, they are symbols; where the program has to "
        "know them, a few versions are made for single data, then it breaks (with fullgraph, a new version each).",
    )
    dynamic_shapes: bool = option(True, "Sizes may be symbolic.", note=_LEGACY)
    assume_static_by_default: bool = option(True, "Sizes are fixed in a first compilation, unless marked dynamic.")
    automatic_dynamic_shapes: bool = option(
        True,
        "A size that changed is symbolic in the next compilation.",
        env=("BOLIDE_AUTOMATIC_DYNAMIC_SHAPES", "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_SHAPES"),
    )
    force_parameter_static_shapes: bool = option(True, "Sizes of parameters are always fixed.")
    force_nn_module_property_static_shapes: bool = option(
        True, "Sizes of tensors that modules hold are fixed, unless they have changed."
    )
    allow_ignore_mark_dynamic: bool = option(False, "A dimension marked dynamic may be fixed without an error.")
    capture_scalar_outputs: bool | None = option(
        None,
        "Numbers read from tensors (.item()) are captured as symbols; the segment ends where the program needs to know "
        "them. None: those that `specialize_data` does not read. False: reading one is a break, as in PyTorch.",
        env=("BOLIDE_CAPTURE_SCALAR_OUTPUTS", "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS"),
        types=(bool,),
    )
    capture_dynamic_output_shape_ops: bool | None = option(
        None,
        "Operations whose result's size depends on data (nonzero) are captured. None: where `specialize_data` does not "
        "read the data. False: they are breaks, as in PyTorch.",
        env=("BOLIDE_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS", "TORCHDYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS"),
        types=(bool,),
    )
    prefer_deferred_runtime_asserts_over_guards: bool = option(
        False,
        "Conditions on symbolic sizes become assertions at run time instead of guards.",
        note="conditions on sizes are guards, conditions on data assertions",
    )
    _allow_complex_guards_as_runtime_asserts: bool = option(
        False, "Conditions that cannot be solved become assertions at run time.", note="every condition is a guard here"
    )
    do_not_emit_runtime_asserts: bool = option(
        False,
        "Assertions on data are not checked at run time.",
        env=("BOLIDE_DO_NOT_EMIT_RUNTIME_ASSERTS", "TORCH_DYNAMO_DO_NOT_EMIT_RUNTIME_ASSERTS"),
    )
    force_unspec_int_unbacked_size_like_on_torchrec_kjt: bool = option(
        False, "Lengths of torchrec's jagged tensors are unbacked symbols.", note="for torchrec, which is not supported"
    )

    # ---- guards
    guard_nn_modules: bool = option(True, "What a module holds is guarded; off: modules are taken as unchanging.")
    guard_nn_modules_using_dict_tags: bool = option(
        True,
        "Guards of modules are skipped while version tags say that nothing changed.",
        note="part of the native check: enable_cpp_guard_manager",
    )
    enable_cpp_guard_manager: bool = option(True, "Check guards natively; off: by the readable Python program.")
    skip_nnmodule_hook_guards: bool = option(
        False,
        "Later changes of a module's hooks are not looked for once it was compiled (PyTorch's default; unsound).",
    )
    skip_fsdp_guards: bool = option(True, "Modules that FSDP manages are not guarded.", note=_DISTRIBUTED)
    inline_inbuilt_nn_modules: bool = option(True, "torch's own modules are captured like user's.", note=_ALWAYS)

    # ---- what is captured, and how
    constant_functions: dict[Callable[..., Any], Any] = option(
        {
            torch._jit_internal.is_scripting: False,
            torch.jit._trace.is_tracing: False,
            torch._C._get_tracing_state: None,
            torch._utils.is_compiling: True,
            torch.compiler.is_compiling: True,
            torch.compiler.is_dynamo_compiling: True,
            is_compiling: True,
            is_dynamo_compiling: True,
        },
        "Functions whose calls are replaced by a constant while capturing.",
    )
    allowed_functions_module_string_ignorelist: set[str] = option(
        {"torch.distributions"},
        "Beginnings of names of modules whose functions are looked into, though they belong to torch.",
    )
    skipfiles_inline_module_allowlist: dict[Any, Any] = option({}, "Modules that are captured.", note=_LEGACY)
    reorderable_logging_functions: set[Callable[..., Any]] = option(
        set(), "Functions for output (print, warnings.warn) whose calls may wait until the graph has run."
    )
    traceable_tensor_subclasses: set[type] = option(
        set(), "Subclasses of Tensor that are captured.", note="no effect: all that can be are captured"
    )
    rewrite_assert_with_torch_assert: bool = option(True, "`assert` on a tensor becomes an assertion at run time.")
    capture_branches: bool = option(
        True,
        "An `if` on a tensor's value becomes a branch of the graph, if its ways meet again and differ only in tensors.",
    )
    unrolled_steps: int | None = option(
        16,
        "Scans and maps of at most so many steps are unrolled, others are loops. None: all are unrolled.",
        types=(int, type(None)),
    )
    only_allow_pt2_compliant_ops: bool = option(
        False, "Custom operators without the tag pt2_compliant_tag break instead of being captured."
    )
    allow_rnn: bool = option(False, "RNN, LSTM and GRU layers are captured.", note=_ALWAYS)
    enforce_cond_guards_match: bool = option(
        True, "Both branches of torch.cond must need the same guards.", note="the guards of both are checked"
    )
    capture_autograd_function: bool = option(True, "autograd.Function is captured.", note=_ALWAYS)
    capture_func_transforms: bool = option(True, "torch.func's transforms are captured.", note=_ALWAYS)
    trace_numpy: bool = option(True, "NumPy functions are captured as tensor operations.")
    numpy_default_float: str = option("float64", "NumPy's default float type.", choices=("float64", "float32"))
    numpy_default_complex: str = option(
        "complex128", "NumPy's default complex type.", choices=("complex128", "complex64")
    )
    numpy_default_int: str = option("int64", "NumPy's default integer type.", choices=("int64", "int32"))
    use_numpy_random_stream: bool = option(
        False, "NumPy's random functions draw from NumPy's own generator.", note="always so: they run in eager"
    )
    use_lazy_graph_module: bool = option(
        True,
        "The Python code of graph modules is generated when it is first needed.",
        env=("BOLIDE_USE_LAZY_GRAPH_MODULE", "TORCH_COMPILE_USE_LAZY_GRAPH_MODULE"),
    )
    compiled_autograd: bool = option(
        False,
        "Backward passes are captured from the engine, and compiled with the backend of the compiled function that "
        "they go through, or else the default one.",
        compiled=False,
    )
    _autograd_backward_strict_mode_banned_ops: list[str] = option(
        ["stride", "requires_grad", "storage_offset", "layout", "data"]
        + sorted(name for name in dir(torch.Tensor) if name.startswith("is_")),
        "Tensor attributes that a backward written by the user may not ask for in strict mode.",
        note="there is no strict mode: what a backward of the user's asks of a tensor is answered exactly",
    )
    inject_BUILD_SET_unimplemented_TESTING_ONLY: bool = option(
        False, "Pretend that Python's BUILD_SET operation is unknown, to test breaks."
    )
    fake_tensor_cache_enabled: bool = option(
        True,
        "Remember the answers of shape rules.",
        env=("BOLIDE_SHAPE_CACHE", "TORCH_FAKE_TENSOR_DISPATCH_CACHE"),
        compiled=False,
    )
    fake_tensor_cache_crosscheck_enabled: bool = option(
        False,
        "Compute remembered answers of shape rules again and raise when they differ.",
        env=("BOLIDE_SHAPE_CACHE_CROSSCHECK", "TORCH_FAKE_TENSOR_DISPATCH_CACHE_CROSSCHECK"),
        compiled=False,
    )

    # ---- reproducing faults
    repro_after: str | None = option(
        None,
        "Write scripts of graphs that fail when they are compiled: functional graphs (aot), or the graphs of torch's "
        "functions that backends get (dynamo).",
        env=("BOLIDE_REPRO_AFTER", "TORCHDYNAMO_REPRO_AFTER"),
        compiled=False,
        choices=(None, "dynamo", "aot"),
    )
    repro_level: int = option(
        2,
        "What is written with repro_after: 1: a script that shows the failure; 2: one that minifies it; 3: that one of "
        "each graph, before it is compiled; 4: of graphs whose results are wrong, which raise.",
        env=("BOLIDE_REPRO_LEVEL", "TORCHDYNAMO_REPRO_LEVEL"),
        compiled=False,
        choices=(1, 2, 3, 4),
    )
    repro_forward_only: bool = option(
        False,
        "With repro_after, look at forward graphs only, and compare no gradients.",
        env=("BOLIDE_REPRO_FORWARD_ONLY", "TORCHDYNAMO_REPRO_FORWARD_ONLY"),
        compiled=False,
    )
    repro_tolerance: float = option(
        1e-3, "Differences above this, relative to the largest value, count as wrong.", compiled=False
    )
    repro_ignore_non_fp: bool = option(
        False,
        "Compare floating-point results only.",
        env=("BOLIDE_REPRO_IGNORE_NON_FP", "TORCHDYNAMO_REPRO_IGNORE_NON_FP"),
        compiled=False,
    )
    same_two_models_use_fp64: bool = option(
        True, "Results that differ are wrong only if they are farther from float64's than eager's are.", compiled=False
    )

    # ---- distributed and CUDA
    optimize_ddp: bool | str = option(
        True,
        "How a DistributedDataParallel module is compiled.",
        choices=(
            True,
            False,
            "ddp_optimizer",
            "python_reducer",
            "python_reducer_without_compiled_forward",
            "no_optimization",
        ),
        note=_DISTRIBUTED,
    )
    optimize_ddp_lazy_compile: bool = option(False, "Compile parts of a DDP module late.", note=_LEGACY)
    skip_fsdp_hooks: bool = option(True, "Hooks of FSDP are not captured.", note=_DISTRIBUTED)
    cudagraph_backend_keep_input_mutation: bool = option(
        False, "Graphs of the backend cudagraphs write to inputs where they lie. Off: to copies that are written back."
    )
    cudagraph_backend_support_input_mutation: bool = option(
        False,
        "Where they write to inputs where they lie, such graphs are recorded, if the addresses of these stay.",
    )


config = DynamoConfig()
publish(config, __name__)
