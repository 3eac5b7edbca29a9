"""Layers name an argument that is no Variable where one is expected."""

import inspect

import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.ir.variable import Variable

# What the other arguments are where they are needed, by their annotations.
_OTHERS = {"int": 2, "float": 0.5, "str": "all"}
# Layers whose other arguments must be checked first, or be more than these.
_MORE = {
    "adaptive_pool3d": {"pool_size": 2},
    "affine_channel": {"scale": "y", "bias": "y"},
    "anchor_generator": {"anchor_sizes": 64.0, "aspect_ratios": 1.0, "stride": [16.0, 16.0]},
    "clamp": {"min": 0.0},
    "crop": {"shape": [1, 1]},
    "crop_tensor": {"shape": [1, 1]},
    "density_prior_box": {"densities": [1], "fixed_sizes": [1.0], "fixed_ratios": [1.0]},
    "lod_reset": {"y": "y"},
    "npair_loss": {"labels": "vector"},
    "pool2d": {"pool_size": 2},
    "pool3d": {"pool_size": 2},
    "sequence_pool": {"pool_type": "max"},
    "shard_index": {"shard_id": 0},
}


def _layers():
    for name in sorted(dir(layers)):
        layer = getattr(layers, name)
        # crf_decoding looks for its parameter first
        if inspect.isfunction(layer) and layer.__module__.startswith("jfluid.layers.") and name != "crf_decoding":
            needed = [p for p in inspect.signature(layer).parameters.values() if p.default is p.empty]
            if variables := [p.name for p in needed if p.annotation is Variable]:
                yield pytest.param(name, needed, variables[0], id=name)


def _argument(annotation):
    if "Variable" in str(annotation):
        return fluid.data("y", [2, 4], "float32")
    if "Sequence" in str(annotation):
        return [1, 1]
    return next((v for kind, v in _OTHERS.items() if kind in str(annotation)), None)


@pytest.mark.parametrize("name, needed, variable", list(_layers()))
def test_an_argument_that_is_no_variable_is_a_type_error(name, needed, variable):
    arguments = {p.name: _argument(p.annotation) for p in needed if p.name != variable}
    for argument, value in _MORE.get(name, {}).items():
        shape = {"y": [2, 4], "vector": [2]}.get(str(value))
        arguments[argument] = value if shape is None else fluid.data(argument, shape, "float32")
    with pytest.raises(TypeError, match="expected .*(Variable|array)"):
        getattr(layers, name)(**{variable: 3.5}, **arguments)
