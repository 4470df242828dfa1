"""`bolide.dynamo.config`: the table of options, and that each has an effect somewhere or says why not."""

from __future__ import annotations

import pstats
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import bolide
from bolide.compiling import TraceBackend
from bolide.dynamo.backends import register_backend
from bolide.dynamo.config import DynamoConfig
from bolide.dynamo.native_calls import runs_natively
from bolide.support.config import Config, option
from bolide.tracing.rules import registry

ROOT = Path(__file__).resolve().parent.parent.parent


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
    assert not silent, f"nothing reads {sorted(silent)}"


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
    infer = registry._infer
    monkeypatch.setattr(registry, "_infer", lambda *given: asked.append(given[0]) or infer(*given))

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


def test_compilation_metrics() -> None:
    bolide.reset()
    bolide.compile(lambda x: x * 2)(torch.randn(3))
    with bolide.dynamo.config.patch(log_compilation_metrics=False):
        bolide.compile(lambda x: x * 3)(torch.randn(3))
    with pytest.raises(bolide.Unsupported):
        bolide.compile(lambda x: x.item(), fullgraph=True)(torch.randn(1))
    good, bad = bolide.dynamo.get_compilation_metrics()
    assert good.failure is None and good.operations > 0 and good.guards > 0
    assert 0 < good.capture_seconds <= good.seconds and good.version == 0
    assert bad.failure is not None and "depends on the data" in bad.failure


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
