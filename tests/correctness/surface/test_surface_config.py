"""`bolide.dynamo.config`: the table of options, and that each has an effect somewhere or says why not."""

from __future__ import annotations

import ast
import importlib
import pstats
import re
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bolide
from bolide import functorch
from bolide.compiling import TraceBackend
from bolide.dynamo.backends import register_backend
from bolide.dynamo.config import DynamoConfig
from bolide.dynamo.machine.native_calls import runs_natively
from bolide.functorch.config import FunctorchConfig
from bolide.functorch.passes.simplify import merge_equal
from bolide.support.config import Config, option
from bolide.tracing.rules import registry

ROOT = Path(__file__).resolve().parents[3]
ALL_OPTIONS = [*DynamoConfig._options.items(), *FunctorchConfig._options.items()]


def readers() -> set[str]:
    """Options that some module of the product reads, or watches."""
    found = set()
    for path in (ROOT / "bolide").rglob("*.py"):
        text = path.read_text()
        found.update(re.findall(r'\bconfig\.watch\("(\w+)"', text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "config":
                found.add(node.attr)
    return found


def test_every_option_is_read_or_says_why_not() -> None:
    read = readers()
    silent = {name for name, declared in ALL_OPTIONS if name not in read and not declared.note}
    assert not silent, f"nothing reads {sorted(silent)}"


def test_every_option_with_an_effect_is_set_by_a_test() -> None:
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for name, declared in ALL_OPTIONS:
        used = re.search(rf"\b{name}=|\"{name}\"|config\.{name} = ", text)
        assert used or declared.note, f"no test sets {name}"


def test_every_option_is_documented() -> None:
    for name, declared in ALL_OPTIONS:
        assert declared.doc.endswith(".") and len(declared.doc) > 15, name
        declared.accept(name, declared.default)
        for variable in declared.env:
            assert variable.startswith(("BOLIDE_", "TORCH", "AOT_")), variable


def test_options_of_differentiation_are_pytorchs() -> None:
    theirs = importlib.import_module("torch._functorch.config")
    for name, declared in FunctorchConfig._options.items():
        assert hasattr(theirs, name), name
        if name != "debug_assert":
            assert getattr(FunctorchConfig({}), name) == getattr(theirs, name) or declared.note
    module = importlib.import_module("bolide.functorch.config")
    assert module is bolide.functorch.config is sys.modules["bolide.functorch.config"]


def test_options_of_differentiation_have_effects() -> None:
    def sines() -> int:
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        both = graph.call_function(torch.sin, (x,)), graph.call_function(torch.sin, (x,))
        graph.output((graph.call_function(torch.add, both),))
        return sum(node.target is torch.sin for node in functorch.run_passes(graph, "sines", (merge_equal,)).nodes)

    with bolide.functorch.config.patch(debug_assert=True):
        assert sines() == 1
        with bolide.functorch.config.patch(cse=False):
            assert sines() == 2
            x = torch.randn(4, requires_grad=True)
            bolide.compile(lambda x: (x.sin() + x.sin()).sum())(x).backward()
            assert x.grad is not None
            torch.testing.assert_close(x.grad, x.detach().cos() * 2)


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


OWN_OPTIONS = {"detect_leaks"}


def test_every_variable_sets_its_option_and_the_first_one_counts() -> None:
    texts: dict[type, tuple[str, str]] = {
        bool: ("1", "0"),
        int: ("3", "1"),
        str: ("/a", "/b"),
        type(None): ("aot", "dynamo"),
    }
    for name, declared in DynamoConfig._options.items():
        if not declared.env:
            continue
        first, second = texts[bool if bool in declared.types else type(declared.default)]
        ours, *theirs = declared.env  # PyTorch has a variable of its own for each of its options
        assert ours.startswith("BOLIDE_") and all(variable.startswith("TORCH") for variable in theirs), name
        assert len(theirs) == (name not in OWN_OPTIONS), name
        wanted, other = (declared.parse(text) for text in (first, second))
        assert wanted != other
        assert all(getattr(DynamoConfig({variable: first}), name) == wanted for variable in declared.env)
        assert all(getattr(DynamoConfig({ours: second, variable: first}), name) == other for variable in theirs)


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


def test_assertions_need_not_be_checked() -> None:
    namespace: dict[str, Any] = {}  # pytest rewrites the asserts of this file
    exec("def f(x):\n    assert x.sum() > 0, 'must be positive'\n    return x * 2\n", namespace)
    f, x = namespace["f"], -torch.ones(3)
    with pytest.raises(AssertionError, match="must be positive"):
        bolide.compile(f, fullgraph=True)(x)
    with bolide.dynamo.config.patch(do_not_emit_runtime_asserts=True):
        torch.testing.assert_close(bolide.compile(f, fullgraph=True)(x), x * 2)


def test_constant_functions() -> None:
    def setting() -> int:
        return 2

    x = torch.randn(3)
    with bolide.dynamo.config.patch(constant_functions={setting: 5}):
        torch.testing.assert_close(bolide.compile(lambda x: x * setting(), fullgraph=True)(x), x * 5)
    torch.testing.assert_close(bolide.compile(lambda x: x * setting(), fullgraph=True)(x), x * 2)


def test_modules_whose_functions_are_looked_into() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.softsign(x))

    x = torch.randn(3)
    for ignored in (set(), {"torch.nn.functional"}):
        with bolide.dynamo.config.patch(allowed_functions_module_string_ignorelist=ignored):
            torch.testing.assert_close(bolide.compile(f, fullgraph=True)(x), f(x))
            assert runs_natively(torch.nn.functional.softsign) is not bool(ignored)


def test_build_set_can_be_declared_unknown() -> None:
    def f(x: torch.Tensor, a: int, b: int) -> torch.Tensor:
        return x * len({a, b})

    with bolide.dynamo.config.patch(inject_BUILD_SET_unimplemented_TESTING_ONLY=True):
        with pytest.raises(bolide.Unsupported, match="BUILD_SET"):
            bolide.compile(f, fullgraph=True)(torch.ones(2), 1, 2)
        broken = bolide.compile(f)
        torch.testing.assert_close(broken(torch.ones(2), 1, 2), torch.full((2,), 2.0))
    torch.testing.assert_close(bolide.compile(f, fullgraph=True)(torch.ones(2), 1, 2), torch.full((2,), 2.0))


def test_remembered_shapes_can_be_checked_or_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    infer = registry.metas_of
    monkeypatch.setattr(registry, "metas_of", lambda *given: asked.append(given[0]) or infer(*given))

    def count() -> int:
        asked.clear()
        bolide.compile(lambda x: x * 3 + 1, backend="eager", fullgraph=True)(torch.ones(2, 7))
        return len(asked)

    first, again = count(), count()
    with bolide.dynamo.config.patch(fake_tensor_cache_enabled=False):
        forgetful = count()
    with bolide.dynamo.config.patch(fake_tensor_cache_crosscheck_enabled=True):
        checked = count()
    assert again == 0 and forgetful == checked >= first and checked > 0


def test_tracing_compiled_functions_is_an_error_unless_allowed() -> None:
    compiled = bolide.compile(lambda x: x * 2)
    x = torch.randn(3)
    with pytest.raises(RuntimeError, match=r"torch.fx is tracing.*error_on_nested_fx_trace"):
        torch.fx.symbolic_trace(compiled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match=r"torch.jit is tracing"):
            torch.jit.trace(compiled, (x,))
        with bolide.dynamo.config.patch(error_on_nested_jit_trace=False):
            torch.testing.assert_close(torch.jit.trace(compiled, (x,))(x), x * 2)


@pytest.mark.parametrize("calls", [1, 2, 3, 5])
def test_compiled_functions_without_arguments_are_not_called_while_tracing(calls: int) -> None:
    """What the tracer would have to see, compiled code would take for a constant: at any call, in any thread."""
    x = torch.randn(2, 3)
    compiled = bolide.compile(lambda: x.sin() + 1)

    def call(times: int) -> None:
        for _ in range(times):
            torch.testing.assert_close(compiled(), x.sin() + 1)

    def trace() -> None:
        with pytest.raises(RuntimeError, match=r"torch.fx is tracing"):
            torch.fx.symbolic_trace(lambda y: compiled() + y)

    call(calls)
    with ThreadPoolExecutor(1) as another:
        for run in (trace, lambda: call(calls), trace):
            another.submit(run).result()
    trace()
    call(calls)


def test_compilation_metrics() -> None:
    bolide.reset()
    bolide.compile(lambda x: x * 2)(torch.randn(3))
    with bolide.dynamo.config.patch(log_compilation_metrics=False):
        bolide.compile(lambda x: x * 3)(torch.randn(3))
    with pytest.raises(bolide.Unsupported):
        bolide.compile(lambda x: x.data_ptr(), fullgraph=True)(torch.randn(1))
    good, bad = bolide.dynamo.get_compilation_metrics()
    assert good.failure is None and good.operations > 0 and good.guards > 0
    assert 0 < good.capture_seconds <= good.seconds and good.version == 0
    assert bad.failure is not None and "data_ptr" in bad.failure
    assert good.has_guarded_code and not bad.has_guarded_code and good.graph_input_count == 1
    assert good.frame_key != bad.frame_key and good.compile_id == f"{good.frame_key}/0"
    assert bad.fail_user_frame_filename == __file__ and bad.fail_user_frame_lineno == bad.co_firstlineno
    assert time.time() - 600 < good.start_time <= good.end_time <= time.time()


def test_profiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bolide.dynamo.config.patch(cprofile=str(tmp_path)):
        bolide.compile(lambda x: x * 2)(torch.randn(3))
    (file,) = tmp_path.iterdir()
    assert pstats.Stats(str(file)).total_calls > 100
    with bolide.dynamo.config.patch(cprofile=True):
        bolide.compile(lambda x: x * 2)(torch.randn(3))
    assert "cumulative" in capsys.readouterr().err


def test_failures_are_recorded(tmp_path: Path) -> None:
    def fails(gm: torch.fx.GraphModule, info: object) -> object:
        raise ZeroDivisionError("no kernels today")

    register_backend(TraceBackend("failing", fails, "default"), "failing", tags=("debug",))
    recording = bolide.dynamo.config.patch(replay_record_enabled=True, debug_dir_root=str(tmp_path))
    with recording, pytest.raises(bolide.CompileError):
        bolide.compile(lambda x: x * 2, backend="failing")(torch.randn(3))
    (folder,) = tmp_path.iterdir()
    assert "aten.mul" in (folder / "graph.py").read_text()
    assert "no kernels today" in (folder / "error.txt").read_text()
    assert "float32" in (folder / "values.txt").read_text()


def test_types_of_options_without_a_value() -> None:
    class Demo(Config):
        name: str | None = option(None, "A name.", types=(str,))

    demo = Demo()
    demo.name = "x"
    with pytest.raises(TypeError, match="name must be None or str, not int"):
        demo.name = 3


def test_options_have_the_newer_names_too() -> None:
    config = DynamoConfig({})
    config.recompile_limit = 3
    assert config.cache_size_limit == 3 and "recompile_limit" not in config.shallow_copy_dict()
    with config.patch(recompile_limit=5, accumulated_recompile_limit=6):
        assert (config.cache_size_limit, config.accumulated_cache_size_limit) == (5, 6)
    assert config.recompile_limit == 3
    with pytest.raises(TypeError):
        config.recompile_limit = "3"


def test_reaching_the_limit_can_be_an_error() -> None:
    compiled = bolide.compile(lambda x, mode: x * len(mode), backend="eager")
    with bolide.dynamo.config.patch(cache_size_limit=2, fail_on_recompile_limit_hit=True):
        for mode in ("a", "bb", "a"):
            compiled(torch.ones(2), mode)
        with pytest.raises(bolide.RecompileError, match=r"cache_size_limit.*mode == "):
            compiled(torch.ones(2), "ccc")
        compiled(torch.ones(2), "bb")


def test_operators_that_do_not_say_that_they_keep_the_rules(seed: int) -> None:
    with torch.library._scoped_library("surface", "DEF") as library:
        library.define("plain(Tensor x) -> Tensor")
        library.define("tagged(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
        for name in ("plain", "tagged"):
            library.impl(name, lambda x: x * 3, "CompositeExplicitAutograd")
        x = torch.randn(3)
        operators = torch.ops.surface
        for allowed, operator in ((False, operators.tagged), (True, operators.plain)):
            with bolide.dynamo.config.patch(only_allow_pt2_compliant_ops=not allowed):
                found = bolide.compile(lambda x, o=operator: o(x) + 1, backend="eager", fullgraph=True)(x)
                assert torch.equal(found, x * 3 + 1)
        with bolide.dynamo.config.patch(only_allow_pt2_compliant_ops=True):
            with pytest.raises(bolide.Unsupported, match=r"BR0510(.|\n)*surface.plain"):
                bolide.compile(lambda x: operators.plain(x) + 1, fullgraph=True)(x)
            assert torch.equal(bolide.compile(lambda x: operators.plain(x) + 1)(x), x * 3 + 1)  # a break


def test_numpys_default_types() -> None:
    def f(a: Any) -> tuple[Any, ...]:
        made = (np.zeros(2), np.arange(3), np.ones(2) * 1j, np.array([0.5]), np.full(2, 1.5))
        return *made, a / 2, np.mean(a), np.float64(2) * np.ones(2, dtype="float64")

    a = np.arange(4)
    plain = [np.asarray(value).dtype for value in f(a)]
    assert [np.asarray(value).dtype for value in bolide.compile(f, fullgraph=True)(a)] == plain
    chosen = {"numpy_default_float": "float32", "numpy_default_complex": "complex64", "numpy_default_int": "int32"}
    with bolide.dynamo.config.patch(chosen):
        found = bolide.compile(f, fullgraph=True)(a)
        names = ["float32", "int32", "complex64", *["float32"] * 4, "float64"]
        assert [np.asarray(value).dtype.name for value in found] == names
    for value, wanted in zip(found, f(a), strict=True):
        np.testing.assert_allclose(value, wanted)


def test_numpy_functions_need_not_be_captured() -> None:
    def f(a: Any) -> Any:
        return np.sin(a) + 1

    a = np.linspace(0, 1, 3)
    off = bolide.dynamo.config.patch(trace_numpy=False)
    with off, pytest.raises(bolide.Unsupported, match="trace_numpy is off"):
        bolide.compile(f, fullgraph=True)(a)
    np.testing.assert_allclose(bolide.compile(f, fullgraph=True)(a), f(a))


def test_sizes_of_what_modules_hold_are_fixed_unless_told_otherwise() -> None:
    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.table.sum()

    # those that have changed are symbols
    for fixed, dynamic, versions in ((True, None, 2), (False, None, 2), (True, True, 2), (False, True, 1)):
        bolide.reset()
        holder = Holder()
        compiled = bolide.compile(holder, backend="eager", dynamic=dynamic)
        with bolide.dynamo.config.patch(force_nn_module_property_static_shapes=fixed):
            for size in (4, 5, 6, 7):
                holder.table = torch.randn(size)
                assert torch.equal(compiled(torch.ones(2)), holder(torch.ones(2)))
        assert len(bolide.dynamo.get_compilation_metrics()) == versions


def test_warnings_about_faults_carry_the_traceback_if_wanted() -> None:
    def failing(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        raise ZeroDivisionError("no kernels today")

    for verbose in (False, True):
        with (
            bolide.dynamo.config.patch(suppress_errors=True, verbose=verbose),
            pytest.warns(bolide.BolideWarning, match="no kernels today") as told,
        ):
            bolide.compile(lambda x: x + 1, backend=failing)(torch.ones(2))
        assert ("Traceback" in str(told[0].message)) is verbose


def test_what_counts_as_different_when_correctness_is_verified() -> None:
    def wrong(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        return lambda x: (x + 1.01, torch.zeros(2, dtype=torch.int64))

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, torch.ones_like(x, dtype=torch.int64)

    x = torch.zeros(2)
    for options, refused in (
        ({}, "result 0 differs"),
        ({"repro_tolerance": 0.1}, "result 1 has other values"),
        ({"repro_tolerance": 0.1, "repro_ignore_non_fp": True}, None),
    ):
        with bolide.dynamo.config.patch(verify_correctness=True, **options):
            compiled = bolide.compile(f, backend=wrong)
            if refused is None:
                compiled(x)
            else:
                with pytest.raises(bolide.CompileError, match=refused):
                    compiled(x)


def test_code_of_graphs_is_written_when_it_is_needed_or_at_once() -> None:
    def told(lazy: bool) -> list[bool]:
        written: list[bool] = []

        def compiler(graph: Any, info: object) -> Any:
            written.append(graph._generated is not None)
            return lambda inputs: graph(*inputs)

        register_backend(TraceBackend("noting", compiler, "default"), f"noting {lazy}", tags=("debug",))
        with bolide.dynamo.config.patch(use_lazy_graph_module=lazy):
            bolide.compile(lambda x: x * 2, backend=f"noting {lazy}")(torch.ones(2))
        return written

    assert told(True) == [False] and told(False) == [True]
