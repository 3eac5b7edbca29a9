"""Fluid's models on sequences, written once for any engine that offers the Fluid API (Python 3.7
syntax).

As in `programs.py`: each builder returns (loss, feed).
"""

from tests.parity import recommend
from tests.parity.data import labels, sequences, with_an_empty
from tests.parity.translation import translation


def sentiment_conv(fluid):
    layers = fluid.layers
    data = layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    label = layers.data(name="label", shape=[1], dtype="int64")
    emb = layers.embedding(input=data, size=[30, 8], is_sparse=True)
    conv_3 = fluid.nets.sequence_conv_pool(input=emb, num_filters=6, filter_size=3, act="tanh", pool_type="sqrt")
    conv_4 = fluid.nets.sequence_conv_pool(input=emb, num_filters=6, filter_size=4, act="tanh", pool_type="sqrt")
    prediction = layers.fc(input=[conv_3, conv_4], size=2, act="softmax")
    loss = layers.mean(layers.cross_entropy(input=prediction, label=label))
    layers.accuracy(input=prediction, label=label)
    fluid.optimizer.Adagrad(learning_rate=0.05).minimize(loss)
    return loss, lambda r: {
        "words": sequences(fluid, r, with_an_empty(r, 8, 5)),
        "label": labels(r, 5, 2),
    }


def sentiment_lstm(fluid):
    layers = fluid.layers
    data = layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    label = layers.data(name="label", shape=[1], dtype="int64")
    emb = layers.embedding(input=data, size=[30, 8], is_sparse=True)
    fc_1 = layers.fc(input=emb, size=16)
    lstm_1, _ = layers.dynamic_lstm(input=fc_1, size=16)
    inputs = [fc_1, lstm_1]
    for i in range(2, 4):
        fc = layers.fc(input=inputs, size=16)
        lstm, _ = layers.dynamic_lstm(input=fc, size=16, is_reverse=(i % 2) == 0)
        inputs = [fc, lstm]
    pooled = [layers.sequence_pool(input=x, pool_type="max") for x in inputs]
    prediction = layers.fc(input=pooled, size=2, act="softmax")
    loss = layers.mean(layers.cross_entropy(input=prediction, label=label))
    fluid.optimizer.Adam(learning_rate=0.01).minimize(loss)
    return loss, lambda r: {
        "words": sequences(fluid, r, with_an_empty(r, 8, 5)),
        "label": labels(r, 5, 2),
    }


def sentiment_dynamic_rnn(fluid):
    layers = fluid.layers
    data = layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    label = layers.data(name="label", shape=[1], dtype="int64")
    sentence = layers.fc(input=layers.embedding(input=data, size=[30, 8]), size=8, act="tanh")
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(sentence)
        prev_hidden = rnn.memory(value=0.0, shape=[8])
        prev_cell = rnn.memory(value=0.0, shape=[8])

        def gate(name):
            parts = [layers.fc(input=x, size=8, bias_attr=(name != "c")) for x in (word, prev_hidden)]
            return layers.sums(input=parts)

        forget, enter, leave = (layers.sigmoid(x=gate(n)) for n in "fio")
        cell = layers.sums(
            input=[
                layers.elementwise_mul(x=forget, y=prev_cell),
                layers.elementwise_mul(x=enter, y=layers.tanh(x=gate("c"))),
            ]
        )
        hidden = layers.elementwise_mul(x=leave, y=layers.tanh(x=cell))
        rnn.update_memory(prev_cell, cell)
        rnn.update_memory(prev_hidden, hidden)
        rnn.output(hidden)
    last = layers.sequence_pool(rnn(), "last")
    prediction = layers.fc(input=last, size=2, act="softmax")
    loss = layers.mean(layers.cross_entropy(input=prediction, label=label))
    fluid.optimizer.Adam(learning_rate=0.01).minimize(loss)
    return loss, lambda r: {
        "words": sequences(fluid, r, with_an_empty(r, 8, 5)),
        "label": labels(r, 5, 2),
    }


