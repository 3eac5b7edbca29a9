"""Examples of functions of elements, comparisons and reductions: a cell for each name of Fluid."""

import numpy as np

import jfluid as fluid

exe = fluid.Executor(fluid.CPUPlace())

# %% fluid.layers.abs
x = fluid.data("x", [None], "float32")
y = fluid.layers.abs(x)
print(exe.run(feed={"x": np.float32([-1, 0, 2])}, fetch_list=[y])[0])  # [1. 0. 2.]

# %% fluid.layers.acos
x = fluid.layers.assign(np.float32([1, 0, -1]))
print(exe.run(fetch_list=[fluid.layers.acos(x)])[0].round(3))  # [0.    1.571 3.142]

# %% fluid.layers.asin
x = fluid.layers.assign(np.float32([1, 0, -1]))
print(exe.run(fetch_list=[fluid.layers.asin(x)])[0].round(3))  # [ 1.571  0.    -1.571]

# %% fluid.layers.atan
x = fluid.layers.assign(np.float32([1, 0, -1]))
print(exe.run(fetch_list=[fluid.layers.atan(x)])[0].round(3))  # [ 0.785  0.    -0.785]

# %% fluid.layers.brelu
x = fluid.layers.assign(np.float32([-1, 3, 30]))
print(exe.run(fetch_list=[fluid.layers.brelu(x, t_min=0.0, t_max=6.0)])[0])  # [0. 3. 6.]

# %% fluid.layers.cast
x = fluid.layers.assign(np.float32([1.5, -1.5]))
y = fluid.layers.cast(x, "int64")
print(exe.run(fetch_list=[y])[0])  # [ 1 -1]

# %% fluid.layers.ceil
x = fluid.layers.assign(np.float32([0.2, 1.0, -1.5]))
print(exe.run(fetch_list=[fluid.layers.ceil(x)])[0])  # [ 1.  1. -1.]

# %% fluid.layers.clamp
x = fluid.layers.assign(np.float32([-1, 0.5, 2]))
print(exe.run(fetch_list=[fluid.layers.clamp(x, min=0.0, max=1.0)])[0])  # [0.  0.5 1. ]

# %% fluid.layers.clip
x = fluid.layers.assign(np.float32([-1, 0.5, 2]))
print(exe.run(fetch_list=[fluid.layers.clip(x, min=0.0, max=1.0)])[0])  # [0.  0.5 1. ]

# %% fluid.layers.clip_by_norm
x = fluid.layers.assign(np.float32([3, 4]))  # its norm is 5
print(exe.run(fetch_list=[fluid.layers.clip_by_norm(x, max_norm=1.0)])[0].round(3))  # [0.6 0.8]

# %% fluid.layers.cos
x = fluid.layers.assign(np.float32([0, np.pi]))
print(exe.run(fetch_list=[fluid.layers.cos(x)])[0])  # [ 1. -1.]

# %% fluid.layers.elementwise_add
x = fluid.layers.assign(np.float32([[1, 2, 3], [4, 5, 6]]))
rows = fluid.layers.assign(np.float32([10, 20]))
y = fluid.layers.elementwise_add(x, rows, axis=0)  # rows[i] is added to row i
print(exe.run(fetch_list=[y])[0].tolist())  # [[11.0, 12.0, 13.0], [24.0, 25.0, 26.0]]

# %% fluid.layers.elementwise_div
x = fluid.layers.assign(np.float32([1, 4]))
y = fluid.layers.assign(np.float32([2, 8]))
print(exe.run(fetch_list=[fluid.layers.elementwise_div(x, y)])[0])  # [0.5 0.5]

# %% fluid.layers.elementwise_equal
x = fluid.layers.assign(np.int64([1, 2]))
y = fluid.layers.assign(np.int64([1, 3]))
print(exe.run(fetch_list=[fluid.layers.elementwise_equal(x, y)])[0])  # [ True False]

