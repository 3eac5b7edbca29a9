"""Programs whose names of parameters and variables are held against Fluid's, for any engine that offers
the Fluid API (Python 3.7 syntax).
"""

import numpy as np

PROGRAMS = {}


def program(build):
    """Register a function that builds a program with `fluid`."""
    PROGRAMS[build.__name__] = build
    return build


def names(fluid, build):
    """Return the parameters of a program in order, and the names of all variables of the main and of the
    startup program.
    """
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        build(fluid)

    def every(made):
        return [sorted(block.vars) for block in made.blocks]

    return {
        "parameters": [[p.name, list(p.shape)] for p in main.all_parameters()],
        "main": every(main),
        "startup": every(startup),
    }


def _image(fluid, channels=4, size=8, name="image"):
    return fluid.data(name, [None, channels, size, size], "float32")


def _rows(fluid, width=6, name="x"):
    return fluid.data(name, [None, width], "float32")


def _words(fluid, name="words"):
    return fluid.data(name, [None, 1], "int64", lod_level=1)


def _sequence(fluid, width=6, name="sequence"):
    return fluid.data(name, [None, width], "float32", lod_level=1)


def _label(fluid, name="label"):
    return fluid.data(name, [None, 1], "int64")


@program
def convolutions(fluid):
    one = _image(fluid, 1)
    layers = fluid.layers
    layers.conv2d(one, 4, 3, use_cudnn=False)
    layers.conv2d(one, 4, 3, groups=1, use_cudnn=False)
    layers.conv2d(one, 4, 3)
    x = _image(fluid, 4, name="x")
    layers.conv2d(x, 4, 3, groups=4, use_cudnn=False)
    layers.conv2d(x, 8, 3, groups=4, use_cudnn=False, bias_attr=False)
    layers.conv2d(x, 4, 3, groups=4)
    layers.conv2d(x, 6, [3, 1], stride=2, padding=[1, 0], act="relu", name="named")
    layers.conv2d(x, 6, 3, param_attr="own", bias_attr=fluid.ParamAttr(name="own_bias"))
    layers.conv2d(x, 6, 3, dilation=2, padding="SAME", act="sigmoid")


@program
def transposed_convolutions(fluid):
    layers = fluid.layers
    one = _image(fluid, 1)
    layers.conv2d_transpose(one, 1, filter_size=3, use_cudnn=False)
    layers.conv2d_transpose(one, 1, filter_size=3, groups=1, use_cudnn=False)
    layers.conv2d_transpose(one, 3, output_size=10, act="tanh")
    x = _image(fluid, 4, name="x")
    layers.conv2d_transpose(x, 4, filter_size=3, groups=4, use_cudnn=False)
    layers.conv2d_transpose(x, 8, filter_size=3, groups=2, bias_attr=False, name="named")
    volume = fluid.data("volume", [None, 3, 4, 6, 6], "float32")
    layers.conv3d(volume, 5, 3, act="relu")
    layers.conv3d(volume, 6, 3, groups=3, use_cudnn=False, name="named")
    layers.conv3d_transpose(volume, 5, filter_size=3, act="relu")
    layers.deformable_conv(x, fluid.data("o", [None, 18, 8, 8]), fluid.data("m", [None, 9, 8, 8]), 4, 3, padding=1)


@program
def normalizations(fluid):
    layers = fluid.layers
    x = _image(fluid)
    layers.batch_norm(x)
    layers.batch_norm(x, act="relu", name="named", moving_mean_name="m", moving_variance_name="v")
    layers.batch_norm(x, is_test=True, use_global_stats=True, param_attr="s", bias_attr="b")
    layers.inplace_abn(layers.scale(x, 2.0), act="leaky_relu", act_alpha=0.1)
    layers.instance_norm(x)
    layers.instance_norm(x, name="named")
    layers.group_norm(x, 2, act="relu")
    layers.layer_norm(x)
    layers.layer_norm(x, begin_norm_axis=2, scale=False, act="tanh", name="named")
    layers.layer_norm(x, shift=False)
    layers.data_norm(_rows(fluid), name="named")
    layers.data_norm(_rows(fluid), slot_dim=-1)
    layers.spectral_norm(layers.create_parameter([4, 5], "float32"), power_iters=2)
    layers.lrn(x)
    layers.l2_normalize(x, axis=1)


