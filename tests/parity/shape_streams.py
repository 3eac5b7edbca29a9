"""Small programs whose batches change shape at each step, written once for any engine that offers the
Fluid API (Python 3.7 syntax). A program is a function of the engine that returns its loss, and what
makes the feed of a step.
"""

import numpy as np

from tests.parity.programs import new_scope, set_parameters

STEPS, WORDS, WIDTH, HEADS = 12, 50, 16, 2


def ids(fluid, random, most, *shape):
    return random.randint(0, most, shape).astype("int64")


def bert(fluid):
    """Masked words: the length of sentences and the number of masked words differ."""
    layers = fluid.layers
    words = fluid.data("words", [None, None], "int64")
    there = fluid.data("there", [None, None, 1], "float32")
    picked = fluid.data("picked", [None, 1], "int64")
    label = fluid.data("label", [None, 1], "int64")
    x = layers.layer_norm(fluid.embedding(words, [WORDS, WIDTH]), begin_norm_axis=2)
    bias = layers.matmul(there, there, transpose_y=True)
    bias = layers.scale(bias, 10000.0, bias=-1.0, bias_after_scale=False)
    bias = layers.stack([bias] * HEADS, axis=1)
    bias.stop_gradient = True

    def divided(value):
        return layers.transpose(layers.reshape(value, [0, 0, HEADS, WIDTH // HEADS]), [0, 2, 1, 3])

    q, k, v = (divided(layers.fc(x, WIDTH, num_flatten_dims=2)) for _ in range(3))
    weights = layers.softmax(layers.matmul(q, k, transpose_y=True, alpha=0.35) + bias)
    out = layers.transpose(layers.matmul(weights, v), [0, 2, 1, 3])
    out = layers.fc(layers.reshape(out, [0, 0, WIDTH]), WIDTH, num_flatten_dims=2)
    x = layers.layer_norm(x + out, begin_norm_axis=2)
    x = x + layers.fc(layers.fc(x, 2 * WIDTH, num_flatten_dims=2, act="gelu"), WIDTH, 2)
    found = layers.fc(layers.gather(layers.reshape(x, [-1, WIDTH]), picked), WORDS)
    loss = layers.mean(layers.softmax_with_cross_entropy(found, label))

    def feed(random):
        length, masked = random.randint(6, 30), random.randint(3, 14)
        lengths = random.randint(3, length + 1, 4)
        mask = np.arange(length) < lengths[:, None]
        return {
            "words": ids(fluid, random, WORDS, 4, length),
            "there": mask[:, :, None].astype("float32"),
            "picked": ids(fluid, random, 4 * length, masked, 1),
            "label": ids(fluid, random, WORDS, masked, 1),
        }

    return loss, feed


def seq2seq(fluid):
    """Recurrent networks with attention between them: the lengths of both sides differ."""
    layers = fluid.layers
    source = fluid.data("source", [None, None], "int64")
    goal = fluid.data("goal", [None, None], "int64")
    label = fluid.data("label", [None, None, 1], "int64")
    length = fluid.data("length", [None], "int64")

    def read(words, name, cell_name):
        x = fluid.embedding(words, [WORDS, WIDTH], param_attr=fluid.ParamAttr(name=name))
        return x, layers.GRUCell(WIDTH, name=cell_name)

    x, cell = read(source, "source_w", "encoder")
    seen, last = layers.rnn(cell, x, sequence_length=length)
    x, cell = read(goal, "goal_w", "decoder")
    made, _ = layers.rnn(cell, x, initial_states=last)
    scores = layers.softmax(layers.matmul(made, seen, transpose_y=True))
    both = layers.concat([made, layers.matmul(scores, seen)], axis=2)
    found = layers.fc(both, WORDS, num_flatten_dims=2)
    loss = layers.mean(layers.softmax_with_cross_entropy(found, label))

    def feed(random):
        longest, target = random.randint(4, 20), random.randint(4, 20)
        return {
            "source": ids(fluid, random, WORDS, 3, longest),
            "goal": ids(fluid, random, WORDS, 3, target),
            "label": ids(fluid, random, WORDS, 3, target, 1),
            "length": random.randint(2, longest + 1, 3).astype("int64"),
        }

    return loss, feed


def din(fluid):
    """What a user clicked, weighed by what is offered: padded to the longest history of a batch."""
    layers = fluid.layers
    clicked = fluid.data("clicked", [None, None], "int64")
    there = fluid.data("there", [None, None], "float32")
    offered = fluid.data("offered", [None, 1], "int64")
    label = fluid.data("label", [None, 1], "float32")
    attr = fluid.ParamAttr(name="items")
    past = fluid.embedding(clicked, [WORDS, WIDTH], param_attr=attr)
    item = fluid.embedding(offered, [WORDS, WIDTH], param_attr=attr)
    wide = layers.reshape(layers.expand_as(item, past), [0, 0, WIDTH])
    both = layers.concat([past, wide, past - wide, past * wide], axis=2)
    weight = layers.fc(layers.fc(both, 8, num_flatten_dims=2, act="sigmoid"), 1, 2)
    hidden = layers.scale(there, 1e9, bias=-1.0, bias_after_scale=False)
    weight = layers.softmax(layers.squeeze(weight, [2]) + hidden)
    user = layers.squeeze(layers.matmul(layers.unsqueeze(weight, [1]), past), [1])
    logit = layers.fc(layers.concat([user, layers.squeeze(item, [1])], axis=1), 1)
    loss = layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, label))

    def feed(random):
        longest, count = random.randint(5, 40), random.randint(6, 12)
        lengths = random.randint(1, longest + 1, count)
        return {
            "clicked": ids(fluid, random, WORDS, count, longest),
            "there": (np.arange(longest) < lengths[:, None]).astype("float32"),
            "offered": ids(fluid, random, WORDS, count, 1),
            "label": random.randint(0, 2, (count, 1)).astype("float32"),
        }

    return loss, feed


def episodes(fluid):
    """A policy gradient: episodes end when they end."""
    layers = fluid.layers
    seen = fluid.data("seen", [None, 4], "float32")
    act = fluid.data("act", [None, 1], "int64")
    reward = fluid.data("reward", [None, 1], "float32")
    policy = layers.fc(layers.fc(seen, 20, act="tanh"), 2, act="softmax")
    chosen = layers.reduce_sum(policy * fluid.one_hot(layers.squeeze(act, [1]), 2), dim=1)
    loss = layers.reduce_mean(-1.0 * layers.log(chosen) * layers.squeeze(reward, [1]))

    def feed(random):
        length = random.randint(9, 200)
        return {
            "seen": random.randn(length, 4).astype("float32"),
            "act": ids(fluid, random, 2, length, 1),
            "reward": random.randn(length, 1).astype("float32"),
        }

    return loss, feed


def lod_gru(fluid):
    """Sentences with a LoD through a recurrent network."""
    layers = fluid.layers
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    label = fluid.data("label", [None, 1], "int64")
    x = layers.embedding(words, [WORDS, WIDTH])
    x = layers.dynamic_gru(layers.fc(x, 3 * WIDTH), WIDTH)
    given = layers.fc(layers.sequence_pool(x, "last"), 3, act="softmax")
    loss = layers.mean(layers.cross_entropy(given, label))

    def feed(random):
        lengths = random.randint(1, 12, 5).tolist()
        values = ids(fluid, random, WORDS, sum(lengths), 1)
        return {
            "words": fluid.create_lod_tensor(values, [lengths], fluid.CPUPlace()),
            "label": ids(fluid, random, 3, 5, 1),
        }

    return loss, feed


STREAMS = (bert, seq2seq, din, episodes, lod_gru)


def run(fluid, build):
    """Return the losses of a stream of batches."""
    main, startup, scope = fluid.Program(), fluid.Program(), new_scope(fluid)
    with fluid.scope_guard(scope), fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, feed = build(fluid)
        fluid.optimizer.SGD(0.2).minimize(loss)
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        set_parameters(fluid, main, scope)
        random = np.random.RandomState(0)
        found = [executor.run(main, feed=feed(random), fetch_list=[loss]) for _ in range(STEPS)]
    return [float(np.ravel(value)[0]) for (value,) in found]
