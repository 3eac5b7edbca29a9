"""Training with simulated quantization and the models that come of it, written once for any engine
that offers the Fluid API (Python 3.7 syntax).
"""

import numpy as np

from tests.parity.programs import new_scope, set_parameters

STEPS = 5
KINDS = (
    ("abs_max", "abs_max"),
    ("range_abs_max", "abs_max"),
    ("moving_average_abs_max", "abs_max"),
)
SAVED = KINDS[2]  # whose models are kept


def digits(fluid):
    """A small net for digits: (loss, prediction)."""
    img = fluid.layers.data(name="img", shape=[1, 12, 12], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    hidden = fluid.nets.simple_img_conv_pool(
        input=img, filter_size=3, num_filters=4, pool_size=2, pool_stride=2, act="relu"
    )
    hidden = fluid.layers.fc(input=hidden, size=16, act="relu")
    prediction = fluid.layers.fc(input=hidden, size=10, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
    return loss, prediction


def batch(rng):
    return {
        "img": rng.randn(8, 1, 12, 12).astype("float32"),
        "label": rng.randint(0, 10, (8, 1)).astype("int64"),
    }


def tested():
    """The batch that is predicted: the one after those of the training."""
    rng = np.random.RandomState(0)
    return [batch(rng) for _ in range(STEPS + 1)][-1]


def operators(program):
    """The operators and what they read and write. Of gradients those of products only, with their
    rounded inputs: Fluid leaves out others that they do not need.
    """
    found = []
    for op in program.global_block().ops:
        reads = sorted(op.input_arg_names)
        if op.type in ("conv2d_grad", "mul_grad"):
            reads = [n for n in reads if n.endswith(".dequantized")]
        elif "_grad" in op.type:
            continue
        found.append([op.type, reads, sorted(op.output_arg_names)])
    return found


def run(fluid, activation, weight, folder=None):
    """Train, freeze, convert. What is compared: losses, scales, operators, predictions, weights.

    `folder` gets the frozen and the int8 model.
    """
    main, startup, scope = fluid.Program(), fluid.Program(), new_scope(fluid)
    with fluid.scope_guard(scope), fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, prediction = digits(fluid)
        fluid.optimizer.Momentum(learning_rate=0.05, momentum=0.9).minimize(loss)
        parameters = fluid.Program.clone(main)
        transpiler = fluid.contrib.quantize.QuantizeTranspiler(
            activation_quantize_type=activation, weight_quantize_type=weight, window_size=3
        )
        transpiler.training_transpile(main, startup)
        test = main.clone(for_test=True)
        place = fluid.CPUPlace()
        exe = fluid.Executor(place)
        exe.run(startup)
        set_parameters(fluid, parameters, scope)
        rng = np.random.RandomState(0)
        found = {"trained": operators(main)}
        found["losses"] = [
            float(np.ravel(exe.run(main, feed=batch(rng), fetch_list=[loss])[0])[0]) for _ in range(STEPS)
        ]

        def predict(program):
            return np.array(exe.run(program, feed=tested(), fetch_list=[prediction.name])[0])

        def save(name):
            if folder is not None:
                saved = test.clone()
                target = saved.global_block().var(prediction.name)
                fluid.io.save_inference_model(folder + "/" + name, ["img"], [target], exe, saved, "model", "params")

        def value(name):
            return np.array(scope.find_var(name).get_tensor())

        found["rounded"] = predict(test).tolist()
        transpiler.freeze_program(test, place, scope)
        found["frozen"] = operators(test)
        found["predicted"] = predict(test).tolist()
        save("frozen")
        found["scales"] = {
            v.name: float(np.ravel(value(v.name))[0])
            for v in test.list_vars()
            if v.persistable and v.name.endswith(".scale")
        }
        weights = sorted(p.name for p in test.all_parameters() if p.name.endswith(".w_0"))
        transpiler.convert_to_int8(test, place, scope)
        found["converted"] = operators(test)
        save("int8")
        eight = {name: value(name + ".int8") for name in weights}
        found["int8"] = {name: v.ravel().tolist()[:40] for name, v in eight.items()}
        found["dtypes"] = {name: str(v.dtype) for name, v in eight.items()}
    return found
