"""A trainer of several: runs cases of tests/parity/parallel.py on its part of each batch, and
writes what it found.

    jfluid-launch --cpus 2 tests/parallel/processes.py OUT DEVICES CASE:MODE ...
"""

import functools
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import jfluid as fluid
from jfluid import processes
from tests.parity.parallel import built, train

build = functools.cache(built)
out, devices, *cases = sys.argv[1:]
rank, number = int(os.environ["PADDLE_TRAINER_ID"]), int(os.environ["PADDLE_TRAINERS_NUM"])
os.environ["CPU_NUM"] = devices
processes.join(os.environ["PADDLE_TRAINER_ENDPOINTS"].split(","), rank)
for name in cases:
    case, mode = name.split(":")
    losses, state = train(fluid, case, int(devices), mode == "reduce", sync=True, part=(rank, number), build=build)
    np.savez(f"{out}/{case}_{mode}_{rank}.npz", losses=losses, **state)
