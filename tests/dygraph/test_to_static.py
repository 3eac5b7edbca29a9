"""Functions turned into Programs give what they give in dygraph mode, gradients included."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid.dygraph.dygraph_to_static import runtime, source
from tests.dygraph import converted_functions
from tests.dynamic_shapes.interpreted import interpreted

layers = fluid.layers
INPUTS = [np.array(v, np.float32) for v in ([0.5, 1.5, 0.25, 1.0], [0.0, 1.0, 2.0, 3.0])]


def _listed(found):
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _eager(function, value):
    with fluid.dygraph.guard():
        x = fluid.dygraph.to_variable(value)
        x.stop_gradient = False
        found = _listed(function(x))
        layers.reduce_sum(found[0]).backward()
        return [v.numpy() for v in found] + [x.gradient()]


@pytest.mark.parametrize("function", converted_functions.FUNCTIONS, ids=lambda function: function.__name__)
def test_a_program_gives_what_python_gives(function):
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = fluid.data("x", [4], "float32")
        x.stop_gradient = False
        found = _listed(source.converted(function, runtime)(x))
        fetches = found + fluid.gradients([layers.reduce_sum(found[0])], [x])
    assert {"conditional_block", "while"} & {op.type for op in main.global_block().ops} or (
        function.__name__ in ("shapes", "casts")
    )
    exe = fluid.Executor()
    for value in INPUTS:
        expected = interpreted(_eager, function, value)
        given = interpreted(exe.run, main, {"x": value}, [f for f in fetches if f is not None])
        for a, b in zip(given, [e for e, f in zip(expected, fetches) if f is not None], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
