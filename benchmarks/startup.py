"""Seconds until the first step: building a program, a second start that finds compiled programs on
disk, and long programs.

    python benchmarks/startup.py [--operators 1000 10000] [--json FILE]

Each figure is taken in a process of its own; the second start is the second run of the same command. Of
programs with so many operators: the processor seconds from building to the end of the first step, with
nothing on disk, and those of each operator of the longest against the shortest, which is 1 where they
compile in linear time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

ONE = """
import json, sys, time
start = time.perf_counter()
sys.path.insert(0, {here!r})
import numpy as np
import fluid_models
import jfluid as fluid
imported = time.perf_counter()
fluid.layers
used = time.perf_counter()
main, startup = fluid.Program(), fluid.Program()
with fluid.program_guard(main, startup):
    loss, feed = getattr(fluid_models, {model!r})(fluid)
built = time.perf_counter()
if {run}:
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    exe.run(main, feed=feed(np.random.RandomState(0)), fetch_list=[loss])
end = time.perf_counter()
print(json.dumps([imported - start, used - start, built - used, end - start]))
"""


def seconds(model, run, cache):
    """[import, import of what builds programs, build, start to end of the first step] of one
    process.
    """
    code = ONE.format(here=os.path.dirname(os.path.abspath(__file__)), model=model, run=run)
    env = {**os.environ, "FLAGS_compilation_cache_dir": cache}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # a second start finds bytecode, too
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True, env=env)
    return json.loads(done.stdout)


LONG = """
import json, resource
import numpy as np
import jfluid as fluid
def spent():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
begin = spent()
weight = fluid.ParamAttr("w", fluid.initializer.Constant(0.1))
hidden = fluid.data("x", [None, 8])
block = fluid.default_main_program().global_block()
while 2 * len(block.ops) < {operators}:
    hidden = fluid.layers.fc(hidden, 8, act="tanh", param_attr=weight, bias_attr=False)
loss = fluid.layers.mean(hidden)
fluid.optimizer.SGD(0.1).minimize(loss)
built = spent()
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
exe.run(feed={{"x": np.ones((4, 8), "float32")}}, fetch_list=[loss])
print(json.dumps([len(block.ops), built - begin, spent() - built]))
"""


def long_program(operators):
    """{"operators", "build", "first": processor seconds to build it, and of its first step}."""
    env = {**os.environ, "FLAGS_compilation_cache_dir": ""}
    code = LONG.format(operators=operators)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True, env=env)
    return dict(zip(("operators", "build", "first"), json.loads(done.stdout)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", type=int, nargs=2, default=[1000, 10000])
    parser.add_argument("--json", help="a file for what was found")
    args = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        print("| what | seconds |\n|---|---|")
        found["import"], found["used"], found["resnet50_built"], _ = seconds("resnet50", False, cache)
        print("| import jfluid | %.2f |" % found["import"])
        print("| the same, with JAX and all that builds programs | %.2f |" % found["used"])
        print("| build the ResNet-50 training program | %.2f |" % found["resnet50_built"], flush=True)
        for which in ("first", "second"):
            found[which] = seconds("resnet_cifar", True, cache)[3]
            start = "| resnet_cifar, %s start to the end of step 1 | %.2f |"
            print(start % (which, found[which]), flush=True)
    found["long"] = [long_program(operators) for operators in args.operators]
    for long in found["long"]:
        print(
            "| %d operators: processor seconds to build, and of the first step | %.2f, %.2f |"
            % (long["operators"], long["build"], long["first"]),
            flush=True,
        )
    each = [(long["build"] + long["first"]) / long["operators"] for long in found["long"]]
    found["linear"] = each[-1] / each[0]
    print("| processor seconds an operator, the longest against the shortest | %.2f |" % found["linear"])
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
