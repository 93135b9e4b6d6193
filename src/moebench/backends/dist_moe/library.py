"""The real dist_moe (PyPI `dist-moe`, Blackwell only): an adapter, written from its documentation.

One context serves all layers of a case. Weights are quantised once, outside the timed region. The library routes,
dispatches, computes the routed experts and combines; shared experts run beside it on a stream of their own.

Rules that callers keep: every rank makes the same calls in the same order; in training a forward is followed by its
backward before the next begins (`rank/` does so in checks, warm-ups and windows alike). Too many rows, or unequal
token counts, trap on the device: a CUDA error that ends the process, after which nothing of the context may be used.
"""

import importlib
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from moebench.backends.dist_moe.capacity import DistMoeCapacity
from moebench.backends.dist_moe.library_config import block_scaled, library_config
from moebench.backends.dist_moe.library_limits import check_rows_fit, why_library_cannot
from moebench.backends.dist_moe.library_note import Note, prepared_bytes
from moebench.backends.dist_moe.library_requirements import PACKAGE, found_here, installed, what_is_missing
from moebench.backends.dist_moe.library_shared import SharedBeside
from moebench.backends.dist_moe.library_slot import Kept, check_slot, kept_by_forward
from moebench.backends.protocol import Backend, LayerWeights, Setup
from moebench.cases.case import PIPELINES, Case, Category
from moebench.rank.step import chain


class DistMoeLibrary(Backend):
    name = "dist_moe"
    implementation: ClassVar[str] = "library"
    pipelines = PIPELINES["dist_moe"]
    fast_math: ClassVar[bool] = True
    emulated: ClassVar[bool] = False

    @classmethod
    def missing(cls) -> str | None:
        return what_is_missing(found_here())

    @classmethod
    def unsupported(cls, case: Case) -> str | None:
        return why_library_cannot(case)

    @classmethod
    def why_no_cuda_graph(cls, case: Case) -> str | None:
        """Nothing of a layer waits for the host, as the library documents; the eager check before warms it up."""
        return None

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        case = setup.case
        self._dist_moe = importlib.import_module("dist_moe")
        self._config = library_config(self._dist_moe, case)
        self._plan = self._dist_moe.plan_memory(self._config, ep_size=case.ep)
        check_rows_fit(case, setup.ids_PTK, self._plan.total_scratch_capacity_rows)
        self._weights = [self._prepared(weights) for weights in setup.weights]
        self._shared = SharedBeside(setup.device)
        self._context: Any = None

    def note(self) -> Note:
        return Note(
            package=installed(PACKAGE),
            scratch_rows=self._plan.total_scratch_capacity_rows,
            buffer_bytes=self._plan.total_device_buffer_bytes,
            prepared_weight_bytes=sum(prepared_bytes(w) for pair in self._weights for w in pair),
            num_sms=self._config.num_sms,
        )

    def _prepared(self, weights: LayerWeights) -> tuple[Any, Any]:
        """What the library takes for W13 and W2. Gradients reach the weights themselves: quantised ones refer to
        them as their source."""
        policy = block_scaled(self._dist_moe, self.setup.case)
        if policy is None:
            return weights.w13_eGD, weights.w2_eDF
        prepare, inference = self._dist_moe.prepare_block_scaled_weight, not self.setup.case.training
        return (
            prepare(weights.w13_eGD, policy, inference=inference),
            prepare(weights.w2_eDF, policy, inference=inference),
        )

    def _opened(self) -> Any:
        """The context. The first layer makes it, not the constructor: that is collective, and a rank that fails in
        its constructor would leave the others waiting; by the first layer all have agreed to go on."""
        if self._context is None:
            self._context = self._dist_moe.create_context(
                group=dist.group.WORLD, config=self._config, device=self.setup.device
            )
        return self._context

    def layer(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> Tensor:
        self._opened()
        weights, stages = self.setup.weights[l], self.setup.stages
        if not self.setup.case.shape.S:
            return self._routed(l, x_TD, ids_TK, scores_TK)
        stages.mark("shared expert")
        shared_TD = self._shared.fork(x_TD, weights.shared13_GD, weights.shared2_DF)
        routed_TD = self._routed(l, x_TD, ids_TK, scores_TK)
        stages.mark("join")
        return routed_TD + self._shared.join(shared_TD)

    def _routed(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> Tensor:
        self.setup.stages.mark("routed experts")
        y_TD: Tensor = self._dist_moe.routed_experts(x_TD, ids_TK, scores_TK, *self._weights[l], self._context)
        return y_TD

    def capacity(self) -> dict[str, Any] | None:
        """In packing, the library's plan and what one more, untimed iteration keeps of it. Collective.

        Raises where the run before overflowed a buffer, or left the activation slot in use.
        """
        case = self.setup.case
        context = self._opened()
        check_slot(context)
        if case.category is not Category.PACKING:
            return None
        kept = kept_by_forward(context, case.ep, self._probe) if case.training else Kept([0], 0)
        if kept is None:
            return None
        return DistMoeCapacity(
            slot_bytes=self._plan.activation_slot_bytes,
            slot_factor=case.capacity.slot_factor,
            scratch_bytes=self._plan.device_scratch_bytes,
            scratch_factor=case.capacity.scratch_factor,
            host_scratch_bytes=self._plan.host_scratch_bytes,
            slots=self._plan.num_activation_slots,
            saved_rank0_bytes=kept.bytes_P[0],
            max_saved_rank_bytes=max(kept.bytes_P),
            capacity_recompute_flags=kept.recomputed_layers * case.ep,
            inspected_rank_layers=case.ep * case.layers,
        ).model_dump(by_alias=True)

    @torch.enable_grad()
    def _probe(self, after_layer: Callable[[], None]) -> None:
        """Forward and backward of the routed experts on the case's routing. What is kept depends on nothing else, so
        x and scores are constants. No gradient is left behind."""
        case, device, s = self.setup.case, self.setup.device, self.setup.case.shape
        ids_LTK = [torch.from_numpy(ids[self.setup.rank]).long().to(device) for ids in self.setup.ids_PTK]
        x_TD = torch.ones(s.T, s.D, dtype=torch.bfloat16, device=device, requires_grad=True)
        scores_TK = torch.full((s.T, s.K), 1 / s.K, device=device)

        def layer(l: int, h_TD: Tensor) -> Tensor:
            y_TD = self._routed(l, h_TD, ids_LTK[l], scores_TK)
            after_layer()
            return y_TD

        y_TD = chain(case.layers, x_TD, layer)
        torch.autograd.grad(y_TD, x_TD, torch.ones_like(y_TD))

    def close(self) -> None:
        """After a trap the device answers with its error here, and the context is left alone."""
        context, self._context, self._weights = self._context, None, []
        if context is not None:
            wait_for(self.setup.device)
            context.close()


def wait_for(device: torch.device) -> None:
    """All work queued on a device; raises the error that a kernel died of."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
