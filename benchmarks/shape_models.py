"""Models of `first_loss.py` beyond its first ones: recommenders, detectors, translation.

Each is a function of the engine and NumPy that returns the loss and what makes the feed of a step, in the default
programs, without an optimizer.
"""


def din(fluid, np):
    """What a user clicked, weighed by what is offered; padded to the longest history of a batch."""
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
    weight = layers.fc(both, 80, num_flatten_dims=2, act="sigmoid")
    weight = layers.fc(layers.fc(weight, 40, num_flatten_dims=2, act="sigmoid"), 1, 2)
    hidden = layers.scale(there, 1e9, bias=-1.0, bias_after_scale=False)
    weight = layers.softmax(layers.squeeze(weight, [2]) + hidden)
    user = layers.squeeze(layers.matmul(layers.unsqueeze(weight, [1]), past), [1])
    x = layers.concat([user, layers.squeeze(item, [1])], axis=1)
    logit = layers.fc(layers.fc(x, 80, act="sigmoid"), 1)
    loss = layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, label))
    random = np.random.RandomState(0)

    def feed(step):
        longest = int(random.randint(10, 100))
        lengths = random.randint(1, longest + 1, 32)
        return {
            "clicked": random.randint(0, items, (32, longest)).astype("int64"),
            "there": (np.arange(longest) < lengths[:, None]).astype("float32"),
            "offered": random.randint(0, items, (32, 1)).astype("int64"),
            "label": random.randint(0, 2, (32, 1)).astype("float32"),
        }

    return loss, feed


def xdeepfm(fluid, np):
    """Products of features, layer by layer, beside a deep net; each tenth batch is short."""
    layers, fields, width, hidden = fluid.layers, 20, 10, 16
    ids = fluid.data("ids", [None, fields], "int64")
    values = fluid.data("values", [None, fields], "float32")
    label = fluid.data("label", [None, 1], "float32")
    rows = fluid.embedding(ids, [10000, width])
    rows = layers.elementwise_mul(rows, values, axis=0)
    x, sums = rows, []
    for _ in range(2):
        count = x.shape[1]
        left = layers.unsqueeze(layers.transpose(x, [0, 2, 1]), [3])
        right = layers.unsqueeze(layers.transpose(rows, [0, 2, 1]), [2])
        products = layers.reshape(layers.matmul(left, right), [0, width, count * fields])
        x = layers.transpose(layers.fc(products, hidden, num_flatten_dims=2), [0, 2, 1])
        sums.append(layers.reduce_sum(x, dim=2))
    deep = layers.reshape(rows, [0, fields * width])
    for size in (100, 100):
        deep = layers.fc(deep, size, act="relu")
    logit = layers.fc(layers.concat([*sums, deep], axis=1), 1)
    loss = layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, label))
    random = np.random.RandomState(0)

    def feed(step):
        count = int(random.randint(2, 64)) if step % 10 == 9 else 64
        return {
            "ids": random.randint(0, 10000, (count, fields)).astype("int64"),
            "values": random.rand(count, fields).astype("float32"),
            "label": random.randint(0, 2, (count, 1)).astype("float32"),
        }

    return loss, feed


