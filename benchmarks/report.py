"""Results as Markdown."""

from __future__ import annotations

import math
import statistics
import textwrap
from pathlib import Path
from typing import Any

Row = dict[str, Any]
BY_HAND = Path(__file__).with_name("by_hand.md")  # what commands of their own print


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table whose first column is text and whose others are numbers."""
    align = ["---"] + ["---:"] * (len(header) - 1)
    return ["| " + " | ".join(r) + " |" for r in [header, align, *rows]] + [""]


def item(text: str) -> list[str]:
    """The lines, of less than 120 characters, of an item of a list."""
    return textwrap.wrap(f"- {text}", 119, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def title(spec: dict[str, Any]) -> str:
    dtype = "" if spec["dtype"] == "float32" else f", {spec['dtype']}"
    return f"{spec['model']} {spec['mode']}{dtype} ({spec['scale']})"


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, without an exponent."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def ratio(result: Row, over: str, name: str = "bolide") -> float | None:
    """How many times faster `name` is than `over`: the median over the rounds of the ratio within a round."""
    rounds = result.get("rounds_ms", {})
    if not rounds.get(over) or not rounds.get(name):
        return None
    return statistics.median(a / b for a, b in zip(rounds[over], rounds[name], strict=True))


def geometric_mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.exp(statistics.fmean(map(math.log, known))) if known else None


def steady(rows: list[Row]) -> list[str]:
    lines, over_eager, over_torch, problems = [], [], [], []
    for row in rows:
        result, name = row["result"], title(row["spec"])
        if "error" in result:
            problems.append(f"- {name}: {result['error']}")
            continue
        ms, worst = result["ms"], result["difference"].get("bolide")
        over_eager.append(ratio(result, "eager"))
        over_torch.append(ratio(result, "torch"))
        errors = ["–" if e is None else f"{e:.1e}" for e in (worst, result["rounding"].get("eager"))]
        times = [number(ms.get(c)) for c in ("eager", "torch", "bolide")]
        lines.append([name, *times, number(over_eager[-1]), number(over_torch[-1]), *errors])
        problems += [f"- {name}: {c}: {why}" for c, why in result["failed"].items()]
        problems += [f"- {name}: warned: {why}" for why in result["notes"]]
    means = [number(geometric_mean(values)) for values in (over_eager, over_torch)]
    mean = ["**geometric mean**", "", "", "", *means, "", ""]
    header = ["model", "eager ms", "torch.compile ms", "bolide ms", "× eager", "× torch.compile"]
    header += ["difference", "eager's error"]
    text = [
        "## Steady state",
        "",
        "Time of one step: a call under `no_grad` (inference) or forward and backward (train; without the optimizer).",
        "They run in turn in one process, each round in another order. Times are medians; × is the median over the",
        "rounds of the ratio within a round: above 1 bolide is faster. The difference is bolide's from eager (results,",
        "gradients and buffers), relative to the largest magnitude of each tensor; checked before timing. Eager's",
        "error is its own difference from the same computation in float64 (float32 for bfloat16).",
        "",
    ]
    return text + table(header, [*lines, mean]) + notes(problems)


def notes(problems: list[str]) -> list[str]:
    return ["What failed or was not compiled:", "", *problems, ""] if problems else []


def first(rows: list[Row]) -> list[str]:
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(title(row["spec"]), {})[row["spec"]["compiler"]] = row["result"]
    lines, problems = [], []
    for name, by in found.items():
        problems += [f"- {name}: {c}: {r['error']}" for c, r in by.items() if "error" in r]
        problems += [f"- {name}: {c}: warned: {why}" for c, r in by.items() for why in r.get("notes", [])]
        cells = [name]
        for part in ("compile", "total"):
            torch_s, bolide_s = (by.get(c, {}).get(part) for c in ("torch", "bolide"))
            share = torch_s / bolide_s if torch_s and bolide_s else None
            cells += [number(torch_s), number(bolide_s), number(share)]
        lines.append(cells)
    header = ["model", "torch.compile s", "bolide s", "×", "with imports: torch.compile s", "bolide s", "×"]
    text = [
        "## First call",
        "",
        "Seconds that compiling adds to the first step of a fresh process with empty caches. The first three columns",
        "leave out what a process pays once (they are taken after a trivial function was compiled), the last three",
        "include it.",
        "",
    ]
    return text + table(header, lines) + notes(problems)


def capture(rows: list[Row]) -> list[str]:
    lines, problems = [], []
    for row in rows:
        name, result = title(row["spec"]), row["result"]
        if "error" in result:
            problems.append(f"- {name}: {result['error']}")
            continue
        cells = [name]
        for which in ("first", "again"):
            torch_s, bolide_s = (result[which].get(compiler) for compiler in ("torch", "bolide"))
            cells += [number(torch_s), number(bolide_s), number(torch_s / bolide_s if torch_s and bolide_s else None)]
        lines.append([*cells, *(str(result["breaks"].get(compiler, "–")) for compiler in ("torch", "bolide"))])
    text = [
        "## Capture",
        "",
        'Processor seconds that capture alone adds to a first call (`backend="eager"`: no code is generated), in turn',
        "in one process, after a trivial function was compiled: the process's first capture of the model, and the",
        "median of later ones, each after a reset. *Breaks*: how often a capture was broken off.",
        "",
    ]
    header = ["model", "first: TorchDynamo s", "bolide s", "×", "again: TorchDynamo s", "bolide s", "×"]
    header += ["breaks: TorchDynamo", "bolide"]
    return text + table(header, lines) + notes(problems)


def peaks(rows: list[Row]) -> dict[tuple[str, str], dict[str, Row]]:
    """By model and scale, then by compiler, the medians over the processes of ``step`` and ``left`` in MiB."""
    found: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = {}
    for row in rows:
        if row["measurement"] == "memory" and "step" in row["result"] and row["spec"]["dtype"] == "float32":
            by = found.setdefault((row["spec"]["model"], row["spec"]["scale"]), {})
            for part in ("step", "left"):
                values = by.setdefault(row["spec"]["compiler"], {}).setdefault(part, [])
                values.append(row["result"][part] / 2**20)
    return {
        model: {c: {part: statistics.median(values) for part, values in parts.items()} for c, parts in by.items()}
        for model, by in found.items()
    }


def memory(rows: list[Row]) -> list[str]:
    problems = [
        f"- {title(row['spec'])}: {row['spec']['compiler']}: {row['result']['error']}"
        for row in rows
        if "error" in row["result"]
    ]
    lines = []
    for (name, scale), by in peaks(rows).items():
        step, left = ({c: parts[part] for c, parts in by.items()} for part in ("step", "left"))
        share = step["bolide"] / step["eager"] if "eager" in step and "bolide" in step else None
        cells = [f"{name} train ({scale})", *(number(step.get(c)) for c in ("eager", "torch", "bolide")), number(share)]
        lines.append([*cells, number(left.get("torch")), number(left.get("bolide"))])
    header = [
        "model",
        "eager MiB",
        "torch.compile MiB",
        "bolide MiB",
        "of eager's",
        "left: torch.compile",
        "left: bolide",
    ]
    text = [
        "## Peak memory in training",
        "",
        "The peak of the resident set during a warm step above what was resident before it: activations, gradients and",
        "scratch of every library (the kernel's high-water mark, with malloc set to return freed tensors at once);",
        "medians over three processes, which differ by about 2 %.",
        "*Left* is what compiling left resident for good: the compiler's own code and data, and pools.",
        "",
    ]
    return text + table(header, lines) + notes(problems)


def kernels(rows: list[Row]) -> list[str]:
    lines, problems = [], []
    for row in rows:
        result, name = row["result"], title(row["spec"])
        if "error" in result:
            problems.append(f"- {name}: {result['error']}")
        else:
            lines.append([name, *(str(result[k]) for k in ("operations", "launches", "kernels", "calls"))])
    text = [
        "## Kernels",
        "",
        "What one step runs: ATen operations become launches of generated kernels and library calls.",
    ]
    header = ["model", "operations", "launches", "different kernels", "library calls"]
    return [*text, "", *table(header, lines), *notes(problems)]


def overhead(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    seconds = []
    for row in rows:
        result, measurement = row["result"], row["measurement"]
        if "error" in result:
            lines.append(f"- {measurement}: {result['error']}")
        elif measurement == "tiny":
            shown = ", ".join(f"{c} {number(us)}" for c, us in result["us"].items())
            lines.append(f"- A call of `compile(lambda x: x + 1)` on 16 elements, µs: {shown}.")
        elif measurement == "modules":
            loaded = ", ".join(result["loaded"]) or "none"
            lines.append(
                "- Loaded of `torch._dynamo` and `torch._inductor` after bolide compiled and trained an MLP "
                f"with an empty PATH: {loaded}."
            )
            lines += [f"  - warned: {why}" for why in result["notes"]]
        elif measurement == "fusion":
            counts = [f"{name} {got} ({fewest})" for name, (got, fewest) in result["kernels"].items()]
            lines += item(f"Kernels, and the fewest possible in brackets: {', '.join(counts)}.")
        else:
            seconds.append(result["seconds"])
    if seconds:
        lines.append(f"- `import bolide` after `import torch`: {statistics.median(seconds):.3f} s.")
    return ["## Overhead", "", *lines, ""]


def summary(rows: dict[str, Row]) -> list[str]:
    """One row for each float32 model: what the other sections say in full."""
    models = {(r["spec"]["model"], r["spec"]["scale"]): None for r in rows.values() if r["measurement"] in TIMED}
    measured = peaks(list(rows.values()))

    def result(measurement: str, model: tuple[str, str], mode: str, compiler: str = "") -> Row:
        name, scale = model
        return rows.get(f"{measurement}/{name}/{scale}/{mode}/float32/{compiler}/", {}).get("result", {})

    def speed(model: tuple[str, str], mode: str) -> list[str]:
        found = result("steady", model, mode)
        return [number(ratio(found, "eager")), number(ratio(found, "torch"))]

    def start(model: tuple[str, str], mode: str) -> str:
        seconds = (result("first", model, mode, c).get("compile") for c in ("bolide", "torch"))
        return " / ".join(map(number, seconds))

    def peak(model: tuple[str, str]) -> str:
        eager, fast = (measured.get(model, {}).get(c, {}).get("step") for c in ("eager", "bolide"))
        return number(fast / eager) if fast and eager else "–"

    header = ["model", "inference: × eager", "× torch.compile", "train: × eager", "× torch.compile"]
    header += ["compile: inference", "train", "peak"]
    lines = []
    for model in models:
        speeds = [*speed(model, "inference"), *speed(model, "train")]
        starts = [start(model, mode) for mode in ("inference", "train")]
        lines.append([f"{model[0]} ({model[1]})", *speeds, *starts, peak(model)])
    told = "*Compile*: seconds, bolide / torch.compile; *peak*: of memory in training, over eager's."
    return ["## Summary (float32)", "", told, "", *table(header, lines)]


TIMED = ("steady", "first", "memory")
SECTIONS = (
    (("steady",), steady),
    (("first",), first),
    (("capture",), capture),
    (("memory",), memory),
    (("kernels",), kernels),
    (("tiny", "imports", "modules", "fusion"), overhead),
)


def provenance(data: dict[str, Any]) -> list[str]:
    """Which runs the rows come from, and on what hosts."""
    lines = []
    for i, run in enumerate(data["runs"]):
        loads = [row["load"] for row in data["rows"].values() if row["run"] == i]
        if loads:
            where = f"{run['cpu']} ({run['isa']}), {run['threads']} threads, {run['system']}, Python {run['python']}"
            lines += item(
                f"`{run['command']}` on {run['date']} at commit {run['commit']}: {len(loads)} measurements; "
                f"{where}, torch {run['torch']}; load average {min(loads):.1f} to {max(loads):.1f}."
            )
    return ["# Results", "", "Made by:", "", *lines, ""]


def render(data: dict[str, Any]) -> str:
    """The Markdown page of a results file."""
    lines = provenance(data) + summary(data["rows"])
    for measurements, section in SECTIONS:
        rows = [row for row in data["rows"].values() if row["measurement"] in measurements]
        if rows:
            lines += section(rows)
    return "\n".join(lines) + "\n" + BY_HAND.read_text()
