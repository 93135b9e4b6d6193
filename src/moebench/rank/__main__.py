"""What torchrun starts on every rank: the cases of one launch, one after the other."""

import faulthandler
import fcntl
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from moebench.cases.plan import load_plan
from moebench.rank.exchange import Exchange
from moebench.rank.execution import Execution, StopAsked
from moebench.rank.instruments import GpuInstruments, Instruments
from moebench.rank.leaving import leave
from moebench.rank.lifeline import die_with_parent
from moebench.rank.paired import PairedExecution
from moebench.rank.placement import collectives, gpu_index, most_ranks_on_one_gpu, tell_gpus
from moebench.rank.progress import Progress
from moebench.rank.spec import Job, LaunchSpec
from moebench.rank.timing import settle_garbage
from moebench.rank.trace import trace_path, write_atomically
from moebench.rank.warm import warm_process
from moebench.status import Status

EXIT_AFTER_FAILURE = 13
"""Exit status of a rank that struck a failure its peers cannot be told of."""


def main() -> None:
    agent_pid = int(os.environ.get("MOEBENCH_AGENT_PID", os.getppid()))
    die_with_parent(agent_pid, signal.SIGKILL)
    _append_to_logs()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    spec = LaunchSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    progress = Progress(spec.folder / "events" / f"rank-{rank}.jsonl")
    progress.tell("start")
    device, instruments = _join(spec)
    cases = {planned.case.id: planned.case for planned in load_plan(spec.run).cases}
    warm_process(Exchange(rank, world_size), device)
    settle_garbage()

    def execution(job: Job) -> Execution:
        case = cases[job.case_id]
        if case.ep != world_size:
            raise RuntimeError(f"{case.id} wants {case.ep} ranks, this launch has {world_size}")
        return Execution(case, job.attempt, rank, device, progress, spec.stop_file.exists, instruments, spec.faults)

    for jobs in spec.groups():
        if not _run(spec, jobs, [execution(job) for job in jobs], progress):
            break
    instruments.close()
    progress.tell("left")
    leave()


def _append_to_logs() -> None:
    """The supervisor drops the middle of logs that grow too long; what comes then must go to their new end."""
    for descriptor in (1, 2):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)


def _join(spec: LaunchSpec) -> tuple[torch.device, Instruments]:
    """Join the process group and take this rank's device. Ranks that share a GPU are found out before."""
    timeout = timedelta(seconds=spec.collective_timeout_s)
    if spec.device == "cpu" or (spec.device == "auto" and not torch.cuda.is_available()):
        dist.init_process_group("gloo", timeout=timeout)
        return torch.device("cpu"), Instruments()
    device = torch.device("cuda", gpu_index(int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()))
    torch.cuda.set_device(device)
    store, rank, ranks = next(rendezvous("env://", timeout=timeout))
    sharing = most_ranks_on_one_gpu(tell_gpus(PrefixStore("gpus", store), rank, ranks, device))
    dist.init_process_group(
        collectives(sharing),
        timeout=timeout,
        store=PrefixStore("group", store),
        rank=rank,
        world_size=ranks,
        device_id=device if sharing == 1 else None,
    )
    return device, GpuInstruments(device, sharing)


def _run(spec: LaunchSpec, jobs: list[Job], executions: list[Execution], progress: Progress) -> bool:
    """One case, or several whose windows alternate; False when the supervisor asked to stop before it."""
    first = jobs[0]
    paired = first.group and PairedExecution(executions, first.group, together=first.together)
    try:
        if paired:
            paired.run()
        else:
            executions[0].run()
    except StopAsked:
        return False
    except BaseException as error:
        struck = paired.current if paired else executions[0]
        trace = struck.trace
        trace.status, trace.reason = Status.FAILED, struck.record(error)
        _write(spec, struck)
        progress.tell("died", trace.case_id, trace.attempt, trace.message, trace.reason)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_AFTER_FAILURE)
    for execution in executions:
        _write(spec, execution)
        progress.tell("ended", execution.trace.case_id, execution.trace.attempt)
    return True


def _write(spec: LaunchSpec, execution: Execution) -> None:
    trace = execution.trace
    path = trace_path(spec.run, trace.case_id, trace.attempt, trace.rank)
    write_atomically(path, trace.model_dump_json(indent=1))


if __name__ == "__main__":
    main()
