"""Examples of losses, optimizers, schedules, initializers and metrics: a cell for each name of Fluid."""

import numpy as np

import jfluid as fluid

exe = fluid.Executor(fluid.CPUPlace())
half = fluid.initializer.Constant(0.5)


def linear(weights=None):
    """A linear model of two features, and its loss."""
    x = fluid.data("x", [None, 2], "float32")
    y = fluid.data("y", [None, 1], "float32")
    predicted = fluid.layers.fc(x, 1, param_attr=weights, bias_attr=False)
    return predicted, fluid.layers.mean(fluid.layers.square_error_cost(predicted, y))


def losses(loss, steps=5):
    """The losses of some steps upon one batch."""
    exe.run(fluid.default_startup_program())
    feed = {"x": np.float32([[1, 0], [0, 1]]), "y": np.float32([[1], [-1]])}
    return [float(np.ravel(exe.run(feed=feed, fetch_list=[loss])[0])[0]) for _ in range(steps)]


# %% fluid.layers.fc
x = fluid.data("x", [None, 8], "float32")
y = fluid.layers.fc(x, size=4, act="relu")
exe.run(fluid.default_startup_program())
print(exe.run(feed={"x": np.ones([2, 8], "float32")}, fetch_list=[y])[0].shape)  # (2, 4)

# %% fluid.layers.dropout
x = fluid.data("x", [None, 1000], "float32")
y = fluid.layers.dropout(x, dropout_prob=0.5, dropout_implementation="upscale_in_train")
(kept,) = exe.run(feed={"x": np.ones([1, 1000], "float32")}, fetch_list=[y])
print(np.unique(kept), bool(400 < (kept > 0).sum() < 600))  # [0. 2.] True

# %% fluid.layers.bilinear_tensor_product
x = fluid.data("x", [None, 3], "float32")
y = fluid.data("y", [None, 4], "float32")
z = fluid.layers.bilinear_tensor_product(x, y, size=5)
exe.run(fluid.default_startup_program())
print(
    exe.run(feed={"x": np.ones([2, 3], "float32"), "y": np.ones([2, 4], "float32")}, fetch_list=[z])[0].shape
)  # (2, 5)

# %% fluid.nets.glu
x = fluid.layers.assign(np.float32([[1, 2, 0, 0]]))
# one half times the sigmoid of the other
print(exe.run(fetch_list=[fluid.nets.glu(x, dim=1)])[0])  # [[0.5 1. ]]

# %% fluid.nets.scaled_dot_product_attention
x = fluid.data("x", [None, 5, 8], "float32")
y = fluid.nets.scaled_dot_product_attention(x, x, x, num_heads=2)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"x": np.ones([3, 5, 8], "float32")}, fetch_list=[y])[0].shape)  # (3, 5, 8)

# %% fluid.layers.cross_entropy
odds = fluid.data("odds", [None, 2], "float32")
label = fluid.data("label", [None, 1], "int64")
loss = fluid.layers.cross_entropy(odds, label)
feed = {"odds": np.float32([[0.5, 0.5], [0, 1]]), "label": np.int64([[0], [1]])}
print(exe.run(feed=feed, fetch_list=[loss])[0].round(3).tolist())  # [[0.6930000185966492], [-0.0]]

# %% fluid.layers.softmax_with_cross_entropy
logits = fluid.data("logits", [None, 2], "float32")
label = fluid.data("label", [None, 1], "int64")
loss = fluid.layers.softmax_with_cross_entropy(logits, label)
feed = {"logits": np.float32([[0, 0]]), "label": np.int64([[1]])}
print(exe.run(feed=feed, fetch_list=[loss])[0].round(3))  # [[0.693]]

# %% fluid.layers.sigmoid_cross_entropy_with_logits
logits = fluid.layers.assign(np.float32([[0, 2]]))
label = fluid.layers.assign(np.float32([[1, 1]]))
print(
    exe.run(fetch_list=[fluid.layers.sigmoid_cross_entropy_with_logits(logits, label)])[0].round(3)
)  # [[0.693 0.127]]

# %% fluid.layers.square_error_cost
x = fluid.layers.assign(np.float32([[1], [5]]))
y = fluid.layers.assign(np.float32([[2], [2]]))
print(exe.run(fetch_list=[fluid.layers.square_error_cost(x, y)])[0].tolist())  # [[1.0], [9.0]]

