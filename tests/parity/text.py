"""Recognition of text with CTC, and decoders of translation models, for any engine that offers the
Fluid API (Python 3.7 syntax).

As in `programs.py`: each builder returns (loss, feed).
"""

import numpy as np

from tests.parity.data import sequences

STEPS = 5


def crnn(fluid, classes=5, height=8, width=24):
    """Convolutions over lines of text, GRUs over their columns, CTC."""
    layers = fluid.layers
    images = layers.data(name="pixel", shape=[1, height, width], dtype="float32")
    label = layers.data(name="label", shape=[1], dtype="int32", lod_level=1)
    seen = images
    for channels, pool in ((4, 2), (6, (2, 1))):
        seen = layers.conv2d(input=seen, num_filters=channels, filter_size=3, padding=1, bias_attr=False)
        seen = layers.batch_norm(input=seen, act="relu")
        seen = layers.pool2d(input=seen, pool_size=pool, pool_stride=pool, pool_type="max", ceil_mode=True)
    columns = layers.im2sequence(input=seen, stride=[1, 1], filter_size=[seen.shape[2], 1])
    states = []
    for backwards in (False, True):
        projected = layers.fc(input=columns, size=3 * 6, bias_attr=True)
        states.append(layers.dynamic_gru(input=projected, size=6, is_reverse=backwards, candidate_activation="relu"))
    out = layers.fc(input=states, size=classes + 1)
    cost = layers.warpctc(input=out, label=label, blank=classes, norm_by_times=True)
    loss = layers.reduce_sum(cost)
    layers.edit_distance(
        input=layers.ctc_greedy_decoder(input=out, blank=classes),
        label=layers.cast(label, "int64"),
    )
    fluid.optimizer.Momentum(learning_rate=0.01, momentum=0.9, regularization=fluid.regularizer.L2Decay(4e-4)).minimize(
        loss
    )

    def feed(r):
        lengths = r.randint(1, 5, 4).tolist()
        labels = r.randint(0, classes, (sum(lengths), 1)).astype("int32")
        return {
            "pixel": r.rand(4, 1, height, width).astype("float32"),
            "label": fluid.create_lod_tensor(labels, [lengths], fluid.CPUPlace()),
        }

    return loss, feed


WORDS, WIDTH = 20, 8


def _cell(fluid):
    """The encoder, and a cell of a decoder that begins with its last state."""
    layers, contrib = fluid.layers, fluid.contrib
    source = layers.data(name="source", shape=[1], dtype="int64", lod_level=1)
    emb = layers.embedding(input=source, size=[WORDS, WIDTH], param_attr="source_emb", is_sparse=True)
    projected = layers.fc(input=emb, size=3 * WIDTH, act="tanh", param_attr="e_w", bias_attr="e_b")
    hidden = layers.dynamic_gru(input=projected, size=WIDTH, param_attr="g_w", bias_attr="g_b")
    last = layers.sequence_last_step(input=hidden)
    cell = contrib.StateCell(
        inputs={"x": None},
        states={"h": contrib.InitState(init=last, need_reorder=True)},
        out_state="h",
    )

    @cell.state_updater
    def updater(cell):
        word, state = cell.get_input("x"), cell.get_state("h")
        new = layers.fc(
            input=[state, word],
            size=WIDTH,
            act="tanh",
            param_attr=[fluid.ParamAttr(name="d_h"), fluid.ParamAttr(name="d_x")],
            bias_attr="d_b",
        )
        cell.set_state("h", new)

    return cell


def contrib_decoder(fluid):
    """Translation with the decoder of contrib."""
    layers = fluid.layers
    decoder = fluid.contrib.TrainingDecoder(_cell(fluid))
    target = layers.data(name="target", shape=[1], dtype="int64", lod_level=1)
    emb = layers.embedding(input=target, size=[WORDS, WIDTH], param_attr="target_emb", is_sparse=True)
    with decoder.block():
        decoder.state_cell.compute_state(inputs={"x": decoder.step_input(emb)})
        chances = layers.fc(
            input=decoder.state_cell.get_state("h"),
            size=WORDS,
            act="softmax",
            param_attr="out_w",
            bias_attr="out_b",
        )
        decoder.state_cell.update_states()
        decoder.output(chances)
    following = layers.data(name="following", shape=[1], dtype="int64", lod_level=1)
    loss = layers.mean(layers.cross_entropy(input=decoder(), label=following))
    fluid.optimizer.Adagrad(learning_rate=0.1).minimize(loss)

    def feed(r):
        source = sequences(fluid, r, r.randint(1, 6, 3), WORDS)
        lengths, place = r.randint(1, 5, 3).tolist(), fluid.CPUPlace()
        words = r.randint(0, WORDS, (2, sum(lengths), 1)).astype("int64")
        return {
            "source": source,
            "target": fluid.create_lod_tensor(words[0], [lengths], place),
            "following": fluid.create_lod_tensor(words[1], [lengths], place),
        }

    return loss, feed


