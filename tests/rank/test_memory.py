import sys

import pytest
import torch

from moebench.rank import memory
from moebench.rank.memory import PeakMemory

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_peak_is_of_the_time_since_reset():
    peak = PeakMemory(CPU)
    before = torch.ones(256 * MIB, dtype=torch.uint8)
    del before
    peak.reset()
    first = peak.read()
    if first.source is None:
        pytest.skip("this machine refuses to reset the high-water mark")
    during = torch.ones(64 * MIB, dtype=torch.uint8)
    del during
    second = peak.read()
    grown = second.allocated_bytes - first.allocated_bytes
    assert 48 * MIB < grown < 128 * MIB
    assert (second.source, second.reserved_bytes) == ("rss", None)


def test_refused_means_no_figure(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "no" / "clear_refs")
    peak = PeakMemory(CPU)
    peak.reset()
    assert (peak.read().source, peak.read().allocated_bytes) == (None, None)