# %% fluid.layers.mse_loss
x = fluid.layers.assign(np.float32([[1], [5]]))
y = fluid.layers.assign(np.float32([[2], [2]]))
print(exe.run(fetch_list=[fluid.layers.mse_loss(x, y)])[0])  # [5.]

# %% fluid.layers.smooth_l1
x = fluid.data("x", [None, 2], "float32")
y = fluid.data("y", [None, 2], "float32")
loss = fluid.layers.smooth_l1(x, y)
feed = {"x": np.float32([[0, 0]]), "y": np.float32([[0.5, 3]])}
print(exe.run(feed=feed, fetch_list=[loss])[0])  # [[2.625]]

# %% fluid.layers.huber_loss
x = fluid.data("x", [None, 1], "float32")
y = fluid.data("y", [None, 1], "float32")
loss = fluid.layers.huber_loss(x, y, delta=1.0)
print(exe.run(feed={"x": np.float32([[0], [0]]), "y": np.float32([[0.5], [3]])}, fetch_list=[loss])[0].tolist())
# [[0.125], [2.5]]

# %% fluid.layers.log_loss
odds = fluid.layers.assign(np.float32([[0.9]]))
label = fluid.layers.assign(np.float32([[1]]))
print(exe.run(fetch_list=[fluid.layers.log_loss(odds, label)])[0].round(3))  # [[0.105]]

# %% fluid.layers.kldiv_loss
x = fluid.layers.assign(np.log(np.float32([[0.5, 0.5]])))
target = fluid.layers.assign(np.float32([[0.25, 0.75]]))
print(exe.run(fetch_list=[fluid.layers.kldiv_loss(x, target, reduction="sum")])[0].round(3))  # [0.131]

# %% fluid.layers.dice_loss
odds = fluid.data("odds", [None, 2], "float32")
label = fluid.data("label", [None, 1], "int64")
loss = fluid.layers.dice_loss(odds, label)
print(
    exe.run(feed={"odds": np.float32([[0.2, 0.8]]), "label": np.int64([[1]])}, fetch_list=[loss])[0].round(3)
)  # [0.2]

# %% fluid.layers.bpr_loss
scores = fluid.data("scores", [None, 3], "float32")
label = fluid.data("label", [None, 1], "int64")
loss = fluid.layers.bpr_loss(scores, label)
print(
    exe.run(feed={"scores": np.float32([[0, 0, 5]]), "label": np.int64([[2]])}, fetch_list=[loss])[0].round(3)
)  # [[0.007]]

# %% fluid.layers.center_loss
features = fluid.data("features", [None, 2], "float32")
label = fluid.data("label", [None, 1], "int64")
loss = fluid.layers.center_loss(
    features, label, num_classes=3, alpha=0.1, param_attr=fluid.initializer.Constant(0.0), update_center=True
)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"features": np.float32([[3, 4]]), "label": np.int64([[1]])}, fetch_list=[loss])[0])  # [[12.5]]

# %% fluid.layers.margin_rank_loss
label = fluid.layers.assign(np.float32([[1]]))
left = fluid.layers.assign(np.float32([[0.2]]))
right = fluid.layers.assign(np.float32([[0.5]]))
print(exe.run(fetch_list=[fluid.layers.margin_rank_loss(label, left, right, margin=0.1)])[0].round(3))  # [[0.4]]

# %% fluid.layers.rank_loss
label = fluid.layers.assign(np.float32([[1]]))
left = fluid.layers.assign(np.float32([[2]]))
right = fluid.layers.assign(np.float32([[0]]))
print(exe.run(fetch_list=[fluid.layers.rank_loss(label, left, right)])[0].round(3))  # [[0.127]]

# %% fluid.layers.npair_loss
anchor = fluid.data("anchor", [2, 4], "float32")
positive = fluid.data("positive", [2, 4], "float32")
labels = fluid.data("labels", [2], "float32")
loss = fluid.layers.npair_loss(anchor, positive, labels)
feed = {"anchor": np.eye(2, 4, dtype="float32"), "positive": np.eye(2, 4, dtype="float32")}
feed["labels"] = np.float32([0, 1])
print(exe.run(feed=feed, fetch_list=[loss])[0].round(3))  # [0.314]

