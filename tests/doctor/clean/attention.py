import numpy as np
import paddle.fluid as fluid
import paddle.fluid.layers as layers


def attention(queries, keys, heads, width):
    q = layers.fc(queries, width, bias_attr=False, num_flatten_dims=2)
    k = layers.fc(keys, width, bias_attr=False, num_flatten_dims=2)
    v = layers.fc(keys, width, bias_attr=False, num_flatten_dims=2)

    def split(x):
        x = layers.reshape(x, [0, 0, heads, width // heads])
        return layers.transpose(x, perm=[0, 2, 1, 3])

    scores = layers.matmul(split(q), split(k), transpose_y=True, alpha=(width // heads) ** -0.5)
    weights = layers.dropout(
        layers.softmax(scores), dropout_prob=0.1, dropout_implementation="upscale_in_train"
    )
    mixed = layers.transpose(layers.matmul(weights, split(v)), perm=[0, 2, 1, 3])
    return layers.fc(layers.reshape(mixed, [0, 0, width]), width, num_flatten_dims=2)


x = fluid.data(name="x", shape=[None, 5, 16], dtype="float32")
out = layers.layer_norm(x + attention(x, x, 2, 16), begin_norm_axis=2)
table = np.sin(np.arange(80).reshape(5, 16)).astype("float32")
position = layers.create_parameter(
    shape=[5, 16],
    dtype="float32",
    attr=fluid.ParamAttr(
        name="position", initializer=fluid.initializer.NumpyArrayInitializer(table), trainable=False
    ),
)
loss = layers.reduce_mean(layers.gelu(layers.elementwise_add(out, position, axis=1)))
rate = layers.learning_rate_scheduler.noam_decay(512, 4000)
fluid.optimizer.Adam(rate, beta1=0.9, beta2=0.98, epsilon=1e-9).minimize(loss)
