"""Fluid's models on words and of recommendation, with ragged rows and sampled losses.

As in `programs.py`: each builder returns (loss, feed).
"""

from tests.parity.data import labels, sequences, with_an_empty


def _ngram(fluid, **options):
    words = [fluid.layers.data(name="word_%d" % i, shape=[1], dtype="int64") for i in range(5)]
    embeds = [fluid.layers.embedding(input=w, size=[20, 6], param_attr="shared_w", **options) for w in words[:4]]
    hidden = fluid.layers.fc(input=fluid.layers.concat(input=embeds, axis=1), size=12, act="sigmoid")
    return hidden, words[4], lambda r: {"word_%d" % i: labels(r, 8, 20) for i in range(5)}


def word2vec_nce(fluid):
    hidden, target, feed = _ngram(fluid, is_sparse=True)
    cost = fluid.layers.nce(input=hidden, label=target, num_total_classes=20, num_neg_samples=4)
    for op in fluid.default_main_program().global_block().ops:
        if op.type == "nce":  # the same noise in every engine
            op._set_attr("custom_neg_classes", [3, 7, 11, 19])
    loss = fluid.layers.mean(cost)
    fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
    return loss, feed


def word2vec_hsigmoid(fluid):
    hidden, target, feed = _ngram(fluid)
    cost = fluid.layers.hsigmoid(input=hidden, label=target, num_classes=20)
    loss = fluid.layers.mean(cost)
    fluid.optimizer.SGD(learning_rate=0.1, regularization=fluid.regularizer.L2Decay(1e-3)).minimize(loss)
    return loss, feed


def recommender(fluid):
    layers = fluid.layers

    def one(name, size, width=6):
        return layers.fc(
            input=layers.embedding(
                input=layers.data(name=name, shape=[1], dtype="int64"),
                size=[size, width],
                is_sparse=True,
            ),
            size=width,
        )

    user = layers.concat(input=[one("user", 15), one("gender", 2), one("job", 5)], axis=1)
    user = layers.fc(input=user, size=10, act="tanh")
    kinds = layers.data(name="kinds", shape=[1], dtype="int64", lod_level=1)
    title = layers.data(name="title", shape=[1], dtype="int64", lod_level=1)
    kind = layers.sequence_pool(input=layers.embedding(input=kinds, size=[8, 6], is_sparse=True), pool_type="sum")
    words = fluid.nets.sequence_conv_pool(
        input=layers.embedding(input=title, size=[30, 6], is_sparse=True),
        num_filters=6,
        filter_size=3,
        act="tanh",
        pool_type="sum",
    )
    movie = layers.fc(input=layers.concat(input=[one("movie", 12), kind, words], axis=1), size=10, act="tanh")
    score = layers.data(name="score", shape=[1], dtype="float32")
    rating = layers.scale(x=layers.cos_sim(X=user, Y=movie), scale=5.0)
    loss = layers.mean(layers.square_error_cost(input=rating, label=score))
    fluid.optimizer.SGD(learning_rate=0.05).minimize(loss)

    def feed(r):
        found = {n: labels(r, 6, size) for n, size in (("user", 15), ("gender", 2), ("job", 5), ("movie", 12))}
        found.update(
            kinds=sequences(fluid, r, with_an_empty(r, 3, 6), 8),
            title=sequences(fluid, r, with_an_empty(r, 6, 6)),
            score=r.randint(1, 6, (6, 1)).astype("float32"),
        )
        return found

    return loss, feed


def gru4rec(fluid):
    layers = fluid.layers
    items = layers.data(name="items", shape=[1], dtype="int64", lod_level=1)
    following = layers.data(name="following", shape=[1], dtype="int64", lod_level=1)
    emb = layers.embedding(input=items, size=[30, 8], param_attr=fluid.ParamAttr(learning_rate=2.0))
    gru = layers.dynamic_gru(input=layers.fc(input=emb, size=24), size=8)
    chances = layers.fc(input=gru, size=30, act="softmax")
    loss = layers.mean(x=layers.cross_entropy(input=chances, label=following))
    layers.accuracy(input=chances, label=following, k=5)
    fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(1.0))
    fluid.optimizer.Adagrad(learning_rate=0.1).minimize(loss)

    def feed(r):
        lengths = with_an_empty(r, 7, 5)
        return {"items": sequences(fluid, r, lengths), "following": sequences(fluid, r, lengths)}

    return loss, feed


def _ctr(fluid, optimizer, is_sparse):
    layers = fluid.layers
    dense = layers.data(name="dense", shape=[4], dtype="float32")
    slots = [layers.data(name="slot_%d" % i, shape=[1], lod_level=1, dtype="int64") for i in range(5)]
    label = layers.data(name="label", shape=[1], dtype="int64")
    embs = [
        layers.sequence_pool(layers.embedding(s, size=[40, 6], is_sparse=is_sparse, param_attr="features"), "sum")
        for s in slots
    ]
    x = layers.concat(embs + [dense], axis=1)
    for width in (16, 16):
        x = layers.fc(x, width, act="relu")
    chance = layers.fc(x, 2, act="softmax")
    loss = layers.reduce_mean(layers.cross_entropy(input=chance, label=label))
    layers.auc(input=chance, label=label, num_thresholds=2**6, slide_steps=20)
    optimizer.minimize(loss)

    def feed(r):
        found = {"slot_%d" % i: sequences(fluid, r, r.randint(0, 6, 8), 40) for i in range(5)}
        found.update(dense=r.rand(8, 4).astype("float32"), label=labels(r, 8, 2))
        return found

    return loss, feed


def ctr_ragged(fluid):
    return _ctr(fluid, fluid.optimizer.SGD(learning_rate=0.1), True)


def ctr_ragged_lazy_adam(fluid):
    return _ctr(fluid, fluid.optimizer.Adam(learning_rate=0.01, lazy_mode=True), True)


def ctr_ragged_adam(fluid):
    return _ctr(fluid, fluid.optimizer.Adam(learning_rate=0.01), True)


def ctr_ragged_momentum(fluid):
    return _ctr(fluid, fluid.optimizer.Momentum(learning_rate=0.05, momentum=0.9), False)


PROGRAMS = (
    word2vec_nce,
    word2vec_hsigmoid,
    recommender,
    gru4rec,
    ctr_ragged,
    ctr_ragged_lazy_adam,
    ctr_ragged_adam,
    ctr_ragged_momentum,
)
