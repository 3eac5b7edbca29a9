"""Fluid's models on sequences, written once for any engine that offers the Fluid API (Python 3.7 syntax).

As in `programs.py`: each builder returns (loss, feed). The lengths of sequences differ from batch to batch.
"""
import numpy as np


def _sequences(fluid, rng, lengths, vocabulary=30, width=None):
    """A LoDTensor of ids (or of rows) in sequences of the given lengths."""
    rows = int(sum(lengths))
    data = rng.randint(0, vocabulary, (rows, 1)).astype("int64") if width is None else rng.randn(rows, width).astype("float32")
    return fluid.create_lod_tensor(data, [[int(n) for n in lengths]], fluid.CPUPlace())


def _labels(rng, batch, classes):
    return rng.randint(0, classes, (batch, 1)).astype("int64")


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
    return loss, lambda r: {"words": _sequences(fluid, r, r.randint(1, 9, 5)), "label": _labels(r, 5, 2)}


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
    return loss, lambda r: {"words": _sequences(fluid, r, r.randint(1, 9, 5)), "label": _labels(r, 5, 2)}


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
        cell = layers.sums(input=[layers.elementwise_mul(x=forget, y=prev_cell),
                                  layers.elementwise_mul(x=enter, y=layers.tanh(x=gate("c")))])
        hidden = layers.elementwise_mul(x=leave, y=layers.tanh(x=cell))
        rnn.update_memory(prev_cell, cell)
        rnn.update_memory(prev_hidden, hidden)
        rnn.output(hidden)
    last = layers.sequence_pool(rnn(), "last")
    prediction = layers.fc(input=last, size=2, act="softmax")
    loss = layers.mean(layers.cross_entropy(input=prediction, label=label))
    fluid.optimizer.Adam(learning_rate=0.01).minimize(loss)
    return loss, lambda r: {"words": _sequences(fluid, r, r.randint(1, 9, 5)), "label": _labels(r, 5, 2)}


def _ngram(fluid, **options):
    words = [fluid.layers.data(name="word_%d" % i, shape=[1], dtype="int64") for i in range(5)]
    embeds = [fluid.layers.embedding(input=w, size=[20, 6], param_attr="shared_w", **options) for w in words[:4]]
    hidden = fluid.layers.fc(input=fluid.layers.concat(input=embeds, axis=1), size=12, act="sigmoid")
    return hidden, words[4], lambda r: {"word_%d" % i: _labels(r, 8, 20) for i in range(5)}


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


def semantic_roles(fluid):
    layers = fluid.layers
    names = ("word", "ctx_n1", "ctx_0", "ctx_p1")
    words = [layers.data(name=n, shape=[1], dtype="int64", lod_level=1) for n in names]
    predicate = layers.data(name="verb", shape=[1], dtype="int64", lod_level=1)
    mark = layers.data(name="mark", shape=[1], dtype="int64", lod_level=1)
    target = layers.data(name="target", shape=[1], dtype="int64", lod_level=1)
    embs = [layers.embedding(size=[30, 6], input=w, param_attr=fluid.ParamAttr(name="emb", trainable=False)) for w in words]
    embs += [layers.embedding(input=predicate, size=[10, 6], param_attr="vemb"), layers.embedding(input=mark, size=[2, 4])]
    hidden = layers.sums(input=[layers.fc(input=e, size=16, act="tanh") for e in embs])
    lstm, _ = layers.dynamic_lstm(input=hidden, size=16, candidate_activation="relu", gate_activation="sigmoid",
                                  cell_activation="sigmoid")
    inputs = [hidden, lstm]
    for i in range(1, 3):
        mix = layers.sums(input=[layers.fc(input=x, size=16, act="tanh") for x in inputs])
        lstm, _ = layers.dynamic_lstm(input=mix, size=16, candidate_activation="relu", gate_activation="sigmoid",
                                      cell_activation="sigmoid", is_reverse=(i % 2) == 1)
        inputs = [mix, lstm]
    feature = layers.sums(input=[layers.fc(input=x, size=7, act="tanh") for x in inputs])
    cost = layers.linear_chain_crf(input=feature, label=target, param_attr=fluid.ParamAttr(name="crfw", learning_rate=1e-1))
    loss = layers.mean(cost)
    decoded = layers.crf_decoding(input=feature, param_attr=fluid.ParamAttr(name="crfw"))
    layers.chunk_eval(input=decoded, label=target, chunk_scheme="IOB", num_chunk_types=3)
    fluid.optimizer.SGD(learning_rate=fluid.layers.exponential_decay(0.05, 10, 0.5, staircase=True)).minimize(loss)

    def feed(r):
        lengths = r.randint(1, 8, 4)
        found = {n: _sequences(fluid, r, lengths) for n in names}
        found["verb"], found["mark"] = (_sequences(fluid, r, lengths, n) for n in (10, 2))
        found["target"] = _sequences(fluid, r, lengths, 7)
        return found

    return loss, feed


