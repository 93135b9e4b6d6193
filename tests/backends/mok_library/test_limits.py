"""What the adapter says is missing, and which cases it refuses and why."""

import sys
from pathlib import Path

import pytest
import torch
from tests.backends.mok_library.double import generation
from tests.backends.mok_library.double.library import install
from tests.backends.mok_library.make import CAPACITY, SHAPE, library_case
from tests.reference import gb300

from moebench.backends.mok import library_limits
from moebench.backends.mok.library import MokLibrary
from moebench.cases.case import Precision


def machine(monkeypatch, *, torch_version="2.11.0+cu130", cuda="13.0", capability=(10, 0), python=(3, 12)):
    """A machine as `missing` sees it."""
    monkeypatch.setattr(torch, "__version__", torch_version)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(
        sys, "version_info", type("Version", (tuple,), {"major": python[0], "minor": python[1]})(python)
    )


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package mok that must not be imported."""
    folder = tmp_path / "mok"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / "_C.cpython-312-x86_64-linux-gnu.so").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_nothing_is_missing_on_blackwell_and_nothing_is_imported_to_tell(package, monkeypatch):
    machine(monkeypatch)
    assert MokLibrary.missing() is None
    assert "mok" not in sys.modules


def test_a_package_that_is_not_installed(monkeypatch):
    machine(monkeypatch)
    assert (MokLibrary.missing() or "").startswith("the package mok (Mixture-of-Kittens) is not installed; build it")


def test_a_checkout_that_was_not_built(package, monkeypatch):
    machine(monkeypatch)
    next(package.glob("_C*")).unlink()
    assert f"mok in {package} has no compiled extension _C" in (MokLibrary.missing() or "")


def test_a_folder_of_that_name_is_no_package(tmp_path, monkeypatch):
    machine(monkeypatch)
    (tmp_path / "mok").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert "is not installed" in (MokLibrary.missing() or "")


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ({"capability": (9, 0)}, "compute capability 9.0 found, 10.0 or 10.3 needed"),
        ({"capability": (12, 0)}, "compute capability 12.0 found, 10.0 or 10.3 needed"),
        ({"capability": None}, "no CUDA GPU found, compute capability 10.0 or 10.3 needed"),
        ({"cuda": "12.8"}, "torch 2.11.0+cu130 is built for CUDA 12.8, 13.0 needed"),
        ({"cuda": None}, "torch 2.11.0+cu130 is built without CUDA, CUDA 13.0 needed"),
        ({"torch_version": "2.9.1+cu130"}, "torch 2.9.1+cu130 found, 2.10 needed"),
        ({"python": (3, 11)}, "Python 3.11 found, 3.12 needed"),
    ],
)
def test_the_one_missing_thing_is_named(package, monkeypatch, lacking, message):
    machine(monkeypatch, **lacking)
    assert MokLibrary.missing() == message


def test_all_missing_things_are_named(monkeypatch):
    machine(monkeypatch, cuda="12.8", capability=(9, 0))
    missing = MokLibrary.missing() or ""
    assert all(part in missing for part in ("not installed", "CUDA 12.8", "capability 9.0"))


def shaped(**axes):
    return {"shape": SHAPE.model_copy(update=axes)}


def sized(**values):
    return {"capacity": CAPACITY.model_copy(update=values)}


@pytest.mark.parametrize(
    ("ep", "changes", "message"),
    [
        (2, {}, "not on ep=2"),
        (4, shaped(T=256), "not 256"),
        (4, shaped(T=640), "not 640"),
        (4, shaped(D=384), "D in multiples of 256, not 384"),
        (4, shaped(F=128), "F in multiples of 256, not 128"),
        (4, shaped(K=56, E=64), "K=55 experts at most, not 56"),
        (4, shaped(S=0), "exactly one shared expert, which cannot be switched off: S=0"),
        (4, shaped(S=2), "S=2"),
        (4, sized(pad_rows=32), "pad_rows=32 cannot be had"),
        (4, sized(minibatch_rows=128), "minibatch_rows in multiples of 256, not 128"),
        (4, sized(minibatch_rows=512, macrobatch_rows=1280), "1280 rows are no multiple of 512"),
        (4, {"precision": Precision.NVFP4}, "mok has no precision nvfp4"),
    ],
)
def test_hard_limits_are_reasons(blackwell, ep, changes, message):
    assert message in (MokLibrary.unsupported(library_case(ep, **changes)) or "")


def test_every_published_case_is_within_the_limits():
    cases = [case for case in gb300().values() if case.backend == "mok"]
    assert len(cases) > 40
    assert {library_limits.why_case_exceeds_limits(case) for case in cases} == {None}


def test_the_most_experts_per_token_are_what_shared_memory_holds():
    K = library_limits.MOST_EXPERTS_PER_TOKEN
    needed = [2 * ((k + 1) * 2048 + 4 * k) + 1024 for k in (K, K + 1)]
    assert needed[0] <= 227 * 1024 < needed[1]


def test_ranks_that_share_a_gpu_or_have_none_are_refused():
    reason = library_limits.why_launch_does_not_fit(library_case())
    assert "talk by gloo" in (reason or "")


@pytest.mark.parametrize(("has", "ep", "refused"), [(False, 4, True), (True, 4, False), (False, 1, False)])
def test_several_ranks_need_multicast(monkeypatch, has, ep, refused):
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "nccl")
    monkeypatch.setattr(library_limits, "_has_multicast", lambda: has)
    assert ("multicast" in (library_limits.why_launch_does_not_fit(library_case(ep)) or "")) is refused


@pytest.mark.parametrize("found", [generation.G2, generation.NINE], ids=lambda g: g.name)
def test_versions_that_run_on_one_rank_may(blackwell, monkeypatch, found):
    install(monkeypatch, found)
    assert MokLibrary.unsupported(library_case()) is None


@pytest.mark.parametrize("found", [generation.G0, generation.G1], ids=lambda g: g.name)
def test_versions_that_do_not_are_told_by_what_they_lack(blackwell, monkeypatch, found):
    install(monkeypatch, found)
    assert "no recompute_forward_context, does not run on one rank" in (MokLibrary.unsupported(library_case()) or "")


def test_what_the_installed_version_itself_refuses_is_a_reason(blackwell, monkeypatch):
    """The first versions took one of the two Blackwells only."""
    older = generation.Generation(**{**vars(generation.G2), "capabilities": ((10, 3),)})
    install(monkeypatch, older, capability=(10, 0))
    assert MokLibrary.unsupported(library_case()) == "mok refuses the case: MoK currently requires another GPU"


def test_a_package_that_does_not_load_is_a_reason(blackwell, package, monkeypatch):
    (package / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    assert MokLibrary.unsupported(library_case()) == (
        "mok is installed but does not load: libcudart.so.13: cannot open shared object file"
    )


def test_arguments_in_another_order_are_refused_rather_than_guessed(blackwell, monkeypatch):
    install(monkeypatch, generation.G2)

    def forward(workspace, config, schedule, x):
        raise AssertionError

    monkeypatch.setattr("mok.functional.forward", forward)
    reason = MokLibrary.unsupported(library_case()) or ""
    assert "takes (workspace, config, schedule, x), not (config, workspace, schedule, x, router_weights" in reason


def test_a_missing_function_or_field_is_named(blackwell, monkeypatch):
    without = generation.Generation(**{**vars(generation.G2), "without_fields": ("macrobatch_size",)})
    install(monkeypatch, without)
    assert MokLibrary.unsupported(library_case()) == "MoKConfig of /double/mok.py has no field macrobatch_size"
    monkeypatch.delattr("mok.functional.clear_workspace_cache")
    assert MokLibrary.unsupported(library_case()) == "/double/mok/functional.py has no function clear_workspace_cache"
