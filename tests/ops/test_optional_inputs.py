"""Attributes that need inputs which are else optional: what is missing is named when the program is
built.
"""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.ops import ragged_dispatch, registry

ROWS, ONE = np.ones((3, 4), np.float32), np.ones(1, np.float32)


@pytest.mark.parametrize(
    "op_type, inputs, attrs, missing",
    [
        (
            "rmsprop",
            {"Param": ROWS, "MeanSquare": ROWS, "LearningRate": ONE, "Grad": ROWS, "Moment": ROWS},
            {"centered": True},
            "MeanGrad",
        ),
        (
            "data_norm",
            {"X": ROWS, "BatchSize": ROWS[0], "BatchSum": ROWS[0], "BatchSquareSum": ROWS[0]},
            {"enable_scale_and_shift": True},
            "scale_w and bias",
        ),
        (
            "hierarchical_sigmoid",
            {
                "X": ROWS,
                "W": ROWS,
                "Label": np.zeros((3, 1), np.int64),
                "PathTable": np.zeros((3, 2), np.int64),
            },
            {"num_classes": 4},
            "PathCode",
        ),
        (
            "sample_logits",
            {"Logits": ROWS, "Labels": np.zeros((3, 1), np.int64)},
            {"use_customized_samples": True, "num_samples": 2},
            "CustomizedSamples and",
        ),
    ],
)
def test_a_missing_input_is_named(op_type, inputs, attrs, missing):
    definition = registry.get(op_type)
    values = [inputs.get(slot.name) for slot in definition.ins]
    extra = {"key": None} if definition.rng else {}
    with pytest.raises(errors.ProgramError, match=missing):
        ragged_dispatch.call(definition, values, attrs | extra)


def test_a_parameter_that_is_not_wanted_is_refused():
    with pytest.raises(TypeError, match="found False"):
        fluid.layers.create_parameter([2], "float32", attr=False)


def test_an_option_that_no_operator_has_is_refused():
    with pytest.raises(TypeError, match="colour"):
        registry.op("tinted", ins=("X",), outs=("Out",), colour="red")
    with pytest.raises(TypeError, match="no slot"):
        registry.op("tinted", ins=("X",), outs=("Out",), inplace={"Y": "X"})(lambda x: x)
    with pytest.raises(ValueError, match="registered twice"):
        registry.op("relu", ins=("X",), outs=("Out",))(lambda x: x)
