"""The few shapes that the pictures are made of, as SVG text. Coordinates are pixels from the upper left."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

FONT = "font-family='Helvetica, Arial, sans-serif'"
INK, PALE = "#1b2a49", "#dce6f2"


def document(width: float, height: float, parts: Sequence[str]) -> str:
    """A whole picture on white, readable on dark pages too."""
    size = f"width='{width:g}' height='{height:g}' viewBox='0 0 {width:g} {height:g}'"
    paper = f"<rect width='{width:g}' height='{height:g}' fill='white'/>"
    return "\n".join([f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT}>", paper, *parts, "</svg>\n"])


def text(x: float, y: float, words: str, *, size: float = 12, anchor: str = "middle", weight: str = "normal") -> str:
    """One line whose baseline is at y."""
    style = f"font-size='{size:g}' text-anchor='{anchor}' font-weight='{weight}' fill='{INK}'"
    return f"<text x='{x:g}' y='{y:g}' {style}>{escape(words)}</text>"


def label(x: float, y: float, words: str, size: float) -> str:
    """A line of text that hides what it lies on."""
    width = 0.56 * size * len(words)
    place = f"x='{x - width / 2:g}' y='{y - size:g}' width='{width:g}' height='{1.3 * size:g}'"
    return f"<rect {place} fill='white'/>" + text(x, y, words, size=size)


def box(x: float, y: float, width: float, height: float, *, words: str = "", fill: str = "white") -> str:
    """A rounded rectangle with a line of text in its middle."""
    place = f"x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='5'"
    shape = f"<rect {place} fill='{fill}' stroke='{INK}'/>"
    return shape + (text(x + width / 2, y + height / 2 + 4, words) if words else "")


def line(x1: float, y1: float, x2: float, y2: float, arrow: bool = False) -> str:
    """A straight line, with an arrow head at a vertical end."""
    stroke = f"<line x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}' stroke='{INK}'/>"
    if not arrow:
        return stroke
    return stroke + f"<path d='M {x2 - 4:g} {y2 - 7:g} L {x2:g} {y2:g} L {x2 + 4:g} {y2 - 7:g} Z' fill='{INK}'/>"
