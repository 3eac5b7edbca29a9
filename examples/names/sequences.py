"""Examples of layers of sequences: a cell for each name of Fluid."""

import numpy as np

import jfluid as fluid

exe = fluid.Executor(fluid.CPUPlace())


def sequences(values, lengths, dtype="float32"):
    """Rows as a LoDTensor of sequences of these lengths."""
    return fluid.create_lod_tensor(np.array(values, dtype), [lengths], fluid.CPUPlace())


def shown(tensor):
    """The rows of a fetched LoDTensor, and the lengths of its sequences."""
    return np.array(tensor).tolist(), tensor.recursive_sequence_lengths()


# %% fluid.layers.sequence_concat
x = fluid.data("x", [None, 1], "float32", lod_level=1)
y = fluid.data("y", [None, 1], "float32", lod_level=1)
both = fluid.layers.sequence_concat([x, y])
feed = {"x": sequences([[1], [2], [3]], [2, 1]), "y": sequences([[7], [8]], [1, 1])}
print(
    shown(exe.run(feed=feed, fetch_list=[both], return_numpy=False)[0])
)  # ([[1.0], [2.0], [7.0], [3.0], [8.0]], [[3, 2]])

# %% fluid.layers.sequence_conv
x = fluid.data("x", [None, 4], "float32", lod_level=1)
y = fluid.layers.sequence_conv(x, num_filters=6, filter_size=3)
exe.run(fluid.default_startup_program())
(found,) = exe.run(feed={"x": sequences(np.ones([5, 4]), [3, 2])}, fetch_list=[y], return_numpy=False)
print(np.array(found).shape, found.recursive_sequence_lengths())  # (5, 6) [[3, 2]]

# %% fluid.layers.sequence_enumerate
ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
pairs = fluid.layers.sequence_enumerate(ids, win_size=2, pad_value=0)
feed = {"ids": sequences([[1], [2], [3]], [3], "int64")}
print(shown(exe.run(feed=feed, fetch_list=[pairs], return_numpy=False)[0]))  # ([[1, 2], [2, 3], [3, 0]], [[3]])

# %% fluid.layers.sequence_expand
x = fluid.data("x", [None, 1], "float32")
y = fluid.data("y", [None, 1], "float32", lod_level=1)
repeated = fluid.layers.sequence_expand(x, y)  # row i once for each row of sequence i
feed = {"x": np.float32([[1], [2]]), "y": sequences([[0], [0], [0]], [2, 1])}
print(np.array(exe.run(feed=feed, fetch_list=[repeated], return_numpy=False)[0]).tolist())  # [[1.0], [1.0], [2.0]]

# %% fluid.layers.sequence_expand_as
x = fluid.data("x", [None, 1], "float32")
y = fluid.data("y", [None, 1], "float32", lod_level=1)
repeated = fluid.layers.sequence_expand_as(x, y)
feed = {"x": np.float32([[1], [2]]), "y": sequences([[0], [0], [0]], [2, 1])}
print(shown(exe.run(feed=feed, fetch_list=[repeated], return_numpy=False)[0]))  # ([[1.0], [1.0], [2.0]], [[2, 1]])

# %% fluid.layers.sequence_first_step fluid.layers.sequence_last_step
x = fluid.data("x", [None, 1], "float32", lod_level=1)
first, last = fluid.layers.sequence_first_step(x), fluid.layers.sequence_last_step(x)
found = exe.run(feed={"x": sequences([[1], [2], [3]], [2, 1])}, fetch_list=[first, last])
print([one.tolist() for one in found])  # [[[1.0], [3.0]], [[2.0], [3.0]]]

# %% fluid.layers.sequence_mask
lengths = fluid.data("lengths", [None], "int64")
mask = fluid.layers.sequence_mask(lengths, maxlen=3)
print(exe.run(feed={"lengths": np.int64([1, 3])}, fetch_list=[mask])[0].tolist())  # [[1, 0, 0], [1, 1, 1]]

# %% fluid.layers.sequence_pad
x = fluid.data("x", [None, 1], "float32", lod_level=1)
zero = fluid.layers.assign(np.float32([0]))
padded, lengths = fluid.layers.sequence_pad(x, zero)
found = exe.run(feed={"x": sequences([[1], [2], [3]], [2, 1])}, fetch_list=[padded, lengths])
print(found[0].shape, found[0][:, :, 0].tolist(), found[1].tolist())  # (2, 2, 1) [[1.0, 2.0], [3.0, 0.0]] [2, 1]