# %% fluid.layers.sigmoid_focal_loss
logits = fluid.data("logits", [None, 2], "float32")
label = fluid.data("label", [None, 1], "int32")
number = fluid.data("number", [1], "int32")
loss = fluid.layers.sigmoid_focal_loss(logits, label, number)
feed = {"logits": np.zeros([1, 2], "float32"), "label": np.int32([[1]]), "number": np.int32([1])}
print(exe.run(feed=feed, fetch_list=[loss])[0].round(3))  # [[0.043 0.13 ]]

# %% fluid.layers.teacher_student_sigmoid_loss
x = fluid.data("x", [None, 1], "float32")
label = fluid.data("label", [None, 1], "float32")
loss = fluid.layers.teacher_student_sigmoid_loss(x, label)
print(exe.run(feed={"x": np.float32([[1]]), "label": np.float32([[0.5]])}, fetch_list=[loss])[0].round(3))  # [[2.127]]

# %% fluid.layers.nce
x = fluid.data("x", [None, 4], "float32")
label = fluid.data("label", [None, 1], "int64")
loss = fluid.layers.nce(x, label, num_total_classes=100, num_neg_samples=5)
exe.run(fluid.default_startup_program())
print(
    exe.run(feed={"x": np.ones([2, 4], "float32"), "label": np.int64([[3], [7]])}, fetch_list=[loss])[0].shape
)  # (2, 1)

# %% fluid.layers.hsigmoid
x = fluid.data("x", [None, 4], "float32")
label = fluid.data("label", [None, 1], "int64")
loss = fluid.layers.hsigmoid(x, label, num_classes=6)
exe.run(fluid.default_startup_program())
print(
    exe.run(feed={"x": np.ones([2, 4], "float32"), "label": np.int64([[3], [5]])}, fetch_list=[loss])[0].shape
)  # (2, 1)

# %% fluid.layers.sampled_softmax_with_cross_entropy
logits = fluid.data("logits", [None, 100], "float32")
label = fluid.data("label", [None, 1], "int64")
loss = fluid.layers.sampled_softmax_with_cross_entropy(logits, label, num_samples=10)
feed = {"logits": np.zeros([2, 100], "float32"), "label": np.int64([[3], [5]])}
print(exe.run(feed=feed, fetch_list=[loss])[0].shape)  # (2, 1)

# %% fluid.layers.label_smooth
label = fluid.layers.assign(np.float32([[0, 1]]))
print(exe.run(fetch_list=[fluid.layers.label_smooth(label, epsilon=0.1)])[0].round(3))  # [[0.05 0.95]]

# %% fluid.layers.accuracy
odds = fluid.data("odds", [None, 2], "float32")
label = fluid.data("label", [None, 1], "int64")
right = fluid.layers.accuracy(odds, label)
feed = {"odds": np.float32([[0.9, 0.1], [0.2, 0.8]]), "label": np.int64([[0], [0]])}
print(exe.run(feed=feed, fetch_list=[right])[0])  # [0.5]

# %% fluid.layers.auc
odds = fluid.data("odds", [None, 2], "float32")
label = fluid.data("label", [None, 1], "int64")
area, batch_area, states = fluid.layers.auc(odds, label)
exe.run(fluid.default_startup_program())
feed = {"odds": np.float32([[0.9, 0.1], [0.2, 0.8]]), "label": np.int64([[0], [1]])}
print(exe.run(feed=feed, fetch_list=[area])[0])  # [1.]

# %% fluid.layers.mean_iou
found = fluid.data("found", [None], "int32")
label = fluid.data("label", [None], "int32")
share, wrong, right = fluid.layers.mean_iou(found, label, num_classes=2)
feed = {"found": np.int32([0, 1, 1]), "label": np.int32([0, 0, 1])}
print(*exe.run(feed=feed, fetch_list=[share, wrong, right]))  # [0.5] [1 1] [1 1]

# %% fluid.layers.exponential_decay
rate = fluid.layers.exponential_decay(0.1, decay_steps=1, decay_rate=0.5)
exe.run(fluid.default_startup_program())
print([round(float(exe.run(fetch_list=[rate])[0][0]), 4) for _ in range(3)])  # [0.1, 0.05, 0.025]

# %% fluid.layers.natural_exp_decay
rate = fluid.layers.natural_exp_decay(0.1, decay_steps=1, decay_rate=0.5)
exe.run(fluid.default_startup_program())
print([round(float(exe.run(fetch_list=[rate])[0][0]), 4) for _ in range(3)])  # [0.1, 0.0607, 0.0368]

