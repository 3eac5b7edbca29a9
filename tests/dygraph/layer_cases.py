"""Layers of `fluid.dygraph.nn` in programs: run by the tests, and by the real Fluid for golden
values.

Everything takes the engine as `fluid`. Kept to Python 3.7: the real Fluid runs there.
"""

import numpy as np

IMAGES = [("x", [2, 4, 8, 8], "float32")]
VOLUMES = [("x", [2, 2, 5, 5, 5], "float32")]
PAIR = [("x", [4, 3], "float32"), ("y", [4, 3], "float32")]
ROWS = [("x", [2, 4], "float32")]
RAGGED = [("x", [-1, 4], "float32")]
GRU = [("x", [2, 9], "float32"), ("h", [2, 3], "float32")]
CLASSES = [("x", [2, 4], "float32"), ("l", [2, 1], "int64")]
TREES = [("x", [1, 6, 5], "float32"), ("e", [1, 6, 2], "int32")]
TWO = [("x", [2, 4], "float32"), ("y", [2, 5], "float32")]
LOG = [("x", [4, 3, 2], "float32"), ("y", [4, 2], "int64")]


def cases(fluid):
    """Case name -> (function that makes the layer, the data that it takes)."""
    d = fluid.dygraph
    attr = fluid.ParamAttr
    return {
        "conv2d": (lambda: d.Conv2D(4, 6, 3, padding=1, act="relu"), IMAGES),
        "conv2d_groups": (
            lambda: d.Conv2D(4, 6, 3, stride=[2, 1], padding=[1, 2], dilation=2, groups=2),
            IMAGES,
        ),
        "conv2d_depthwise": (
            lambda: d.Conv2D(4, 8, 3, groups=4, use_cudnn=False, bias_attr=False),
            IMAGES,
        ),
        "conv2d_transpose": (lambda: d.Conv2DTranspose(4, 6, 3, stride=2), IMAGES),
        "conv2d_transpose_depthwise": (
            lambda: d.Conv2DTranspose(4, 4, 3, groups=4, use_cudnn=False, output_size=[10, 10]),
            IMAGES,
        ),
        "conv3d": (lambda: d.Conv3D(2, 3, 3), VOLUMES),
        "conv3d_transpose": (lambda: d.Conv3DTranspose(2, 3, 3), VOLUMES),
        "conv3d_transpose_bias": (
            lambda: d.Conv3DTranspose(2, 3, 3, bias_attr="b", act="relu"),
            VOLUMES,
        ),
        "pool2d": (lambda: d.Pool2D(2, "avg", 2, ceil_mode=True, exclusive=False), IMAGES),
        "pool2d_global": (lambda: d.Pool2D(pool_type="max", global_pooling=True), IMAGES),
        "linear": (lambda: d.Linear(4, 3, act="softmax"), ROWS),
        "linear_3d": (
            lambda: d.Linear(8, 3, param_attr=attr(name="w", learning_rate=0.5)),
            [("x", [2, 5, 8], "float32")],
        ),
        "instance_norm": (lambda: d.InstanceNorm(4), IMAGES),
        "batch_norm": (lambda: d.BatchNorm(4, act="relu", momentum=0.8), IMAGES),
        "batch_norm_frozen": (
            lambda: d.BatchNorm(4, is_test=True, use_global_stats=True, param_attr=attr(learning_rate=0.0)),
            IMAGES,
        ),
        "dropout": (lambda: d.Dropout(0.3, seed=5, is_test=True), IMAGES),
        "embedding": (lambda: d.Embedding([10, 4], padding_idx=-1), [("x", [2, 3], "int64")]),
        "embedding_sparse": (
            lambda: d.Embedding([10, 4], is_sparse=True),
            [("x", [2, 3], "int64")],
        ),
        "layer_norm": (lambda: d.LayerNorm([8, 8]), IMAGES),
        "layer_norm_shift": (lambda: d.LayerNorm(8, scale=False, act="relu"), IMAGES),
        "gru_unit": (lambda: d.GRUUnit(9), GRU),
        "gru_unit_origin_mode": (lambda: d.GRUUnit(9, origin_mode=True), GRU),
        "gru_unit_relu": (
            lambda: d.GRUUnit(9, bias_attr=False, activation="relu", gate_activation="identity"),
            GRU,
        ),
        "nce": (lambda: d.NCE(20, 4, num_neg_samples=3), CLASSES),
        "nce_custom": (
            lambda: d.NCE(
                5,
                4,
                bias_attr="b",
                is_sparse=True,
                sampler="custom_dist",
                custom_dist=[0.1, 0.2, 0.3, 0.2, 0.2],
            ),
            CLASSES,
        ),
        "prelu_all": (lambda: d.PRelu("all"), IMAGES),
        "prelu_channel": (lambda: d.PRelu("channel", channel=4), IMAGES),
        "prelu_element": (lambda: d.PRelu("element", input_shape=[2, 4, 8, 8]), IMAGES),
        "bilinear": (lambda: d.BilinearTensorProduct(4, 5, 6, act="relu"), TWO),
        "group_norm": (lambda: d.GroupNorm(4, 2, act="relu"), IMAGES),
        "group_norm_weight": (lambda: d.GroupNorm(4, 2, param_attr="p", bias_attr="q"), IMAGES),
        "spectral_norm": (
            lambda: d.SpectralNorm([4, 6], power_iters=2),
            [("x", [4, 6], "float32")],
        ),
        "tree_conv": (lambda: d.TreeConv(5, 6, 2), TREES),
        "sequence_conv": (lambda: d.nn.SequenceConv("sc", 3), RAGGED),
        "row_conv": (lambda: d.nn.RowConv("rc", 2, act="tanh"), RAGGED),
        "mse_loss": (lambda: d.MSELoss(), PAIR),
        "l1_loss": (lambda: d.L1Loss("sum"), PAIR),
        "l1_loss_each": (lambda: d.L1Loss("none"), PAIR),
        "bce_loss": (lambda: d.BCELoss(), PAIR),
        "nll_loss": (lambda: d.NLLLoss(), [("x", [4, 3], "float32"), ("y", [4], "int64")]),
        "nll_loss_3d": (lambda: d.NLLLoss(reduction="none"), LOG),
    }


