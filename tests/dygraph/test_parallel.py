"""`DataParallel`: two processes train as one does on the whole batch."""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import dygraph, errors
from tests.dygraph.data_parallel_processes import train
from tests.launch_case import launched

SCRIPT = Path(__file__).parent / "data_parallel_processes.py"


@pytest.mark.process
def test_two_processes_equal_one(tmp_path):
    done = launched("--cpus", 2, "--log_dir", tmp_path / "log", SCRIPT, tmp_path, forks=True)
    assert done.returncode == 0, done.stdout + done.stderr
    alone = train(1, 0)
    first, second = (json.loads((tmp_path / f"result.{rank}").read_text()) for rank in (0, 1))
    assert first["losses"] != second["losses"]
    mean = np.mean([first["losses"], second["losses"]], 0)
    np.testing.assert_allclose(mean, alone["losses"], rtol=1e-5)
    np.testing.assert_allclose(first["gradient"], alone["gradient"], rtol=1e-4, atol=1e-6)
    for mine, value in zip(first["parameters"], alone["parameters"], strict=True):
        np.testing.assert_allclose(mine, value, rtol=1e-4)
    for name in ("gradient", "parameters"):
        assert first[name] == second[name]
    assert (first["env"], second["env"]) == ([2, 0, 2], [2, 1, 2])
    assert second["strategy"] == [2, 1] and alone["strategy"] is None
    assert alone["env"] == [1, 0, 0]
    assert alone["names"][0] == "0.weight" and "_layers.0.weight" in alone["names"]


def test_one_process():
    with pytest.raises(errors.DygraphError, match=r"within fluid\.dygraph\.guard"):
        dygraph.prepare_context()
    with dygraph.guard():
        strategy = dygraph.parallel.ParallelStrategy()
        strategy.nranks = 2
        with pytest.raises(errors.ProgramError, match="jfluid-launch --cpus N"):
            dygraph.prepare_context(strategy)
        layer = dygraph.Linear(2, 2)
        net = dygraph.DataParallel(layer, dygraph.prepare_context())
        assert net.full_name() == "linear_0_data_parallel_0"
        loss = fluid.layers.reduce_sum(net(dygraph.to_variable(np.ones((1, 2), "float32"))))
        assert net.scale_loss(loss) is loss
        assert not dygraph.parallel_helper._is_data_parallel_mode()
        loss.backward()
        net.apply_collective_grads()
        net.set_dict(layer.state_dict())
        for wrong in ((3, None), (layer, 3)):
            with pytest.raises(TypeError, match="DataParallel"):
                dygraph.DataParallel(*wrong)
