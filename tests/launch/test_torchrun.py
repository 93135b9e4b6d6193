import os
import socket
import sys
from pathlib import Path

from moebench.launch import torchrun


def test_command_is_one_torchrun_with_static_rendezvous_on_loopback(monkeypatch):
    monkeypatch.setattr(torchrun, "free_port", lambda: 1234)
    folder = Path("/run/logs/001-ep4")
    command = torchrun.command(4, folder, "001-ep4", "moebench.rank", folder / "launch.json")
    assert command[:3] == [sys.executable, "-m", "moebench.launch.agent"]
    assert {
        "--nproc-per-node=4",
        "--nnodes=1",
        "--rdzv-backend=static",
        "--master-addr=127.0.0.1",
        "--master-port=1234",
        "--local-addr=127.0.0.1",
        "--max-restarts=0",
        "--log-dir=/run/logs/001-ep4/ranks",
    } <= set(command)
    assert command[-3:] == ["-m", "moebench.rank", "/run/logs/001-ep4/launch.json"]


def test_what_an_outer_launcher_set_is_not_inherited(monkeypatch):
    outer = (
        "WORLD_SIZE",
        "RANK",
        "LOCAL_RANK",
        "MASTER_PORT",
        "PET_NPROC_PER_NODE",
        "TORCHELASTIC_RUN_ID",
        "ROLE_RANK",
    )
    for name in outer:
        monkeypatch.setenv(name, "16")
    monkeypatch.setenv("HF_HOME", "/kept")
    env = torchrun.environment(2)
    assert not set(outer) & set(env)
    assert env["HF_HOME"] == "/kept"
    assert env["MOEBENCH_SUPERVISOR_PID"] == str(os.getpid())


def test_threads_are_shared_out_and_never_none(monkeypatch):
    monkeypatch.setattr(torchrun, "usable_cores", lambda root: 8)
    assert [torchrun.environment(ranks)["OMP_NUM_THREADS"] for ranks in (1, 2, 3, 16)] == ["8", "4", "2", "1"]


def test_threads_that_wait_do_not_spin_unless_asked_to(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert torchrun.environment(2)["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert torchrun.environment(2)["OMP_WAIT_POLICY"] == "ACTIVE"


def test_sockets_of_collectives_are_on_loopback():
    env = torchrun.environment(2)
    names = [name for _, name in socket.if_nameindex()]
    for key in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        assert env[key].startswith("lo")
        assert env[key] in names


def test_free_port_can_be_bound():
    with socket.socket() as server:
        server.bind(("127.0.0.1", torchrun.free_port()))
