"""One process of a job; `begin` is what it does.

A trainer prints a line for each step. It waits before a step until the file `<folder>/go-<number>`
says a larger number, so that a test can do its worst at a certain step; the line "waits at N" says that
all of its earlier steps have been answered. The job ends before the
step that the file `<folder>/end` says, once there is one.
"""

import itertools
import logging
import time
from pathlib import Path

import numpy as np

import jfluid as fluid
from jfluid import distributed
from jfluid.distributed.wire import connections
from tests.distributed import job


def transpiled(spec, trainer=0):
    """What `job.transpile` gives for a process."""
    build = (
        job.wide_net(spec["kind"], spec["optimizer"])
        if spec.get("wide")
        else job.net(spec["kind"], spec["optimizer"], own_state=spec.get("own_state", False))
    )
    return job.transpile(build, spec["endpoints"], trainer, spec["trainers"], spec["sync"], wait_port=True)


def serve(spec):
    transpiler, *_ = transpiled(spec)
    main, startup = transpiler.get_pserver_programs(spec["endpoints"][spec["number"]])
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)
    executor.run(main)


def train(spec):
    transpiler, startup, (loss, _) = transpiled(spec, spec["number"])
    main = transpiler.get_trainer_program()
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)
    first = distributed.rounds(main)
    print("begins", first, flush=True)
    for step in itertools.takewhile(lambda step: _goes_on(spec, step), itertools.count(first)):
        if step == spec["saves_at"]:
            _connection().client.save(f"{spec['folder']}/snapshots/server-0")
        batch = (job.wide_batch if spec.get("wide") else job.batch)(step)
        (found,) = executor.run(main, feed=job.share(batch, spec["number"], spec["trainers"]), fetch_list=[loss])
        print("step", step, float(np.mean(found)), flush=True)
    if spec["number"] == 0:
        fluid.io.save_persistables(executor, f"{spec['folder']}/saved", main)
        statuses = _connection().client.status()
        applied = {table.step for s in statuses for table in s.tables.values()}
        print("lost", sum(s.lost for s in statuses), "applied", applied, flush=True)
    executor.close()


def _goes_on(spec, step):
    """Wait until the trainer may take a step (True), or the job ends before it (False)."""
    folder = Path(spec["folder"])
    go, end = folder / f"go-{spec['number']}", folder / "end"
    told = False
    while int(go.read_text()) <= step:
        if not told and step:
            _connection().settle()
            print(f"waits at {step};", flush=True)
            told = True
        if end.exists() and int(end.read_text()) <= step:
            return False
        time.sleep(0.03)  # a look takes half a millisecond of the processor
    return True


def _connection():
    return next(iter(connections._connections.values()))


def undisturbed(spec):
    """Save in a folder what a job of two servers and two trainers learns that nothing happens
    to.
    """
    steps, wide = range(spec["steps"]), spec["wide"]
    build = job.wide_net("sparse") if wide else job.net("sparse", "adam", own_state=spec["own_state"])
    with job.Job(build, **{"servers": 2, "trainers": 2} | spec["job"]) as whole:
        whole.begin()
        whole.steps([(job.wide_batch if wide else job.batch)(step) for step in steps])
        whole.save(spec["folder"])


def begin(spec):
    """Be a server or a trainer until the job ends."""
    logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
    fluid.set_flags({"FLAGS_rpc_deadline": 120000})
    (serve if spec["role"] == "server" else train)(spec)
