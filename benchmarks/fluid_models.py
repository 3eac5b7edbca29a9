"""The benchmarked models as Fluid programs, for any engine that offers the Fluid API (Python 3.7
syntax).

Each builder takes the engine and returns (loss, feed), where feed(rng) makes one batch.
"""

import numpy as np


def _classifier(fluid, hidden, classes, optimizer):
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    pred = fluid.layers.fc(hidden, classes, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=pred, label=label))
    optimizer.minimize(loss)
    return loss


def _images(name, batch, shape, classes):
    return lambda r: {
        name: r.randn(batch, *shape).astype("float32"),
        "label": r.randint(0, classes, (batch, 1)).astype("int64"),
    }


def mlp(fluid, batch=256):
    h = fluid.layers.data(name="x", shape=[784], dtype="float32")
    for _ in range(2):
        h = fluid.layers.fc(h, 200, act="tanh")
    return _classifier(fluid, h, 10, fluid.optimizer.SGD(learning_rate=0.01)), _images("x", batch, (784,), 10)


def mnist_conv(fluid, batch=128):
    img = fluid.layers.data(name="img", shape=[1, 28, 28], dtype="float32")
    t = fluid.nets.simple_img_conv_pool(img, num_filters=20, filter_size=5, pool_size=2, pool_stride=2, act="relu")
    t = fluid.layers.batch_norm(t)
    t = fluid.nets.simple_img_conv_pool(t, num_filters=50, filter_size=5, pool_size=2, pool_stride=2, act="relu")
    return _classifier(fluid, t, 10, fluid.optimizer.Adam(learning_rate=0.001)), _images("img", batch, (1, 28, 28), 10)


def _conv_bn(fluid, x, channels, kernel, stride, act="relu"):
    t = fluid.layers.conv2d(
        x,
        filter_size=kernel,
        num_filters=channels,
        stride=stride,
        padding=(kernel - 1) // 2,
        bias_attr=False,
    )
    return fluid.layers.batch_norm(t, act=act)


def resnet_cifar(fluid, batch=64, blocks=3):
    img = fluid.layers.data(name="img", shape=[3, 32, 32], dtype="float32")
    t, inside = _conv_bn(fluid, img, 16, 3, 1), 16
    for channels, first in ((16, 1), (32, 2), (64, 2)):
        for i in range(blocks):
            stride = first if i == 0 else 1
            u = _conv_bn(fluid, _conv_bn(fluid, t, channels, 3, stride), channels, 3, 1, act=None)
            short = t if inside == channels else _conv_bn(fluid, t, channels, 1, stride, act=None)
            t, inside = fluid.layers.elementwise_add(u, short, act="relu"), channels
    t = fluid.layers.pool2d(t, pool_size=8, pool_type="avg", pool_stride=1)
    optimizer = fluid.optimizer.Momentum(learning_rate=0.01, momentum=0.9)
    return _classifier(fluid, t, 10, optimizer), _images("img", batch, (3, 32, 32), 10)