# %% fluid.layers.sequence_unpad
x = fluid.data("x", [None, 3], "float32")
lengths = fluid.data("lengths", [None], "int64")
y = fluid.layers.sequence_unpad(x, lengths)
feed = {"x": np.float32([[1, 2, 0], [3, 0, 0]]), "lengths": np.int64([2, 1])}
found = exe.run(feed=feed, fetch_list=[y], return_numpy=False)[0]
print(np.array(found).ravel().tolist(), found.recursive_sequence_lengths())  # [1.0, 2.0, 3.0] [[2, 1]]

# %% fluid.layers.sequence_pool
x = fluid.data("x", [None, 1], "float32", lod_level=1)
total = fluid.layers.sequence_pool(x, "sum")
largest = fluid.layers.sequence_pool(x, "max")
found = exe.run(feed={"x": sequences([[1], [2], [3]], [2, 1])}, fetch_list=[total, largest])
print([one.tolist() for one in found])  # [[[3.0], [3.0]], [[2.0], [3.0]]]

# %% fluid.layers.sequence_reshape
x = fluid.data("x", [None, 2], "float32", lod_level=1)
y = fluid.layers.sequence_reshape(x, new_dim=4)
(found,) = exe.run(feed={"x": sequences(np.ones([6, 2]), [4, 2])}, fetch_list=[y], return_numpy=False)
print(np.array(found).shape, found.recursive_sequence_lengths())  # (3, 4) [[2, 1]]

# %% fluid.layers.sequence_reverse
x = fluid.data("x", [None, 1], "float32", lod_level=1)
y = fluid.layers.sequence_reverse(x)
print(shown(exe.run(feed={"x": sequences([[1], [2], [3]], [2, 1])}, fetch_list=[y], return_numpy=False)[0]))
# ([[2.0], [1.0], [3.0]], [[2, 1]])

# %% fluid.layers.sequence_scatter
x = fluid.data("x", [None, 3], "float32")
index = fluid.data("index", [None, 1], "int64", lod_level=1)
more = fluid.data("more", [None, 1], "float32", lod_level=1)
y = fluid.layers.sequence_scatter(x, index, more)  # sequence i is added to row i
feed = {"x": np.zeros([2, 3], "float32"), "index": sequences([[0], [2], [1]], [2, 1], "int64")}
feed["more"] = sequences([[1], [2], [3]], [2, 1])
print(exe.run(feed=feed, fetch_list=[y])[0].tolist())  # [[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]

# %% fluid.layers.sequence_slice
x = fluid.data("x", [None, 1], "float32", lod_level=1)
offset = fluid.layers.assign(np.int64([[0], [1]]))
length = fluid.layers.assign(np.int64([[1], [2]]))
y = fluid.layers.sequence_slice(x, offset, length)
feed = {"x": sequences([[1], [2], [3], [4], [5]], [2, 3])}
print(shown(exe.run(feed=feed, fetch_list=[y], return_numpy=False)[0]))  # ([[1.0], [4.0], [5.0]], [[1, 2]])

# %% fluid.layers.sequence_softmax
x = fluid.data("x", [None, 1], "float32", lod_level=1)
y = fluid.layers.sequence_softmax(x)
(found,) = exe.run(feed={"x": sequences([[1], [1], [5]], [2, 1])}, fetch_list=[y], return_numpy=False)
print(np.array(found).ravel())  # [0.5 0.5 1. ]

# %% fluid.layers.lod_reset
x = fluid.data("x", [None, 1], "float32")
y = fluid.layers.lod_reset(x, target_lod=[0, 2, 3])  # offsets of two sequences
(found,) = exe.run(feed={"x": np.float32([[1], [2], [3]])}, fetch_list=[y], return_numpy=False)
print(found.recursive_sequence_lengths())  # [[2, 1]]

# %% fluid.layers.lod_append
x = fluid.data("x", [None, 1], "float32", lod_level=1)
y = fluid.layers.lod_append(x, [0, 1, 2, 3])  # the offsets of a level below
(found,) = exe.run(feed={"x": sequences([[1], [2], [3]], [2, 1])}, fetch_list=[y], return_numpy=False)
print(found.recursive_sequence_lengths())  # [[2, 1], [1, 1, 1]]

# %% fluid.layers.reorder_lod_tensor_by_rank
x = fluid.data("x", [None, 1], "float32", lod_level=1)
table = fluid.layers.control_flow.lod_rank_table(x)
y = fluid.layers.reorder_lod_tensor_by_rank(x, table)  # the longest sequence first
feed = {"x": sequences([[1], [2], [3]], [1, 2])}
print(np.array(exe.run(feed=feed, fetch_list=[y], return_numpy=False)[0]).ravel())  # [2. 3. 1.]

