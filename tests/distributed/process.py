"""One process of a job: `python -m tests.distributed.process SPEC`, with SPEC as JSON.

A trainer prints a line for each step. It waits before a step until the file `<folder>/go-<number>` says a larger number, when
there is such a file, so that a test can do its worst at a certain step.
"""
import json
import logging
import sys
import time
from pathlib import Path

import numpy as np

import jfluid as fluid
from jfluid import distributed
from jfluid.distributed import links
from tests.distributed import job


def transpiled(spec, trainer=0):
    """What `job.transpile` gives for a process."""
    build = job.wide_net(spec["kind"], spec["optimizer"]) if spec.get("wide") else \
        job.net(spec["kind"], spec["optimizer"], own_state=spec.get("own_state", False))
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
    for step in range(first, spec["steps"]):
        go = Path(spec["folder"]) / f"go-{spec['number']}"
        while go.exists() and int(go.read_text() or "0") <= step:
            time.sleep(0.01)
        if step == spec["saves_at"]:
            _link().client.save(f"{spec['folder']}/snapshots/server-0")
        batch = (job.wide_batch if spec.get("wide") else job.batch)(step)
        found, = executor.run(main, feed=job.share(batch, spec["number"], spec["trainers"]), fetch_list=[loss])
        print("step", step, float(np.mean(found)), flush=True)
    if spec["number"] == 0:
        fluid.io.save_persistables(executor, f"{spec['folder']}/saved", main)
        statuses = _link().client.status()
        applied = {table.step for s in statuses for table in s.tables.values()}
        print("lost", sum(s.lost for s in statuses), "applied", applied, flush=True)
    executor.close()


def _link():
    return next(iter(links._links.values()))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
    given = json.loads(sys.argv[1])
    fluid.set_flags({"FLAGS_rpc_deadline": 60000})
    (serve if given["role"] == "server" else train)(given)
