"""`jfluid export` of models that read sequences: padded rows and lengths give what the model gives here."""

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jfluid as fluid
from jfluid import command, errors
from jfluid.exports import onnx_model, stablehlo
from jfluid.exports.model import LoadedModel
from jfluid.exports.sequences import Sequences
from tests.command.test_serve_sequences import saved

pytestmark = pytest.mark.usefixtures("interpreted_module")

layers = fluid.layers


def clicks():
    dense, ids = fluid.data("dense", [None, 2]), fluid.data("C1", [None, 1], "int64", lod_level=1)
    rows = layers.embedding(ids, [5, 4], is_sparse=True, is_distributed=True)
    return [dense, ids], [layers.fc(layers.concat([dense, layers.sequence_pool(rows, "sum")], 1), 2, act="softmax")]


def recurrent():
    x = fluid.data("x", [None, 3], lod_level=1)
    hidden, _ = layers.dynamic_lstm(layers.fc(x, 16), 16, use_peepholes=False)
    return [x], [layers.fc(layers.sequence_last_step(hidden), 2), hidden]


def convolved():
    x = fluid.data("x", [None, 3], lod_level=1)
    y = layers.sequence_conv(x, 4, 3, act="tanh")
    weights = layers.sequence_softmax(layers.fc(y, 1))
    pooled = layers.sequence_pool(layers.elementwise_mul(y, weights, axis=0), "sum")
    expanded = layers.sequence_expand_as(pooled, y)
    kinds = [layers.sequence_pool(y, kind) for kind in ("max", "average", "sqrt", "first", "last")]
    return [x], [layers.concat([pooled, *kinds], 1), layers.elementwise_add(y, expanded)]


def loaded(folder, build):
    return LoadedModel(saved(folder, build))


@pytest.mark.parametrize(
    "build, batch",
    # the form of `recurrent` is tested below
    [(clicks, None), pytest.param(recurrent, 3, marks=pytest.mark.nightly), (convolved, 3)],
)
def test_sequences_are_exported_in_padded_form(build, batch, tmp_path):
    model = loaded(tmp_path, build)
    for write in (stablehlo.to_jax_artifact, stablehlo.to_stablehlo):
        data, difference = write(model, longest=6, batch=batch)
        assert data and difference < 1e-5


def test_the_form_of_arguments_and_results(tmp_path):
    """Sequences of 2, 0 and 4 rows of at most 4; the second result is a sequence, too."""
    model = loaded(tmp_path, recurrent)
    data, _ = stablehlo.to_jax_artifact(model, longest=4, batch=3)
    rows = np.random.default_rng(0).standard_normal((6, 3)).astype("float32")
    expected = model.run({"x": Sequences(rows, [np.array([0, 2, 2, 6])])})
    padded = np.full((3, 4, 3), 7.0, "float32")  # what stands behind a sequence does not count
    padded[0, :2], padded[2] = rows[:2], rows[2:]
    with jax.enable_x64(True):
        last, hidden, lengths = jax_export.deserialize(bytearray(data)).call(padded, np.array([2, 0, 4], "int32"))
    assert np.allclose(np.asarray(last)[[0, 2]], expected[0][[0, 2]], atol=1e-6)
    assert lengths.tolist() == [2, 0, 4] and hidden.shape == (3, 4, 4)
    assert np.allclose(np.concatenate([hidden[0, :2], hidden[2]]), expected[1].rows, atol=1e-6)
    assert not np.asarray(hidden[0, 2:]).any() and not np.asarray(hidden[1]).any()


def test_what_differs_is_not_written(tmp_path, monkeypatch):
    model = loaded(tmp_path, recurrent)
    as_sequences = stablehlo.as_sequences
    monkeypatch.setattr(stablehlo, "as_sequences", lambda rows, lengths: as_sequences(rows + 0.01, lengths))
    with pytest.raises(errors.OpError, match="the exported model differs by 0.01"):
        stablehlo.to_jax_artifact(model, longest=4, batch=2)


def test_operators_that_need_the_batch_say_so(tmp_path):
    with pytest.raises(errors.UnsupportedError, match="operator lstm .*--batch N fixes the batch"):
        stablehlo.to_jax_artifact(loaded(tmp_path, recurrent), longest=4)


def test_the_command_says_the_form(tmp_path, capsys):
    loaded(tmp_path / "m", clicks)
    output = str(tmp_path / "m.jax")
    assert command.main(["export", str(tmp_path / "m"), "--to", "jax", "--longest", "4", "--output", output]) == 0
    assert "C1 int64[-1, 4, 1], C1.lengths int32[-1]" in capsys.readouterr().out
    assert command.main(["export", str(tmp_path / "m"), "--to", "jax", "--output", output]) == 1
    assert "C1 are sequences of different lengths (LoD)" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["export", str(tmp_path / "m"), "--to", "jax", "--longest", "x"])
    assert "expected a whole number from 1 on, found x" in capsys.readouterr().err


def test_several_levels_are_refused_by_name(tmp_path):
    def nested():
        x = fluid.data("x", [None, 3], lod_level=2)
        return [x], [layers.sequence_pool(x, "sum")]

    model = loaded(tmp_path, nested)
    for write in (onnx_model.to_onnx, lambda model: stablehlo.to_jax_artifact(model, longest=4)):
        with pytest.raises(errors.UnsupportedError, match="x have several levels of sequences, only one is exported"):
            write(model)


def test_distributed_tables_are_constants_and_their_absence_is_named(tmp_path):
    """A table of `is_distributed` lies in the model's folder where a single process saved it."""
    model = loaded(tmp_path, clicks)
    data, _ = stablehlo.to_jax_artifact(model, longest=2)
    assert model.parameter("embedding_0.w_0").astype("<f4").tobytes() in data
    assert not any(op.attrs.get("is_distributed") for op in model.operators())
    (tmp_path / "embedding_0.w_0").unlink()
    with pytest.raises(errors.FileFormatError, match="embedding_0.w_0"):
        LoadedModel(str(tmp_path))
