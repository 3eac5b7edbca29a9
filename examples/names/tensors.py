"""Examples of layers that make, move and multiply tensors: a cell for each name of Fluid."""

import numpy as np

import jfluid as fluid

exe = fluid.Executor(fluid.CPUPlace())

# %% fluid.layers.arange
print(exe.run(fetch_list=[fluid.layers.arange(1, 7, 2, "int64")])[0])  # [1 3 5]

# %% fluid.layers.range
print(exe.run(fetch_list=[fluid.layers.range(0, 10, 4, "int32")])[0])  # [0 4 8]

# %% fluid.layers.linspace
print(exe.run(fetch_list=[fluid.layers.linspace(0, 1, 5, "float32")])[0])  # [0.   0.25 0.5  0.75 1.  ]

# %% fluid.layers.assign
x = fluid.layers.assign(np.float32([[1, 2]]))  # a constant
y = fluid.layers.assign(x)  # a copy
print(exe.run(fetch_list=[y])[0])  # [[1. 2.]]

# %% fluid.layers.create_tensor
total = fluid.layers.create_tensor("float32")
fluid.layers.assign(np.float32([1, 2]), output=total)
print(exe.run(fetch_list=[total])[0])  # [1. 2.]

# %% fluid.layers.create_parameter
w = fluid.layers.create_parameter([2, 3], "float32", name="w", default_initializer=fluid.initializer.Constant(0.5))
exe.run(fluid.default_startup_program())
print(exe.run(fetch_list=[w])[0].tolist())  # [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]

# %% fluid.layers.create_global_var
steps = fluid.layers.create_global_var([1], value=0, dtype="int64", persistable=True, name="steps")
fluid.layers.increment(steps, value=1)
exe.run(fluid.default_startup_program())
for _ in range(3):
    (seen,) = exe.run(fetch_list=[steps])
print(seen)  # [3]

# %% fluid.layers.autoincreased_step_counter
step = fluid.layers.autoincreased_step_counter(begin=0)
exe.run(fluid.default_startup_program())
print([int(exe.run(fetch_list=[step])[0][0]) for _ in range(3)])  # [0, 1, 2]

# %% fluid.layers.diag
x = fluid.layers.assign(np.float32([1, 2]))
print(exe.run(fetch_list=[fluid.layers.diag(x)])[0].tolist())  # [[1.0, 0.0], [0.0, 2.0]]

# %% fluid.layers.diag_embed
x = fluid.layers.assign(np.float32([[1, 2]]))
print(exe.run(fetch_list=[fluid.layers.diag_embed(x, offset=1)])[0].tolist())
# [[[0.0, 1.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]]]

# %% fluid.layers.eye
print(exe.run(fetch_list=[fluid.layers.eye(2, num_columns=3)])[0].tolist())  # [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]

# %% fluid.layers.fill_constant
print(exe.run(fetch_list=[fluid.layers.fill_constant([2, 2], "float32", 7.0)])[0].tolist())  # [[7.0, 7.0], [7.0, 7.0]]

# %% fluid.layers.fill_constant_batch_size_like
x = fluid.data("x", [None, 3], "float32")
start = fluid.layers.fill_constant_batch_size_like(x, shape=[-1, 2], dtype="float32", value=0.5)
print(exe.run(feed={"x": np.zeros([2, 3], "float32")}, fetch_list=[start])[0].tolist())  # [[0.5, 0.5], [0.5, 0.5]]

# %% fluid.layers.full
print(exe.run(fetch_list=[fluid.layers.full([1, 2], 3.0, dtype="float32")])[0])  # [[3. 3.]]

# %% fluid.layers.full_like
x = fluid.layers.assign(np.float32([[1, 2]]))
print(exe.run(fetch_list=[fluid.layers.full_like(x, 3.0)])[0])  # [[3. 3.]]

# %% fluid.layers.ones
print(exe.run(fetch_list=[fluid.layers.ones([2], "float32")])[0])  # [1. 1.]

# %% fluid.layers.ones_like
x = fluid.layers.assign(np.float32([5, 6]))
print(exe.run(fetch_list=[fluid.layers.ones_like(x)])[0])  # [1. 1.]

# %% fluid.layers.zeros
print(exe.run(fetch_list=[fluid.layers.zeros([2], "int64")])[0])  # [0 0]

# %% fluid.layers.zeros_like
x = fluid.layers.assign(np.float32([5, 6]))
print(exe.run(fetch_list=[fluid.layers.zeros_like(x)])[0])  # [0. 0.]

