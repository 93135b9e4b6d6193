"""Six kills at random moments; the other 24 of a full test are those of `python -m tests.launch.kills --kills 30`."""

import pytest
from tests.launch.kills import draw, killed, undisturbed

pytestmark = pytest.mark.e2e

KILLS = 6


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    return folder, *undisturbed(folder)


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_killed_sweep_resumed_reports_what_an_undisturbed_one_does_and_leaves_no_process(whole, kill):
    folder, essence, seconds = whole
    target, lines, after_s = draw(kill, seconds)
    print(f"{target}, {after_s:.2f} s after line {lines} of the journal")
    assert killed(folder, f"kill-{kill}", target, lines, after_s) == essence
