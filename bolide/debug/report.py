"""The HTML report: one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import torch
from markupsafe import Markup

from bolide.debug.explain import CompiledInfo, Explanation, total_by_stage
from bolide.debug.info import info
from bolide.debug.plots import Curve, line_chart
from bolide.inductor.runtime.cuda.driver_api import memory_bandwidth

__all__ = ["Curve", "Report", "render_report", "report_of", "write_report"]


@dataclass(frozen=True, slots=True)
class Report:
    """What a report shows: a result table, loss and step-time curves, and what was compiled."""

    title: str
    summary: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    losses: Sequence[Curve]
    step_ms: Sequence[Curve]
    explanation: Explanation


def report_of(explanation: Explanation) -> Report:
    """A report of nothing but an explanation."""
    e = explanation
    summary = f"{e.captures} segments, {len(e.breaks)} breaks, {len(e.recompiles)} recompilations, {e.seconds:.2f} s"
    return Report(f"bolide: {e.function}", summary, (), (), (), (), e)


def render_report(report: Report) -> str:
    """The page as text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bolide.debug"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["steps"] = steps
    environment.filters["size"] = size
    return environment.get_template("report.html.j2").render(
        report=report,
        explanation=report.explanation,
        stages=total_by_stage(report.explanation.stages),
        loss_chart=Markup(line_chart(report.losses, "loss in nats")),
        time_chart=Markup(line_chart(report.step_ms, "ms", from_zero=True, clip=True)),
        info=info(),
    )


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel or library call in a graph's table, as text; `share` is its part of the longest time in percent."""

    name: str
    does: str
    times: int
    read: str
    written: str
    time: str
    rate: str
    share: str
    kernel: bool


def steps(graph: CompiledInfo) -> list[Step]:
    """The rows of a graph's table, the slowest first."""
    times = [k.microseconds for k in graph.kernels] + [e.microseconds for e in graph.externs]
    longest = max((t for t in times if t is not None), default=0.0) or 1.0
    rows: list[tuple[float, Step]] = []
    for k in graph.kernels:
        time = k.microseconds
        moved = None if k.bytes_read is None or k.bytes_written is None else k.bytes_read + k.bytes_written
        speed = None if not time or moved is None else moved * k.launches / time * 1e6
        rate = "" if speed is None else f"{speed / 1e9:.1f}"
        most = bandwidth_of(torch.device(k.device))
        rate += f" ({100 * speed / most:.0f} %)" if speed is not None and most else ""
        share = f"{100 * (time or 0.0) / longest:.1f}"
        origins = ", ".join(k.origins)
        cells = (size(k.bytes_read), size(k.bytes_written), duration(time), rate, share)
        rows.append((time or 0.0, Step(k.name, origins, k.launches, *cells, kernel=True)))
    for e in graph.externs:
        share = f"{100 * (e.microseconds or 0.0) / longest:.1f}"
        time_text = duration(e.microseconds)
        rows.append((e.microseconds or 0.0, Step(e.operation, "library", e.calls, "", "", time_text, "", share, False)))
    return [step for _, step in sorted(rows, key=lambda row: -row[0])]


def bandwidth_of(device: torch.device) -> float | None:
    """Bytes that a device's memory moves in a second at most, where it tells."""
    return memory_bandwidth(device.index or 0) if device.type == "cuda" else None


def size(count: int | None) -> str:
    return "" if count is None else f"{count / 1024:.1f} KiB" if count < 2**20 else f"{count / 2**20:.2f} MiB"


def duration(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds:.1f}"


def write_report(report: Report, path: Path) -> None:
    """Writes the page; raises OSError where the path cannot be written."""
    path.write_text(render_report(report), encoding="utf-8")
