"""Draw a benchmark's results: ``python -m benchmarks.plot runs/bench/cpu.json``

Writes ``<name>_speedup.png`` and ``<name>_step.png`` beside the JSON.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from specgrad_fl import plots

from benchmarks.contenders import LOOPS, OURS, STACKED
from benchmarks.report import load_results
from benchmarks.run import OUTPUT
from benchmarks.targets import call_times, speed_up
from benchmarks.workloads import WORKLOADS

# from the palette of Okabe and Ito, which colour-blind people can tell apart
SERIES = (
    ("fft vs torch.fft, layer by layer", "fft", LOOPS["fft"], "#0072B2"),
    ("fft vs torch.fft, stacked", "fft", (STACKED,), "#56B4E9"),
    ("lap vs avg_pool1d", "lap", LOOPS["lap"], "#E69F00"),
    ("gaussian vs conv1d", "gaussian", LOOPS["gaussian"], "#009E73"),
)
OUR_COLOUR, RIVAL_COLOUR = "#0072B2", "#D55E00"
DPI = 110


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _provenance(results: dict[str, Any]) -> str:
    machine = results["machine"]
    return f"{machine['cpu']}, {machine['instruction_set']}, torch {results['versions']['torch']}"


def _speed_up_panel(axes: Axes, rows: Sequence[dict[str, Any]], threads: int) -> None:
    times = call_times(rows)
    lists = [name for name in WORKLOADS if any(key[0] == name for key in times)]
    width = 0.8 / len(SERIES)
    slowest = 1.0
    for series, (label, method, rivals, colour) in enumerate(SERIES):
        places, ratios = [], []
        for place, name in enumerate(lists):
            ratio = speed_up(times.get((name, method, threads), {}), rivals)
            if ratio is not None:
                places.append(place + (series - (len(SERIES) - 1) / 2) * width)
                ratios.append(ratio)
        slowest = min([slowest, *ratios])
        bars = axes.bar(places, ratios, 0.92 * width, color=colour, label=label)
        axes.bar_label(bars, [f"{ratio:.0f}" for ratio in ratios], fontsize=7, padding=1)
    axes.set_yscale("log")
    axes.set_ylim(bottom=slowest if slowest == 1 else 0.7 * slowest, top=axes.get_ylim()[1] * 1.6)
    axes.axhline(1, color="#555555", linewidth=0.8)
    axes.yaxis.set_major_formatter("{x:g}x")
    titles = [textwrap.fill(WORKLOADS[name].title, 13) for name in lists]
    axes.set_xticks(range(len(lists)), titles, fontsize=9)
    axes.set_ylabel("specgrad is faster by")
    axes.set_title(_threads(threads), loc="left", fontsize=10)
    axes.grid(axis="y", linewidth=0.4, color="#cccccc")
    axes.set_axisbelow(True)


def speed_up_figure(results: dict[str, Any]) -> Figure:
    """Bars per list and method, one panel for each number of threads."""
    rows = results["rows"]
    counts = sorted({row["threads"] for row in rows if row["kind"] == "time"})
    if not counts:
        raise ValueError("the results hold no times; run the benchmark without --only first")
    figure = Figure(figsize=(9.5, 0.9 + 2.9 * len(counts)), layout="constrained")
    panels = figure.subplots(len(counts), 1, squeeze=False)[:, 0]
    for axes, threads in zip(panels, counts, strict=True):
        _speed_up_panel(axes, rows, threads)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    title = "Speed-up of one call over the PyTorch code that it replaces"
    figure.suptitle(f"{title}\n{_provenance(results)}", fontsize=10)
    return figure


def step_figure(results: dict[str, Any]) -> Figure:
    """Share of a training step that each filter takes."""
    rows = [row for row in results["rows"] if row["kind"] == "step"]
    if not rows:
        raise ValueError("the results hold no training steps; run the benchmark without --only")
    rows = sorted(rows, key=lambda row: (row["threads"], row["share"]), reverse=True)
    figure = Figure(figsize=(8, 0.34 * len(rows) + 1.3), layout="constrained")
    axes = figure.subplots()
    labels = [
        f"{row['method']}, {'specgrad' if row['contender'] == OURS else 'torch.fft loop'}, "
        f"{_threads(row['threads'])}"
        for row in rows
    ]
    colours = [OUR_COLOUR if row["contender"] == OURS else RIVAL_COLOUR for row in rows]
    shares = [100 * row["share"] for row in rows]
    bars = axes.barh(labels, shares, color=colours, height=0.7)
    axes.bar_label(bars, [f"{share:.2g} %" for share in shares], fontsize=8, padding=3)
    axes.set_xscale("log")
    axes.set_xlim(left=min(0.01, *shares) * 0.9, right=max(shares) * 2)
    axes.xaxis.set_major_formatter("{x:g} %")
    axes.set_title("Cost of the filter in a training step", fontsize=11)
    axes.set_xlabel("share of a ResNet-20 training step, batch 50, spent in the filter")
    axes.grid(axis="x", linewidth=0.4, color="#cccccc")
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", labelsize=8)
    figure.supxlabel(_provenance(results), fontsize=7, color="#555555")
    return figure


def draw(path: Path) -> list[Path]:
    """Both pictures of one results file; a part that was not measured is left out."""
    results = load_results(path)
    kinds = {row["kind"] for row in results["rows"]}
    figures = (("time", "speedup", speed_up_figure), ("step", "step", step_figure))
    written = []
    for kind, suffix, make in figures:
        if kind in kinds:
            written.append(path.with_name(f"{path.stem}_{suffix}.png"))
            plots.save(make(results), written[-1], DPI)
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 for a file that cannot be drawn."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plot", description="Draw the results of benchmarks.run."
    )
    parser.add_argument("results", type=Path, nargs="?", default=OUTPUT, help=f"default: {OUTPUT}")
    options = parser.parse_args(arguments)
    try:
        written = draw(options.results)
    except ValueError as error:
        parser.error(str(error))
    if not written:
        parser.error(f"{options.results} holds neither times nor training steps")
    print("written:", ", ".join(map(str, written)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
