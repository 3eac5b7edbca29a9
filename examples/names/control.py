"""Examples of control flow, recurrent layers and decoders: a cell for each name of Fluid."""

import numpy as np

import jfluid as fluid

exe = fluid.Executor(fluid.CPUPlace())


def sequences(values, lengths, dtype="float32"):
    """Rows as a LoDTensor of sequences of these lengths."""
    return fluid.create_lod_tensor(np.array(values, dtype), [lengths], fluid.CPUPlace())


# %% fluid.layers.cond
x = fluid.data("x", [1], "float32")
y = fluid.layers.cond(x > 0, lambda: x * 2, lambda: x - 1)
print(*[exe.run(feed={"x": np.float32([value])}, fetch_list=[y])[0] for value in (3, -3)])  # [6.] [-4.]

# %% fluid.layers.case
x = fluid.data("x", [1], "float32")
one, two, three = (fluid.layers.fill_constant([1], "int64", value) for value in (1, 2, 3))
y = fluid.layers.case([(x < 0, lambda: one), (x < 10, lambda: two)], default=lambda: three)
print(*[exe.run(feed={"x": np.float32([value])}, fetch_list=[y])[0] for value in (-1, 5, 50)])  # [1] [2] [3]

# %% fluid.layers.switch_case
branch = fluid.data("branch", [1], "int32")
one, two = (fluid.layers.fill_constant([1], "int64", value) for value in (1, 2))
y = fluid.layers.switch_case(branch, {0: lambda: one, 7: lambda: two})
print(*[exe.run(feed={"branch": np.int32([value])}, fetch_list=[y])[0] for value in (0, 7)])  # [1] [2]

# %% fluid.layers.while_loop
i = fluid.layers.fill_constant([1], "int64", 0)
total = fluid.layers.fill_constant([1], "int64", 0)
i, total = fluid.layers.while_loop(lambda i, total: i < 5, lambda i, total: [i + 1, total + i], [i, total])
print(*exe.run(fetch_list=[i, total]))  # [5] [10]

# %% fluid.layers.While
i = fluid.layers.fill_constant([1], "int64", 0)
end = fluid.layers.fill_constant([1], "int64", 3)
x = fluid.layers.fill_constant([1], "float32", 1.0)
going = fluid.layers.less_than(i, end)
loop = fluid.layers.While(going)
with loop.block():
    fluid.layers.assign(x * 2, x)
    fluid.layers.increment(i)
    fluid.layers.less_than(i, end, cond=going)
print(exe.run(fetch_list=[x])[0])  # [8.]

# %% fluid.layers.Switch
step = fluid.data("step", [1], "float32")
rate = fluid.layers.create_global_var([1], 0.0, "float32", persistable=True, name="rate")
limit = fluid.layers.fill_constant([1], "float32", 100.0)
with fluid.layers.Switch() as switch:
    with switch.case(step < limit):
        fluid.layers.assign(fluid.layers.fill_constant([1], "float32", 0.1), rate)
    with switch.default():
        fluid.layers.assign(fluid.layers.fill_constant([1], "float32", 0.01), rate)
exe.run(fluid.default_startup_program())
print(*[exe.run(feed={"step": np.float32([value])}, fetch_list=[rate])[0] for value in (5, 500)])  # [0.1] [0.01]

# %% fluid.layers.IfElse
x = fluid.data("x", [None, 1], "float32")
zero = fluid.layers.fill_constant_batch_size_like(x, [-1, 1], "float32", 0.0)
branches = fluid.layers.IfElse(fluid.layers.less_than(x, zero))  # row by row
with branches.true_block():
    branches.output(fluid.layers.scale(branches.input(x), -1.0))
with branches.false_block():
    branches.output(fluid.layers.scale(branches.input(x), 10.0))
(y,) = branches()
print(exe.run(feed={"x": np.float32([[-1], [2]])}, fetch_list=[y])[0].tolist())  # [[1.0], [20.0]]

# %% fluid.layers.create_array fluid.layers.array_write fluid.layers.array_read fluid.layers.array_length
first = fluid.layers.fill_constant([1], "int64", 0)
second = fluid.layers.fill_constant([1], "int64", 1)
array = fluid.layers.create_array("float32")
fluid.layers.array_write(fluid.layers.fill_constant([2], "float32", 5.0), first, array=array)
fluid.layers.array_write(fluid.layers.fill_constant([2], "float32", 6.0), second, array=array)
print(*exe.run(fetch_list=[fluid.layers.array_read(array, second), fluid.layers.array_length(array)]))  # [6. 6.] [2]

