"""`jfluid export --to onnx` of models that read sequences: padded rows and lengths, of any batch and any length."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import jfluid as fluid
from jfluid import command, errors
from jfluid.exports import onnx_model
from jfluid.exports.model import LoadedModel
from jfluid.exports.onnx_graph import CONVERTERS
from jfluid.exports.onnx_sequences import SEQUENCES
from jfluid.exports.padded import LENGTHS, as_arguments, as_sequences
from jfluid.exports.sequences import Sequences
from jfluid.ops import registry
from tests.command.test_export_sequences import clicks, convolved, loaded, recurrent
from tests.slow_tests import nightly_but

pytestmark = pytest.mark.usefixtures("interpreted_module")

layers = fluid.layers
LENGTHS_GIVEN, PADDED_TO = np.array([2, 0, 5, 1]), 7


def rows():
    return fluid.data("x", [None, 3], lod_level=1)


def lstm(**options):
    def build():
        x = rows()
        hidden, _ = layers.dynamic_lstm(layers.fc(x, 16), 16, **options)
        return [x], [layers.sequence_last_step(hidden), layers.fc([x, hidden], 2, act="softmax")]

    return build


def gru(**options):
    def build():
        x = rows()
        hidden = layers.dynamic_gru(layers.fc(x, 12), 4, **options)
        return [x], [layers.sequence_pool(hidden, "max"), layers.sequence_reverse(hidden)]

    return build


def beginning():
    """States from dense feeds, pooled rows that are expanded again, and a value for empty sequences."""
    x, state = rows(), fluid.data("state", [None, 4])
    hidden = layers.dynamic_gru(layers.fc(x, 12), 4, h_0=state)
    pooled = layers.sequence_pool(hidden, "sqrt", pad_value=7.0)
    return [x, state], [layers.concat([hidden, layers.sequence_expand(pooled, hidden)], 1), pooled]


MODELS = {
    "clicks": clicks,
    "recurrent": recurrent,
    "convolved": convolved,
    "beginning": beginning,
    "lstm": lstm(),
    "lstm-reverse": lstm(is_reverse=True),
    "gru": gru(),
    "gru-origin-reverse": gru(is_reverse=True, origin_mode=True),
}


def fed(model):
    """Sequences of several lengths, one of them empty."""
    random, feed = np.random.default_rng(0), {}
    for var in model.feeds:
        count = LENGTHS_GIVEN.sum() if var.lod_level else len(LENGTHS_GIVEN)
        shape, whole = (count, *var.shape[1:]), np.dtype(var.np_dtype).kind == "i"
        drawn = random.integers(0, 5, shape) if whole else random.standard_normal(shape).astype("float32")
        feed[var.name] = Sequences.of_lengths(drawn, [LENGTHS_GIVEN]) if var.lod_level else drawn
    return feed


def runtimes(data):
    """Return the runtimes that run a model: onnx's reference, and ONNX Runtime if it is installed."""
    found = {"reference": ReferenceEvaluator(onnx.load_from_string(data)).run}
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return found
    return found | {"onnxruntime": onnxruntime.InferenceSession(data).run}


# each cell and direction once before each change
@pytest.mark.parametrize(
    "name", nightly_but(("clicks", "convolved", "beginning", "lstm-reverse", "gru-origin-reverse"), MODELS)
)
def test_padded_rows_and_lengths_give_what_the_model_gives(name, tmp_path):
    model = loaded(tmp_path, MODELS[name])
    data, difference = onnx_model.to_onnx(model)
    assert difference < 1e-5
    feed = fed(model)
    arguments = as_arguments(feed, PADDED_TO)
    for value in feed.values():
        if isinstance(value, Sequences) and value.rows.dtype.kind == "f":  # what stands behind a sequence is nothing
            arguments["x"][np.arange(PADDED_TO) >= LENGTHS_GIVEN[:, None]] = 9.0
    expected = model.run(feed)
    for run in runtimes(data).values():
        results = iter(run(None, arguments))
        for value in expected:
            if isinstance(value, Sequences):
                padded, lengths = next(results), next(results)
                assert not padded[np.arange(PADDED_TO) >= LENGTHS_GIVEN[:, None]].any()
                found = as_sequences(padded, lengths)
                assert np.array_equal(found.lod[0], value.lod[0]) and lengths.dtype == np.int32
                assert np.allclose(found.rows, value.rows, atol=1e-5)
            else:
                assert np.allclose(next(results), value, atol=1e-5)


def test_the_command_says_the_form(tmp_path, capsys):
    loaded(tmp_path / "m", clicks)
    words = ["export", str(tmp_path / "m"), "--to", "onnx", "--output", str(tmp_path / "m.onnx")]
    assert command.main(words) == 0
    assert "C1 int64[-1, -1, 1], C1.lengths int32[-1]" in capsys.readouterr().out
    graph = onnx.load(str(tmp_path / "m.onnx")).graph
    assert [item.name for item in graph.input] == ["dense", "C1", "C1" + LENGTHS]
    # a table of is_distributed in the model's folder is a constant
    assert "embedding_0.w_0" in [item.name for item in graph.initializer]
    with pytest.raises(SystemExit):
        command.main([*words, "--longest", "4"])
    assert "an ONNX model takes any batch and any length" in capsys.readouterr().err


def mean_of_rows():
    x = rows()
    return [x], [layers.mean(x)]


def two_lengths():
    x, y = rows(), fluid.data("y", [None, 3], lod_level=1)
    return [x, y], [layers.sequence_pool(layers.elementwise_add(x, y), "sum")]


def cells():
    x = rows()
    return [x], [layers.sequence_pool(layers.dynamic_lstm(layers.fc(x, 16), 16)[1], "max")]


def joined():
    x = rows()
    return [x], [layers.sequence_concat([x, x])]


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (mean_of_rows, "operator mean: .*row by row"),
        (two_lengths, "operator elementwise_add: it combines sequences of the inputs x, y"),
        (cells, "operator lstm: its output Cell is read"),
        (joined, "no conversion of operators sequence_concat"),
        (
            lstm(gate_activation="identity"),
            "operator lstm: gate_activation='identity' is not converted, only 'sigmoid'",
        ),
        (gru(candidate_activation="relu"), "operator gru: activation='relu' is not converted, only 'tanh'"),
    ],
)
def test_what_has_no_form_is_refused_by_name(build, text, tmp_path):
    with pytest.raises(errors.UnsupportedError, match=text):
        onnx_model.to_onnx(loaded(tmp_path, build))


def test_rows_without_lengths_are_refused(tmp_path):
    """Expanded dense rows have no LoD in Fluid: a fetch of these rows is one array of the rows of all sequences."""

    def build():
        x = rows()
        return [x], [layers.sequence_expand(layers.sequence_pool(x, "sum"), x)]

    with pytest.raises(errors.OpError, match="expected rows without lengths, the exported model gives sequences"):
        onnx_model.to_onnx(loaded(tmp_path, build))


def test_what_differs_is_not_written(tmp_path, monkeypatch):
    model = LoadedModel(str(loaded(tmp_path, recurrent) and tmp_path))
    monkeypatch.setattr(onnx_model, "as_sequences", lambda rows, lengths: as_sequences(rows + 0.01, lengths))
    with pytest.raises(errors.OpError, match="the exported model differs by 0.01"):
        onnx_model.to_onnx(model)


def test_converters_are_of_operators_that_exist():
    assert [name for name in (*CONVERTERS, *SEQUENCES) if registry.find(name) is None] == []
