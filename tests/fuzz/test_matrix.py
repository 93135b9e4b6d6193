"""Whatever a matrix holds, it is planned or refused in words."""

import io
import json
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.test_bad_matrices import GOOD
from tests.fuzz.budget import examples
from tests.fuzz.mutate import assert_survives, damaged, mutated
from tests.fuzz.shown import assert_told, is_inert

from moebench.cases.expand import select
from moebench.cases.forecast import forecast
from moebench.cases.machine import Machine
from moebench.cases.matrix import find_matrix, load_matrix
from moebench.cli.plan_table import draw
from moebench.errors import MoebenchError
from moebench.show.console import make_console

NAMES = ("quick", "conformance", "gb300")
TEXTS = {name: find_matrix(name).read_text() for name in NAMES}
MACHINE = Machine(cores=2, available_bytes=2**34)


def as_toml(document: Any) -> bytes:
    """TOML of what `tomllib` gives, and of most of what a mutation makes of it: tables are written inline."""
    if not isinstance(document, dict):
        return _value(document).encode(errors="surrogatepass")
    lines = [f"{_key(key)} = {_value(value)}" for key, value in document.items()]
    return "\n".join(lines).encode(errors="surrogatepass")


def _key(key: Any) -> str:
    return json.dumps(str(key), ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None:
        return '"null"'
    return _key(value) if isinstance(value, str) else json.dumps(value)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    text = TEXTS[draw(st.sampled_from(("quick", "conformance")))]
    if draw(st.integers(0, 4)) == 0:
        return draw(damaged(text.encode()))
    return as_toml(draw(mutated(tomllib.loads(text))))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("matrix") / "mine.toml"


def planned(path: Path) -> Iterator[str]:
    """What `moebench plan` prints, at two widths."""
    selection = select(load_matrix(str(path)))
    forecasts = [forecast(case, MACHINE) for case in selection.cases]
    json.dumps([row.model_dump(by_alias=True) for row in forecasts], allow_nan=False)
    for width in (20, 120):
        stream = io.StringIO()
        draw(make_console(file=stream, width=width), selection, forecasts, MACHINE)
        yield stream.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_matrices_stay_what_they_were_when_written_again(path: Path, name: str):
    path.write_bytes(as_toml(tomllib.loads(TEXTS[name])))
    ids = [case.id for case in select(load_matrix(str(path))).cases]
    assert ids == [case.id for case in select(load_matrix(name)).cases]
    assert all(map(is_inert, planned(path)))


def test_no_single_accident_to_a_matrix_is_fatal(path: Path):
    def check(changed: Any) -> None:
        path.write_bytes(as_toml(changed))
        told_or_planned(path)

    assert_survives(tomllib.loads(GOOD), check)


@examples(60)
@given(data=files())
def test_a_matrix_is_planned_or_refused_in_words(path: Path, data: bytes):
    path.write_bytes(data)
    told_or_planned(path)


def told_or_planned(path: Path) -> None:
    try:
        printed = list(planned(path))
    except MoebenchError as error:
        assert_told(error, path)
    else:
        assert all(map(is_inert, printed))
