"""Examples of optimizers and metrics: a cell for each name of Fluid."""

import numpy as np

import jfluid as fluid

exe = fluid.Executor(fluid.CPUPlace())
half = fluid.initializer.Constant(0.5)


def linear():
    """A linear model of two features, and its loss."""
    x = fluid.data("x", [None, 2], "float32")
    y = fluid.data("y", [None, 1], "float32")
    predicted = fluid.layers.fc(x, 1, param_attr=fluid.ParamAttr(name="w", initializer=half), bias_attr=False)
    return predicted, fluid.layers.mean(fluid.layers.square_error_cost(predicted, y))


def losses(loss, steps=3):
    """The losses of some steps upon one batch."""
    exe.run(fluid.default_startup_program())
    feed = {"x": np.float32([[1, 0], [0, 1]]), "y": np.float32([[1], [-1]])}
    return [round(float(np.ravel(exe.run(feed=feed, fetch_list=[loss])[0])[0]), 3) for _ in range(steps)]


# %% fluid.optimizer.SGD
predicted, loss = linear()
fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
print(losses(loss))  # [1.25, 1.013, 0.82]

# %% fluid.optimizer.Momentum
predicted, loss = linear()
fluid.optimizer.Momentum(learning_rate=0.1, momentum=0.9, use_nesterov=True).minimize(loss)
print(losses(loss))  # [1.25, 0.82, 0.413]

# %% fluid.optimizer.Adagrad
predicted, loss = linear()
fluid.optimizer.Adagrad(learning_rate=0.1).minimize(loss)
print(losses(loss))  # [1.25, 1.06, 0.944]

# %% fluid.optimizer.Adam
predicted, loss = linear()
fluid.optimizer.Adam(learning_rate=0.1).minimize(loss)
print(losses(loss))  # [1.25, 1.06, 0.891]

# %% fluid.optimizer.Adamax
predicted, loss = linear()
fluid.optimizer.Adamax(learning_rate=0.1).minimize(loss)
print(losses(loss))  # [1.25, 1.06, 0.898]

# %% fluid.optimizer.Adadelta
predicted, loss = linear()
fluid.optimizer.Adadelta(learning_rate=1.0).minimize(loss)
print(losses(loss))  # [1.25, 1.237, 1.226]

# %% fluid.optimizer.DecayedAdagrad
predicted, loss = linear()
fluid.optimizer.DecayedAdagrad(learning_rate=0.1).minimize(loss)
print(losses(loss))  # [1.25, 0.556, 0.313]

# %% fluid.optimizer.Dpsgd
predicted, loss = linear()
fluid.optimizer.Dpsgd(learning_rate=0.1, clip=10.0, batch_size=16.0, sigma=0.0).minimize(loss)
print(losses(loss))  # [1.25, 1.013, 0.82]

# %% fluid.optimizer.Ftrl
predicted, loss = linear()
fluid.optimizer.Ftrl(learning_rate=0.1).minimize(loss)
print(losses(loss))  # [1.25, 1.06, 0.944]

# %% fluid.optimizer.LambOptimizer
predicted, loss = linear()
fluid.optimizer.LambOptimizer(learning_rate=0.1).minimize(loss)
print(losses(loss))  # [1.25, 1.152, 1.059]

# %% fluid.optimizer.LarsMomentum
predicted, loss = linear()
fluid.optimizer.LarsMomentum(learning_rate=10.0, momentum=0.9).minimize(loss)
print(losses(loss))  # [1.25, 1.239, 1.218]

# %% fluid.optimizer.RMSPropOptimizer
predicted, loss = linear()
fluid.optimizer.RMSPropOptimizer(learning_rate=0.1).minimize(loss)
print(losses(loss))  # [1.25, 0.556, 0.313]

# %% fluid.optimizer.DGCMomentumOptimizer
predicted, loss = linear()
fluid.optimizer.DGCMomentumOptimizer(learning_rate=0.1, momentum=0.9, rampup_begin_step=0).minimize(loss)
print(losses(loss))  # [1.25, 1.013, 0.648]

# %% fluid.optimizer.LookaheadOptimizer
predicted, loss = linear()
fluid.optimizer.LookaheadOptimizer(fluid.optimizer.SGD(0.1), alpha=0.5, k=2).minimize(loss)
print(losses(loss))  # [1.25, 1.013, 1.024]

# %% fluid.optimizer.RecomputeOptimizer
x = fluid.data("x", [None, 2], "float32")
y = fluid.data("y", [None, 1], "float32")
hidden = fluid.layers.fc(x, 8, param_attr=half, bias_attr=False)
loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1, param_attr=half), y))
optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.01))
optimizer._set_checkpoints([hidden])  # activations between checkpoints are computed again for gradients
optimizer.minimize(loss)
print(losses(loss))  # [5.0, 4.353, 3.825]