# %% fluid.layers.gaussian_random
(x,) = exe.run(fetch_list=[fluid.layers.gaussian_random([1000], mean=5.0, std=0.1)])
print(x.shape, bool(abs(x.mean() - 5) < 0.1))  # (1000,) True

# %% fluid.layers.gaussian_random_batch_size_like
x = fluid.data("x", [None, 3], "float32")
noise = fluid.layers.gaussian_random_batch_size_like(x, shape=[-1, 5])
print(exe.run(feed={"x": np.zeros([2, 3], "float32")}, fetch_list=[noise])[0].shape)  # (2, 5)

# %% fluid.layers.uniform_random
(x,) = exe.run(fetch_list=[fluid.layers.uniform_random([100], min=0.0, max=2.0)])
print(x.shape, bool(x.min() >= 0 and x.max() <= 2))  # (100,) True

# %% fluid.layers.uniform_random_batch_size_like
x = fluid.data("x", [None, 3], "float32")
noise = fluid.layers.uniform_random_batch_size_like(x, shape=[-1, 5])
print(exe.run(feed={"x": np.zeros([2, 3], "float32")}, fetch_list=[noise])[0].shape)  # (2, 5)

# %% fluid.layers.randn
print(exe.run(fetch_list=[fluid.layers.randn([2, 3])])[0].shape)  # (2, 3)

# %% fluid.layers.randint
(x,) = exe.run(fetch_list=[fluid.layers.randint(0, 10, shape=[100], dtype="int64")])
print(x.shape, bool(x.min() >= 0 and x.max() < 10))  # (100,) True

# %% fluid.layers.randperm
(order,) = exe.run(fetch_list=[fluid.layers.randperm(5)])
print(sorted(order.tolist()))  # [0, 1, 2, 3, 4]

# %% fluid.layers.random_crop
image = fluid.data("image", [None, 3, 8, 8], "float32")
part = fluid.layers.random_crop(image, shape=[3, 5, 5])
exe.run(fluid.default_startup_program())
print(exe.run(feed={"image": np.zeros([2, 3, 8, 8], "float32")}, fetch_list=[part])[0].shape)  # (2, 3, 5, 5)

# %% fluid.layers.sampling_id
odds = fluid.layers.assign(np.float32([[0, 1, 0], [0, 0, 1]]))  # a row of probabilities each
print(exe.run(fetch_list=[fluid.layers.sampling_id(odds)])[0].astype(int))  # [1 2]

# %% fluid.layers.concat
x = fluid.layers.assign(np.float32([[1, 2]]))
y = fluid.layers.assign(np.float32([[3, 4]]))
print(exe.run(fetch_list=[fluid.layers.concat([x, y], axis=0)])[0].tolist())  # [[1.0, 2.0], [3.0, 4.0]]

# %% fluid.layers.split
x = fluid.layers.assign(np.float32([[1, 2, 3, 4]]))
left, right = fluid.layers.split(x, num_or_sections=[1, 3], dim=1)
print(*exe.run(fetch_list=[left, right]))  # [[1.]] [[2. 3. 4.]]

# %% fluid.layers.stack
x = fluid.layers.assign(np.float32([1, 2]))
y = fluid.layers.assign(np.float32([3, 4]))
print(exe.run(fetch_list=[fluid.layers.stack([x, y], axis=1)])[0].tolist())  # [[1.0, 3.0], [2.0, 4.0]]

# %% fluid.layers.unstack
x = fluid.layers.assign(np.float32([[1, 2], [3, 4]]))
first, second = fluid.layers.unstack(x, axis=0)
print(*exe.run(fetch_list=[first, second]))  # [1. 2.] [3. 4.]

# %% fluid.layers.crop
x = fluid.layers.assign(np.float32([[1, 2, 3], [4, 5, 6]]))
print(exe.run(fetch_list=[fluid.layers.crop(x, shape=[2, 2], offsets=[0, 1])])[0].tolist())  # [[2.0, 3.0], [5.0, 6.0]]

# %% fluid.layers.crop_tensor
x = fluid.layers.assign(np.float32([[1, 2, 3], [4, 5, 6]]))
print(exe.run(fetch_list=[fluid.layers.crop_tensor(x, shape=[1, 2], offsets=[1, 1])])[0].tolist())  # [[5.0, 6.0]]

# %% fluid.layers.expand
x = fluid.layers.assign(np.float32([[1, 2]]))
print(exe.run(fetch_list=[fluid.layers.expand(x, expand_times=[2, 2])])[0].tolist())
# [[1.0, 2.0, 1.0, 2.0], [1.0, 2.0, 1.0, 2.0]]

