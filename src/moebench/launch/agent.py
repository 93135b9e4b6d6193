"""torchrun, run so that it cannot outlive its supervisor and says which rank failed first.

Started as `python -m moebench.launch.agent FAILURES.json <torchrun arguments>`.
"""

import json
import os
import signal
import sys
from pathlib import Path

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from moebench.rank.lifeline import die_with_parent


def main() -> None:
    die_with_parent(int(os.environ["MOEBENCH_SUPERVISOR_PID"]), signal.SIGTERM)
    os.environ["MOEBENCH_AGENT_PID"] = str(os.getpid())
    try:
        torchrun.main(sys.argv[2:])
    except ChildFailedError as error:
        failures = [
            {"rank": rank, "exit_code": failure.exitcode, "time": failure.timestamp}
            for rank, failure in error.failures.items()
        ]
        Path(sys.argv[1]).write_text(json.dumps(failures))
        sys.exit(1)


if __name__ == "__main__":
    main()
