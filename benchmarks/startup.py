"""Seconds until the first step: building a program, and a second start that finds compiled programs
on disk.

    python benchmarks/startup.py

Each figure is taken in a process of its own; the last row is the second run of the same command.
"""

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
main, startup = fluid.Program(), fluid.Program()
with fluid.program_guard(main, startup):
    loss, feed = getattr(fluid_models, {model!r})(fluid)
built = time.perf_counter()
if {run}:
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    exe.run(main, feed=feed(np.random.RandomState(0)), fetch_list=[loss])
end = time.perf_counter()
print(json.dumps([imported - start, built - imported, end - start]))
"""


def seconds(model, run, cache):
    """[import, build, start to end of the first step] of one process."""
    code = ONE.format(here=os.path.dirname(os.path.abspath(__file__)), model=model, run=run)
    env = {**os.environ, "FLAGS_compilation_cache_dir": cache}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # a second start finds bytecode, too
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True, env=env
    )
    return json.loads(done.stdout)


def main():
    with tempfile.TemporaryDirectory() as cache:
        print("| what | seconds |\n|---|---|")
        imported, built, _ = seconds("resnet50", False, cache)
        print(
            "| import jfluid | %.2f |\n| build the ResNet-50 training program | %.2f |"
            % (imported, built)
        )
        for which in ("first", "second"):
            print(
                "| resnet_cifar, %s start to the end of step 1 | %.2f |"
                % (which, seconds("resnet_cifar", True, cache)[2])
            )


if __name__ == "__main__":
    main()
