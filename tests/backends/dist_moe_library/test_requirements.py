"""What a machine must have, and that the adapter says exactly what it has not."""

import dataclasses
import subprocess
import sys

import pytest

from moebench.backends.dist_moe.library import DistMoeLibrary
from moebench.backends.dist_moe.library_requirements import Found, what_is_missing

PACKAGES = {
    "dist-moe": "0.1.0",
    "triton": "3.8.0",
    "nvidia-cutlass-dsl": "4.6.1",
    "cuda-python": "13.1.0",
    "apache-tvm-ffi": "0.1.10",
}
GB300 = Found("Linux", (3, 12), PACKAGES, "2.14.0+cu130", "13.0", "NVIDIA GB300", (10, 3))


def test_nothing_is_missing_on_blackwell():
    assert what_is_missing(GB300) is None


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"packages": {}}, "package dist-moe not installed (pip install dist-moe)"),
        (
            {"packages": {"dist-moe": "0.1.0", "triton": "3.8.0", "cuda-python": "13.1"}},
            "dist-moe is installed without nvidia-cutlass-dsl, apache-tvm-ffi",
        ),
        ({"python": (3, 13)}, "Python 3.13 found, 3.11 or 3.12 needed"),
        ({"python": (3, 10)}, "Python 3.10 found, 3.11 or 3.12 needed"),
        ({"system": "Darwin"}, "Darwin found, Linux needed"),
        ({"torch": "2.13.0+cu130"}, "torch 2.13.0+cu130 found, 2.14 or newer needed"),
        (
            {"torch_cuda": None, "gpu": None, "capability": None},
            "torch is a build without CUDA, compute capability 10.0 (Blackwell) needed",
        ),
        ({"gpu": None, "capability": None}, "no CUDA device found, compute capability 10.0 (Blackwell) needed"),
        (
            {"gpu": "NVIDIA H200", "capability": (9, 0)},
            "compute capability 9.0 found (NVIDIA H200), 10.0 (Blackwell) needed",
        ),
        (
            {"gpu": "NVIDIA RTX PRO 6000", "capability": (12, 0)},
            "compute capability 12.0 found (NVIDIA RTX PRO 6000), 10.0 (Blackwell) needed",
        ),
    ],
)
def test_one_missing_thing_is_named_with_what_was_found(changed, missing):
    assert what_is_missing(dataclasses.replace(GB300, **changed)) == missing


def test_everything_missing_is_named_at_once():
    here = Found("Linux", (3, 13), {}, "2.11.0+cu128", "12.8", "NVIDIA H200", (9, 0))
    assert what_is_missing(here) == (
        "Python 3.13 found, 3.11 or 3.12 needed; package dist-moe not installed (pip install dist-moe); "
        "torch 2.11.0+cu128 found, 2.14 or newer needed; "
        "compute capability 9.0 found (NVIDIA H200), 10.0 (Blackwell) needed"
    )


@pytest.mark.parametrize(("torch", "enough"), [("2.9.1", False), ("2.14.0", True), ("2.20.1", True), ("3.0.0", True)])
def test_torch_versions_are_compared_as_numbers(torch, enough):
    assert (what_is_missing(dataclasses.replace(GB300, torch=torch)) is None) is enough


def test_asking_imports_no_library():
    """In an interpreter of its own, where a stand-in for the library would tell."""
    ask = (
        "import sys; sys.modules['dist_moe'] = None\n"
        "from moebench.backends.dist_moe.library import DistMoeLibrary\n"
        "DistMoeLibrary.missing()"
    )
    subprocess.run([sys.executable, "-c", ask], check=True, timeout=100)


def test_here_something_is_missing_in_one_line():
    assert "\n" not in (DistMoeLibrary.missing() or "")
