"""What a number depends on beside its case: the code that ranks run, library versions, the device.

A result is stale when its case or any of these has changed since.
"""

import hashlib
import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import moebench
from moebench.cases.case import Case
from moebench.cases.machine import Machine

MEASURING = ("rank", "backends", "quant", "cases")
"""The folders of moebench that ranks run."""
LIBRARIES = ("torch", "numpy", "triton", "dist-moe", "mok")
MOST_FILES = 2000
NOT_FOUND = "not found"
UNKNOWN = "what it was measured with is not known"


def surroundings(case: Case, machine: Machine, device: str) -> dict[str, str]:
    """Code, libraries and device of a case, each as text."""
    found = {"code": _code(tuple(Path(moebench.__file__).parent / folder for folder in MEASURING))}
    if case.backend_path is not None:
        package = package_of(case.backend_path)
        sources = _sources(package)
        found[f"code of {package}"] = _code(tuple(sources)) if sources else NOT_FOUND
    return found | _libraries() | {"device": device_text(machine, device)}


@cache
def _libraries() -> dict[str, str]:
    """Versions of those that are installed."""
    found = {}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def device_text(machine: Machine, device: str) -> str:
    """GPUs by name and driver; else the processor and the cores that may be used."""
    if device != "cpu" and machine.gpu_names:
        return ", ".join(sorted(set(machine.gpu_names)))
    return f"{machine.processor}, {machine.cores} cores"


def package_of(backend_path: str) -> str:
    """The top-level package of package.module:Class."""
    return backend_path.partition(":")[0].partition(".")[0]


def case_key(case: Case, around: dict[str, str]) -> str:
    """SHA-256 of everything that the case and its surroundings say."""
    content = json.dumps([case.model_dump(mode="json"), around], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def what_changed(old: Case, new: Case, around_old: dict[str, str], around_new: dict[str, str]) -> str:
    """In words: `windows was 3, is 5; torch was 2.11.0, is 2.13.0`."""
    if not around_old:
        return UNKNOWN
    changes = _differences(old.model_dump(mode="json"), new.model_dump(mode="json"))
    for name in dict.fromkeys([*around_old, *around_new]):
        was, now = around_old.get(name), around_new.get(name)
        if was == now or (name.startswith("code of") and now is None):
            continue
        if now == NOT_FOUND:
            changes.append(f"the {name} is not found here")
        elif name.startswith("code"):
            changes.append("the code that ranks run has changed" if name == "code" else f"the {name} has changed")
        else:
            changes.append(f"{name} was {was or 'absent'}, is {now or 'absent'}")
    return "; ".join(changes) or UNKNOWN


def _differences(old: object, new: object, name: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            change
            for key in dict.fromkeys([*old, *new])
            for change in _differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
        ]
    return [] if old == new else [f"{name} was {old}, is {new}"]


_CODE: dict[tuple[Path, ...], str] = {}


def _code(places: tuple[Path, ...]) -> str:
    """SHA-256 over the Python sources in these files and folders, by name and content."""
    if places not in _CODE:
        digest = hashlib.sha256()
        for place in places:
            files = [place] if place.is_file() else sorted(place.rglob("*.py"))[:MOST_FILES]
            for file in files:
                digest.update(f"{file.relative_to(place.parent)}\0".encode() + file.read_bytes() + b"\0")
        _CODE[places] = digest.hexdigest()
    return _CODE[places]


def _sources(package: str) -> list[Path]:
    """Where a top-level package or module lies, without importing it."""
    spec = find_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(place) for place in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin else []
