"""How a process of a job begins: what the harness wants of it is set up before the program is
imported.

Also the script of jobs that jfluid-launch runs: `entry.py SPEC`, with the path of a spec.
"""

import ctypes
import importlib
import json
import mmap
import os
import signal
import struct
import sys
import time
import types
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


def begin(spec: dict[str, Any]) -> None:
    """Be a process of a job, until it ends.

    Args:
        spec: "folder" of the plan; "role" and "number"; "log", a file for what it prints, if any;
            "environment"; and what `program.run` needs.
    """
    end_with_parent()
    if "log" in spec:
        file = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
    os.environ.update(spec.get("environment", {}))
    name = f"{spec['role']}-{spec['number']}"
    _shift_clock(Path(spec["folder"], f"clock-{name}"))
    publish(Path(spec["folder"], f"pid-{name}"), str(os.getpid()))
    from tests.chaos import program

    program.run(spec)


def end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it has ended, however that
    was.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _shift_clock(path: Path) -> None:
    """From now on the time of day is by as many seconds wrong as the file says at the moment."""
    with open(path, "r+b") as file:
        shift = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    right, right_ns = time.time, time.time_ns
    _spare_grpc()

    def shifted_s() -> float:
        return float(struct.unpack("<d", shift[:8])[0])

    time.time = lambda: right() + shifted_s()
    time.time_ns = lambda: right_ns() + int(shifted_s() * 1e9)


def _spare_grpc() -> None:
    """Let gRPC's Python part, which tells its C part absolute times, have the same clock as
    that.
    """
    for name in ("grpc._channel", "grpc._common", "grpc._server", "grpc._utilities"):
        importlib.import_module(name)  # before the clock is wrong
    right = types.ModuleType("time")
    right.__dict__.update(time.__dict__)
    for name, module in list(sys.modules.items()):
        if name.startswith("grpc") and getattr(module, "time", None) is time:
            module.time = right


def publish(path: Path, text: str) -> None:
    """Write a file that is whole whenever it is there."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.fresh")
    fresh.write_text(text)
    fresh.replace(path)


if __name__ == "__main__":
    role = {"PSERVER": "server", "TRAINER": "trainer"}[os.environ["TRAINING_ROLE"]]
    number = os.environ["PADDLE_PSERVER_ID" if role == "server" else "PADDLE_TRAINER_ID"]
    begin(json.loads(Path(sys.argv[1]).read_text()) | {"role": role, "number": int(number)})
