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
from tests.distributed import jobs


def programs(spec):
    """The transpiler, and the trainer's programs."""
    loss, _ = jobs.net(spec["kind"])
    jobs.OPTIMIZERS[spec["optimizer"]]().minimize(loss)
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode = spec["sync"]
    transpiler = fluid.DistributeTranspiler(config)
    transpiler.config.min_block_size = 8
    number = spec["number"] if spec["role"] == "trainer" else 0
    transpiler.transpile(number, pservers=",".join(spec["endpoints"]), trainers=spec["trainers"], sync_mode=spec["sync"])
    return transpiler, loss


def serve(spec):
    transpiler, _ = programs(spec)
    main, startup = transpiler.get_pserver_programs(spec["endpoints"][spec["number"]])
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)
    executor.run(main)


def train(spec):
    transpiler, loss = programs(spec)
    startup = fluid.default_startup_program()
    main = transpiler.get_trainer_program()
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)
    first = distributed.rounds(main)
    print("begins", first, flush=True)
    for step in range(first, spec["steps"]):
        go = Path(spec["folder"]) / f"go-{spec['number']}"
        while go.exists() and int(go.read_text() or "0") <= step:
            time.sleep(0.01)
        found, = executor.run(main, feed=jobs.batch(step, spec["number"], spec["trainers"]), fetch_list=[loss])
        print("step", step, float(np.mean(found)), flush=True)
    if spec["number"] == 0:
        fluid.io.save_persistables(executor, f"{spec['folder']}/saved", main)
        if spec["kind"] == "distributed":
            fluid.io.save_inference_model(f"{spec['folder']}/saved", ["x", "ids", "y"], [loss], executor, main)
        link = next(iter(distributed.links._links.values()))
        print("lost", sum(status.lost for status in link.client.status()), flush=True)
    executor.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
    given = json.loads(sys.argv[1])
    fluid.set_flags({"FLAGS_rpc_deadline": 60000})
    (serve if given["role"] == "server" else train)(given)
