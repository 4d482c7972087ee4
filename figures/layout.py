"""A table as data, and its three forms: PDF, CSV, Markdown. A figure is a table whose PDF shows a chart instead.

The PDF is set like a table of a paper: horizontal rules only, grouped headers with a thin rule under each group,
numbers flush right, marks of footnotes hanging in the margin of their column so that digits stay aligned. Widths come
from measured text, the page is as large as its table. CSV has the unrounded values and one line per row; footnotes
travel in a column of their own.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.backends.backend_pdf import FigureCanvasPdf, PdfPages
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ft2font import LoadFlags
from matplotlib.lines import Line2D

from figures.chart import Chart

SIZE, SMALL = 8.0, 6.6  # points
LINE, GAP, MARGIN, PADDING = 12.0, 4.0, 18.0, 7.0
SERIF = "STIXGeneral"
MARKS = string.ascii_letters


@dataclass(frozen=True)
class Cell:
    """Text of a cell; `value` is what the CSV gets, `marks` are letters of footnotes, `span` the columns it covers."""

    text: str = ""
    value: float | str | None = None
    marks: str = ""
    span: int = 1


@dataclass(frozen=True)
class Column:
    """Headers of a column from the outermost down; equal neighbours are drawn as one."""

    headers: tuple[str, ...]
    numeric: bool = True


@dataclass
class Notes:
    """Footnotes in order of their first use; equal texts share a letter."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """The letter of a footnote."""
        if text not in self.texts:
            self.texts.append(text)
        return MARKS[self.texts.index(text)]


@dataclass(frozen=True)
class Table:
    """A finished table. `body` and `summary` are rows of cells whose spans add up to the columns."""

    title: str
    columns: Sequence[Column]
    body: Sequence[Sequence[Cell]]
    summary: Sequence[Sequence[Cell]]
    notes: Sequence[str]
    caption: str
    chart: Chart | None = None


def write(tables: Sequence[Table], out: Path) -> None:
    """Write OUT.pdf (one page a table), OUT.csv and OUT.md; each appears complete or not at all."""
    writers = {".csv": _csv, ".md": _markdown, ".pdf": _pdf}
    for suffix, writer in writers.items():
        part = out.with_name(f"{out.name}.part{suffix}")
        writer(tables, part)
        part.replace(out.with_name(out.name + suffix))


def with_column(table: Table, header: str, text: str) -> Table:
    """The table with one more column before the others, which has the same text in every row."""
    above = len(table.columns[0].headers) - 1
    return dataclasses.replace(
        table,
        columns=[Column((*[""] * above, header), numeric=False), *table.columns],
        body=[[Cell(text), *row] for row in table.body],
        summary=[[Cell(text), *row] for row in table.summary],
    )


def number(value: float) -> str:
    """A measured value with three significant digits, without exponent and without more than two decimals."""
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def _csv(tables: Sequence[Table], path: Path) -> None:
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        for table in tables:
            lines.writerow([*(" / ".join(_distinct(c.headers)) for c in table.columns), "notes"])
            for row in (*table.body, *table.summary):
                values = [v for cell in row for v in (_plain(cell), *[""] * (cell.span - 1))]
                marks = sorted({mark for cell in row for mark in cell.marks})
                lines.writerow([*values, " | ".join(table.notes[MARKS.index(m)] for m in marks)])


def _plain(cell: Cell) -> str:
    if cell.value is None:
        return cell.text
    return f"{cell.value:.6g}" if isinstance(cell.value, float) else cell.value


def _markdown(tables: Sequence[Table], path: Path) -> None:
    parts = []
    for table in tables:
        headers = [" ".join(_distinct(column.headers)) for column in table.columns]
        lines = [f"**{table.title}**", "", _pipes(headers)]
        lines.append(_pipes(["--:" if column.numeric else ":--" for column in table.columns]))
        for row in (*table.body, *table.summary):
            lines.append(_pipes([t for cell in row for t in (_marked(cell), *[""] * (cell.span - 1))]))
        lines += ["", *(f"<sup>{MARKS[i]}</sup> {note}  " for i, note in enumerate(table.notes))]
        parts.append("\n".join([*lines, "", table.caption, ""]))
    path.write_text("\n".join(parts))


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _marked(cell: Cell) -> str:
    return f"{cell.text}<sup>{','.join(cell.marks)}</sup>" if cell.marks else cell.text


def _distinct(headers: Sequence[str]) -> list[str]:
    """Headers without empty ones and repetitions."""
    return [h for i, h in enumerate(headers) if h and h not in headers[:i]]


def _pdf(tables: Sequence[Table], path: Path) -> None:
    # A fixed date makes equal tables equal files.
    with PdfPages(path, metadata={"CreationDate": None}) as pages:
        for table in tables:
            pages.savefig(_Page(table).figure)


class _Page:
    """One table on one page; coordinates are points from the top left."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.edges = _edges(table) if table.chart is None else [0.0, table.chart.width]
        self.width = self.edges[-1] + 2 * MARGIN
        self.ink: list[tuple[float, float, str, float, bool]] = []
        self.rules: list[tuple[float, float, float, float]] = []
        self.y = self.chart_end = MARGIN
        self._draw()
        height = self.y + MARGIN
        self.figure = Figure(figsize=(self.width / 72, height / 72))
        FigureCanvasPdf(self.figure)
        for x, y, text, size, bold in self.ink:
            place = ((MARGIN + x) / self.width, 1 - y / height)
            self.figure.text(*place, text, fontproperties=_font(bold), size=size, va="baseline")
        for left, right, y, weight in self.rules:
            ends = [(MARGIN + left) / self.width, (MARGIN + right) / self.width]
            level = 1 - y / height
            self.figure.add_artist(Line2D(ends, [level, level], color="black", linewidth=weight))
        if table.chart is not None:
            table.chart.draw(self.figure, MARGIN, height - self.chart_end, SERIF)

    def _draw(self) -> None:
        self._paragraph(self.table.title, SIZE + 1, bold=True)
        self.y += GAP
        if self.table.chart is None:
            self._grid()
        else:
            self.y += self.table.chart.height
            self.chart_end = self.y
        self.y += GAP
        for letter, note in zip(MARKS, self.table.notes, strict=False):
            self._paragraph(note, SMALL, mark=letter)
        self.y += GAP
        self._paragraph(self.table.caption, SMALL)

    def _grid(self) -> None:
        """The table itself."""
        self._rule(1.0)
        self._header()
        self._rule(0.6)
        for row in self.table.body:
            self._row(row)
        self._rule(0.6)
        for row in self.table.summary:
            self._row(row)
        self._rule(1.0)

    def _rule(self, weight: float, left: float = 0, right: float | None = None) -> None:
        """A rule under the current line; one over the whole width moves on."""
        self.rules.append((left, self.edges[-1] if right is None else right, self.y + 4, weight))
        if right is None:
            self.y += 4

    def _header(self) -> None:
        for level in range(len(self.table.columns[0].headers)):
            self.y += LINE + 1
            for first, last, text in _groups(self.table.columns, level):
                left, right = self.edges[first], self.edges[last]
                bold = not self.table.columns[first].headers[0] or last - first > 1
                if not self.table.columns[first].numeric:
                    self._text(left, text, SIZE, bold=bold)
                elif last - first == 1:
                    self._text(right - PADDING, text, SIZE, align=1, bold=bold)
                else:
                    self._text((left + right) / 2, text, SIZE, align=0.5, bold=bold)
                if text and last - first > 1:
                    self._rule(0.4, left + PADDING / 2, right - PADDING / 2)

    def _row(self, row: Sequence[Cell]) -> None:
        self.y += LINE
        at = 0
        for cell in row:
            left, right = self.edges[at], self.edges[at + cell.span]
            if not self.table.columns[at].numeric:
                x = left
                self._text(x, cell.text, SIZE)
                x += _width(cell.text, SIZE)
            elif cell.span > 1:
                x = (left + right) / 2
                self._text(x, cell.text, SIZE, align=0.5)
                x += _width(cell.text, SIZE) / 2
            else:
                x = right - PADDING
                self._text(x, cell.text, SIZE, align=1)
            if cell.marks:
                self._text(x + 0.5, ",".join(cell.marks), SIZE * 0.65, rise=3)
            at += cell.span

    def _text(self, x: float, text: str, size: float, *, align: float = 0, rise: float = 0, bold: bool = False) -> None:
        """Text whose point at the share `align` of its width is at x."""
        x -= align * _width(text, size, bold)
        for piece, piece_size, piece_rise in _pieces(text, size):
            self.ink.append((x, self.y - rise - piece_rise, piece, piece_size, bold))
            x += _piece_width(piece, piece_size, bold)

    def _paragraph(self, text: str, size: float, mark: str = "", bold: bool = False) -> None:
        """Text over the width of the table, with a hanging mark."""
        indent = 6.0 if mark else 0.0
        for i, line in enumerate(_wrap(text, size, self.edges[-1] - indent, bold)):
            self.y += size * 1.3
            if mark and i == 0:
                self._text(0, mark, size * 0.8, rise=2)
            self._text(indent, line, size, bold=bold)