# %% fluid.layers.tensor_array_to_tensor
array = fluid.layers.create_array("float32")
for at, value in enumerate([5.0, 6.0]):
    index = fluid.layers.fill_constant([1], "int64", at)
    fluid.layers.array_write(fluid.layers.fill_constant([1, 2], "float32", value), index, array=array)
joined, sizes = fluid.layers.tensor_array_to_tensor(array, axis=1)
print(*exe.run(fetch_list=[joined, sizes]))  # [[5. 5. 6. 6.]] [2 2]

# %% fluid.layers.StaticRNN
x = fluid.data("x", [3, None, 4], "float32")  # steps, batch, width
rnn = fluid.layers.StaticRNN()
with rnn.step():
    word = rnn.step_input(x)
    total = rnn.memory(shape=[-1, 4], batch_ref=word)
    now = total + word
    rnn.update_memory(total, now)
    rnn.step_output(now)
print(exe.run(feed={"x": np.ones([3, 2, 4], "float32")}, fetch_list=[rnn()])[0][:, 0, 0])  # [1. 2. 3.]

# %% fluid.layers.DynamicRNN
x = fluid.data("x", [None, 1], "float32", lod_level=1)
rnn = fluid.layers.DynamicRNN()
with rnn.block():
    word = rnn.step_input(x)
    total = rnn.memory(shape=[1], value=0.0)
    now = total + word
    rnn.update_memory(total, now)
    rnn.output(now)
feed = {"x": sequences([[1], [2], [3]], [2, 1])}
print(np.array(exe.run(feed=feed, fetch_list=[rnn()], return_numpy=False)[0]).ravel())  # [1. 3. 3.]

# %% fluid.layers.dynamic_gru
x = fluid.data("x", [None, 4], "float32", lod_level=1)
y = fluid.layers.dynamic_gru(fluid.layers.fc(x, 3 * 5), size=5)
exe.run(fluid.default_startup_program())
(found,) = exe.run(feed={"x": sequences(np.ones([3, 4]), [2, 1])}, fetch_list=[y], return_numpy=False)
print(np.array(found).shape)  # (3, 5)

# %% fluid.layers.dynamic_lstm
x = fluid.data("x", [None, 4], "float32", lod_level=1)
hidden, cell = fluid.layers.dynamic_lstm(fluid.layers.fc(x, 4 * 5), size=4 * 5)
exe.run(fluid.default_startup_program())
(found,) = exe.run(feed={"x": sequences(np.ones([3, 4]), [2, 1])}, fetch_list=[hidden], return_numpy=False)
print(np.array(found).shape)  # (3, 5)

# %% fluid.layers.dynamic_lstmp
x = fluid.data("x", [None, 4], "float32", lod_level=1)
projected, cell = fluid.layers.dynamic_lstmp(fluid.layers.fc(x, 4 * 5), size=4 * 5, proj_size=3)
exe.run(fluid.default_startup_program())
(found,) = exe.run(feed={"x": sequences(np.ones([3, 4]), [2, 1])}, fetch_list=[projected], return_numpy=False)
print(np.array(found).shape)  # (3, 3)

# %% fluid.layers.gru_unit
x = fluid.data("x", [None, 4], "float32")
before = fluid.data("before", [None, 5], "float32")
hidden, reset, gates = fluid.layers.gru_unit(fluid.layers.fc(x, 3 * 5), before, size=3 * 5)
exe.run(fluid.default_startup_program())
feed = {"x": np.ones([2, 4], "float32"), "before": np.zeros([2, 5], "float32")}
print(exe.run(feed=feed, fetch_list=[hidden])[0].shape)  # (2, 5)

# %% fluid.layers.lstm_unit
x = fluid.data("x", [None, 4], "float32")
before = fluid.data("before", [None, 5], "float32")
hidden, cell = fluid.layers.lstm_unit(x, before, before)
exe.run(fluid.default_startup_program())
feed = {"x": np.ones([2, 4], "float32"), "before": np.zeros([2, 5], "float32")}
print([one.shape for one in exe.run(feed=feed, fetch_list=[hidden, cell])])  # [(2, 5), (2, 5)]

