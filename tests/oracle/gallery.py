"""Write tests/golden/gallery.json: the losses of the first steps of the gallery's programs under the
real Fluid: alone, on two CPU devices, and, of those with parameter servers, with two of them and two
trainers (the mean of both trainers' losses).

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.gallery [programs]
"""

import json
import os
import socket
import subprocess
import sys
import tempfile

import numpy as np

from tests.parity.gallery import PROGRAMS, STEPS

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PATH = os.path.join(ROOT, "tests", "golden", "gallery.json")


def start(program, folder, arguments=(), **variables):
    script = os.path.join(ROOT, "examples", "gallery", program + ".py")
    command = [sys.executable, script, "--steps", str(STEPS), "--worst_gap", "1e9"]
    command += ["--output_dir", folder, *arguments]
    return subprocess.Popen(command, env=dict(os.environ, **variables), stdout=subprocess.DEVNULL)


def losses(folder):
    found = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as f:
            found.append(json.load(f))
    return np.mean(found, axis=0).tolist()


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def in_one_process(program, *arguments, **variables):
    with tempfile.TemporaryDirectory() as folder:
        assert start(program, folder, arguments, **variables).wait() == 0
        return losses(folder)


def with_servers(program):
    endpoints = ["127.0.0.1:%d" % free_port() for _ in range(2)]
    job = {"PADDLE_TRAINERS_NUM": "2", "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(endpoints)}
    with tempfile.TemporaryDirectory() as folder:
        servers = [
            start(program, folder, TRAINING_ROLE="PSERVER", PADDLE_CURRENT_ENDPOINT=endpoint, **job)
            for endpoint in endpoints
        ]
        trainers = [
            start(program, folder, TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID=str(number), **job) for number in range(2)
        ]
        try:
            assert [trainer.wait() for trainer in trainers] == [0, 0]
            return losses(folder)
        finally:
            for process in servers + trainers:  # servers of the real Fluid do not end by themselves
                process.kill()
                process.wait()


def main():
    result = {}
    if os.path.exists(PATH):
        with open(PATH) as f:
            result = json.load(f)
    for program in PROGRAMS:
        if not sys.argv[1:] or program in sys.argv[1:]:
            result[program] = {
                "alone": in_one_process(program),
                "replicas": in_one_process(program, "--parallel", "1", CPU_NUM="2"),
            }
            if PROGRAMS[program]:
                result[program]["servers"] = with_servers(program)
            print(program, {k: (v[0], v[-1]) for k, v in result[program].items()})
    with open(PATH, "w") as f:
        lines = ["%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(result.items())]
        f.write("{\n" + ",\n".join(lines) + "\n}\n")


main()
