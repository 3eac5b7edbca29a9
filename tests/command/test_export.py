"""`jfluid export`: StableHLO, JAX and ONNX give what the model gives here."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jfluid as fluid
from jfluid import command, errors
from jfluid.exports import model as exports
from jfluid.exports import onnx_model, stablehlo
from jfluid.serving import service
from jfluid.serving.requests import RequestLimits

pytestmark = pytest.mark.usefixtures("interpreted_module")

GOLDEN = Path(__file__).parents[1] / "golden" / "models" / "separate"
layers = fluid.layers


def image_model():
    x = fluid.data("x", [None, 4, 8, 8])
    y = layers.conv2d(x, 6, 3, padding=1, groups=2, act="relu6")
    y = layers.batch_norm(y, act="leaky_relu", is_test=True)
    pools = [
        layers.pool2d(y, 2, "max", 2),
        layers.pool2d(y, 3, "avg", 2, pool_padding=1),
        layers.conv2d(y, 6, 3, stride=2, padding="SAME"),
    ]
    y = layers.concat(pools, axis=1)
    y = layers.hard_swish(layers.conv2d_transpose(y, 4, filter_size=2, stride=2))
    y = layers.pad2d(y, [1, 0, 0, 1])
    y = layers.elementwise_add(y, layers.fc(layers.pool2d(y, global_pooling=True), 4), axis=0)
    y = layers.prelu(layers.elu(y), "channel")
    feature = layers.dropout(layers.flatten(layers.swish(y)), 0.3, is_test=True)
    return [x], [layers.softmax(layers.fc(feature, 5)), layers.reduce_mean(y)]


def text_model():
    ids = fluid.data("ids", [None, 6], "int64")
    mask = fluid.data("mask", [None, 6], "float32")
    x = fluid.embedding(ids, [10, 8], padding_idx=0)
    q, k, v = (layers.fc(x, 8, num_flatten_dims=2, bias_attr=False) for _ in range(3))
    heads = [layers.transpose(layers.reshape(t, [0, 0, 2, 4]), [0, 2, 1, 3]) for t in (q, k, v)]
    scores = layers.matmul(heads[0], heads[1], transpose_y=True, alpha=0.5)
    bias = layers.unsqueeze(layers.scale(mask, 10.0, -1.0, bias_after_scale=False), [1, 1])
    weights = layers.softmax(scores + bias)
    mixed = layers.reshape(layers.transpose(layers.matmul(weights, heads[2]), [0, 2, 1, 3]), [0, 0, 8])
    y = layers.layer_norm(layers.gelu(mixed) + x, begin_norm_axis=2)
    first = layers.squeeze(layers.slice(y, [1], [0], [1]), [1])
    return [ids, mask], [layers.fc(first, 3, act="tanh"), layers.reduce_max(y, 2)]


def array_model():
    x = fluid.data("x", [None, 6], "float32")
    a, b, c = layers.split(layers.abs(x) + 1.0, 3, dim=1)
    both = layers.stack([a * b, a / c, layers.elementwise_max(b, c)], axis=1)
    found = layers.reduce_sum(layers.expand(both, [1, 2, 1]), dim=[1, 2], keep_dim=True)
    less = layers.cast(layers.less_than(a, b), "float32")
    values, places = layers.topk(x, 2)
    roots = layers.sqrt(layers.square(a)) + layers.pow(b, 2.0) + layers.rsqrt(c)
    rest = [layers.sums([a, b, c]), layers.clip(x, -0.5, 0.5), layers.argmax(x, 1), places]
    return [x], [found, less, values, roots, *rest]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of each model."""
    folder = tmp_path_factory.mktemp("models")
    for build in (image_model, text_model, array_model):
        program, startup = fluid.Program(), fluid.Program()
        startup.random_seed = 1
        with fluid.program_guard(program, startup), fluid.scope_guard(fluid.Scope()):
            feeds, fetches = build()
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            path = str(folder / build.__name__)
            fluid.io.save_inference_model(path, [f.name for f in feeds], fetches, exe, program)
    return folder


