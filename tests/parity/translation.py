"""Fluid's model of machine translation: training, and sentences by beam search.

As in `programs.py`: each builder returns (loss, feed).
"""

import numpy as np

from tests.parity.data import sequences


def _encoder(fluid, words=20, width=8):
    layers = fluid.layers
    source = layers.data(name="source", shape=[1], dtype="int64", lod_level=1)
    emb = layers.embedding(input=source, size=[words, width], param_attr="source_emb", is_sparse=True)
    forward = layers.dynamic_gru(
        input=layers.fc(input=emb, size=3 * width, bias_attr=False, param_attr="enc_f"),
        size=width,
        param_attr="enc_fg",
        bias_attr="enc_fgb",
    )
    backward = layers.dynamic_gru(
        input=layers.fc(input=emb, size=3 * width, bias_attr=False, param_attr="enc_b"),
        size=width,
        is_reverse=True,
        param_attr="enc_bg",
        bias_attr="enc_bgb",
    )
    encoded = layers.concat(input=[forward, backward], axis=1)
    boot = layers.fc(
        input=layers.sequence_pool(input=backward, pool_type="first"),
        size=width,
        act="tanh",
        bias_attr=False,
        param_attr="boot",
    )
    return encoded, layers.fc(input=encoded, size=width, bias_attr=False, param_attr="proj"), boot


def _attention(fluid, state, encoded, projected, width=8):
    """The mean of the encoder's rows, weighted by how well they fit the decoder's state."""
    layers = fluid.layers
    query = layers.fc(input=state, size=width, bias_attr=False, param_attr="att_q")
    spread = layers.sequence_expand(x=query, y=projected)
    scores = layers.fc(
        input=layers.tanh(layers.elementwise_add(projected, spread)),
        size=1,
        bias_attr=False,
        param_attr="att_v",
    )
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
        gates = layers.fc(
            input=[context, word],
            size=3 * width,
            bias_attr=False,
            param_attr=[fluid.ParamAttr(name="dec_c"), fluid.ParamAttr(name="dec_w")],
        )
        new, _, _ = layers.gru_unit(input=gates, hidden=state, size=3 * width, param_attr="dec_g", bias_attr="dec_gb")
        rnn.update_memory(state, new)
        rnn.output(layers.fc(input=new, size=words, act="softmax", param_attr="out_w", bias_attr="out_b"))
    loss = layers.mean(layers.cross_entropy(input=rnn(), label=following))
    fluid.optimizer.Adam(learning_rate=0.03, regularization=fluid.regularizer.L2DecayRegularizer(1e-3)).minimize(loss)

    def feed(r):
        lengths = r.randint(1, 6, 4)
        source = sequences(fluid, r, lengths, words - 2)
        # the target: other ids for the same words, after a 0, before a 1
        sentences = np.array(source) + 2
        target = np.insert(sentences, np.cumsum(lengths) - lengths, 0, 0)
        following = np.insert(sentences, np.cumsum(lengths), 1, 0)
        lod, place = [(lengths + 1).tolist()], fluid.CPUPlace()
        return {
            "source": source,
            "target": fluid.create_lod_tensor(target, lod, place),
            "following": fluid.create_lod_tensor(following, lod, place),
        }

    return loss, feed


def translation_decode(fluid, attend=False, beam_size=3, most=6):
    """Sentences by beam search. Returns (what to fetch, feed)."""
    layers, width, words, end = fluid.layers, 8, 20, 1
    encoded, projected, boot = _encoder(fluid)
    limit = layers.fill_constant(shape=[1], dtype="int64", value=most)
    counter = layers.zeros(shape=[1], dtype="int64")
    init_ids = layers.data(name="init_ids", shape=[1], dtype="int64", lod_level=2)
    init_scores = layers.data(name="init_scores", shape=[1], dtype="float32", lod_level=2)
    states, ids, scores = (layers.array_write(x, counter) for x in (boot, init_ids, init_scores))
    memory = [layers.array_write(x, counter) for x in (encoded, projected)] if attend else []
    going = layers.less_than(x=counter, y=limit)
    loop = layers.While(cond=going)
    with loop.block():
        before, state = (
            layers.array_read(array=ids, i=counter),
            layers.array_read(array=states, i=counter),
        )
        score = layers.array_read(array=scores, i=counter)
        state = layers.sequence_expand(state, score)
        word = layers.embedding(input=before, size=[words, width], param_attr="target_emb", is_sparse=True)
        seen = [layers.sequence_expand(layers.array_read(a, counter), score) for a in memory]
        if attend:
            context = _attention(fluid, state, *seen)
        else:
            context = layers.fc(input=state, size=2 * width, param_attr="ctx", bias_attr=False)
        gates = layers.fc(
            input=[context, word],
            size=3 * width,
            bias_attr=False,
            param_attr=[fluid.ParamAttr(name="dec_c"), fluid.ParamAttr(name="dec_w")],
        )
        new, _, _ = layers.gru_unit(input=gates, hidden=state, size=3 * width, param_attr="dec_g", bias_attr="dec_gb")
        chances = layers.fc(
            input=layers.lod_reset(new, y=score),
            size=words,
            act="softmax",
            param_attr="out_w",
            bias_attr="out_b",
        )
        best, indices = layers.topk(chances, k=beam_size)
        total = layers.elementwise_add(x=layers.log(best), y=layers.reshape(score, shape=[-1]), axis=0)
        chosen, chosen_scores = layers.beam_search(before, score, indices, total, beam_size, end_id=end, level=0)
        layers.increment(x=counter, value=1, in_place=True)
        for x, array in zip([new, chosen, chosen_scores] + seen, [states, ids, scores] + memory):
            layers.array_write(x, array=array, i=counter)
        more = layers.less_than(x=counter, y=limit)
        layers.logical_and(x=more, y=layers.logical_not(layers.is_empty(chosen)), out=going)
    found = layers.beam_search_decode(ids=ids, scores=scores, beam_size=beam_size, end_id=end)

    def feed(r):
        batch = 3
        lod = [[1] * batch, [1] * batch]
        return {
            "source": sequences(fluid, r, r.randint(1, 6, batch), words - 2),
            "init_ids": fluid.create_lod_tensor(np.zeros((batch, 1), "int64"), lod, fluid.CPUPlace()),
            "init_scores": fluid.create_lod_tensor(np.zeros((batch, 1), "float32"), lod, fluid.CPUPlace()),
        }

    return list(found), feed


def translation_decode_trained(fluid):
    """The inference program of `translation`."""
    return translation_decode(fluid, attend=True)
