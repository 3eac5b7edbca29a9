"""What demos of PaddleSlim do by `fluid.contrib.slim`, written once for any engine that offers the Fluid
API (Python 3.7 syntax): quantization by passes over graphs, distillation, pruning.
"""

import importlib

import numpy as np

from tests.parity import quantize
from tests.parity.programs import new_scope, set_parameters

STEPS = 4
KINDS = (
    ("abs_max", "abs_max"),
    ("range_abs_max", "abs_max"),
    ("moving_average_abs_max", "channel_wise_abs_max"),
)


def _module(fluid, path):
    return importlib.import_module(fluid.__name__ + ".contrib.slim." + path)


def quantized(fluid, activation, weight):
    """Train with rounded inputs, freeze, convert, as the demo quant_aware does."""
    passes = _module(fluid, "quantization")
    graphs = importlib.import_module(fluid.__name__ + ".framework")
    scope, place = new_scope(fluid), fluid.CPUPlace()
    main, startup = fluid.Program(), fluid.Program()
    with fluid.scope_guard(scope), fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, prediction = quantize.digits(fluid)
        test = main.clone(for_test=True)
        fluid.optimizer.Momentum(learning_rate=0.05, momentum=0.9).minimize(loss)
        exe = fluid.Executor(place)
        exe.run(startup)
        set_parameters(fluid, main, scope)
        aware = []
        for program, for_test in ((main, False), (test, True)):
            graph = graphs.IrGraph(fluid.core.Graph(program.desc), for_test=for_test)
            passes.QuantizationTransformPass(
                scope=scope,
                place=place,
                activation_quantize_type=activation,
                weight_quantize_type=weight,
                window_size=3,
            ).apply(graph)
            passes.AddQuantDequantPass(scope=scope, place=place).apply(graph)
            passes.OutScaleForTrainingPass(scope=scope, place=place).apply(graph)
            aware.append(graph)
        trained, rng = aware[0].to_program(), np.random.RandomState(0)
        found = {"types": sorted(op.type for op in trained.global_block().ops)}
        found["losses"] = [
            float(np.ravel(exe.run(trained, feed=quantize.batch(rng), fetch_list=[loss.name])[0])[0])
            for _ in range(STEPS)
        ]

        def predict(program):
            feed = quantize.tested()
            return np.array(exe.run(program, feed=feed, fetch_list=[prediction.name])[0]).tolist()

        found["rounded"] = predict(aware[1].to_program())
        passes.OutScaleForInferencePass(scope=scope).apply(aware[1])
        passes.QuantizationFreezePass(scope, place, weight_quantize_type=weight).apply(aware[1])
        frozen = aware[1].to_program()
        found["frozen"] = sorted(op.type for op in frozen.global_block().ops)
        found["thresholds"] = sorted(
            op.attr("out_threshold") for op in frozen.global_block().ops if op.has_attr("out_threshold")
        )
        found["predicted"] = predict(frozen)
        passes.ConvertToInt8Pass(scope, place).apply(aware[1])
        found["int8"] = {
            v.name: np.array(scope.find_var(v.name).get_tensor()).ravel().tolist()[:20]
            for v in aware[1].to_program().list_vars()
            if v.name.endswith(".int8")
        }
    return found


def _net(fluid, prefix, width):
    image = fluid.data("image", [None, 1, 8, 8], "float32")
    attr = fluid.ParamAttr
    first = fluid.layers.conv2d(image, width, 3, padding=1, act="relu", param_attr=attr(prefix + "c1"), bias_attr=False)
    last = fluid.layers.conv2d(first, 4, 3, padding=1, act="relu", param_attr=attr(prefix + "c2"), bias_attr=False)
    logits = fluid.layers.fc(last, 5, param_attr=attr(prefix + "fc"), bias_attr=attr(prefix + "fcb"))
    return image, first, last, logits