@pytest.mark.parametrize("name", ["image_model", "text_model", "array_model"])
def test_onnx_gives_what_the_model_gives(saved, name):
    loaded = exports.LoadedModel(str(saved / name))
    data, difference = onnx_model.to_onnx(loaded)  # raises where it differs by more than 1e-4
    assert difference < 1e-5 and len(data) > 500


def test_stablehlo_has_a_symbolic_batch_and_no_paths(saved, tmp_path):
    loaded = exports.LoadedModel(str(saved / "text_model"))
    found = stablehlo.exported(loaded, ["cpu"])
    assert [str(aval.shape[0]) for aval in found.in_avals] == ["batch", "batch"]
    data, difference = stablehlo.to_stablehlo(loaded)
    assert difference < 1e-5 and data[:4] == b"ML\xefR" and b"/jfluid/" not in data


def test_the_command_writes_what_jax_reads(tmp_path, capsys):
    path = tmp_path / "model.jax"
    assert command.main(["export", str(GOLDEN), "--to", "jax", "--output", str(path)]) == 0
    assert "differs from jfluid by" in capsys.readouterr().out
    call = jax_export.deserialize(bytearray(path.read_bytes())).call
    images = np.random.default_rng(0).standard_normal((5, 1, 8, 8)).astype("float32")
    (expected,) = exports.LoadedModel(str(GOLDEN)).run({"image": images})
    assert np.allclose(jax.tree.leaves(call(images))[0], expected, atol=1e-6)


def test_what_cannot_be_exported_is_named_and_nothing_is_written(tmp_path, capsys):
    for fill in ("random", "operator"):
        with (
            fluid.program_guard(fluid.Program(), fluid.Program()),
            fluid.scope_guard(fluid.Scope()),
        ):
            x = fluid.data("x", [None, 4], "float32")
            if fill == "random":
                made = x + layers.gaussian_random([1, 4])
            else:
                made = layers.maxout(layers.reshape(x, [-1, 4, 1, 1]), 2)
            exe = fluid.Executor(fluid.CPUPlace())
            fluid.io.save_inference_model(str(tmp_path / fill), ["x"], [made], exe)
    path = str(tmp_path / "out")
    for fill, says in (
        ("random", "gaussian_random draw random numbers"),
        ("operator", "no conversion of operators maxout"),
    ):
        assert command.main(["export", str(tmp_path / fill), "--to", "onnx", "--output", path]) == 1
        assert says in capsys.readouterr().err
    assert command.main(["export", str(tmp_path / "gone"), "--to", "jax"]) == 2
    assert "gone" in capsys.readouterr().err and not Path(path).exists()


def test_an_export_that_differs_is_refused():
    loaded = exports.LoadedModel(str(GOLDEN))
    with pytest.raises(errors.OpError, match="the exported model differs by"):
        exports.compare(loaded, lambda feed: [loaded.run(feed)[0] + 0.01], batches=[2])
    with pytest.raises(errors.OpError, match=r"gives float64\[2, 3\]"):
        exports.compare(loaded, lambda feed: [loaded.run(feed)[0].astype("float64")], batches=[2])


@pytest.mark.parametrize("shape", [[None, 2**31 - 1], [2**31 - 1], [None, 40_000, 40_000], [None, 2**31, 2**31, 2**31]])
def test_a_declared_shape_takes_no_memory(shape, tmp_path):
    """A file of a kilobyte can declare any shape: no trial run and no trace makes arrays of the shape."""
    found = layers.relu(fluid.data("x", shape))
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    fluid.io.save_inference_model(str(tmp_path), ["x"], [found], executor)
    model = exports.LoadedModel(str(tmp_path))
    uses = [lambda: model.sample(2), lambda: stablehlo.to_stablehlo(model), lambda: onnx_model.to_onnx(model)]
    if shape[0] is None:  # of other models the server makes no trial run
        resources = service.Resources(RequestLimits())
        uses.append(lambda: service.ModelService(model, 4, 0.0, resources))
    for use in uses:
        with pytest.raises(errors.OutOfMemoryError, match=r"feeds of \d+ bytes .* x \["):
            use()
    if shape[0] is None:
        resources.close()