def _groups(columns: Sequence[Column], level: int) -> list[tuple[int, int, str]]:
    """Runs of columns that share their headers down to a level: first, last + 1, text."""
    runs: list[tuple[int, int, str]] = []
    for i, column in enumerate(columns):
        same = i and columns[i - 1].headers[: level + 1] == column.headers[: level + 1] and column.numeric
        if same:
            runs[-1] = (runs[-1][0], i + 1, runs[-1][2])
        else:
            runs.append((i, i + 1, column.headers[level]))
    return runs


def _edges(table: Table) -> list[float]:
    """Left edges of the columns and the right edge of the last."""
    widths = [_width(column.headers[-1], SIZE) for column in table.columns]
    for row in (*table.body, *table.summary):
        at = 0
        for cell in row:
            if cell.span == 1:
                widths[at] = max(widths[at], _width(cell.text, SIZE))
            at += cell.span
    widths = [width + 2 * PADDING for width in widths]
    levels = range(len(table.columns[0].headers))
    for first, last, text in (group for level in levels for group in _groups(table.columns, level)):
        missing = _width(text, SIZE, bold=True) + PADDING - sum(widths[first:last])
        for i in range(first, last):
            widths[i] += max(0.0, missing) / (last - first)
    edges = [0.0]
    for width in widths:
        edges.append(edges[-1] + width)
    return edges


