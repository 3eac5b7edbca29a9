"""Requests of many shapes: the server compiles a dozen steps, and answers with the results of exact shapes."""

import io

import numpy as np
import pytest

import jfluid as fluid
from tests.command.test_serve import NPZ, asked, served
from tests.dynamic_shapes.interpreted import interpreted
from tests.dynamic_shapes.test_placements import MOST, SIZES, compilations, feeds, network


@pytest.mark.parametrize("count", [14, pytest.param(40, marks=pytest.mark.nightly)])
def test_requests_of_many_shapes(count, tmp_path):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
        _, given, _ = network()
        executor, test = fluid.Executor(fluid.CPUPlace()), main.clone(for_test=True)
        executor.run(startup)
        inputs = [feed["x"] for feed in feeds()[:count]]
        fluid.io.save_inference_model(str(tmp_path), ["x"], [given], executor, main_program=test)
        fluid.set_flags({"FLAGS_dynamic_shapes": False})
        try:
            program, names, fetches = fluid.io.load_inference_model(str(tmp_path), executor)
            expected = [interpreted(executor.run, program, {names[0]: x}, fetches)[0] for x in inputs]
        finally:
            fluid.set_flags({"FLAGS_dynamic_shapes": True})
    with compilations() as compiled, served({"model": str(tmp_path)}, largest=16, delay=0.0) as address:
        for x, wanted in zip(inputs, expected, strict=True):
            body = io.BytesIO()
            np.savez(body, x=x)
            status, said = asked(f"{address}/predict", body.getvalue(), NPZ)
            assert status == 200, said
            with np.load(io.BytesIO(said)) as answer:
                (found,) = answer.values()
            np.testing.assert_allclose(found, wanted, 5e-4, 1e-5)
    assert len(set(SIZES[:count])) == count and len(compiled) <= MOST