# %% fluid.layers.inverse_time_decay
rate = fluid.layers.inverse_time_decay(0.1, decay_steps=1, decay_rate=1.0)
exe.run(fluid.default_startup_program())
print([round(float(exe.run(fetch_list=[rate])[0][0]), 4) for _ in range(3)])  # [0.1, 0.05, 0.0333]

# %% fluid.layers.polynomial_decay
rate = fluid.layers.polynomial_decay(0.1, decay_steps=2, end_learning_rate=0.0)
exe.run(fluid.default_startup_program())
print([round(float(exe.run(fetch_list=[rate])[0][0]), 4) for _ in range(3)])  # [0.1, 0.05, 0.0]

# %% fluid.layers.piecewise_decay
rate = fluid.layers.piecewise_decay(boundaries=[1, 2], values=[0.1, 0.01, 0.001])
exe.run(fluid.default_startup_program())
print([round(float(exe.run(fetch_list=[rate])[0][0]), 4) for _ in range(3)])  # [0.1, 0.01, 0.001]

# %% fluid.layers.cosine_decay
rate = fluid.layers.cosine_decay(0.1, step_each_epoch=1, epochs=4)
exe.run(fluid.default_startup_program())
print([round(float(exe.run(fetch_list=[rate])[0][0]), 4) for _ in range(3)])  # [0.1, 0.0854, 0.05]

# %% fluid.layers.noam_decay
rate = fluid.layers.noam_decay(d_model=4, warmup_steps=2)
exe.run(fluid.default_startup_program())
print([round(float(exe.run(fetch_list=[rate])[0][0]), 4) for _ in range(3)])  # [0.1768, 0.3536, 0.2887]

# %% fluid.layers.linear_lr_warmup
rate = fluid.layers.linear_lr_warmup(0.1, warmup_steps=2, start_lr=0.0, end_lr=0.1)
exe.run(fluid.default_startup_program())
print([round(float(exe.run(fetch_list=[rate])[0][0]), 4) for _ in range(3)])  # [0.0, 0.05, 0.1]

# %% fluid.append_backward
predicted, loss = linear(fluid.ParamAttr(name="w", initializer=half))
pairs = fluid.backward.append_backward(loss)
exe.run(fluid.default_startup_program())
feed = {"x": np.float32([[1, 0]]), "y": np.float32([[1]])}
print(pairs[0][0].name, exe.run(feed=feed, fetch_list=[pairs[0][1]])[0].tolist())  # w [[-1.0], [-0.0]]

# %% fluid.backward.gradients
x = fluid.data("x", [None], "float32")
x.stop_gradient = False
(slope,) = fluid.gradients(x * x, x)
print(exe.run(feed={"x": np.float32([1, 3])}, fetch_list=[slope])[0])  # [2. 6.]

# %% fluid.clip.ErrorClipByValue
x = fluid.data("x", [None, 1], "float32")
x.stop_gradient = False
y = fluid.layers.scale(x, 100.0)
y.error_clip = fluid.clip.ErrorClipByValue(max=0.5)  # clips the gradient that reaches y
(slope,) = fluid.gradients(fluid.layers.reduce_sum(y), x)
print(exe.run(feed={"x": np.float32([[1]])}, fetch_list=[slope])[0].shape)  # (1, 1)

# %% fluid.clip.GradientClipByGlobalNorm
predicted, loss = linear(half)
clip = fluid.clip.GradientClipByGlobalNorm(clip_norm=1.0)
fluid.optimizer.SGD(0.1, grad_clip=clip).minimize(loss)
print([round(value, 3) for value in losses(loss, 3)])  # [1.25, 1.097, 0.954]

# %% fluid.clip.GradientClipByNorm
predicted, loss = linear(half)
fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByNorm(clip_norm=1.0)).minimize(loss)
print([round(value, 3) for value in losses(loss, 3)])  # [1.25, 1.097, 0.954]

# %% fluid.clip.GradientClipByValue
predicted, loss = linear(half)
fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByValue(max=0.1)).minimize(loss)
print([round(value, 3) for value in losses(loss, 3)])  # [1.25, 1.23, 1.21]

# %% fluid.clip.set_gradient_clip
predicted, loss = linear(half)
fluid.clip.set_gradient_clip(fluid.clip.GradientClipByValue(max=0.1))
fluid.optimizer.SGD(0.1).minimize(loss)
print([round(value, 3) for value in losses(loss, 3)])  # [1.25, 1.23, 1.21]

