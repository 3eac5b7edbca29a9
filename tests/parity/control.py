"""Small programs with loops, conditions, arrays and cells, for any engine that offers the Fluid API
(Python 3.7 syntax).

Each builder returns (loss, feed, what to fetch besides).
"""

import numpy as np

RNG = np.random.RandomState(0)
ROWS = RNG.randn(6, 4).astype("float32")
LENGTHS = [[2, 1, 3]]
STEPS = RNG.randn(5, 3, 4).astype("float32")
BATCH = RNG.randn(3, 4).astype("float32")
WEIGHT = RNG.randn(7, 3).astype("float32") * 0.5


def _attr(fluid, name, values):
    return fluid.ParamAttr(name=name, initializer=fluid.initializer.NumpyArrayInitializer(np.array(values, "float32")))


def _sequences(fluid):
    return {"x": fluid.create_lod_tensor(ROWS, LENGTHS, fluid.CPUPlace())}


def _batch(fluid):
    """A variable that depends on a parameter, and its feed."""
    v = fluid.layers.data("v", [4])
    return (
        v,
        fluid.layers.fc(v, 4, param_attr=_attr(fluid, "w0", np.eye(4)), bias_attr=False),
        {"v": BATCH},
    )


def _cell(fluid, word, state):
    return fluid.layers.fc(
        [word, state],
        3,
        act="tanh",
        bias_attr=False,
        param_attr=[_attr(fluid, "a", WEIGHT[:4]), _attr(fluid, "b", WEIGHT[4:])],
    )


def dynamic_rnn(fluid):
    layers = fluid.layers
    x = layers.data("x", [4], lod_level=1)
    rnn = layers.DynamicRNN()
    with rnn.block():
        word, state = rnn.step_input(x), rnn.memory(shape=[3], value=0.5)
        pooled = layers.fc(
            layers.sequence_pool(rnn.static_input(x), "sum"),
            3,
            bias_attr=False,
            param_attr=_attr(fluid, "c", WEIGHT[:4] * 0.3),
        )
        new = layers.elementwise_add(_cell(fluid, word, state), layers.tanh(pooled))
        rnn.update_memory(state, new)
        rnn.output(new, state)
    out, states = rnn()
    return (
        layers.mean(layers.square(layers.sequence_last_step(out))) + layers.mean(states),
        _sequences(fluid),
        [out, states],
    )


def dynamic_rnn_ordered_state(fluid):
    layers = fluid.layers
    x, start = layers.data("x", [4], lod_level=1), layers.data("start", [3])
    rnn = layers.DynamicRNN()
    with rnn.block():
        word, state = rnn.step_input(x), rnn.memory(init=start, need_reorder=True)
        new = _cell(fluid, word, state)
        rnn.update_memory(state, new)
        rnn.output(new)
    out = rnn()
    return layers.reduce_sum(layers.square(out)), dict(_sequences(fluid), start=BATCH[:, :3]), [out]


def static_rnn(fluid):
    layers = fluid.layers
    steps = layers.data("d", [5, 3, 4], append_batch_size=False)
    steps = layers.fc(steps, 4, num_flatten_dims=2, param_attr=_attr(fluid, "w0", np.eye(4)), bias_attr=False)
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(steps)
        state = rnn.memory(shape=[-1, 3], batch_ref=word, init_value=0.2)
        new = _cell(fluid, word, state)
        rnn.update_memory(state, new)
        rnn.step_output(new)
    out = rnn()
    return layers.mean(layers.square(out)), {"d": STEPS}, [out]


def _while(fluid, times):
    layers = fluid.layers
    _, x, feed = _batch(fluid)
    weight = layers.create_parameter([4, 4], "float32", attr=_attr(fluid, "w", np.eye(4) * 0.9))
    i, limit = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", times)
    going = layers.less_than(i, limit)
    array = layers.array_write(x, i)
    with layers.While(going).block():
        new = layers.tanh(layers.mul(layers.array_read(array, i), weight))
        i = layers.increment(i, in_place=True)
        layers.array_write(new, i, array=array)
        layers.less_than(i, limit, cond=going)
    out = layers.array_read(array, limit)
    return layers.mean(layers.square(out)), feed, [out, layers.array_length(array)]