# %% fluid.layers.elementwise_floordiv
x = fluid.layers.assign(np.int64([7, 9]))
y = fluid.layers.assign(np.int64([2, 3]))
print(exe.run(fetch_list=[fluid.layers.elementwise_floordiv(x, y)])[0])  # [3 3]

# %% fluid.layers.elementwise_max
x = fluid.layers.assign(np.float32([1, 5]))
y = fluid.layers.assign(np.float32([3, 2]))
print(exe.run(fetch_list=[fluid.layers.elementwise_max(x, y)])[0])  # [3. 5.]

# %% fluid.layers.elementwise_min
x = fluid.layers.assign(np.float32([1, 5]))
y = fluid.layers.assign(np.float32([3, 2]))
print(exe.run(fetch_list=[fluid.layers.elementwise_min(x, y)])[0])  # [1. 2.]

# %% fluid.layers.elementwise_mod
x = fluid.layers.assign(np.int64([7, 9]))
y = fluid.layers.assign(np.int64([4, 3]))
print(exe.run(fetch_list=[fluid.layers.elementwise_mod(x, y)])[0])  # [3 0]

# %% fluid.layers.elementwise_mul
x = fluid.layers.assign(np.float32([1, 5]))
y = fluid.layers.assign(np.float32([3, 2]))
print(exe.run(fetch_list=[fluid.layers.elementwise_mul(x, y, act="tanh")])[0].round(3))  # [0.995 1.   ]

# %% fluid.layers.elementwise_pow
x = fluid.layers.assign(np.float32([2, 3]))
y = fluid.layers.assign(np.float32([3, 2]))
print(exe.run(fetch_list=[fluid.layers.elementwise_pow(x, y)])[0])  # [8. 9.]

# %% fluid.layers.elementwise_sub
x = fluid.layers.assign(np.float32([1, 5]))
y = fluid.layers.assign(np.float32([3, 2]))
print(exe.run(fetch_list=[fluid.layers.elementwise_sub(x, y)])[0])  # [-2.  3.]

# %% fluid.layers.elu
x = fluid.layers.assign(np.float32([-1, 0, 2]))
print(exe.run(fetch_list=[fluid.layers.elu(x, alpha=1.0)])[0].round(3))  # [-0.632  0.     2.   ]

# %% fluid.layers.erf
x = fluid.layers.assign(np.float32([-1, 0, 1]))
print(exe.run(fetch_list=[fluid.layers.erf(x)])[0].round(3))  # [-0.843  0.     0.843]

# %% fluid.layers.exp
x = fluid.layers.assign(np.float32([0, 1]))
print(exe.run(fetch_list=[fluid.layers.exp(x)])[0].round(3))  # [1.    2.718]

# %% fluid.layers.floor
x = fluid.layers.assign(np.float32([0.2, 1.0, -1.5]))
print(exe.run(fetch_list=[fluid.layers.floor(x)])[0])  # [ 0.  1. -2.]

# %% fluid.layers.gelu
x = fluid.layers.assign(np.float32([-1, 0, 1]))
print(exe.run(fetch_list=[fluid.layers.gelu(x)])[0].round(3))  # [-0.159  0.     0.841]

# %% fluid.layers.hard_shrink
x = fluid.layers.assign(np.float32([-1, 0.3, 2]))
print(exe.run(fetch_list=[fluid.layers.hard_shrink(x, threshold=0.5)])[0])  # [-1.  0.  2.]

# %% fluid.layers.hard_sigmoid
x = fluid.layers.assign(np.float32([-5, 0, 1]))
print(exe.run(fetch_list=[fluid.layers.hard_sigmoid(x)])[0].round(3))  # [0.  0.5 0.7]

# %% fluid.layers.hard_swish
x = fluid.layers.assign(np.float32([-4, 0, 3]))
print(exe.run(fetch_list=[fluid.layers.hard_swish(x)])[0])  # [-0.  0.  3.]