@program
def fully_connected(fluid):
    layers = fluid.layers
    x, y = _rows(fluid), _rows(fluid, 5, "y")
    layers.fc(x, 4)
    layers.fc([x, y], 4, act="relu")
    layers.fc([x, y], 4, param_attr=["p", "q"], bias_attr=False)
    layers.fc(x, 4, name="named", act="softmax")
    layers.fc(_image(fluid), 3, num_flatten_dims=2)
    layers.fc(x, 2, param_attr=fluid.WeightNormParamAttr(dim=None, name="wn"))
    layers.fc(x, 2, param_attr=fluid.WeightNormParamAttr(dim=1))
    layers.bilinear_tensor_product(x, y, 3)
    layers.bilinear_tensor_product(x, y, 3, act="relu", name="named")
    layers.create_parameter([2, 3], "float32")
    layers.create_parameter([2, 3], "float32", name="mine", is_bias=True)
    layers.create_global_var([1], 1.0, "float32", persistable=True)
    layers.create_global_var([1], 1.0, "float32", name="global")


@program
def embeddings(fluid):
    layers = fluid.layers
    words = _words(fluid)
    layers.embedding(words, [20, 4])
    layers.embedding(words, [20, 4], is_sparse=True, padding_idx=0, param_attr="shared")
    layers.embedding(words, [20, 4], is_distributed=True, param_attr=fluid.ParamAttr(name="table"))
    fluid.embedding(fluid.data("ids", [None, 3], "int64"), [20, 4])
    layers.one_hot(words, 20)
    fluid.nets.sequence_conv_pool(layers.embedding(words, [20, 4]), 3, 3)
    layers.row_conv(_sequence(fluid), 2)
    layers.sequence_conv(_sequence(fluid), 4, act="relu")
    layers.sequence_conv(_sequence(fluid), 4, bias_attr=False, name="named")


@program
def recurrent_layers(fluid):
    layers = fluid.layers
    x = _sequence(fluid, 16)
    layers.dynamic_lstm(x, 16)
    layers.dynamic_lstm(x, 16, use_peepholes=False, is_reverse=True, name="named")
    layers.dynamic_lstmp(x, 16, 3)
    layers.dynamic_gru(_sequence(fluid, 12, "g"), 4, is_reverse=True)
    layers.dynamic_gru(_sequence(fluid, 12, "g"), 4, origin_mode=True, bias_attr=False)
    layers.gru_unit(_rows(fluid, 12, "i"), _rows(fluid, 4, "h"), 12)
    layers.lstm_unit(_rows(fluid), _rows(fluid, 4, "h2"), _rows(fluid, 4, "c2"))
    layers.lstm_unit(_rows(fluid), _rows(fluid, 4, "h2"), _rows(fluid, 4, "c2"), name="named")
    dense = fluid.data("dense", [5, 2, 6], "float32")
    state = fluid.data("state", [2, 2, 4], "float32")
    layers.lstm(dense, state, state, 5, 4, 2, dropout_prob=0.1)
    layers.lstm(
        dense,
        fluid.data("s4", [4, 2, 4]),
        fluid.data("c4", [4, 2, 4]),
        5,
        4,
        2,
        is_bidirec=True,
        name="named",
    )


@program
def recurrent_cells(fluid):
    layers = fluid.layers
    x = fluid.data("x", [None, 5, 6], "float32")
    layers.rnn(layers.GRUCell(4), x)
    layers.rnn(layers.LSTMCell(4, name="named"), x, is_reverse=True)
    layers.rnn(layers.LSTMCell(4), x, sequence_length=fluid.data("n", [None], "int64"))
    contrib = fluid.contrib.layers
    contrib.basic_gru(x, None, 4, num_layers=2)
    contrib.basic_lstm(x, None, None, 4, bidirectional=True)


@program
def static_and_dynamic_rnn(fluid):
    layers = fluid.layers
    x = fluid.data("x", [5, 3, 6], "float32")
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(x)
        before = rnn.memory(shape=[-1, 4], batch_ref=word)
        now = layers.fc([word, before], 4, act="relu")
        rnn.update_memory(before, now)
        rnn.step_output(now)
    layers.mean(rnn())
    dynamic = layers.DynamicRNN()
    with dynamic.block():
        word = dynamic.step_input(_sequence(fluid))
        before = dynamic.memory(shape=[4], value=0.0)
        now = layers.fc([word, before], 4, act="tanh")
        dynamic.update_memory(before, now)
        dynamic.output(now)
    layers.sequence_last_step(dynamic())


