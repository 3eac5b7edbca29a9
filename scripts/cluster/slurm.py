"""A Slurm cluster of virtual hosts on this machine: a controller and nodes, with munge.

    python -m scripts.cluster.slurm install             # Debian's packages (and Open MPI's)
    python -m scripts.cluster.slurm --nodes 2 sbatch --wait job.sh

The second one starts a cluster in some seconds, runs a command of Slurm on its controller, and ends
the cluster. It needs root; nothing outside of a temporary folder and the hosts' namespaces changes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts.cluster import hosts
from scripts.cluster.hosts import VirtualHosts

_PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge", "openmpi-bin", "iproute2"]
_SECONDS_TO_START = 60.0
_CONFIGURATION = """
ClusterName=jfluid
SlurmctldHost=host0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,batch_sched_delay=0
ReturnToService=2
MpiDefault=none
NodeName=host[1-{nodes}] CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why there can be no Slurm cluster here; "" where there can."""
    absent = [name for name in ("slurmctld", "slurmd", "munged") if _daemon(name) is None]
    if absent:
        return f"Slurm is not installed ({', '.join(absent)}): python -m scripts.cluster.slurm install"
    return hosts.missing()


def _daemon(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Slurm:
    """A cluster: host0 has the controller, host1, host2 ... are the nodes.

    Args:
        nodes: how many.
        cpus: how many processors each is said to have.
    """

    def __init__(self, nodes: int = 2, cpus: int = 8):
        self._nodes, self._cpus = nodes, cpus

    def __enter__(self) -> "Slurm":
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jfluid-slurm-")))
            os.chmod(self.folder, 0o755)  # munged wants its socket where all can reach it
            self.hosts = stack.enter_context(VirtualHosts(self._nodes + 1))
            configuration = self.folder / "slurm.conf"
            configuration.write_text(_CONFIGURATION.format(folder=self.folder, nodes=self._nodes, cpus=self._cpus))
            (self.folder / "state").mkdir()
            (self.folder / "cgroup.conf").write_text("IgnoreSystemd=yes\n")
            self.environment = {"SLURM_CONF": str(configuration)}
            self._start_munge(stack)
            self._start(stack, 0, "slurmctld", "-D", "-i")
            for node in range(1, self._nodes + 1):
                (self.folder / f"spool.host{node}").mkdir()
                self._start(stack, node, "slurmd", "-D", "-N", f"host{node}")
            self._wait_for_nodes()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self.run("scancel", "--user=root", "--signal=KILL", check=False, capture_output=True)
        self._stack.close()

    def _start_munge(self, stack: ExitStack) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        os.chmod(key, 0o400)
        places = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{end}" for option, end in places.items()]
        self._start(stack, 0, "munged", "--foreground", "--force", f"--key-file={key}", *options)

    def _start(self, stack: ExitStack, host: int, daemon: str, *arguments: str) -> None:
        path = _daemon(daemon)
        assert path is not None  # `missing` was asked before
        log = stack.enter_context(open(self.folder / f"{daemon}.{host}.out", "wb"))
        process = self.hosts.popen(
            host,
            [path, *arguments],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + _SECONDS_TO_START
        idle: list[str] = []
        while len(idle) < self._nodes:
            if time.monotonic() > deadline:
                logs = [path for path in self.folder.iterdir() if path.suffix in (".log", ".out")]
                said = "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in logs)
                raise RuntimeError(f"the cluster did not start in {_SECONDS_TO_START:g} s\n{said}")
            time.sleep(0.1)
            found = self.run("sinfo", "-hN", "-o", "%t", check=False, capture_output=True)
            idle = [line for line in found.stdout.split() if line == "idle"]

    def run(self, *command: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command on the controller's host, and raise CalledProcessError where it fails."""
        given = {"check": True, "text": True, **options}
        given["env"] = {**given.get("env", os.environ), **self.environment}
        return self.hosts.run(0, list(command), **given)

    def said(self, *command: str, **options: Any) -> str:
        """Return what a command writes, without the last line's end."""
        return self.run(*command, stdout=subprocess.PIPE, **options).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="`install`, or a command")
    options = parser.parse_args()
    if options.command == ["install"]:
        install = ["apt-get", "install", "-y", "--no-install-recommends", *_PACKAGES]
        return (
            subprocess.run(["apt-get", "update", "-q"]).returncode
            or (subprocess.run(install, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})).returncode
        )
    if problem := missing():
        print(problem, file=sys.stderr)
        return 2
    with Slurm(options.nodes) as cluster:
        return cluster.run(*(options.command or ["sinfo"]), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
