"""Backends by name: entry points of the group `moebench.backends`."""

import importlib
import re
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from moebench.backends.protocol import Backend
from moebench.cases.case import CLASS_PATH, Case, Implementation, Mode, Pipeline, Precision
from moebench.cases.expand import BACKENDS_GROUP
from moebench.errors import UsageError

BUILT_IN = {
    "torch": "moebench.backends.torch_ep:TorchBackend",
    "dist_moe": "moebench.backends.dist_moe.portable:DistMoeBackend",
    "mok": "moebench.backends.mok.portable:MokBackend",
}

HIDDEN = {"faulty": "moebench.backends.faulty:FaultyBackend", "spin": "moebench.backends.spin:Spin"}
"""Found by name, and listed nowhere."""

LIBRARIES = {
    "dist_moe": "moebench.backends.dist_moe.library:DistMoeLibrary",
    "mok": "moebench.backends.mok.library:MokLibrary",
}
"""Adapters to the real libraries. Importing one must not import its library."""


def backend_names() -> list[str]:
    """Built-in backends, and those that installed packages register."""
    return sorted({point.name for point in entry_points(group=BACKENDS_GROUP)} | set(BUILT_IN))


def backend_of(case: Case) -> type[Backend]:
    """The class that does a case."""
    if case.implementation is Implementation.LIBRARY:
        return _checked(case.backend, _import(LIBRARIES[case.backend]))
    return load_backend(case.backend_path or case.backend)


def load_backend(text: str) -> type[Backend]:
    """The class registered under a name, or named as package.module:Class (the working folder is searched too).

    Raises UsageError if there is none, if it is no Backend, or if it takes the name of a built-in one.
    """
    if ":" in text:
        return _checked(text, _import(text))
    ours = BUILT_IN | HIDDEN
    if text in ours:
        return _checked(text, _import(ours[text]))
    for point in entry_points(group=BACKENDS_GROUP):
        if point.name == text:
            return _checked(text, point.load())
    raise UsageError(f"there is no backend named {text!r}. Registered: {', '.join(backend_names())}.")


def _import(text: str) -> Any:
    module_name, _, class_name = text.partition(":")
    if not re.fullmatch(CLASS_PATH, text):
        raise UsageError(f"{text!r} is not the name of a class, such as my_package.my_module:MyBackend.")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except ImportError as error:
        raise UsageError(f"{module_name} cannot be imported: {error}. Is it on PYTHONPATH?") from error
    except AttributeError as error:
        raise UsageError(f"{module_name} has no class {class_name!r}.") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{module_name} cannot be imported: {type(error).__name__}: {error}.") from error


def _checked(text: str, loaded: Any) -> type[Backend]:
    if not (isinstance(loaded, type) and issubclass(loaded, Backend)):
        raise UsageError(f"{text} is not a subclass of moebench.backends.protocol.Backend.")
    name = getattr(loaded, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,79}", name):
        raise UsageError(
            f"{text}: its `name` is {name!r}; it becomes part of case ids: at most 80 letters, digits and _."
        )
    for precision, pipelines in dict(getattr(loaded, "pipelines", {})).items():
        if precision not in list(Precision) or not set(pipelines) <= set(Pipeline):
            known = ", ".join(Pipeline)
            raise UsageError(f"{text}: its `pipelines` has {precision}: {pipelines}; known pipelines are {known}.")
    if ":" in text and (name in backend_names() or _is_impostor(name, loaded)):
        raise UsageError(f"{text}: its `name` {name!r} is that of a registered backend; choose another.")
    return loaded


def _is_impostor(name: str, loaded: type[Backend]) -> bool:
    """Variants of a hidden backend may bear its name: `compare` sees one case, measured before and after a change."""
    return name in HIDDEN and not issubclass(loaded, _import(HIDDEN[name]))


def describe_backends() -> list[dict[str, Any]]:
    """Every registered backend: its implementations, what each supports, and what is missing on this machine."""
    return [_describe(name) for name in backend_names()]


def _describe(name: str) -> dict[str, Any]:
    try:
        backend = load_backend(name)
    except Exception as error:
        return {"name": name, "implementations": [_implementation("unknown", {}, f"{type(error).__name__}: {error}")]}
    found = [_implementation(backend.implementation, backend.pipelines, backend.missing())]
    if name in LIBRARIES:
        library = _checked(name, _import(LIBRARIES[name]))
        found.append(_implementation(library.implementation, library.pipelines, library.missing()))
    return {"name": name, "implementations": found}


def _modes(precision: Precision) -> list[str]:
    return [str(mode) for mode in Mode if mode is Mode.INFERENCE or precision is not Precision.NVFP4]


def _implementation(
    kind: str, pipelines: Mapping[Precision, tuple[Pipeline, ...]], missing: str | None
) -> dict[str, Any]:
    supports = [
        {"precision": str(precision), "pipelines": list(map(str, names)), "modes": _modes(precision)}
        for precision, names in pipelines.items()
    ]
    return {"implementation": kind, "supports": supports, "missing": missing}