def _encoder(fluid, words=20, width=8):
    layers = fluid.layers
    source = layers.data(name="source", shape=[1], dtype="int64", lod_level=1)
    emb = layers.embedding(input=source, size=[words, width], param_attr="source_emb", is_sparse=True)
    forward = layers.dynamic_gru(input=layers.fc(input=emb, size=3 * width, bias_attr=False, param_attr="enc_f"), size=width,
                                 param_attr="enc_fg", bias_attr="enc_fgb")
    backward = layers.dynamic_gru(input=layers.fc(input=emb, size=3 * width, bias_attr=False, param_attr="enc_b"), size=width,
                                  is_reverse=True, param_attr="enc_bg", bias_attr="enc_bgb")
    encoded = layers.concat(input=[forward, backward], axis=1)
    boot = layers.fc(input=layers.sequence_pool(input=backward, pool_type="first"), size=width, act="tanh",
                     bias_attr=False, param_attr="boot")
    return encoded, layers.fc(input=encoded, size=width, bias_attr=False, param_attr="proj"), boot


def _attention(fluid, state, encoded, projected, width=8):
    """The mean of the encoder's rows, weighted by how well they fit the decoder's state."""
    layers = fluid.layers
    query = layers.fc(input=state, size=width, bias_attr=False, param_attr="att_q")
    spread = layers.sequence_expand(x=query, y=projected)
    scores = layers.fc(input=layers.tanh(layers.elementwise_add(projected, spread)), size=1, bias_attr=False,
                       param_attr="att_v")
    weights = layers.reshape(layers.sequence_softmax(input=scores), shape=[-1])
    return layers.sequence_pool(input=layers.elementwise_mul(x=encoded, y=weights, axis=0), pool_type="sum")


def translation(fluid):
    layers, words, width = fluid.layers, 20, 8
    encoded, projected, boot = _encoder(fluid)
    target = layers.data(name="target", shape=[1], dtype="int64", lod_level=1)
    following = layers.data(name="following", shape=[1], dtype="int64", lod_level=1)
    emb = layers.embedding(input=target, size=[words, width], param_attr="target_emb", is_sparse=True)
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(emb)
        vectors, keys = rnn.static_input(encoded), rnn.static_input(projected)
        state = rnn.memory(init=boot, need_reorder=True)
        context = _attention(fluid, state, vectors, keys)
        gates = layers.fc(input=[context, word], size=3 * width, bias_attr=False,
                          param_attr=[fluid.ParamAttr(name="dec_c"), fluid.ParamAttr(name="dec_w")])
        new, _, _ = layers.gru_unit(input=gates, hidden=state, size=3 * width, param_attr="dec_g", bias_attr="dec_gb")
        rnn.update_memory(state, new)
        rnn.output(layers.fc(input=new, size=words, act="softmax", param_attr="out_w", bias_attr="out_b"))
    loss = layers.mean(layers.cross_entropy(input=rnn(), label=following))
    fluid.optimizer.Adam(learning_rate=0.01, regularization=fluid.regularizer.L2DecayRegularizer(1e-3)).minimize(loss)

    def feed(r):
        lengths = r.randint(1, 6, 4)
        return {"source": _sequences(fluid, r, r.randint(1, 7, 4), 20), "target": _sequences(fluid, r, lengths, 20),
                "following": _sequences(fluid, r, lengths, 20)}

    return loss, feed


def translation_decode(fluid, beam_size=3, most=6):
    """The inference program of `translation`: beam search. Returns (what to fetch, feed)."""
    layers, width, words, end = fluid.layers, 8, 20, 1
    _, _, boot = _encoder(fluid)
    limit = layers.fill_constant(shape=[1], dtype="int64", value=most)
    counter = layers.zeros(shape=[1], dtype="int64")
    init_ids = layers.data(name="init_ids", shape=[1], dtype="int64", lod_level=2)
    init_scores = layers.data(name="init_scores", shape=[1], dtype="float32", lod_level=2)
    states, ids, scores = layers.create_array("float32"), layers.create_array("int64"), layers.create_array("float32")
    layers.array_write(boot, array=states, i=counter)
    layers.array_write(init_ids, array=ids, i=counter)
    layers.array_write(init_scores, array=scores, i=counter)
    going = layers.less_than(x=counter, y=limit)
    loop = layers.While(cond=going)
    with loop.block():
        before, state = layers.array_read(array=ids, i=counter), layers.array_read(array=states, i=counter)
        score = layers.array_read(array=scores, i=counter)
        state = layers.sequence_expand(state, score)
        word = layers.embedding(input=before, size=[words, width], param_attr="target_emb", is_sparse=True)
        context = layers.fc(input=state, size=2 * width, param_attr="ctx", bias_attr=False)
        gates = layers.fc(input=[context, word], size=3 * width, bias_attr=False,
                          param_attr=[fluid.ParamAttr(name="dec_c"), fluid.ParamAttr(name="dec_w")])
        new, _, _ = layers.gru_unit(input=gates, hidden=state, size=3 * width, param_attr="dec_g", bias_attr="dec_gb")
        chances = layers.fc(input=layers.lod_reset(new, y=score), size=words, act="softmax", param_attr="out_w",
                            bias_attr="out_b")
        best, indices = layers.topk(chances, k=beam_size)
        total = layers.elementwise_add(x=layers.log(best), y=layers.reshape(score, shape=[-1]), axis=0)
        chosen, chosen_scores = layers.beam_search(before, score, indices, total, beam_size, end_id=end, level=0)
        layers.increment(x=counter, value=1, in_place=True)
        layers.array_write(new, array=states, i=counter)
        layers.array_write(chosen, array=ids, i=counter)
        layers.array_write(chosen_scores, array=scores, i=counter)
        more = layers.less_than(x=counter, y=limit)
        layers.logical_and(x=more, y=layers.logical_not(layers.is_empty(chosen)), out=going)
    found = layers.beam_search_decode(ids=ids, scores=scores, beam_size=beam_size, end_id=end)

    def feed(r):
        batch = 3
        lod = [[1] * batch, [1] * batch]
        return {"source": _sequences(fluid, r, r.randint(1, 7, batch), 20),
                "init_ids": fluid.create_lod_tensor(np.zeros((batch, 1), "int64"), lod, fluid.CPUPlace()),
                "init_scores": fluid.create_lod_tensor(np.zeros((batch, 1), "float32"), lod, fluid.CPUPlace())}

    return list(found), feed


