"""The HTML report: one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from bolide.debug.explain import Explanation, total_by_stage
from bolide.debug.info import info
from bolide.debug.plots import Curve, line_chart

__all__ = ["Curve", "Report", "render_report", "write_report"]


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


def render_report(report: Report) -> str:
    """The page as text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bolide.debug"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        explanation=report.explanation,
        stages=total_by_stage(report.explanation.stages),
        loss_chart=Markup(line_chart(report.losses, "loss in nats")),
        time_chart=Markup(line_chart(report.step_ms, "ms", from_zero=True, clip=True)),
        info=info(),
    )


def write_report(report: Report, path: Path) -> None:
    """Writes the page; raises OSError where the path cannot be written."""
    path.write_text(render_report(report), encoding="utf-8")
