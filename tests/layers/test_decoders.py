"""Decoders with helpers, those of contrib, and recurrent units: their parameters, and what they
refuse. What they compute is held against Fluid in tests/parity/test_text.py.
"""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import contrib, errors, layers
from tests.layers import run

START = np.array([1, 2, 0])


def decoded(helper, boot):
    cell = layers.GRUCell(hidden_size=4)
    decoder = layers.BasicDecoder(cell, helper, lambda x: layers.fc(x, size=5, param_attr="out"))
    (_, ids), _ = layers.dynamic_decode(decoder, inits=boot, max_step_num=3)
    return ids


def embed(ids):
    return fluid.embedding(ids, size=[5, 4], param_attr="emb")


def test_sampling_at_a_low_temperature_is_greedy():
    def net(start, boot):
        greedy = decoded(layers.GreedyEmbeddingHelper(embed, start, end_token=9), boot)
        drawn = layers.SampleEmbeddingHelper(embed, start, 9, softmax_temperature=1e-5, seed=3)
        cold = decoded(drawn, boot)
        warm = decoded(layers.SampleEmbeddingHelper(embed, start, 9), boot)
        return [greedy, cold, warm]

    boot = np.random.RandomState(0).normal(size=(3, 4)).astype("float32")
    greedy, _, warm = run.run(net, start=([-1], START), boot=([-1, 4], boot))
    assert greedy.shape == warm.shape == (3, 4)
    assert ((warm >= 0) & (warm < 5)).all() and len(np.unique(warm)) > 1


def test_a_temperature_is_above_zero():
    with pytest.raises(errors.ProgramError, match="softmax_temperature: expected a number above 0"):
        run.build(lambda x: layers.SampleEmbeddingHelper(embed, x, 1, 0.0), x=START)


def test_helpers_must_say_what_they_do():
    helper = layers.DecodeHelper()
    for call in (
        helper.initialize,
        lambda: helper.sample(None, None, None),
        lambda: helper.next_inputs(None, None, None, None),
    ):
        with pytest.raises(NotImplementedError, match="DecodeHelper must define"):
            call()


def cell(x, **inputs):
    states = {"h": contrib.InitState(init_boot=x, shape=[-1, 4], value=0.5)}
    return contrib.StateCell(inputs=inputs or {"x": None}, states=states, out_state="h")


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda x: contrib.InitState(), "give init, or init_boot"),
        (lambda x: contrib.StateCell({}, {"h": x}, "h"), "expected an InitState for 'h'"),
        (
            lambda x: contrib.StateCell({}, {"h": contrib.InitState(init=x)}, "c"),
            "out_state: expected one of h",
        ),
        (lambda x: cell(x).get_input("x"), "was not given to compute_state"),
        (lambda x: cell(x).get_state("h"), "in the block of a decoder"),
        (lambda x: cell(x).set_state("c", x), "no state 'c'"),
        (lambda x: cell(x).compute_state({"y": x}), "no input 'y'"),
        (lambda x: cell(x).compute_state({"x": x}), "set the function that computes the states"),
        (lambda x: contrib.TrainingDecoder(cell(x)).step_input(x), "inside of `with decoder.block"),
        (lambda x: contrib.TrainingDecoder(cell(x))(), "its outputs are there after its block"),
        (lambda x: [contrib.TrainingDecoder(c) for c in [cell(x)] * 2], "a different decoder"),
        (lambda x: contrib.BeamSearchDecoder(cell(x), x, x, 5, 4)(), "sentences are there after"),
        (
            lambda x: contrib.BeamSearchDecoder(cell(x), x, x, 5, 4).read_array(x),
            "inside of `with decoder.block",
        ),
    ],
)
def test_what_cells_and_decoders_refuse(use, words):
    with pytest.raises(errors.ProgramError, match=words):
        run.build(use, x=np.zeros((2, 4), "float32"))


def test_units_make_their_parameters_when_they_are_called():
    gru = contrib.layers.BasicGRUUnit("g", 3, fluid.ParamAttr(name="w"), fluid.ParamAttr(name="b"))
    assert gru.parameters() == []

    def net(x, h):
        lstm = contrib.layers.BasicLSTMUnit("l", 3, forget_bias=0.0)
        with pytest.warns(UserWarning, match="takes sigmoid and tanh"):
            contrib.layers.BasicLSTMUnit("other", 3, activation=layers.relu)
        found = [gru(x, h), *lstm(x, h, h)]
        names = ["w_gate", "w_candidate", "b_gate", "b_candidate"]
        assert [p.name for p in gru.parameters()] == names
        name = f"{lstm.full_name()}.w_0"
        assert [p.name for p in lstm.parameters()] == [name, name.replace("w_0", "b_0")]
        assert [tuple(p.shape) for p in lstm.parameters()] == [(5, 12), (12,)]
        return found

    found = run.run(net, x=np.ones((2, 2), "float32"), h=np.zeros((2, 3), "float32"))
    assert all(v.shape == (2, 3) and np.isfinite(v).all() for v in found)


def test_dropout_of_stacked_layers_acts_between_them_only_in_training():
    def net(x):
        out, last = contrib.layers.basic_gru(x, None, 3, num_layers=2, dropout_prob=1.0)
        return [out, last, *contrib.layers.basic_lstm(x, None, None, 3, dropout_prob=1.0)]

    out, last, *lstm = run.run(net, x=np.ones((2, 4, 5), "float32"))
    assert out.shape == (2, 4, 3) and not out.any() and last.any() and last.shape == (2, 2, 3)
    assert lstm[0].shape == (2, 4, 3) and not lstm[0].any() and lstm[2].any()


def test_lstm_takes_both_states_or_none():
    with pytest.raises(TypeError, match="both init_hidden and init_cell"):
        run.build(
            lambda x, h: contrib.layers.basic_lstm(x, h, None, 3),
            x=np.ones((2, 4, 5), "float32"),
            h=np.ones((1, 2, 3), "float32"),
        )


def test_beams_of_sequences_whose_length_is_known_when_they_are_fed():
    steps = fluid.data("steps", [None, None, 2], "float32")
    tiled = layers.BeamSearchDecoder.tile_beam_merge_with_batch(steps, 3)
    assert tiled.shape == (-1, -1, 2)
    value = np.arange(20, dtype="float32").reshape(2, 5, 2)
    (found,) = fluid.Executor().run(feed={"steps": value}, fetch_list=[tiled])
    assert (found == np.repeat(value, 3, axis=0)).all()
