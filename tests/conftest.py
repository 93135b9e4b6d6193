"""One thread for torch in tests: on a machine of few cores, two make small tensors twenty times slower."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
