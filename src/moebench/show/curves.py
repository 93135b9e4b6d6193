"""Curves over time as text, for a terminal."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rich.text import Text

HEIGHT = 12
BOTH = "*"


def plot(
    curves: Mapping[str, Sequence[tuple[float, float]]], styles: Mapping[str, str], width: int, height: int = HEIGHT
) -> list[Text]:
    """Lines of a plot of curves of (x, y), x from 0. Each curve is drawn with the first letter of its name, and `*`
    where two meet. No line where there is nothing to draw."""
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return []
    right = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    labels = [f"{high - (high - low) * row / (height - 1):.2f}" for row in range(height)]
    margin = max(map(len, labels))
    columns = max(10, width - margin - 3)
    cells = [[(" ", "")] * columns for _ in range(height)]
    for name, curve in curves.items():
        for column, y in _at_columns(curve, columns, right):
            row = round((high - y) / ((high - low) or 1.0) * (height - 1))
            taken = cells[row][column][0] != " "
            cells[row][column] = (BOTH, "") if taken else (name[0], styles.get(name, ""))
    lines = []
    for label, drawn in zip(labels, cells, strict=True):
        line = Text(f"{label:>{margin}} | ")
        for mark, style in drawn:
            line.append(mark, style)
        line.rstrip()
        lines.append(line)
    axis = f"{'':>{margin}} 0 s{f'{right:.4g} s':>{columns - 1}}"
    return [*lines, Text(axis, "dim")]


def _at_columns(curve: Sequence[tuple[float, float]], columns: int, right: float) -> list[tuple[int, float]]:
    """(column, y) by linear interpolation between points, over the columns that the curve covers."""
    found = []
    for (x0, y0), (x1, y1) in pairwise([*curve, *curve[-1:]]):
        first, last = (round(x / right * (columns - 1)) for x in (x0, x1))
        found += [(c, y0 + (y1 - y0) * (c - first) / max(1, last - first)) for c in range(first, max(first + 1, last))]
    return found
