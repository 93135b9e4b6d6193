"""The versions of mok's interface that the double can be."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Generation:
    name: str
    swiglu_limit: bool
    """`forward` and `backward` end in that argument."""
    recompute: bool
    """Has `recompute_forward_context`."""
    ep_sizes: tuple[int, ...]
    gradients: int = 8
    capabilities: tuple[tuple[int, int], ...] = ((10, 0), (10, 3))
    without_fields: tuple[str, ...] = ()
    """Fields of MoKConfig that it lacks."""


G0 = Generation("G0", False, False, (4, 8, 16, 32, 64), capabilities=((10, 3),))
G1 = Generation("G1", True, False, (4, 8, 16, 32, 64))
G2 = Generation("G2", True, True, (1, 4, 8, 16, 32, 64))
NINE = Generation("nine gradients", True, True, (1, 4, 8, 16, 32, 64), gradients=9)

ALL = (G0, G1, G2, NINE)


def on_one_rank(generation: Generation) -> Generation:
    """That interface with a group of one allowed, so that it can be run in one process."""
    return Generation(**{**vars(generation), "ep_sizes": (1, *generation.ep_sizes)})
