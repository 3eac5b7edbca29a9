"""A request whose offsets do not fit its rows is answered by what is wrong with it, and by no other's rows."""

import json

import numpy as np
import pytest

import jfluid as fluid
from tests.command import test_serve


@pytest.mark.parametrize("kernels", [True, False])
def test_offsets_that_do_not_fit_are_a_bad_request(kernels, tmp_path, monkeypatch):
    x, offsets = fluid.data("x", [None, 16]), fluid.data("z", [None], "int32")
    out = fluid.layers.sequence_pool(fluid.layers.lod_reset(x, offsets), "max")
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    fluid.io.save_inference_model(str(tmp_path), ["x", "z"], [out], executor)
    fluid.set_flags({"FLAGS_cpu_kernels": kernels})
    monkeypatch.setattr(test_serve, "GOLDEN", tmp_path)
    rows = np.ones((4, 16)).tolist()

    def ask(*offsets):
        body = json.dumps({"inputs": {"x": rows, "z": offsets}}).encode()
        status, said = test_serve.asked(f"{address}/predict", body)
        return status, json.loads(said)

    try:
        with test_serve.served() as address:
            before = ask(0, 1, 4, 4)
            assert before[0] == 200
            for wrong in ((0, 1, 2, 9), (0, 3, 1, 4), (-4, 1, 2, 4), (0, 1, 2, 2_000_000_000)):
                status, said = ask(*wrong)
                assert status == 400
                shown = ", ".join(map(str, wrong))
                assert "operator lod_reset" in said["error"] and f"[{shown}]" in said["error"]
            assert ask(0, 1, 4, 4) == before
    finally:
        fluid.set_flags({"FLAGS_cpu_kernels": True})
