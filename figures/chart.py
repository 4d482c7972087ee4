"""A chart as data, and how it is drawn: groups of bars, or lines over numbers, in panels that share an axis of values.

A figure is a table with a chart: the PDF shows the chart, CSV and Markdown have the numbers. Colours are those of
Okabe and Ito, which readers of any colour vision tell apart; SoD² is always the dark one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#d55e00", "#cc79a7", "#b8b000", "#999999")
SUBJECT_COLOUR = "#1b2a49"
MARKERS = "osD^vPX"
TEXT, TITLE = 7.0, 8.0  # points
IN_A_ROW = 6  # names of the legend


@dataclass(frozen=True)
class Series:
    """One engine's values, None where it has none; `ends` are the lower and upper ends of their error bars."""

    name: str
    values: Sequence[float | None]
    ends: Sequence[tuple[float, float] | None] = ()
    subject: bool = False


@dataclass(frozen=True)
class Panel:
    """Series over named groups (bars) or over numbers (lines)."""

    title: str
    at: Sequence[str] | Sequence[float]
    series: Sequence[Series]
    label: str = ""


@dataclass(frozen=True)
class Chart:
    """Panels side by side. `level` is a value that a thin line marks; sizes are in points."""

    panels: Sequence[Panel]
    label: str
    logarithmic: bool = False
    level: float | None = None
    width: float = 440.0
    height: float = 190.0

    def draw(self, figure: Figure, left: float, bottom: float, family: str) -> None:
        """Draw into a figure, the lower left corner at these points of its page."""
        page_width, page_height = (72 * side for side in figure.get_size_inches())
        font = FontProperties(family=family, size=TEXT)
        axis, gap, foot = 36.0, 14.0, 30.0
        names = [series.name for series in self.panels[0].series]
        head = 18.0 + 1.6 * TEXT * math.ceil(len(names) / IN_A_ROW)
        width = (self.width - axis - gap * (len(self.panels) - 1)) / len(self.panels)
        first: Axes | None = None
        for i, panel in enumerate(self.panels):
            x, y = left + axis + i * (width + gap), bottom + foot
            box = (x / page_width, y / page_height, width / page_width, (self.height - head - foot) / page_height)
            axes = figure.add_axes(box, sharey=first)
            self._panel(axes, panel, font, leftmost=first is None)
            first = first or axes
        assert first is not None
        if not self.logarithmic:
            first.set_ylim(bottom=0)
        handles, names = first.get_legend_handles_labels()
        middle = (left + axis + (self.width - axis) / 2) / page_width
        top = (bottom + self.height - 2) / page_height
        figure.legend(
            handles,
            names,
            loc="upper center",
            bbox_to_anchor=(middle, top),
            ncols=min(IN_A_ROW, len(names)),
            frameon=False,
            prop=font,
            handlelength=1.4,
            columnspacing=1.4,
            borderaxespad=0,
        )

    def _panel(self, axes: Axes, panel: Panel, font: FontProperties, leftmost: bool) -> None:
        if self.logarithmic:
            axes.set_yscale("log")
        if panel.at and isinstance(panel.at[0], str):
            _bars(axes, panel, (self.level or 1.0) if self.logarithmic else 0.0)
        else:
            _lines(axes, panel)
        if self.level is not None:
            axes.axhline(self.level, color="black", linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)
        axes.set_title(panel.title, fontproperties=font, fontsize=TITLE, pad=4)
        axes.set_xlabel(panel.label, fontproperties=font)
        axes.grid(axis="y", linewidth=0.3, color="#cccccc")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(width=0.5, length=2.5, labelleft=leftmost)
        if leftmost:
            axes.set_ylabel(self.label, fontproperties=font)
        if self.logarithmic:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            text.set_fontproperties(font)


def _colour(panel: Panel, series: Series) -> str:
    if series.subject:
        return SUBJECT_COLOUR
    others = [s for s in panel.series if not s.subject]
    return COLOURS[others.index(series) % len(COLOURS)]


def _bars(axes: Axes, panel: Panel, base: float) -> None:
    """One group of bars from the base for each name; a value that is missing leaves its place empty."""
    width = 0.8 / max(1, len(panel.series))
    for i, series in enumerate(panel.series):
        places = [g - 0.4 + (i + 0.5) * width for g in range(len(panel.at))]
        heights = [math.nan if value is None else value - base for value in series.values]
        axes.bar(places, heights, 0.92 * width, base, color=_colour(panel, series), label=series.name, zorder=2)
        for place, ends in zip(places, series.ends, strict=False):
            if ends is not None:
                axes.plot([place, place], ends, color="black", linewidth=0.6, zorder=3)
    axes.set_xticks(range(len(panel.at)), [str(name) for name in panel.at])


def _lines(axes: Axes, panel: Panel) -> None:
    """A line with markers for each series; a value that is missing interrupts it."""
    for i, series in enumerate(panel.series):
        heights = [math.nan if value is None else value for value in series.values]
        style = {"marker": MARKERS[i % len(MARKERS)], "markersize": 3, "linewidth": 1.0}
        axes.plot(panel.at, heights, color=_colour(panel, series), label=series.name, **style)
