"""`bolide.dynamo.config`: the table of options, and that each has an effect somewhere or says why not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bolide
from bolide.dynamo.config import DynamoConfig
from bolide.support.config import Config, option

ROOT = Path(__file__).resolve().parent.parent.parent

PENDING = """
    log_file_name log_compilation_metrics cprofile debug_dir_root replay_record_enabled verify_correctness
    minimum_call_count dead_code_elimination raise_on_ctx_manager_usage error_on_nested_jit_trace
    error_on_nested_fx_trace specialize_int specialize_float assume_static_by_default automatic_dynamic_shapes
    force_parameter_static_shapes force_nn_module_property_static_shapes allow_ignore_mark_dynamic
    capture_scalar_outputs capture_dynamic_output_shape_ops prefer_deferred_runtime_asserts_over_guards
    do_not_emit_runtime_asserts guard_nn_modules guard_nn_modules_using_dict_tags enable_cpp_guard_manager
    skip_nnmodule_hook_guards constant_functions allowed_functions_module_string_ignorelist
    reorderable_logging_functions traceable_tensor_subclasses rewrite_assert_with_torch_assert
    only_allow_pt2_compliant_ops enforce_cond_guards_match trace_numpy numpy_default_float numpy_default_complex
    numpy_default_int use_numpy_random_stream use_lazy_graph_module _autograd_backward_strict_mode_banned_ops
    inject_BUILD_SET_unimplemented_TESTING_ONLY fake_tensor_cache_enabled fake_tensor_cache_crosscheck_enabled
    repro_tolerance repro_ignore_non_fp same_two_models_use_fp64
"""
"""Options that are declared, and whose effect is still to come."""


def readers() -> set[str]:
    """Options that some module of the product reads."""
    found: set[str] = set()
    for path in (ROOT / "bolide").rglob("*.py"):
        if path.name != "config.py":
            found |= set(re.findall(r"\bconfig\.(\w+)", path.read_text()))
    return found


def test_every_option_is_read_or_says_why_not() -> None:
    read = readers()
    silent = {name for name, declared in DynamoConfig._options.items() if name not in read and not declared.note}
    assert silent <= set(PENDING.split()), f"nothing reads {sorted(silent - set(PENDING.split()))}"


def test_every_option_is_documented() -> None:
    for name, declared in DynamoConfig._options.items():
        assert declared.doc.endswith(".") and len(declared.doc) > 15, name
        declared.accept(name, declared.default)
        for variable in declared.env:
            assert variable.startswith(("BOLIDE_", "TORCH")), variable


@pytest.mark.parametrize(
    ("environment", "name", "value"),
    [
        ({"TORCHDYNAMO_VERBOSE": "1"}, "verbose", True),
        ({"TORCH_COMPILE_DISABLE": "1", "BOLIDE_DISABLE": "0"}, "disable", False),
        ({"TORCHDYNAMO_REPRO_LEVEL": "4"}, "repro_level", 4),
        ({"TORCHDYNAMO_REPRO_AFTER": "aot"}, "repro_after", "aot"),
        ({"TORCH_COMPILE_CPROFILE": "1"}, "cprofile", True),
        ({"TORCH_COMPILE_CPROFILE": "/tmp/p"}, "cprofile", "/tmp/p"),
        ({"TORCH_COMPILE_USE_LAZY_GRAPH_MODULE": "0"}, "use_lazy_graph_module", False),
    ],
)
def test_values_from_the_environment(environment: dict[str, str], name: str, value: object) -> None:
    assert getattr(DynamoConfig(environment), name) == value


def test_wrong_environment_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="repro_after must be one of"):
        DynamoConfig({"TORCHDYNAMO_REPRO_AFTER": "never"})


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("optimize_ddp", "yes", ValueError),
        ("optimize_ddp", 1, ValueError),
        ("repro_level", 5, ValueError),
        ("log_file_name", 3, TypeError),
        ("verbose", 1, TypeError),
        ("reorderable_logging_functions", [print], TypeError),
        ("cache_size_limi", 3, AttributeError),
    ],
)
def test_wrong_values_are_refused(name: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        setattr(bolide.dynamo.config, name, value)


def test_instances_do_not_share_containers() -> None:
    first, second = DynamoConfig({}), DynamoConfig({})
    first.reorderable_logging_functions.add(print)
    assert not second.reorderable_logging_functions


def test_save_and_load_every_option() -> None:
    config = DynamoConfig({})
    saved = config.save_config()
    config.allowed_functions_module_string_ignorelist = {"a"}
    config.repro_after = "aot"
    config.optimize_ddp = "no_optimization"
    config.load_config(saved)
    assert config.shallow_copy_dict() == DynamoConfig({}).shallow_copy_dict()


def test_hash_is_the_same_in_every_process_and_ignores_what_does_not_change_programs() -> None:
    config = DynamoConfig({})
    script = "from bolide.dynamo.config import DynamoConfig; print(DynamoConfig({}).get_hash())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == config.get_hash()
    with config.patch(verbose=True, cache_size_limit=3, repro_level=1):
        assert config.get_hash() == done.stdout.strip()
    with config.patch(capture_scalar_outputs=True):
        assert config.get_hash() != done.stdout.strip()
    with config.patch(reorderable_logging_functions={print}):
        assert config.get_hash() != done.stdout.strip()


def test_constant_functions() -> None:
    def setting() -> int:
        return 2

    x = torch.randn(3)
    with bolide.dynamo.config.patch(constant_functions={setting: 5}):
        torch.testing.assert_close(bolide.compile(lambda x: x * setting(), fullgraph=True)(x), x * 5)
    torch.testing.assert_close(bolide.compile(lambda x: x * setting(), fullgraph=True)(x), x * 2)


def test_types_of_options_without_a_value() -> None:
    class Demo(Config):
        name: str | None = option(None, "A name.", types=(str,))

    demo = Demo()
    demo.name = "x"
    with pytest.raises(TypeError, match="name must be None or str, not int"):
        demo.name = 3
