"""The real mok (Mixture-of-Kittens): an adapter to the library, which runs on Blackwell only.

One layer is `build_schedule` and `forward`, as in mok's own benchmark, with weights laid out and quantised before.
mok has no mode for inference: its forward always writes what backward would need, and inference drops that. Calls on
the one workspace are serial, and every `build_schedule` is followed by its forward, without which the next one could
overwrite routing that a slow peer still reads.
Legend: L layers, G = 2F, gate rows then up rows.
"""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from moebench.backends.manual import Gradients, ManualBackend
from moebench.backends.mok import library_api, library_limits
from moebench.backends.mok.capacity import capacity_from_rows, replay_rows, retained_rows
from moebench.backends.mok.library_note import Note, workspace_bytes
from moebench.backends.mok.library_plan import plan, rows_by_expert
from moebench.backends.mok.library_weights import prepare_bf16, prepare_mxfp8
from moebench.backends.protocol import Setup
from moebench.cases.case import PIPELINES, Case, Category, Precision
from moebench.cases.work import layer_rows


@dataclass
class Kept:
    """What forward keeps for one backward, which replays rows into it and so spoils it."""

    schedule: Any
    context: Any | None

    def take(self) -> Any:
        """The forward context. Raises RuntimeError the second time."""
        context, self.context = self.context, None
        if context is None:
            raise RuntimeError("mok's forward context serves one backward only; run forward again")
        return context


