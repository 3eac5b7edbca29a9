"""The first loss, and streams of shapes as scripts have them, beside the real Fluid 1.8.5.

    python benchmarks/first_loss.py [STREAM ...] [--fluid PYTHON] [--steps N] [--rounds N]

Each stream runs in processes of its own, Fluid and jfluid in turn; jfluid twice, with an empty cache of compiled
programs and again with the one that the first process left. Seconds count from the start of the process.
Columns: to the first loss; steps 2 to N together; a later step (the mean of the last quarter, in
milliseconds); compilations by XLA; peak memory. Lower is better in all.

    python benchmarks/first_loss.py [STREAM ...] --exact [--steps N] [--rounds N]

The cost of padding: processor milliseconds of a settled step at padded sizes, and of the same batches in executables
of their exact shapes (`FLAGS_dynamic_shapes=0`), all compiled before; the ratio. Lower is better in all.
"""

import argparse
import importlib
import json
import os
import pickle
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


SETTLING = 300  # batches that choose the buckets, before the timed ones
PASSES = 6


def run_settled(stream, steps, states):
    """Time the batches of a stream after the first `SETTLING` ones, all compiled; print a line of JSON.

    The process at padded sizes runs the first ones too, and leaves the state of its random numbers in a file. The
    process at exact sizes begins with that state.
    """
    import threading

    import numpy as np

    fluid = importlib.import_module("jfluid")
    compilations, made, own = count_compilations("jfluid"), [], np.random.RandomState

    def noted(seed):
        made.append(own(seed))
        return made[-1]

    np.random.RandomState = noted
    step = streams()[stream](fluid, np)
    np.random.RandomState = own
    (random,) = made

    def run(at):
        """Run a batch; return its processor seconds, or infinity if something was compiled."""
        before, began = len(compilations), time.process_time()
        step(at)
        spent = time.process_time() - began
        for thread in threading.enumerate():
            if thread.name == "jfluid-compile":
                thread.join()
        return spent if len(compilations) == before else float("inf")

    if not os.path.exists(states):
        for at in range(SETTLING):
            run(at)
        with open(states, "wb") as file:
            pickle.dump(random.get_state(), file)
    with open(states, "rb") as file:
        start = pickle.load(file)
    passes = []
    for _ in range(PASSES):
        random.set_state(start)
        passes.append([run(SETTLING + at) for at in range(steps)])
    least = [min(spent) for spent in zip(*passes)]
    figures = {"step_ms": 1000 * sum(least) / steps, "compilations": len(compilations)}
    print("FIGURES " + json.dumps(figures), flush=True)


def compare_exact(stream, steps):
    """Print the cost of padding of a stream."""
    with tempfile.TemporaryDirectory() as cache:
        # A small step would be interpreted for hundreds of steps.
        flags = {"FLAGS_interpret_first_steps": "0", "STREAM_STATES": os.path.join(cache, "states")}
        padded = measured(sys.executable, "settled", stream, steps, cache, flags)
        exact = measured(sys.executable, "settled", stream, steps, cache, flags | {"FLAGS_dynamic_shapes": "0"})
    own, other = padded["step_ms"], exact["step_ms"]
    counts = padded["compilations"], exact["compilations"]
    print(f"{stream:14}{own:12.2f}{other:12.2f}{own / other:8.2f}{counts[0]:8}{counts[1]:8}", flush=True)


def measured(python, engine, stream, steps, cache, flags=None):
    """The figures of a process that runs a stream."""
    environment = os.environ | {"FLAGS_compilation_cache_dir": cache, "PYTHONWARNINGS": "ignore"} | (flags or {})
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
    parser.add_argument("--exact", action="store_true", help="the cost of padding beside exact shapes")
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "STREAM"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        engine, stream = given.one
        if engine == "settled":
            run_settled(stream, given.steps, os.environ["STREAM_STATES"])
        else:
            run_one(engine, stream, given.steps)
        return
    if given.exact:
        print(f"{'stream':14}{'padded, ms':>12}{'exact, ms':>12}{'ratio':>8}{'compiled':>16}", flush=True)
        for stream in [*(given.streams or streams())] * given.rounds:
            compare_exact(stream, given.steps)
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
