"""The demo's result as one picture: acknowledged changes over time, the kill, the time to restore,
the bytes on storage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewrite_cli.console.output import duration, size
from storage_backends.extras import needs

if TYPE_CHECKING:
    from examples.demo.embedded import Report

INK, QUIET, PAPER = "#1f2933", "#7b8794", "#ffffff"
PRODUCERS = ("#1f6f8b", "#99c9d9")
KILL, RESTORE, GOOD = "#d1495b", "#edae49", "#3a7d44"
PARTS = {"log": "#1f6f8b", "archives": "#66a182", "snapshots": "#edae49"}


def draw(report: Report, path: Path) -> None:
    """Write a PNG. Raises `MissingExtra` if a library is not installed."""
    with needs("demo"):
        import matplotlib as mpl

        mpl.use("agg")
        import matplotlib.pyplot as plt

    style: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.color": INK,
        "axes.edgecolor": QUIET,
        "axes.labelcolor": QUIET,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.facecolor": PAPER,
    }
    with plt.rc_context(style):
        figure = plt.figure(figsize=(12, 7.2), dpi=140)
        grid = figure.add_gridspec(
            2,
            2,
            height_ratios=(1.75, 1),
            width_ratios=(1.25, 1),
            hspace=0.42,
            wspace=0.42,
            left=0.075,
            right=0.965,
            top=0.84,
            bottom=0.09,
        )
        _headline(figure, report)
        _timeline(figure.add_subplot(grid[0, :]), report)
        _storage(figure.add_subplot(grid[1, 0]), report)
        _opening(figure.add_subplot(grid[1, 1]), report)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        plt.close(figure)


def _headline(figure: Any, report: Report) -> None:
    kills = "one kill -9" if len(report.kills) == 1 else f"{len(report.kills)} times kill -9"
    figure.text(
        0.035,
        0.945,
        f"{report.flights:,} flights, {kills}, ",
        fontsize=19,
        fontweight="bold",
        va="center",
    )
    figure.canvas.draw()
    end = figure.texts[-1].get_window_extent().x1 / figure.bbox.width
    figure.text(
        end,
        0.945,
        f"{report.lost:,} lost",
        fontsize=19,
        fontweight="bold",
        va="center",
        color=KILL if report.lost else GOOD,
    )
    rate = (
        f"{report.records_per_second:,.0f} changes and {report.commits_per_second:,.0f} commits "
        "a second, each on disk before it is acknowledged"
    )
    figure.text(
        0.035,
        0.9,
        f"{report.what} · two producers · {rate}",
        fontsize=10.5,
        color=QUIET,
        va="center",
    )


def _timeline(axes: Any, report: Report) -> None:
    began = next((time for time, counts in report.timeline.samples if sum(counts)), 0.0)
    times = [time - began for time, _ in report.timeline.samples]
    layers = [
        [counts[producer] for _, counts in report.timeline.samples]
        for producer in range(len(PRODUCERS))
    ]
    top = max((sum(counts) for _, counts in report.timeline.samples), default=1)
    axes.stackplot(
        times,
        *layers,
        colors=PRODUCERS,
        labels=("producer 1", "producer 2"),
        linewidth=0,
        alpha=0.92,
    )
    width = _spans(axes, report, times, began)
    _phases(axes, report, began, width, top)
    axes.set_ylim(0, top * 1.12)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f} k")
    axes.set_xlabel("seconds")
    axes.set_title("Acknowledged changes", loc="left", fontsize=11.5, fontweight="bold", color=INK)
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 0.985),
        frameon=False,
        fontsize=9,
        ncols=3,
        columnspacing=1.6,
        handlelength=1.4,
    )
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)


def _spans(axes: Any, report: Report, times: list[float], began: float) -> float:
    """The kills, and the opens that followed. Returns the width of the picture in seconds."""
    kills = iter(report.kills)
    spans = [(after, start - began, end - began) for after, start, end in report.timeline.spans]
    width = max([times[-1] if times else 0, *(end for _, _, end in spans)])
    for label, (after, start, end) in zip(
        ["opening the log", *[""] * len(spans)], spans, strict=False
    ):
        killed = next(kills, None) if after == "kill -9" else None
        axes.axvspan(
            start, end, color=RESTORE, alpha=0.55, linewidth=0, zorder=3, label=label or None
        )
        if killed is not None:
            axes.axvline(start, color=KILL, linewidth=1.6, zorder=4)
            axes.plot(
                [start],
                [killed],
                marker="X",
                markersize=11,
                color=KILL,
                markeredgecolor="white",
                zorder=5,
            )
            text = (
                f"kill -9 at {killed:,} acknowledged\nopened again in {duration(end - start)}, "
                f"{_lost(report, after)}"
            )
            axes.annotate(
                text,
                (start, killed),
                xytext=(-12, 14) if start > 0.3 * width else (12, 14),
                textcoords="offset points",
                ha="right" if start > 0.3 * width else "left",
                va="bottom",
                fontsize=10,
                color=KILL,
                fontweight="bold",
                bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 2},
                zorder=6,
                linespacing=1.4,
            )
    return width


def _phases(axes: Any, report: Report, began: float, width: float, top: float) -> None:
    for name, start, end in report.timeline.phases:
        axes.axvspan(
            start - began,
            end - began,
            ymax=0.12,
            color=PARTS["archives" if name == "archive" else "snapshots"],
            alpha=0.8,
            linewidth=0,
            zorder=3,
        )
        if end - start > 0.03 * width:
            axes.text(
                (start + end) / 2 - began,
                top * 0.067,
                name,
                ha="center",
                va="center",
                fontsize=9,
                color=INK,
                zorder=4,
            )


def _lost(report: Report, after: str) -> str:
    return f"{sum(look.comparison.lost for look in report.looks if look.after == after):,} lost"


def _storage(axes: Any, report: Report) -> None:
    moments = list(reversed(report.storage))
    for row, moment in enumerate(moments):
        left = 0
        for part, color in PARTS.items():
            width = getattr(moment, part)
            axes.barh(
                row, width, left=left, color=color, height=0.58, label=part if row == 0 else None
            )
            left += width
        ratio = f"  {size(moment.total)}" + (
            f"  ÷ {report.storage[0].total / moment.total:,.0f}"
            if moment.total and report.storage[0].total > 1.05 * moment.total
            else ""
        )
        axes.text(moment.total, row, ratio, va="center", fontsize=9.5, fontweight="bold")
    axes.set_yticks(range(len(moments)), [moment.moment for moment in moments], color=INK)
    axes.set_xlim(0, max(moment.total for moment in moments) * 1.3 if moments else 1)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title("Bytes on storage", loc="left", fontsize=11.5, fontweight="bold")
    axes.legend(
        loc="upper left",
        frameon=False,
        fontsize=9,
        ncols=3,
        bbox_to_anchor=(-0.02, 0.02),
        columnspacing=1.4,
        handlelength=1.2,
    )


def _opening(axes: Any, report: Report) -> None:
    looks = list(reversed(report.looks))
    most = max((look.seconds for look in looks), default=1)
    for row, look in enumerate(looks):
        axes.barh(row, look.seconds, color=RESTORE, height=0.58)
        axes.text(
            look.seconds + most * 0.02,
            row,
            f"{duration(look.seconds)}   {look.comparison.entries:,} entries",
            va="center",
            fontsize=9.5,
        )
    axes.set_yticks(range(len(looks)), [f"after {look.after}" for look in looks], color=INK)
    axes.set_xlim(0, most * 1.75)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title("Time to open and restore", loc="left", fontsize=11.5, fontweight="bold")
