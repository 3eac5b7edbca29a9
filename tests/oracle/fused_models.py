"""Write tests/golden/models/fused_*: small models as Fluid's inference passes save them, with feeds
and what Fluid gives for them.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.fused_models
"""

import os
import shutil
import sys
import tempfile

import numpy as np
import paddle.fluid as fluid
from paddle.fluid import layers

HERE = os.path.dirname(os.path.abspath(__file__))
RNG = np.random.RandomState(11)


def image():
    """Convolutions with batch norm, activations and a sum of two ways; fully connected layers."""
    x = fluid.data("x", [None, 2, 6, 6])
    stem = layers.batch_norm(layers.conv2d(x, 3, 3, padding=1, bias_attr=False), act="relu")
    stem = layers.leaky_relu(layers.conv2d(stem, 3, 1), 0.1)
    stem = layers.relu6(layers.conv2d(stem, 3, 1), threshold=0.7)
    stem = layers.swish(layers.conv2d(stem, 3, 1), beta=1.5)
    way = layers.conv2d(layers.pool2d(stem, 3, "max", 1, 1), 3, 3, padding=1)
    way = layers.relu(layers.elementwise_add(layers.pool2d(stem, 3, "avg", 1, 1), way))
    up = layers.conv2d_transpose(way, 2, filter_size=2, stride=2)
    hidden = layers.flatten(layers.pool2d(up, 4, "avg", 4))
    hidden = layers.fc(hidden, 5, act="relu")
    hidden = layers.fc(layers.fc(hidden, 5, act="relu"), 4, act="relu")
    return layers.fc(hidden, 3, act="softmax")


def text():
    """An embedding, a GRU, an LSTM and a convolution over sequences."""
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    embedded = layers.embedding(ids, [9, 4])
    gru = layers.dynamic_gru(layers.fc(embedded, 9), 3)
    # With a bias Fluid makes a new one of both, which it does not save.
    projected = layers.fc(embedded, 12, bias_attr=False)
    lstm, _ = layers.dynamic_lstm(projected, 12, use_peepholes=False)
    window = layers.sequence_conv(embedded, 3, 3, act="relu")
    pooled = [layers.sequence_pool(v, "sum") for v in (gru, lstm, window)]
    return layers.fc(layers.concat(pooled, axis=1), 2)


def predictor(folder, onednn):
    config = fluid.core.AnalysisConfig(folder + "/model", folder + "/params")
    config.disable_gpu()
    config.disable_glog_info()
    if onednn:
        config.enable_mkldnn()
    return fluid.core.create_paddle_predictor(config)


def write(name, net, feed, onednn):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        out = net()
    exe, folder = fluid.Executor(fluid.CPUPlace()), tempfile.mkdtemp()
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        for var in main.list_vars():
            if var.persistable and var.type == fluid.core.VarDesc.VarType.LOD_TENSOR:
                low = 0.5 if ".w_1" in var.name or ".w_2" in var.name else -0.7
                tensor = fluid.global_scope().find_var(var.name).get_tensor()
                tensor.set(RNG.uniform(low, 0.9, var.shape).astype("float32"), fluid.CPUPlace())
        fluid.io.save_inference_model(
            folder, [feed[0]], [out], exe, main, model_filename="model", params_filename="params"
        )
    made = predictor(folder, onednn)
    target = os.path.join(HERE, "..", "golden", "models", name)
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    made.SaveOptimModel(target)
    given = fluid.core.PaddleTensor(feed[1].astype(feed[2]))
    given.name = feed[0]
    given.lod = feed[3]
    (found,) = made.run([given])
    types = [op.type for op in fluid.Program.parse_from_string(open(target + "/model", "rb").read()).global_block().ops]
    print(name, types)
    expected = np.array(found.data.float_data(), "float32").reshape(found.shape)
    np.savez(os.path.join(target, "expected.npz"), x=feed[1], out=expected)


pictures = ("x", RNG.uniform(-1, 1, (2, 2, 6, 6)), "float32", [])
words = ("ids", RNG.randint(0, 9, (7, 1)), "int64", [[0, 3, 4, 7]])
write("fused_image", image, pictures, False)
write("fused_image_onednn", image, pictures, True)
write("fused_text", text, words, False)
sys.stdout.flush()