# %% fluid.layers.leaky_relu
x = fluid.layers.assign(np.float32([-1, 0, 2]))
print(exe.run(fetch_list=[fluid.layers.leaky_relu(x, alpha=0.1)])[0].round(3))  # [-0.1  0.   2. ]

# %% fluid.layers.log
x = fluid.layers.assign(np.float32([1, 10]))
print(exe.run(fetch_list=[fluid.layers.log(x)])[0].round(3))  # [0.    2.303]

# %% fluid.layers.log1p
x = fluid.layers.assign(np.float32([0, 9]))
print(exe.run(fetch_list=[fluid.layers.log1p(x)])[0].round(3))  # [0.    2.303]

# %% fluid.layers.logsigmoid
x = fluid.layers.assign(np.float32([0, 2]))
print(exe.run(fetch_list=[fluid.layers.logsigmoid(x)])[0].round(3))  # [-0.693 -0.127]

# %% fluid.layers.mish
x = fluid.layers.assign(np.float32([-1, 0, 1]))
print(exe.run(fetch_list=[fluid.layers.mish(x)])[0].round(3))  # [-0.303  0.     0.865]

# %% fluid.layers.pow
x = fluid.layers.assign(np.float32([1, 2, 3]))
print(exe.run(fetch_list=[fluid.layers.pow(x, factor=2.0)])[0])  # [1. 4. 9.]

# %% fluid.layers.reciprocal
x = fluid.layers.assign(np.float32([1, 2, 4]))
print(exe.run(fetch_list=[fluid.layers.reciprocal(x)])[0])  # [1.   0.5  0.25]

# %% fluid.layers.relu
x = fluid.data("x", [None, 2], "float32")
y = fluid.layers.relu(x)
print(exe.run(feed={"x": np.float32([[-1, 2]])}, fetch_list=[y])[0])  # [[0. 2.]]

# %% fluid.layers.relu6
x = fluid.layers.assign(np.float32([-1, 3, 8]))
print(exe.run(fetch_list=[fluid.layers.relu6(x)])[0])  # [0. 3. 6.]

# %% fluid.layers.round
x = fluid.layers.assign(np.float32([0.4, 0.6, -1.2]))
print(exe.run(fetch_list=[fluid.layers.round(x)])[0])  # [ 0.  1. -1.]

# %% fluid.layers.rsqrt
x = fluid.layers.assign(np.float32([1, 4]))
print(exe.run(fetch_list=[fluid.layers.rsqrt(x)])[0])  # [1.  0.5]

# %% fluid.layers.scale
x = fluid.layers.assign(np.float32([1, 2]))
print(exe.run(fetch_list=[fluid.layers.scale(x, scale=2.0, bias=1.0)])[0])  # [3. 5.]

# %% fluid.layers.selu
x = fluid.layers.assign(np.float32([-1, 0, 1]))
print(exe.run(fetch_list=[fluid.layers.selu(x)])[0].round(3))  # [-1.111  0.     1.051]

# %% fluid.layers.sigmoid
x = fluid.layers.assign(np.float32([-2, 0, 2]))
print(exe.run(fetch_list=[fluid.layers.sigmoid(x)])[0].round(3))  # [0.119 0.5   0.881]

# %% fluid.layers.sign
x = fluid.layers.assign(np.float32([-3, 0, 2]))
print(exe.run(fetch_list=[fluid.layers.sign(x)])[0])  # [-1.  0.  1.]

# %% fluid.layers.sin
x = fluid.layers.assign(np.float32([0, np.pi / 2]))
print(exe.run(fetch_list=[fluid.layers.sin(x)])[0])  # [0. 1.]

# %% fluid.layers.soft_relu
x = fluid.layers.assign(np.float32([-1, 0, 1]))
print(exe.run(fetch_list=[fluid.layers.soft_relu(x)])[0].round(3))  # [0.313 0.693 1.313]

# %% fluid.layers.softplus
x = fluid.layers.assign(np.float32([-1, 0, 1]))
print(exe.run(fetch_list=[fluid.layers.softplus(x)])[0].round(3))  # [0.313 0.693 1.313]