# %% fluid.layers.expand_as
x = fluid.layers.assign(np.float32([[1], [2]]))
like = fluid.layers.assign(np.zeros([2, 3], "float32"))
print(exe.run(fetch_list=[fluid.layers.expand_as(x, like)])[0].tolist())  # [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]

# %% fluid.layers.flatten
x = fluid.data("x", [None, 3, 4], "float32")
y = fluid.layers.flatten(x, axis=1)
print(exe.run(feed={"x": np.zeros([2, 3, 4], "float32")}, fetch_list=[y])[0].shape)  # (2, 12)

# %% fluid.layers.flip
x = fluid.layers.assign(np.float32([[1, 2], [3, 4]]))
print(exe.run(fetch_list=[fluid.layers.flip(x, dims=[0, 1])])[0].tolist())  # [[4.0, 3.0], [2.0, 1.0]]

# %% fluid.layers.reverse
x = fluid.layers.assign(np.float32([1, 2, 3]))
print(exe.run(fetch_list=[fluid.layers.reverse(x, axis=0)])[0])  # [3. 2. 1.]

# %% fluid.layers.roll
x = fluid.layers.assign(np.float32([1, 2, 3]))
print(exe.run(fetch_list=[fluid.layers.roll(x, shifts=1)])[0])  # [3. 1. 2.]

# %% fluid.layers.gather
x = fluid.layers.assign(np.float32([[1, 2], [3, 4], [5, 6]]))
rows = fluid.layers.assign(np.int64([2, 0]))
print(exe.run(fetch_list=[fluid.layers.gather(x, rows)])[0].tolist())  # [[5.0, 6.0], [1.0, 2.0]]

# %% fluid.layers.gather_nd
x = fluid.layers.assign(np.float32([[1, 2], [3, 4]]))
at = fluid.layers.assign(np.int64([[0, 1], [1, 0]]))
print(exe.run(fetch_list=[fluid.layers.gather_nd(x, at)])[0])  # [2. 3.]

# %% fluid.layers.gather_tree
ids = fluid.data("ids", [None, 1, 2], "int64")  # steps, batch, beams
parents = fluid.data("parents", [None, 1, 2], "int64")
whole = fluid.layers.gather_tree(ids, parents)
feed = {"ids": np.int64([[[1, 2]], [[3, 4]]]), "parents": np.int64([[[0, 0]], [[1, 0]]])}
print(exe.run(feed=feed, fetch_list=[whole])[0].tolist())  # [[[2, 1]], [[3, 4]]]

# %% fluid.layers.index_sample
x = fluid.layers.assign(np.float32([[1, 2, 3], [4, 5, 6]]))
at = fluid.layers.assign(np.int64([[0, 2], [1, 1]]))
print(exe.run(fetch_list=[fluid.layers.index_sample(x, at)])[0].tolist())  # [[1.0, 3.0], [5.0, 5.0]]

# %% fluid.layers.index_select
x = fluid.layers.assign(np.float32([[1, 2, 3], [4, 5, 6]]))
columns = fluid.layers.assign(np.int64([2, 0]))
print(exe.run(fetch_list=[fluid.layers.index_select(x, columns, dim=1)])[0].tolist())  # [[3.0, 1.0], [6.0, 4.0]]

# %% fluid.layers.scatter
x = fluid.layers.assign(np.float32([[1], [2], [3]]))
rows = fluid.layers.assign(np.int64([2, 0]))
new = fluid.layers.assign(np.float32([[30], [10]]))
print(exe.run(fetch_list=[fluid.layers.scatter(x, rows, new)])[0].tolist())  # [[10.0], [2.0], [30.0]]

# %% fluid.layers.scatter_nd
at = fluid.layers.assign(np.int64([[1], [1], [3]]))
new = fluid.layers.assign(np.float32([5, 6, 7]))
print(exe.run(fetch_list=[fluid.layers.scatter_nd(at, new, shape=[4])])[0])  # [ 0. 11.  0.  7.]

# %% fluid.layers.scatter_nd_add
x = fluid.layers.assign(np.float32([1, 1, 1]))
at = fluid.layers.assign(np.int64([[0], [2]]))
more = fluid.layers.assign(np.float32([10, 30]))
print(exe.run(fetch_list=[fluid.layers.scatter_nd_add(x, at, more)])[0])  # [11.  1. 31.]

