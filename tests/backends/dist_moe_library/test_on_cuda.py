"""The parts of the adapter that need a GPU, but no Blackwell: the shared expert's stream, and a dead device."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.backends.dist_moe_library.building import KINDS, SHAPE, library_case, prepare

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LARGE = SHAPE.model_copy(update={"T": 2048, "D": 1024, "F": 2048})
"""Large enough that the streams do overlap, and that memory freed too early is overwritten."""


@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize("layers", [1, 4])
def test_the_side_stream_changes_no_number(double, kind, layers):
    case = library_case(kind, layers=layers, shape=LARGE)
    beside, inline = prepare(case, device="cuda"), prepare(case, device="cuda")
    assert beside.backend._shared._stream is not None
    inline.backend._shared._stream = None
    want = inline.run()
    for _ in range(5):
        for name, tensor in beside.run().items():
            assert (tensor - want[name]).float().norm() <= 0.01 * want[name].float().norm(), name


def test_after_a_trap_the_context_is_not_closed():
    """In a process of its own, since a trap takes the device with it."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "tests.backends.dist_moe_library.trapped"]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=200)
    assert ended.returncode != 0
    assert "device-side assert" in ended.stderr
    assert "closed: False" in ended.stdout
