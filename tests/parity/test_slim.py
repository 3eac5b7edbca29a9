"""What demos of PaddleSlim do by `fluid.contrib.slim`, against the real Fluid (tests/golden/slim.json)."""

import json
from pathlib import Path

import numpy as np
import pytest
from jfluid.contrib.slim.distillation.distiller import L2DistillerPass
from jfluid.contrib.slim.graph import GraphWrapper, SlimGraphExecutor
from jfluid.contrib.slim.prune.pruner import StructurePruner
from jfluid.contrib.slim.quantization import quantization_pass as passes
from jfluid.framework import IrGraph

import jfluid as fluid
from jfluid import errors
from tests.parity import slim

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "slim.json").read_text())
PLACE = fluid.CPUPlace()
pytestmark = pytest.mark.usefixtures("interpreted_steps")


@pytest.mark.parametrize("kinds", slim.KINDS, ids=lambda k: "-".join(k))
def test_quantization_by_passes(kinds):
    want, found = GOLDEN["quantized"][" ".join(kinds)], slim.quantized(fluid, *kinds)
    # Fluid names some gradient operators otherwise
    forward = [[t for t in f["types"] if "_grad" not in t] for f in (found, want)]
    assert forward[0] == forward[1] and found["frozen"] == want["frozen"]
    np.testing.assert_allclose(found["losses"], want["losses"], rtol=1e-4)
    np.testing.assert_allclose(found["thresholds"], want["thresholds"], rtol=1e-4)
    for predicted in ("rounded", "predicted"):
        np.testing.assert_allclose(found[predicted], want[predicted], rtol=1e-3, atol=1e-5)
    assert found["int8"].keys() == want["int8"].keys()
    for name, values in want["int8"].items():  # a weight may lie between two integers
        assert np.abs(np.subtract(found["int8"][name], values)).max() <= 1


@pytest.mark.parametrize("kind", ["l2", "fsp", "soft"])
def test_distillation(kind):
    want, found = GOLDEN["distilled"][kind], slim.distilled(fluid, kind)
    assert found["outs"] == want["outs"]
    np.testing.assert_allclose(found["losses"], want["losses"], rtol=1e-5)
    assert found["teacher"] == want["teacher"]  # it is not trained


def test_pruning():
    want, found = GOLDEN["pruned"], slim.pruned(fluid)
    for values in ("lazy", "pruned"):
        np.testing.assert_allclose(found.pop(values), want.pop(values), rtol=1e-5, atol=1e-7)
    assert found == want


def test_what_does_not_fit_is_refused():
    with pytest.raises(TypeError, match="IrGraph"):
        passes.QuantizationTransformPass(fluid.Scope()).apply(fluid.Program())
    with pytest.raises(TypeError, match=r"program\.desc"):
        fluid.core.Graph(fluid.Program())
    with pytest.raises(TypeError, match=r"core\.Graph"):
        IrGraph(fluid.Program())
    with pytest.raises(ValueError, match="activation_quantize_type"):
        passes.QuantizationTransformPass(activation_quantize_type="channel_wise_abs_max")
    with pytest.raises(ValueError, match="quantizable_op_type"):
        passes.QuantizationTransformPass(quantizable_op_type=["relu"])
    with pytest.raises(errors.UnsupportedError, match="by functions"):
        passes.QuantizationTransformPass(weight_quantize_func=abs)
    with pytest.raises(ValueError, match="expected a Scope"):
        passes.AddQuantDequantPass()
    with pytest.raises(ValueError, match="dropout"):
        passes.AddQuantDequantPass(fluid.Scope(), PLACE, quantizable_op_type=["dropout"])
    with pytest.raises(ValueError, match="l1_norm"):
        StructurePruner({"*": 0}, {"*": "l2"}).cal_pruned_idx("w", np.ones((2, 2)), 0.5)
    with pytest.raises(ValueError, match="give an axis"):
        StructurePruner(None, {"*": "l1_norm"}).cal_pruned_idx("w", np.ones((2, 2)), 0.5)
    with pytest.raises(TypeError, match="GraphWrapper"):
        SlimGraphExecutor(PLACE).run(fluid.Program(), fluid.Scope())
    with pytest.raises(errors.UnsupportedError):
        fluid.contrib.slim.Compressor()


def graph_of(build):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        build()
    return IrGraph(fluid.core.Graph(main.desc)), startup


def two_layers():
    x = fluid.data("x", [None, 4])
    with fluid.name_scope("skip_quant"):
        left_alone = fluid.layers.fc(x, 4)
    fluid.layers.fc(left_alone, 4)


