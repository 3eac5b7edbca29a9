"""`fluid.distribute_lookup_table`, as the real Fluid answers."""

import importlib

import pytest

import jfluid as fluid
from jfluid import layers

pytestmark = pytest.mark.usefixtures("interpreted_module")


def test_the_distributed_table_of_a_program():
    found = importlib.import_module("jfluid.distribute_lookup_table")
    program = fluid.default_main_program()
    assert found.find_distributed_lookup_table(program) is None
    x, z = (fluid.data(name, [None, 1], "int64") for name in "xz")
    fluid.embedding(x, [5, 2], is_sparse=True, is_distributed=True, param_attr=fluid.ParamAttr("c"))
    assert found.find_distributed_lookup_table(program) is None  # as in Fluid
    rows = [
        layers.embedding(
            ids,
            [5, 2],
            is_sparse=True,
            is_distributed=distributed,
            param_attr=fluid.ParamAttr(name),
        )
        for ids, name, distributed in [(x, "a", True), (z, "a", True), (x, "b", False)]
    ]
    assert found.find_distributed_lookup_table(program) == "a"
    assert found.find_distributed_lookup_table_inputs(program, "a") == [x, z]
    assert found.find_distributed_lookup_table_outputs(program, "a") == rows[:2]
    layers.embedding(x, [5, 2], is_sparse=True, is_distributed=True, param_attr=fluid.ParamAttr("d"))
    with pytest.raises(RuntimeError, match="expected one distributed table .* found a, d"):
        found.find_distributed_lookup_table(program)