# %% fluid.optimizer.PipelineOptimizer
x = fluid.data("x", [4, 2], "float32")
y = fluid.data("y", [4, 1], "float32")
with fluid.device_guard("cpu"):
    predicted = fluid.layers.fc(x, 1, param_attr=half, bias_attr=False)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(predicted, y))
optimizer = fluid.optimizer.PipelineOptimizer(fluid.optimizer.SGD(0.1), num_microbatches=2)
optimizer.minimize(loss)
exe.run(fluid.default_startup_program())
feed = {"x": np.ones([4, 2], "float32"), "y": np.zeros([4, 1], "float32")}
print(exe.run(feed=feed, fetch_list=[loss])[0])  # [1.]

# %% fluid.optimizer.ExponentialMovingAverage
predicted, loss = linear()
fluid.optimizer.SGD(0.1).minimize(loss)
average = fluid.optimizer.ExponentialMovingAverage(decay=0.5)
average.update()
print(losses(loss))  # [1.25, 1.013, 0.82]
with average.apply(exe):  # the averaged parameters, restored afterwards
    print(fluid.global_scope().find_var("w").get_tensor().shape())  # [2, 1]

# %% fluid.optimizer.ModelAverage
predicted, loss = linear()
fluid.optimizer.SGD(0.1).minimize(loss)
average = fluid.optimizer.ModelAverage(0.15, min_average_window=2, max_average_window=4)
print(losses(loss))  # [1.25, 1.013, 0.82]
with average.apply(exe):
    print(fluid.global_scope().find_var("w").get_tensor().shape())  # [2, 1]

# %% fluid.contrib.extend_with_decoupled_weight_decay
predicted, loss = linear()
AdamW = fluid.contrib.extend_with_decoupled_weight_decay(fluid.optimizer.Adam)
AdamW(learning_rate=0.1, weight_decay=0.1).minimize(loss)
print(losses(loss))  # [1.25, 1.013, 0.821]

# %% fluid.contrib.mixed_precision.decorate fluid.contrib.mixed_precision.AutoMixedPrecisionLists
predicted, loss = linear()
lists = fluid.contrib.mixed_precision.AutoMixedPrecisionLists(custom_black_list={"softmax"})
optimizer = fluid.contrib.mixed_precision.decorate(fluid.optimizer.SGD(0.125), amp_lists=lists)
optimizer.minimize(loss)
print(losses(loss))  # [1.25, 0.957, 0.733]

# %% fluid.contrib.QuantizeTranspiler
predicted, loss = linear()
quantizer = fluid.contrib.QuantizeTranspiler()
quantizer.training_transpile(fluid.default_main_program())
print(sorted({op.type for op in fluid.default_main_program().global_block().ops if "quantize" in op.type}))
# ['fake_dequantize_max_abs', 'fake_quantize_abs_max']

# %% fluid.contrib.op_freq_statistic
predicted, loss = linear()
single, pairs = fluid.contrib.op_freq_statistic(fluid.default_main_program())
print(dict(single)["mul"])  # 1

# %% fluid.contrib.memory_usage
predicted, loss = linear()
low, high, unit = fluid.contrib.memory_usage(fluid.default_main_program(), batch_size=10)
print(low < high, unit)  # True B

# %% fluid.metrics.Accuracy
metric = fluid.metrics.Accuracy()
metric.update(value=0.5, weight=10)  # of a batch of 10
metric.update(value=1.0, weight=30)
print(metric.eval())  # 0.875

# %% fluid.metrics.Auc
metric = fluid.metrics.Auc("auc")
metric.update(preds=np.float32([[0.9, 0.1], [0.2, 0.8]]), labels=np.int64([[0], [1]]))
print(metric.eval())  # 1.0

# %% fluid.metrics.ChunkEvaluator
metric = fluid.metrics.ChunkEvaluator()
metric.update(num_infer_chunks=10, num_label_chunks=8, num_correct_chunks=4)
# precision, recall, F1
print(metric.eval())  # (0.4, 0.5, 0.4444444444444445)

# %% fluid.metrics.CompositeMetric fluid.metrics.Precision fluid.metrics.Recall
both = fluid.metrics.CompositeMetric()
both.add_metric(fluid.metrics.Precision())
both.add_metric(fluid.metrics.Recall())
both.update(preds=np.float32([[0.9], [0.8], [0.1]]), labels=np.int64([[1], [0], [1]]))
print(both.eval())  # [0.5, 0.5]

# %% fluid.metrics.EditDistance
metric = fluid.metrics.EditDistance("distance")
metric.update(distances=np.float32([[0], [2]]), seq_num=2)
# the mean distance, the share of sentences with errors
print(metric.eval())  # (1.0, 0.5)


