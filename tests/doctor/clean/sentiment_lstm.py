import numpy as np
import paddle.fluid as fluid

data = fluid.data(name="words", shape=[None, 1], dtype="int64", lod_level=1)
label = fluid.data(name="label", shape=[None, 1], dtype="int64")
emb = fluid.layers.embedding(input=data, size=[50, 8], is_sparse=True)
fc1 = fluid.layers.fc(input=emb, size=32)
lstm1, cell1 = fluid.layers.dynamic_lstm(input=fc1, size=32, is_reverse=False)
inputs = [fc1, lstm1]
for i in range(2, 4):
    fc = fluid.layers.fc(input=inputs, size=32)
    lstm, cell = fluid.layers.dynamic_lstm(input=fc, size=32, is_reverse=(i % 2) == 0)
    inputs = [fc, lstm]
fc_last = fluid.layers.sequence_pool(input=inputs[0], pool_type="max")
lstm_last = fluid.layers.sequence_pool(input=inputs[1], pool_type="max")
prediction = fluid.layers.fc(input=[fc_last, lstm_last], size=2, act="softmax")
cost = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
fluid.optimizer.Adagrad(learning_rate=0.002).minimize(cost)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
ids = fluid.create_lod_tensor(np.array([[1], [2], [3]], "int64"), [[1, 2]], fluid.CPUPlace())
exe.run(feed={"words": ids, "label": np.zeros((2, 1), "int64")}, fetch_list=[cost.name])
