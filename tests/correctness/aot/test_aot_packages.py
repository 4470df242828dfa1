"""Packages and libraries in PyTorch's own loaders: constants that are updated and swapped, several at once, other CPUs,
missing linkers, the command line, C++."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.export.pt2_archive._package import load_pt2

import bolide
from bolide.aot import cpu, link
from bolide.cli import main
from bolide.inductor import aot_compile

Runner = torch._C._aoti.AOTIModelContainerRunnerCpu


class Net(nn.Module):
    """Parameters, a buffer that is written, one that is not, and a tensor that is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4).eval()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.scale = torch.rand(4) + 1

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        return self.norm(self.layer(x)) * self.scale, self.calls + 0


def net() -> Net:
    """With running statistics that matter."""
    model = Net()
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2)
    return model


def plain(model: Net, x: torch.Tensor) -> torch.Tensor:
    """The first result, without the count."""
    with torch.no_grad():
        return model.norm(model.layer(x)) * model.scale


def state(model: Net) -> dict[str, torch.Tensor]:
    return {**model.state_dict(), "scale": model.scale}


def runner_of(model: Net, folder: Path) -> tuple[Runner, dict[str, str]]:
    """PyTorch's runner of a library, and the library's names of the model's tensors."""
    path = aot_compile(wrapped(model), (torch.randn(5, 3),), options={"aot_inductor.output_path": str(folder / "m.so")})
    runner = Runner(path, 1)
    return runner, {fqn: name for name, fqn in runner.get_constant_names_to_original_fqns().items()}


def wrapped(model: nn.Module) -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(model)


def changed(
    runner: Runner, names: dict[str, str], tensors: dict[str, torch.Tensor], inactive: bool, full: bool
) -> None:
    given = {names[fqn]: tensor for fqn, tensor in tensors.items() if fqn in names}
    runner.update_constant_buffer(given, inactive, full)


def test_pytorch_loads_a_package(tmp_path: Path) -> None:
    model = net()
    path = bolide.aot_compile(model, (torch.randn(5, 3),), dynamic_shapes=({0: "batch"},), path=tmp_path / "net.pt2")
    names = zipfile.ZipFile(path).namelist()
    (metadata,) = [name for name in names if name.startswith("net/data/aotinductor/model/") and name.endswith("json")]
    assert json.loads(zipfile.ZipFile(path).read(metadata))["AOTI_DEVICE_KEY"] == "cpu"
    before = int(model.calls)
    loader = torch._C._aoti.AOTIModelPackageLoader(path, "model", False, 1, -1)
    for count, batch in enumerate((5, 2, 40), 1):
        x = torch.randn(batch, 3)
        result, calls = loader.run([x])
        torch.testing.assert_close(result, plain(model, x))
        assert int(calls) == before + count
    assert {"layer.weight", "layer.bias", "norm.running_mean", "calls"} <= set(loader.get_constant_fqns())


def test_pytorch_reads_a_package_as_its_archives(tmp_path: Path) -> None:
    """As `torch._inductor.aoti_load_package` does: what it cannot read so it calls outdated, with a warning."""
    path = bolide.aot_compile(model := net(), (torch.randn(5, 3),), path=tmp_path / "net.pt2")
    with open(path, "rb") as file:
        for source in (path, file):
            contents = load_pt2(source)
            result, _ = contents.aoti_runners["model"](x := torch.randn(5, 3))
            torch.testing.assert_close(result, plain(model, x))


def test_constants_are_updated_and_swapped(tmp_path: Path) -> None:
    first, second, third = net(), net(), net()
    runner, names = runner_of(first, tmp_path)
    x = torch.randn(5, 3)
    torch.testing.assert_close(runner.run([x])[0], plain(first, x))
    changed(runner, names, state(second), True, True)
    torch.testing.assert_close(runner.run([x])[0], plain(first, x))  # not in use yet
    runner.swap_constant_buffer()
    torch.testing.assert_close(runner.run([x])[0], plain(second, x))
    changed(runner, names, {"layer.weight": third.layer.weight.detach()}, False, False)
    second.layer.weight = third.layer.weight
    torch.testing.assert_close(runner.run([x])[0], plain(second, x))
    held = runner.extract_constants_map(False)
    torch.testing.assert_close(held["layer.weight"], third.layer.weight.detach())
    third.layer.weight.data.zero_()  # a copy is held
    assert not torch.allclose(runner.run([x])[0], plain(second, x))


def test_constants_of_the_caller_are_used_themselves(tmp_path: Path) -> None:
    model = net()
    runner, names = runner_of(model, tmp_path)
    weight, x = torch.randn(4, 3), torch.randn(5, 3)
    runner.update_constant_buffer({names["layer.weight"]: weight}, False, False, True)
    for _ in range(2):
        model.layer.weight.data = weight.clone()
        torch.testing.assert_close(runner.run([x])[0], plain(model, x))
        weight.normal_()


def test_constants_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path) -> None:
    model, x = net(), torch.randn(5, 3)
    path = bolide.aot_compile(model, (x,), path=tmp_path / "net.pt2")
    library = bolide.load(path)
    with pytest.raises(RuntimeError, match=r"layer.weight: its size in dimension 0 is 5, not 4"):
        library.load_constants({"layer.bias": torch.randn(4), "layer.weight": torch.randn(5, 3)}, full=False)
    with pytest.raises(RuntimeError, match=r"layer.bias has dtype torch.float64"):
        library.load_constants({"layer.bias": torch.randn(4).double()}, full=False)
    with pytest.raises(RuntimeError, match=r"layer.weight is missing"):
        library.load_constants({"layer.bias": torch.randn(4)})
    torch.testing.assert_close(library(x)[0], plain(model, x))
    other = net()
    other.scale = model.scale
    library.load_constants(other.state_dict())
    torch.testing.assert_close(library(x)[0], plain(other, x))


