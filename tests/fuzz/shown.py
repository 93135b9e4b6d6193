"""What is done with a report once it is read, and what must hold of all that is printed."""

import io
import json
import unicodedata

import pytest
from rich.cells import cell_len
from rich.console import Console

from moebench.errors import MoebenchError, UsageError
from moebench.reduce.pairs import differing_pairs, pair_cases
from moebench.reduce.schema import Report
from moebench.reduce.write import to_json
from moebench.show.console import make_console
from moebench.show.frames import cases_frame, pairs_frame
from moebench.show.summary import print_report
from moebench.show.text import clean

LONGEST_MESSAGE = 2000


def is_inert(text: str) -> bool:
    """No character of it is one that a terminal obeys, but for the ends of lines."""
    return not any(unicodedata.category(character).startswith("C") for character in text.replace("\n", ""))


def assert_told(error: MoebenchError, name: object) -> None:
    """The message names the file, has an end, and a terminal can be trusted with it."""
    assert isinstance(error, UsageError)
    message = str(error)
    assert str(name) in message
    assert len(message) < LONGEST_MESSAGE
    assert is_inert(message), ascii(message)
    assert clean(message) == message


FORMS = [(width, encoding) for width in (20, 80, 200) for encoding in ("utf-8", "ascii")]
"""Widths and encodings of terminals."""


def assert_shows(report: Report) -> None:
    """Tables, frames and JSON come out, and none of it acts on a terminal."""
    for width, encoding in FORMS:
        assert_prints(report, width, encoding)
    cases_frame(report), pairs_frame(report)
    differing_pairs(report)


def assert_prints(report: Report, width: int = 80, encoding: str = "utf-8") -> None:
    """Pairs, tables and JSON come out, and none of it acts on a terminal."""
    pair_cases(report.meta, report.cases)
    text = _printed(report, width, encoding)
    assert is_inert(text), ascii(text)
    assert max(map(cell_len, text.splitlines())) <= width, text
    json.loads(to_json(report), parse_constant=pytest.fail)


def _printed(report: Report, width: int, encoding: str) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    console: Console = make_console(file=stream, width=width)
    print_report(report, console)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)
