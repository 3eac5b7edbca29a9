"""Differences that apply."""
import paddle.fluid as fluid

program = fluid.Program()
program.random_seed = 90  # expect: difference
fluid.default_startup_program().random_seed = 1  # expect: difference
x = fluid.data(name="x", shape=[None, 1], dtype="float32", lod_level=1)
y = fluid.layers.sequence_pad(x, fluid.layers.assign([0.0]))  # expect: difference
y = fluid.layers.leaky_relu(x, alpha=1.5)  # expect: difference
y = fluid.layers.softmax_with_cross_entropy(x, x, ignore_index=0)  # expect: difference
y = fluid.layers.group_norm(x, 2, bias_attr=False)  # expect: difference
y = fluid.layers.data_norm(x, sync_stats=True)  # expect: difference
y = fluid.layers.data_norm(x, summary_decay_rate=0.5)  # expect: difference
auc = fluid.metrics.Auc("auc")  # expect: difference
loader = fluid.io.DataLoader.from_generator([x], 8, use_multiprocess=True)  # expect: difference
rnn = fluid.layers.DynamicRNN()  # expect: difference