def test_an_incomplete_set_is_not_swapped_in(tmp_path: Path) -> None:
    model, x = net(), torch.randn(5, 3)
    runner, names = runner_of(model, tmp_path)
    changed(runner, names, {"layer.bias": torch.randn(4)}, True, False)
    with pytest.raises(RuntimeError):
        runner.swap_constant_buffer()
    torch.testing.assert_close(runner.run([x])[0], plain(model, x))
    runner.free_inactive_constant_buffer()
    changed(runner, names, state(model), True, True)
    runner.swap_constant_buffer()
    torch.testing.assert_close(runner.run([x])[0], plain(model, x))


def test_containers_are_apart(tmp_path: Path) -> None:
    model, x = net(), torch.randn(5, 3)
    path = bolide.aot_compile(model, (x,), path=tmp_path / "net.pt2")
    first, second = bolide.load(path), bolide.load(path)
    other = net()
    second.load_constants(other.state_dict())
    torch.testing.assert_close(first(x)[0], plain(model, x))
    other.scale = model.scale
    torch.testing.assert_close(second(x)[0], plain(other, x))


def test_a_model_may_change_afterwards(tmp_path: Path) -> None:
    model, x = net(), torch.randn(5, 3)
    path = bolide.aot_compile(model, (x,), path=tmp_path / "net.pt2")
    expected = plain(model, x)
    model.layer.weight.data.zero_()
    torch.testing.assert_close(bolide.load(path)(x)[0], expected)


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_missing_data_of_constants_are_noticed(damage: str, tmp_path: Path) -> None:
    path = Path(aot_compile(wrapped(net()), (torch.randn(5, 3),)))
    content = path.read_bytes()
    other = tmp_path / "other.so"
    other.write_bytes(content[: -(1 << 16)] + (b"" if damage == "cut" else bytes(1 << 16)))
    with pytest.raises(RuntimeError, match="constants at the end of"):
        bolide.load(other)


def test_a_lesser_cpu_is_told_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, needs = cpu.library_target()
    lacking = (*needs, cpu.Need("wings", 7, 0, 0, 31))  # a bit that no CPU sets
    monkeypatch.setattr("bolide.aot.compile.library_target", lambda: (target, lacking))
    path = bolide.aot_compile(lambda x: x + 1, (torch.randn(3),), path=tmp_path / "m.pt2")
    with pytest.raises(RuntimeError, match="made for CPUs with wings"):
        bolide.load(path)


def test_without_a_linker_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link.shutil, "which", lambda name: None)
    monkeypatch.setattr(link.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(bolide.BolideError, match="pip install ziglang"):
        bolide.aot_compile(lambda x: x + 1, (torch.randn(3),), path=tmp_path / "m.pt2")


@pytest.mark.parametrize("name", ["ld", "ld.gold", "ld.lld", "mold", "cc"])
def test_any_linker_will_do(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here")
    monkeypatch.setattr(link.shutil, "which", lambda other: found if other == name else None)
    model, x = net(), torch.randn(5, 3)
    library = bolide.load(bolide.aot_compile(model, (x,), path=tmp_path / "m.pt2"))
    torch.testing.assert_close(library(x)[0], plain(model, x))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bolide.load(tmp_path / "none.pt2")
    (tmp_path / "text.pt2").write_text("nothing")
    with pytest.raises(bolide.BolideError, match="no package"):
        bolide.load(tmp_path / "text.pt2")


def test_an_exported_program_brings_its_sizes(tmp_path: Path) -> None:
    model, x = net(), torch.randn(5, 3)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    library = bolide.load(bolide.aot_compile(program, path=tmp_path / "m.pt2"))
    for size in (2, 64):
        x = torch.randn(size, 3)
        torch.testing.assert_close(library(x)[0], plain(model, x))
    with pytest.raises(RuntimeError, match="must be at most 64"):
        library(torch.randn(65, 3))


SCRIPT = """
import torch
model = torch.nn.Linear(3, 2)
args = (torch.randn(4, 3),)
dynamic_shapes = ({0: "batch"},)
torch.save(model.state_dict(), "state.pt")
"""


def test_the_command_makes_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    done = CliRunner().invoke(main, ["aot", "script.py", "-o", "out.pt2"], catch_exceptions=False)
    assert done.exit_code == 0 and "out.pt2" in done.output
    model = nn.Linear(3, 2)
    model.load_state_dict(torch.load(tmp_path / "state.pt"))
    x = torch.randn(7, 3)
    with torch.no_grad():
        torch.testing.assert_close(bolide.load(tmp_path / "out.pt2")(x), model(x))


def test_a_program_in_cpp_runs_a_library(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler here")
    example = Path(__file__).parents[3] / "docs" / "examples" / "run_library.cpp"
    assert len(example.read_text().splitlines()) <= 35
    root = Path(torch.__file__).parent
    model, x = net(), torch.ones(2, 3)
    library = bolide.aot_compile(model, (x,), path=tmp_path / "m.pt2")
    paths = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include", f"-L{root}/lib", f"-Wl,-rpath,{root}/lib"]
    libraries = ["-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    line = [compiler, "-std=c++20", "-O0", str(example), *paths, *libraries, "-o", str(tmp_path / "run")]
    subprocess.run(line, check=True, capture_output=True)
    done = subprocess.run([tmp_path / "run", library, "2", "3"], check=True, capture_output=True, text=True)
    numbers = [float(word) for word in done.stdout.split()]
    torch.testing.assert_close(torch.tensor(numbers).view(2, 4), plain(model, x), atol=1e-4, rtol=1e-4)
