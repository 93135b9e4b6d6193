"""mok's execution strategy in PyTorch: padded experts, minibatches, macrobatches last to first, replay.

Written from the published description of the kernel, not from its code. Where the library pulls and pushes rows
one-sidedly, this re-creation uses all-to-all with split sizes known to the host; every rank loops to the largest
macrobatch count over ranks. The last macrobatch runs first, so that backward finds the first one's rows kept.
Legend: B rows of a macrobatch's buffer, S = T*K slots, e experts of the rank, G = 2F.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moebench.backends.combine import combine, combine_backward, places, sum_of_rows
from moebench.backends.experts import Bf16Experts, Experts
from moebench.backends.manual import Gradients, ManualBackend
from moebench.backends.mok.capacity import capacity_from_rows, macrobatches, retained_rows, schedule_rows
from moebench.backends.mok.schedule import Routes, macrobatch_pieces, place_routes, split_sizes
from moebench.backends.mxfp8_experts import ROW_BLOCK, Mxfp8Experts
from moebench.backends.piece import Piece, Splits, add_weight_gradient, lay_out, send, send_back
from moebench.backends.protocol import Setup
from moebench.backends.shared import SharedForward, shared_backward, shared_forward
from moebench.backends.swiglu import swiglu, swiglu_backward
from moebench.cases.case import PIPELINES, Case, Category, Precision
from moebench.quant.mxfp8 import Recipe
from moebench.rank.exchange import Pending


@dataclass(frozen=True)
class Context:
    """What forward keeps for backward: schedule, shared activations, and the first macrobatch's rows."""

    pieces: list[Piece]
    place_TK: Tensor
    shared: SharedForward | None
    x_BD: Tensor
    h13_BG: Tensor


