"""The first loss, and streams of shapes as scripts have them, beside the real Fluid 1.8.5.

    python benchmarks/first_loss.py [STREAM ...] [--fluid PYTHON] [--steps N] [--rounds N]

Each stream runs in processes of its own, Fluid and jfluid in turn; jfluid twice, with an empty cache of compiled
programs and again with the one that the first process left. Seconds count from the start of the process.
Columns: to the first loss; steps 2 to N together; a later step (the mean of the last quarter, in
milliseconds); compilations by XLA; peak memory. Lower is better in all.
"""

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

STARTED = time.time()
HERE = os.path.abspath(__file__)


def streams():
    """The builders of all streams by name; their import loads NumPy, which counts as a part of a process's start."""
    return importlib.import_module("shape_streams").STREAMS


def count_compilations(engine):
    """A list that gets an entry for each compilation by XLA."""
    found = []
    if engine == "jfluid":
        import jax

        def noted(event, seconds, **_):
            if event == "/jax/core/compile/backend_compile_duration":
                found.append(seconds)

        jax.monitoring.register_event_duration_secs_listener(noted)
    return found


def run_one(engine, stream, steps):
    """Run a stream in this process; print a line of JSON."""
    import numpy as np

    fluid = importlib.import_module(engine)
    compilations = count_compilations(engine)
    step = streams()[stream](fluid, np)
    losses, ends = [], []
    for at in range(steps):
        losses.append(float(np.asarray(step(at)).ravel()[0]))
        ends.append(time.time() - STARTED)
    quarter = max(steps // 4, 1)
    figures = {
        "first": ends[0],
        "rest": ends[-1] - ends[0],
        "later_ms": 1000 * (ends[-1] - ends[-1 - quarter]) / quarter,
        "compilations": len(compilations),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "finite": bool(np.isfinite(losses).all()),
    }
    print("FIGURES " + json.dumps(figures), flush=True)


def measured(python, engine, stream, steps, cache):
    """The figures of a process that runs a stream."""
    environment = os.environ | {"FLAGS_compilation_cache_dir": cache, "PYTHONWARNINGS": "ignore"}
    command = [python, HERE, "--one", engine, stream, "--steps", str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("FIGURES "):
            return json.loads(line.partition(" ")[2])
    raise SystemExit(f"{engine} {stream}: {done.stderr.strip()[-800:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("streams", nargs="*", choices=[*streams(), []], metavar="STREAM")
    parser.add_argument("--fluid", metavar="PYTHON", help="an interpreter with PaddlePaddle 1.8.5")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "STREAM"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run_one(*given.one, given.steps)
        return
    columns = ("first", "rest", "later_ms", "compilations", "peak_mb", "finite")
    print(f"{'stream':14}{'engine':16}" + "".join(f"{name:>13}" for name in columns), flush=True)
    for stream in given.streams or streams():
        for _ in range(given.rounds):
            with tempfile.TemporaryDirectory() as cache:
                runs = [("jfluid, first", sys.executable, "jfluid")]
                runs.append(("jfluid, second", sys.executable, "jfluid"))
                if given.fluid:
                    runs.insert(0, ("Fluid", given.fluid, "paddle.fluid"))
                for name, python, engine in runs:
                    found = measured(python, engine, stream, given.steps, cache)
                    cells = "".join(
                        f"{v:13.2f}" if isinstance(v, float) else f"{v!s:>13}" for v in (found[c] for c in columns)
                    )
                    print(f"{stream:14}{name:16}{cells}", flush=True)


if __name__ == "__main__":
    main()
