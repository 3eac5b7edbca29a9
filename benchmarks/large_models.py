"""Large training programs at published sizes, for any engine that offers the Fluid API (Python 3.7 syntax).

Each builder takes the engine and returns (loss, feed), where feed(rng) makes one batch.
"""

import fluid_models
import numpy as np


def _momentum(fluid):
    return fluid.optimizer.Momentum(learning_rate=0.001, momentum=0.9)


def _image(fluid, size):
    return fluid.data(name="image", shape=[None, 3, size, size], dtype="float32")


def _classified(fluid, hidden, batch, size, classes=1000):
    label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(hidden, classes), label))
    _momentum(fluid).minimize(loss)
    return loss, lambda r: {
        "image": r.rand(batch, 3, size, size).astype("float32"),
        "label": r.randint(0, classes, (batch, 1)).astype("int64"),
    }


def _conv(fluid, x, channels, width=3, stride=1, act="relu", groups=1):
    x = fluid.layers.conv2d(x, channels, width, stride=stride, padding=(width - 1) // 2, groups=groups, bias_attr=False)
    return fluid.layers.batch_norm(x, act=act)


def _pooled(fluid, x):
    return fluid.layers.pool2d(x, pool_type="avg", global_pooling=True)


def resnet50(fluid):
    return fluid_models.resnet50(fluid, batch=8)


def vgg16(fluid, batch=4, size=224):
    layers = fluid.layers
    x = _image(fluid, size)
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = layers.conv2d(x, channels, 3, padding=1, act="relu")
        x = layers.pool2d(x, 2, pool_stride=2)
    for _ in range(2):
        x = layers.dropout(layers.fc(x, 4096, act="relu"), 0.5)
    return _classified(fluid, x, batch, size)


def mobilenet(fluid, batch=16, size=224):
    x = _conv(fluid, _image(fluid, size), 32, stride=2)
    inside = 32
    blocks = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)) + ((512, 1),) * 5 + ((1024, 2), (1024, 1))
    for channels, stride in blocks:
        x = _conv(fluid, _conv(fluid, x, inside, 3, stride, groups=inside), channels, 1)
        inside = channels
    return _classified(fluid, _pooled(fluid, x), batch, size)