def recommender(fluid):
    layers = fluid.layers

    def one(name, size, width=6):
        return layers.fc(input=layers.embedding(input=layers.data(name=name, shape=[1], dtype="int64"), size=[size, width],
                                                is_sparse=True), size=width)

    user = layers.concat(input=[one("user", 15), one("gender", 2), one("job", 5)], axis=1)
    user = layers.fc(input=user, size=10, act="tanh")
    kinds = layers.data(name="kinds", shape=[1], dtype="int64", lod_level=1)
    title = layers.data(name="title", shape=[1], dtype="int64", lod_level=1)
    kind = layers.sequence_pool(input=layers.embedding(input=kinds, size=[8, 6], is_sparse=True), pool_type="sum")
    words = fluid.nets.sequence_conv_pool(input=layers.embedding(input=title, size=[30, 6], is_sparse=True), num_filters=6,
                                          filter_size=3, act="tanh", pool_type="sum")
    movie = layers.fc(input=layers.concat(input=[one("movie", 12), kind, words], axis=1), size=10, act="tanh")
    score = layers.data(name="score", shape=[1], dtype="float32")
    rating = layers.scale(x=layers.cos_sim(X=user, Y=movie), scale=5.0)
    loss = layers.mean(layers.square_error_cost(input=rating, label=score))
    fluid.optimizer.SGD(learning_rate=0.2).minimize(loss)

    def feed(r):
        found = {n: _labels(r, 6, size) for n, size in (("user", 15), ("gender", 2), ("job", 5), ("movie", 12))}
        found.update(kinds=_sequences(fluid, r, r.randint(1, 4, 6), 8), title=_sequences(fluid, r, r.randint(1, 7, 6)),
                     score=r.randint(1, 6, (6, 1)).astype("float32"))
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
        lengths = r.randint(1, 8, 5)
        return {"items": _sequences(fluid, r, lengths), "following": _sequences(fluid, r, lengths)}

    return loss, feed


def _ctr(fluid, optimizer, is_sparse):
    layers = fluid.layers
    dense = layers.data(name="dense", shape=[4], dtype="float32")
    slots = [layers.data(name="slot_%d" % i, shape=[1], lod_level=1, dtype="int64") for i in range(5)]
    label = layers.data(name="label", shape=[1], dtype="int64")
    embs = [layers.sequence_pool(layers.embedding(s, size=[40, 6], is_sparse=is_sparse, param_attr="features"), "sum")
            for s in slots]
    x = layers.concat(embs + [dense], axis=1)
    for width in (16, 16):
        x = layers.fc(x, width, act="relu")
    chance = layers.fc(x, 2, act="softmax")
    loss = layers.reduce_mean(layers.cross_entropy(input=chance, label=label))
    layers.auc(input=chance, label=label, num_thresholds=2 ** 6, slide_steps=20)
    optimizer.minimize(loss)

    def feed(r):
        found = {"slot_%d" % i: _sequences(fluid, r, r.randint(0, 5, 8), 40) for i in range(5)}
        found.update(dense=r.rand(8, 4).astype("float32"), label=_labels(r, 8, 2))
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


PROGRAMS = (sentiment_conv, sentiment_lstm, sentiment_dynamic_rnn, word2vec_nce, word2vec_hsigmoid, semantic_roles,
            translation, recommender, gru4rec, ctr_ragged, ctr_ragged_lazy_adam, ctr_ragged_adam, ctr_ragged_momentum)