class MokBackend(ManualBackend):
    name = "mok"
    pipelines = PIPELINES["mok"]
    host_known_splits = True

    @classmethod
    def why_no_cuda_graph(cls, case: Case) -> str | None:
        return None

    @classmethod
    def unsupported(cls, case: Case) -> str | None:
        c = case.capacity
        if (
            case.precision is Precision.MXFP8
            and case.training
            and (c.pad_rows % ROW_BLOCK or retained_rows(case) % ROW_BLOCK)
        ):
            return (
                f"mok mxfp8 training quantises along {ROW_BLOCK} rows of one expert: pad_rows={c.pad_rows} and the "
                f"{retained_rows(case)} rows of a macrobatch must be multiples of it"
            )
        return None

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        case = setup.case
        self._retained = retained_rows(case)
        self._received: list[int] = []
        self._splits: list[list[Splits]] = []
        for l, ids_PTK in enumerate(setup.ids_PTK):
            ids_PS = torch.from_numpy(ids_PTK.reshape(case.ep, -1)).long()
            rows_E = torch.bincount(ids_PS.reshape(-1), minlength=case.shape.E)
            scheduled_P = schedule_rows(rows_E.numpy(), case.ep, case.capacity.pad_rows)
            count = max(1, int(macrobatches(scheduled_P, self._retained).max()))
            self._received.append(int((ids_PS // case.experts_per_rank == setup.rank).sum()))
            self._splits.append(split_sizes(self._routes(l, ids_PS), case.ep, self._retained, count))
        self._scheduled_L = [0] * case.layers
        self._replayed_L = [0] * case.layers
        self._experts: list[Experts] = [
            Mxfp8Experts(w.w13_eGD, w.w2_eDF, Recipe.CEIL)
            if case.precision is Precision.MXFP8
            else Bf16Experts(w.w13_eGD, w.w2_eDF)
            for w in setup.weights
        ]

    def capacity(self) -> dict[str, Any] | None:
        """Rows that the last iteration scheduled and replayed, over all ranks. Collective."""
        case = self.setup.case
        if case.category is not Category.PACKING:
            return None
        mine_2L = torch.tensor([self._scheduled_L, self._replayed_L], device=self.setup.device)
        scheduled_LP, replayed_LP = self.setup.exchange.all_gather("capacity", mine_2L).wait().permute(1, 2, 0)
        return capacity_from_rows(
            case, scheduled_LP.cpu().numpy(), replayed_LP.cpu().numpy(), planned=False
        ).model_dump(by_alias=True)

    def _routes(self, l: int, ids_PS: Tensor) -> Routes:
        case = self.setup.case
        return place_routes(ids_PS, self.setup.rank, case.shape.E, case.capacity.pad_rows, self._received[l])

    def _pieces(self, l: int, ids_TK: Tensor) -> list[Piece]:
        ids_PS = self.setup.exchange.all_gather("metadata", ids_TK.reshape(-1).int()).wait().long()
        return macrobatch_pieces(self._routes(l, ids_PS), self._splits[l], self._retained)

    def _minibatches(self, piece: Piece, work: Callable[[slice, Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """`work(rows, ends_e)` on each minibatch of a piece, results joined along rows."""
        size, rows = self.setup.case.capacity.minibatch_rows, piece.splits.buffer_rows
        if rows <= size:
            return work(slice(0, rows), piece.ends_e)
        parts = [
            work(slice(start, start + size), (piece.ends_e - start).clamp(0, size)) for start in range(0, rows, size)
        ]
        return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))

    def forward(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> tuple[Tensor, Context]:
        exchange, stages, experts = self.setup.exchange, self.setup.stages, self._experts[l]
        weights, K = self.setup.weights[l], ids_TK.shape[1]
        pieces = self._pieces(l, ids_TK)
        last = len(pieces) - 1

        def dispatch(m: int) -> Pending:
            stages.mark(f"dispatch {m} start")
            return send(exchange, "dispatch", pieces[m], x_TD[pieces[m].slots_S // K])

        def gate_up_down(x_BD: Tensor, piece: Piece) -> tuple[Tensor, ...]:
            def work(rows: slice, ends_e: Tensor) -> tuple[Tensor, ...]:
                h13_BG = experts.up(x_BD[rows], ends_e)
                return h13_BG, experts.down(swiglu(h13_BG), ends_e)

            return self._minibatches(piece, work)

        arriving = dispatch(last)
        shared = None
        if self.setup.case.shape.S:
            stages.mark("shared expert")
            shared = shared_forward(x_TD, weights.shared13_GD, weights.shared2_DF)
        returned: list[Tensor] = []
        for m in range(last, -1, -1):
            x_BD = lay_out(pieces[m], arriving.wait())
            stages.mark(f"dispatch {m} done")
            h13_BG, out_BD = gate_up_down(x_BD, pieces[m])
            stages.mark(f"combine {m} start")
            returning = send_back(exchange, "combine", pieces[m], out_BD)
            if m > 0:
                arriving = dispatch(m - 1)
            returned.insert(0, returning.wait())
            stages.mark(f"combine {m} done")
        place_TK = places(torch.cat([piece.slots_S for piece in pieces]), K)
        y_TD = combine(_joined(returned), place_TK, scores_TK, shared.y_TD if shared else None)
        self._scheduled_L[l] = sum(piece.splits.buffer_rows for piece in pieces)
        self._replayed_L[l] = 0
        return y_TD, Context(pieces, place_TK, shared, x_BD, h13_BG)

    def backward(self, l: int, context: Context, x_TD: Tensor, scores_TK: Tensor, dy_TD: Tensor) -> Gradients:
        """Macrobatch 0 from what forward kept; each later one replays dispatch, gate, up and SwiGLU first."""
        exchange, stages, experts = self.setup.exchange, self.setup.stages, self._experts[l]
        weights, pieces = self.setup.weights[l], context.pieces
        T, K = scores_TK.shape
        dout_SD, _ = combine_backward(None, context.place_TK, scores_TK, dy_TD)
        douts_SD, scores_S = dout_SD.split([len(piece.slots_S) for piece in pieces]), scores_TK.reshape(-1)

        def pull(m: int) -> list[Pending]:
            stages.mark(f"backward dispatch {m} start")
            slots_S = pieces[m].slots_S
            pulled = [
                send(exchange, "router weights", pieces[m], scores_S[slots_S]),
                send(exchange, "backward dispatch", pieces[m], douts_SD[m]),
            ]
            if m > 0:
                pulled.append(send(exchange, "replay", pieces[m], x_TD[slots_S // K]))
            return pulled

        pulled = pull(0)
        dshared = None
        if context.shared is not None:
            stages.mark("shared expert backward")
            dshared = shared_backward(dy_TD, x_TD, context.shared.h13_TG, weights.shared13_GD, weights.shared2_DF)
        dxs_SD: list[Tensor] = []
        dscores_S = torch.empty_like(scores_S)
        dw13_eGD = dw2_eDF = None
        for m, piece in enumerate(pieces):
            score_B, dout_BD, *replayed = [lay_out(piece, pending.wait()) for pending in pulled]
            if m == 0:
                x_BD, h13_BG = context.x_BD, context.h13_BG
            else:
                stages.mark(f"replay {m}")
                self._replayed_L[l] += piece.splits.buffer_rows
                x_BD = replayed[0]
                (h13_BG,) = self._minibatches(piece, lambda rows, ends_e: (experts.up(x_BD[rows], ends_e),))  # noqa: B023

            def work(rows: slice, ends_e: Tensor) -> tuple[Tensor, ...]:
                dh_BF = experts.down_dgrad(dout_BD[rows], ends_e)  # noqa: B023
                dh13_BG, h_BF = swiglu_backward(dh_BF, h13_BG[rows])  # noqa: B023
                dscore_B = torch.einsum("bf,bf->b", dh_BF.float(), h_BF.float()) / score_B[rows]  # noqa: B023
                return dscore_B, h_BF, dh13_BG, experts.up_dgrad(dh13_BG, ends_e)

            dscore_B, h_BF, dh13_BG, dx_BD = self._minibatches(piece, work)
            dw2_eDF = add_weight_gradient(dw2_eDF, experts.down_wgrad(dout_BD, h_BF, piece.ends_e))
            dw13_eGD = add_weight_gradient(dw13_eGD, experts.up_wgrad(dh13_BG, x_BD, piece.ends_e))
            stages.mark(f"backward combine {m} start")
            returning_score = send_back(exchange, "router gradients", piece, dscore_B)
            returning_dx = send_back(exchange, "backward combine", piece, dx_BD)
            if m + 1 < len(pieces):
                pulled = pull(m + 1)
            dscores_S[piece.slots_S] = returning_score.wait()
            dxs_SD.append(returning_dx.wait())
        assert dw13_eGD is not None
        assert dw2_eDF is not None
        return Gradients(
            sum_of_rows(_joined(dxs_SD), context.place_TK, dshared.dx_TD if dshared else None),
            dscores_S.view(T, K),
            dw13_eGD,
            dw2_eDF,
            dshared.dw13_GD if dshared else None,
            dshared.dw2_DF if dshared else None,
        )


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
