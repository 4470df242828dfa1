"""The command `bolide demo`."""

from __future__ import annotations

import warnings
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bolide.debug.explain import Collector
from bolide.debug.report import Curve, Report, write_report
from bolide.demo.model import SIZES
from bolide.demo.options import DTYPES, Problem, checked_device, checked_report, checked_size
from bolide.demo.text import Text, TextError, load
from bolide.demo.train import Lane, Settings, largest_difference, make_lane, measure_peaks, one_pass, train
from bolide.support.errors import BolideWarning


@click.command()
@click.option("--size", "preset", type=click.Choice(list(SIZES)), default="small", show_default=True)
@click.option("--layers", type=int, help="Replaces the preset's; so do the next four.")
@click.option("--width", type=int)
@click.option("--heads", type=int)
@click.option("--context", type=int, help="Characters the model sees.")
@click.option("--batch", type=int)
@click.option("--steps", type=int, default=200, show_default=True)
@click.option("--dropout", type=float, default=0.0, show_default=True)
@click.option(
    "--text", "path", type=click.Path(path_type=Path), help="A text file or folder; default: Python's sources."
)
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--with-torch-compile", is_flag=True, help="Also train with torch.compile.")
@click.option("--report", type=click.Path(path_type=Path), default=Path("bolide-report.html"), show_default=True)
def demo(
    preset: str,
    layers: int | None,
    width: int | None,
    heads: int | None,
    context: int | None,
    batch: int | None,
    steps: int,
    dropout: float,
    path: Path | None,
    device: str,
    dtype: str,
    seed: int,
    with_torch_compile: bool,
    report: Path,
) -> None:
    """Train a small GPT on real text, eager and compiled side by side, and write an HTML report."""
    size = checked_size(SIZES[preset], layers, width, heads, context, batch)
    if steps < 1:
        raise Problem(f"--steps is {steps}. It must be at least 1")
    if not 0.0 <= dropout < 1.0:
        raise Problem(f"--dropout is {dropout}. It must be at least 0 and below 1")
    settings = Settings(size, steps, dropout, checked_device(device), DTYPES[dtype], seed)
    checked_report(report)
    try:
        text = load(path, size.context)
    except TextError as error:
        raise Problem(str(error)) from None

    console = Console()
    names = ["eager", "bolide", *(["torch.compile"] if with_torch_compile else [])]
    lanes = [make_lane(name, settings, len(text.alphabet)) for name in names]
    console.print(headline(lanes[0], text, settings))
    collector = Collector("CharGPT")
    with warnings.catch_warnings(record=True) as caught, collector.listening():
        warnings.simplefilter("always", BolideWarning)
        run(lanes, text, settings, console)
        measure_peaks(lanes, text, settings)
        collector.time_steps(lambda: one_pass(lanes[1], text))
    for warning in caught:
        if issubclass(warning.category, BolideWarning):
            console.print(f"[yellow]warning:[/] {warning.message}")
    console.print(results(lanes))
    write_report(make_report(lanes, text, settings, collector), report)
    console.print(f"report: {report}")


def headline(lane: Lane, text: Text, settings: Settings) -> str:
    """What is about to be trained, on what."""
    size = settings.size
    parameters = sum(p.numel() for p in lane.model.parameters())
    return (
        f"A character-level GPT of {size.layers} layers, width {size.width}, "
        f"{parameters / 1e6:.2f} million parameters, "
        f"on {len(text.tokens) / 1e6:.2f} million characters of {text.source}.\n"
        f"{settings.steps} steps of {size.batch} × {size.context} characters, {str(settings.dtype).split('.')[-1]}, "
        f"{settings.device}, {torch.get_num_threads()} threads, seed {settings.seed}."
    )


def run(lanes: list[Lane], text: Text, settings: Settings, console: Console) -> None:
    """The training, with one progress bar for each lane."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:>13}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks = {lane.name: progress.add_task(lane.name, total=settings.steps, state="") for lane in lanes}
        for _, lane in train(lanes, text, settings):
            if len(lane.seconds) == 1:
                state = f"first call {lane.first_call:.2f} s"
            else:
                state = f"loss {lane.losses[-1]:.3f}, {lane.step_ms:.1f} ms a step"
            progress.update(tasks[lane.name], advance=1, state=state)


def figures(lanes: list[Lane]) -> list[tuple[str, ...]]:
    """The result table's rows, one for each lane; the columns are those of HEADER."""
    eager = lanes[0]
    return [
        (
            lane.name,
            f"{lane.first_call:.2f} s",
            f"{lane.step_ms:.1f} ms",
            f"{eager.step_ms / lane.step_ms:.2f}×",
            "–" if lane.peak is None else f"{lane.peak / 2**20:.1f} MiB",
            f"{lane.losses[-1]:.4f}",
            "" if lane is eager else f"{largest_difference(lane, eager):.1e}",
        )
        for lane in lanes
    ]


HEADER = ("", "first call", "per step", "speed-up", "peak memory", "last loss", "largest loss difference")


def results(lanes: list[Lane]) -> Table:
    table = Table()
    for i, name in enumerate(HEADER):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in figures(lanes):
        table.add_row(*row)
    return table


def make_report(lanes: list[Lane], text: Text, settings: Settings, collector: Collector) -> Report:
    return Report(
        title="bolide demo",
        summary=headline(lanes[0], text, settings),
        header=HEADER,
        rows=figures(lanes),
        losses=[Curve(lane.name, lane.losses) for lane in lanes],
        step_ms=[Curve(lane.name, [s * 1e3 for s in lane.seconds[1:]], first=2) for lane in lanes],
        explanation=collector.explanation(),
    )
