"""Processes that train together by operators in their programs: like one process on all their data."""
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.launch_case import ENVIRONMENT, launched, write

pytestmark = pytest.mark.process

SCRIPT = """
import json, os, sys
import numpy as np
import jfluid as fluid

rank = int(os.environ.get("PADDLE_TRAINER_ID", 0))
endpoints = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:1").split(",")
fluid.default_startup_program().random_seed = 1 + rank
x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1])
hidden = fluid.layers.fc(x, 8, act="relu")
loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))
clip = fluid.clip.GradientClipByGlobalNorm(1.0) if sys.argv[1] == "grad_allreduce" else None
fluid.optimizer.SGD(fluid.layers.exponential_decay(0.1, 5, 0.9), grad_clip=clip).minimize(loss)
if len(endpoints) > 1:
    config = fluid.DistributeTranspilerConfig()
    config.mode, config.collective_mode, config.nccl_comm_num = "collective", sys.argv[1], 2
    fluid.DistributeTranspiler(config).transpile(rank, trainers=",".join(endpoints), current_endpoint=endpoints[rank])
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
data, losses = np.random.RandomState(0), []
for step in range(5):
    rows = data.rand(8, 4).astype("float32")
    feed = {"x": rows, "y": rows.sum(1, keepdims=True)}
    share = {n: np.split(v, len(endpoints))[rank] for n, v in feed.items()}
    losses.append(exe.run(feed=share, fetch_list=[loss])[0].item())
weights = {n: np.array(fluid.global_scope().find_var(n).get_tensor()).tolist() for n in ("fc_0.w_0", "fc_1.b_0")}
# A last batch need not be of the same size everywhere.
last = exe.run(feed={n: v[:2 + rank] for n, v in feed.items()}, fetch_list=[loss])[0].item()
with open(f"result.{len(endpoints)}.{rank}", "w") as f:
    json.dump({"losses": losses, "weights": weights, "last": last}, f)
"""


@pytest.mark.parametrize("mode", ["grad_allreduce", "local_sgd"])
def test_two_processes_equal_one(mode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("train.py", SCRIPT)
    done = launched("--cpus", "2", "train.py", mode)
    assert done.returncode == 0, done.stdout + done.stderr
    subprocess.run([sys.executable, "train.py", mode], env=ENVIRONMENT | {"JAX_PLATFORMS": "cpu"}, check=True, timeout=60)
    one, first, second = (json.loads(Path(f"result.{name}").read_text()) for name in ("1.0", "2.0", "2.1"))
    np.testing.assert_allclose(np.mean([first["losses"], second["losses"]], axis=0), one["losses"], rtol=1e-4)
    assert first["losses"] != second["losses"]  # each has its own data
    for name, value in one["weights"].items():
        np.testing.assert_allclose(first["weights"][name], value, rtol=1e-4, atol=1e-6)
        assert first["weights"][name] == second["weights"][name]
    assert first["last"] > 0 and second["last"] > 0