def test_what_is_in_a_scope_to_skip_stays():
    graph, startup = graph_of(two_layers)
    scope = fluid.Scope()
    fluid.Executor().run(startup, scope=scope)
    passes.QuantizationTransformPass(scope, PLACE).apply(graph)
    first, second = (n for n in graph.all_op_nodes() if n.name() == "mul")
    assert first.op().attr("skip_quant") and first.input("X") == ["x"]
    assert second.op().attr("quantization_type") == "qat_with_weight"
    assert second.input("Y") == ["fc_1.w_0.quantized.dequantized"]
    weight = next(v for v in graph.all_persistable_nodes() if v.name() == "fc_1.w_0")
    assert weight.shape() == [4, 4] and weight.is_var() and not weight.is_op()
    assert [o.name() for o in weight.outputs] == ["fake_quantize_abs_max"]
    assert [v.name() for v in second.outputs] == second.output_arg_names()
    assert {n.id() for n in graph.clone().all_nodes()}.isdisjoint(n.id() for n in graph.all_nodes())


def test_graphs_are_drawn_compiled_and_made_for_phones(tmp_path):
    graph, startup = graph_of(two_layers)
    scope = fluid.Scope()
    fluid.Executor().run(startup, scope=scope)
    passes.QuantizationTransformPass(scope, PLACE).apply(graph)
    second = [n for n in graph.all_op_nodes() if n.name() == "mul"][1]
    assert "mul" in Path(graph.draw(str(tmp_path), "graph", [second])).read_text()
    compiled = fluid.CompiledProgram(graph.graph)
    (found,) = fluid.Executor().run(
        compiled, feed={"x": np.ones((2, 4), "float32")}, fetch_list=["fc_1.tmp_1"], scope=scope
    )
    assert found.shape == (2, 4)
    passes.QuantizationFreezePass(scope, PLACE, weight_bits=16).apply(graph)
    with pytest.raises(errors.ProgramError, match="eight bits"):
        passes.ConvertToInt8Pass(scope, PLACE).apply(graph)
    passes.TransformForMobilePass().apply(graph)
    assert {"quantize", "dequantize"} <= {n.name() for n in graph.all_op_nodes()}


def test_a_graph_is_saved_and_loaded(tmp_path):
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 4])
        y = fluid.layers.fc(x, 3)
        loss = fluid.layers.mean(y)
    graph = GraphWrapper(main, {"x": "x"}, {"y": y.name})
    exe = SlimGraphExecutor(PLACE)
    with fluid.scope_guard(scope):
        exe.exe.run(startup)
        graph.compile(for_parallel=False)
        (before,) = exe.run(graph, scope, data=[(np.ones(4, "float32"),)])
        graph.save_persistables(str(tmp_path / "all"), exe)
        graph.save_model(str(tmp_path / "model"), exe)
        graph.save_infer_model(str(tmp_path / "model"), exe, (["x"], [y.name]), program_only=True)
    assert graph.get_optimize_graph(fluid.optimizer.SGD(0.1), PLACE, scope) is None
    assert {p.name for p in (tmp_path / "model").iterdir()} == {*("__model__", "__model__.infer", "__params__")}
    with fluid.scope_guard(fluid.Scope()):
        exe.exe.run(startup)
        graph.load_persistables(str(tmp_path / "all"), exe)
        (after,) = exe.run(graph, fluid.global_scope(), data=[(np.ones(4, "float32"),)])
    np.testing.assert_array_equal(before, after)
    with fluid.program_guard(main):
        add = L2DistillerPass(y.name, y.name)
        add.apply(graph)
    assert graph.out_nodes["loss"] and loss.name not in graph.out_nodes.values()


def test_shapes_of_parameters_that_the_scope_lacks():
    fluid.layers.fc(fluid.data("x", [None, 4]), 2, param_attr="w")
    with pytest.raises(errors.UninitializedError, match="the scope has no w"):
        GraphWrapper(fluid.default_main_program()).update_param_shape(fluid.Scope())


def test_paddleslim_joins_the_lists_of_operators():
    """PaddleSlim 1.1 does so where it is imported."""
    joined = passes.QuantizationTransformPass._supported_quantizable_op_type + (
        passes.AddQuantDequantPass._supported_quantizable_op_type
    )
    assert joined[:5] == ["conv2d", "depthwise_conv2d", "mul", "matmul", "pool2d"]
    assert set(passes.AddQuantDequantPass._activation_type) <= set(joined)
