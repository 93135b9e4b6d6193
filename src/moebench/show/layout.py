"""Tables of sections that share column widths, and lose their least important columns when space is short."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD, Box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moebench.show.console import ascii_only
from moebench.show.text import ABSENT, clean

ASCII_HEAD = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)

Cell = str | Text


@dataclass(frozen=True)
class Column:
    """`keep` orders columns by weight: 0 always stays, the largest goes first. Titles may take two lines."""

    title: str
    keep: int
    justify: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Section:
    """Rows under a heading, which stands over the first column. A row of one cell is a heading of its own."""

    heading: Cell
    rows: Sequence[Sequence[Cell]]


def print_sections(console: Console, columns: list[Column], sections: Sequence[Section]) -> None:
    """Print one table for each section. `columns` are those after the first, which has the rows' names.

    Columns without a figure anywhere are left out; then those that do not fit.
    """
    plain = ascii_only(console)
    sections = [
        Section(_safe(s.heading, plain), [[_safe(cell, plain) for cell in row] for row in s.rows]) for s in sections
    ]
    filled = [i for i in range(len(columns)) if any(_has(row, i + 1) for s in sections for row in s.rows)]
    name_width = max((_width(name) for name in _names(sections)), default=0)
    widths = {i: _column_width(columns[i], sections, i + 1) for i in filled}
    shown, gap = _fitting(console.width, name_width, widths, columns)
    room = console.width - sum(widths[i] + gap for i in shown)
    for section in sections:
        table = Table(
            box=ASCII_HEAD if plain else SIMPLE_HEAD,
            padding=(0, gap - 1, 0, 0),
            show_edge=False,
            pad_edge=False,
            header_style="bold",
        )
        table.add_column(section.heading, width=min(name_width, max(room, 8)), overflow="fold")
        for i in shown:
            column = columns[i]
            table.add_column(
                Text(column.title),
                width=widths[i],
                justify=column.justify,
                overflow="fold",
                vertical="bottom",
            )
        for row in section.rows:
            if len(row) == 1:
                table.add_row(row[0], style="bold")
            else:
                table.add_row(row[0], *(row[i + 1] for i in shown))
        console.print(table)
        console.print()


def _names(sections: Sequence[Section]) -> Iterator[Cell]:
    for section in sections:
        yield section.heading
        yield from (row[0] for row in section.rows)


def _fitting(width: int, name_width: int, widths: dict[int, int], columns: list[Column]) -> tuple[list[int], int]:
    """Indices of the columns that fit, and the gap between columns: 2, or 1 before a column is lost."""
    shown = list(widths)
    while True:
        for gap in (2, 1):
            if name_width + sum(widths[i] + gap for i in shown) <= width:
                return shown, gap
        least = max(shown, key=lambda i: columns[i].keep, default=None)
        if least is None or columns[least].keep == 0:
            return shown, 1
        shown.remove(least)


def _column_width(column: Column, sections: Sequence[Section], index: int) -> int:
    cells = (row[index] for section in sections for row in section.rows if index < len(row))
    return max(*(cell_len(line) for line in column.title.split("\n")), *(map(_width, cells)), 1)


def _has(row: Sequence[Cell], index: int) -> bool:
    return index < len(row) and str(row[index]) not in ("", ABSENT)


def _width(cell: Cell) -> int:
    return cell_len(str(cell))


def _safe(cell: Cell, plain: bool) -> Text:
    """Text in which neither the terminal nor Rich finds anything to obey. A Text is our own, and safe."""
    return cell if isinstance(cell, Text) else Text(printable(cell, plain))


def printable(text: str, plain: bool) -> str:
    """Clean text; with `plain`, other characters than ASCII become escapes."""
    safe = clean(text)
    return safe.encode("ascii", "backslashreplace").decode() if plain else safe


def title(console: Console, text: str) -> None:
    console.print(Text(clean(text), "bold underline"))


def paragraph(console: Console, text: str, *, indent: int = 0, style: str = "") -> None:
    """Text from anywhere, cleaned, wrapped to the console and indented."""
    safe = printable(text, ascii_only(console))
    console.print(Padding(Text(safe, style, overflow="fold"), (0, 0, 0, indent), expand=False))
