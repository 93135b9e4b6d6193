"""Matrices are found by name, by path, and in a wheel; the default one does what it is for."""

import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from moebench.backends.dist_moe.capacity import retention
from moebench.cases.capacity import capacity, why_capacity_refuses
from moebench.cases.case import Category, Precision
from moebench.cases.expand import Flags, select
from moebench.cases.matrix import load_matrix, matrix_names
from moebench.cases.memory import memory_bytes_per_rank

ROOT = Path(__file__).parents[2]


def test_shipped_matrices_are_found_by_name_and_by_path(tmp_path):
    copy = shutil.copy(ROOT / "cases" / "quick.toml", tmp_path / "own.toml")
    assert {"gb300", "quick"} <= set(matrix_names())
    assert load_matrix("quick").sweep == load_matrix(copy).sweep
    assert load_matrix(str(copy)).name == "own"


@pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling is not installed")
def test_a_wheel_carries_the_matrices(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=60)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert {"moebench/matrices/gb300.toml", "moebench/matrices/quick.toml"} <= set(names)


def quick(**flags):
    return select(load_matrix("quick"), Flags(**flags)).cases


def packing(backend, **flags):
    return quick(backend=[backend], category=[Category.PACKING], **flags)


def test_quick_has_every_backend_mode_precision_and_category():
    assert {case.backend for case in quick()} == {"torch", "dist_moe", "mok"}
    assert {case.category for case in quick()} == set(Category)
    assert len({(case.mode, case.precision, case.pipeline) for case in quick()}) == 14


@pytest.mark.parametrize("case", packing("dist_moe") + packing("dist_moe", ep=[16]), ids=lambda c: c.id)
def test_in_quick_some_layers_recompute_and_others_do_not(case):
    assert set(retention(case).recompute_L) == {True, False}


@pytest.mark.parametrize("case", packing("mok") + packing("mok", ep=[16]), ids=lambda c: c.id)
def test_in_quick_mok_replays(case):
    assert capacity(case)["totalReplayRows"] > 0


@pytest.mark.parametrize("flags", [{}, {"ep": [16], "precision": [Precision.MXFP8]}, {"ep": [16]}])
def test_every_case_of_quick_is_possible_and_fits_scratch(flags):
    assert [(c.id, c.unsupported, why_capacity_refuses(c)) for c in quick(**flags)] == [
        (c.id, None, None) for c in quick(**flags)
    ]


def test_every_case_of_nvlink_is_possible_and_fits_an_h200():
    cases = select(load_matrix("nvlink")).cases
    assert {case.ep for case in cases} == {2, 4, 8}
    assert all(case.unsupported is None and why_capacity_refuses(case) is None for case in cases)
    assert max(memory_bytes_per_rank(case) for case in cases) < 139 * 2**30
