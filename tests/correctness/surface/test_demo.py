"""The demo: eager and bolide train alike on real text, and the report holds what was compiled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from bolide.cli import main
from bolide.debug.plots import Curve, line_chart, ticks
from bolide.demo.model import SIZES
from bolide.demo.text import load
from bolide.demo.train import Settings, largest_difference, make_lane, train

SIZE = SIZES["tiny"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_of_eager_and_bolide_agree(dtype: torch.dtype, seed: int) -> None:
    text = load(Path(torch.__file__), SIZE.context)
    settings = Settings(SIZE, 12, 0.0, torch.device("cpu"), dtype, seed)
    eager, fast = lanes = [make_lane(name, settings, len(text.alphabet)) for name in ("eager", "bolide")]
    assert len(list(train(lanes, text, settings))) == 24
    assert eager.losses[-1] < eager.losses[0]
    assert largest_difference(fast, eager) < (1e-4 if dtype == torch.float32 else 5e-2)


def test_dropout_trains(seed: int) -> None:
    text = load(Path(torch.__file__), SIZE.context)
    settings = Settings(SIZE, 12, 0.2, torch.device("cpu"), torch.float32, seed)
    lane = make_lane("bolide", settings, len(text.alphabet))
    list(train([lane], text, settings))
    assert lane.losses[-1] < lane.losses[0]


def test_the_command_writes_a_self_contained_report(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    arguments = ["demo", "--size", "tiny", "--steps", "3", "--layers", "1", "--text", torch.__file__]
    result = CliRunner().invoke(main, [*arguments, "--report", str(report)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "eager" in result.output and "bolide" in result.output and str(report) in result.output.replace("\n", "")
    page = report.read_text()
    for part in ("speed-up", "<svg", "Graph: forward", "Graph: backward", "native_layer_norm", "define ", "Segments"):
        assert part in page, part
    assert not re.search(r"<(script|link|img|iframe)\b|@import", page), "the page needs something outside it"


def test_text_of_a_folder_leaves_out_what_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc" * 100)
    (tmp_path / "b.bin").write_bytes(b"\x00\x01" * 100)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "c.txt").write_text("xyz" * 100)
    text = load(tmp_path, 16)
    assert set(text.alphabet) == set("abc\ufffd") and len(text.tokens) == 300
    tokens, targets = text.batch(4, 16, torch.Generator().manual_seed(0))
    assert tokens.shape == targets.shape == (4, 16)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_ticks_cover_the_range() -> None:
    for low, high in ((0.0, 1.0), (3.1, 5.49), (-2e-7, 4e-7), (1.0, 200.0)):
        found = ticks(low, high)
        assert found[0] <= low + 1e-12 and found[-1] >= high - 1e-12 and 2 <= len(found) <= 8


def test_a_chart_of_one_value_and_of_infinite_values() -> None:
    assert "polyline" in line_chart([Curve("one", [1.0])], "y")
    assert line_chart([Curve("none", [float("nan")])], "y") == ""