def program_of(fluid, make, data):
    """(layer, main program, startup program, outputs) of a case."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        variables = [fluid.data(*d) for d in data]
        layer = make()
        outs = layer(*variables)
    return layer, main, startup, list(outs) if isinstance(outs, (list, tuple)) else [outs]


# written by Fluid for kernels that are not here
_IGNORED = ("op_role", "op_role_var", "op_namescope", "op_callstack", "op_device")


def describe(layer, main, startup, outs):
    """What the layer makes: its parameters, the operators that begin them, and its own operators
    with slots and attributes; variables that are no parameters and no data by the order of their
    first use.
    """
    block = main.global_block()
    names = {}

    def name(n):
        var = block.vars[n]
        return n if var.persistable or len(n) == 1 else names.setdefault(n, f"t{len(names)}")

    ops = []
    for op in block.ops:
        ins = {s: [name(n) for n in op.input(s)] for s in op.input_names if op.input(s)}
        made = {s: [name(n) for n in op.output(s)] for s in sorted(op.output_names) if op.output(s)}
        attrs = {a: op.attr(a) for a in op.attr_names if a not in _IGNORED}
        ops.append([op.type, ins, made, attrs])
    return {
        "name": layer.full_name(),
        "parameters": [
            [path, p.name, list(p.shape), p.stop_gradient, p.trainable] for path, p in layer.named_parameters()
        ],
        "state": list(layer.state_dict()),
        "startup": sorted([op.type, op.output("Out")[0]] for op in startup.global_block().ops),
        "operators": ops,
        "outputs": [[name(o.name), list(o.shape)] for o in outs],
    }


# Fluid's gradients of these are other than numeric differences of its own outputs.
_NO_GRADIENTS = ("group_norm", "spectral_norm", "tree_conv")
# in dygraph mode: without LoD, and numbers that are drawn differ
_NO_VALUES = ("sequence_conv", "row_conv", "nce", "nce_custom", "dropout", "batch_norm_frozen")
_LIMITS = {"embedding": 10, "embedding_sparse": 10, "nll_loss": 3, "nll_loss_3d": 3}


def value_cases(fluid):
    """The cases whose numbers are compared in dygraph mode."""
    return {name: case for name, case in cases(fluid).items() if name not in _NO_VALUES}


def _input(case, name, shape, dtype):
    count = int(np.prod(shape))
    if case == "tree_conv" and dtype == "int32":
        edges = np.array([[1, 2], [1, 3], [2, 4], [2, 5], [3, 6], [0, 0]], "int32")
        return edges[None]
    if dtype == "float32":
        values = np.sin(np.arange(count) * 1.7 + len(name)).astype("float32")
        if case.endswith("_loss") and case.startswith("bce"):
            values = (values + 2) / 4
        return values.reshape(shape)
    return (np.arange(count) * 7 % _LIMITS[case]).astype(dtype).reshape(shape)


def summary(value):
    """A few numbers that tell an array."""
    value = np.asarray(value, "float64")
    flat = value.ravel()
    return [list(value.shape), float(flat.sum()), float(np.abs(flat).sum()), flat[:3].tolist()]


def values(fluid, case, make, data):
    """What a layer gives in dygraph mode, in training and in evaluation, and its gradients."""
    with fluid.dygraph.guard():
        layer = make()
        for number, param in enumerate(layer.parameters()):
            shape = [int(n) for n in param.shape]
            count = int(np.prod(shape))
            filled = np.cos(np.arange(count) * 0.9 + number).reshape(shape)
            param.set_value(((filled + 1.5) / 3).astype("float32"))
        inputs = [fluid.dygraph.to_variable(_input(case, *d)) for d in data]
        for x, (_, _, dtype) in zip(inputs, data):
            x.stop_gradient = dtype != "float32" or case == "bce_loss"
        outs = layer(*inputs)
        outs = list(outs) if isinstance(outs, (list, tuple)) else [outs]
        weight = np.sin(np.arange(np.prod(outs[0].shape)) * 0.3 + 1).reshape(outs[0].shape)
        weight = fluid.dygraph.to_variable(weight.astype("float32"))
        fluid.layers.reduce_sum(outs[0] * weight).backward()
        found = {"outputs": [summary(o.numpy()) for o in outs]}
        gradients = {}
        for name, param in [*layer.named_parameters(), *((d[0], x) for d, x in zip(data, inputs))]:
            gradient = param.gradient()
            if isinstance(gradient, tuple):
                gradient = gradient[0]
            gradients[name] = None if gradient is None else summary(gradient)
        if case not in _NO_GRADIENTS:
            found["gradients"] = gradients
        found["state"] = [summary(p.numpy()) for p in layer.parameters()]
        layer.eval()
        again = layer(*inputs)
        again = again[0] if isinstance(again, (list, tuple)) else again
        found["evaluated"] = summary(again.numpy())
        found["stops"] = again.stop_gradient
        return found
