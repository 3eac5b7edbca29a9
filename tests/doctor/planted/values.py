"""Values that are refused."""
import paddle.fluid as fluid

POOL = "mean"
x = fluid.data(name="x", shape=[None, 3, 8, 8], dtype="float31")  # expect: refused-value
y = fluid.layers.fc(x, size=2, act="rellu")  # expect: refused-value
y = fluid.layers.pool2d(x, 2, "average")  # expect: refused-value
y = fluid.layers.pool2d(x, 2, pool_type=POOL)  # expect: refused-value
y = fluid.layers.dropout(x, 0.5, dropout_implementation="inverted")  # expect: refused-value
y = fluid.layers.dropout(x, dropout_prob=50)  # expect: refused-value
y = fluid.layers.conv2d(x, 3, 3, data_format="CHWN")  # expect: refused-value
y = fluid.layers.batch_norm(x, data_layout="CHW")  # expect: refused-value
y = fluid.layers.pad2d(x, [1, 1, 1, 1], mode="mirror")  # expect: refused-value
y = fluid.layers.prelu(x, mode="row")  # expect: refused-value
y = fluid.layers.nce(x, x, 10, sampler="zipf")  # expect: refused-value
y = fluid.layers.auc(x, x, curve="F1")  # expect: refused-value
y = fluid.layers.kldiv_loss(x, x, reduction="average")  # expect: refused-value
y = fluid.layers.sequence_pool(x, pool_type="mean")  # expect: refused-value
y = fluid.layers.Print(x, print_phase="train")  # expect: refused-value
y = fluid.layers.cast(x, dtype="floaty")  # expect: refused-value
fluid.set_flags({"FLAGS_check_nan": True})  # expect: refused-value
fluid.require_version("2.0.0")  # expect: refused-value
with fluid.device_guard("tpu"):  # expect: refused-value
    pass