# %% fluid.metrics.MetricBase
class Largest(fluid.metrics.MetricBase):
    """The largest value so far."""

    def __init__(self):
        super().__init__("largest")
        self.found = 0.0

    def update(self, values):
        self.found = max(self.found, float(np.max(values)))

    def eval(self):
        return self.found


metric = Largest()
metric.update(np.float32([1, 5]))
metric.update(np.float32([3]))
print(metric.eval())  # 5.0

# %% fluid.metrics.DetectionMAP
detected = fluid.data("detected", [None, 6], "float32", lod_level=1)  # class, score, corners
label = fluid.data("label", [None, 1], "float32", lod_level=1)
boxes = fluid.data("boxes", [None, 4], "float32", lod_level=1)
metric = fluid.metrics.DetectionMAP(detected, label, boxes, class_num=3)
batch, total = metric.get_map_var()
exe.run(fluid.default_startup_program())
feed = {"detected": fluid.create_lod_tensor(np.float32([[1, 0.9, 0, 0, 1, 1]]), [[1]], fluid.CPUPlace())}
feed["label"] = fluid.create_lod_tensor(np.float32([[1]]), [[1]], fluid.CPUPlace())
feed["boxes"] = fluid.create_lod_tensor(np.float32([[0, 0, 1, 1]]), [[1]], fluid.CPUPlace())
print(*exe.run(feed=feed, fetch_list=[batch, total]))  # [1.] [1.]

# %% fluid.evaluator.DetectionMAP
detected = fluid.data("detected", [None, 6], "float32", lod_level=1)
label = fluid.data("label", [None, 1], "float32", lod_level=1)
boxes = fluid.data("boxes", [None, 4], "float32", lod_level=1)
evaluator = fluid.evaluator.DetectionMAP(detected, label, boxes, class_num=3)
batch, total = evaluator.get_map_var()
exe.run(fluid.default_startup_program())
evaluator.reset(exe)
feed = {"detected": fluid.create_lod_tensor(np.float32([[1, 0.9, 0, 0, 1, 1]]), [[1]], fluid.CPUPlace())}
feed["label"] = fluid.create_lod_tensor(np.float32([[1]]), [[1]], fluid.CPUPlace())
feed["boxes"] = fluid.create_lod_tensor(np.float32([[0, 0, 1, 1]]), [[1]], fluid.CPUPlace())
print(*exe.run(feed=feed, fetch_list=[total]))  # [1.]

# %% fluid.evaluator.ChunkEvaluator
found = fluid.data("found", [None, 1], "int64", lod_level=1)
tags = fluid.data("tags", [None, 1], "int64", lod_level=1)
evaluator = fluid.evaluator.ChunkEvaluator(found, tags, chunk_scheme="IOB", num_chunk_types=1)
exe.run(fluid.default_startup_program())
evaluator.reset(exe)
feed = {"found": fluid.create_lod_tensor(np.int64([[0], [1], [2]]), [[3]], fluid.CPUPlace())}
feed["tags"] = fluid.create_lod_tensor(np.int64([[0], [1], [2]]), [[3]], fluid.CPUPlace())
exe.run(feed=feed)
precision, recall, f1 = evaluator.eval(exe)
print(precision, recall, f1)  # [1.] [1.] [1.]

# %% fluid.evaluator.EditDistance
said = fluid.data("said", [None, 1], "int64", lod_level=1)
meant = fluid.data("meant", [None, 1], "int64", lod_level=1)
evaluator = fluid.evaluator.EditDistance(said, meant)
exe.run(fluid.default_startup_program())
evaluator.reset(exe)
feed = {"said": fluid.create_lod_tensor(np.int64([[1], [2]]), [[2]], fluid.CPUPlace())}
feed["meant"] = fluid.create_lod_tensor(np.int64([[1], [3]]), [[2]], fluid.CPUPlace())
exe.run(feed=feed)
distance, wrong = evaluator.eval(exe)
print(distance, wrong)  # [0.5] [1.]

# %% fluid.contrib.ctr_metric_bundle
odds = fluid.data("odds", [None, 1], "float32")
label = fluid.data("label", [None, 1], "float32")
squares, absolutes, *sums = fluid.contrib.layers.ctr_metric_bundle(odds, label)
exe.run(fluid.default_startup_program())
feed = {"odds": np.float32([[0.5], [0.25]]), "label": np.float32([[1], [0]])}
print(*exe.run(feed=feed, fetch_list=[squares, absolutes]))  # [0.3125] [0.75]

# %% fluid.average.WeightedAverage
average = fluid.average.WeightedAverage()
average.add(value=2.0, weight=1)
average.add(value=4.0, weight=3)
print(average.eval())  # 3.5
