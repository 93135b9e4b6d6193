"""Backends by name: entry points of the group `moebench.backends`."""

from importlib.metadata import entry_points

from moebench.backends.protocol import Backend
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
