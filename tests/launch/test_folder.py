import os
import re
import stat

import pytest

from moebench.errors import UsageError
from moebench.launch.folder import create_run_folder, point_latest_to


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_is_named_by_time_and_matrix(here):
    folder = create_run_folder(None, "quick")
    assert folder.parent == here / "runs"
    assert re.fullmatch(r"\d{8}-\d{6}-quick", folder.name)


def test_a_wanted_folder_that_exists_gets_a_number(here):
    (here / "mine").mkdir()
    (here / "mine-2").touch()
    assert create_run_folder(here / "mine", "quick").name == "mine-3"
    assert create_run_folder(here / "new" / "mine", "quick") == here / "new" / "mine"


def test_others_may_read_but_not_write(here):
    old = os.umask(0)
    try:
        folder = create_run_folder(None, "quick")
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_folder_that_cannot_be_made_is_the_users_mistake(here):
    (here / "file").touch()
    with pytest.raises(UsageError, match=r"--out .*/file/run: the run folder cannot be made: "):
        create_run_folder(here.joinpath("file", "run").relative_to(here), "quick")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_parent_is_the_users_mistake(here):
    (here / "locked").mkdir(mode=0o555)
    with pytest.raises(UsageError, match="Permission denied"):
        create_run_folder(here / "locked" / "run", "quick")


def test_latest_is_a_relative_link_to_the_newest_run(here):
    for _ in range(2):
        folder = create_run_folder(None, "quick")
        point_latest_to(folder)
        assert str((here / "runs" / "latest").readlink()) == folder.name
    outside = create_run_folder(here / "elsewhere", "quick")
    point_latest_to(outside)
    assert str((here / "runs" / "latest").readlink()) == "../elsewhere"
    assert sorted(p.name for p in (here / "runs").iterdir() if p.name.startswith(".")) == []


def test_a_folder_that_can_hold_no_link_is_no_failure(here):
    (here / "runs").touch()
    point_latest_to(here)