# %% fluid.layers.lstm
x = fluid.data("x", [3, 2, 4], "float32")  # steps, batch, width
zeros = fluid.layers.fill_constant([1, 2, 5], "float32", 0.0)
out, last_hidden, last_cell = fluid.layers.lstm(x, zeros, zeros, max_len=3, hidden_size=5, num_layers=1)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"x": np.ones([3, 2, 4], "float32")}, fetch_list=[out])[0].shape)  # (3, 2, 5)

# %% fluid.layers.rnn fluid.layers.GRUCell
x = fluid.data("x", [None, 3, 4], "float32")
out, state = fluid.layers.rnn(fluid.layers.GRUCell(hidden_size=5), x)
exe.run(fluid.default_startup_program())
print([one.shape for one in exe.run(feed={"x": np.ones([2, 3, 4], "float32")}, fetch_list=[out, state])])
# [(2, 3, 5), (2, 5)]

# %% fluid.layers.LSTMCell
x = fluid.data("x", [None, 3, 4], "float32")
out, (hidden, cell) = fluid.layers.rnn(fluid.layers.LSTMCell(hidden_size=5), x)
exe.run(fluid.default_startup_program())
print(
    [one.shape for one in exe.run(feed={"x": np.ones([2, 3, 4], "float32")}, fetch_list=[out, cell])]
)  # [(2, 3, 5), (2, 5)]


# %% fluid.layers.RNNCell
class Total(fluid.layers.RNNCell):
    """A cell whose state is the sum of the inputs so far."""

    @property
    def state_shape(self):
        return [4]

    def call(self, inputs, states):
        return states + inputs, states + inputs


x = fluid.data("x", [None, 3, 4], "float32")
out, last = fluid.layers.rnn(Total(), x)
print(exe.run(feed={"x": np.ones([1, 3, 4], "float32")}, fetch_list=[out])[0][0, :, 0])  # [1. 2. 3.]

# %% fluid.layers.BasicDecoder fluid.layers.TrainingHelper fluid.layers.dynamic_decode
target = fluid.data("target", [None, 3, 4], "float32")
lengths = fluid.data("lengths", [None], "int64")
cell = fluid.layers.GRUCell(hidden_size=4)
helper = fluid.layers.TrainingHelper(target, lengths)  # feeds the target's steps
decoder = fluid.layers.BasicDecoder(cell, helper)
start = cell.get_initial_states(target)
outputs, state = fluid.layers.dynamic_decode(decoder, inits=start)
exe.run(fluid.default_startup_program())
feed = {"target": np.ones([2, 3, 4], "float32"), "lengths": np.int64([3, 2])}
print(exe.run(feed=feed, fetch_list=[outputs.cell_outputs])[0].shape)  # (2, 3, 4)


# %% fluid.layers.GreedyEmbeddingHelper fluid.layers.SampleEmbeddingHelper
def embed(ids):
    """Rows of words."""
    return fluid.embedding(ids, size=[10, 4], param_attr=fluid.ParamAttr(name="words"))


start = fluid.layers.fill_constant([2], "int64", 0)
cell = fluid.layers.GRUCell(hidden_size=4)
found = []
for kind in (fluid.layers.GreedyEmbeddingHelper, fluid.layers.SampleEmbeddingHelper):
    decoder = fluid.layers.BasicDecoder(
        cell, kind(embed, start, end_token=1), output_fn=lambda x: fluid.layers.fc(x, 10, num_flatten_dims=1)
    )
    states = fluid.layers.fill_constant([2, 4], "float32", 0.0)
    outputs, state = fluid.layers.dynamic_decode(decoder, inits=states, max_step_num=2)
    found.append(outputs.sample_ids)
exe.run(fluid.default_startup_program())
print([ids.shape[0] for ids in exe.run(fetch_list=found)])  # [2, 2]

# %% fluid.layers.BeamSearchDecoder
cell = fluid.layers.GRUCell(hidden_size=4)
decoder = fluid.layers.BeamSearchDecoder(
    cell,
    start_token=0,
    end_token=1,
    beam_size=3,
    embedding_fn=lambda ids: fluid.embedding(ids, size=[10, 4]),
    output_fn=lambda x: fluid.layers.fc(x, 10, num_flatten_dims=len(x.shape) - 1),
)
states = fluid.layers.fill_constant([2, 4], "float32", 0.0)
ids, state = fluid.layers.dynamic_decode(decoder, inits=states, max_step_num=2)
exe.run(fluid.default_startup_program())
found = exe.run(fetch_list=[ids])[0]
# a batch of two, three beams
print(found.shape[0], found.shape[2])  # 2 3