# %% fluid.layers.multiplex
x = fluid.data("x", [None, 2], "float32")
y = fluid.data("y", [None, 2], "float32")
choice = fluid.data("choice", [None, 1], "int32")
rows = fluid.layers.multiplex([x, y], choice)
feed = {"x": np.float32([[1, 2], [3, 4]]), "y": np.float32([[5, 6], [7, 8]]), "choice": np.int32([[1], [0]])}
print(exe.run(feed=feed, fetch_list=[rows])[0].tolist())  # [[5.0, 6.0], [3.0, 4.0]]

# %% fluid.layers.one_hot
ids = fluid.data("ids", [None, 1], "int64")
print(exe.run(feed={"ids": np.int64([[1], [0]])}, fetch_list=[fluid.layers.one_hot(ids, 3)])[0].tolist())
# [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]

# %% fluid.one_hot
ids = fluid.data("ids", [None], "int64")
print(exe.run(feed={"ids": np.int64([1, 0])}, fetch_list=[fluid.one_hot(ids, 3)])[0].tolist())
# [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]

# %% fluid.layers.pad
x = fluid.layers.assign(np.float32([[1, 2]]))
print(exe.run(fetch_list=[fluid.layers.pad(x, paddings=[0, 1, 1, 0], pad_value=9.0)])[0].tolist())
# [[9.0, 1.0, 2.0], [9.0, 9.0, 9.0]]

# %% fluid.layers.pad2d
image = fluid.data("image", [None, 1, 1, 2], "float32")
y = fluid.layers.pad2d(image, paddings=[0, 0, 1, 1], mode="reflect")
print(exe.run(feed={"image": np.float32([[[[1, 2]]]])}, fetch_list=[y])[0].ravel())  # [2. 1. 2. 1.]

# %% fluid.layers.pad_constant_like
x = fluid.layers.assign(np.zeros([2, 3], "float32"))
y = fluid.layers.assign(np.float32([[1, 2]]))
print(exe.run(fetch_list=[fluid.layers.pad_constant_like(x, y, pad_value=9.0)])[0].tolist())
# [[1.0, 2.0, 9.0], [9.0, 9.0, 9.0]]

# %% fluid.layers.rank
x = fluid.data("x", [2, 3, 4], "float32")
print(exe.run(feed={"x": np.zeros([2, 3, 4], "float32")}, fetch_list=[fluid.layers.rank(x)])[0])  # 3

# %% fluid.layers.shape
x = fluid.data("x", [None, 3], "float32")
print(exe.run(feed={"x": np.zeros([5, 3], "float32")}, fetch_list=[fluid.layers.shape(x)])[0])  # [5 3]

# %% fluid.layers.size
x = fluid.data("x", [None, 3], "float32")
print(exe.run(feed={"x": np.zeros([5, 3], "float32")}, fetch_list=[fluid.layers.size(x)])[0])  # [15]

# %% fluid.layers.reshape
x = fluid.data("x", [None, 6], "float32")
y = fluid.layers.reshape(x, shape=[0, 2, -1])  # 0 keeps a dimension, -1 is computed
print(exe.run(feed={"x": np.zeros([4, 6], "float32")}, fetch_list=[y])[0].shape)  # (4, 2, 3)

# %% fluid.layers.transpose
x = fluid.data("x", [None, 3, 4], "float32")
y = fluid.layers.transpose(x, perm=[0, 2, 1])
print(exe.run(feed={"x": np.zeros([2, 3, 4], "float32")}, fetch_list=[y])[0].shape)  # (2, 4, 3)

# %% fluid.layers.t
x = fluid.layers.assign(np.float32([[1, 2, 3]]))
print(exe.run(fetch_list=[fluid.layers.t(x)])[0].tolist())  # [[1.0], [2.0], [3.0]]

# %% fluid.layers.squeeze
x = fluid.layers.assign(np.zeros([1, 3, 1], "float32"))
print(exe.run(fetch_list=[fluid.layers.squeeze(x, axes=[0])])[0].shape)  # (3, 1)

# %% fluid.layers.unsqueeze
x = fluid.layers.assign(np.zeros([3], "float32"))
print(exe.run(fetch_list=[fluid.layers.unsqueeze(x, axes=[0, 2])])[0].shape)  # (1, 3, 1)

# %% fluid.layers.slice
x = fluid.layers.assign(np.float32([[1, 2, 3], [4, 5, 6]]))
print(exe.run(fetch_list=[fluid.layers.slice(x, axes=[0, 1], starts=[1, 0], ends=[2, -1])])[0].tolist())  # [[4.0, 5.0]]

