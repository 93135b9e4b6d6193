"""Backends by name: entry points of the group `moebench.backends`."""

from importlib.metadata import entry_points
from typing import Any

from moebench.backends.protocol import Backend
from moebench.cases.case import PIPELINES, Mode
from moebench.errors import UsageError

GROUP = "moebench.backends"


def backend_names() -> list[str]:
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_backend(name: str) -> type[Backend]:
    """The class registered under a name. Raises UsageError if there is none, or it is no Backend."""
    for point in entry_points(group=GROUP):
        if point.name == name:
            loaded = point.load()
            if not (isinstance(loaded, type) and issubclass(loaded, Backend)):
                raise UsageError(f"backend {name!r}: {point.value} is not a subclass of moebench's Backend.")
            return loaded
    raise UsageError(f"there is no backend named {name!r}. Registered: {', '.join(backend_names())}.")


LIBRARIES = {
    "dist_moe": "the real library (PyPI dist-moe) needs a Blackwell GPU; this version of moebench "
    "has no adapter for it",
    "mok": "the real library (mixture-of-kittens, built from source) needs a Blackwell GPU; this version of moebench "
    "has no adapter for it",
}
"""What keeps the libraries themselves from being measured."""


def describe_backends() -> list[dict[str, Any]]:
    """Every registered backend: its implementations, what each supports, and what is missing on this machine."""
    return [_describe(name) for name in backend_names()]


def _describe(name: str) -> dict[str, Any]:
    try:
        implementation, missing = load_backend(name).implementation, None
    except Exception as error:
        implementation, missing = "unknown", f"{type(error).__name__}: {error}"
    supports = [
        {"precision": str(precision), "pipelines": list(map(str, pipelines)), "modes": list(map(str, Mode))}
        for precision, pipelines in PIPELINES.get(name, {}).items()
    ]
    found = [{"implementation": implementation, "supports": supports, "missing": missing}]
    if name in LIBRARIES:
        found.append({"implementation": "library", "supports": [], "missing": LIBRARIES[name]})
    return {"name": name, "implementations": found}
