"""Logs stay below their cap while somebody writes them, and are quoted whatever bytes are in them."""

import os

from moebench.launch.logs import cap, tail


def test_tail_is_the_last_lines_of_any_bytes(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\x00\xff" * 50_000 + b"\n" + b"\n".join(b"line %d" % i for i in range(20)) + b"\n\n")
    assert tail(path).splitlines() == [f"line {i}" for i in range(8, 20)]
    assert tail(path, lines=1) == "line 19"
    assert tail(tmp_path / "absent") == ""


def test_the_middle_of_a_long_log_is_dropped_and_its_writer_goes_on_at_the_end(tmp_path):
    path = tmp_path / "ranks" / "0" / "stderr.log"
    path.parent.mkdir(parents=True)
    writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(writer, b"first" + b"-" * 10_000 + b"last")
    cap(tmp_path, most_bytes=10_000, kept_bytes=100)
    os.write(writer, b" and on")
    os.close(writer)
    left = path.read_bytes()
    assert left.startswith(b"first-")
    assert left.endswith(b"-last and on")
    assert b"[moebench dropped 9809 bytes of this log here]" in left
    assert len(left) < 300


def test_a_log_below_the_cap_and_other_files_are_left_alone(tmp_path):
    (tmp_path / "a.log").write_bytes(b"x" * 100)
    (tmp_path / "b.json").write_bytes(b"x" * 1000)
    cap(tmp_path, most_bytes=100, kept_bytes=10)
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [100, 1000]