def while_compiled(fluid):
    return _while(fluid, 6)


def while_unrolled(fluid):
    return _while(fluid, 2)


def cond(fluid):
    layers = fluid.layers
    _, x, feed = _batch(fluid)
    first = layers.cond(layers.reduce_sum(x) < 0.0, lambda: layers.scale(x, 2.0), lambda: layers.square(x))
    second = layers.cond(layers.reduce_sum(x) > 0.0, lambda: layers.scale(x, 2.0), lambda: layers.square(x))
    return layers.mean(first) + layers.mean(second), feed, [first, second]


def case(fluid):
    layers = fluid.layers
    v, x, feed = _batch(fluid)
    total = layers.reduce_sum(x)
    first = layers.case(
        [
            (total > 100.0, lambda: layers.scale(x, 2.0)),
            (total > 50.0, lambda: layers.scale(x, 3.0)),
        ],
        default=lambda: layers.scale(x, 5.0),
    )
    index = layers.cast(layers.reduce_sum(v) * 0.0 + 1.0, "int32")
    second = layers.switch_case(index, {0: lambda: layers.scale(x, 7.0), 1: lambda: layers.scale(x, 8.0)})
    return layers.mean(first) + layers.mean(second), feed, [first, second]


def if_else(fluid):
    layers = fluid.layers
    v, x, feed = _batch(fluid)
    zeros = layers.fill_constant_batch_size_like(v, [-1, 1], "float32", 0.0)
    choice = layers.IfElse(layers.less_than(layers.reduce_sum(v, dim=1, keep_dim=True), zeros))
    with choice.true_block():
        rows = choice.input(x)
        choice.output(layers.scale(rows, 2.0) + layers.reduce_mean(rows))
    with choice.false_block():
        choice.output(layers.square(choice.input(x)))
    (out,) = choice()
    return layers.mean(out), feed, [out]


def _run_cell(fluid, make):
    layers = fluid.layers
    x = layers.data("d", [5, 3, 4], append_batch_size=False)
    x.stop_gradient = False
    lengths = layers.data("n", [5], dtype="int64", append_batch_size=False)
    cell = make(hidden_size=3)
    out, final = layers.rnn(cell=cell, inputs=x, sequence_length=lengths)
    back, _ = layers.rnn(cell=cell, inputs=x, is_reverse=True)
    final = final if isinstance(final, (list, tuple)) else [final]
    return (
        layers.mean(layers.square(out)) + layers.mean(layers.square(back)),
        {"d": STEPS, "n": np.array([3, 1, 2, 3, 1])},
        [out, back] + list(final),
    )


def gru_cell(fluid):
    return _run_cell(fluid, fluid.layers.GRUCell)


def lstm_cell(fluid):
    return _run_cell(fluid, fluid.layers.LSTMCell)


SENTENCES = RNG.randn(9, 4).astype("float32")
# two documents of two sentences, one of one; a document that begins with a long sentence
DOCUMENTS = [[2, 1, 2], [2, 1, 3, 1, 2]]


def _documents(fluid):
    """Rows in sentences in documents that depend on a parameter, and their feed."""
    x = fluid.layers.data("x", [4], lod_level=2)
    rows = fluid.layers.fc(x, 4, param_attr=_attr(fluid, "w0", np.eye(4)), bias_attr=False)
    return rows, {"x": fluid.create_lod_tensor(SENTENCES, DOCUMENTS, fluid.CPUPlace())}


def dynamic_rnn_over_sentences(fluid):
    layers = fluid.layers
    x, feed = _documents(fluid)
    rnn = layers.DynamicRNN()
    with rnn.block():
        sentence, document = rnn.step_input(x), rnn.static_input(x)
        state = rnn.memory(shape=[3], value=0.5)
        whole = layers.sequence_pool(layers.sequence_pool(document, "sum"), "max")
        new = _cell(fluid, layers.sequence_pool(sentence, "average") + whole, state)
        rnn.update_memory(state, new)
        rnn.output(new, layers.scale(layers.sequence_softmax(layers.reduce_sum(sentence, 1, True)), 2.0))
    states, rows = rnn()
    loss = layers.mean(layers.square(states)) + layers.mean(layers.square(rows))
    return loss, feed, [states, rows]


