"""Detectors trained and asked, on any engine that offers the Fluid API (Python 3.7 syntax)."""

import numpy as np

from tests.parity import retinanet, yolo
from tests.parity.programs import new_scope, set_parameters

STEPS = 5
MODELS = {"yolov3": yolo, "retinanet": retinanet}


def train_and_detect(fluid, model):
    """Losses of STEPS steps from parameters that depend on their names alone, the norms of all
    persistables then, and what is detected in the batch after them: rows and lod.
    """
    main, startup = fluid.Program(), fluid.Program()
    scope, rng = new_scope(fluid), np.random.RandomState(0)
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(scope):
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            loss, detected = model.network(fluid)
            test = main.clone(for_test=True)
            fluid.optimizer.Momentum(learning_rate=0.01, momentum=0.9).minimize(loss)
        exe.run(startup)
        set_parameters(fluid, main, scope)
        losses = [
            float(np.ravel(exe.run(main, feed=model.batch(fluid, rng), fetch_list=[loss])[0])[0]) for _ in range(STEPS)
        ]
        norms = {
            v.name: float(np.linalg.norm(np.array(scope.find_var(v.name).get_tensor())))
            for v in main.list_vars()
            if v.persistable and v.name not in ("feed", "fetch")
        }
        (rows,) = exe.run(test, feed=model.batch(fluid, rng), fetch_list=[detected.name], return_numpy=False)
    return {
        "losses": losses,
        "norms": norms,
        "detected": [np.array(rows).tolist(), rows.lod()],
    }
