"""Batches by seed and step: the same ones in the same order for both arms and for every rank."""

import time
from collections import OrderedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moebench.arms.config import Preset
from moebench.arms.data import Tokens
from moebench.arms.local import Inputs

Ids = NDArray[np.int32]


class Batches:
    """Batch t is B windows of S + 1 tokens: windows in a random order, a new one each epoch. Any t at any time."""

    def __init__(self, tokens: Tokens, seq: int, batch: int, seed: int) -> None:
        self._tokens, self._seq, self._batch, self._seed = tokens, seq, batch, seed
        self._windows = (len(tokens) - 1) // seq
        self._orders: OrderedDict[int, NDArray[np.int64]] = OrderedDict()

    def __getitem__(self, step: int) -> Ids:
        """[B, S + 1]."""
        first = step * self._batch
        return np.stack([self._window(*divmod(first + i, self._windows)) for i in range(self._batch)])

    def _window(self, epoch: int, index: int) -> Ids:
        if epoch not in self._orders:
            self._orders[epoch] = np.random.default_rng([self._seed, epoch]).permutation(self._windows)
            if len(self._orders) > 2:
                self._orders.popitem(last=False)
        start = int(self._orders[epoch][index]) * self._seq
        return self._tokens[start : start + self._seq + 1].astype(np.int32)


class Loader:
    """Moves batches to the device without ever waiting for it. `seconds` is what the host spent on it."""

    def __init__(self, batches: Batches, preset: Preset, device: torch.device) -> None:
        self._batches, self._preset, self._device = batches, preset, device
        self._recent: OrderedDict[int, Ids] = OrderedDict()
        self.seconds = 0.0

    def batch(self, step: int) -> Tensor:
        """Token ids [B, S + 1]."""
        began = time.perf_counter()
        moved = self._move(self._batches[step])
        self.seconds += time.perf_counter() - began
        return moved

    def tick(self, tick: int, units: range) -> Inputs:
        """For each unit the batch that has reached it; before that its first one, not active."""
        began = time.perf_counter()
        local, train = self._preset.local, self._preset.train
        tokens_UBT = np.stack([self._kept(max(0, tick - unit), keep=len(units)) for unit in units])
        random = np.random.default_rng([train.seed, 1, tick])
        positions = train.batch * self._preset.model.seq
        looked_at = max(1, round(positions * local.positions)) if local.positions < 1 else 0
        inputs = Inputs(
            self._move(tokens_UBT),
            self._move(np.array([tick >= unit for unit in units], np.float32)),
            self._move(random.permutation(positions)[:looked_at]),
            self._move(random.integers(local.final_frequent, self._preset.model.vocab, local.final_sampled)),
        )
        self.seconds += time.perf_counter() - began
        return inputs

    def _kept(self, step: int, keep: int) -> Ids:
        if step not in self._recent:
            self._recent[step] = self._batches[step]
            while len(self._recent) > keep:
                self._recent.popitem(last=False)
        return self._recent[step]

    def _move(self, array: NDArray[np.generic]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu" or not array.size:
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)