@program
def decoders(fluid):
    layers = fluid.layers
    cell = layers.GRUCell(4)
    decoder = layers.BeamSearchDecoder(
        cell,
        start_token=0,
        end_token=1,
        beam_size=2,
        embedding_fn=lambda ids: fluid.embedding(ids, [20, 4], param_attr="emb"),
        output_fn=lambda h: layers.fc(h, 20, num_flatten_dims=len(h.shape) - 1, param_attr="out"),
    )
    initial = cell.get_initial_states(_rows(fluid))
    layers.dynamic_decode(decoder, initial, max_step_num=3)


@program
def losses(fluid):
    layers = fluid.layers
    x, label = _rows(fluid), _label(fluid)
    probabilities = layers.softmax(x)
    layers.cross_entropy(probabilities, label)
    layers.softmax_with_cross_entropy(x, label)
    layers.softmax_with_cross_entropy(x, label, return_softmax=True)
    layers.sigmoid_cross_entropy_with_logits(x, x)
    layers.square_error_cost(x, _rows(fluid, 6, "y"))
    layers.smooth_l1(x, _rows(fluid, 6, "y"))
    layers.huber_loss(x, _rows(fluid, 6, "y"), 1.0)
    layers.kldiv_loss(x, _rows(fluid, 6, "y"))
    layers.log_loss(layers.sigmoid(_rows(fluid, 1, "o")), _rows(fluid, 1, "t"))
    layers.rank_loss(_rows(fluid, 1, "t"), _rows(fluid, 1, "o"), _rows(fluid, 1, "r"))
    layers.margin_rank_loss(_rows(fluid, 1, "t"), _rows(fluid, 1, "o"), _rows(fluid, 1, "r"))
    layers.bpr_loss(probabilities, label)
    layers.center_loss(x, label, 7, 0.1, fluid.ParamAttr(name="centers"))
    layers.teacher_student_sigmoid_loss(_rows(fluid, 1, "o"), _rows(fluid, 1, "t"))
    layers.dice_loss(probabilities, label)
    layers.npair_loss(x, _rows(fluid, 6, "y"), fluid.data("l", [4], "float32"))
    layers.mse_loss(x, _rows(fluid, 6, "y"))


@program
def sampled_losses(fluid):
    layers = fluid.layers
    x, label = _rows(fluid), _label(fluid)
    layers.nce(x, label, 20)
    layers.nce(x, label, 20, sampler="log_uniform", num_neg_samples=5, name="named", bias_attr=False)
    layers.hsigmoid(x, label, 20)
    layers.hsigmoid(x, label, 20, bias_attr=False, name="named")
    layers.sampled_softmax_with_cross_entropy(layers.fc(x, 20), label, 5)
    crf = layers.linear_chain_crf(
        _sequence(fluid, 5),
        fluid.data("t", [None, 1], "int64", lod_level=1),
        param_attr=fluid.ParamAttr(name="crfw"),
    )
    layers.crf_decoding(_sequence(fluid, 5), fluid.ParamAttr(name="crfw"))
    layers.mean(crf)
    layers.warpctc(_sequence(fluid, 5), fluid.data("c", [None, 1], "int32", lod_level=1))
    layers.edit_distance(_words(fluid), _words(fluid, "w2"))
    layers.ctc_greedy_decoder(_sequence(fluid, 5), 4)


@program
def activations(fluid):
    layers = fluid.layers
    x = _image(fluid)
    for name in (
        "relu relu6 sigmoid logsigmoid tanh exp sqrt rsqrt abs ceil floor cos sin round reciprocal "
        "square softplus softsign softshrink hard_shrink brelu leaky_relu soft_relu elu pow stanh "
        "hard_sigmoid swish thresholded_relu hard_swish selu gelu erf tanh_shrink log sign"
    ).split():
        getattr(layers, name)(x)
    layers.prelu(x, "all")
    layers.prelu(x, "channel", name="named")
    layers.prelu(x, "element", param_attr="alpha")
    layers.maxout(x, 2)
    layers.softmax(x, axis=1)