def _squeezed(fluid, x, channels):
    scale = fluid.layers.fc(_pooled(fluid, x), channels // 16, act="relu")
    return fluid.layers.elementwise_mul(x, fluid.layers.fc(scale, channels, act="sigmoid"), axis=0)


def se_resnext50(fluid, batch=4, size=224):
    layers = fluid.layers
    x = _conv(fluid, _image(fluid, size), 64, 7, 2)
    x = layers.pool2d(x, 3, pool_stride=2, pool_padding=1)
    inside = 64
    for stage, (channels, count) in enumerate(((128, 3), (256, 4), (512, 6), (1024, 3))):
        for i in range(count):
            stride = 2 if i == 0 and stage else 1
            y = _conv(fluid, _conv(fluid, x, channels, 1), channels, 3, stride, groups=32)
            y = _squeezed(fluid, _conv(fluid, y, channels * 2, 1, act=None), channels * 2)
            short = x if inside == channels * 2 else _conv(fluid, x, channels * 2, 1, stride, act=None)
            x, inside = layers.elementwise_add(short, y, act="relu"), channels * 2
    return _classified(fluid, layers.dropout(_pooled(fluid, x), 0.2), batch, size)


def densenet121(fluid, batch=4, size=224):
    layers = fluid.layers
    x = layers.pool2d(_conv(fluid, _image(fluid, size), 64, 7, 2), 3, pool_stride=2, pool_padding=1)
    channels = 64
    for stage, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            y = layers.conv2d(layers.batch_norm(x, act="relu"), 128, 1, bias_attr=False)
            y = layers.conv2d(layers.batch_norm(y, act="relu"), 32, 3, padding=1, bias_attr=False)
            x = layers.concat([x, y], axis=1)
        channels += 32 * count
        if stage < 3:
            channels //= 2
            x = layers.conv2d(layers.batch_norm(x, act="relu"), channels, 1, bias_attr=False)
            x = layers.pool2d(x, 2, pool_stride=2, pool_type="avg")
    return _classified(fluid, _pooled(fluid, layers.batch_norm(x, act="relu")), batch, size)


def unet(fluid, batch=2, size=256, classes=21):
    layers = fluid.layers
    x, sides = _image(fluid, size), []
    for channels in (64, 128, 256, 512):
        x = _conv(fluid, _conv(fluid, x, channels), channels)
        sides.append(x)
        x = layers.pool2d(x, 2, pool_stride=2)
    x = _conv(fluid, _conv(fluid, x, 512), 512)
    for channels, side in zip((256, 128, 64, 64), reversed(sides)):
        x = layers.concat([side, layers.resize_bilinear(x, scale=2)], axis=1)
        x = _conv(fluid, _conv(fluid, x, channels), channels)
    scores = layers.transpose(layers.conv2d(x, classes, 1), [0, 2, 3, 1])
    label = fluid.data(name="label", shape=[None, size, size, 1], dtype="int64")
    loss = layers.mean(layers.softmax_with_cross_entropy(scores, label))
    _momentum(fluid).minimize(loss)
    return loss, lambda r: {
        "image": r.rand(batch, 3, size, size).astype("float32"),
        "label": r.randint(0, classes, (batch, size, size, 1)).astype("int64"),
    }


ANCHORS = [10, 13, 16, 30, 33, 23, 30, 61, 62, 45, 59, 119, 116, 90, 156, 198, 373, 326]


def yolov3(fluid, batch=2, size=416, classes=80, truths=50):
    """Darknet-53 and the three heads of YOLOv3 (Redmon and Farhadi, 2018)."""
    layers = fluid.layers

    def conv(x, channels, width, stride=1):
        return layers.leaky_relu(_conv(fluid, x, channels, width, stride, act=None), alpha=0.1)

    box = fluid.data(name="box", shape=[None, truths, 4], dtype="float32")
    label = fluid.data(name="label", shape=[None, truths], dtype="int32")
    x, maps = conv(_image(fluid, size), 32, 3), []
    for channels, count in ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)):
        x = conv(x, channels, 3, 2)
        for _ in range(count):
            x = layers.elementwise_add(x, conv(conv(x, channels // 2, 1), channels, 3))
        maps.append(x)
    losses, route = [], None
    for i, (x, channels) in enumerate(zip(maps[:1:-1], (512, 256, 128))):
        if route is not None:
            x = layers.concat([layers.resize_nearest(conv(route, channels, 1), scale=2.0), x], axis=1)
        for _ in range(2):
            x = conv(conv(x, channels, 1), channels * 2, 3)
        route = conv(x, channels, 1)
        found = layers.conv2d(conv(route, channels * 2, 3), 3 * (5 + classes), 1)
        mask = [[6, 7, 8], [3, 4, 5], [0, 1, 2]][i]
        loss = layers.yolov3_loss(found, box, label, ANCHORS, mask, classes, 0.7, 32 >> i)
        losses.append(layers.reduce_mean(loss))
    loss = layers.sum(losses)
    _momentum(fluid).minimize(loss)

    def feed(r):
        boxes = np.concatenate([r.rand(batch, truths, 2) * 0.8 + 0.1, r.rand(batch, truths, 2) * 0.2 + 0.02], -1)
        return {
            "image": r.rand(batch, 3, size, size).astype("float32"),
            "box": boxes.astype("float32"),
            "label": r.randint(0, classes, (batch, truths)).astype("int32"),
        }

    return loss, feed


def ssd300(fluid):
    return fluid_models.ssd(fluid, batch=32)


def _attention(fluid, x, heard, width, heads, bias):
    layers = fluid.layers

    def divided(value):
        value = layers.reshape(layers.fc(value, width, num_flatten_dims=2), [0, 0, heads, width // heads])
        return layers.transpose(value, [0, 2, 1, 3])

    q, k, v = divided(x), divided(heard), divided(heard)
    weights = layers.matmul(q, k, transpose_y=True, alpha=(width // heads) ** -0.5)
    weights = layers.softmax(weights if bias is None else layers.elementwise_add(weights, bias))
    weights = layers.dropout(weights, 0.1, dropout_implementation="upscale_in_train")
    out = layers.reshape(layers.transpose(layers.matmul(weights, v), [0, 2, 1, 3]), [0, 0, width])
    out = layers.fc(out, width, num_flatten_dims=2)
    return layers.layer_norm(layers.elementwise_add(x, out), begin_norm_axis=2)


def _forward(fluid, x, width, act):
    layers = fluid.layers
    inner = layers.fc(layers.fc(x, 4 * width, num_flatten_dims=2, act=act), width, num_flatten_dims=2)
    inner = layers.dropout(inner, 0.1, dropout_implementation="upscale_in_train")
    return layers.layer_norm(layers.elementwise_add(x, inner), begin_norm_axis=2)


def _words(fluid, name, batch, length, words, width):
    ids = fluid.data(name=name, shape=[batch, length], dtype="int64")
    x = fluid.embedding(ids, [words, width])
    places = fluid.layers.create_parameter([length, width], "float32")
    return fluid.layers.layer_norm(fluid.layers.elementwise_add(x, places, axis=1), begin_norm_axis=2)


def bert_base(fluid, batch=4, length=128, words=30522, width=768, heads=12, count=12):
    layers = fluid.layers
    x = _words(fluid, "words", batch, length, words, width)
    for _ in range(count):
        x = _forward(fluid, _attention(fluid, x, x, width, heads, None), width, "gelu")
    places = fluid.data(name="places", shape=[None, 1], dtype="int64")
    label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    x = layers.gather(layers.reshape(x, [-1, width]), places)
    x = layers.layer_norm(layers.fc(x, width, act="gelu"))
    loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(x, words), label))
    fluid.optimizer.Adam(learning_rate=1e-4).minimize(loss)
    masked = batch * length // 7
    return loss, lambda r: {
        "words": r.randint(0, words, (batch, length)).astype("int64"),
        "places": r.randint(0, batch * length, (masked, 1)).astype("int64"),
        "label": r.randint(0, words, (masked, 1)).astype("int64"),
    }


def transformer_base(fluid, batch=16, length=64, words=30000, width=512, heads=8, count=6):
    layers = fluid.layers
    heard = _words(fluid, "source", batch, length, words, width)
    for _ in range(count):
        heard = _forward(fluid, _attention(fluid, heard, heard, width, heads, None), width, "relu")
    x = _words(fluid, "target", batch, length, words, width)
    later = layers.assign(np.triu(np.full((1, 1, length, length), -1e9, "float32"), 1))
    for _ in range(count):
        x = _attention(fluid, x, x, width, heads, later)
        x = _forward(fluid, _attention(fluid, x, heard, width, heads, None), width, "relu")
    label = fluid.data(name="label", shape=[batch * length, 1], dtype="int64")
    scores = layers.fc(layers.reshape(x, [-1, width]), words)
    smooth = layers.label_smooth(layers.one_hot(label, words), epsilon=0.1)
    loss = layers.mean(layers.softmax_with_cross_entropy(scores, smooth, soft_label=True))
    fluid.optimizer.Adam(learning_rate=1e-4, beta2=0.98).minimize(loss)
    return loss, lambda r: {
        "source": r.randint(0, words, (batch, length)).astype("int64"),
        "target": r.randint(0, words, (batch, length)).astype("int64"),
        "label": r.randint(0, words, (batch * length, 1)).astype("int64"),
    }


def deepfm(fluid, batch=1024, words=5000000, width=10, slots=39):
    """Criteo's 39 slots, sparse gradients and Adam in its lazy mode."""
    layers = fluid.layers
    ids = fluid.data(name="ids", shape=[None, slots], dtype="int64")
    values = fluid.data(name="values", shape=[None, slots, 1], dtype="float32")
    label = fluid.data(name="label", shape=[None, 1], dtype="float32")
    weights = layers.elementwise_mul(fluid.embedding(ids, [words, 1], is_sparse=True), values)
    factors = layers.elementwise_mul(fluid.embedding(ids, [words, width], is_sparse=True), values)
    total = layers.square(layers.reduce_sum(factors, 1))
    pairs = layers.elementwise_sub(total, layers.reduce_sum(layers.square(factors), 1))
    x = layers.reshape(factors, [-1, slots * width])
    for _ in range(3):
        x = layers.fc(x, 400, act="relu")
    score = layers.sums(
        [layers.reduce_sum(weights, 1), 0.5 * layers.reduce_sum(pairs, 1, keep_dim=True), layers.fc(x, 1)]
    )
    loss = layers.mean(layers.sigmoid_cross_entropy_with_logits(score, label))
    fluid.optimizer.Adam(learning_rate=1e-4, lazy_mode=True).minimize(loss)
    return loss, lambda r: {
        "ids": r.randint(0, words, (batch, slots)).astype("int64"),
        "values": r.rand(batch, slots, 1).astype("float32"),
        "label": r.randint(0, 2, (batch, 1)).astype("float32"),
    }


def dense_table(fluid, batch=1024, words=2000000, width=150):
    """A table with a dense gradient under gradient descent."""
    layers = fluid.layers
    ids = fluid.data(name="ids", shape=[None, 5], dtype="int64")
    label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    x = layers.reshape(fluid.embedding(ids, [words, width]), [-1, 5 * width])
    loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(x, 2), label))
    fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
    return loss, lambda r: {
        "ids": r.randint(0, words, (batch, 5)).astype("int64"),
        "label": r.randint(0, 2, (batch, 1)).astype("int64"),
    }


def word2vec(fluid, batch=256, words=100000, width=300):
    """The n-gram model of Fluid's book with the vocabulary of a newspaper: dense gradients, Adam, a whole softmax."""
    layers = fluid.layers
    given = [fluid.data(name="word_%d" % i, shape=[None], dtype="int64") for i in range(4)]
    label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    x = layers.concat([fluid.embedding(w, [words, width], param_attr="shared") for w in given], axis=1)
    scores = layers.fc(layers.fc(x, 256, act="sigmoid"), words)
    loss = layers.mean(layers.softmax_with_cross_entropy(scores, label))
    fluid.optimizer.Adam(learning_rate=1e-3).minimize(loss)

    def feed(r):
        found = {"word_%d" % i: r.randint(0, words, batch).astype("int64") for i in range(4)}
        found["label"] = r.randint(0, words, (batch, 1)).astype("int64")
        return found

    return loss, feed


def stacked_lstm(fluid):
    return fluid_models.stacked_lstm(fluid, batch=64, vocab=30000, width=512)


def _sequences(fluid, r, batch, words, low, high):
    counts = [int(n) for n in r.randint(low, high, batch)]
    ids = r.randint(0, words, (sum(counts), 1)).astype("int64")
    return counts, fluid.create_lod_tensor(ids, [counts], fluid.CPUPlace())


def seq2seq(fluid, batch=32, words=30000, width=512):
    """Translation with attention in a DynamicRNN, as in Fluid's book."""
    layers = fluid.layers
    source, target, label = (
        fluid.data(name=n, shape=[None, 1], dtype="int64", lod_level=1) for n in ("source", "target", "label")
    )
    x = layers.embedding(source, [words, width])
    ways = [layers.dynamic_gru(layers.fc(x, 3 * width), width, is_reverse=back) for back in (False, True)]
    heard = layers.concat(ways, axis=1)
    keys = layers.fc(heard, width, bias_attr=False)
    first = layers.fc(layers.sequence_first_step(ways[1]), width, act="tanh")
    written = layers.embedding(target, [words, width])
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(written)
        heard, keys = rnn.static_input(heard), rnn.static_input(keys)
        state = rnn.memory(init=first, need_reorder=True)
        asked = layers.sequence_expand(layers.fc(state, width, bias_attr=False), keys)
        weights = layers.fc(layers.tanh(layers.elementwise_add(keys, asked)), 1, bias_attr=False)
        weights = layers.reshape(layers.sequence_softmax(weights), [-1])
        context = layers.sequence_pool(layers.elementwise_mul(heard, weights, axis=0), "sum")
        new, _, _ = layers.gru_unit(layers.fc([context, word], 3 * width), state, 3 * width)
        rnn.update_memory(state, new)
        rnn.output(layers.fc(new, words, act="softmax"))
    loss = layers.mean(layers.cross_entropy(rnn(), label))
    fluid.optimizer.Adam(learning_rate=1e-3).minimize(loss)

    def feed(r):
        _, found = _sequences(fluid, r, batch, words, 10, 40)
        counts, given = _sequences(fluid, r, batch, words, 10, 40)
        following = r.randint(0, words, (sum(counts), 1)).astype("int64")
        following = fluid.create_lod_tensor(following, [counts], fluid.CPUPlace())
        return {"source": found, "target": given, "label": following}

    return loss, feed


MODELS = {
    f.__name__: f
    for f in (
        resnet50,
        vgg16,
        mobilenet,
        se_resnext50,
        densenet121,
        unet,
        yolov3,
        ssd300,
        bert_base,
        transformer_base,
        deepfm,
        dense_table,
        word2vec,
        stacked_lstm,
        seq2seq,
    )
}
