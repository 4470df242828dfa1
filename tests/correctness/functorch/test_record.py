"""Calls that bolide has failed on are recorded, and made again in another process."""

from __future__ import annotations

import dataclasses
import enum
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bolide
from bolide.debug import record

SCRIPT = """
import sys
from dataclasses import dataclass
import torch, bolide
from torch import nn

WIDTH = 5
factor = float(sys.argv[2])

@dataclass
class Sizes:
    scale: float

class Model(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, *, more=()):
        return (self.layer(x) * self.sizes.scale + sum(more)) * factor

def failing(gm, inputs, **options):
    total = sum(value.double().sum().item() for value in inputs)
    raise NotImplementedError(f"no code for {total:.10f} {gm.graph.find_nodes(op='output')}")

def scaled(n):
    return lambda x: x * n * factor

bolide.dynamo.config.replay_record_enabled = True
bolide.dynamo.config.debug_dir_root = sys.argv[1]
x = torch.randn(4, WIDTH)
bolide.compile(Model(Sizes(3.0)), backend=failing)(x, more=[x, torch.randn(4, 1)])
bolide.compile(scaled(torch.randn(())), backend=failing)(x[:, ::2])
print("the rest of the script runs")
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True)


def test_a_fresh_process_fails_as_the_program_did(tmp_path: Path) -> None:
    """What a script itself defines, with values of the run: the message has the sum of all inputs in it."""
    (tmp_path / "program.py").write_text(SCRIPT)
    done = run(str(tmp_path / "program.py"), str(tmp_path / "found"), "2.5")
    assert "the rest of the script runs" in done.stdout, done.stderr
    for folder in sorted((tmp_path / "found").iterdir()):
        text = (folder / "error.txt").read_text()
        failure = next(line for line in text.splitlines() if line.startswith("NotImplementedError: no code for"))
        again = run("-m", "bolide", "replay", str(folder))
        assert again.returncode != 0 and failure in again.stderr, again.stderr
        assert "the rest of the script runs" not in again.stdout and f"bolide replay {folder}" in done.stderr
    assert len([*(tmp_path / "found").iterdir()]) == 2


FAILS = [True]


def once(gm: torch.fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
    """A backend that fails when it is told to."""
    if FAILS[0]:
        raise NotImplementedError("not this time")
    return gm.forward


def recorded(folder: Path, function: Any, *args: Any, **kwargs: Any) -> Path:
    """The folder of the record of a call that fails."""
    FAILS[0] = True
    options = bolide.dynamo.config.patch(replay_record_enabled=True, debug_dir_root=str(folder))
    with options, pytest.raises(bolide.CompileError, match="not this time"):
        bolide.compile(function, backend=once)(*args, **kwargs)
    (path,) = folder.iterdir()
    FAILS[0] = False
    return path


def noisy(x: Tensor, scale: float = 2.0) -> Tensor:
    return F.dropout(x @ x.T, 0.5) * scale


def test_random_numbers_modes_and_options_are_those_of_the_call(tmp_path: Path) -> None:
    x = torch.randn(4, 4)
    state = torch.get_rng_state()
    with (
        torch.no_grad(),
        torch.autocast("cpu", torch.bfloat16),
        bolide.dynamo.config.patch(capture_scalar_outputs=True),
    ):
        expected = noisy(x, scale=3.0)
        torch.set_rng_state(state)
        path = recorded(tmp_path, noisy, x, scale=3.0)
    found = record.read(path)
    options = found["options"]["bolide.dynamo.config"]
    assert options.pop("force_disable_caches", True)  # which the tests set
    assert options == {"capture_scalar_outputs": True}
    x.zero_()
    again: Any = record.replay(found)
    assert again.dtype is torch.bfloat16 and not again.requires_grad
    torch.testing.assert_close(again, expected)
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu"), "they are put back"


class Kind(enum.Enum):
    FIRST = 1


Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Config:
    kind: Kind
    pair: Pair
    more: Any = None

    def twice(self, x: Tensor) -> Tensor:
        return x * 2


def round_trip(value: object, folder: Path) -> Any:
    torch.save(record.Writer()(value, "it"), folder / "value.pt")
    return record.Reader()(torch.load(folder / "value.pt", weights_only=True))


def test_values_are_the_same_again(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    parameter = nn.Parameter(torch.randn(2))
    config = Config(
        Kind.FIRST, Pair(x, x.t()[1:]), [1, 2.5, 1j, "text", b"bytes", None, torch.float16, torch.Size([2])]
    )
    config.more += [config, {"a": (1, {2}, frozenset([3]))}, OrderedDict(b=parameter), config.twice, F.gelu]
    config.more += [torch.ops.aten.add.Tensor, slice, torch.device("cpu"), nn.Sequential(nn.Linear(4, 2), nn.GELU())]
    made = round_trip([config, config, parameter], tmp_path)
    again, other, weight = made
    assert again is other and again.more[8] is again and again.kind is Kind.FIRST and type(again.pair) is Pair
    assert again.more[:8] == config.more[:8] and again.more[9] == config.more[9]
    assert again.more[10]["b"] is weight and isinstance(weight, nn.Parameter) and weight.requires_grad
    assert again.more[11].__self__ is again and again.more[12] is F.gelu
    assert again.more[13:16] == [torch.ops.aten.add.Tensor, slice, torch.device("cpu")]
    left, right = again.pair
    torch.testing.assert_close([left, right], [x, x.t()[1:]], check_stride=True)
    left[0, 1] = 7
    assert right[0, 0] == 7, "they share memory"
    torch.testing.assert_close(again.more[16](x), config.more[16](x))


class Slotted:
    __slots__ = ("x",)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ((x for x in ()), r"\['key'\] is a generator, which is more than its attributes"),
        (threading.Lock(), "is a lock, which is more"),
        (Slotted(), "is a Slotted, which is more"),
        (torch.randn(3).to_sparse(), "dense tensors can be recorded"),
        (type("Local", (), {})(), "is of a class that is found under no name, Local"),
        (eval("lambda x: x"), "which has no source file"),
    ],
)
def test_what_a_record_cannot_hold_is_told(value: object, reason: str) -> None:
    with pytest.raises(record.Unrecordable, match=f"argument 0.*{reason}"):
        record.Writer()([1, {"key": value}], "argument 0")


def test_calls_that_cannot_be_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = recorded(tmp_path / "lock", lambda x, more: x.sin(), torch.randn(3), [threading.Lock()])
    assert "argument 1[0] is a lock" in caplog.text and not (path / record.FILE).exists()
    assert "not this time" in (path / "error.txt").read_text()

    def broken(x: Tensor) -> Tensor:
        FAILS[0] = False
        y = x.sin()
        bolide.graph_break()
        return y.cos()

    options = bolide.dynamo.config.patch(replay_record_enabled=True, debug_dir_root=str(tmp_path / "later"))

    def second(gm: torch.fx.GraphModule, inputs: list[Any], **more: Any) -> Any:
        if any(node.target in ("cos", torch.cos) for node in gm.graph.nodes):
            raise NotImplementedError("no cosines")
        return gm.forward

    x = torch.randn(3)
    with options, pytest.raises(bolide.CompileError, match="no cosines"):
        bolide.compile(broken, backend=second)(x)
    assert "in the middle of its work" in caplog.text


class Exploit:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('code of the file has run')",)


def test_reading_a_file_runs_no_code_of_it(tmp_path: Path) -> None:
    for name, value in (("call.pt", {"function": Exploit()}), ("other.pt", {"function": 1})):
        torch.save(value, tmp_path / name)
        with pytest.raises(record.Unrecordable, match="is no record of a call"):
            record.read(tmp_path / name)
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Exploit()))
    with pytest.raises(record.Unrecordable, match="is no record of a call"):
        record.read(tmp_path / "plain.pt")


def test_what_is_not_there_any_more_is_told(tmp_path: Path) -> None:
    path = recorded(tmp_path, lambda x: x.sin(), torch.randn(3))
    found = record.read(path)
    found["function"]["code"][1] += 10000
    with pytest.raises(record.Unrecordable, match="has no such function <lambda> any more"):
        record.replay(found)
    found["versions"]["python"] = "2.7"
    assert [line for line in record.other_versions(found) if line.startswith("python: 2.7 then")]