def distilled(fluid, kind):
    """Train a student by a teacher that was merged into its graph, as the demo distillation does."""
    slim, distillers = _module(fluid, "graph"), _module(fluid, "distillation")
    scope, place = new_scope(fluid), fluid.CPUPlace()
    startup = fluid.Program()
    graphs, maps = [], []
    with fluid.scope_guard(scope):
        for prefix in ("student_", "teacher_"):
            program = fluid.Program()
            with fluid.program_guard(program, startup), fluid.unique_name.guard(prefix):
                image, first, last, logits = _net(fluid, prefix, 4)
                label = fluid.data("label", [None, 1], "int64")
                nodes = [("image", image.name), ("label", label.name)]
                loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(logits, label))
                outs = [("loss", loss.name)] if prefix == "student_" else []
                graphs.append(slim.GraphWrapper(program, nodes, outs))
                maps.append((first.name, last.name, logits.name))
        fluid.Executor(place).run(startup)
        for graph in graphs:
            set_parameters(fluid, graph.program, scope)
        student = graphs[0]
        for name in ("image", "label"):
            assert student.var(name).name() == name
        student.merge(graphs[1].clone(for_test=True))
        (s1, s2, s3), (t1, t2, t3) = maps
        {
            "l2": lambda: distillers.L2Distiller(s2, t2, 0.5),
            "fsp": lambda: distillers.FSPDistiller([(s1, s2)], [(t1, t2)], 2.0),
            "soft": lambda: distillers.SoftLabelDistiller(s3, t3, 2.0, 3.0, 1.5),
        }[kind]().distiller_loss(student)
        trained = student.get_optimize_graph(fluid.optimizer.SGD(0.1), place, scope)
        executor, rng = slim.SlimGraphExecutor(place), np.random.RandomState(3)
        found = []
        for _ in range(STEPS):
            data = [(rng.rand(1, 8, 8).astype("float32"), np.array([rng.randint(5)], "int64")) for _ in range(6)]
            found.append([float(np.ravel(v)[0]) for v in executor.run(trained, scope, data=data)])
        teacher = np.array(scope.find_var("teacher_fc").get_tensor()).ravel().tolist()[:5]
    return {"outs": list(trained.out_nodes), "losses": found, "teacher": teacher}


def pruned(fluid):
    """Prune filters by their norms, and measure: the demos prune and sensitive."""
    slim, prune = _module(fluid, "graph"), _module(fluid, "prune")
    scope, place = new_scope(fluid), fluid.CPUPlace()
    main, startup = fluid.Program(), fluid.Program()
    with fluid.scope_guard(scope), fluid.program_guard(main, startup), fluid.unique_name.guard():
        image, _, _, logits = _net(fluid, "", 6)
        fluid.layers.pool2d(fluid.layers.sigmoid(image), 2, pool_stride=2)
        exe = fluid.Executor(place)
        exe.run(startup)
        set_parameters(fluid, main, scope)
        graph = slim.GraphWrapper(main, [("image", image.name)], [("logits", logits.name)])
        found = {"before": [graph.flops(), graph.flops(only_conv=True), int(graph.numel_params())]}
        pruner = prune.StructurePruner({"*": 0}, {"*": "l1_norm"})
        tensors = {n: scope.find_var(n).get_tensor() for n in ("c1", "c2")}
        value = np.array(tensors["c1"])
        at = pruner.cal_pruned_idx("c1", value, 0.5)
        found["indices"] = [int(i) for i in at]
        zeros = pruner.prune_tensor(value, at, 0, lazy=True)
        found["zeros"] = [int((zeros == 0).sum()), list(zeros.shape)]
        feed = {"image": np.random.RandomState(1).rand(2, 1, 8, 8).astype("float32")}
        tensors["c1"].set(zeros.astype("float32"), place)
        found["lazy"] = np.array(exe.run(main, feed=feed, fetch_list=[logits])[0]).tolist()
        tensors["c1"].set(pruner.prune_tensor(value, at, 0), place)
        tensors["c2"].set(pruner.prune_tensor(np.array(tensors["c2"]), at, 1), place)
        graph.update_param_shape(scope)
        graph.update_groups_of_conv()
        graph.infer_shape()
        found["after"] = [graph.flops(), graph.flops(only_conv=True), int(graph.numel_params())]
        found["pruned"] = np.array(exe.run(main, feed=feed, fetch_list=[logits])[0]).tolist()
        convolution = [op for op in graph.ops() if op.type() == "conv2d"][1]
        found["around"] = [
            [op.type() for op in graph.pre_ops(convolution)],
            [op.type() for op in graph.next_ops(convolution)],
            [v.name() for v in graph.get_param_by_op(convolution)],
        ]
    return found
