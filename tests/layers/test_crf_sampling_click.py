"""Layers of CRF, sampled losses and click models through programs."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.layers.ragged_net import Net

RNG = np.random.RandomState(3)
LENGTHS = [[2, 0, 3]]
SCORES = RNG.normal(size=(5, 3)).astype("float32")
TAGS = np.array([[0], [2], [1], [1], [0]])
LABELS = np.array([[1], [5], [0]])
X = RNG.normal(size=(3, 4)).astype("float32")


def constant(value, name=None):
    return fluid.ParamAttr(name=name, initializer=fluid.initializer.Constant(value))


def ragged(values):
    return fluid.create_lod_tensor(values, LENGTHS, fluid.CPUPlace())


def test_sequence_tagging():
    def tagger(scores, tags):
        cost = layers.linear_chain_crf(scores, tags, param_attr=constant(0, "transition"))
        path = layers.crf_decoding(scores, fluid.ParamAttr(name="transition"))
        right = layers.crf_decoding(scores, fluid.ParamAttr(name="transition"), label=tags)
        return [cost, path, right, *layers.chunk_eval(path, tags, "plain", 3)]

    net = Net(tagger, scores=ragged(SCORES), tags=ragged(TAGS))
    assert net.parameters == {"transition": (5, 3)}
    # With no transitions each row stands for itself.
    losses = np.log(np.exp(SCORES).sum(1)) - np.take_along_axis(SCORES, TAGS, 1)[:, 0]
    np.testing.assert_allclose(net[0], [[losses[:2].sum()], [0], [losses[2:].sum()]], rtol=1e-5)
    path = SCORES.argmax(1)[:, None]
    np.testing.assert_array_equal(net[1], path)
    assert net.values[1].recursive_sequence_lengths() == LENGTHS
    np.testing.assert_array_equal(net[2], path == TAGS)
    assert [v.shape for v in net.variables[3:]] == [(1,)] * 6 and net[8] <= min(net[6], net[7])


def test_sequence_tagging_with_lengths():
    scores, tags = np.stack([SCORES[:3], SCORES[2:]]), np.stack([TAGS[:3, 0], TAGS[2:, 0]])

    def tagger(scores, tags, length):
        cost = layers.linear_chain_crf(scores, tags, length=length)
        path = layers.crf_decoding(scores, fluid.ParamAttr(name="linear_chain_crf_0.w_0"), length=length)
        return [
            cost,
            path,
            *layers.chunk_eval(tags, tags, "IOB", 1, excluded_chunk_types=[0], seq_length=length),
        ]

    net = Net(tagger, scores=scores, tags=tags, length=np.array([[3], [2]]))
    assert net.parameters == {"linear_chain_crf_0.w_0": (5, 3)}
    assert net[0].shape == (2, 1) and (net[0] > 0).all() and net[1].shape == (2, 3) and net[1][1, 2] == 0
    assert net[5] == net[6] == 0


def test_crf_decoding_needs_the_transition_weights():
    with pytest.raises(errors.ProgramError, match="no 'other'"):
        Net(
            lambda scores: layers.crf_decoding(scores, fluid.ParamAttr(name="other")),
            scores=ragged(SCORES),
        )


@pytest.mark.parametrize(
    ("sampler", "chances"),
    [
        ("uniform", [1 / 6] * 6),
        ("log_uniform", np.log(np.arange(2, 8) / np.arange(1, 7)) / np.log(6)),
        ("custom_dist", [0.1, 0.2, 0.3, 0.1, 0.1, 0.2]),
    ],
)
def test_nce(sampler, chances):
    def loss(x, label):
        found = layers.nce(
            x,
            label,
            6,
            param_attr=constant(0),
            bias_attr=constant(0),
            num_neg_samples=3,
            sampler=sampler,
            custom_dist=chances if sampler == "custom_dist" else None,
            seed=1,
        )
        op = next(o for o in fluid.default_main_program().global_block().ops if o.type == "nce")
        return found, fluid.default_main_program().global_block().var(op.output("SampleLabels")[0])

    net = Net(loss, x=X, label=LABELS)
    expected = 3 * np.asarray(chances)[net[1]]  # every score is 0, its sigmoid a half
    losses = np.log(0.5 + expected) - np.log(np.where(np.arange(4) < 1, 0.5, expected))
    np.testing.assert_allclose(net[0], losses.sum(1, keepdims=True) / 4, rtol=1e-5)
    extra = {"nce_0.w_1": (6,), "nce_0.w_2": (6,), "nce_0.w_3": (6,)} if sampler == "custom_dist" else {}
    assert net.parameters == {"nce_0.w_0": (6, 4), "nce_0.b_0": (6, 1), **extra}
    if extra:
        alias, shares = (np.array(net.scope.find_var(f"nce_0.w_{i}").get_tensor()) for i in (2, 3))
        np.testing.assert_array_equal(alias, [1, 2, -1, 2, 5, 2])
        np.testing.assert_allclose(shares, [0.6, 0.8, 1, 0.6, 0.6, 0.8], rtol=1e-6)


def test_nce_wrong_arguments():
    with pytest.raises(ValueError, match="uniform, log_uniform, custom_dist, found 'normal'"):
        Net(lambda x, label: layers.nce(x, label, 6, sampler="normal"), x=X, label=LABELS)
    with pytest.raises(ValueError, match="expected 6 probabilities, found 2"):
        Net(
            lambda x, label: layers.nce(x, label, 6, sampler="custom_dist", custom_dist=[0.5, 0.5]),
            x=X,
            label=LABELS,
        )


def test_hsigmoid():
    net = Net(lambda x, label: layers.hsigmoid(x, label, 6), x=X, label=LABELS)
    assert net.parameters == {
        "hierarchical_sigmoid_0.w_0": (5, 4),
        "hierarchical_sigmoid_0.b_0": (5, 1),
    }
    net = Net(
        lambda x, label: layers.hsigmoid(x, label, 6, param_attr=constant(0), bias_attr=False),
        x=X,
        label=LABELS,
    )
    np.testing.assert_allclose(net[0], np.full((3, 1), 3 * np.log(2)), rtol=1e-6)
    paths = {
        "table": np.array([[0, 2], [0, 1], [0, -1]]),
        "code": np.array([[1, 0], [0, 1], [1, -1]]),
    }
    net = Net(
        lambda x, label, table, code: layers.hsigmoid(
            x, label, 3, constant(0), path_table=table, path_code=code, is_custom=True
        ),
        x=X,
        label=LABELS,
        **paths,
    )
    np.testing.assert_allclose(net[0], np.full((3, 1), 2 * np.log(2)), rtol=1e-6)
    assert net.parameters["hierarchical_sigmoid_0.w_0"] == (3, 4)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_classes": 1}, "at least 2, found 1"),
        ({"num_classes": 4, "is_custom": True}, "needs path_table"),
        ({"num_classes": 4, "path_table": "label"}, "need is_custom"),
    ],
)
def test_hsigmoid_wrong_arguments(options, text):
    def build(x, label):
        return layers.hsigmoid(x, label, **{n: label if v == "label" else v for n, v in options.items()})

    with pytest.raises(ValueError, match=text):
        Net(build, x=X, label=LABELS)


def test_sampled_softmax_with_cross_entropy():
    logits = RNG.normal(size=(3, 7)).astype("float32")
    samples, chances = (
        np.array([[1, 0, 4], [5, 0, 4], [0, 0, 4]]),
        RNG.uniform(0.1, 0.9, (3, 3)).astype("float32"),
    )

    def loss(logits, label, samples, chances):
        return layers.sampled_softmax_with_cross_entropy(
            logits,
            label,
            2,
            use_customized_samples=True,
            customized_samples=samples,
            customized_probabilities=chances,
        )

    net = Net(loss, logits=logits, label=LABELS, samples=samples, chances=chances)
    weights = np.exp(np.take_along_axis(logits, samples, 1)) / chances
    weights[2, 1] = 0  # the drawn class is the label
    np.testing.assert_allclose(net[0], -np.log(weights[:, :1] / weights.sum(1, keepdims=True)), rtol=1e-5)
    drawn = Net(
        lambda logits, label: layers.sampled_softmax_with_cross_entropy(logits, label, 4, seed=2),
        logits=logits,
        label=LABELS,
    )
    assert drawn[0].shape == (3, 1) and np.isfinite(drawn[0]).all()
    for options, text in (
        ({"num_true": 2}, "num_true"),
        ({"use_customized_samples": True}, "needs customized_samples"),
    ):
        with pytest.raises(ValueError, match=text):
            Net(
                lambda logits, label, options=options: layers.sampled_softmax_with_cross_entropy(
                    logits, label, 4, **options
                ),
                logits=logits,
                label=LABELS,
            )


def test_continuous_value_model():
    counts = np.abs(X[:, :2])
    x = np.abs(RNG.normal(size=(5, 4))).astype("float32")
    show = np.log(x[:, :1] + 1)
    net = Net(
        lambda x, counts: [
            layers.continuous_value_model(x, counts),
            layers.continuous_value_model(x, counts, False),
        ],
        x=ragged(x),
        counts=counts,
    )
    np.testing.assert_allclose(
        net[0],
        np.concatenate([show, np.log(x[:, 1:2] + 1) - show, x[:, 2:]], 1),
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_array_equal(net[1], x[:, 2:])
    assert net.values[0].recursive_sequence_lengths() == LENGTHS


def test_data_norm():
    net = Net(lambda x: layers.data_norm(x), x=X)
    assert net.parameters == {
        "dn.batch_size": (4,),
        "dn.batch_sum": (4,),
        "dn.batch_square_sum": (4,),
    }
    np.testing.assert_allclose(net[0], X, rtol=1e-6)
    start = {"batch_size": 10, "batch_sum": 5, "batch_square": 40, "scale_w": 3, "bias": 0.5}
    net = Net(
        lambda x: layers.data_norm(x, act="relu", param_attr=start, name="n", enable_scale_and_shift=True),
        x=X,
    )
    assert list(net.parameters) == [
        "n.scale_w",
        "n.bias",
        "n.batch_size",
        "n.batch_sum",
        "n.batch_square_sum",
    ]
    np.testing.assert_allclose(net[0], np.maximum((X - 0.5) * 0.5 * 3 + 0.5, 0), rtol=1e-5, atol=1e-6)
    net = Net(lambda x: [layers.data_norm(x, param_attr=start, in_place=True), x], x=X)
    np.testing.assert_allclose(net[1], (X - 0.5) * 0.5, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="between 0 and 0.001, found 0.1"):
        Net(lambda x: layers.data_norm(x, epsilon=0.1), x=X)


def test_data_norm_trains_its_summaries():
    """An update with a step of -1 adds the batch to them, as the parameter server does."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss = layers.mean(layers.data_norm(fluid.data("x", [-1, 4], "float32"), epsilon=0.0))
        fluid.optimizer.SGD(-1.0).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    exe.run(main, feed={"x": X}, scope=scope)
    size, total, squares = (
        np.array(scope.find_var(f"dn.{n}").get_tensor()) for n in ("batch_size", "batch_sum", "batch_square_sum")
    )
    np.testing.assert_array_equal(size, [10003] * 4)
    np.testing.assert_allclose(total, X.sum(0), rtol=1e-5)
    np.testing.assert_allclose(squares - 1e4, (X**2).sum(0), atol=1e-2)


def test_data_norm_has_no_statistics_of_gpus():
    """The numbers are Fluid's on the CPU, where they are the same for any rate, synchronised or not."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        y = layers.data_norm(
            fluid.data("x", [-1, 3], "float32"),
            param_attr={"batch_size": 10.0, "batch_sum": 2.0, "batch_square": 20.0},
            sync_stats=True,
            summary_decay_rate=0.5,
        )
        loss = layers.mean(layers.square(y))
        fluid.optimizer.SGD(0.1).minimize(loss)
    (op,) = [op for op in main.global_block().ops if op.type == "data_norm"]
    assert op.attr("sync_stats") and op.attr("summary_decay_rate") == 0.5
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = exe.run(main, feed={"x": x}, fetch_list=[loss], scope=scope)
    np.testing.assert_allclose(found, 4.103333, rtol=1e-6)
    for name, wanted in {
        "batch_size": [9.8, 9.8, 9.8],
        "batch_sum": [1.7, 1.5, 1.3],
        "batch_square_sum": [19.211998, 18.491998, 17.371998],
    }.items():
        value = np.array(scope.find_var(f"dn.{name}").get_tensor())
        np.testing.assert_allclose(value, wanted, rtol=1e-6)
