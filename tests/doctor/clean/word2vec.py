import paddle.fluid as fluid
from paddle.fluid import layers

words = [fluid.data(name="w%d" % i, shape=[None, 1], dtype="int64") for i in range(4)]
target = fluid.data(name="next", shape=[None, 1], dtype="int64")
embedded = [
    layers.embedding(
        input=word, size=[100, 8], dtype="float32", is_sparse=True, param_attr="shared_w"
    )
    for word in words
]
hidden = layers.fc(layers.concat(input=embedded, axis=1), size=16, act="sigmoid")
predict = layers.fc(input=hidden, size=100, act="softmax")
cost = layers.mean(layers.cross_entropy(input=predict, label=target))
fluid.optimizer.SGD(learning_rate=0.001).minimize(cost)
