"""The console of moebench: colours only on a terminal that wants them, ASCII where it can do no more."""

import contextlib
import os
import sys
from typing import IO, Any

from rich.console import Console
from rich.text import Text

from moebench.inert import clean


def make_console(*, stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console that prints text as it is: no markup, no emoji codes, no guessed highlighting.

    NO_COLOR, TERM=dumb, COLUMNS and output that is no terminal are respected by Rich itself.
    """
    width = width or _asked_width()
    return _Console(stderr=stderr, file=file, width=width, markup=False, emoji=False, highlight=False, soft_wrap=False)


def _asked_width() -> int | None:
    """COLUMNS as a user may mean it: a width under 20 shows nothing, and is taken for unset."""
    columns = os.environ.get("COLUMNS", "")
    return 80 if columns.isdecimal() and int(columns) < 20 else None


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        """What is printed as a str, by itself or in a table, is clean text. What comes as a Text must be so already."""
        return super().render_str("\n".join(map(clean, text.split("\n"))), **options)

    def on_broken_pipe(self) -> None:
        """A reader that went away (`| head`) ends the output, not the work."""
        discard_output()


def discard_output() -> None:
    """Send what is still to be printed to nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class Steady:
    """A text stream whose failures (a full disk, a closed terminal) end the output, not the work."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def ascii_only(console: Console) -> bool:
    """Whether the output cannot show more than ASCII: another encoding than UTF-8, or TERM=dumb."""
    return console.options.ascii_only or os.environ.get("TERM", "").lower() == "dumb"
