"""The arms report: the published keys in their order, then ours."""

from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field

from moebench.arms.config import Mode, Preset, describe_local
from moebench.arms.data import TextFacts
from moebench.arms.results import ArmResult
from moebench.arms.schedule import describe_optimizer
from moebench.arms.traffic import StepBytes, step_bytes
from moebench.rank.trace import Environment
from moebench.reduce.load import as_model
from moebench.reduce.ratio import paired_ratio
from moebench.reduce.schema import Number, Open

SCHEMA_VERSION = 1


class BothArms(Open):
    """Of several repeats the one whose tokens/s is the (lower) median."""

    e2e: ArmResult | None = None
    local: ArmResult | None = None


class Estimate(Open):
    """Over repeats: Hodges and Lehmann's estimate with an exact interval of this level."""

    value: Number
    low: Number
    high: Number
    level: Number


class Repeats(Open):
    """All runs of every arm, in the order in which they were made."""

    order: list[list[str]] = Field(description="the arms of each repeat, in the order in which they ran")
    runs: dict[str, list[ArmResult]]
    mean: dict[str, dict[str, Number | None]]
    tokens_per_s_local_over_e2e: Estimate | None = None
    loss_gap: Estimate | None = Field(default=None, description="local - e2e, nats")


class Ratios(Open):
    """Local against end to end."""

    tokens_per_s: Number = Field(description="local / e2e")
    peak_memory: Number | None = Field(description="local / e2e")
    loss_gap: Number | None = Field(description="local - e2e, nats a token")


class ArmsReport(Open):
    """One comparison of the two arms."""

    config: dict[str, int]
    batch: int
    budget_seconds: Number
    device: str
    gpu: str | None
    bytes: StepBytes
    arms: BothArms
    traffic_ratio_e2e_over_local: Number | None

    schemaVersion: int | None = Field(default=None, description="absent in the published report")
    partial: str | None = Field(default=None, description="why something is missing; null: nothing is")
    ratios: Ratios | None = None
    seam_traffic_ratio_e2e_over_local: Number | None = Field(default=None, description="without the all-reduce")
    mode: Mode | None = None
    ranks: int | None = None
    precision: str | None = None
    optimizer: dict[str, Any] | None = None
    local_objective: dict[str, Any] | None = None
    eval: dict[str, Any] | None = None
    data: TextFacts | None = None
    seed: int | None = None
    repeats: Repeats | None = None
    environment: Environment | None = None


def parse_arms(path: Path, raw: dict[str, Any]) -> ArmsReport:
    """The report in the JSON object of a file. Raises UsageError where it is not right, or from a newer moebench."""
    return as_model(path, raw, ArmsReport, SCHEMA_VERSION)


def make_report(
    preset: Preset,
    mode: Mode,
    ranks: int,
    device: str,
    facts: TextFacts,
    results: Sequence[Sequence[ArmResult]],
    partial: str | None,
) -> ArmsReport:
    """The report of what was trained: the results of each repeat, in the order of their ends."""
    runs: dict[str, list[ArmResult]] = {}
    for repeat in results:
        for result in repeat:
            runs.setdefault(result.arm, []).append(result)
    chosen = {arm: _median(found) for arm, found in runs.items()}
    modeled = step_bytes(preset.model, preset.train.batch, preset.local.unit_blocks)
    environment = next((result.environment for result in chosen.values() if result.environment), None)
    on_gpu = (environment or {}).get("device", device) == "cuda"
    return ArmsReport(
        config=preset.model.model_dump(),
        batch=preset.train.batch,
        budget_seconds=preset.train.budget_seconds,
        device="cuda" if on_gpu else "cpu",
        gpu=(environment or {}).get("hardware") if on_gpu else None,
        bytes=modeled,
        arms=BothArms(**chosen),
        traffic_ratio_e2e_over_local=modeled.traffic_ratio if modeled.seams else None,
        schemaVersion=SCHEMA_VERSION,
        partial=partial,
        ratios=compare(chosen.get("e2e"), chosen.get("local")),
        seam_traffic_ratio_e2e_over_local=modeled.seam_traffic_ratio if modeled.seams else None,
        mode=mode,
        ranks=ranks,
        precision="bf16 autocast, fp32 weights" if on_gpu else "fp32, bf16 between blocks",
        optimizer=describe_optimizer(preset.train),
        local_objective=describe_local(preset),
        eval={
            "final_loss": "held-out text, softmax over the whole vocabulary, both arms alike",
            "loss_curve": "batches of training, each arm's own loss: of local the last unit's objective",
            "tokens": min(preset.train.eval_tokens, facts.heldout_tokens) // preset.model.seq * preset.model.seq,
        },
        data=facts,
        seed=preset.train.seed,
        repeats=_repeats(results, runs) if len(results) > 1 else None,
        environment=environment,
    )


def _median(results: Sequence[ArmResult]) -> ArmResult:
    return sorted(results, key=lambda result: result.tokens_per_s)[(len(results) - 1) // 2]


def compare(e2e: ArmResult | None, local: ArmResult | None) -> Ratios | None:
    """None without both arms, or without a rate of the first."""
    if e2e is None or local is None or not e2e.tokens_per_s:
        return None
    memory = loss = None
    if e2e.peak_vram_bytes and local.peak_vram_bytes is not None:
        memory = local.peak_vram_bytes / e2e.peak_vram_bytes
    if e2e.final_loss is not None and local.final_loss is not None:
        loss = local.final_loss - e2e.final_loss
    return Ratios(tokens_per_s=local.tokens_per_s / e2e.tokens_per_s, peak_memory=memory, loss_gap=loss)


def _repeats(results: Sequence[Sequence[ArmResult]], runs: Mapping[str, list[ArmResult]]) -> Repeats:
    pairs = [{result.arm: result for result in repeat} for repeat in results]
    whole = [(pair["e2e"], pair["local"]) for pair in pairs if len(pair) == 2]
    rated = [(e2e, local) for e2e, local in whole if e2e.tokens and local.tokens]
    judged = [(e2e.final_loss, local.final_loss) for e2e, local in whole]
    losses = [(e2e, local) for e2e, local in judged if e2e is not None and local is not None]
    speed = gap = None
    if len(rated) > 1:
        found = paired_ratio([1 / l.tokens_per_s for _, l in rated], [1 / e.tokens_per_s for e, _ in rated])
        speed = Estimate(value=found.ratio, low=found.low, high=found.high, level=found.level)
    if len(losses) > 1:
        found = paired_ratio([exp(e2e) for e2e, _ in losses], [exp(local) for _, local in losses])
        gap = Estimate(value=log(found.ratio), low=log(found.low), high=log(found.high), level=found.level)
    return Repeats(
        order=[[result.arm for result in repeat] for repeat in results],
        runs=dict(runs),
        mean={arm: _means(found) for arm, found in runs.items()},
        tokens_per_s_local_over_e2e=speed,
        loss_gap=gap,
    )


def _means(results: Sequence[ArmResult]) -> dict[str, Number | None]:
    """None where a run has no such figure."""
    means: dict[str, Number | None] = {}
    for name in ("tokens_per_s", "final_loss", "peak_vram_bytes"):
        values = [getattr(result, name) for result in results]
        means[name] = None if None in values else fmean(values)
    return means