def resnet50(fluid, batch=4):
    """For the time to build its program: 50 layers, 224 x 224 images."""
    img = fluid.layers.data(name="img", shape=[3, 224, 224], dtype="float32")
    t, inside = _conv_bn(fluid, img, 64, 7, 2), 64
    t = fluid.layers.pool2d(t, pool_size=3, pool_stride=2, pool_padding=1, pool_type="max")
    for stage, (channels, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for i in range(count):
            stride = 2 if i == 0 and stage else 1
            u = _conv_bn(fluid, _conv_bn(fluid, t, channels, 1, 1), channels, 3, stride)
            u = _conv_bn(fluid, u, channels * 4, 1, 1, act=None)
            short = t if inside == channels * 4 else _conv_bn(fluid, t, channels * 4, 1, stride, act=None)
            t, inside = fluid.layers.elementwise_add(u, short, act="relu"), channels * 4
    t = fluid.layers.pool2d(t, pool_size=7, pool_type="avg", global_pooling=True)
    optimizer = fluid.optimizer.Momentum(learning_rate=0.1, momentum=0.9)
    return _classifier(fluid, t, 1000, optimizer), _images("img", batch, (3, 224, 224), 1000)


def transformer_encoder(fluid, batch=8, seq=64, d=256, heads=4, layers=4, vocab=8000):
    x = fluid.layers.data(name="x", shape=[batch, seq, 1], append_batch_size=False, dtype="int64")
    y = fluid.layers.data(name="y", shape=[batch * seq, 1], append_batch_size=False, dtype="int64")
    h = fluid.layers.reshape(fluid.layers.embedding(x, size=[vocab, d]), [batch, seq, d])
    for _ in range(layers):
        q, k, v = (
            fluid.layers.transpose(
                fluid.layers.reshape(fluid.layers.fc(h, d, num_flatten_dims=2), [0, 0, heads, d // heads]),
                [0, 2, 1, 3],
            )
            for _ in range(3)
        )
        w = fluid.layers.softmax(fluid.layers.matmul(q, k, transpose_y=True, alpha=(d // heads) ** -0.5))
        w = fluid.layers.dropout(w, 0.1, dropout_implementation="upscale_in_train")
        o = fluid.layers.reshape(fluid.layers.transpose(fluid.layers.matmul(w, v), [0, 2, 1, 3]), [0, 0, d])
        h = fluid.layers.layer_norm(h + fluid.layers.fc(o, d, num_flatten_dims=2), begin_norm_axis=2)
        f = fluid.layers.fc(h, 4 * d, num_flatten_dims=2, act="relu")
        h = fluid.layers.layer_norm(h + fluid.layers.fc(f, d, num_flatten_dims=2), begin_norm_axis=2)
    logits = fluid.layers.reshape(fluid.layers.fc(h, vocab, num_flatten_dims=2), [batch * seq, vocab])
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(logits, y))
    fluid.optimizer.Adam(learning_rate=0.001).minimize(loss)
    return loss, lambda r: {
        "x": r.randint(0, vocab, (batch, seq, 1)).astype("int64"),
        "y": r.randint(0, vocab, (batch * seq, 1)).astype("int64"),
    }


def stacked_lstm(fluid, batch=32, vocab=5000, width=128, stacked=3):
    words = fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    fc = fluid.layers.fc(fluid.layers.embedding(words, size=[vocab, width], is_sparse=True), width)
    lstm, _ = fluid.layers.dynamic_lstm(input=fc, size=width)
    for i in range(2, stacked + 1):
        fc = fluid.layers.fc([fc, lstm], width)
        lstm, _ = fluid.layers.dynamic_lstm(input=fc, size=width, is_reverse=(i % 2) == 0)
    pooled = [fluid.layers.sequence_pool(x, "max") for x in (fc, lstm)]

    def feed(r):
        lengths = r.randint(20, 120, batch)
        ids = r.randint(0, vocab, (int(lengths.sum()), 1)).astype("int64")
        return {
            "words": fluid.create_lod_tensor(ids, [lengths.tolist()], fluid.CPUPlace()),
            "label": r.randint(0, 2, (batch, 1)).astype("int64"),
        }

    return _classifier(fluid, pooled, 2, fluid.optimizer.Adagrad(learning_rate=0.01)), feed


def ctr_dnn(fluid, batch=1024, slots=26, vocab=1000001, width=10, optimizer=None):
    dense = fluid.layers.data(name="dense", shape=[13], dtype="float32")
    ids = [fluid.layers.data(name="slot_%d" % i, shape=[1], lod_level=1, dtype="int64") for i in range(slots)]
    table = fluid.ParamAttr(name="table", initializer=fluid.initializer.Uniform())
    x = [
        fluid.layers.sequence_pool(
            fluid.layers.embedding(s, size=[vocab, width], is_sparse=True, param_attr=table), "sum"
        )
        for s in ids
    ]
    x = fluid.layers.concat(x + [dense], axis=1)
    for _ in range(3):
        x = fluid.layers.fc(x, 400, act="relu")

    def feed(r):
        found = {"dense": r.rand(batch, 13).astype("float32")}
        for i in range(slots):
            drawn = r.zipf(1.2, (batch, 1)).clip(max=vocab - 1).astype("int64")
            found["slot_%d" % i] = fluid.create_lod_tensor(drawn, [[1] * batch], fluid.CPUPlace())
        found["label"] = r.randint(0, 2, (batch, 1)).astype("int64")
        return found

    return _classifier(fluid, x, 2, optimizer or fluid.optimizer.SGD(learning_rate=0.01)), feed


def ctr_dnn_lazy_adam(fluid):
    return ctr_dnn(fluid, optimizer=fluid.optimizer.Adam(learning_rate=0.001, lazy_mode=True))


def skip_gram(fluid, batch=4096, vocab=100000, width=64, negatives=5):
    """Word vectors by negative sampling: two large sparse tables, Adam in lazy mode."""
    layers = fluid.layers
    center = layers.data(name="center", shape=[1], dtype="int64")
    words = layers.data(name="words", shape=[1 + negatives], dtype="int64")
    label = layers.data(name="label", shape=[1 + negatives], dtype="float32")
    one = layers.embedding(center, size=[vocab, width], is_sparse=True)
    others = layers.embedding(layers.reshape(words, [-1, 1]), size=[vocab, width], is_sparse=True)
    others = layers.reshape(others, [-1, 1 + negatives, width])
    logits = layers.matmul(layers.reshape(one, [-1, 1, width]), others, transpose_y=True)
    logits = layers.reshape(logits, [-1, 1 + negatives])
    loss = layers.mean(layers.sigmoid_cross_entropy_with_logits(logits, label))
    fluid.optimizer.Adam(learning_rate=0.001, lazy_mode=True).minimize(loss)

    def draw(r, count):
        return r.zipf(1.2, (batch, count)).clip(max=vocab - 1).astype("int64")

    labels = np.tile(np.eye(1 + negatives, dtype="float32")[:1], (batch, 1))
    return loss, lambda r: {"center": draw(r, 1), "words": draw(r, 1 + negatives), "label": labels}


def gru_sentiment(fluid, batch=64, vocab=30000, width=128):
    """Sentiment of a text: a GRU, the maximum over its states, two layers."""
    words = fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    x = fluid.layers.fc(fluid.layers.embedding(words, size=[vocab, width], is_sparse=True), 3 * width)
    x = fluid.layers.tanh(fluid.layers.sequence_pool(fluid.layers.dynamic_gru(x, width), "max"))
    x = fluid.layers.fc(x, 96, act="tanh")

    def feed(r):
        lengths = r.randint(20, 120, batch)
        ids = r.randint(0, vocab, (int(lengths.sum()), 1)).astype("int64")
        return {
            "words": fluid.create_lod_tensor(ids, [lengths.tolist()], fluid.CPUPlace()),
            "label": r.randint(0, 2, (batch, 1)).astype("int64"),
        }

    return _classifier(fluid, x, 2, fluid.optimizer.Adagrad(learning_rate=0.01)), feed


def ssd(fluid, batch=8, size=300, classes=21):
    """SSD300's maps and priors (8732) over a body of eight narrow convolutions."""
    layers = fluid.layers
    image = fluid.data(name="image", shape=[None, 3, size, size], dtype="float32")
    box = fluid.data(name="box", shape=[None, 4], dtype="float32", lod_level=1)
    label = fluid.data(name="label", shape=[None, 1], dtype="int32", lod_level=1)
    x, maps = image, []
    body = ((16, 2, 1), (32, 2, 1), (64, 2, 1), (128, 2, 1), (128, 2, 1), (128, 2, 1))
    for channels, stride, padding in body + ((128, 1, 0), (128, 1, 0)):
        x = layers.conv2d(x, channels, 3, stride=stride, padding=padding, bias_attr=False)
        x = layers.batch_norm(x, act="relu")
        maps.append(x)
    heads = layers.multi_box_head(
        inputs=maps[2:],
        image=image,
        base_size=size,
        num_classes=classes,
        aspect_ratios=[[2.0], [2.0, 3.0], [2.0, 3.0], [2.0, 3.0], [2.0], [2.0]],
        min_ratio=20,
        max_ratio=90,
        kernel_size=3,
        pad=1,
    )
    place, score, prior, variance = heads
    loss = layers.reduce_sum(layers.ssd_loss(place, score, box, label, prior, variance))
    fluid.optimizer.Momentum(learning_rate=0.001, momentum=0.9).minimize(loss)

    def feed(r):
        counts = [int(n) for n in r.randint(1, 9, batch)]
        corner, side = r.rand(sum(counts), 2) * 0.5, 0.1 + r.rand(sum(counts), 2) * 0.4
        boxes = {
            "box": np.concatenate([corner, corner + side], 1).astype("float32"),
            "label": r.randint(1, classes, (sum(counts), 1)).astype("int32"),
        }
        found = {n: fluid.create_lod_tensor(v, [counts], fluid.CPUPlace()) for n, v in boxes.items()}
        found["image"] = r.rand(batch, 3, size, size).astype("float32")
        return found

    return loss, feed


def crnn(fluid, batch=16, height=32, width=100, classes=95, hidden=128):
    """Lines of text: eight convolutions, GRUs in both directions, CTC."""
    layers = fluid.layers
    image = fluid.data(name="image", shape=[None, 1, height, width], dtype="float32")
    label = fluid.data(name="label", shape=[None, 1], dtype="int32", lod_level=1)
    x = image
    for channels, pool in ((16, 2), (32, 2), (64, (2, 1)), (128, (2, 1))):
        x = _conv_bn(fluid, _conv_bn(fluid, x, channels, 3, 1), channels, 3, 1)
        x = layers.pool2d(x, pool_size=pool, pool_stride=pool, pool_type="max")
    columns = layers.im2sequence(x, filter_size=[x.shape[2], 1])
    states = [
        layers.dynamic_gru(layers.fc(columns, 3 * hidden), hidden, is_reverse=backwards) for backwards in (False, True)
    ]
    cost = layers.warpctc(layers.fc(states, classes + 1), label, blank=classes, norm_by_times=True)
    loss = layers.reduce_sum(cost)
    fluid.optimizer.Momentum(learning_rate=1e-3, momentum=0.9).minimize(loss)

    def feed(r):
        counts = [int(n) for n in r.randint(3, 11, batch)]
        symbols = r.randint(0, classes, (sum(counts), 1)).astype("int32")
        return {
            "image": r.rand(batch, 1, height, width).astype("float32"),
            "label": fluid.create_lod_tensor(symbols, [counts], fluid.CPUPlace()),
        }

    return loss, feed


MODELS = {
    f.__name__: f
    for f in (
        mlp,
        mnist_conv,
        resnet_cifar,
        transformer_encoder,
        stacked_lstm,
        ctr_dnn,
        ctr_dnn_lazy_adam,
        skip_gram,
        gru_sentiment,
        ssd,
        crnn,
    )
}


def trainer(fluid, name, mode="one"):
    """A function that runs one step on a feed and returns the loss, and the feeds' maker. `mode`:
    "one" for the program itself, "reduce" for replicas with Reduce, any other for replicas. Each trainer has
    variables of its own.
    """
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, feed = MODELS[name](fluid)
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(startup, scope=scope)
    program = main
    if mode != "one":
        build = fluid.BuildStrategy()
        if mode == "reduce":
            build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
        program = fluid.CompiledProgram(main).with_data_parallel(loss.name, build)
    fetches = [loss]  # the same list each time, as a training loop has
    return lambda batch: exe.run(program, feed=batch, fetch_list=fetches, scope=scope)[0], feed
