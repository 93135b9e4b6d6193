"""The optimizer and learning-rate schedule of both arms, in numbers and words. Needs no torch."""

from moebench.arms.config import TrainConfig


def share_of_peak(config: TrainConfig, step: int, progress: float) -> float:
    """Learning rate over its peak: a linear rise over the warm-up steps, times a linear fall over the budget.

    `progress`: share of the budget (or of max_steps) that is used up.
    """
    rise = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    return rise * (1 - (1 - config.final_share) * min(1.0, progress))


def describe_optimizer(config: TrainConfig) -> dict[str, object]:
    """As the report states it."""
    return {
        "optimizer": "fused AdamW, no gradient clipping",
        "betas": [config.beta1, config.beta2],
        "weight_decay": config.weight_decay,
        "weight_decay_of": "matrices; not of norms and biases",
        "learning_rate": config.learning_rate,
        "schedule": f"linear rise over {config.warmup_steps} steps, times a linear fall over the budget to "
        f"{config.final_share:g} of the peak",
    }
