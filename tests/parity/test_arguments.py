"""Types and dtypes that layers accept and refuse as the real Fluid does (tests/golden/arguments.json)."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.layers import argument_types
from tests.parity.arguments import CALLS, probe

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "arguments.json").read_text())

# Fluid builds these programs, and has no kernel to run them; here the operator refuses.
NO_KERNEL = {
    "cumsum": {"bool", "int8", "int16", "uint8"},
    "gather_by": {"bool", "float16", "float32", "float64"},
    "reduce_max": {"bool", "int8", "int16", "uint8"},
    "sequence_mask": {"bool"},
    "softmax_with_cross_entropy": {"int32", "int64"},
    "softmax_with_cross_entropy_of": {"bool", "float16", "float32", "float64"},
}


@pytest.mark.parametrize("layer", CALLS)
def test_a_layer_refuses_the_dtypes_that_fluid_refuses(layer):
    accepted, refused = probe(fluid, [layer])[layer]
    want_accepted, want_refused = GOLDEN[layer]
    assert set(want_refused) <= set(refused)
    assert set(want_accepted) <= {*accepted, *NO_KERNEL.get(layer, ())}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: layers.softmax(np.ones((2, 3))),
            "softmax, input: expected a Variable, found ndarr",
        ),
        (lambda x: layers.concat([x, 3]), "concat, input: expected a Variable, found int"),
        (
            lambda x: layers.concat(x, axis="0"),
            "concat, axis: expected int or a Variable, found str",
        ),
        (
            lambda x: layers.assign([1.0]),
            "assign, input: expected a Variable or ndarray, found list",
        ),
        (lambda x: layers.reshape(x, 6), "reshape, shape: expected list or a Variable, found int"),
        (lambda x: layers.clip_by_norm(x, 1), "clip_by_norm, max_norm: expected float, found int"),
        (lambda x: layers.cast(x, "int16"), "cast, dtype: expected dtype .* or uint8, found int16"),
        (lambda x: layers.cond(x, None), "cond, pred: expected dtype bool, found float32"),
        (lambda x: fluid.nets.glu(3), "glu, input: expected a Variable"),
        (lambda x: fluid.embedding(x, [3, 2]), "embedding, input: expected dtype int64"),
        (lambda x: fluid.data("y", 3), "data, shape: expected list, found int"),
    ],
)
def test_wrong_types_are_named(call, message):
    with pytest.raises(TypeError, match=message):
        call(fluid.data("x", [2, 3]))


def test_each_rule_is_of_an_argument_of_a_layer():
    lines = Path(argument_types.__file__).with_suffix(".txt").read_text("ascii").splitlines()
    assert len(lines) > 500
    for line in lines:
        name, argument = line.split()[0], line.split()[2]
        layer = getattr(layers, name, None) or getattr(fluid.nets, name)
        assert argument in inspect.signature(layer).parameters, line


def test_numbers_stand_for_lists_where_fluid_allows_it():
    x = fluid.data("x", [2, 3])
    assert layers.roll(x, 1, 0).shape == (2, 3)
    with pytest.raises(TypeError, match="flip, dims: expected list, found int"):
        layers.flip(x, 0)


def test_none_stands_for_an_optional_argument_and_imperative_mode_checks_nothing():
    x = fluid.data("x", [2, 3])
    assert layers.crop_tensor(x, [1, 2], offsets=None).shape == (1, 2)
    assert layers.crop_tensor(x=x, shape=(1, 2)).shape == (1, 2)
    with fluid.dygraph.guard():
        three = fluid.dygraph.to_variable(np.array([3], "int8"))
        assert layers.concat([three, three]).numpy().tolist() == [3, 3]
