from moebench.launch import oom


def test_kills_are_counted_by_either_cgroup_version(tmp_path, monkeypatch):
    v2, v1 = tmp_path / "memory.events", tmp_path / "memory.oom_control"
    monkeypatch.setattr(oom, "_FILES", (v2, v1))
    assert oom.oom_kills() == 0
    v1.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert oom.oom_kills() == 3
    v2.write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n")
    assert oom.oom_kills() == 1