def dynamic_rnn_over_rows_of_sentences(fluid):
    layers = fluid.layers
    x, feed = _documents(fluid)
    rnn = layers.DynamicRNN()
    with rnn.block():
        word, state = rnn.step_input(x, level=1), rnn.memory(shape=[3], value=0.5)
        new = _cell(fluid, word, state)
        rnn.update_memory(state, new)
        rnn.output(new)
    states = rnn()
    return layers.mean(layers.square(states)), feed, [states]


def if_else_of_documents(fluid):
    layers = fluid.layers
    x, feed = _documents(fluid)
    wanted = layers.data("c", [1])
    choice = layers.IfElse(layers.greater_than(wanted, layers.fill_constant([1], "float32", 0.5)))
    with choice.true_block():
        choice.output(layers.scale(choice.input(x), 2.0))
    with choice.false_block():
        choice.output(layers.square(choice.input(x)))
    (rows,) = choice()
    feed["c"] = np.array([[1], [0], [1]], "float32")
    return layers.mean(layers.square(rows)), feed, [rows]


def documents_in_other_order(fluid):
    flow = fluid.layers.control_flow
    x, feed = _documents(fluid)
    table = flow.lod_rank_table(x)
    moved = fluid.layers.reorder_lod_tensor_by_rank(x, table)
    steps = flow.lod_tensor_to_array(x, table)
    again = flow.array_to_lod_tensor(steps, table)
    chosen = fluid.layers.cast(fluid.layers.data("m", [5, 1], append_batch_size=False), "bool")
    feed["m"] = np.array([[1], [0], [0], [1], [1]], "float32")
    some, others = flow.split_lod_tensor(x, chosen, level=1)
    joined = flow.merge_lod_tensor(some, others, x, chosen, level=1)
    weights = fluid.layers.data("r", [4], lod_level=2)
    feed["r"] = fluid.create_lod_tensor(SENTENCES[::-1].copy(), DOCUMENTS, fluid.CPUPlace())
    loss = fluid.layers.reduce_sum(moved * weights) + fluid.layers.reduce_sum(joined * weights)
    return loss, feed, [moved, again, some, others, joined]


def beam_search_decoder(fluid):
    layers = fluid.layers
    start = layers.data("v", [4])
    decoder = layers.BeamSearchDecoder(
        layers.GRUCell(hidden_size=4),
        start_token=0,
        end_token=1,
        beam_size=3,
        embedding_fn=lambda ids: fluid.embedding(ids, size=[8, 3], param_attr=fluid.ParamAttr(name="e")),
        output_fn=lambda x: layers.fc(x, 8, num_flatten_dims=2, param_attr=fluid.ParamAttr(name="o"), bias_attr=False),
    )
    words, states, lengths = layers.dynamic_decode(decoder, inits=start, max_step_num=6, return_length=True)
    return None, {"v": BATCH}, [words, lengths, states.log_probs, states.cell_states]


PROGRAMS = (
    dynamic_rnn,
    dynamic_rnn_ordered_state,
    static_rnn,
    while_compiled,
    while_unrolled,
    cond,
    case,
    if_else,
    dynamic_rnn_over_sentences,
    dynamic_rnn_over_rows_of_sentences,
    if_else_of_documents,
    documents_in_other_order,
    gru_cell,
    lstm_cell,
    beam_search_decoder,
)


def run(fluid, build):
    """[(values, shape, lod)]: the loss, what else is fetched, and the gradients of the
    parameters.
    """
    from tests.parity.programs import set_parameters

    main, startup = fluid.Program(), fluid.Program()
    scope = fluid.Scope() if hasattr(fluid, "Scope") else fluid.core.Scope()
    with fluid.scope_guard(scope), fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, feed, others = build(fluid)
        fetches = list(others)
        if loss is not None:
            grads = fluid.backward.append_backward(loss)
            fetches = [loss] + fetches + [g for _, g in sorted(grads, key=lambda pair: pair[0].name)]
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        if "Cell" in " ".join(p.name for p in main.all_parameters()):
            set_parameters(fluid, main, scope)
        found = exe.run(main, feed=feed, fetch_list=fetches, return_numpy=False)
    return [(np.array(t).astype("float64").ravel().tolist(), list(np.array(t).shape), t.lod()) for t in found]