@program
def element_operators(fluid):
    layers = fluid.layers
    x, y = _rows(fluid), _rows(fluid, 6, "y")
    found = x + y - x * 2.0 / (y + 1.0)
    found = (1.0 - found) ** 2.0
    layers.mean(-found)
    layers.elementwise_max(x, y, act="relu")
    layers.elementwise_pow(x, y, name="named")
    layers.mul(x, fluid.data("m", [6, 3]))
    layers.matmul(x, y, transpose_y=True, alpha=0.5)
    layers.sums([x, y])
    layers.sum([x, y])
    layers.scale(x, 2.0, bias=1.0, act="tanh")
    layers.clip(x, -1.0, 1.0)
    layers.clip_by_norm(x, 1.0)
    layers.less_than(x, y)
    layers.logical_and(x > 1.0, y < 2.0)
    layers.logical_not(layers.equal(x, y))
    layers.cast(x, "int64")
    layers.cumsum(x, axis=1)
    layers.isfinite(x)
    layers.has_nan(x)


@program
def reductions(fluid):
    layers = fluid.layers
    x = _image(fluid)
    for name in ("sum", "mean", "max", "min", "prod"):
        getattr(layers, "reduce_" + name)(x, dim=[1], keep_dim=True)
    layers.reduce_all(x > 0.0)
    layers.reduce_any(x > 0.0, dim=1)
    layers.mean(x)
    layers.argmax(x, axis=1)
    layers.argsort(x, axis=-1)
    layers.topk(_rows(fluid), 2)
    layers.unique(fluid.data("u", [None], "int64"))
    layers.where(x > 0.0)
    layers.rank(x)
    layers.size(x)
    layers.shape(x)
    layers.logsumexp(x)
    layers.isfinite(x)


@program
def shapes(fluid):
    layers = fluid.layers
    x = _image(fluid)
    layers.reshape(x, [0, -1])
    layers.reshape(layers.scale(x, 1.0), [-1, 8], act="relu", inplace=True)
    layers.transpose(x, [0, 2, 3, 1])
    layers.squeeze(layers.unsqueeze(x, [1]), [1])
    layers.flatten(x, axis=2)
    layers.split(x, 2, dim=1)
    layers.concat([x, x], axis=1)
    layers.stack([x, x])
    layers.unstack(fluid.data("s", [2, 3]))
    layers.expand(x, [1, 2, 1, 1])
    layers.expand_as(x, x)
    layers.slice(x, [1], [0], [2])
    layers.strided_slice(x, [1], [0], [4], [2])
    layers.gather(x, fluid.data("i", [3], "int32"))
    layers.gather_nd(x, fluid.data("j", [3, 2], "int32"))
    layers.scatter(_rows(fluid), fluid.data("k", [3], "int64"), fluid.data("u", [3, 6]))
    layers.pad(x, [0, 0, 1, 1, 0, 0, 0, 0])
    layers.pad2d(x, [1, 1, 1, 1])
    layers.crop_tensor(x, [2, 2, 4, 4], [0, 0, 0, 0])
    layers.reverse(x, 1)
    layers.multiplex([_rows(fluid), _rows(fluid, 6, "y")], fluid.data("which", [None, 1], "int32"))
    x[:, 0]
    x[0, 1:3]
    layers.space_to_depth(x, 2)
    layers.pixel_shuffle(x, 2)
    layers.shuffle_channel(x, 2)


@program
def images(fluid):
    layers = fluid.layers
    x = _image(fluid)
    layers.pool2d(x, 2, "max", 2)
    layers.pool2d(x, global_pooling=True, pool_type="avg", name="named")
    layers.adaptive_pool2d(x, 2, "avg")
    layers.adaptive_pool2d(x, [2, 2], "max", require_index=True)
    layers.pool3d(fluid.data("v", [None, 2, 4, 4, 4]), 2, "max", 2)
    layers.image_resize(x, [4, 4])
    layers.resize_bilinear(x, scale=2.0)
    layers.resize_nearest(x, [3, 3])
    layers.roi_pool(x, fluid.data("r", [None, 4], lod_level=1), 2, 2)
    layers.roi_align(x, fluid.data("r", [None, 4], lod_level=1), 2, 2)
    layers.grid_sampler(x, fluid.data("g", [None, 8, 8, 2]))
    layers.affine_grid(fluid.data("theta", [2, 2, 3]), [2, 4, 8, 8])
    layers.affine_channel(x, layers.create_parameter([4], "float32"), layers.create_parameter([4], "float32"))
    layers.im2sequence(x, 2, 2)
    layers.unfold(x, [2, 2])
    layers.temporal_shift(x, 2)
    layers.dropout(x, 0.5)
    layers.dropout(x, 0.5, is_test=True, name="named", dropout_implementation="upscale_in_train")
    layers.random_crop(x, [4, 4, 4])


