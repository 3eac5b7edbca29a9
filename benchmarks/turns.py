"""Engines in turn: processes that stay alive and train a few steps each, one after the other, so that
a slow minute of the machine hits all (Python 3.7 syntax: Fluid 1.8.5 runs it, too).

    python turns.py ENGINE MODEL MODE       a process that reads numbers of steps and answers with times

ENGINE is jfluid, paddle.fluid, jax, jax-options (XLA's options and threads of jfluid), torch, torch-compiled,
paddle (Paddle 3) or paddle-compiled.
MODE, of the first two: `one` is
`Executor.run` of the program itself, `replicas` with_data_parallel, `apart` the same with replicas on
devices of their own, `reduce` with ReduceStrategy.Reduce. CPU_NUM says how many replicas. Several, joined by "+",
are trained in one process, and a line ends in the mode that is meant: two processes of the same
program differ by more than the modes do, by where their memory lies.
"""

import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import noisy_neighbours

FEEDS = 8  # different batches, again and again
# Engines with models of their own; those of others are made by Fluid's interface.
OWN_MODELS = {
    "jax": "jax_models",
    "jax-options": "jax_models",
    "torch": "torch_models",
    "torch-compiled": "torch_models",
    "paddle": "paddle_models",
    "paddle-compiled": "paddle_models",
}


class Worker:
    """A process of one engine.

    Attributes:
        failure: the end of what it wrote if it has failed.
    """

    def __init__(self, engine, model, mode="one", python=sys.executable, **variables):
        self.failure = None
        env = dict(os.environ, PYTHONWARNINGS="ignore", **variables)
        self._process = subprocess.Popen(
            [python, os.path.abspath(__file__), engine, model, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            universal_newlines=True,
        )

    def ask(self, line):
        """The answer to a line; None from a process that has failed."""
        if self.failure is not None:
            return None
        try:
            self._process.stdin.write("%s\n" % line)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self._process.stdout.readline()
        if not answer:
            self.failure = (self._process.stderr.read().strip().splitlines() or ["ended"])[-1]
            return None
        return json.loads(answer)

    def close(self):
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                pass
        self._process.wait()
        self._process.stderr.close()


class Mode:
    """One mode of a Worker that has several."""

    def __init__(self, worker, mode):
        self._worker, self._mode = worker, mode

    def ask(self, line):
        return self._worker.ask("%s %s" % (line, self._mode))


def in_turn(workers, rounds, milliseconds=400, machine=None):
    """Train in turn, as many steps each as take so long in the first turn.

    Args:
        workers: by name. Those that fail are left out.
        machine: says whether something slows it (see `noisy_neighbours.py`).

    Returns by name {"ms": median of the rounds, "low", "high": the quickest and the slowest round,
    "cpu_ms": processor time a step, "rounds": ms of each, "peak_mb": resident at most, "model_mb":
    of it, what the engine did not have before it built the model}.
    """
    machine, counts = machine or noisy_neighbours.here(), {}
    for name, worker in workers.items():
        first = worker.ask(FEEDS)  # compiles
        if first is not None:
            counts[name] = max(2, min(200, round(milliseconds / statistics.median(first["ms"]))))
    found = {name: {"rounds": [], "cpu": []} for name in counts}
    for turn in range(rounds):
        for name in list(counts) if turn % 2 else list(counts)[::-1]:
            take = functools.partial(workers[name].ask, counts[name])
            answer = machine.undisturbed(take)
            if answer is not None:
                found[name]["rounds"].append(statistics.median(answer["ms"]))
                found[name]["cpu"].append(answer["cpu_ms"])
                found[name]["peak_mb"] = answer["peak_mb"]
                found[name]["model_mb"] = answer["model_mb"]
    return {name: _summary(f) for name, f in found.items() if len(f["rounds"]) == rounds}


def _summary(found):
    rounds = found["rounds"]
    return {
        "ms": statistics.median(rounds),
        "low": min(rounds),
        "high": max(rounds),
        "cpu_ms": statistics.median(found["cpu"]),
        "peak_mb": found["peak_mb"],
        "model_mb": found["model_mb"],
        "rounds": rounds,
    }


def ratio(ours, theirs):
    """The median of `theirs` / `ours`, round by round: above 1 ours is faster."""
    return statistics.median(b / a for a, b in zip(ours["rounds"], theirs["rounds"]))


# What an engine's process imports before its memory counts as a model's.
# Batches of hand-written JAX are jfluid's.
IMPORTS = {"torch-compiled": "torch", "paddle-compiled": "paddle"}
IMPORTS.update({"jax": "jfluid", "jax-options": "jfluid"})


def _resident_mb(field):
    """VmRSS, what is resident now, or VmHWM, at most so far: getrusage's may be that of the process
    that started this one.
    """
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024.0 for line in file if line.startswith(field))


def _trainer(engine, model, mode):
    """(a function that runs a step on a feed, feeds)."""
    import fluid_models
    import numpy as np

    rng = np.random.RandomState(0)
    if engine not in OWN_MODELS:
        fluid = importlib.import_module(engine)
        train, feed = fluid_models.trainer(fluid, model, mode)
        run = train if engine != "jfluid" else _with_replicas(fluid, train, mode != "apart")
        return run, [feed(rng) for _ in range(FEEDS)]
    own = importlib.import_module(OWN_MODELS[engine])
    feed = own.batches(model)
    prepare = own.PREPARE.get(model, lambda feed: feed)
    feeds = [prepare(feed(rng)) for _ in range(FEEDS)]
    if engine == "jax-options":
        import jfluid
        from jfluid.compile.runtime.options import options

        return own.trainer(model, options(jfluid.CPUPlace().device())), feeds
    return own.trainer(model, *([True] if engine.endswith("-compiled") else [])), feeds


def _with_replicas(fluid, train, joined):
    def run(feed):
        fluid.set_flags({"FLAGS_cpu_replicas_joined": joined})  # its first step compiles
        return train(feed)

    return run


def work(engine, model, mode):
    """Answer numbers of steps with {"ms": of each, "cpu_ms": a step, "peak_mb": resident at most,
    "model_mb": of it, without what was there when the engine was imported}.
    """
    import resource

    import numpy as np

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ.setdefault("FLAGS_interpret_first_steps", "0")  # steps are timed from the first compiled one on
    importlib.import_module(IMPORTS.get(engine, engine))
    imported = _resident_mb("VmRSS")
    trainers = {each: _trainer(engine, model, each) for each in mode.split("+")}
    done = 0
    for line in sys.stdin:
        count, _, which = line.strip().partition(" ")
        run, feeds = trainers[which or mode]
        times, before = [], resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(int(count)):
            begin = time.perf_counter()
            loss = run(feeds[done % FEEDS])
            times.append(1e3 * (time.perf_counter() - begin))
            done += 1
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if not np.isfinite(np.mean(loss)):
            raise SystemExit("the loss is not finite")
        peak = _resident_mb("VmHWM")
        answer = {
            "ms": times,
            "cpu_ms": 1e3 * spent / len(times),
            "peak_mb": peak,
            "model_mb": peak - imported,
        }
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    work(*sys.argv[1:4])
