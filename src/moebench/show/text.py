"""Text and figures as a terminal may see them. Everything that is printed passes `clean`."""

import math
from collections.abc import Iterable

from rich.text import Text

from moebench.inert import clean as clean

ABSENT = "-"


def figure(value: float | None) -> str:
    """Four significant digits, without exponent as far as people read it: 1133, 67.86, 0.5123."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3g}"
    decimals = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(decimals, 6)}f}"


def short(value: float | None) -> str:
    """Three significant digits with k, M or G: 1.26M."""
    if value is None or not math.isfinite(value):
        return ABSENT
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            decimals = max(0, 2 - math.floor(math.log10(abs(value) / size)))
            return f"{value / size:.{decimals}f}{unit}"
    return f"{value:.3g}"


def ratio(value: float | None) -> Text:
    """A factor of times: above 1 is faster and green, below 1 red."""
    if value is None or not math.isfinite(value):
        return Text(ABSENT, "dim")
    return Text(f"{value:.2f}x", "green" if value > 1 else "red" if value < 1 else "")


def counted(number: int, thing: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def some(names: Iterable[str], at_most: int = 3) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    if len(listed) <= at_most + 1:
        return ", ".join(listed)
    return ", ".join(listed[:at_most]) + f" and {len(listed) - at_most} more"
