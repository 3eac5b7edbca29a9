"""Examples of distributions, and of layers of fluid.contrib: a cell for each name of Fluid."""

import numpy as np

import jfluid as fluid

exe = fluid.Executor(fluid.CPUPlace())

# %% fluid.layers.Normal
first = fluid.layers.Normal(0.0, 1.0)
second = fluid.layers.Normal(1.0, 1.0)
found = exe.run(fetch_list=[first.entropy(), first.kl_divergence(second), first.sample([2])])
print(np.ravel(found[0]).round(3), np.ravel(found[1]).round(3), found[2].size)  # [1.419] [0.5] 2

# %% fluid.layers.Uniform
even = fluid.layers.Uniform(0.0, 2.0)
at = fluid.layers.assign(np.float32([0.5]))
print(
    *[np.ravel(found).round(3) for found in exe.run(fetch_list=[even.entropy(), even.log_prob(at)])]
)  # [0.693] [-0.693]

# %% fluid.layers.Categorical
first = fluid.layers.Categorical(fluid.layers.assign(np.float32([0, 0])))
second = fluid.layers.Categorical(fluid.layers.assign(np.float32([0, 1])))
print(*[np.ravel(found).round(3) for found in exe.run(fetch_list=[first.entropy(), first.kl_divergence(second)])])
# [0.693] [0.12]

# %% fluid.layers.MultivariateNormalDiag
spread = fluid.layers.assign(np.float32([[1, 0], [0, 1]]))
first = fluid.layers.MultivariateNormalDiag(fluid.layers.assign(np.float32([0, 0])), spread)
second = fluid.layers.MultivariateNormalDiag(fluid.layers.assign(np.float32([1, 0])), spread)
print(*[np.ravel(found).round(3) for found in exe.run(fetch_list=[first.entropy(), first.kl_divergence(second)])])
# [2.838] [0.5]

# %% fluid.contrib.fused_elemwise_activation
x = fluid.layers.assign(np.float32([[-1, 2]]))
y = fluid.layers.assign(np.float32([[3, -4]]))
z = fluid.contrib.layers.fused_elemwise_activation(x, y, functor_list=["elementwise_add", "relu"])
print(exe.run(fetch_list=[z])[0])  # x + relu(y)  # [[2. 2.]]

# %% fluid.contrib.layers.partial_concat
x = fluid.data("x", [None, 3], "float32")
y = fluid.data("y", [None, 3], "float32")
z = fluid.contrib.layers.partial_concat([x, y], start_index=0, length=2)
print(exe.run(feed={"x": np.float32([[1, 2, 3]]), "y": np.float32([[4, 5, 6]])}, fetch_list=[z])[0])  # [[1. 2. 4. 5.]]

# %% fluid.contrib.layers.partial_sum
x = fluid.data("x", [None, 3], "float32")
y = fluid.data("y", [None, 3], "float32")
z = fluid.contrib.layers.partial_sum([x, y], start_index=1, length=2)
print(exe.run(feed={"x": np.float32([[1, 2, 3]]), "y": np.float32([[4, 5, 6]])}, fetch_list=[z])[0])  # [[7. 9.]]

# %% fluid.contrib.layers.rank_attention
x = fluid.data("x", [None, 2], "float32")
ranks = fluid.data("ranks", [None, 7], "int32")  # the rank, then (rank, row) of up to three adverts of the page
y = fluid.contrib.layers.rank_attention(
    x, ranks, rank_param_shape=[18, 3], rank_param_attr=fluid.ParamAttr(name="ranks_w"), max_rank=3
)
exe.run(fluid.default_startup_program())
feed = {"x": np.ones([2, 2], "float32"), "ranks": np.int32([[1, 1, 0, 2, 1, 0, 0], [2, 1, 0, 2, 1, 0, 0]])}
print(exe.run(feed=feed, fetch_list=[y])[0].shape)  # (2, 3)

# %% fluid.contrib.layers.shuffle_batch
x = fluid.data("x", [None, 1], "float32")
y = fluid.contrib.layers.shuffle_batch(x)
exe.run(fluid.default_startup_program())
(found,) = exe.run(feed={"x": np.float32([[1], [2], [3]])}, fetch_list=[y])
print(sorted(found.ravel().tolist()))  # [1.0, 2.0, 3.0]

# %% fluid.contrib.layers.tdm_child
x = fluid.data("x", [None, 1], "int32")
tree = np.int32([[0, 0, 0, 0, 0], [0, 0, 0, 2, 3], [0, 1, 1, 0, 0], [1, 1, 1, 0, 0]])  # item, layer, parent, children
attr = fluid.ParamAttr(name="tree", initializer=fluid.initializer.NumpyArrayInitializer(tree))
child, leaf = fluid.contrib.layers.tdm_child(x, node_nums=4, child_nums=2, param_attr=attr)
exe.run(fluid.default_startup_program())
found = exe.run(feed={"x": np.int32([[1]])}, fetch_list=[child, leaf])
print([one.ravel().tolist() for one in found])  # [[2, 3], [0, 1]]

# %% fluid.contrib.layers.tdm_sampler
x = fluid.data("x", [None, 1], "int32")
paths = fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(np.int32([[1, 3], [1, 4], [2, 5], [2, 6]])))
layers = fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(np.int32([[1], [2], [3], [4], [5], [6]])))
samples, labels, mask = fluid.contrib.layers.tdm_sampler(
    x, [1, 2], [2, 4], leaf_node_num=4, tree_travel_attr=paths, tree_layer_attr=layers, output_list=False
)
exe.run(fluid.default_startup_program())
found = exe.run(feed={"x": np.int32([[0]])}, fetch_list=[samples, labels])
# a node of the path and its negatives, layer by layer
print(found[0].shape, found[1].ravel())  # (1, 5) [1 0 1 0 0]

# %% fluid.contrib.layers.tree_conv
nodes = fluid.data("nodes", [None, 3, 4], "float32")
edges = fluid.data("edges", [None, 2, 2], "int32")
y = fluid.contrib.layers.tree_conv(nodes, edges, output_size=3, num_filters=2)
exe.run(fluid.default_startup_program())
feed = {"nodes": np.ones([1, 3, 4], "float32"), "edges": np.int32([[[1, 2], [1, 3]]])}
print(exe.run(feed=feed, fetch_list=[y])[0].shape)  # (1, 3, 3, 2)
