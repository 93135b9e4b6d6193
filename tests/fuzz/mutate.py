"""Documents that were valid until something happened to them: keys lost, types swapped, numbers and texts gone wild."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

ESCAPES = "\x1b[2J\x1b]0;owned\x07 \x9b31m \x00\x7f\r\n \u202e \u2028 [red]x[/red]"
"""What a terminal, or a reader of lines, would obey."""
HALF = "\ud800"
"""Of a character."""
TEXTS = [ESCAPES, HALF, "../../outside", "", "x" * 5000, "accepted", "failed", "torch", "mok", "dist_moe", "logical"]
COUNTS = [0, -1, 1, 2**31, 2**63 - 1, 2**63]
NUMBERS = [*COUNTS, -0.0, 5e-324, 1e308, -1e308, float("nan"), float("inf")]


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"x": value}
    return value


HOSTILE = [ESCAPES, HALF, "", *NUMBERS, None, True, [], {}, {"": None}, ["a"], [1.5], nested(40), nested(300)]
KEYS = [ESCAPES, HALF, "_keys", "shape", "host", "unsupported"]


def single_accidents(document: Any) -> Iterator[tuple[str, Any]]:
    """Every value of a document replaced by every hostile one, or lost, and hostile keys in every object: what
    happened, and the document, which is whole again afterwards."""
    root = {"": copy.deepcopy(document)}
    for container, place in _all_places(root):
        before = container[place]
        for value in _hostile_to(before):
            container[place] = value
            yield f"{place!r}: {before!r:.40} became {value!r:.40}", root[""]
        container[place] = before
        if isinstance(container, list):
            container.insert(place, before)
            yield f"{place!r} came twice: {before!r:.40}", root[""]
            del container[place]
        elif container is not root:
            del container[place]
            yield f"{place!r} was lost", root[""]
            container[place] = before
    for container in [root[""], *(container[place] for container, place in _all_places(root[""]))]:
        for key in KEYS if isinstance(container, dict) else []:
            if key not in container:
                container[key] = {"x": ESCAPES}
                yield f"{key!r} was added to {container!r:.40}", root[""]
                del container[key]


def assert_survives(document: Any, check: Callable[[Any], object]) -> None:
    """No single accident to a document makes a check of it raise."""
    failed = []
    for what, changed in single_accidents(document):
        try:
            check(changed)
        except Exception as error:
            failed.append(f"{what}: {error!r:.200}")
    assert not failed, "\n".join([f"{len(failed)} accidents:", *failed[:20]])


def _hostile_to(value: Any) -> list[Any]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    numbers = NUMBERS if is_number else [2**63, -1.5]
    texts = TEXTS if isinstance(value, str) else [ESCAPES]
    return [*numbers, *texts, None, [], {"": None}, {HALF: None}, nested(300)]


def _all_places(root: Any) -> list[tuple[Any, Any]]:
    found, unseen = [], [root]
    while unseen:
        container = unseen.pop()
        for place in list(container) if isinstance(container, dict) else range(len(container)):
            found.append((container, place))
            if isinstance(container[place], (dict, list)):
                unseen.append(container[place])
    return found


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """A copy of a document after one accident, or a few: of several, the first that is refused hides the others."""
    root = {"": copy.deepcopy(document)}
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
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


def as_lines(raw: bytes) -> bytes:
    """A JSON array as JSON lines; whatever is none, as it is."""
    try:
        entries = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    return b"".join(as_json(entry) + b"\n" for entry in entries) if isinstance(entries, list) else raw
