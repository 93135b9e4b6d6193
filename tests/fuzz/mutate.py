"""Documents that were valid until something happened to them: keys lost, types swapped, numbers and texts gone wild."""

import copy
import json
from typing import Any

from hypothesis import strategies as st

ESCAPES = ["\x1b[2J\x1b]0;owned\x07", "\x1b[31m", "\x9b31m", "\x00", "\x7f", "\r\n", "\u202e", "\u2028", "\ud800"]
"""What a terminal, or a reader of lines, would obey; the last is half of a character."""

WORDS = ["accepted", "failed", "incorrect", "torch", "mok", "dist_moe", "library", "cpu", "packing", "logical", "nvlink"]
PATHS = ["../../outside", "/etc/passwd", "..", "a/b"]
TEXTS = [*ESCAPES, *WORDS, *PATHS, "", " ", "NaN", "[red]x[/red]", "日本語🚀", "x" * 5000]
COUNTS = [0, -1, 1, 3, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**30]
NUMBERS = [*COUNTS, -0.0, 0.5, 5e-324, 1e-9, 1e12, 1e308, -1e308, float("nan"), float("inf"), float("-inf")]


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"x": value}
    return value


HOSTILE = [*TEXTS, *NUMBERS, None, True, False, [], {}, [[]], {"": None}, ["a"], [1.5], nested(40), nested(400)]
KEYS = [*TEXTS, "id", "_keys", "__class__", "model_fields_set", "shape", "environment", "host", "status", "unsupported"]


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """A copy of a document after one to four accidents."""
    root = {"": copy.deepcopy(document)}
    for _ in range(draw(st.integers(1, 4))):
        container, place = draw(places(root))
        draw(st.sampled_from(_ACCIDENTS))(draw, container, place, root)
    return root.get("")


@st.composite
def places(draw: st.DrawFn, root: Any) -> tuple[Any, Any]:
    """A container in a document and a key or index of it, found by walking down: what is rare is hit as often."""
    container, place = root, ""
    while container[place] and isinstance(container[place], (dict, list)) and draw(st.integers(0, 5)):
        container = container[place]
        place = draw(st.sampled_from(sorted(container) if isinstance(container, dict) else range(len(container))))
    return container, place


def _replace(draw: st.DrawFn, container: Any, place: Any, root: Any) -> None:
    container[place] = copy.deepcopy(draw(st.sampled_from(HOSTILE)))


def _alter(draw: st.DrawFn, container: Any, place: Any, root: Any) -> None:
    """Another value of the same type."""
    value = container[place]
    if isinstance(value, bool):
        container[place] = not value
    elif isinstance(value, int):
        container[place] = draw(st.sampled_from([*COUNTS, -value, value + 1, float(value)]))
    elif isinstance(value, float):
        container[place] = draw(st.sampled_from([*NUMBERS, -value, value * 1000, value / 1000]))
    elif isinstance(value, str):
        text = draw(st.sampled_from(TEXTS))
        container[place] = draw(st.sampled_from([text, value + text]))
    else:
        _replace(draw, container, place, root)


def _borrow(draw: st.DrawFn, container: Any, place: Any, root: Any) -> None:
    """The value of another place."""
    there, other = draw(places(root))
    container[place] = copy.deepcopy(there[other])


def _delete(draw: st.DrawFn, container: Any, place: Any, root: Any) -> None:
    if container is not root:
        del container[place]


def _add(draw: st.DrawFn, container: Any, place: Any, root: Any) -> None:
    """A key that nobody asked for, or an element twice."""
    if isinstance(container, list):
        container.insert(place, copy.deepcopy(container[place]))
    else:
        container[draw(st.sampled_from(KEYS))] = copy.deepcopy(draw(st.sampled_from(HOSTILE)))


def _retype(draw: st.DrawFn, container: Any, place: Any, root: Any) -> None:
    value = container[place]
    container[place] = draw(st.sampled_from([[value], {"x": value}, json.dumps(value), bool(value), None]))


def _rename(draw: st.DrawFn, container: Any, place: Any, root: Any) -> None:
    if isinstance(container, dict) and container is not root:
        container[draw(st.sampled_from(KEYS))] = container.pop(place)


def _reverse(draw: st.DrawFn, container: Any, place: Any, root: Any) -> None:
    if isinstance(container, list):
        container.reverse()
    else:
        entries = list(container.items())[::-1]
        container.clear()
        container.update(entries)


_ACCIDENTS = [_alter, _alter, _alter, _borrow, _replace, _delete, _add, _retype, _rename, _reverse]


@st.composite
def damaged(draw: st.DrawFn, file: bytes) -> bytes:
    """A file whose bytes are cut, overwritten or joined by others."""
    at = draw(st.integers(0, len(file)))
    before, after = file[:at], file[at:]
    junk = draw(st.sampled_from([b"\x00", b"\xff\xfe", b"\xc3\x28", b"{", b'"', b"\n", b"\xef\xbb\xbf", b"[" * 5000]))
    return draw(st.sampled_from([before, before + junk, before + junk + after, before + junk + after[1:]]))


def files(*documents: Any) -> st.SearchStrategy[bytes]:
    """JSON files. One in five has its bytes damaged, the others what they say."""
    document = st.sampled_from(documents)
    return st.integers(0, 4).flatmap(
        lambda n: document.map(as_json).flatmap(damaged) if n == 0 else document.flatmap(mutated).map(as_json)
    )


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()
