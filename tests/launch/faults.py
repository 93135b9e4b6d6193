"""Matrices of faulty cases."""

from pathlib import Path

from tests.launch.faulty import F_of

BACKEND = "tests.launch.faulty:Faulty"


def write_matrix(path: Path, faults: list[str], backends: list[str], iterations: int = 2) -> Path:
    """Inference at 2 ranks; each fault in a case of its own, each case by every backend."""
    path.write_text(
        f"""
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
        [[sweep]]
        category = "width"
        backend = {backends}
        mode = "inference"
        ep = 2
        precision = "bf16"
        F = {[F_of(fault) for fault in faults]}
        """
    )
    return path


def case_id(fault: str, backend: str = "faulty") -> str:
    return f"{backend}-inference-ep2-bf16-eager-width-i1-F{F_of(fault)}"
