"""Save a small trained net in every way that the package knows, for check_saved.py to read with the
real Fluid.

Run with this package's interpreter:  python tests/oracle/save_model.py DIR
"""

import os
import sys

import numpy as np

import jfluid as fluid
from jfluid import io, optimizer


def net():
    """Convolution, batch norm, pooling, dropout and a softmax classifier; returns (probability,
    loss).
    """
    block = fluid.default_main_program().global_block()
    startup = fluid.default_startup_program().global_block()
    random = np.random.RandomState(0)

    def parameter(name, shape, value=None, trainable=True):
        value = random.randn(*shape).astype("float32") * 0.3 if value is None else np.full(shape, value, "float32")
        param = block.create_parameter(name=name, shape=shape, dtype="float32", trainable=trainable)
        startup.create_parameter(name=name, shape=shape, dtype="float32", trainable=trainable)
        startup.append_op(
            "assign_value",
            {},
            {"Out": name},
            {"shape": shape, "dtype": 5, "fp32_values": value.ravel().tolist()},
        )
        return param

    image = block.create_var(
        name="image",
        shape=[-1, 1, 8, 8],
        dtype="float32",
        is_data=True,
        need_check_feed=True,
        stop_gradient=True,
    )
    label = block.create_var(
        name="label",
        shape=[-1, 1],
        dtype="int64",
        is_data=True,
        need_check_feed=True,
        stop_gradient=True,
    )
    block.append_op(
        "conv2d",
        {"Input": image, "Filter": parameter("conv.w", [4, 1, 3, 3])},
        {"Output": "c"},
        {"paddings": [1, 1]},
    )
    block.append_op("elementwise_add", {"X": "c", "Y": parameter("conv.b", [4])}, {"Out": "cb"}, {"axis": 1})
    mean, variance = (
        parameter("bn.mean", [4], 0.0, False),
        parameter("bn.variance", [4], 1.0, False),
    )
    block.append_op(
        "batch_norm",
        {
            "X": "cb",
            "Scale": parameter("bn.w", [4], 1.0),
            "Bias": parameter("bn.b", [4], 0.0),
            "Mean": mean,
            "Variance": variance,
        },
        {
            "Y": "bn",
            "MeanOut": mean,
            "VarianceOut": variance,
            "SavedMean": "sm",
            "SavedVariance": "sv",
        },
    )
    block.append_op("relu", {"X": "bn"}, {"Out": "r"})
    block.append_op(
        "pool2d",
        {"X": "r"},
        {"Out": "p"},
        {"ksize": [2, 2], "strides": [2, 2], "pooling_type": "max"},
    )
    block.append_op("dropout", {"X": "p"}, {"Out": "d", "Mask": "mask"}, {"dropout_prob": 0.25})
    block.append_op("mul", {"X": "d", "Y": parameter("fc.w", [64, 3])}, {"Out": "m"})
    block.append_op("elementwise_add", {"X": "m", "Y": parameter("fc.b", [3])}, {"Out": "mb"}, {"axis": 1})
    block.append_op("softmax", {"X": "mb"}, {"Out": "probability"})
    block.append_op("cross_entropy", {"X": "probability", "Label": label}, {"Y": "ce"})
    block.append_op("mean", {"X": "ce"}, {"Out": "loss"})
    return block.var("probability"), block.var("loss")


def main(folder):
    probability, loss = net()
    optimizer.Adam(0.01).minimize(loss)
    program = fluid.default_main_program()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    random = np.random.RandomState(1)
    images, labels = (
        random.rand(6, 1, 8, 8).astype("float32"),
        random.randint(0, 3, [6, 1]).astype("int64"),
    )
    for _ in range(3):
        exe.run(program, feed={"image": images, "label": labels}, fetch_list=[loss])
    io.save_inference_model(os.path.join(folder, "separate"), ["image"], [probability], exe, program)
    io.save_inference_model(os.path.join(folder, "combined"), ["image"], [probability], exe, program, "model", "params")
    io.save_persistables(exe, os.path.join(folder, "persistables"), program)
    io.save(program, os.path.join(folder, "state", "net"))
    test = program.clone(for_test=True)
    expected, test_loss = exe.run(test, feed={"image": images, "label": labels}, fetch_list=[probability, loss])
    np.savez(
        os.path.join(folder, "expected.npz"),
        image=images,
        label=labels,
        probability=expected,
        loss=test_loss,
        **{
            "variable " + v.name: np.array(fluid.global_scope().find_var(v.name).get_tensor())
            for v in program.list_vars()
            if io.is_persistable(v)
        },
    )


if __name__ == "__main__":
    main(sys.argv[1])