def contrib_beam_search(fluid, batch=3):
    """Its sentences by beam search. Returns (what to fetch, feed)."""
    layers = fluid.layers
    ids = layers.data(name="init_ids", shape=[1], dtype="int64", lod_level=2)
    scores = layers.data(name="init_scores", shape=[1], dtype="float32", lod_level=2)
    decoder = fluid.contrib.BeamSearchDecoder(
        state_cell=_cell(fluid),
        init_ids=ids,
        init_scores=scores,
        target_dict_dim=WORDS,
        word_dim=WIDTH,
        topk_size=5,
        max_len=5,
        beam_size=2,
        end_id=1,
    )
    decoder.decode()

    def feed(r):
        lod, place = [[1] * batch, [1] * batch], fluid.CPUPlace()
        return {
            "source": sequences(fluid, r, r.randint(1, 6, batch), WORDS),
            "init_ids": fluid.create_lod_tensor(np.zeros((batch, 1), "int64"), lod, place),
            "init_scores": fluid.create_lod_tensor(np.zeros((batch, 1), "float32"), lod, place),
        }

    return list(decoder()), feed


def _basic(fluid, build):
    layers = fluid.layers
    words = fluid.data(name="x", shape=[3, 4, 5], dtype="float32")
    lengths = fluid.data(name="lengths", shape=[3], dtype="int64")
    outs = build(words, lengths)
    loss = layers.sums([layers.mean(layers.square(out)) for out in outs])
    fluid.optimizer.Adam(learning_rate=0.05).minimize(loss)
    return loss, lambda r: {
        "x": r.randn(3, 4, 5).astype("float32"),
        "lengths": r.randint(1, 5, 3).astype("int64"),
    }


def basic_gru(fluid):
    gru = fluid.contrib.layers.basic_gru
    return _basic(
        fluid,
        lambda x, lengths: gru(x, None, 4, num_layers=2, sequence_length=lengths, bidirectional=True),
    )


def basic_lstm(fluid):
    lstm = fluid.contrib.layers.basic_lstm

    def build(x, lengths):
        begin = fluid.layers.fill_constant([2, 3, 4], "float32", 0.5)
        return lstm(x, begin, begin, 4, sequence_length=lengths, bidirectional=True)

    return _basic(fluid, build)


def _recurrent_decoder(fluid, helper):
    cell = fluid.layers.GRUCell(hidden_size=WIDTH, name="cell")
    return cell, fluid.layers.BasicDecoder(
        cell,
        helper,
        lambda x: fluid.layers.fc(x, size=WORDS, param_attr="out_w", bias_attr="out_b"),
    )


def training_helper(fluid):
    """What a decoder gives that gets the true words. Returns (what to fetch, feed)."""
    target = fluid.data(name="target", shape=[None, None], dtype="int64")
    lengths = fluid.data(name="lengths", shape=[None], dtype="int64")
    emb = fluid.embedding(target, size=[WORDS, WIDTH], param_attr="emb")
    cell, decoder = _recurrent_decoder(fluid, fluid.layers.TrainingHelper(emb, lengths))
    (out, ids), state, found = fluid.layers.dynamic_decode(
        decoder,
        inits=cell.get_initial_states(emb),
        is_test=False,
        impute_finished=True,
        return_length=True,
    )
    return [out, ids, state, found], lambda r: {
        "target": r.randint(0, WORDS, (3, 4)).astype("int64"),
        "lengths": r.randint(1, 5, 3).astype("int64"),
    }


def training_helper_trained(fluid):
    """Training with it; the longest sequence has 4 words."""
    layers = fluid.layers
    [out, _, state, found], feed = training_helper(fluid)
    label = fluid.data(name="label", shape=[None, None, 1], dtype="int64")
    cost = layers.squeeze(layers.softmax_with_cross_entropy(out, label), [2])
    mask = layers.sequence_mask(found, maxlen=4, dtype="float32")
    loss = layers.reduce_sum(layers.elementwise_mul(cost, mask)) + layers.mean(state)
    fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)

    def with_labels(r):
        found = feed(r)
        found["lengths"][1] = 4
        return dict(found, label=r.randint(0, WORDS, (3, 4, 1)).astype("int64"))

    return loss, with_labels


def greedy_helper(fluid):
    """Sentences of the best words. Returns (what to fetch, feed)."""
    layers = fluid.layers
    start = fluid.data(name="start", shape=[None], dtype="int64")
    boot = fluid.data(name="boot", shape=[None, WIDTH], dtype="float32")
    helper = layers.GreedyEmbeddingHelper(
        lambda ids: fluid.embedding(ids, size=[WORDS, WIDTH], param_attr="emb"), start, end_token=3
    )
    _, decoder = _recurrent_decoder(fluid, helper)
    (out, ids), _, lengths = layers.dynamic_decode(decoder, inits=boot, max_step_num=6, return_length=True)
    return [out, ids, lengths], lambda r: {
        "start": r.randint(0, WORDS, 4).astype("int64"),
        "boot": 3 * r.randn(4, WIDTH).astype("float32"),
    }


PROGRAMS = [crnn, contrib_decoder, basic_gru, basic_lstm, training_helper_trained]
INFERENCE = [contrib_beam_search, training_helper, greedy_helper]
