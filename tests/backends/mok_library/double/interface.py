"""The functions of `mok.functional` with the signatures of each generation."""

from typing import Any

from tests.backends.mok_library.double.faults import Misuse
from torch import Tensor


def functions(double: Any) -> dict[str, Any]:
    """The functional layer of the double's generation, with that generation's signatures."""

    def validate_workspace_args(config, group, *, device, num_local_tokens, hidden_size, topk):
        double.check_workspace_arguments(config, group, device, num_local_tokens, hidden_size, topk)

    def get_workspace(config, group, *, device, num_local_tokens, hidden_size, topk):
        return double.get_workspace(config, group, device, num_local_tokens, hidden_size, topk)

    def clear_workspace_cache():
        double.clear()

    def build_schedule(workspace, config, top_experts, *, num_local_experts):
        return double.build_schedule(workspace, config, top_experts, num_local_experts)

    # fmt: off
    def forward_g0(config, workspace, schedule, x, router_weights, shared_gate_weights, shared_up_weights,
                   shared_down_weights, routed_gate_weights, routed_up_weights, routed_down_weights):
        return double.forward(config, workspace, schedule, x, router_weights, shared_gate_weights, shared_up_weights,
                              shared_down_weights, routed_gate_weights, routed_up_weights, routed_down_weights)

    def forward(config, workspace, schedule, x, router_weights, shared_gate_weights, shared_up_weights,
                shared_down_weights, routed_gate_weights, routed_up_weights, routed_down_weights, swiglu_limit=None):
        return double.forward(config, workspace, schedule, x, router_weights, shared_gate_weights, shared_up_weights,
                              shared_down_weights, routed_gate_weights, routed_up_weights, routed_down_weights,
                              swiglu_limit)

    def backward_g0(config, workspace, schedule, forward_context, grad_output, x, router_weights, shared_gate_weights,
                    shared_up_weights, shared_down_weights, routed_gate_weights, routed_up_weights,
                    routed_down_weights) -> tuple[*[Tensor] * 8]:
        return double.backward(config, workspace, schedule, forward_context, grad_output, x, router_weights,
                               shared_gate_weights, shared_up_weights, shared_down_weights, routed_gate_weights,
                               routed_up_weights, routed_down_weights)

    def backward(config, workspace, schedule, forward_context, grad_output, x, router_weights, shared_gate_weights,
                 shared_up_weights, shared_down_weights, routed_gate_weights, routed_up_weights, routed_down_weights,
                 swiglu_limit=None) -> tuple[*[Tensor] * double.generation.gradients]:
        return double.backward(config, workspace, schedule, forward_context, grad_output, x, router_weights,
                               shared_gate_weights, shared_up_weights, shared_down_weights, routed_gate_weights,
                               routed_up_weights, routed_down_weights, swiglu_limit)

    def backward_nine(config, workspace, schedule, forward_context, grad_output, x, router_weights,
                      shared_gate_weights, shared_up_weights, shared_down_weights, routed_gate_weights,
                      routed_up_weights, routed_down_weights, swiglu_limit=None, main_grads=None,
                      main_grad_storage_tables=None, shared_output_gate_weight=None,
                      shared_output_gate_main_grad=None) -> tuple[*[Tensor] * 8, Tensor | None]:
        return backward(config, workspace, schedule, forward_context, grad_output, x, router_weights,
                        shared_gate_weights, shared_up_weights, shared_down_weights, routed_gate_weights,
                        routed_up_weights, routed_down_weights, swiglu_limit)

    def recompute_forward_context(config, workspace, schedule, x, shared_gate_weights, shared_up_weights,
                                  routed_gate_weights, routed_up_weights, swiglu_limit=None):
        raise Misuse("the adapter keeps the context of its forward")
    # fmt: on

    made = {
        "MoKConfig": double.MoKConfig,
        "validate_workspace_args": validate_workspace_args,
        "get_workspace": get_workspace,
        "clear_workspace_cache": clear_workspace_cache,
        "build_schedule": build_schedule,
        "forward": forward if double.generation.swiglu_limit else forward_g0,
        "backward": backward if double.generation.swiglu_limit else backward_g0,
    }
    if double.generation.gradients == 9:
        made["backward"] = backward_nine
    if double.generation.recompute:
        made["recompute_forward_context"] = recompute_forward_context
    return made