# %% fluid.layers.add_position_encoding
x = fluid.data("x", [None, 3, 4], "float32")
y = fluid.layers.add_position_encoding(x, alpha=1.0, beta=1.0)
print(exe.run(feed={"x": np.zeros([1, 3, 4], "float32")}, fetch_list=[y])[0].round(2)[0, 1])  # [0.84 0.   0.54 1.  ]

# %% fluid.layers.embedding
ids = fluid.data("ids", [None, 1], "int64", lod_level=1)  # words of sentences
rows = fluid.layers.embedding(ids, size=[100, 8], is_sparse=True)
exe.run(fluid.default_startup_program())
(found,) = exe.run(feed={"ids": sequences([[7], [8], [9]], [2, 1], "int64")}, fetch_list=[rows], return_numpy=False)
print(np.array(found).shape, found.recursive_sequence_lengths())  # (3, 8) [[2, 1]]

# %% fluid.embedding
ids = fluid.data("ids", [None, 5], "int64")
rows = fluid.embedding(ids, size=[100, 8], padding_idx=0)
exe.run(fluid.default_startup_program())
(found,) = exe.run(feed={"ids": np.zeros([2, 5], "int64")}, fetch_list=[rows])
print(found.shape, float(found.sum()))  # (2, 5, 8) 0.0

# %% fluid.layers.edit_distance
said = fluid.data("said", [None, 1], "int64", lod_level=1)
meant = fluid.data("meant", [None, 1], "int64", lod_level=1)
distance, number = fluid.layers.edit_distance(said, meant, normalized=False)
feed = {"said": sequences([[1], [2], [3]], [3], "int64"), "meant": sequences([[1], [3]], [2], "int64")}
print(exe.run(feed=feed, fetch_list=[distance])[0].tolist())  # [[1.0]]

# %% fluid.layers.ctc_greedy_decoder
odds = fluid.data("odds", [None, 3], "float32", lod_level=1)  # class 2 is the blank
words = fluid.layers.ctc_greedy_decoder(odds, blank=2)
steps = np.float32([[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0, 0.1, 0.9], [0.1, 0.8, 0.1]])
feed = {"odds": sequences(steps, [4])}
print(np.array(exe.run(feed=feed, fetch_list=[words], return_numpy=False)[0]).ravel())  # [0 1]

# %% fluid.layers.warpctc
logits = fluid.data("logits", [None, 3], "float32", lod_level=1)
label = fluid.data("label", [None, 1], "int32", lod_level=1)
loss = fluid.layers.warpctc(logits, label, blank=2)
feed = {"logits": sequences(np.zeros([4, 3]), [4]), "label": sequences([[0], [1]], [2], "int32")}
print(exe.run(feed=feed, fetch_list=[loss])[0].round(3))  # [[1.686]]

# %% fluid.layers.linear_chain_crf fluid.layers.crf_decoding
x = fluid.data("x", [None, 3], "float32", lod_level=1)  # scores of three tags
tags = fluid.data("tags", [None, 1], "int64", lod_level=1)
weights = fluid.ParamAttr(name="transitions", initializer=fluid.initializer.Constant(0.0))
loss = fluid.layers.linear_chain_crf(x, tags, param_attr=weights)
path = fluid.layers.crf_decoding(x, param_attr=weights)
exe.run(fluid.default_startup_program())
feed = {"x": sequences([[9, 0, 0], [0, 9, 0]], [2]), "tags": sequences([[0], [1]], [2], "int64")}
found = exe.run(feed=feed, fetch_list=[loss, path], return_numpy=False)
print(np.array(found[0]).shape, np.array(found[1]).ravel())  # (1, 1) [0 1]

# %% fluid.layers.chunk_eval
found_tags = fluid.data("found", [None, 1], "int64", lod_level=1)
tags = fluid.data("tags", [None, 1], "int64", lod_level=1)
precision, recall, f1, *counts = fluid.layers.chunk_eval(found_tags, tags, chunk_scheme="IOB", num_chunk_types=1)
feed = {"found": sequences([[0], [1], [2], [0]], [4], "int64"), "tags": sequences([[0], [1], [2], [2]], [4], "int64")}
print(*exe.run(feed=feed, fetch_list=[precision, recall]))  # [0.5] [1.]