# %% fluid.layers.Decoder
class Countdown(fluid.layers.Decoder):
    """Decodes the numbers below its start, down to 1."""

    def initialize(self, inits):
        return inits, inits, fluid.layers.fill_constant([2], "bool", False)

    def step(self, time, inputs, states, **kwargs):
        left = states - 1
        return left, left, left, fluid.layers.less_equal(left, fluid.layers.ones_like(left))


start = fluid.layers.assign(np.int64([3, 3]))
outputs, state = fluid.layers.dynamic_decode(Countdown(), inits=start, max_step_num=5)
print(exe.run(fetch_list=[outputs])[0].tolist())  # [[2, 1], [2, 1]]


# %% fluid.layers.DecodeHelper
class Constant(fluid.layers.DecodeHelper):
    """Feeds ones to the cell for three steps."""

    def initialize(self):
        return fluid.layers.ones([2, 4], "float32"), fluid.layers.fill_constant([2], "bool", False)

    def sample(self, time, outputs, states):
        return fluid.layers.argmax(outputs, axis=-1)

    def next_inputs(self, time, outputs, states, sample_ids):
        done = fluid.layers.fill_constant([2], "int64", 1) * (time + 1) >= fluid.layers.fill_constant([2], "int64", 3)
        return done, fluid.layers.ones([2, 4], "float32"), states


cell = fluid.layers.GRUCell(hidden_size=4)
start = fluid.layers.zeros([2, 4], "float32")
outputs, state = fluid.layers.dynamic_decode(fluid.layers.BasicDecoder(cell, Constant()), inits=start)
exe.run(fluid.default_startup_program())
print(exe.run(fetch_list=[outputs.cell_outputs])[0].shape)  # (2, 3, 4)

# %% fluid.layers.beam_search
before = fluid.data("before", [None, 1], "int64", lod_level=2)
scores_before = fluid.data("scores_before", [None, 1], "float32", lod_level=2)
odds = fluid.data("odds", [None, 4], "float32")
values, words = fluid.layers.topk(odds, k=2)
scores = fluid.layers.elementwise_add(fluid.layers.log(values), fluid.layers.reshape(scores_before, [-1]), axis=0)
ids, best = fluid.layers.beam_search(before, scores_before, words, scores, beam_size=2, end_id=0)
feed = {"before": fluid.create_lod_tensor(np.int64([[1]]), [[1], [1]], fluid.CPUPlace())}
feed["scores_before"] = fluid.create_lod_tensor(np.float32([[0]]), [[1], [1]], fluid.CPUPlace())
feed["odds"] = np.float32([[0.1, 0.2, 0.3, 0.4]])
print(np.array(exe.run(feed=feed, fetch_list=[ids], return_numpy=False)[0]).ravel())  # [3 2]

# %% fluid.layers.beam_search_decode
index = fluid.layers.fill_constant([1], "int64", 0)
words = fluid.data("words", [None, 1], "int64", lod_level=2)
scores = fluid.data("scores", [None, 1], "float32", lod_level=2)
ids = fluid.layers.array_write(words, index)
values = fluid.layers.array_write(scores, index)
sentences, totals = fluid.layers.beam_search_decode(ids, values, beam_size=2, end_id=0)
feed = {"words": fluid.create_lod_tensor(np.int64([[3], [2]]), [[1], [2]], fluid.CPUPlace())}
feed["scores"] = fluid.create_lod_tensor(np.float32([[-1], [-2]]), [[1], [2]], fluid.CPUPlace())
found = exe.run(feed=feed, fetch_list=[sentences], return_numpy=False)[0]
print(np.array(found).ravel(), found.recursive_sequence_lengths())  # [3 2] [[2], [1, 1]]

# %% fluid.contrib.basic_gru
x = fluid.data("x", [None, 3, 4], "float32")
out, last = fluid.contrib.layers.basic_gru(x, None, hidden_size=5)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"x": np.ones([2, 3, 4], "float32")}, fetch_list=[out])[0].shape)  # (2, 3, 5)

