"""What every figure of a report means: its formula, its estimator, and what it must not be used to claim.

Symbols: w window, r rank, i iteration; T tokens of a rank, D hidden width, F FFN width of an expert, E experts over all
ranks, K experts of a token, S shared experts, L layers; passes is 1 in inference and 3 in training.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimator:
    title: str
    unit: str
    formula: str
    """In symbols."""
    estimator: str
    """In words: mean of what over what, or by formula."""
    inputs: tuple[str, ...]
    """Keys of the report, and symbols, that the formula takes."""
    trace: str
    """Where a rank's trace has it; empty where none does."""
    not_for: str
    """What it must not be used to claim."""

    @property
    def description(self) -> str:
        """One line, for a JSON Schema."""
        return f"{self.title}, {self.unit}: {self.estimator}"


_SLOWEST = "mean over windows of the slowest rank's mean over iterations"
_NOT_ADDED = (
    "A part of iterationMS: forward and backward each have a slowest rank of their own, and need not add up to it."
)
_NOT_LINK = (
    "The bandwidth of a link: it is a mean over whole iterations, in most of which nothing may be sent. What the "
    "collectives were handed (transport) is not what crossed a wire."
)

ESTIMATORS: dict[str, Estimator] = {
    "iterationMS": Estimator(
        title="time of an iteration",
        unit="ms",
        formula="mean_w max_r mean_i t(w, r, i); t: from the start event of an iteration to its end event",
        estimator=_SLOWEST,
        inputs=("windowMS",),
        trace="windows[w].iteration_ms[i] of every rank",
        not_for="The time of a model's step or of a request: routers, the gradients' all-reduce and the optimizer are "
        "outside. Two of them differ only if an interval says so.",
    ),
    "forwardMS": Estimator(
        title="time of forward",
        unit="ms",
        formula="mean_w max_r mean_i f(w, r, i); f: from the start event to the event after forward",
        estimator=_SLOWEST,
        inputs=(),
        trace="windows[w].forward_ms[i] of every rank",
        not_for=_NOT_ADDED,
    ),
    "backwardMS": Estimator(
        title="time of backward, in training",
        unit="ms",
        formula="mean_w max_r mean_i b(w, r, i); b: from the event after forward to the end event",
        estimator=_SLOWEST,
        inputs=(),
        trace="windows[w].backward_ms[i] of every rank",
        not_for=_NOT_ADDED,
    ),
    "windowMS": Estimator(
        title="time of an iteration in each window",
        unit="ms",
        formula="max_r mean_i t(w, r, i), for each w",
        estimator="slowest rank's mean over iterations, of each window",
        inputs=(),
        trace="windows[w].iteration_ms[i] of every rank",
        not_for="How much another run will differ: windows of one run share its clocks, heat and place in memory.",
    ),
    "floorMS": Estimator(
        title="fastest rank in each window",
        unit="ms",
        formula="min_r mean_i t(w, r, i), for each w",
        estimator="fastest rank's mean over iterations, of each window",
        inputs=(),
        trace="windows[w].iteration_ms[i] of every rank",
        not_for="What perfect balance would give: a rank with less work waits for the others inside its collectives.",
    ),
    "skewMS": Estimator(
        title="slowest less fastest rank in each window",
        unit="ms",
        formula="windowMS[w] - floorMS[w], for each w",
        estimator="difference of two ranks' means, of each window",
        inputs=("windowMS", "floorMS"),
        trace="windows[w].iteration_ms[i] of every rank",
        not_for="How unevenly work is spread: ranks that wait in a collective are as slow as the one they wait for.",
    ),
    "startSkewMS": Estimator(
        title="last less first rank to begin each window",
        unit="ms",
        formula="max_r s(w, r) - min_r s(w, r), for each w; s: the host's monotonic clock when rank r began",
        estimator="difference of two ranks' readings of one clock, of each window; null where ranks share none",
        inputs=(),
        trace="windows[w].begun_ns of every rank",
        not_for="A correction to be subtracted: it bounds what waiting for the last rank adds to a whole window.",
    ),
    "spread": Estimator(
        title="spread over windows",
        unit="fraction",
        formula="(max_w - min_w) / median_w of windowMS",
        estimator="range of the windows over their median; null for one window",
        inputs=("windowMS",),
        trace="",
        not_for="An error bar: a range grows with the number of windows.",
    ),
    "usefulTFPerGPU": Estimator(
        title="useful FLOPs of a rank per second",
        unit="TFLOP/s",
        formula="6 (K + S) T D F L passes / iterationMS / 1e9",
        estimator="FLOPs by formula, mean over ranks, over the slowest rank's time",
        inputs=("iterationMS", "K", "S", "T", "D", "F", "L", "passes"),
        trace="",
        not_for="How busy the GPU was: padding, recomputation, replay and norms do not count as useful.",
    ),
    "meanTXGBps": Estimator(
        title="bytes sent to other ranks per second",
        unit="GB/s",
        formula="mean_r (sum_w sent(w, r) / sum_w seconds(w, r)) / 1e9; by formula where trafficSource is logical: "
        "logicalTXBytes / iterationMS / 1e6",
        estimator="mean over ranks of bytes over the seconds that the rank itself spent in iterations; null at ep 1",
        inputs=("trafficSource", "logicalTXBytes", "iterationMS"),
        trace="windows[w].nvlink_tx_bytes or tx_bytes, by trafficSource, and windows[w].seconds of every rank",
        not_for=_NOT_LINK,
    ),
    "meanRXGBps": Estimator(
        title="bytes received from other ranks per second",
        unit="GB/s",
        formula="mean_r (sum_w received(w, r) / sum_w seconds(w, r)) / 1e9; by formula where trafficSource is "
        "logical: logicalTXBytes / iterationMS / 1e6",
        estimator="mean over ranks of bytes over the seconds that the rank itself spent in iterations; null at ep 1",
        inputs=("trafficSource", "logicalTXBytes", "iterationMS"),
        trace="windows[w].nvlink_rx_bytes or rx_bytes, by trafficSource, and windows[w].seconds of every rank",
        not_for=_NOT_LINK,
    ),
    "modeledHBMGBps": Estimator(
        title="modeled HBM bytes of a rank per second",
        unit="GB/s",
        formula="passes sum_l (A_l 3 D F w + S 3 D F 2 + (K + S) T F 4 + (K + 3) T D 2 + T K 4) / iterationMS / 1e6; "
        "A_l: experts of a rank that have rows, mean over ranks; w: bytes of a routed weight, 2 in bf16, 33/32 in "
        "mxfp8, 9/16 in nvfp4",
        estimator="bytes by formula, mean over ranks, over the slowest rank's time",
        inputs=("iterationMS", "K", "S", "T", "D", "F", "L", "passes", "A_l", "w"),
        trace="",
        not_for="Memory traffic, or how near a case is to the memory's limit: no counter was read, and what caches "
        "serve, or is read twice, is not in the formula.",
    ),
    "peakAllocatedGiB": Estimator(
        title="peak memory",
        unit="GiB",
        formula="max_r peak(r) / 2^30",
        estimator="largest over ranks of the peak from the first warm-up on",
        inputs=(),
        trace="peak_allocated_bytes of every rank",
        not_for="What a job needs: the allocator's reserve, and what NCCL and libraries take for themselves, are not "
        "in it. As rss it is the growth of resident memory, which depends on what the process did before.",
    ),
    "peakReservedBytes": Estimator(
        title="peak reserve of the allocator, in packing on GPUs",
        unit="bytes",
        formula="max_r reserved(r)",
        estimator="largest over ranks of the peak from the first warm-up on",
        inputs=(),
        trace="peak_reserved_bytes of every rank",
        not_for="Memory in use: an allocator keeps what it was given back.",
    ),
    "logicalTXBytes": Estimator(
        title="bytes that a rank must send in an iteration",
        unit="bytes",
        formula="R (d + 2 D), and in training R (4 D + m) more; R = L T K (ep - 1) / ep rows to other ranks; d: bytes "
        "of a dispatched row, 2 D unless dist_moe's inference quantises it; m: 8 for mok, else 0",
        estimator="by formula, mean over ranks",
        inputs=("L", "T", "K", "D", "ep", "backend", "precision", "mode"),
        trace="",
        not_for="Traffic that took place: replayed dispatch and metadata are not in it, and nothing was counted.",
    ),
    "txBytesByKind": Estimator(
        title="bytes sent in an iteration, by kind",
        unit="bytes",
        formula="mean_r bytes(r), for each kind",
        estimator="mean over ranks of what was handed to the collectives in one iteration",
        inputs=(),
        trace="tx_bytes_by_kind of every rank",
        not_for="What crossed a wire: protocols add to it, and shared memory of a host may carry it.",
    ),
    "replayTXBytes": Estimator(
        title="bytes sent again in an iteration",
        unit="bytes",
        formula="sum of txBytesByKind over the kinds named replay...",
        estimator="mean over ranks of what was handed to the collectives in one iteration",
        inputs=("txBytesByKind",),
        trace="tx_bytes_by_kind of every rank",
        not_for="The cost of replay: what it computes again is not in it.",
    ),
    "tokensPerSPerGPU": Estimator(
        title="tokens of a rank per second",
        unit="1/s",
        formula="T / iterationMS x 1000",
        estimator="T over the slowest rank's time",
        inputs=("T", "iterationMS"),
        trace="",
        not_for="Tokens per second of a model: these are L MoE layers, and nothing between them.",
    ),
    "vsTorch": Estimator(
        title="how many times faster than torch",
        unit="factor",
        formula="iterationMS of torch / iterationMS of the case, of one workload",
        estimator="ratio of two means; above 1 the case is faster",
        inputs=("iterationMS",),
        trace="",
        not_for="A difference: outside of a paired sweep it has no interval, and drift between the two is part of it.",
    ),
    "distFasterBy": Estimator(
        title="how many times faster dist_moe is than mok",
        unit="factor",
        formula="iterationMS of mok / iterationMS of the fastest dist_moe pipeline, of one workload",
        estimator="ratio of two means; above 1 dist_moe is faster",
        inputs=("iterationMS",),
        trace="",
        not_for="A difference: outside of a paired sweep it has no interval. The best of several pipelines, chosen by "
        "the same times, looks a little faster than it is.",
    ),
    "fasterBy": Estimator(
        title="how many times faster a case of a paired sweep is than another",
        unit="factor",
        formula="exp(median of (d_b + d_c) / 2 over all blocks b <= c); d_b: log of baseline ms / case ms in block b, "
        "each the mean of its two windows",
        estimator="Hodges-Lehmann estimate over blocks, with the exact signed-rank interval; above 1 the case is "
        "faster",
        inputs=("windowMS",),
        trace="windows[w].iteration_ms[i] of every rank",
        not_for="An effect below the A/A floor of its group, or one of another machine or day.",
    ),
    "effect": Estimator(
        title="A/A floor of a paired group: about the smallest effect that can be shown",
        unit="fraction",
        formula="exp(half the width of the A/A interval in logs) - 1; if the interval excludes 1, its far end",
        estimator="from the interval of a case against itself in the same job",
        inputs=("windowMS", "aaMS"),
        trace="windows and aa_windows of every rank",
        not_for="A bound: a true effect of this size is found in about half of all runs.",
    ),
}
"""By key of the report's JSON, but for tokensPerSPerGPU, vsTorch and distFasterBy, which are columns of the frames."""
