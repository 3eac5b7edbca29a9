import paddle.fluid as fluid
import paddle.fluid.layers as layers
from paddle.fluid.contrib.mixed_precision import decorate

source = fluid.data(name="source", shape=[None, 6], dtype="int64")
lengths = fluid.data(name="lengths", shape=[None], dtype="int64")
emb = fluid.embedding(source, size=[20, 8])
cell = layers.LSTMCell(hidden_size=8)
outputs, state = layers.rnn(cell, emb, sequence_length=lengths)
mask = layers.sequence_mask(lengths, maxlen=6, dtype="float32")
logits = layers.fc(outputs, 20, num_flatten_dims=2)
target = layers.unsqueeze(source, axes=[2])
cost = layers.softmax_with_cross_entropy(logits=logits, label=target)
loss = layers.reduce_mean(layers.squeeze(cost, [2]) * mask)
optimizer = decorate(
    fluid.optimizer.AdamOptimizer(1e-3), init_loss_scaling=1.0, use_dynamic_loss_scaling=False
)
optimizer.minimize(loss)
