"""An exchange that writes into the stages when a collective starts and when somebody waits for it."""

from torch import Tensor

from moebench.backends.protocol import Stages
from moebench.rank.exchange import Exchange, Pending


class _Watched(Pending):
    def __init__(self, pending: Pending, kind: str, names: list[str]) -> None:
        super().__init__(pending.out, None)
        self._pending, self._kind, self._names = pending, kind, names

    def wait(self) -> Tensor:
        self._names.append(f"wait for {self._kind}")
        return self._pending.wait()


class WatchedExchange(Exchange):
    """Real collectives. Events stand between the backend's own marks, which it could set as it likes."""

    def __init__(self, rank: int, world_size: int, stages: Stages) -> None:
        super().__init__(rank, world_size)
        self._stages = stages

    def all_to_all(self, kind: str, x: Tensor, send_rows: list[int], receive_rows: list[int]) -> Pending:
        self._stages.names.append(f"send {kind}")
        return _Watched(super().all_to_all(kind, x, send_rows, receive_rows), kind, self._stages.names)