# %% fluid.contrib.basic_lstm
x = fluid.data("x", [None, 3, 4], "float32")
out, last_hidden, last_cell = fluid.contrib.layers.basic_lstm(x, None, None, hidden_size=5, bidirectional=True)
exe.run(fluid.default_startup_program())
print(exe.run(feed={"x": np.ones([2, 3, 4], "float32")}, fetch_list=[out])[0].shape)  # (2, 3, 10)

# %% fluid.contrib.BasicGRUUnit
x = fluid.data("x", [None, 4], "float32")
before = fluid.data("before", [None, 5], "float32")
hidden = fluid.contrib.layers.BasicGRUUnit("unit", hidden_size=5)(x, before)
exe.run(fluid.default_startup_program())
feed = {"x": np.ones([2, 4], "float32"), "before": np.zeros([2, 5], "float32")}
print(exe.run(feed=feed, fetch_list=[hidden])[0].shape)  # (2, 5)

# %% fluid.contrib.BasicLSTMUnit
x = fluid.data("x", [None, 4], "float32")
before = fluid.data("before", [None, 5], "float32")
hidden, cell = fluid.contrib.layers.BasicLSTMUnit("unit", hidden_size=5)(x, before, before)
exe.run(fluid.default_startup_program())
feed = {"x": np.ones([2, 4], "float32"), "before": np.zeros([2, 5], "float32")}
print(exe.run(feed=feed, fetch_list=[hidden])[0].shape)  # (2, 5)

# %% fluid.contrib.InitState fluid.contrib.StateCell fluid.contrib.TrainingDecoder
first = fluid.data("first", [None, 5], "float32")
x = fluid.data("x", [None, 4], "float32", lod_level=1)
cell = fluid.contrib.StateCell(inputs={"x": None}, states={"h": fluid.contrib.InitState(init=first)}, out_state="h")


@cell.state_updater
def update(cell):
    """One step of the recurrence."""
    cell.set_state("h", fluid.layers.fc([cell.get_input("x"), cell.get_state("h")], 5, act="tanh"))


decoder = fluid.contrib.TrainingDecoder(cell)
with decoder.block():
    decoder.state_cell.compute_state(inputs={"x": decoder.step_input(x)})
    decoder.state_cell.update_states()
    decoder.output(decoder.state_cell.out_state())
out = decoder()
exe.run(fluid.default_startup_program())
feed = {"first": np.zeros([2, 5], "float32"), "x": sequences(np.ones([3, 4]), [2, 1])}
print(np.array(exe.run(feed=feed, fetch_list=[out], return_numpy=False)[0]).shape)  # (3, 5)

# %% fluid.contrib.BeamSearchDecoder
first = fluid.layers.sequence_pool(fluid.data("source", [None, 5], "float32", lod_level=1), "last")
start_ids = fluid.layers.data("start_ids", [1], dtype="int64", lod_level=2)
start_scores = fluid.layers.data("start_scores", [1], dtype="float32", lod_level=2)
cell = fluid.contrib.StateCell(
    inputs={"x": None}, states={"h": fluid.contrib.InitState(init=first, need_reorder=True)}, out_state="h"
)


@cell.state_updater
def recur(cell):
    """One step of the recurrence."""
    cell.set_state("h", fluid.layers.fc([cell.get_state("h"), cell.get_input("x")], 5, act="tanh"))


decoder = fluid.contrib.BeamSearchDecoder(
    cell, start_ids, start_scores, target_dict_dim=10, word_dim=4, topk_size=5, max_len=3, beam_size=2, end_id=1
)
decoder.decode()
ids, scores = decoder()
exe.run(fluid.default_startup_program())
feed = {"source": sequences(np.ones([3, 5]), [2, 1])}
feed["start_ids"] = fluid.create_lod_tensor(np.int64([[0], [0]]), [[1, 1], [1, 1]], fluid.CPUPlace())
feed["start_scores"] = fluid.create_lod_tensor(np.float32([[0], [0]]), [[1, 1], [1, 1]], fluid.CPUPlace())
found = exe.run(feed=feed, fetch_list=[ids], return_numpy=False)[0]
# a beam of sentences for each source
print(len(found.recursive_sequence_lengths()[0]))  # 2
