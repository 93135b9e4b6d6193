"""The console of moebench: colours only on a terminal that wants them, ASCII where it can do no more."""

import os
from typing import IO

from rich.console import Console


def make_console(*, stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console that prints text as it is: no markup, no emoji codes, no guessed highlighting.

    NO_COLOR, TERM=dumb, COLUMNS and output that is no terminal are respected by Rich itself.
    """
    return Console(stderr=stderr, file=file, width=width, markup=False, emoji=False, highlight=False, soft_wrap=False)


def ascii_only(console: Console) -> bool:
    """Whether the output cannot show more than ASCII: another encoding than UTF-8, or TERM=dumb."""
    return console.options.ascii_only or os.environ.get("TERM", "").lower() == "dumb"
