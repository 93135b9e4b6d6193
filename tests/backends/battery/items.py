"""All items by name: the public functions of the modules that hold them."""

import inspect
from collections.abc import Callable

from tests.backends.battery import order, precision, reference, repeat, retention, traffic, uninitialised
from tests.backends.battery.world import World

_MODULES = (traffic, reference, order, repeat, retention, precision, uninitialised)


def _items_of(module: object) -> dict[str, Callable[[World], None]]:
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == getattr(module, "__name__", "")
        and list(inspect.signature(function).parameters) == ["world"]
        and not name.startswith("_")
    }


ITEMS = {name: item for module in _MODULES for name, item in _items_of(module).items()}