# %% fluid.layers.filter_by_instag
x = fluid.data("x", [None, 2], "float32")
tags = fluid.data("tags", [None, 1], "int64", lod_level=1)
wanted = fluid.layers.assign(np.int64([7]))
rows, weight = fluid.layers.filter_by_instag(x, tags, wanted, is_lod=False)
feed = {"x": np.float32([[1, 1], [2, 2]]), "tags": sequences([[5], [7]], [1, 1], "int64")}
print(np.array(exe.run(feed=feed, fetch_list=[rows], return_numpy=False)[0]).tolist())  # [[2.0, 2.0]]

# %% fluid.layers.continuous_value_model
rows = fluid.data("rows", [None, 4], "float32")  # shows, clicks, two features
cvm = fluid.data("cvm", [None, 2], "float32")
y = fluid.layers.continuous_value_model(rows, cvm, use_cvm=True)
feed = {"rows": np.float32([[3, 1, 0.5, 0.5]]), "cvm": np.float32([[1, 0]])}
print(exe.run(feed=feed, fetch_list=[y])[0].round(3).tolist())  # [[1.3860000371932983, -0.6930000185966492, 0.5, 0.5]]

# %% fluid.nets.sequence_conv_pool
x = fluid.data("x", [None, 4], "float32", lod_level=1)
y = fluid.nets.sequence_conv_pool(x, num_filters=6, filter_size=3)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"x": sequences(np.ones([5, 4]), [3, 2])}, fetch_list=[y])[0].shape)  # (2, 6)

# %% fluid.contrib.fused_embedding_seq_pool
ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
y = fluid.contrib.fused_embedding_seq_pool(ids, size=[100, 8], combiner="sum")
exe.run(fluid.default_startup_program())
print(exe.run(feed={"ids": sequences([[7], [8], [9]], [2, 1], "int64")}, fetch_list=[y])[0].shape)  # (2, 8)

# %% fluid.contrib.layers.sequence_topk_avg_pooling
x = fluid.data("x", [None, 1], "float32", lod_level=1)  # a channel of 2 by 3 scores
row = fluid.data("row", [None, 1], "float32", lod_level=1)
column = fluid.data("column", [None, 1], "float32", lod_level=1)
y = fluid.contrib.layers.sequence_topk_avg_pooling(x, row, column, topks=[1, 2], channel_num=1)
feed = {"x": sequences([[1], [2], [3], [6], [5], [4]], [6]), "row": sequences([[0], [0]], [2])}
feed["column"] = sequences([[0], [0], [0]], [3])
print(np.array(exe.run(feed=feed, fetch_list=[y], return_numpy=False)[0]).tolist())  # [[3.0, 2.5], [6.0, 5.5]]

# %% fluid.contrib.layers.match_matrix_tensor
x = fluid.data("x", [None, 4], "float32", lod_level=1)
y = fluid.data("y", [None, 4], "float32", lod_level=1)
scores, _ = fluid.contrib.layers.match_matrix_tensor(x, y, channel_num=2)
exe.run(fluid.default_startup_program())
feed = {"x": sequences(np.ones([2, 4]), [2]), "y": sequences(np.ones([3, 4]), [3])}
print(np.array(exe.run(feed=feed, fetch_list=[scores], return_numpy=False)[0]).shape)  # (12, 1)

# %% fluid.contrib.layers.var_conv_2d
x = fluid.data("x", [None, 1], "float32", lod_level=1)  # images of any size, row by row
row = fluid.data("row", [None, 1], "float32", lod_level=1)
column = fluid.data("column", [None, 1], "float32", lod_level=1)
y = fluid.contrib.layers.var_conv_2d(x, row, column, input_channel=1, output_channel=2, filter_size=3)
exe.run(fluid.default_startup_program())
feed = {"x": sequences(np.ones([6, 1]), [6]), "row": sequences([[0], [0]], [2]), "column": sequences([[0]] * 3, [3])}
print(np.array(exe.run(feed=feed, fetch_list=[y], return_numpy=False)[0]).shape)  # (12, 1)

# %% fluid.contrib.layers.search_pyramid_hash
ids = fluid.data("ids", [None, 1], "int32", lod_level=1)
y = fluid.contrib.layers.search_pyramid_hash(
    ids,
    num_emb=8,
    space_len=100,
    pyramid_layer=2,
    rand_len=4,
    drop_out_percent=0.0,
    is_training=False,
    use_filter=False,
    white_list_len=100,
    black_list_len=100,
    seed=1,
    lr=0.1,
)
exe.run(fluid.default_startup_program())
feed = {"ids": sequences([[1], [2], [3]], [3], "int32")}
print(np.array(exe.run(feed=feed, fetch_list=[y], return_numpy=False)[0]).shape)  # (2, 8)