class MokLibrary(ManualBackend):
    name = "mok"
    implementation: ClassVar[str] = "library"
    pipelines = PIPELINES["mok"]
    emulated: ClassVar[bool] = False
    scopes: ClassVar[dict[bool, str]] = {
        False: "training forward whose context is dropped: mok has no mode for inference",
        True: "forward and backward",
    }
    """By whether the case trains."""

    @classmethod
    def missing(cls) -> str | None:
        return library_limits.what_is_missing()

    @classmethod
    def unsupported(cls, case: Case) -> str | None:
        """Limits of every mok first, then those of this launch and of the mok that is installed."""
        reason = library_limits.why_case_exceeds_limits(case) or library_limits.why_launch_does_not_fit(case)
        if reason is not None:
            return reason
        try:
            api = library_api.load()
        except (ImportError, library_api.UnknownGeneration) as error:
            return str(error)
        if case.ep == 1 and not api.features.recompute:
            return "this version of mok, which has no recompute_forward_context, does not run on one rank"
        return _refusal(api, case)

    @classmethod
    def why_no_cuda_graph(cls, case: Case) -> str | None:
        """No call of mok waits for the host once its workspace is made, which the eager check before capture does."""
        return None

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        case = setup.case
        self._api = library_api.load()
        rows_LE = [rows_by_expert(ids_PTK, case.shape.E) for ids_PTK in setup.ids_PTK]
        self._plan = plan(case, rows_LE, self._api.default_multiplier)
        self._config = self._api.config(self._plan.settings)
        _try_a_kernel(self._api, setup.device)
        self._weights = [
            prepare_mxfp8(w, self._api.quantize, case.training)
            if case.precision is Precision.MXFP8
            else prepare_bf16(w)
            for w in setup.weights
        ]
        self._workspace: Any | None = None
        self._num_rows_L: list[Tensor | None] = [None] * case.layers
        self._apart_L: list[tuple[Tensor, Tensor, Tensor, Tensor] | None] = [None] * case.layers
        """Gradients of gate and up, routed and shared, as mok returned them."""

    def note(self) -> Note:
        case = self.setup.case
        return Note(
            library=self._api.features,
            settings=self._plan.settings,
            schedule_capacity=self._plan.schedule_capacity,
            most_rows=self._plan.most_rows,
            scope=self.scopes[case.training],
            workspace_bytes=workspace_bytes(case),
            copied_weight_bytes=sum(w.copied_bytes for w in self._weights),
        )

    def _joined_workspace(self) -> Any:
        """The workspace that all layers share. Collective when first called.

        That is in the first layer of the untimed check and not in the constructor, for only then have the ranks agreed
        that all of them are ready: a rank that had failed would leave the others waiting in here.
        """
        if self._workspace is None:
            self._workspace = self._make_workspace()
        return self._workspace

    def _make_workspace(self) -> Any:
        s, setup = self.setup.case.shape, self.setup
        workspace = self._api.functional.get_workspace(
            self._config, dist.group.WORLD, device=setup.device, num_local_tokens=s.T, hidden_size=s.D, topk=s.K
        )
        complaint = _complaint(workspace, self._plan.most_rows)
        complains = torch.tensor([complaint is not None], device=setup.device)
        complains_P = setup.exchange.all_gather("set-up", complains).wait().flatten().tolist()
        if any(complains_P):
            where = ", ".join(str(rank) for rank, complained in enumerate(complains_P) if complained)
            raise RuntimeError(f"mok's workspace cannot be used on ranks {where}: {complaint or 'see their records'}")
        return workspace

    def forward(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> tuple[Tensor, Kept]:
        mok, workspace, weights = self._api.functional, self._joined_workspace(), self._weights[l]
        schedule = mok.build_schedule(
            workspace, self._config, ids_TK.contiguous(), num_local_experts=self.setup.case.experts_per_rank
        )
        self._num_rows_L[l] = schedule.num_tokens
        self._apart_L[l] = None
        y_TD, context = mok.forward(
            self._config,
            workspace,
            schedule,
            x_TD.contiguous(),
            scores_TK.contiguous(),
            *weights.shared,
            *weights.forward,
        )
        return y_TD, Kept(schedule, context)

    def backward(self, l: int, context: Kept, x_TD: Tensor, scores_TK: Tensor, dy_TD: Tensor) -> Gradients:
        """mok returns the routed experts' gradients before the shared one's, though it takes them the other way."""
        weights = self._weights[l]
        gradients = self._api.functional.backward(
            self._config,
            self._joined_workspace(),
            context.schedule,
            context.take(),
            dy_TD.contiguous(),
            x_TD.contiguous(),
            scores_TK.contiguous(),
            *weights.shared,
            *weights.backward,
        )
        # A version with a gate of the shared expert returns that gate's gradient as the ninth.
        dx_TD, dscores_TK, dgate_eFD, dup_eFD, ddown_eDF, dgate_FD, dup_FD, ddown_DF = gradients[:8]
        self._apart_L[l] = dgate_eFD, dup_eFD, dgate_FD, dup_FD
        return Gradients(dx_TD, dscores_TK, None, ddown_eDF, None, ddown_DF)

    def deliver_gradients(self) -> None:
        """Join gate and up as w13 has them."""
        for weights, apart in zip(self.setup.weights, self._apart_L, strict=True):
            if apart is not None:
                dgate_eFD, dup_eFD, dgate_FD, dup_FD = apart
                weights.w13_eGD.grad = torch.cat([dgate_eFD, dup_eFD], dim=1)
                weights.shared13_GD.grad = torch.cat([dgate_FD, dup_FD])

    def capacity(self) -> dict[str, Any] | None:
        """Rows that mok scheduled in the last iteration, over all ranks, and those that backward replayed of them:
        all beyond the first macrobatch. Collective, and waits for the device."""
        case = self.setup.case
        if case.category is not Category.PACKING:
            return None
        mine_L = torch.cat([rows for rows in self._num_rows_L if rows is not None]).long()
        scheduled_LP = self.setup.exchange.all_gather("capacity", mine_L).wait().t().cpu().numpy()
        retained = retained_rows(case)
        replayed_LP = [replay_rows(rows_P, retained) if case.training else 0 * rows_P for rows_P in scheduled_LP]
        return capacity_from_rows(case, list(scheduled_LP), replayed_LP, planned=False).model_dump(by_alias=True)

    def close(self) -> None:
        """Free the workspace. Collective, so not while an exception is on its way: then the peers are elsewhere, or
        the device is dead after a trap, and the process is about to end."""
        workspace, self._workspace = self._workspace, None
        if workspace is None or sys.exc_info()[0] is not None:
            return
        if self.setup.device.type == "cuda":
            torch.cuda.synchronize(self.setup.device)  # a trap must show here, before peers are met
        dist.barrier()
        self._api.functional.clear_workspace_cache()


def _refusal(api: library_api.Api, case: Case) -> str | None:
    """What the installed mok itself says against the case. Asks its own check where it has one; no collective."""
    validate = getattr(api.functional, "validate_workspace_args", None)
    if validate is None or not dist.is_initialized():
        return None
    s = case.shape
    config = api.config(plan(case, layer_rows(case), api.default_multiplier).settings)
    device = library_limits.current_gpu()
    try:
        validate(config, dist.group.WORLD, device=device, num_local_tokens=s.T, hidden_size=s.D, topk=s.K)
    except (ValueError, TypeError, NotImplementedError) as error:
        return f"mok refuses the case: {error}"
    return None


def _try_a_kernel(api: library_api.Api, device: torch.device) -> None:
    """Launch mok's smallest kernel: a build for another architecture loads, but has no code for this GPU."""
    try:
        api.quantize(torch.zeros(1, 128, 128, dtype=torch.bfloat16, device=device), True, False)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise RuntimeError(
            f"mok's kernels do not run on this GPU, perhaps built for another one ({error}); "
            f"{library_limits.BUILD_HINT}"
        ) from error


def _complaint(workspace: Any, most_rows: int) -> str | None:
    """Why a workspace would trap or strand the ranks, or None."""
    if workspace.schedule_capacity < most_rows:
        return f"its schedule holds {workspace.schedule_capacity} rows, the fullest rank has {most_rows}"
    for pointer in ("all_gather_top_experts_buffer_multicast_ptr", "barrier_buffer_multicast_ptr"):
        if getattr(workspace, pointer, 1) <= 0:
            return f"{pointer} is 0: no NVLink multicast (NVLS) in this group"
    return None