def _width(text: str, size: float, bold: bool = False) -> float:
    """Width of a line of text in points."""
    return sum(_piece_width(piece, piece_size, bold) for piece, piece_size, _ in _pieces(text, size))


@functools.cache
def _piece_width(text: str, size: float, bold: bool) -> float:
    face = get_font(findfont(_font(bold)))
    face.set_size(size, 72)
    face.set_text(text, 0.0, flags=LoadFlags.NO_HINTING)
    return face.get_width_height()[0] / 64


@functools.cache
def _font(bold: bool) -> FontProperties:
    return FontProperties(family=SERIF, weight="bold" if bold else "normal")


def _pieces(text: str, size: float) -> list[tuple[str, float, float]]:
    """Text, size and rise of the parts of a line: the font's own superscript two is too heavy, so a digit is raised."""
    parts: list[tuple[str, float, float]] = []
    for part in re.split("(²)", text):
        if part == "²":
            parts.append(("2", size * 0.68, size * 0.38))
        elif part:
            parts.append((part, size, 0.0))
    return parts


def _wrap(text: str, size: float, width: float, bold: bool) -> list[str]:
    """Lines of at most `width` points, broken at spaces."""
    lines: list[list[str]] = [[]]
    space = _width("n n", size, bold) - _width("nn", size, bold)
    used = 0.0
    for word in text.split():
        wide = _width(word, size, bold)
        if lines[-1] and used + space + wide > width:
            lines.append([])
            used = 0.0
        used += space + wide if lines[-1] else wide
        lines[-1].append(word)
    return [" ".join(line) for line in lines]
