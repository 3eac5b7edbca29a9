import paddle.fluid as fluid
import paddle.fluid.layers as layers


def user():
    uid = layers.data(name="user_id", shape=[1], dtype="int64")
    emb = layers.embedding(input=uid, dtype="float32", size=[20, 8], param_attr="user_table")
    return layers.fc(input=emb, size=8)


def movie():
    mid = layers.data(name="movie_id", shape=[1], dtype="int64")
    title = layers.data(name="title", shape=[1], dtype="int64", lod_level=1)
    emb = layers.embedding(input=mid, size=[20, 8])
    titles = layers.embedding(input=title, size=[30, 8])
    pooled = fluid.nets.sequence_conv_pool(
        input=titles, num_filters=8, filter_size=3, act="tanh", pool_type="sum"
    )
    return layers.fc(input=[layers.fc(input=emb, size=8), pooled], size=8, act="tanh")


similarity = layers.scale(x=layers.cos_sim(X=user(), Y=movie()), scale=5.0)
score = layers.data(name="score", shape=[1], dtype="float32")
cost = layers.mean(layers.square_error_cost(input=similarity, label=score))
fluid.optimizer.SGDOptimizer(learning_rate=0.2).minimize(cost)