@program
def sequences(fluid):
    layers = fluid.layers
    x = _sequence(fluid)
    for kind in ("sum", "average", "sqrt", "max", "last", "first"):
        layers.sequence_pool(x, kind)
    layers.sequence_softmax(_sequence(fluid, 1, "one"))
    layers.sequence_expand(_rows(fluid), x)
    layers.sequence_expand_as(_rows(fluid), x)
    layers.sequence_concat([x, x])
    layers.sequence_reverse(x)
    layers.sequence_first_step(x)
    layers.sequence_last_step(x)
    layers.sequence_reshape(x, 3)
    padded, length = layers.sequence_pad(x, layers.assign(np.array([0.0], "float32")), 7)
    layers.sequence_unpad(padded, length)
    layers.sequence_mask(length, 7)
    layers.sequence_enumerate(_words(fluid), 2)
    layers.sequence_slice(x, fluid.data("o", [None, 1], "int64"), fluid.data("n", [None, 1], "int64"))
    layers.lod_reset(_rows(fluid), x)
    layers.add_position_encoding(fluid.data("p", [None, 4, 6]), 1.0, 1.0)


@program
def creation(fluid):
    layers = fluid.layers
    layers.fill_constant([2, 3], "float32", 1.0)
    layers.fill_constant_batch_size_like(_rows(fluid), [1, 3], "float32", 0.0)
    layers.zeros([2], "int64")
    layers.ones([2], "float32")
    layers.zeros_like(_rows(fluid))
    layers.ones_like(_rows(fluid))
    layers.assign(np.ones((2, 2), "float32"))
    layers.assign(_rows(fluid))
    layers.uniform_random([2, 3])
    layers.gaussian_random([2, 3])
    layers.uniform_random_batch_size_like(_rows(fluid), [1, 3])
    layers.gaussian_random_batch_size_like(_rows(fluid), [1, 3])
    layers.sampling_id(layers.softmax(_rows(fluid)))
    layers.range(0, 10, 2, "int32")
    layers.linspace(0.0, 1.0, 5, "float32")
    layers.eye(3)
    layers.diag(fluid.data("d", [3]))
    layers.create_tensor("float32")
    layers.autoincreased_step_counter()
    layers.label_smooth(layers.one_hot(_label(fluid), 6), epsilon=0.1)


@program
def conditions_and_loops(fluid):
    layers = fluid.layers
    x = _rows(fluid)
    small = layers.less_than(layers.reduce_sum(x), layers.fill_constant([1], "float32", 0.0))
    layers.cond(small, lambda: layers.fc(x, 2), lambda: layers.fc(x, 2) * 2.0)
    layers.case([(small, lambda: x + 1.0)], default=lambda: x - 1.0)
    layers.switch_case(fluid.data("at", [1], "int32"), {0: lambda: x * 1.0, 2: lambda: x * 2.0})
    count, limit = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
    layers.while_loop(lambda i: i < limit, lambda i: [i + 1], [count])
    going = layers.less_than(count, limit)
    loop = layers.While(going)
    with loop.block():
        layers.increment(count)
        layers.less_than(count, limit, cond=going)
    with layers.Switch() as switch:
        with switch.case(small):
            layers.assign(limit, count)
        with switch.default():
            layers.assign(count, limit)


@program
def arrays(fluid):
    layers = fluid.layers
    x = _rows(fluid)
    at = layers.fill_constant([1], "int64", 0)
    array = layers.array_write(x, at)
    layers.array_read(array, at)
    layers.array_length(array)
    layers.tensor_array_to_tensor(array)
    choice = layers.IfElse(layers.less_than(fluid.data("c", [None, 1]), layers.fill_constant([1], "float32", 0.0)))
    with choice.true_block():
        choice.output(layers.fc(choice.input(x), 2))
    with choice.false_block():
        choice.output(layers.fc(choice.input(x), 2))
    choice()


