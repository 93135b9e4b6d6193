"""A matrix of small cases of 2 ranks, told apart by F."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def write_matrix(path: Path, widths_of: Mapping[str, Sequence[int]], iterations: int = 2) -> Path:
    """Inference in bf16 by each backend, in the widths F given for it (multiples of 8)."""
    blocks = [
        f"""
        [[sweep]]
        category = "width"
        backend = "{backend}"
        mode = "inference"
        ep = 2
        precision = "bf16"
        F = {list(widths)}
        """
        for backend, widths in widths_of.items()
    ]
    head = f"""
        [shape]
        T = 16
        D = 32
        E = 4
        K = 2
        F = 104
        [measure]
        windows = 1
        iterations = {iterations}
        warmups = 1
        max_warmups = 1
        """
    path.write_text(head + "".join(blocks))
    return path


def case_id(F: int, backend: str = "torch") -> str:
    return f"{backend}-inference-ep2-bf16-eager-width-i1-F{F}"