# %% fluid.layers.strided_slice
x = fluid.layers.assign(np.float32([1, 2, 3, 4, 5]))
print(exe.run(fetch_list=[fluid.layers.strided_slice(x, axes=[0], starts=[0], ends=[5], strides=[2])])[0])  # [1. 3. 5.]

# %% fluid.layers.tril
x = fluid.layers.assign(np.float32([[1, 2], [3, 4]]))
print(exe.run(fetch_list=[fluid.layers.tril(x)])[0].tolist())  # [[1.0, 0.0], [3.0, 4.0]]

# %% fluid.layers.triu
x = fluid.layers.assign(np.float32([[1, 2], [3, 4]]))
print(exe.run(fetch_list=[fluid.layers.triu(x, diagonal=1)])[0].tolist())  # [[0.0, 2.0], [0.0, 0.0]]

# %% fluid.layers.trace
x = fluid.layers.assign(np.float32([[1, 2], [3, 4]]))
print(exe.run(fetch_list=[fluid.layers.trace(x)])[0])  # [5.]

# %% fluid.layers.meshgrid
x = fluid.layers.assign(np.float32([1, 2]))
y = fluid.layers.assign(np.float32([3, 4, 5]))
rows, columns = exe.run(fetch_list=list(fluid.layers.meshgrid([x, y])))
print(rows.tolist(), columns.tolist())  # [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]] [[3.0, 4.0, 5.0], [3.0, 4.0, 5.0]]

# %% fluid.layers.nonzero
x = fluid.layers.assign(np.float32([0, 5, 0, 6]))
print(exe.run(fetch_list=[fluid.layers.nonzero(x)])[0].tolist())  # [[1], [3]]

# %% fluid.layers.where
mask = fluid.layers.assign(np.array([True, False, True]))
print(exe.run(fetch_list=[fluid.layers.where(mask)])[0].tolist())  # [[0], [2]]

# %% fluid.layers.unique
x = fluid.layers.assign(np.int64([2, 3, 2, 5]))
values, index = fluid.layers.unique(x)
print(*exe.run(fetch_list=[values, index]))  # [2 3 5] [0 1 0 2]

# %% fluid.layers.unique_with_counts
x = fluid.layers.assign(np.int64([2, 3, 2, 5]))
values, index, counts = fluid.layers.unique_with_counts(x)
print(*exe.run(fetch_list=[values, index, counts]))  # [2 3 5] [0 1 0 2] [2 1 1]

# %% fluid.layers.shard_index
ids = fluid.data("ids", [None, 1], "int64")
mine = fluid.layers.shard_index(ids, index_num=20, nshards=2, shard_id=0)  # of the ids 0 to 9 here
print(exe.run(feed={"ids": np.int64([[3], [16]])}, fetch_list=[mine])[0].tolist())  # [[3], [-1]]

# %% fluid.layers.hash
ids = fluid.data("ids", [None, 1], "int64")
buckets = fluid.layers.hash(ids, hash_size=1000, num_hash=2)
print(exe.run(feed={"ids": np.int64([[7], [8]])}, fetch_list=[buckets])[0].shape)  # (2, 2, 1)

# %% fluid.layers.addmm
x = fluid.layers.assign(np.float32([[1, 1]]))
a = fluid.layers.assign(np.float32([[1, 2]]))
b = fluid.layers.assign(np.float32([[1, 0], [0, 1]]))
print(exe.run(fetch_list=[fluid.layers.addmm(x, a, b, alpha=2.0)])[0])  # [[3. 5.]]

# %% fluid.layers.bmm
x = fluid.layers.assign(np.float32([[[1, 2]], [[3, 4]]]))
y = fluid.layers.assign(np.float32([[[1], [1]], [[2], [0]]]))
print(exe.run(fetch_list=[fluid.layers.bmm(x, y)])[0].ravel())  # [3. 6.]

# %% fluid.layers.cross
x = fluid.layers.assign(np.float32([[1, 0, 0]]))
y = fluid.layers.assign(np.float32([[0, 1, 0]]))
print(exe.run(fetch_list=[fluid.layers.cross(x, y)])[0])  # [[0. 0. 1.]]

# %% fluid.layers.dist
x = fluid.layers.assign(np.float32([0, 0]))
y = fluid.layers.assign(np.float32([3, 4]))
print(exe.run(fetch_list=[fluid.layers.dist(x, y, p=2)])[0])  # [5.]

