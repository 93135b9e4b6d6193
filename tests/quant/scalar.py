"""MXFP8 one number at a time in plain Python, written from the OCP specifications alone."""

import math
from bisect import bisect_left
from collections.abc import Sequence

from moebench.quant.mxfp8 import Recipe

E4M3 = [k / 8 * 2.0**-6 for k in range(8)]
"""The value of each byte from 0 to 0x7E; 0x7F is NaN, and from 0x80 the same again, negative."""
E4M3 += [(1 + k / 8) * 2.0**exponent for exponent in range(-6, 9) for k in range(8)][:-1]


def value(byte: int) -> float:
    magnitude = math.nan if byte & 0x7F == 0x7F else E4M3[byte & 0x7F]
    return math.copysign(magnitude, -1.0 if byte & 0x80 else 1.0)


def e4m3(y: float) -> int:
    """The byte nearest to y, the even one of two equally near, the largest magnitude for all beyond it."""
    above = bisect_left(E4M3, min(abs(y), 448.0))
    byte = above
    if above > 0:
        below = above - 1
        up, down = E4M3[above] - min(abs(y), 448.0), min(abs(y), 448.0) - E4M3[below]
        byte = below if down < up or (down == up and below % 2 == 0) else above
    return byte | (0x80 if math.copysign(1.0, y) < 0 else 0)


def scale_byte(amax: float, recipe: Recipe) -> int:
    if not math.isfinite(amax):
        return 255
    if amax == 0:
        return 0
    m, x = math.frexp(amax)
    e = x - 1 - 8 if recipe is Recipe.FLOOR else x - 9 + (m > 0.875)
    return min(max(e, -127), 127) + 127


def quantize(block: Sequence[float], recipe: Recipe) -> tuple[int, list[int]]:
    """The scale byte and the q bytes of one block of finite numbers; doubles hold every product exactly."""
    byte = scale_byte(max(map(abs, block)), recipe)
    return byte, [e4m3(math.ldexp(v, 127 - byte)) for v in block]