def semantic_roles(fluid):
    layers = fluid.layers
    names = ("word", "ctx_n1", "ctx_0", "ctx_p1")
    words = [layers.data(name=n, shape=[1], dtype="int64", lod_level=1) for n in names]
    predicate = layers.data(name="verb", shape=[1], dtype="int64", lod_level=1)
    mark = layers.data(name="mark", shape=[1], dtype="int64", lod_level=1)
    target = layers.data(name="target", shape=[1], dtype="int64", lod_level=1)
    embs = [
        layers.embedding(size=[30, 6], input=w, param_attr=fluid.ParamAttr(name="emb", trainable=False)) for w in words
    ]
    embs += [
        layers.embedding(input=predicate, size=[10, 6], param_attr="vemb"),
        layers.embedding(input=mark, size=[2, 4]),
    ]
    hidden = layers.sums(input=[layers.fc(input=e, size=16, act="tanh") for e in embs])
    lstm, _ = layers.dynamic_lstm(
        input=hidden,
        size=16,
        candidate_activation="relu",
        gate_activation="sigmoid",
        cell_activation="sigmoid",
    )
    inputs = [hidden, lstm]
    for i in range(1, 3):
        mix = layers.sums(input=[layers.fc(input=x, size=16, act="tanh") for x in inputs])
        lstm, _ = layers.dynamic_lstm(
            input=mix,
            size=16,
            candidate_activation="relu",
            gate_activation="sigmoid",
            cell_activation="sigmoid",
            is_reverse=(i % 2) == 1,
        )
        inputs = [mix, lstm]
    feature = layers.sums(input=[layers.fc(input=x, size=7, act="tanh") for x in inputs])
    cost = layers.linear_chain_crf(
        input=feature, label=target, param_attr=fluid.ParamAttr(name="crfw", learning_rate=1e-1)
    )
    loss = layers.mean(cost)
    decoded = layers.crf_decoding(input=feature, param_attr=fluid.ParamAttr(name="crfw"))
    layers.chunk_eval(input=decoded, label=target, chunk_scheme="IOB", num_chunk_types=3)
    fluid.optimizer.SGD(learning_rate=fluid.layers.exponential_decay(0.05, 10, 0.5, staircase=True)).minimize(loss)

    def feed(r):
        lengths = with_an_empty(r, 7, 4)
        found = {n: sequences(fluid, r, lengths) for n in names}
        found["verb"], found["mark"] = (sequences(fluid, r, lengths, n) for n in (10, 2))
        found["target"] = sequences(fluid, r, lengths, 7)
        return found

    return loss, feed


def documents(fluid):
    """Words in sentences in documents: two levels, fed by a DataFeeder."""
    layers = fluid.layers
    words = layers.data(name="words", shape=[1], dtype="int64", lod_level=2)
    label = layers.data(name="label", shape=[1], dtype="int64")
    emb = layers.embedding(input=words, size=[30, 8])
    sentences = layers.concat([layers.sequence_pool(emb, "average"), layers.sequence_pool(emb, "max")], axis=1)
    gru = layers.dynamic_gru(layers.fc(sentences, size=18), size=6)
    prediction = layers.fc(input=layers.sequence_pool(gru, "last"), size=3, act="softmax")
    loss = layers.mean(layers.cross_entropy(input=prediction, label=label))
    fluid.optimizer.Adam(learning_rate=0.02).minimize(loss)
    feeder = fluid.DataFeeder([words, label], fluid.CPUPlace())

    def feed(r):
        sizes = with_an_empty(r, 4, 5)
        return feeder.feed(
            [([r.randint(0, 30, n).tolist() for n in r.randint(0, 6, size)], int(r.randint(3))) for size in sizes]
        )

    return loss, feed


PROGRAMS = (
    sentiment_conv,
    sentiment_lstm,
    sentiment_dynamic_rnn,
    semantic_roles,
    documents,
    translation,
) + recommend.PROGRAMS
