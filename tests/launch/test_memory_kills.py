"""A process that the kernel kills for lack of memory is told from a process that a user kills."""

import pytest

from jfluid.launch import main, memory_kills
from jfluid.launch.memory_kills import MemoryKills


@pytest.fixture(params=["memory.events", "memory.oom_control"])
def files(request, tmp_path, monkeypatch):
    """(file with the counter of the machine, file with the counter of the control group), of version 2 and 1."""
    controllers = "" if request.param == "memory.events" else "memory"
    group = tmp_path / "cgroup" / controllers / "job" / "7"
    group.mkdir(parents=True)
    own, system, counter = tmp_path / "own", tmp_path / "vmstat", group / request.param
    own.write_text(f"3:cpuset:/other\n1:{controllers}:/job/7\n")
    system.write_text("pgfault 1\noom_kill 3\n")
    counter.write_text("oom 2\noom_kill 5\n")
    for name, path in (("_OWN", own), ("_SYSTEM", system), ("_CGROUPS", tmp_path / "cgroup")):
        monkeypatch.setattr(memory_kills, name, path)
    return system, counter


def test_counters_say_where_memory_ran_out(files):
    system, counter = files
    kills = MemoryKills()
    assert kills.explain() == ""
    system.write_text("oom_kill 4\n")
    assert "memory ran out on this host; take smaller batches" in kills.explain()
    assert kills.explain() == ""  # each kill explains one end
    counter.write_text("oom_kill 6\n")
    system.write_text("oom_kill 5\n")
    assert "memory ran out in the job's control group" in kills.explain()


def test_machines_without_counters_say_nothing(tmp_path, monkeypatch):
    for name in ("_OWN", "_SYSTEM", "_CGROUPS"):
        monkeypatch.setattr(memory_kills, name, tmp_path / "none")
    assert MemoryKills().explain() == ""


@pytest.mark.process
@pytest.mark.parametrize("ran_out", [True, False])
def test_the_last_line_names_memory(files, ran_out, tmp_path, monkeypatch, capsys):
    """A process stands for the kernel: it raises the counter, and kills itself."""
    script, (_, counter) = tmp_path / "train.py", files
    raised = f"open({str(counter)!r}, 'w').write('oom_kill 9')\n" if ran_out else ""
    script.write_text(f"import os, signal\n{raised}os.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--cpus", "1", str(script)]) == 137
    begin, *_, end = capsys.readouterr().err.splitlines()
    assert begin[24:].startswith("jfluid-launch: train starts: 1 trainer, on CPU; logs: mylog/*log.*")
    assert ("(signal SIGKILL from the kernel: memory ran out" in end) == ran_out
    assert "rank 0 failed first (signal SIGKILL" in end
