import os

import pytest

from moebench.cases.machine import available_bytes, this_machine, usable_cores


@pytest.fixture
def root(tmp_path):
    write(tmp_path, "proc/meminfo", "MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable:    4000 kB\n")
    return tmp_path


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_without_cgroups_it_is_what_the_kernel_calls_available(root):
    assert available_bytes(root) == 4000 * 1024


def test_a_v2_limit_anywhere_above_the_process_counts(root):
    write(root, "proc/self/cgroup", "0::/job/step\n")
    write(root, "sys/fs/cgroup/job/step/memory.max", "max\n")
    write(root, "sys/fs/cgroup/job/step/memory.current", "5\n")
    write(root, "sys/fs/cgroup/job/memory.max", "1000000\n")
    write(root, "sys/fs/cgroup/job/memory.current", "700000\n")
    write(root, "sys/fs/cgroup/job/memory.stat", "anon 500000\ninactive_file 200000\n")
    assert available_bytes(root) == 1_000_000 - 700_000 + 200_000


def test_a_v1_limit_counts(root):
    write(root, "proc/self/cgroup", "9:cpuset:/\n4:memory:/pod\n0::/\n")
    write(root, "sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "300000\n")
    write(root, "sys/fs/cgroup/memory/pod/memory.usage_in_bytes", "100000\n")
    assert available_bytes(root) == 200_000


def test_a_container_that_sees_only_its_own_cgroup_mount_is_limited_too(root):
    write(root, "proc/self/cgroup", "0::/host/path/not/visible\n")
    write(root, "sys/fs/cgroup/memory.max", "1000\n")
    write(root, "sys/fs/cgroup/memory.current", "2000\n")
    assert available_bytes(root) == 0


def test_without_proc_it_is_the_installed_memory(tmp_path):
    assert available_bytes(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_cpu_quota_lowers_the_cores_but_never_to_none(root):
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/cpu.max", "50000 100000\n")
    assert usable_cores(root) == 1
    write(root, "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert usable_cores(root) == len(os.sched_getaffinity(0))


def test_this_machine_has_cores_and_memory():
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.available_bytes > 2**20
