"""The plain baseline: what a user writes today with torch alone.

permute -> all_to_all_single -> grouped GEMM -> SwiGLU -> grouped GEMM -> all_to_all_single -> weighted sum,
the shared expert while the dispatch is in flight. Above ep 1 the split sizes are exchanged and read on the host
inside the layer, as users do.
"""

import torch
from torch import Tensor

from moebench.backends import gemm
from moebench.backends.combine import combine
from moebench.backends.protocol import Backend
from moebench.backends.swiglu import shared_expert, swiglu
from moebench.cases.case import Case, Precision


class TorchBackend(Backend):
    name = "torch"

    @classmethod
    def unsupported(cls, case: Case) -> str | None:
        if case.training:
            return "training is not there yet"
        if case.precision is not Precision.BF16:
            return "mxfp8 is not there yet"
        return None

    def layer(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> Tensor:
        case, exchange, stages = self.setup.case, self.setup.exchange, self.setup.stages
        weights = self.setup.weights[l]
        T, K = ids_TK.shape
        P, e = case.ep, case.experts_per_rank

        slots_R = torch.argsort(ids_TK.reshape(-1), stable=True)
        sent_Pe = torch.bincount(ids_TK.reshape(-1), minlength=case.shape.E).view(P, e)
        if P > 1:
            received_Pe = exchange.all_to_all("metadata", sent_Pe, [1] * P, [1] * P).wait()
            splits = torch.stack([sent_Pe.sum(1), received_Pe.sum(1)]).tolist()
            send_rows, receive_rows = splits[0], splits[1]
        else:
            received_Pe, send_rows, receive_rows = sent_Pe, [T * K], [T * K]

        stages.mark("dispatch start")
        dispatch = exchange.all_to_all("dispatch", x_TD[slots_R // K], send_rows, receive_rows)
        shared_TD = None
        if case.shape.S:
            stages.mark("shared expert")
            shared_TD = shared_expert(x_TD, weights.shared13_GD, weights.shared2_DF)
        x_RD = dispatch.wait()
        stages.mark("dispatch done")

        expert_R = torch.arange(e, device=x_TD.device).repeat(P)
        expert_R = torch.repeat_interleave(expert_R, received_Pe.reshape(-1), output_size=sum(receive_rows))
        by_expert_R = torch.argsort(expert_R, stable=True)
        ends_e = gemm.ends_of(received_Pe.sum(0))
        h_RF = swiglu(gemm.grouped_linear(x_RD[by_expert_R], weights.w13_eGD, ends_e))
        out_RD = gemm.grouped_linear(h_RF, weights.w2_eDF, ends_e)
        back_RD = torch.empty_like(out_RD)
        back_RD[by_expert_R] = out_RD

        stages.mark("combine start")
        returned_RD = exchange.all_to_all("combine", back_RD, receive_rows, send_rows).wait()
        stages.mark("combine done")
        routed_SD = torch.empty_like(returned_RD)
        routed_SD[slots_R] = returned_RD
        return combine(routed_SD.view(T, K, -1), scores_TK, shared_TD)
