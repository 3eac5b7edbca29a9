"""A saved inference model as a layer of dygraph mode."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import dygraph, errors

pytestmark = pytest.mark.usefixtures("interpreted_steps")


def test_a_saved_model_is_trained_further(tmp_path):
    x = np.random.RandomState(0).rand(4, 3).astype("float32")
    main, startup = fluid.Program(), fluid.Program()
    with (
        fluid.program_guard(main, startup),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        fed = fluid.data("x", [None, 3], "float32")
        hidden = fluid.layers.batch_norm(fluid.layers.fc(fed, 4, act="tanh"))
        out = fluid.layers.fc(fluid.layers.dropout(hidden, 0.5), 2)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        fluid.io.save_inference_model(str(tmp_path), ["x"], [out], exe, main)
        test = main.clone(for_test=True)
        (expect,) = exe.run(test, feed={"x": x}, fetch_list=[out.name])
    with pytest.raises(errors.DygraphError, match="within fluid"):
        dygraph.static_runner.StaticModelRunner(str(tmp_path))
    with dygraph.guard():
        model = dygraph.StaticModelRunner(str(tmp_path))
        names = {p.name: p.stop_gradient for p in model.parameters()}
        assert len(names) == 8
        assert sorted(n for n, stops in names.items() if stops) == [
            "batch_norm_0.w_1@LOADED",
            "batch_norm_0.w_2@LOADED",
        ]
        model.eval()
        np.testing.assert_allclose(model(x).numpy(), expect, rtol=1e-5, atol=1e-6)
        model.train()
        optimizer = fluid.optimizer.SGD(0.1, parameter_list=model.parameters())
        before = {p.name: p.numpy() for p in model.parameters()}
        out = model(dygraph.to_variable(x))
        loss = fluid.layers.reduce_mean(out * out)
        loss.backward()
        optimizer.minimize(loss)
        moved = {n for n, p in model.named_parameters() if (p.numpy() != before[p.name]).any()}
        assert {"fc_1.w_0@LOADED", "batch_norm_0.w_1@LOADED"} <= moved
        assert (model(x).numpy() != model(x).numpy()).any()
        with pytest.raises(TypeError, match=r"expected 1 inputs \(x\), found 2"):
            model(x, x)
