"""mok as it is installed: imported, its generation detected, its argument order verified.

mok's version has stayed 0.1.0 while its interface changed, so what it can do is read from its signatures. Positional
arguments are named here once; a generation that takes others is refused, since gate and up swapped would run.
"""

import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from moebench.backends.mok.library_plan import Settings
from moebench.backends.mok.library_weights import Quantize

_WEIGHTS = (
    "shared_gate_weights",
    "shared_up_weights",
    "shared_down_weights",
    "routed_gate_weights",
    "routed_up_weights",
    "routed_down_weights",
)
_BEFORE_WEIGHTS = ("x", "router_weights")
ARGUMENTS = {
    "get_workspace": ("config", "group", "device", "num_local_tokens", "hidden_size", "topk"),
    "build_schedule": ("workspace", "config", "top_experts", "num_local_experts"),
    "forward": ("config", "workspace", "schedule", *_BEFORE_WEIGHTS, *_WEIGHTS),
    "backward": (
        *("config", "workspace", "schedule", "forward_context", "grad_output"),
        *(*_BEFORE_WEIGHTS, *_WEIGHTS),
    ),
    "clear_workspace_cache": (),
}
"""The leading arguments that every generation so far has had, in this order."""

NEEDED_FIELDS = ("minibatch_size", "macrobatch_size", "schedule_capacity_multiplier")
"""Fields of MoKConfig without which the case cannot be asked for."""


class UnknownGeneration(Exception):
    """An installed mok whose interface is none that this adapter knows."""


@dataclass(frozen=True)
class Features:
    """What the installed mok is, as detected."""

    file: str
    version: str | None
    commit: str | None
    """Of the source it was installed from, where the installer recorded it."""
    swiglu_limit: bool
    recompute: bool
    """Has `recompute_forward_context`: generations since then also run on one rank."""
    gradients: int | None
    """Gradients that backward declares to return: 8, or 9 with a gate of the shared expert."""
    config_fields: tuple[str, ...]


@dataclass(frozen=True)
class Api:
    functional: ModuleType
    quantize: Quantize
    features: Features

    @property
    def default_multiplier(self) -> float:
        """The schedule capacity, in received shares of all rows, that users get who ask for none."""
        return float(self.functional.MoKConfig().schedule_capacity_multiplier)

    def config(self, settings: Settings) -> Any:
        """MoKConfig of those settings that this generation knows."""
        asked = dataclasses.asdict(settings)
        return self.functional.MoKConfig(**{k: v for k, v in asked.items() if k in self.features.config_fields})


def load() -> Api:
    """Import mok, in a rank that has taken its GPU.

    Raises ImportError where it does not load, UnknownGeneration where its interface is another.
    """
    try:
        mok = importlib.import_module("mok")
        functional = importlib.import_module("mok.functional")
        quantize = importlib.import_module("mok.ops").mxfp8_quantize
    except (ImportError, OSError, AttributeError) as error:
        raise ImportError(f"mok is installed but does not load: {error}") from error
    for name, expected in ARGUMENTS.items():
        _verify(functional, name, expected)
    features = _detect(mok, functional)
    absent = [field for field in NEEDED_FIELDS if field not in features.config_fields]
    if absent:
        raise UnknownGeneration(f"MoKConfig of {features.file} has no field {', '.join(absent)}")
    return Api(functional, quantize, features)


def _verify(functional: ModuleType, name: str, expected: tuple[str, ...]) -> None:
    function = getattr(functional, name, None)
    if function is None:
        raise UnknownGeneration(f"{functional.__file__} has no function {name}")
    found = tuple(inspect.signature(function).parameters)
    if found[: len(expected)] != expected:
        raise UnknownGeneration(
            f"{name} of {functional.__file__} takes ({', '.join(found)}), not ({', '.join(expected)}, ...)"
        )


def _detect(mok: ModuleType, functional: ModuleType) -> Features:
    return Features(
        file=str(mok.__file__),
        version=getattr(mok, "__version__", None),
        commit=_commit(),
        swiglu_limit="swiglu_limit" in inspect.signature(functional.forward).parameters,
        recompute=hasattr(functional, "recompute_forward_context"),
        gradients=_gradients(functional.backward),
        config_fields=tuple(field.name for field in dataclasses.fields(functional.MoKConfig)),
    )


def _gradients(backward: Callable[..., Any]) -> int | None:
    try:
        declared = typing.get_type_hints(backward).get("return")
    except (NameError, TypeError):
        return None
    items = typing.get_args(declared)
    return len(items) if items and Ellipsis not in items else None


def _commit() -> str | None:
    try:
        text = importlib.metadata.distribution("mixture-of-kittens").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    commit: str | None = json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    return commit
