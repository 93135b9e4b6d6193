"""A model and a text that train in no time."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from moebench.arms.config import Preset
from moebench.arms.loader import Batches, Loader

MODEL = {"vocab": 300, "dim": 16, "n_blocks": 4, "n_heads": 2, "seq": 12, "mlp_mult": 2}
TRAIN = {"batch": 4, "budget_seconds": 60.0, "learning_rate": 0.01, "warmup_steps": 2, "final_share": 0.1}
LOCAL = {"classes": 64, "final_frequent": 100, "final_sampled": 0}
CPU = torch.device("cpu")


def preset(**tables: dict[str, Any]) -> Preset:
    """The small preset with other values in some tables."""
    return Preset.model_validate(_with(tables))


def as_toml(**tables: dict[str, Any]) -> str:
    """The text of a configuration file of that preset."""
    lines = [
        (f"[{name}]", *(f"{key} = {value!r}" for key, value in table.items())) for name, table in _with(tables).items()
    ]
    return "\n".join(line for table in lines for line in table).replace("'", '"') + "\n"


def _with(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    base = {"model": MODEL, "train": TRAIN, "local": LOCAL, "data": {}}
    return {name: table | tables.get(name, {}) for name, table in base.items()}


def tokens(count: int = 2000, vocab: int = 300) -> np.ndarray:
    """Few of them are frequent, as in text."""
    return (np.random.default_rng(0).zipf(1.3, count) % vocab).astype(np.uint32)


def loader(preset: Preset) -> Loader:
    batches = Batches(tokens(), preset.model.seq, preset.train.batch, preset.train.seed)
    return Loader(batches, preset, CPU)


def ranks_by_frequency(vocab: int = 300) -> torch.Tensor:
    order = torch.from_numpy(np.bincount(tokens(), minlength=vocab)).argsort(descending=True, stable=True)
    return order.argsort()


def write_text(folder: Path, files: int = 24) -> list[Path]:
    """Text files that share words, and differ."""
    random = np.random.default_rng(0)
    paths = []
    for number in range(files):
        path = folder / f"text-{number:02d}.txt"
        words = random.choice(["stone", "river", "light", "of", "the", "and", f"n{number}"], size=200)
        path.write_text("\n".join(" ".join(line) for line in words.reshape(-1, 8)), encoding="utf-8")
        paths.append(path)
    return paths
