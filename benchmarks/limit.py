"""How near programs are to what the machine can do, and to other engines on the same programs.

    python benchmarks/limit.py [MODEL ...] [--rounds 5] [--torch PYTHON] [--paddle PYTHON] [--fluid PYTHON]
        [--json FILE]

First the machine: the fastest single-precision matrix product (NumPy, XLA, PyTorch where `--torch` names
an interpreter that has it), the fastest convolution of a few shapes (XLA, PyTorch's oneDNN), and copies
of memory on all threads. Then each program: its share of the peak, by the operations that the model
needs, the same while it multiplies or convolves (`thunks.py`), its share of the bandwidth, by what its
compiled step reads and writes, and where a step's time goes (see `_parts`). Then other engines in turn:
hand-written JAX, with XLA's default options and with jfluid's, PyTorch and Paddle 3 (`--paddle`), eager
and compiled, Fluid 1.8.5 on all threads, and in replicas. The goals: ahead of all others, and 60% of the
peak in products and convolutions.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import noisy_neighbours
import numpy as np
import thunks
import turns
from host import Recorded, call_alone

import jfluid as fluid
from jfluid.compile.runtime.options import options

SIZES = (1024, 2048)  # of square matrices
# batch, channels, height and width, filters, width of the filter
CONVOLUTIONS = ((64, 16, 32, 16, 3), (64, 64, 8, 64, 3), (32, 64, 56, 64, 3), (16, 256, 14, 256, 3))
COPIED = 1 << 28  # bytes
TORCH = """
import json, time, torch, torch.nn.functional as F
def fastest(work, flops):
    work(); times = []
    for _ in range(9):
        begin = time.perf_counter(); work(); times.append(time.perf_counter() - begin)
    return flops / min(times) / 1e9