# %% fluid.layers.softshrink
x = fluid.layers.assign(np.float32([-1, 0.3, 2]))
print(exe.run(fetch_list=[fluid.layers.softshrink(x, alpha=0.5)])[0])  # [-0.5  0.   1.5]

# %% fluid.layers.softsign
x = fluid.layers.assign(np.float32([-1, 0, 3]))
print(exe.run(fetch_list=[fluid.layers.softsign(x)])[0])  # [-0.5   0.    0.75]

# %% fluid.layers.sqrt
x = fluid.layers.assign(np.float32([1, 4, 9]))
print(exe.run(fetch_list=[fluid.layers.sqrt(x)])[0])  # [1. 2. 3.]

# %% fluid.layers.square
x = fluid.layers.assign(np.float32([1, -2, 3]))
print(exe.run(fetch_list=[fluid.layers.square(x)])[0])  # [1. 4. 9.]

# %% fluid.layers.stanh
x = fluid.layers.assign(np.float32([-1, 0, 1]))
print(exe.run(fetch_list=[fluid.layers.stanh(x)])[0].round(3))  # [-1.004  0.     1.004]

# %% fluid.layers.swish
x = fluid.layers.assign(np.float32([-1, 0, 1]))
print(exe.run(fetch_list=[fluid.layers.swish(x)])[0].round(3))  # [-0.269  0.     0.731]

# %% fluid.layers.tanh
x = fluid.layers.assign(np.float32([-1, 0, 1]))
print(exe.run(fetch_list=[fluid.layers.tanh(x)])[0].round(3))  # [-0.762  0.     0.762]

# %% fluid.layers.tanh_shrink
x = fluid.layers.assign(np.float32([-1, 0, 1]))
print(exe.run(fetch_list=[fluid.layers.tanh_shrink(x)])[0].round(3))  # [-0.238  0.     0.238]

# %% fluid.layers.thresholded_relu
x = fluid.layers.assign(np.float32([-1, 0.5, 2]))
print(exe.run(fetch_list=[fluid.layers.thresholded_relu(x, threshold=1.0)])[0])  # [0. 0. 2.]

# %% fluid.layers.equal
x = fluid.layers.assign(np.int64([1, 2, 3]))
y = fluid.layers.assign(np.int64([1, 3, 2]))
print(exe.run(fetch_list=[fluid.layers.equal(x, y)])[0])  # [ True False False]

# %% fluid.layers.not_equal
x = fluid.layers.assign(np.int64([1, 2, 3]))
y = fluid.layers.assign(np.int64([1, 3, 2]))
print(exe.run(fetch_list=[fluid.layers.not_equal(x, y)])[0])  # [False  True  True]

# %% fluid.layers.greater_equal
x = fluid.layers.assign(np.int64([1, 2, 3]))
y = fluid.layers.assign(np.int64([1, 3, 2]))
print(exe.run(fetch_list=[fluid.layers.greater_equal(x, y)])[0])  # [ True False  True]

# %% fluid.layers.greater_than
x = fluid.layers.assign(np.int64([1, 2, 3]))
y = fluid.layers.assign(np.int64([1, 3, 2]))
print(exe.run(fetch_list=[fluid.layers.greater_than(x, y)])[0])  # [False False  True]

# %% fluid.layers.less_equal
x = fluid.layers.assign(np.int64([1, 2, 3]))
y = fluid.layers.assign(np.int64([1, 3, 2]))
print(exe.run(fetch_list=[fluid.layers.less_equal(x, y)])[0])  # [ True  True False]

# %% fluid.layers.less_than
x = fluid.layers.assign(np.int64([1, 2, 3]))
y = fluid.layers.assign(np.int64([1, 3, 2]))
print(exe.run(fetch_list=[fluid.layers.less_than(x, y)])[0])  # [False  True False]

