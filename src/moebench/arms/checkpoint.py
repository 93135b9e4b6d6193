"""Checkpoints: tensors by name and some JSON in one NumPy archive for each rank. Nothing is pickled."""

import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moebench.errors import UsageError
from moebench.inert import quoted
from moebench.rank.trace import write_atomically

_META = "meta.json"


def save(folder: Path, step: int, rank: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write this rank's part of the checkpoint of a step; it counts once `commit` has been called."""
    path = _path(folder, step, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: _as_array(tensor) for name, tensor in tensors.items()}
    arrays[_META] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())


def commit(folder: Path, step: int) -> None:
    """All ranks have written this step: it is the latest, and older ones go."""
    write_atomically(folder / "latest.json", json.dumps({"step": step}))
    for other in folder.glob("step-*"):
        if other.name != f"step-{step}":
            shutil.rmtree(other, ignore_errors=True)


def latest(folder: Path) -> int | None:
    """The step of the latest checkpoint; none if there is none. Raises UsageError where the note of it is corrupt."""
    path = folder / "latest.json"
    if not path.exists():
        return None
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _corrupt(path, error) from error


def restore(folder: Path, step: int, rank: int, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Copy this rank's part into `tensors`, in place, and return its meta. Raises UsageError where it is corrupt or of
    another model."""
    path = _path(folder, step, rank)
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}  # reads all of it: a checksum may not match
        meta: dict[str, Any] = json.loads(found.pop(_META).tobytes())
        if set(found) != set(tensors):
            raise ValueError(f"it holds {len(found)} tensors, not the {len(tensors)} of this run")
        for name, tensor in tensors.items():
            _copy(found[name], tensor, name)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise _corrupt(path, error) from error
    return meta


def _path(folder: Path, step: int, rank: int) -> Path:
    return folder / f"step-{step}" / f"rank-{rank}.npz"


def _corrupt(path: Path, error: Exception) -> UsageError:
    return UsageError(
        f"{path}: the checkpoint is corrupt: {quoted(error)}. Delete the folder {path.parent.parent.name} beside it, "
        "and --resume trains this arm from the beginning."
    )


def _as_array(tensor: Tensor) -> Any:
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _copy(array: Any, tensor: Tensor, name: str) -> None:
    loaded = torch.from_numpy(array)
    if tensor.dtype == torch.bfloat16:
        loaded = loaded.view(torch.bfloat16)
    if loaded.shape != tensor.shape or loaded.dtype != tensor.dtype:
        raise ValueError(f"{name} is {tuple(loaded.shape)} instead of {tuple(tensor.shape)}")
    with torch.no_grad():
        tensor.copy_(loaded)
