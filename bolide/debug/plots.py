"""Line charts as SVG text whose colours are CSS variables, so that they follow the page's theme."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 34


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: a value for each step, counted from `first`."""

    name: str
    values: Sequence[float]
    first: int = 1


def ticks(low: float, high: float) -> list[float]:
    """Round numbers that cover [low, high] in about five intervals of 1, 2 or 5 times a power of ten."""
    span = high - low or abs(low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(m * power for m in (1, 2, 5, 10) if m * power * 5 >= span * 0.999)
    first = math.floor(low / step)
    last = max(math.ceil(high / step), first + 1)
    return [i * step for i in range(first, last + 1)]


def upper_limit(curves: Sequence[Curve]) -> float:
    """The largest value to show: outliers far above what is usual are cut off."""
    medians = [statistics.median(c.values) for c in curves]
    return min(max(max(c.values) for c in curves), 3.0 * max(medians))


def label(value: float) -> str:
    return f"{value:.6g}"


def line_chart(curves: Sequence[Curve], y_title: str, *, from_zero: bool = False, clip: bool = False) -> str:
    """The chart. Lines are drawn in order, the first one broad, so that lines that coincide can all be seen."""
    finite = [c for c in curves if c.values and all(map(math.isfinite, c.values))]
    if not finite:
        return ""
    low = 0.0 if from_zero else min(min(c.values) for c in finite)
    high = upper_limit(finite) if clip else max(max(c.values) for c in finite)
    y_ticks = ticks(low, high)
    bottom, top = y_ticks[0], y_ticks[-1]
    steps = max(c.first - 1 + len(c.values) for c in finite)
    x_ticks = [t for t in ticks(1, steps) if 1 <= t <= steps and t == int(t)]

    def x(step: float) -> float:
        return LEFT + (step - 1) / max(steps - 1, 1) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (min(value, top) - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{y_title} by step">']
    for t in y_ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(t) + 4:.1f}" text-anchor="end">{label(t)}</text>')
    for t in x_ticks:
        parts.append(f'<text x="{x(t):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{label(t)}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 3}" text-anchor="middle">step</text>')
    for i, curve in enumerate(finite):
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in enumerate(curve.values, curve.first))
        parts.append(f'<polyline class="curve c{i}" points="{points}"><title>{curve.name}</title></polyline>')
    parts.append("</svg>")
    return "".join(parts)