# %% fluid.layers.logical_and
x = fluid.layers.assign(np.array([True, True, False]))
y = fluid.layers.assign(np.array([True, False, False]))
print(exe.run(fetch_list=[fluid.layers.logical_and(x, y)])[0])  # [ True False False]

# %% fluid.layers.logical_or
x = fluid.layers.assign(np.array([True, True, False]))
y = fluid.layers.assign(np.array([True, False, False]))
print(exe.run(fetch_list=[fluid.layers.logical_or(x, y)])[0])  # [ True  True False]

# %% fluid.layers.logical_xor
x = fluid.layers.assign(np.array([True, True, False]))
y = fluid.layers.assign(np.array([True, False, False]))
print(exe.run(fetch_list=[fluid.layers.logical_xor(x, y)])[0])  # [False  True False]

# %% fluid.layers.logical_not
x = fluid.layers.assign(np.array([True, False]))
print(exe.run(fetch_list=[fluid.layers.logical_not(x)])[0])  # [False  True]

# %% fluid.layers.allclose
x = fluid.layers.assign(np.float32([1, 2]))
y = fluid.layers.assign(np.float32([1, 2.1]))
near = fluid.layers.allclose(x, y, rtol=0.0, atol=0.2)
print(exe.run(fetch_list=[near])[0])  # [ True]

# %% fluid.layers.has_inf
x = fluid.layers.assign(np.float32([1, np.inf]))
print(exe.run(fetch_list=[fluid.layers.has_inf(x)])[0])  # [ True]

# %% fluid.layers.has_nan
x = fluid.layers.assign(np.float32([1, np.nan]))
print(exe.run(fetch_list=[fluid.layers.has_nan(x)])[0])  # [ True]

# %% fluid.layers.isfinite
x = fluid.layers.assign(np.float32([1, np.nan]))
print(exe.run(fetch_list=[fluid.layers.isfinite(x)])[0])  # [False]

# %% fluid.layers.is_empty
x = fluid.layers.assign(np.float32([1]))
print(exe.run(fetch_list=[fluid.layers.is_empty(x)])[0])  # [False]

# %% fluid.layers.reduce_all
x = fluid.layers.assign(np.array([[True, False], [True, True]]))
print(exe.run(fetch_list=[fluid.layers.reduce_all(x, dim=1)])[0])  # [False  True]

# %% fluid.layers.reduce_any
x = fluid.layers.assign(np.array([[True, False], [False, False]]))
print(exe.run(fetch_list=[fluid.layers.reduce_any(x, dim=1)])[0])  # [ True False]

# %% fluid.layers.reduce_max
x = fluid.layers.assign(np.float32([[1, 2], [3, 4]]))
print(exe.run(fetch_list=[fluid.layers.reduce_max(x, dim=1)])[0])  # [2. 4.]

# %% fluid.layers.reduce_mean
x = fluid.layers.assign(np.float32([[1, 2], [3, 4]]))
print(exe.run(fetch_list=[fluid.layers.reduce_mean(x, dim=0)])[0])  # [2. 3.]

# %% fluid.layers.reduce_min
x = fluid.layers.assign(np.float32([[1, 2], [3, 4]]))
print(exe.run(fetch_list=[fluid.layers.reduce_min(x, dim=1)])[0])  # [1. 3.]

# %% fluid.layers.reduce_prod
x = fluid.layers.assign(np.float32([[1, 2], [3, 4]]))
print(exe.run(fetch_list=[fluid.layers.reduce_prod(x)])[0])  # [24.]

# %% fluid.layers.reduce_sum
x = fluid.layers.assign(np.float32([[1, 2], [3, 4]]))
print(exe.run(fetch_list=[fluid.layers.reduce_sum(x, dim=-1, keep_dim=True)])[0].tolist())  # [[3.0], [7.0]]

# %% fluid.layers.mean
x = fluid.layers.assign(np.float32([[1, 2], [3, 6]]))
print(exe.run(fetch_list=[fluid.layers.mean(x)])[0])  # [3.]