# %% fluid.layers.dot
x = fluid.data("x", [None, 2], "float32")
y = fluid.data("y", [None, 2], "float32")
feed = {"x": np.float32([[1, 2], [3, 4]]), "y": np.float32([[5, 6], [7, 8]])}
print(exe.run(feed=feed, fetch_list=[fluid.layers.dot(x, y)])[0].tolist())  # [[17.0], [53.0]]

# %% fluid.layers.kron
x = fluid.layers.assign(np.float32([[1, 2]]))
y = fluid.layers.assign(np.float32([[1, 10]]))
print(exe.run(fetch_list=[fluid.layers.kron(x, y)])[0])  # [[ 1. 10.  2. 20.]]

# %% fluid.layers.matmul
x = fluid.data("x", [None, 2, 3], "float32")
y = fluid.data("y", [None, 4, 3], "float32")
product = fluid.layers.matmul(x, y, transpose_y=True)
feed = {"x": np.ones([5, 2, 3], "float32"), "y": np.ones([5, 4, 3], "float32")}
print(exe.run(feed=feed, fetch_list=[product])[0].shape)  # (5, 2, 4)

# %% fluid.layers.mul
x = fluid.data("x", [None, 2, 3], "float32")  # flattened to rows of 6
y = fluid.layers.create_parameter([6, 4], "float32")
exe.run(fluid.default_startup_program())
product = fluid.layers.mul(x, y, x_num_col_dims=1)
print(exe.run(feed={"x": np.ones([5, 2, 3], "float32")}, fetch_list=[product])[0].shape)  # (5, 4)

# %% fluid.layers.cos_sim
x = fluid.layers.assign(np.float32([[1, 0]]))
y = fluid.layers.assign(np.float32([[1, 1]]))
print(exe.run(fetch_list=[fluid.layers.cos_sim(x, y)])[0].round(3))  # [[0.707]]

# %% fluid.layers.l2_normalize
x = fluid.layers.assign(np.float32([[3, 4]]))
print(exe.run(fetch_list=[fluid.layers.l2_normalize(x, axis=1)])[0])  # [[0.6 0.8]]

# %% fluid.layers.fsp_matrix
x = fluid.data("x", [None, 2, 4, 4], "float32")
y = fluid.data("y", [None, 3, 4, 4], "float32")
feed = {"x": np.ones([1, 2, 4, 4], "float32"), "y": np.ones([1, 3, 4, 4], "float32")}
print(
    exe.run(feed=feed, fetch_list=[fluid.layers.fsp_matrix(x, y)])[0].tolist()
)  # [[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]

# %% fluid.layers.merge_selected_rows fluid.layers.get_tensor_from_selected_rows
ids = fluid.data("ids", [None, 1], "int64")
rows = fluid.embedding(ids, size=[10, 2], is_sparse=True, param_attr=fluid.ParamAttr(name="table"))
loss = fluid.layers.mean(rows)
(parameter_and_gradient,) = fluid.backward.append_backward(loss)
merged = fluid.layers.merge_selected_rows(parameter_and_gradient[1])  # a row for each distinct id
gradient = fluid.layers.get_tensor_from_selected_rows(merged)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"ids": np.int64([[1], [1], [3], [1]])}, fetch_list=[gradient])[0].tolist())
# [[0.375, 0.375], [0.125, 0.125]]

# %% fluid.layers.Print
x = fluid.layers.assign(np.float32([1, 2]))
y = fluid.layers.Print(x, message="x in this step:", summarize=2)  # writes to the standard output
print(exe.run(fetch_list=[y])[0])


# %% fluid.layers.py_func
def half_up(rows):
    """Round halves up: a function of NumPy arrays."""
    return np.floor(np.asarray(rows) + 0.5).astype("float32")


x = fluid.data("x", [None, 1], "float32")
y = fluid.default_main_program().current_block().create_var(name="y", dtype="float32", shape=[-1, 1])
fluid.layers.py_func(half_up, x=x, out=y)
print(exe.run(feed={"x": np.float32([[0.5], [1.5]])}, fetch_list=[y])[0].tolist())  # [[1.0], [2.0]]

# %% fluid.layers.load
x = fluid.layers.create_parameter([2], "float32", name="x", default_initializer=fluid.initializer.Constant(4.0))
exe.run(fluid.default_startup_program())
fluid.io.save_params(exe, "saved")
again = fluid.layers.create_tensor("float32", persistable=True)
fluid.layers.load(again, "saved/x")
print(exe.run(fetch_list=[again])[0])  # [4. 4.]
