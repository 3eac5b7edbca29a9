"""Small models whose batches differ in shape, as scripts of their class have them (`first_loss.py`).

A stream is a function of the engine and of NumPy: it builds the model and returns a function of the step's number that
runs the step and returns its loss. Python 3.7 syntax: the real Fluid runs the file, too.
"""

import functools

import fluid_models
import large_models


def trained(loss, optimizer, parameters):
    """Update the parameters of an imperative model, and return the loss."""
    loss.backward()
    optimizer.minimize(loss)
    for parameter in parameters:
        parameter.clear_gradient()
    return loss.numpy()


def static(fluid, loss, feed):
    """What runs a step of the default program."""
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    program = fluid.default_main_program()
    return lambda step: executor.run(program, feed=feed(step), fetch_list=[loss])[0]


def attention_block(fluid, x, width, heads, bias):
    layers = fluid.layers

    def divided(value):
        value = layers.reshape(value, [0, 0, heads, width // heads])
        return layers.transpose(value, [0, 2, 1, 3])

    q, k, v = (divided(layers.fc(x, width, num_flatten_dims=2)) for _ in range(3))
    weights = layers.matmul(q, k, transpose_y=True, alpha=(width // heads) ** -0.5)
    weights = layers.softmax(weights if bias is None else weights + bias)
    weights = layers.dropout(weights, 0.1, dropout_implementation="upscale_in_train")
    out = layers.transpose(layers.matmul(weights, v), [0, 2, 1, 3])
    out = layers.fc(layers.reshape(out, [0, 0, width]), width, num_flatten_dims=2)
    x = layers.layer_norm(x + out, begin_norm_axis=2)
    inner = layers.fc(x, 4 * width, num_flatten_dims=2, act="gelu")
    inner = layers.fc(inner, width, num_flatten_dims=2)
    return layers.layer_norm(x + inner, begin_norm_axis=2)


def bert(fluid, np, batch_of=lambda step, length: 8):
    """Pre-training with masked words: the padded length and the number of masked words differ by batch."""
    layers, width, heads, words = fluid.layers, 128, 2, 1000
    src = fluid.data("src", [None, None], "int64")
    pos = fluid.data("pos", [None, None], "int64")
    mask = fluid.data("mask", [None, None, 1], "float32")
    picked = fluid.data("picked", [None, 1], "int64")
    label = fluid.data("label", [None, 1], "int64")
    x = fluid.embedding(src, [words, width]) + fluid.embedding(pos, [512, width])
    x = layers.layer_norm(x, begin_norm_axis=2)
    bias = layers.matmul(mask, mask, transpose_y=True)
    bias = layers.scale(bias, 10000.0, bias=-1.0, bias_after_scale=False)
    bias = layers.stack([bias] * heads, axis=1)
    bias.stop_gradient = True
    for _ in range(4):
        x = attention_block(fluid, x, width, heads, bias)
    found = layers.gather(layers.reshape(x, [-1, width]), picked)
    found = layers.layer_norm(layers.fc(found, width, act="gelu"), begin_norm_axis=1)
    cost = layers.softmax_with_cross_entropy(layers.fc(found, words), label)
    loss = layers.mean(cost)
    fluid.optimizer.Adam(1e-4).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        length = int(random.randint(24, 97))
        batch = batch_of(step, length)
        masked = max(int(batch * length * 0.15) + int(random.randint(-3, 4)), 1)
        return {
            "src": random.randint(0, words, (batch, length)).astype("int64"),
            "pos": np.tile(np.arange(length), (batch, 1)).astype("int64"),
            "mask": np.ones((batch, length, 1), "float32"),
            "picked": random.randint(0, batch * length, (masked, 1)).astype("int64"),
            "label": random.randint(0, words, (masked, 1)).astype("int64"),
        }

    return static(fluid, loss, feed)


def tokens(fluid, np):
    """As `bert`, with batches of about 512 tokens: both the number of sentences and their length differ."""
    return bert(fluid, np, lambda step, length: max(512 // length, 1))


def episodes(fluid, np):
    """A policy gradient: episodes end when they end."""
    layers = fluid.layers
    seen = fluid.data("seen", [None, 4], "float32")
    act = fluid.data("act", [None, 1], "int64")
    reward = fluid.data("reward", [None, 1], "float32")
    policy = layers.fc(layers.fc(seen, 20, act="tanh"), 2, act="softmax")
    chosen = layers.log(layers.reduce_sum(policy * layers.one_hot(act, 2), dim=1, keep_dim=True))
    loss = layers.reduce_mean(-1.0 * chosen * reward)
    fluid.optimizer.Adam(1e-2).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        length = int(random.randint(9, 200))
        return {
            "seen": random.randn(length, 4).astype("float32"),
            "act": random.randint(0, 2, (length, 1)).astype("int64"),
            "reward": random.randn(length, 1).astype("float32"),
        }

    return static(fluid, loss, feed)


def last_of_one(fluid, np):
    """Batches of 64, of which each tenth is the last of an epoch and has one example."""
    layers = fluid.layers
    x = fluid.data("x", [None, 784], "float32")
    y = fluid.data("y", [None, 1], "int64")
    given = layers.fc(layers.fc(layers.fc(x, 200, act="relu"), 200, act="relu"), 10, act="softmax")
    loss = layers.mean(layers.cross_entropy(given, y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        count = 1 if step % 10 == 9 else 64
        return {
            "x": random.randn(count, 784).astype("float32"),
            "y": random.randint(0, 10, (count, 1)).astype("int64"),
        }

    return static(fluid, loss, feed)


def alternating(fluid, np):
    """A program that trains and its clone that evaluates, in turn, on batches of different sizes."""
    layers = fluid.layers
    x = fluid.data("x", [None, 64], "float32")
    y = fluid.data("y", [None, 1], "int64")
    hidden = layers.batch_norm(layers.fc(x, 64, act="relu"))
    given = layers.fc(hidden, 10, act="softmax")
    loss = layers.mean(layers.cross_entropy(given, y))
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    random = np.random.RandomState(0)

    def step(at):
        count = int(random.randint(20, 65))
        feed = {
            "x": random.randn(count, 64).astype("float32"),
            "y": random.randint(0, 10, (count, 1)).astype("int64"),
        }
        program = test if at % 2 else fluid.default_main_program()
        return executor.run(program, feed=feed, fetch_list=[loss.name])[0]

    return step


def gan(fluid, np):
    """Two programs over the same parameters, in turn."""
    layers = fluid.layers

    def judged(x):
        hidden = layers.fc(x, 64, act="relu", param_attr="d0.w", bias_attr="d0.b")
        return layers.fc(hidden, 1, param_attr="d1.w", bias_attr="d1.b")

    def made(noise):
        hidden = layers.fc(noise, 64, act="relu", param_attr="g0.w", bias_attr="g0.b")
        return layers.fc(hidden, 32, act="tanh", param_attr="g1.w", bias_attr="g1.b")

    def cost(logit, label):
        return layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, label))

    startup, programs = fluid.Program(), []
    for names in (["d0.w", "d0.b", "d1.w", "d1.b"], ["g0.w", "g0.b", "g1.w", "g1.b"]):
        program = fluid.Program()
        with fluid.program_guard(program, startup):
            noise = fluid.data("noise", [None, 16], "float32")
            label = fluid.data("label", [None, 1], "float32")
            logit = judged(made(noise))
            if names[0] == "d0.w":
                logit = layers.concat([logit, judged(fluid.data("real", [None, 32], "float32"))])
            loss = cost(logit, label)
            fluid.optimizer.Adam(1e-3).minimize(loss, startup, parameter_list=names)
        programs.append((program, loss))
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)
    random = np.random.RandomState(0)

    def step(at):
        program, loss = programs[at % 2]
        feed = {"noise": random.randn(32, 16).astype("float32")}
        feed["label"] = np.ones((32 if at % 2 else 64, 1), "float32")
        if not at % 2:
            feed["real"] = random.randn(32, 32).astype("float32")
        return executor.run(program, feed=feed, fetch_list=[loss])[0]

    return step


def mobilenet(fluid, np):
    """Thirteen depthwise and pointwise convolutions, on 64 x 64 images; the last batch is short."""
    layers = fluid.layers
    image = fluid.data("image", [None, 3, 64, 64], "float32")
    label = fluid.data("label", [None, 1], "int64")

    def normal(x, filters, size, stride=1, groups=1):
        x = layers.conv2d(x, filters, size, stride, size // 2, groups=groups, bias_attr=False, use_cudnn=False)
        return layers.batch_norm(x, act="relu6")

    x = normal(image, 16, 3, 2)
    channels = 16
    for filters, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        x = normal(normal(x, channels, 3, stride, channels), filters, 1)
        channels = filters
    x = layers.pool2d(x, pool_type="avg", global_pooling=True)
    given = layers.fc(x, 10, act="softmax")
    loss = layers.mean(layers.cross_entropy(given, label))
    fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        count = 5 if step % 10 == 9 else 16
        return {
            "image": random.randn(count, 3, 64, 64).astype("float32"),
            "label": random.randint(0, 10, (count, 1)).astype("int64"),
        }

    return static(fluid, loss, feed)


def tagger(fluid, np):
    """A GRU and a CRF over sentences with a LoD."""
    layers = fluid.layers
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    label = fluid.data("label", [None, 1], "int64", lod_level=1)
    x = fluid.layers.embedding(words, [1000, 32])
    x = layers.dynamic_gru(layers.fc(x, 3 * 32), 32)
    cost = layers.linear_chain_crf(layers.fc(x, 9), label, fluid.ParamAttr("transition"))
    loss = layers.mean(cost)
    fluid.optimizer.SGD(0.01).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        lengths = random.randint(3, 40, 16).tolist()
        rows = sum(lengths)

        def tensor(most):
            values = random.randint(0, most, (rows, 1)).astype("int64")
            return fluid.create_lod_tensor(values, [lengths], fluid.CPUPlace())

        return {"words": tensor(1000), "label": tensor(9)}

    return static(fluid, loss, feed)


def eager(fluid, np):
    """Imperative mode: sentences of different lengths through attention."""
    dygraph, layers, width = fluid.dygraph, fluid.layers, 64
    fluid.enable_dygraph(fluid.CPUPlace())
    table = dygraph.Embedding([1000, width])
    parts = [dygraph.Linear(width, width) for _ in range(4)]
    out, norm = dygraph.Linear(width, 1000), dygraph.LayerNorm(width)
    parameters = [p for part in (table, *parts, out, norm) for p in part.parameters()]
    optimizer = fluid.optimizer.Adam(1e-3, parameter_list=parameters)
    random = np.random.RandomState(0)

    def step(at):
        length = int(random.randint(10, 60))
        words = random.randint(0, 1000, (8, length)).astype("int64")
        x = table(dygraph.to_variable(words))
        q, k, v = (part(x) for part in parts[:3])
        weights = layers.softmax(layers.matmul(q, k, transpose_y=True, alpha=width**-0.5))
        x = norm(x + parts[3](layers.matmul(weights, v)))
        label = dygraph.to_variable(words[:, :, None])
        loss = layers.mean(layers.softmax_with_cross_entropy(out(x), label))
        return trained(loss, optimizer, parameters)

    return step


def images(fluid, np, builder):
    """Return the stream of a builder of `fluid_models`, whose batches have one size."""
    loss, feed = builder(fluid)
    random = np.random.RandomState(0)
    return static(fluid, loss, lambda step: feed(random))


def resnet(fluid, np):
    """ResNet-50 on 64 x 64 images: 53 convolutions, batches of one size."""
    layers = fluid.layers
    x = fluid.data("image", [None, 3, 64, 64], "float32")
    label = fluid.data("label", [None, 1], "int64")

    def normal(x, filters, size, stride=1, act="relu"):
        x = layers.conv2d(x, filters, size, stride, size // 2, bias_attr=False)
        return layers.batch_norm(x, act=act)

    x = layers.pool2d(normal(x, 64, 7, 2), 3, "max", 2, 1)
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        filters = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            inner = normal(normal(x, filters, 1), filters, 3, stride)
            inner = normal(inner, 4 * filters, 1, act=None)
            if channels != 4 * filters or stride != 1:
                x = normal(x, 4 * filters, 1, stride, act=None)
            channels = 4 * filters
            x = layers.relu(x + inner)
    given = layers.fc(layers.pool2d(x, pool_type="avg", global_pooling=True), 10, act="softmax")
    loss = layers.mean(layers.cross_entropy(given, label))
    fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        return {
            "image": random.randn(4, 3, 64, 64).astype("float32"),
            "label": random.randint(0, 10, (4, 1)).astype("int64"),
        }

    return static(fluid, loss, feed)


def yolo(fluid, np):
    """YOLOv3 with a body of residual blocks, on images of ten sizes."""
    layers, truths, classes = fluid.layers, 10, 20
    anchors = [10, 13, 16, 30, 33, 23, 30, 61, 62, 45, 59, 119, 116, 90, 156, 198, 373, 326]
    image = fluid.data("image", [None, 3, None, None], "float32")
    box = fluid.data("box", [None, truths, 4], "float32")
    label = fluid.data("label", [None, truths], "int32")

    def normal(x, filters, size, stride=1):
        x = layers.conv2d(x, filters, size, stride, size // 2, bias_attr=False)
        return layers.leaky_relu(layers.batch_norm(x), alpha=0.1)

    x, maps = normal(image, 8, 3), []
    for filters in (16, 32, 64, 96, 128):
        x = normal(x, filters, 3, 2)
        x = x + normal(normal(x, filters // 2, 1), filters, 3)
        maps.append(x)
    losses, up = [], None
    for at, (x, ratio) in enumerate(zip(maps[:1:-1], (32, 16, 8))):
        x = x if up is None else layers.concat([up, x], axis=1)
        x = normal(x, 64, 1)
        up = layers.resize_nearest(normal(x, 32, 1), scale=2.0, align_corners=False)
        found = layers.conv2d(normal(x, 128, 3), 3 * (5 + classes), 1)
        mask = [6 - 3 * at, 7 - 3 * at, 8 - 3 * at]
        losses.append(layers.reduce_mean(layers.yolov3_loss(found, box, label, anchors, mask, classes, 0.7, ratio)))
    loss = layers.sum(losses)
    fluid.optimizer.Momentum(1e-4, 0.9).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        size = 32 * int(random.randint(4, 14))
        boxes = np.concatenate([random.rand(2, truths, 2), random.rand(2, truths, 2) * 0.5], -1)
        return {
            "image": random.rand(2, 3, size, size).astype("float32"),
            "box": boxes.astype("float32"),
            "label": random.randint(0, classes, (2, truths)).astype("int32"),
        }

    return static(fluid, loss, feed)


def ssd(fluid, np):
    """SSD300's maps and priors; the number of boxes of an image differs (LoD)."""
    return images(fluid, np, functools.partial(fluid_models.ssd, batch=2))


def seq2seq(fluid, np):
    """Translation with attention in a DynamicRNN, over sentences with a LoD."""
    return images(fluid, np, functools.partial(large_models.seq2seq, batch=8, words=1000, width=64))


def seq2seq_eager(fluid, np):
    """Imperative mode: an encoder and a decoder with attention, a GRU cell called for each word."""
    dygraph, layers, width, words = fluid.dygraph, fluid.layers, 64, 1000
    fluid.enable_dygraph(fluid.CPUPlace())
    source, target = (dygraph.Embedding([words, width]) for _ in range(2))
    reads, writes = dygraph.Linear(width, 3 * width), dygraph.Linear(2 * width, 3 * width)
    cells = [dygraph.GRUUnit(3 * width) for _ in range(2)]
    asks, out = dygraph.Linear(width, width), dygraph.Linear(width, words)
    parts = (source, target, reads, writes, *cells, asks, out)
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = fluid.optimizer.Adam(1e-3, parameter_list=parameters)
    random = np.random.RandomState(0)

    def step(at):
        length, goal = int(random.randint(5, 15)), int(random.randint(5, 15))
        given = random.randint(0, words, (8, length)).astype("int64")
        wanted = random.randint(0, words, (8, goal)).astype("int64")
        x = reads(source(dygraph.to_variable(given)))
        y = target(dygraph.to_variable(wanted))
        label = dygraph.to_variable(wanted[:, :, None])
        state, heard = dygraph.to_variable(np.zeros((8, width), "float32")), []
        for word in range(length):
            state = cells[0](x[:, word], state)[0]
            heard.append(state)
        heard, loss = layers.stack(heard, axis=1), 0.0
        for word in range(goal):
            weights = layers.softmax(layers.matmul(layers.unsqueeze(asks(state), [1]), heard, transpose_y=True))
            seen = layers.squeeze(layers.matmul(weights, heard), [1])
            state = cells[1](writes(layers.concat([seen, y[:, word]], axis=1)), state)[0]
            loss = loss + layers.mean(layers.softmax_with_cross_entropy(out(state), label[:, word]))
        loss = loss / float(goal)
        return trained(loss, optimizer, parameters)

    return step


def din(fluid, np):
    """What a user clicked, weighed by what is offered: padded to the longest history of a batch; the last is short."""
    layers, items, width = fluid.layers, 5000, 32
    clicked = fluid.data("clicked", [None, None], "int64")
    there = fluid.data("there", [None, None], "float32")
    offered = fluid.data("offered", [None, 1], "int64")
    label = fluid.data("label", [None, 1], "float32")
    attr = fluid.ParamAttr(name="items")
    past = fluid.embedding(clicked, [items, width], param_attr=attr)
    item = fluid.embedding(offered, [items, width], param_attr=attr)
    wide = layers.reshape(layers.expand_as(item, past), [0, 0, width])
    both = layers.concat([past, wide, past - wide, past * wide], axis=2)
    weight = layers.fc(layers.fc(both, 40, num_flatten_dims=2, act="sigmoid"), 1, 2)
    hidden = layers.scale(there, 1e9, bias=-1.0, bias_after_scale=False)
    weight = layers.softmax(layers.squeeze(weight, [2]) + hidden)
    user = layers.squeeze(layers.matmul(layers.unsqueeze(weight, [1]), past), [1])
    deep = layers.concat([user, layers.squeeze(item, [1])], axis=1)
    logit = layers.fc(layers.fc(layers.fc(deep, 80, act="relu"), 40, act="relu"), 1)
    loss = layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, label))
    fluid.optimizer.Adam(1e-3).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        longest, count = int(random.randint(5, 100)), 21 if step % 20 == 19 else 64
        lengths = random.randint(1, longest + 1, count)
        return {
            "clicked": random.randint(0, items, (count, longest)).astype("int64"),
            "there": (np.arange(longest) < lengths[:, None]).astype("float32"),
            "offered": random.randint(0, items, (count, 1)).astype("int64"),
            "label": random.randint(0, 2, (count, 1)).astype("float32"),
        }

    return static(fluid, loss, feed)


def xdeepfm(fluid, np):
    """Compressed interactions of 26 fields beside a deep network; the last batch of an epoch is short."""
    layers, fields, width, rows = fluid.layers, 26, 10, 10000
    ids = fluid.data("ids", [None, fields], "int64")
    dense = fluid.data("dense", [None, 13], "float32")
    label = fluid.data("label", [None, 1], "float32")
    x = fluid.embedding(ids, [rows, width])
    first = layers.transpose(x, [0, 2, 1])
    own, pooled = first, []
    for maps in (16, 16):
        pairs = layers.matmul(layers.unsqueeze(own, [3]), layers.unsqueeze(first, [2]))
        pairs = layers.reshape(pairs, [0, width, int(own.shape[2]) * fields])
        own = layers.fc(pairs, maps, num_flatten_dims=2, act="relu")
        pooled.append(layers.reduce_sum(own, dim=1))
    deep = layers.concat([layers.reshape(x, [0, fields * width]), dense], axis=1)
    for size in (100, 100):
        deep = layers.fc(deep, size, act="relu")
    linear = layers.reduce_sum(fluid.embedding(ids, [rows, 1]), dim=1)
    logit = layers.fc(layers.concat([deep] + pooled, axis=1), 1) + linear
    loss = layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, label))
    fluid.optimizer.Adam(1e-3).minimize(loss)
    random = np.random.RandomState(0)

    def feed(step):
        count = int(random.randint(1, 128)) if step % 10 == 9 else 128
        return {
            "ids": random.randint(0, rows, (count, fields)).astype("int64"),
            "dense": random.rand(count, 13).astype("float32"),
            "label": random.randint(0, 2, (count, 1)).astype("float32"),
        }

    return static(fluid, loss, feed)


STREAMS = {
    f.__name__: f
    for f in (
        mobilenet,
        resnet,
        yolo,
        ssd,
        bert,
        eager,
        tokens,
        seq2seq,
        seq2seq_eager,
        tagger,
        din,
        xdeepfm,
        episodes,
        gan,
        alternating,
        last_of_one,
    )
}