def _regression(fluid):
    layers = fluid.layers
    hidden = layers.fc(_rows(fluid), 5, act="relu")
    return layers.mean(layers.square_error_cost(layers.fc(hidden, 1), _rows(fluid, 1, "t")))


@program
def optimizer_momentum(fluid):
    fluid.optimizer.Momentum(0.1, 0.9, use_nesterov=True).minimize(_regression(fluid))


@program
def optimizer_adam(fluid):
    rate = fluid.layers.exponential_decay(0.1, 10, 0.5, staircase=True)
    fluid.optimizer.Adam(
        rate,
        regularization=fluid.regularizer.L2Decay(1e-4),
        grad_clip=fluid.clip.GradientClipByGlobalNorm(1.0),
    ).minimize(_regression(fluid))


@program
def optimizer_adagrad(fluid):
    fluid.optimizer.Adagrad(
        fluid.layers.piecewise_decay([2, 4], [0.1, 0.05, 0.01]),
        grad_clip=fluid.clip.GradientClipByNorm(1.0),
    ).minimize(_regression(fluid))


@program
def optimizer_adamax(fluid):
    rate = fluid.layers.linear_lr_warmup(fluid.layers.noam_decay(512, 100), 10, 0.0, 0.1)
    fluid.optimizer.Adamax(rate, grad_clip=fluid.clip.GradientClipByValue(1.0)).minimize(_regression(fluid))


@program
def optimizer_rmsprop(fluid):
    rate = fluid.layers.polynomial_decay(0.1, 10, cycle=True)
    fluid.optimizer.RMSProp(rate, centered=True, regularization=fluid.regularizer.L1Decay(0.1)).minimize(
        _regression(fluid)
    )


@program
def optimizer_adadelta(fluid):
    fluid.optimizer.Adadelta(fluid.layers.cosine_decay(0.1, 5, 10)).minimize(_regression(fluid))


@program
def optimizer_ftrl(fluid):
    fluid.optimizer.Ftrl(fluid.layers.natural_exp_decay(0.1, 5, 0.5)).minimize(_regression(fluid))


@program
def optimizer_lamb(fluid):
    fluid.optimizer.Lamb(fluid.layers.inverse_time_decay(0.1, 5, 0.5)).minimize(_regression(fluid))


@program
def optimizer_lars(fluid):
    fluid.optimizer.LarsMomentum(0.1, 0.9).minimize(_regression(fluid))


@program
def optimizer_decayed_adagrad(fluid):
    fluid.optimizer.DecayedAdagrad(0.1, name="named").minimize(_regression(fluid))


@program
def optimizer_dpsgd(fluid):
    fluid.optimizer.Dpsgd(0.1).minimize(_regression(fluid))


@program
def averages(fluid):
    loss = _regression(fluid)
    fluid.optimizer.SGD(0.1).minimize(loss)
    fluid.optimizer.ModelAverage(0.15, min_average_window=2, max_average_window=4)
    fluid.optimizer.ExponentialMovingAverage(0.9).update()


@program
def look_ahead(fluid):
    fluid.optimizer.LookaheadOptimizer(fluid.optimizer.SGD(0.1), 0.5, 5).minimize(_regression(fluid))


@program
def gradients_of_gradients(fluid):
    x = _rows(fluid)
    x.stop_gradient = False
    y = fluid.layers.fc(fluid.layers.tanh(x), 3)
    (first,) = fluid.gradients(y, x)
    fluid.gradients(fluid.layers.reduce_sum(first * first), x)


@program
def shared_parameters(fluid):
    layers = fluid.layers
    a, b = _rows(fluid), _rows(fluid, 6, "y")
    shared = [layers.fc(v, 4, param_attr="w", bias_attr="b", act="tanh") for v in (a, b)]
    fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.cos_sim(*shared)))


@program
def metrics(fluid):
    layers = fluid.layers
    predicted, label = layers.softmax(_rows(fluid)), _label(fluid)
    layers.accuracy(predicted, label, k=2)
    layers.auc(layers.softmax(_rows(fluid, 2, "two")), label)
    layers.chunk_eval(_words(fluid), _words(fluid, "w2"), "IOB", 3)
    layers.mean_iou(fluid.data("p", [4], "int32"), fluid.data("q", [4], "int32"), 3)


