"""One sweep in a run folder at a time, whatever becomes of its owner."""

import contextlib
import os
import platform
import signal
import subprocess
import sys

import pytest

from moebench.errors import UsageError
from moebench.launch.leftovers import MARK
from moebench.launch.lock import locked

OWNER = """
import subprocess, sys, time
from pathlib import Path
from moebench.launch.lock import locked
with locked(Path(sys.argv[1])) as held:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], pass_fds=(held,))
    print(child.pid, flush=True)
    time.sleep(100)
"""


@pytest.fixture
def owner(tmp_path):
    """Another process that holds the lock, and its torchrun that does too."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, tmp_path], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process, child
    process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    process.communicate()


def test_a_living_owner_is_named_at_once(tmp_path, owner):
    process, _ = owner
    with (
        pytest.raises(UsageError, match=f"another run has this folder: process {process.pid} on {platform.node()}"),
        locked(tmp_path, wait_s=1000),
    ):
        pass


def test_a_killed_owner_leaves_no_lock_but_its_ranks_are_waited_for(tmp_path, owner, monkeypatch):
    process, child = owner
    monkeypatch.setattr("moebench.launch.lock.KILLED_S", 0.2)
    process.kill()
    process.wait()
    with pytest.raises(UsageError, match="was killed, and its ranks have not ended yet"), locked(tmp_path, wait_s=0.2):
        pass
    os.kill(child, signal.SIGKILL)
    with locked(tmp_path, wait_s=20):
        assert (tmp_path / "lock").read_text().split() == [str(os.getpid()), platform.node()]


def test_a_lock_is_given_back(tmp_path):
    for _ in range(2):
        with locked(tmp_path, wait_s=0):
            pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(UsageError, match="cannot be written: Permission denied"), locked(tmp_path):
        pass


def test_a_run_folder_that_is_gone_is_the_users_mistake(tmp_path):
    with pytest.raises(UsageError, match="cannot be written: No such file"), locked(tmp_path / "gone"):
        pass


def test_a_stopped_torchrun_of_a_killed_owner_is_ended_when_the_wait_is_over(tmp_path):
    """It answers no SIGTERM, and would hold the folder for ever."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {MARK: str(tmp_path)},
    )
    child = int(owner.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    owner.kill()
    owner.wait()
    with locked(tmp_path, wait_s=0.2):
        pass
    owner.communicate()


def test_a_lock_that_is_a_link_leads_nowhere(tmp_path):
    (tmp_path / "target").write_text("precious")
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(UsageError, match="cannot be written"), locked(tmp_path):
        pass
    assert (tmp_path / "target").read_text() == "precious"
