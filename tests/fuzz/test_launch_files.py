"""Whatever ranks leave in the files of a launch, their supervisor reads on."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.fuzz.budget import examples
from tests.fuzz.mutate import as_json, as_lines, assert_survives, damaged, files

from moebench.rank.progress import Event, Follower, Progress
from moebench.rank.spec import Job, LaunchSpec
from moebench.status import Reason

SPEC = LaunchSpec(
    run=Path("/runs/a"),
    name="001-ep2",
    jobs=[Job(case_id="a-case", attempt=1)],
    device="cpu",
    collective_timeout_s=90.0,
)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a rank writes its events."""
    path = tmp_path_factory.mktemp("events") / "rank-0.jsonl"
    progress = Progress(path)
    progress.tell("start")
    progress.tell("timing", "a-case", 1)
    progress.tell("died", "a-case", 1, "MemoryError in timing: \x1b[2J", Reason.OUT_OF_MEMORY)
    return path


LINES = [
    {"time": 1.0, "pid": 7, "phase": "start", "case": None, "attempt": None, "error": None, "reason": None},
    {"time": 2.5, "pid": 7, "phase": "died", "case": "a-case", "attempt": 1, "error": "no", "reason": "crashed"},
]


def test_events_are_read_before_anything_happens_to_them(events: Path):
    assert [event.phase for _, event in Follower(events.parent).new_events()] == ["start", "timing", "died"]


@examples(150)
@given(
    data=st.one_of(files(LINES).map(as_lines), damaged(as_lines(as_json(LINES))), st.binary()), cut=st.integers(0, 400)
)
def test_events_are_the_same_however_they_arrive_and_whatever_is_between_them(events: Path, data: bytes, cut: int):
    events.write_bytes(data)
    at_once = Follower(events.parent).new_events()
    events.write_bytes(data[:cut])
    follower = Follower(events.parent)
    first = follower.new_events()
    events.write_bytes(data)
    assert sorted(map(repr, first + follower.new_events())) == sorted(map(repr, at_once))
    assert all(isinstance(event, Event) for _, event in at_once)


def test_a_launch_file_is_read_or_refused():
    def check(changed: Any) -> None:
        with suppress(ValidationError):
            assert LaunchSpec.model_validate_json(as_json(changed)).folder

    assert_survives(json.loads(SPEC.model_dump_json()), check)
