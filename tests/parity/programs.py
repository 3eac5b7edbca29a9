"""Fluid's book programs and others, written once for any engine that offers the Fluid API (Python
3.7 syntax).

Each builder takes the engine and returns (loss, feed), where feed(rng) makes one batch. Random
layers are left out or have probability 0: two engines draw different numbers.
"""

import zlib

import numpy as np


def _labels(rng, batch, classes):
    return rng.randint(0, classes, (batch, 1)).astype("int64")


def fit_a_line(fluid):
    x = fluid.data(name="x", shape=[None, 13], dtype="float32")
    y = fluid.data(name="y", shape=[None, 1], dtype="float32")
    predict = fluid.layers.fc(input=x, size=1, act=None)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(input=predict, label=y))
    fluid.optimizer.SGD(learning_rate=0.01).minimize(loss)
    return loss, lambda r: {
        "x": r.randn(20, 13).astype("float32"),
        "y": r.randn(20, 1).astype("float32"),
    }


def digits_mlp(fluid):
    img = fluid.layers.data(name="img", shape=[1, 12, 12], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    hidden = fluid.layers.fc(input=img, size=32, act="tanh")
    hidden = fluid.layers.fc(input=hidden, size=32, act="relu")
    prediction = fluid.layers.fc(input=hidden, size=10, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
    fluid.layers.accuracy(input=prediction, label=label)
    fluid.optimizer.RMSProp(
        learning_rate=0.001,
        rho=0.9,
        momentum=0.5,
        centered=True,
        regularization=fluid.regularizer.L2Decay(1e-3),
    ).minimize(loss)
    return loss, lambda r: {
        "img": r.randn(16, 1, 12, 12).astype("float32"),
        "label": _labels(r, 16, 10),
    }


def digits_conv(fluid):
    img = fluid.layers.data(name="img", shape=[1, 20, 20], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    pool_1 = fluid.nets.simple_img_conv_pool(
        input=img, filter_size=5, num_filters=6, pool_size=2, pool_stride=2, act="relu"
    )
    pool_1 = fluid.layers.batch_norm(pool_1)
    pool_2 = fluid.nets.simple_img_conv_pool(
        input=pool_1, filter_size=3, num_filters=8, pool_size=2, pool_stride=2, act="relu"
    )
    prediction = fluid.layers.fc(input=pool_2, size=10, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
    fluid.optimizer.Adam(learning_rate=0.001).minimize(loss)
    return loss, lambda r: {
        "img": r.randn(8, 1, 20, 20).astype("float32"),
        "label": _labels(r, 8, 10),
    }


def vgg(fluid):
    img = fluid.layers.data(name="img", shape=[3, 16, 16], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")

    def block(ipt, num_filter, groups):
        return fluid.nets.img_conv_group(
            input=ipt,
            pool_size=2,
            pool_stride=2,
            conv_num_filter=[num_filter] * groups,
            conv_filter_size=3,
            conv_act="relu",
            conv_with_batchnorm=True,
            conv_batchnorm_drop_rate=[0.0] * groups,
            pool_type="max",
        )

    t = block(block(block(img, 8, 2), 12, 2), 16, 3)
    t = fluid.layers.dropout(x=t, dropout_prob=0.0)
    fc1 = fluid.layers.fc(input=t, size=24, act=None)
    bn = fluid.layers.batch_norm(input=fc1, act="relu")
    fc2 = fluid.layers.fc(input=fluid.layers.dropout(x=bn, dropout_prob=0.0), size=24, act=None)
    predict = fluid.layers.fc(input=fc2, size=10, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=predict, label=label))
    fluid.optimizer.Adam(learning_rate=0.0005).minimize(loss)
    return loss, lambda r: {
        "img": r.randn(8, 3, 16, 16).astype("float32"),
        "label": _labels(r, 8, 10),
    }


def resnet(fluid):
    def conv_bn(x, ch, k, s, p, act="relu"):
        t = fluid.layers.conv2d(input=x, filter_size=k, num_filters=ch, stride=s, padding=p, act=None, bias_attr=False)
        return fluid.layers.batch_norm(input=t, act=act)

    def basic(x, cin, ch, s):
        t = conv_bn(conv_bn(x, ch, 3, s, 1), ch, 3, 1, 1, act=None)
        short = x if cin == ch else conv_bn(x, ch, 1, s, 0, act=None)
        return fluid.layers.elementwise_add(x=t, y=short, act="relu")

    img = fluid.layers.data(name="img", shape=[3, 16, 16], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    t = conv_bn(img, 8, 3, 1, 1)
    cin = 8
    for ch, s in ((8, 1), (12, 2), (16, 2)):
        t = basic(t, cin, ch, s)
        cin = ch
    pool = fluid.layers.pool2d(input=t, pool_size=4, pool_type="avg", pool_stride=1)
    predict = fluid.layers.fc(input=pool, size=10, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=predict, label=label))
    rate = fluid.layers.piecewise_decay(boundaries=[5, 12], values=[0.01, 0.005, 0.001])
    fluid.optimizer.Momentum(learning_rate=rate, momentum=0.9, regularization=fluid.regularizer.L2Decay(1e-4)).minimize(
        loss
    )
    return loss, lambda r: {
        "img": r.randn(8, 3, 16, 16).astype("float32"),
        "label": _labels(r, 8, 10),
    }


def word2vec(fluid):
    names = ["firstw", "secondw", "thirdw", "forthw"]
    words = [fluid.layers.data(name=n, shape=[1], dtype="int64") for n in names]
    target = fluid.layers.data(name="nextw", shape=[1], dtype="int64")
    embeds = [
        fluid.layers.embedding(input=w, size=[50, 8], dtype="float32", is_sparse=True, param_attr="shared_w")
        for w in words
    ]
    concat = fluid.layers.concat(input=embeds, axis=1)
    hidden = fluid.layers.fc(input=concat, size=16, act="sigmoid")
    predict = fluid.layers.fc(input=hidden, size=50, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=predict, label=target))
    fluid.optimizer.Adagrad(learning_rate=0.05).minimize(loss)
    return loss, lambda r: {n: _labels(r, 16, 50) for n in names + ["nextw"]}


def _attention(fluid, q_in, kv_in, d, heads, bias=None):
    def project(x):
        t = fluid.layers.fc(x, d, num_flatten_dims=2, bias_attr=False)
        return fluid.layers.transpose(fluid.layers.reshape(t, [0, 0, heads, d // heads]), [0, 2, 1, 3])

    q, k, v = project(q_in), project(kv_in), project(kv_in)
    scores = fluid.layers.matmul(q, k, transpose_y=True, alpha=(d // heads) ** -0.5)
    if bias is not None:
        scores = fluid.layers.elementwise_add(scores, bias)
    o = fluid.layers.matmul(fluid.layers.softmax(scores), v)
    o = fluid.layers.reshape(fluid.layers.transpose(o, [0, 2, 1, 3]), [0, 0, d])
    return fluid.layers.fc(o, d, num_flatten_dims=2, bias_attr=False)


def _add_norm(fluid, x, y):
    return fluid.layers.layer_norm(fluid.layers.elementwise_add(x, y), begin_norm_axis=2)


def _feed_forward(fluid, x, d):
    return fluid.layers.fc(fluid.layers.fc(x, 2 * d, num_flatten_dims=2, act="relu"), d, num_flatten_dims=2)


def transformer(fluid, seq=6, d=16, heads=2, vocab=40):
    src = fluid.data(name="src", shape=[None, seq], dtype="int64")
    tgt = fluid.data(name="tgt", shape=[None, seq], dtype="int64")
    nxt = fluid.data(name="nxt", shape=[None, seq, 1], dtype="int64")
    causal = fluid.layers.assign(np.triu(np.full((seq, seq), -1e9, "float32"), 1))
    enc = fluid.embedding(src, size=[vocab, d])
    enc = fluid.layers.scale(enc, scale=d**0.5)
    for _ in range(2):
        enc = _add_norm(fluid, enc, _attention(fluid, enc, enc, d, heads))
        enc = _add_norm(fluid, enc, _feed_forward(fluid, enc, d))
    dec = fluid.embedding(tgt, size=[vocab, d])
    for _ in range(2):
        dec = _add_norm(fluid, dec, _attention(fluid, dec, dec, d, heads, causal))
        dec = _add_norm(fluid, dec, _attention(fluid, dec, enc, d, heads))
        dec = _add_norm(fluid, dec, _feed_forward(fluid, dec, d))
    logits = fluid.layers.fc(dec, vocab, num_flatten_dims=2)
    target = fluid.layers.label_smooth(fluid.one_hot(fluid.layers.squeeze(nxt, [2]), vocab), epsilon=0.1)
    cost = fluid.layers.softmax_with_cross_entropy(logits, target, soft_label=True)
    loss = fluid.layers.reduce_mean(cost)
    rate = fluid.layers.noam_decay(d, 40)
    fluid.optimizer.Adam(
        learning_rate=rate,
        beta1=0.9,
        beta2=0.98,
        epsilon=1e-9,
        grad_clip=fluid.clip.GradientClipByGlobalNorm(1.0),
    ).minimize(loss)

    def feed(r):
        return {
            "src": r.randint(0, vocab, (4, seq)).astype("int64"),
            "tgt": r.randint(0, vocab, (4, seq)).astype("int64"),
            "nxt": r.randint(0, vocab, (4, seq, 1)).astype("int64"),
        }

    return loss, feed


def _slots(fluid, count):
    return [fluid.layers.data(name="C%d" % i, shape=[1], dtype="int64") for i in range(count)]


def _ctr_feed(count, vocab):
    def feed(r):
        d = {"C%d" % i: _labels(r, 16, vocab) for i in range(count)}
        d["dense"] = r.rand(16, 4).astype("float32")
        d["label"] = _labels(r, 16, 2)
        return d

    return feed


def wide_and_deep(fluid, slots=5, vocab=30):
    ids = _slots(fluid, slots)
    dense = fluid.layers.data(name="dense", shape=[4], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    deep = [fluid.layers.embedding(i, size=[vocab, 4], param_attr="deep_w") for i in ids]
    x = fluid.layers.concat(deep + [dense], axis=1)
    for h in (16, 8):
        x = fluid.layers.fc(x, h, act="relu")
    wide = fluid.layers.sum([fluid.layers.embedding(i, size=[vocab, 1], param_attr="wide_w") for i in ids])
    logit = fluid.layers.elementwise_add(fluid.layers.fc(x, 1), wide)
    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, fluid.layers.cast(label, "float32")))
    fluid.optimizer.Ftrl(learning_rate=0.05, l1=1e-3, l2=1e-3).minimize(loss)
    return loss, _ctr_feed(slots, vocab)


def deepfm(fluid, slots=5, vocab=30, dim=4):
    ids = _slots(fluid, slots)
    dense = fluid.layers.data(name="dense", shape=[4], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    first = fluid.layers.sum([fluid.layers.embedding(i, size=[vocab, 1], param_attr="first_w") for i in ids])
    embs = fluid.layers.stack([fluid.layers.embedding(i, size=[vocab, dim], param_attr="emb_w") for i in ids], axis=1)
    summed = fluid.layers.square(fluid.layers.reduce_sum(embs, 1))
    squared = fluid.layers.reduce_sum(fluid.layers.square(embs), 1)
    second = 0.5 * fluid.layers.reduce_sum(summed - squared, 1, keep_dim=True)
    x = fluid.layers.concat([fluid.layers.reshape(embs, [-1, slots * dim]), dense], axis=1)
    for h in (16, 8):
        x = fluid.layers.fc(x, h, act="relu")
    predict = fluid.layers.sigmoid(first + second + fluid.layers.fc(x, 1))
    loss = fluid.layers.reduce_mean(fluid.layers.log_loss(predict, fluid.layers.cast(label, "float32")))
    fluid.optimizer.LambOptimizer(learning_rate=0.01).minimize(loss)
    return loss, _ctr_feed(slots, vocab)


def ctr_dnn(fluid, slots=5, vocab=30):
    ids = _slots(fluid, slots)
    dense = fluid.layers.data(name="dense", shape=[4], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    embs = [fluid.layers.embedding(i, size=[vocab, 4], param_attr="SparseFeatFactors") for i in ids]
    x = fluid.layers.concat(embs + [dense], axis=1)
    for h in (16, 16):
        x = fluid.layers.fc(x, h, act="relu")
    predict = fluid.layers.fc(x, 2, act="softmax")
    loss = fluid.layers.reduce_mean(fluid.layers.cross_entropy(input=predict, label=label))
    _auc, _, _ = fluid.layers.auc(input=predict, label=label, num_thresholds=200)
    rate = fluid.layers.exponential_decay(learning_rate=0.01, decay_steps=5, decay_rate=0.5, staircase=True)
    fluid.optimizer.Adam(learning_rate=rate).minimize(loss)
    return loss, _ctr_feed(slots, vocab)


PROGRAMS = (
    fit_a_line,
    digits_mlp,
    digits_conv,
    vgg,
    resnet,
    word2vec,
    transformer,
    wide_and_deep,
    deepfm,
    ctr_dnn,
)
STEPS = 20


def set_parameters(fluid, main, scope):
    """Give the parameters values that depend on their names alone."""
    for p in main.all_parameters():
        if len(p.shape) > 1:
            r = np.random.RandomState(zlib.crc32(p.name.encode()) % 2**31)
            fan_in = int(np.prod(p.shape[1:])) if len(p.shape) == 4 else p.shape[0]
            value = r.randn(*p.shape) * (1.0 / fan_in) ** 0.5
            scope.find_var(p.name).get_tensor().set(value.astype("float32"), fluid.CPUPlace())


def new_scope(fluid):
    return fluid.Scope() if hasattr(fluid, "Scope") else fluid.core.Scope()


def infer(fluid, build, trained=None):
    """[(values, lod)] of what an inference program gives, for three batches; with the parameters of
    a trained program.
    """
    main, startup = fluid.Program(), fluid.Program()
    scope = new_scope(fluid)
    if trained is not None:
        train(fluid, trained, scope)
    with fluid.scope_guard(scope), fluid.program_guard(main, startup), fluid.unique_name.guard():
        fetches, feed = build(fluid)
        exe = fluid.Executor(fluid.CPUPlace())
        if trained is None:
            exe.run(startup)
            set_parameters(fluid, main, scope)
        r = np.random.RandomState(0)
        found = [exe.run(main, feed=feed(r), fetch_list=fetches, return_numpy=False) for _ in range(3)]
    return [[(np.array(t).ravel().tolist(), t.lod()) for t in batch] for batch in found]


def train(fluid, build, scope=None, steps=STEPS):
    """Losses of so many steps from parameters that depend on their names alone, and the norms of all
    persistables then.
    """
    main, startup = fluid.Program(), fluid.Program()
    scope = scope or new_scope(fluid)
    with fluid.scope_guard(scope), fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, feed = build(fluid)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        set_parameters(fluid, main, scope)
        r = np.random.RandomState(0)
        batches = [feed(r) for _ in range(4)]
        losses = [float(np.ravel(exe.run(main, feed=batches[i % 4], fetch_list=[loss])[0])[0]) for i in range(steps)]
        names = sorted(v.name for v in main.list_vars() if v.persistable and v.name not in ("feed", "fetch"))
        values = [np.array(scope.find_var(n).get_tensor()).astype("float64") for n in names]
    return losses, {n: float("%.7g" % np.linalg.norm(v)) for n, v in zip(names, values)}