@program
def blocks_of_nets(fluid):
    nets = fluid.nets
    x = _image(fluid)
    nets.simple_img_conv_pool(x, 4, 3, 2, 2, act="relu")
    nets.img_conv_group(
        x,
        [4, 4],
        2,
        conv_with_batchnorm=True,
        conv_batchnorm_drop_rate=[0.3, 0.0],
        conv_act="relu",
        pool_stride=2,
    )
    nets.glu(_rows(fluid), dim=1)
    q = fluid.data("q", [2, 5, 8])
    nets.scaled_dot_product_attention(q, q, q, num_heads=2, dropout_rate=0.1)


@program
def residual_net(fluid):
    layers = fluid.layers

    def conv(x, filters, size, stride=1, act=None):
        x = layers.conv2d(x, filters, size, stride, (size - 1) // 2, bias_attr=False)
        return layers.batch_norm(x, act=act)

    x = conv(_image(fluid, 3, 16), 8, 3, act="relu")
    for filters, stride in ((8, 1), (16, 2)):
        y = conv(conv(x, filters, 3, stride, "relu"), filters, 3)
        if stride != 1:
            x = conv(x, filters, 1, stride)
        x = layers.elementwise_add(x, y, act="relu")
    x = layers.pool2d(x, pool_type="avg", global_pooling=True)
    loss = layers.mean(layers.cross_entropy(layers.fc(x, 10, act="softmax"), _label(fluid)))
    fluid.optimizer.Momentum(0.1, 0.9, regularization=fluid.regularizer.L2Decay(1e-4)).minimize(loss)


@program
def detection_heads(fluid):
    layers = fluid.layers
    image = _image(fluid, 3, 32)
    maps = [layers.conv2d(image, 4, 3, stride=s, padding=1) for s in (4, 8)]
    layers.multi_box_head(maps, image, 32, 5, [[2.0], [2.0]], min_sizes=[4.0, 8.0], max_sizes=[8.0, 16.0], flip=True)
    layers.prior_box(maps[0], image, [4.0])
    layers.anchor_generator(maps[0], [32.0], [1.0], [0.1, 0.1, 0.2, 0.2], [8.0, 8.0])
    layers.yolo_box(
        fluid.data("y", [None, 16, 4, 4]),
        fluid.data("s", [None, 2], "int32"),
        [4, 5, 6, 7],
        3,
        0.01,
        8,
    )
    layers.yolov3_loss(
        fluid.data("y3", [None, 16, 4, 4]),
        fluid.data("gb", [None, 3, 4]),
        fluid.data("gl", [None, 3], "int32"),
        [4, 5, 6, 7],
        [0, 1],
        3,
        0.5,
        8,
    )
    layers.box_coder(fluid.data("pb", [4, 4]), [0.1, 0.1, 0.2, 0.2], fluid.data("tb", [3, 4]))
    layers.iou_similarity(fluid.data("a", [3, 4]), fluid.data("b", [4, 4]))
    layers.multiclass_nms(fluid.data("nb", [2, 4, 4]), fluid.data("ns", [2, 3, 4]), 0.1, 10, 5)


@program
def contrib_layers(fluid):
    contrib = fluid.contrib.layers
    left, right = _sequence(fluid, 4, "left"), _sequence(fluid, 4, "right")
    match, _ = contrib.match_matrix_tensor(left, right, 3)
    contrib.sequence_topk_avg_pooling(match, left, right, topks=[1, 2], channel_num=3)
    contrib.fused_embedding_seq_pool(_words(fluid), [20, 4])
    contrib.fused_elemwise_activation(_rows(fluid), _rows(fluid, 6, "y"), ["elementwise_add", "relu"])
    contrib.shuffle_batch(_rows(fluid))
    contrib.partial_concat([_rows(fluid), _rows(fluid, 6, "y")], 0, 2)
    contrib.partial_sum([_rows(fluid), _rows(fluid, 6, "y")], 0, 2)


@program
def mixed_precision(fluid):
    optimizer = fluid.contrib.mixed_precision.decorate(fluid.optimizer.SGD(0.1), use_dynamic_loss_scaling=True)
    optimizer.minimize(_regression(fluid))