# %% fluid.regularizer.L1Decay
predicted, loss = linear(fluid.ParamAttr(initializer=half, regularizer=fluid.regularizer.L1Decay(0.1)))
fluid.optimizer.SGD(0.1).minimize(loss)
print([round(value, 3) for value in losses(loss, 3)])  # [1.25, 1.004, 0.805]

# %% fluid.regularizer.L2Decay
predicted, loss = linear(half)
fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(0.1)).minimize(loss)
print([round(value, 3) for value in losses(loss, 3)])  # [1.25, 1.008, 0.815]

# %% fluid.ParamAttr
attr = fluid.ParamAttr(name="w", initializer=half, learning_rate=2.0, trainable=True)
predicted, loss = linear(attr)
fluid.optimizer.SGD(0.1).minimize(loss)  # its rate is 0.2 for w
print([round(value, 3) for value in losses(loss, 3)])  # [1.25, 0.8, 0.512]

# %% fluid.WeightNormParamAttr
predicted, loss = linear(fluid.WeightNormParamAttr(dim=None, name="w", initializer=half))
fluid.optimizer.SGD(0.1).minimize(loss)
print(
    [parameter.name for parameter in fluid.default_main_program().all_parameters()], losses(loss)[0]
)  # ['w_g', 'w_v'] 1.25

# %% fluid.initializer.Constant
w = fluid.layers.create_parameter([2], "float32", default_initializer=fluid.initializer.Constant(0.5))
exe.run(fluid.default_startup_program())
print(exe.run(fetch_list=[w])[0])  # [0.5 0.5]

# %% fluid.initializer.Uniform
w = fluid.layers.create_parameter([1000], "float32", default_initializer=fluid.initializer.Uniform(-0.1, 0.1))
exe.run(fluid.default_startup_program())
print(bool(abs(exe.run(fetch_list=[w])[0]).max() <= 0.1))  # True

# %% fluid.initializer.Normal
w = fluid.layers.create_parameter([1000], "float32", default_initializer=fluid.initializer.Normal(loc=1.0, scale=0.1))
exe.run(fluid.default_startup_program())
print(bool(abs(exe.run(fetch_list=[w])[0].mean() - 1) < 0.05))  # True

# %% fluid.initializer.TruncatedNormal
w = fluid.layers.create_parameter([1000], "float32", default_initializer=fluid.initializer.TruncatedNormal(scale=0.1))
exe.run(fluid.default_startup_program())
# no more than two deviations
print(bool(abs(exe.run(fetch_list=[w])[0]).max() <= 0.2))  # True

# %% fluid.initializer.Xavier
w = fluid.layers.create_parameter([30, 20], "float32", default_initializer=fluid.initializer.Xavier())
exe.run(fluid.default_startup_program())
print(bool(abs(exe.run(fetch_list=[w])[0]).max() <= (6 / 50) ** 0.5))  # True

# %% fluid.initializer.MSRA
w = fluid.layers.create_parameter([30, 20], "float32", default_initializer=fluid.initializer.MSRA(uniform=True))
exe.run(fluid.default_startup_program())
print(bool(abs(exe.run(fetch_list=[w])[0]).max() <= (6 / 30) ** 0.5))  # True

# %% fluid.initializer.Bilinear
image = fluid.data("image", [None, 1, 4, 4], "float32")
weights = fluid.ParamAttr(initializer=fluid.initializer.Bilinear(), trainable=False)
y = fluid.layers.conv2d_transpose(image, 1, filter_size=4, stride=2, padding=1, param_attr=weights, bias_attr=False)
exe.run(fluid.default_startup_program())
# twice as large
print(exe.run(feed={"image": np.ones([1, 1, 4, 4], "float32")}, fetch_list=[y])[0][0, 0, 3])
# [0.75 1.   1.   1.   1.   1.   1.   0.75]

# %% fluid.initializer.NumpyArrayInitializer
table = fluid.initializer.NumpyArrayInitializer(np.float32([[1, 2], [3, 4]]))
w = fluid.layers.create_parameter([2, 2], "float32", default_initializer=table)
exe.run(fluid.default_startup_program())
print(exe.run(fetch_list=[w])[0].tolist())  # [[1.0, 2.0], [3.0, 4.0]]
