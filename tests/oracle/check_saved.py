"""Read with the real Fluid what save_model.py saved, and hold values and outputs against those it
noted.

Run with the real Fluid's interpreter:  python tests/oracle/check_saved.py DIR
"""

import os
import sys

import numpy as np
import paddle.fluid as fluid

folder = sys.argv[1]
expected = np.load(os.path.join(folder, "expected.npz"))
values = {k[len("variable ") :]: expected[k] for k in expected.files if k.startswith("variable ")}
exe = fluid.Executor(fluid.CPUPlace())


def check_scope(what):
    for name, value in values.items():
        found = np.array(fluid.global_scope().find_var(name).get_tensor())
        assert found.dtype == value.dtype and np.array_equal(found, value), (what, name)
    print(f"{what}: {len(values)} variables, bit for bit")


for name, files in (("separate", ()), ("combined", ("model", "params"))):
    with fluid.scope_guard(fluid.core.Scope()):
        program, feeds, fetches = fluid.io.load_inference_model(os.path.join(folder, name), exe, *files)
        got = exe.run(program, feed={feeds[0]: expected["image"]}, fetch_list=fetches)[0]
    np.testing.assert_allclose(got, expected["probability"], rtol=1e-5, atol=1e-6)
    print(f"{name}: outputs agree to {np.abs(got - expected['probability']).max():.1e}")

with open(os.path.join(folder, "state", "net.pdmodel"), "rb") as f:
    train = fluid.Program.parse_from_string(f.read())
with fluid.scope_guard(fluid.core.Scope()):
    fluid.io.load_persistables(exe, os.path.join(folder, "persistables"), train)
    check_scope("persistables")
with fluid.scope_guard(fluid.core.Scope()):
    state = fluid.io.load_program_state(os.path.join(folder, "state", "net"))
    assert set(state) == set(values), set(state) ^ set(values)
    # makes the variables
    fluid.io.load_persistables(exe, os.path.join(folder, "persistables"), train)
    fluid.io.set_program_state(train, state)
    check_scope("state")
    losses = [
        exe.run(
            train,
            feed={"image": expected["image"], "label": expected["label"]},
            fetch_list=["loss"],
        )[0].item()
        for _ in range(5)
    ]
    print(f"the training program trains on in the real Fluid: losses {losses}")
