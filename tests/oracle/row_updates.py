"""Makes tests/golden/row_updates.json: an embedding after 24 steps of Fluid 1.8.5, for each
optimizer with sparse rows, and for FTRL, which Fluid has for whole parameters only.

    python tests/oracle/row_updates.py        (Python 3.7 with paddlepaddle 1.8.5)

The loss is the mean of the squared rows; ids occur twice in a step, and some rows rest for many
steps. FTRL has one step more with all rows before: on a whole parameter it makes rows zero that
never had a gradient.
"""

import json
import os

import numpy as np
import paddle.fluid as fluid

HEIGHT, WIDTH, STEPS, BATCH = 6, 2, 24, 4


def batches():
    rng = np.random.RandomState(7)
    # Ascending: Fluid looks merged rows up by bisection, although it does not sort them, and loses
    # gradients of others.
    drawn = [rng.randint(0, HEIGHT - 1 if i % 8 else HEIGHT, BATCH) for i in range(STEPS)]
    return [np.sort(ids % (3 if 4 < i < 20 else HEIGHT)) for i, ids in enumerate(drawn)]


def train(optimizer, is_sparse=True):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = fluid.data("ids", [None, 1], "int64")
        values = np.linspace(0.5, 2, HEIGHT * WIDTH, dtype="float32").reshape(HEIGHT, WIDTH)
        attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.NumpyArrayInitializer(values))
        rows = fluid.embedding(ids, [HEIGHT, WIDTH], is_sparse=is_sparse, param_attr=attr)
        optimizer.minimize(fluid.layers.mean(fluid.layers.square(rows)))
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for batch in batches() if is_sparse else [np.arange(HEIGHT)] + batches():
            exe.run(main, feed={"ids": batch.astype("int64").reshape(-1, 1)})
        return np.array(scope.find_var("w").get_tensor()).tolist()


def main():
    optimizer, rate = fluid.optimizer, 0.05
    tables = {
        "sgd": train(optimizer.SGD(rate)),
        "momentum": train(optimizer.Momentum(rate, 0.9)),
        "nesterov": train(optimizer.Momentum(rate, 0.9, use_nesterov=True)),
        "adagrad": train(optimizer.Adagrad(rate)),
        "adagrad_from_one": train(optimizer.Adagrad(rate, initial_accumulator_value=1.0)),
        "adam": train(optimizer.Adam(rate)),
        "lazy_adam": train(optimizer.Adam(rate, lazy_mode=True)),
        "rmsprop": train(optimizer.RMSProp(rate)),
        "rmsprop_centered": train(optimizer.RMSProp(rate, momentum=0.8, centered=True)),
        "ftrl": train(optimizer.Ftrl(rate, l1=0.01), is_sparse=False),
        "ftrl_power": train(optimizer.Ftrl(rate, l1=0.03, lr_power=-0.4), is_sparse=False),
    }
    path = os.path.join(os.path.dirname(__file__), "..", "golden", "row_updates.json")
    with open(path, "w") as file:
        json.dump({"batches": [b.tolist() for b in batches()], "tables": tables}, file)
        file.write("\n")


if __name__ == "__main__":
    main()