found = {"version": torch.__version__, "product": 0.0, "convolution": {}}
with torch.no_grad():
    for n in SIZES:
        a, b = torch.rand(n, n), torch.rand(n, n)
        found["product"] = max(found["product"], fastest(lambda: a @ b, 2 * n ** 3))
    for b, c, s, f, k in CONVOLUTIONS:
        x, w = torch.rand(b, c, s, s), torch.rand(f, c, k, k)
        flops = 2 * b * s * s * c * f * k * k
        found["convolution"][str((b, c, s, f, k))] = fastest(lambda: F.conv2d(x, w, padding=k // 2), flops)
print(json.dumps(found))
"""


def _fastest(work, count=9):
    """Seconds of the fastest of several calls."""
    work()
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def _xla(function):
    return jax.jit(function, compiler_options=options(jax.local_devices(backend="cpu")[0]))


def products():
    """GFLOP/s of the fastest square product: by NumPy, by XLA."""
    found = {"numpy": 0.0, "xla": 0.0}
    multiply = _xla(jnp.matmul)
    for n in SIZES:
        a, b = np.random.RandomState(0).rand(2, n, n).astype("float32")
        on_device = jnp.asarray(a), jnp.asarray(b)
        ways = {
            "numpy": lambda a=a, b=b: a @ b,
            "xla": lambda given=on_device: multiply(*given).block_until_ready(),
        }
        for name, work in ways.items():
            found[name] = max(found[name], 2 * n**3 / _fastest(work) / 1e9)
    return found


def convolutions():
    """GFLOP/s of XLA's convolution by shape."""
    found = {}
    for shape in CONVOLUTIONS:
        batch, channels, size, filters, width = shape
        random = np.random.RandomState(0)
        x = jnp.asarray(random.rand(batch, channels, size, size), "float32")
        w = jnp.asarray(random.rand(filters, channels, width, width), "float32")
        convolve = _xla(lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME"))
        seconds = _fastest(lambda x=x, w=w, run=convolve: run(x, w).block_until_ready())
        flops = 2 * batch * size * size * channels * filters * width * width
        found[str(shape)] = flops / seconds / 1e9
    return found


def bandwidth():
    """GB/s read and written when each thread copies its part of an array."""
    count = os.cpu_count() or 1
    source, target = np.ones((2, COPIED // 4), "float32")
    parts = list(zip(np.array_split(source, count), np.array_split(target, count)))

    def copy():
        threads = [threading.Thread(target=np.copyto, args=(b, a)) for a, b in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return 2 * COPIED / _fastest(copy, 5) / 1e9


def machine(torch=None):
    """What the machine can do."""
    found = {"products": products(), "convolutions": convolutions(), "GB/s": bandwidth()}
    if torch:
        code = "SIZES, CONVOLUTIONS = %r, %r\n%s" % (SIZES, CONVOLUTIONS, TORCH)
        done = subprocess.run([torch, "-c", code], stdout=subprocess.PIPE, check=True, text=True)
        theirs = json.loads(done.stdout.splitlines()[-1])
        found["torch"] = theirs["version"]
        found["products"]["torch"] = theirs["product"]
        found["torch's convolutions"] = theirs["convolution"]
    found["GFLOP/s"] = max(found["products"].values())
    return found


def _cost(model, compiled, given, feed):
    """(GFLOP that the model needs, GB that the compiled step reads and writes, the step's text).

    The first by XLA's cost analysis of hand-written JAX, which computes nothing twice; the second
    by that of the compiled program, in which a loop's body counts once.
    """
    import jax_models

    batch = jax_models.PREPARE.get(model, lambda feed: feed)(feed)
    with jax.enable_x64(True):
        step = compiled.lower(*given).compile()
    read = step.cost_analysis()["bytes accessed"]
    # sorting ids is no need of the model
    return (
        jax_models.flops(model.replace("_lazy_adam", ""), batch) / 1e9,
        read / 1e9,
        step.as_text(),
    )


def program(model, rounds):
    """Where the time of a step goes, and what it computes."""
    import fluid_models

    with fluid.scope_guard(fluid.Scope()), fluid.unique_name.guard():
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup):
            loss, make = fluid_models.MODELS[model](fluid)
        # the cost is asked of what is traced here; steps that were kept on disk are not
        fluid.set_flags({"FLAGS_compilation_cache_dir": ""})
        exe, random, fetches = fluid.Executor(fluid.CPUPlace()), np.random.RandomState(0), [loss]
        exe.run(startup)
        feed = make(random)
        for _ in range(3):
            exe.run(main, feed=feed, fetch_list=fetches)
        step = list(exe.engine._steps.values())[-1]
        segment = step.whole
        recorded = segment.exact.plain = Recorded(segment.exact.plain)
        exe.run(main, feed=feed, fetch_list=fetches)
        compiled = segment.exact.plain = recorded.function
        gflop, gbytes, text = _cost(model, compiled, recorded.given, feed)

        def run(count):
            for _ in range(count):
                exe.run(main, feed=feed, fetch_list=fetches)

        ways = {
            "run": run,
            "call": call_alone(compiled, recorded.given, segment.gives.index(loss.name)),
            "compute": _computing(compiled, recorded.given),
        }
        found = _parts(ways, rounds)
        share = thunks.share(lambda: ways["compute"](5), text)
    found["products_ms"] = share * found["compute_ms"]
    return {**found, "gflop": gflop, "gbytes": gbytes}


def _computing(compiled, given):
    """A function that calls a step's compiled function itself `count` times, its feeds on the
    device, its results left there.
    """
    donated, kept, key = given
    with jax.enable_x64(True):
        kept, key = jax.device_put((kept, key), jax.local_devices(backend="cpu")[0])
    state = [jax.tree.map(np.array, donated)]

    def calls(count):
        with jax.enable_x64(True):
            for _ in range(count):
                gives, _ = compiled(state[0], kept, key)
                state[0] = jax.block_until_ready(gives)[: len(donated)]

    return calls


def _parts(ways, rounds):
    """Milliseconds of a step and its parts, medians of rounds in which all take turns: "compute" is
    the compiled function alone, "copy" what feeds from the host and the loss to the host add,
    "host" the processor time of `Executor.run` beyond that call, "wait" what is left.
    """
    count = max(2, min(200, round(0.3 / _fastest(lambda: ways["compute"](1), 3))))
    each = {name: [] for name in ("ms", "compute_ms", "copy_ms", "host_ms", "wait_ms")}

    def turn(work):
        begin, thread = time.perf_counter(), time.thread_time()
        work(count)
        spent = time.perf_counter() - begin, time.thread_time() - thread
        return [1e3 * seconds / count for seconds in spent]

    for _ in range(rounds):
        clock, mine = {}, {}
        for name, work in ways.items():
            take = functools.partial(turn, work)
            clock[name], mine[name] = noisy_neighbours.here().undisturbed(take)
        host = mine["run"] - mine["call"]
        each["ms"].append(clock["run"])
        each["compute_ms"].append(clock["compute"])
        each["copy_ms"].append(clock["call"] - clock["compute"])
        each["host_ms"].append(host)
        each["wait_ms"].append(clock["run"] - clock["call"] - host)
    found = {name: statistics.median(values) for name, values in each.items()}
    return {**found, "low": min(each["ms"]), "high": max(each["ms"])}


def engines(model, rounds, pythons):
    """(what `turns.in_turn` found of each engine, why others failed).

    Args:
        pythons: interpreters by "torch", "paddle", "fluid"; None where there is none.
    """
    import jax_models

    every, threads = str(os.cpu_count()), {"FLAGS_paddle_num_threads": str(os.cpu_count())}
    kinds = {"jfluid": ("jfluid", "one", sys.executable, {})}
    if model in jax_models.TRAINED:
        kinds["JAX"] = ("jax", "one", sys.executable, {})
        kinds["JAX, our options"] = ("jax-options", "one", sys.executable, {})
    if pythons.get("torch"):
        kinds["PyTorch"] = ("torch", "one", pythons["torch"], {})
        kinds["PyTorch, compiled"] = ("torch-compiled", "one", pythons["torch"], {})
    if pythons.get("paddle"):
        kinds["Paddle 3"] = ("paddle", "one", pythons["paddle"], threads)
        kinds["Paddle 3, compiled"] = ("paddle-compiled", "one", pythons["paddle"], threads)
    if pythons.get("fluid"):
        kinds["Fluid"] = ("paddle.fluid", "one", pythons["fluid"], threads)
        kinds["Fluid, replicas"] = ("paddle.fluid", "replicas", pythons["fluid"], {})
    workers = {
        name: turns.Worker(engine, model, mode, python, CPU_NUM="1" if mode == "one" else every, **variables)
        for name, (engine, mode, python, variables) in kinds.items()
    }
    try:
        found = turns.in_turn(workers, rounds)
        return found, {n: w.failure for n, w in workers.items() if w.failure}
    finally:
        for worker in workers.values():
            worker.close()


MODELS = ("mlp", "mnist_conv", "resnet_cifar", "transformer_encoder", "stacked_lstm")
MODELS += ("ctr_dnn", "ctr_dnn_lazy_adam")


def show_programs(models, rounds, limit):
    """Print and return what `program` finds of each, with its share of the machine's limits."""
    found = {}
    names = ("ms", "compute_ms", "copy_ms", "host_ms", "wait_ms", "gflop", "of_peak", "products_ms")
    names += ("products_of_peak", "gbytes", "of_bandwidth")
    print("| program | %s |\n%s|" % (" | ".join(names), "|---" * (1 + len(names))))
    for model in models:
        p = found[model] = program(model, rounds)
        p["of_peak"] = p["gflop"] / (p["ms"] / 1e3) / limit["GFLOP/s"]
        p["products_of_peak"] = p["of_peak"] * p["ms"] / p["products_ms"]
        p["of_bandwidth"] = p["gbytes"] / (p["ms"] / 1e3) / limit["GB/s"]
        print("| %s | %s |" % (model, " | ".join("%.3f" % p[n] for n in names)), flush=True)
    return found


def show_engines(models, rounds, pythons):
    """Print and return what `engines` finds of each, and why engines failed."""
    found, failures = {}, {}
    print("\nmilliseconds in turn, how often jfluid's step fits into another's, memory of the model:")
    for model in models:
        timed, failed = engines(model, rounds, pythons)
        found[model], own = timed, timed["jfluid"]
        if failed:
            failures[model] = failed
        texts = [
            "%s %.2f (%.2f; %.0f MB)" % (n, f["ms"], turns.ratio(own, f), f["model_mb"])
            for n, f in timed.items()
            if n != "jfluid"
        ]
        texts += ["%s: %s" % pair for pair in failed.items()]
        shown = model, own["ms"], own["model_mb"], ", ".join(texts)
        print("%s: jfluid %.2f (%.0f MB); %s" % shown, flush=True)
    return found, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", help="an interpreter that has PyTorch 2 and NumPy")
    parser.add_argument("--paddle", help="an interpreter that has Paddle 3")
    parser.add_argument("--fluid", help="an interpreter that can import paddle.fluid")
    parser.add_argument("--json", help="a file for what was found")
    args = parser.parse_args()
    fluid.CPUPlace().device()  # before JAX starts: its threads keep the memory of steps from here on
    limit = machine(args.torch)
    print("machine: %s\n" % json.dumps(limit, default=lambda v: round(v, 1)))
    found = {"machine": limit, "programs": show_programs(args.models, args.rounds, limit)}
    pythons = {"torch": args.torch, "paddle": args.paddle, "fluid": args.fluid}
    found["engines"], found["failed"] = show_engines(args.models, args.rounds, pythons)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