# %% fluid.layers.logsumexp
x = fluid.layers.assign(np.float32([[0, 0], [1, 1]]))
print(exe.run(fetch_list=[fluid.layers.logsumexp(x, dim=1)])[0].round(3))  # [0.693 1.693]

# %% fluid.layers.cumsum
x = fluid.layers.assign(np.float32([1, 2, 3]))
print(exe.run(fetch_list=[fluid.layers.cumsum(x)])[0])  # [1. 3. 6.]
print(exe.run(fetch_list=[fluid.layers.cumsum(x, exclusive=True, reverse=True)])[0])  # [5. 3. 0.]

# %% fluid.layers.argmax
x = fluid.layers.assign(np.float32([[1, 9, 3], [7, 5, 6]]))
print(exe.run(fetch_list=[fluid.layers.argmax(x, axis=1)])[0])  # [1 0]

# %% fluid.layers.argmin
x = fluid.layers.assign(np.float32([[1, 9, 3], [7, 5, 6]]))
print(exe.run(fetch_list=[fluid.layers.argmin(x, axis=1)])[0])  # [0 1]

# %% fluid.layers.argsort
x = fluid.layers.assign(np.float32([3, 1, 2]))
ordered, places = fluid.layers.argsort(x, axis=0)
print(*exe.run(fetch_list=[ordered, places]))  # [1. 2. 3.] [1 2 0]

# %% fluid.layers.topk
scores = fluid.layers.assign(np.float32([[1, 9, 3], [7, 5, 6]]))
values, places = fluid.layers.topk(scores, k=2)
best, at = exe.run(fetch_list=[values, places])
print(best.tolist(), at.tolist())  # [[9.0, 3.0], [7.0, 6.0]] [[1, 2], [0, 2]]

# %% fluid.layers.sum
x = fluid.layers.assign(np.float32([1, 2]))
y = fluid.layers.assign(np.float32([10, 20]))
print(exe.run(fetch_list=[fluid.layers.sum([x, y])])[0])  # [11. 22.]

# %% fluid.layers.sums
x = fluid.layers.assign(np.float32([1, 2]))
y = fluid.layers.assign(np.float32([10, 20]))
print(exe.run(fetch_list=[fluid.layers.sums([x, y, x])])[0])  # [12. 24.]

# %% fluid.layers.addcmul
x = fluid.layers.assign(np.float32([1, 1]))
a = fluid.layers.assign(np.float32([2, 3]))
b = fluid.layers.assign(np.float32([4, 5]))
# x + 0.5 * a * b
print(exe.run(fetch_list=[fluid.layers.addcmul(x, a, b, value=0.5)])[0])  # [5.  8.5]

# %% fluid.layers.increment
x = fluid.layers.fill_constant([1], "float32", 3.0)
fluid.layers.increment(x, value=2.0)  # in place
print(exe.run(fetch_list=[x])[0])  # [5.]

# %% fluid.layers.maxout
x = fluid.layers.assign(np.float32([[[[1]], [[4]], [[3]], [[2]]]]))  # [N, C, H, W]: four channels
print(exe.run(fetch_list=[fluid.layers.maxout(x, groups=2)])[0].ravel())  # [4. 3.]

# %% fluid.layers.prelu
x = fluid.layers.assign(np.float32([[-4, 2]]))
y = fluid.layers.prelu(x, mode="all", param_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(0.25)))
exe.run(fluid.default_startup_program())
print(exe.run(fetch_list=[y])[0])  # [[-1.  2.]]

# %% fluid.layers.softmax
x = fluid.layers.assign(np.float32([[0, 0], [0, np.log(3)]]))
print(exe.run(fetch_list=[fluid.layers.softmax(x)])[0].round(3).tolist())  # [[0.5, 0.5], [0.25, 0.75]]

# %% fluid.layers.log_softmax
x = fluid.layers.assign(np.float32([[0, 0]]))
print(exe.run(fetch_list=[fluid.layers.log_softmax(x, axis=-1)])[0].round(3))  # [[-0.693 -0.693]]