def _convolved(fluid, x, filters, size=3, stride=1):
    layers = fluid.layers
    x = layers.conv2d(x, filters, size, stride, size // 2, bias_attr=False)
    return layers.leaky_relu(layers.batch_norm(x), 0.1)


def yolo(fluid, np):
    """YOLOv3 with a small backbone, at ten sizes of images."""
    layers, kinds, most = fluid.layers, 4, 8
    image = fluid.data("image", [None, 3, None, None], "float32")
    boxes = fluid.data("boxes", [None, most, 4], "float32")
    label = fluid.data("label", [None, most], "int32")
    x, routes = _convolved(fluid, image, 8), []
    for filters in (16, 32, 64, 64, 128):
        x = _convolved(fluid, x, filters, 3, 2)
        x = x + _convolved(fluid, _convolved(fluid, x, filters // 2, 1), filters)
        routes.append(x)
    anchors, losses = [10, 13, 16, 30, 33, 23, 30, 61, 62, 45, 59, 119], []
    for chosen, smaller in (([3, 4, 5], 32), ([0, 1, 2], 16)):
        if losses:
            x = layers.resize_nearest(_convolved(fluid, x, 32, 1), scale=2.0)
            x = layers.concat([x, routes[3]], axis=1)
        x = _convolved(fluid, x, 64)
        out = layers.conv2d(x, 3 * (5 + kinds), 1)
        loss = layers.yolov3_loss(
            out, boxes, label, anchors, chosen, kinds, 0.7, smaller, use_label_smooth=False
        )
        losses.append(layers.reduce_mean(loss))
    random = np.random.RandomState(0)

    def feed(step):
        size = 32 * int(random.randint(3, 13))
        return {
            "image": random.rand(2, 3, size, size).astype("float32"),
            "boxes": random.uniform(0.2, 0.6, (2, most, 4)).astype("float32"),
            "label": random.randint(0, kinds, (2, most)).astype("int32"),
        }

    return losses[0] + losses[1], feed


def ssd(fluid, np):
    """SSD with a small backbone on 96 x 96 images, whose boxes are sequences."""
    layers, kinds = fluid.layers, 5
    image = fluid.data("image", [None, 3, 96, 96], "float32")
    boxes = fluid.data("boxes", [None, 4], "float32", lod_level=1)
    label = fluid.data("label", [None, 1], "int32", lod_level=1)
    x, seen = image, []
    for filters in (8, 16, 32, 32, 64):
        x = _convolved(fluid, _convolved(fluid, x, filters, 3, 2), filters)
        seen.append(x)
    places, scores, priors, variances = layers.multi_box_head(
        seen[2:],
        image,
        96,
        kinds,
        [[2.0], [2.0, 3.0], [2.0]],
        min_ratio=20,
        max_ratio=90,
        offset=0.5,
        flip=True,
    )
    loss = layers.ssd_loss(places, scores, boxes, label, priors, variances)
    random = np.random.RandomState(0)

    def feed(step):
        lengths = random.randint(1, 8, 4).tolist()
        corner = random.uniform(0, 0.5, (sum(lengths), 2))
        given = np.concatenate([corner, corner + random.uniform(0.1, 0.5, corner.shape)], 1)
        found = random.randint(1, kinds, (len(given), 1)).astype("int32")
        place = fluid.CPUPlace()
        return {
            "image": random.rand(4, 3, 96, 96).astype("float32"),
            "boxes": fluid.create_lod_tensor(given.astype("float32"), [lengths], place),
            "label": fluid.create_lod_tensor(found, [lengths], place),
        }

    return layers.reduce_sum(loss), feed


def translation(fluid, np):
    """Recurrent networks with attention between them: the lengths of both sides differ."""
    layers, words, width = fluid.layers, 1000, 64
    source = fluid.data("source", [None, None], "int64")
    goal = fluid.data("goal", [None, None], "int64")
    label = fluid.data("label", [None, None, 1], "int64")
    length = fluid.data("length", [None], "int64")
    x = fluid.embedding(source, [words, width])
    seen, last = layers.rnn(layers.GRUCell(width, name="encoder"), x, sequence_length=length)
    x = fluid.embedding(goal, [words, width])
    made, _ = layers.rnn(layers.GRUCell(width, name="decoder"), x, initial_states=last)
    scores = layers.softmax(layers.matmul(made, seen, transpose_y=True))
    both = layers.concat([made, layers.matmul(scores, seen)], axis=2)
    found = layers.fc(both, words, num_flatten_dims=2)
    loss = layers.mean(layers.softmax_with_cross_entropy(found, label))
    random = np.random.RandomState(0)

    def feed(step):
        longest, target = int(random.randint(5, 40)), int(random.randint(5, 40))
        return {
            "source": random.randint(0, words, (16, longest)).astype("int64"),
            "goal": random.randint(0, words, (16, target)).astype("int64"),
            "label": random.randint(0, words, (16, target, 1)).astype("int64"),
            "length": random.randint(2, longest + 1, 16).astype("int64"),
        }

    return loss, feed


MODELS = (din, xdeepfm, yolo, ssd, translation)
