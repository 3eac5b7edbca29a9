"""Calls of Fluid's layers with one argument of each dtype, for any engine that offers the Fluid API
(Python 3.7 syntax).
"""

import warnings

DTYPES = ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")

# layer -> a call with a variable of some dtype; `v(shape, dtype)` declares one.
CALLS = {
    "softmax": lambda layers, v, d: layers.softmax(v([3, 4], d)),
    "dropout": lambda layers, v, d: layers.dropout(v([3, 4], d), 0.5),
    "relu": lambda layers, v, d: layers.relu(v([3, 4], d)),
    "sigmoid": lambda layers, v, d: layers.sigmoid(v([3, 4], d)),
    "elementwise_add": lambda layers, v, d: layers.elementwise_add(v([3, 4], d), v([3, 4], d)),
    "logical_and": lambda layers, v, d: layers.logical_and(v([3], d), v([3], d)),
    "less_than": lambda layers, v, d: layers.less_than(v([3], d), v([3], d)),
    "equal": lambda layers, v, d: layers.equal(v([3], d), v([3], d)),
    "assign": lambda layers, v, d: layers.assign(v([3, 4], d)),
    "cast": lambda layers, v, d: layers.cast(v([3, 4], d), "float32"),
    "cast_to": lambda layers, v, d: layers.cast(v([3, 4], "float32"), d),
    "concat": lambda layers, v, d: layers.concat([v([3, 4], d), v([3, 4], d)]),
    "stack": lambda layers, v, d: layers.stack([v([3, 4], d), v([3, 4], d)]),
    "sums": lambda layers, v, d: layers.sums([v([3, 4], d), v([3, 4], d)]),
    "reshape": lambda layers, v, d: layers.reshape(v([3, 4], d), [4, 3]),
    "transpose": lambda layers, v, d: layers.transpose(v([3, 4], d), [1, 0]),
    "squeeze": lambda layers, v, d: layers.squeeze(v([3, 1], d), [1]),
    "unsqueeze": lambda layers, v, d: layers.unsqueeze(v([3, 1], d), [1]),
    "flatten": lambda layers, v, d: layers.flatten(v([3, 1, 2], d)),
    "split": lambda layers, v, d: layers.split(v([4, 2], d), 2, 0),
    "gather": lambda layers, v, d: layers.gather(v([4, 2], d), v([2], "int32")),
    "gather_by": lambda layers, v, d: layers.gather(v([4, 2], "float32"), v([2], d)),
    "scatter": lambda layers, v, d: layers.scatter(v([4, 2], d), v([2], "int32"), v([2, 2], d)),
    "expand": lambda layers, v, d: layers.expand(v([4, 2], d), [2, 1]),
    "pad": lambda layers, v, d: layers.pad(v([4, 2], d), [0, 1, 0, 1]),
    "slice": lambda layers, v, d: layers.slice(v([4, 2], d), [0], [1], [3]),
    "reduce_sum": lambda layers, v, d: layers.reduce_sum(v([4, 2], d)),
    "reduce_max": lambda layers, v, d: layers.reduce_max(v([4, 2], d)),
    "reduce_all": lambda layers, v, d: layers.reduce_all(v([4, 2], d)),
    "mean": lambda layers, v, d: layers.mean(v([4, 2], d)),
    "matmul": lambda layers, v, d: layers.matmul(v([4, 2], d), v([2, 3], d)),
    "mul": lambda layers, v, d: layers.mul(v([4, 2], d), v([2, 3], d)),
    "fc": lambda layers, v, d: layers.fc(v([4, 2], d), 3),
    "embedding": lambda layers, v, d: layers.embedding(v([4, 1], d), [5, 2]),
    "one_hot": lambda layers, v, d: layers.one_hot(v([4, 1], d), 5),
    "layer_norm": lambda layers, v, d: layers.layer_norm(v([4, 2], d)),
    "group_norm": lambda layers, v, d: layers.group_norm(v([4, 4, 2, 2], d), 2),
    "batch_norm": lambda layers, v, d: layers.batch_norm(v([4, 4, 2, 2], d)),
    "conv2d": lambda layers, v, d: layers.conv2d(v([4, 4, 6, 6], d), 2, 3),
    "cross_entropy": lambda layers, v, d: layers.cross_entropy(v([4, 2], d), v([4, 1], "int64")),
    "softmax_with_cross_entropy": lambda layers, v, d: layers.softmax_with_cross_entropy(
        v([4, 2], d), v([4, 1], "int64")
    ),
    "softmax_with_cross_entropy_of": lambda layers, v, d: layers.softmax_with_cross_entropy(
        v([4, 2], "float32"), v([4, 1], d)
    ),
    "unique": lambda layers, v, d: layers.unique(v([4], d)),
    "topk": lambda layers, v, d: layers.topk(v([4, 2], d), 1),
    "argsort": lambda layers, v, d: layers.argsort(v([4, 2], d)),
    "argmax": lambda layers, v, d: layers.argmax(v([4, 2], d)),
    "increment": lambda layers, v, d: layers.increment(v([1], d)),
    "scale": lambda layers, v, d: layers.scale(v([4, 2], d), 2.0),
    "clip": lambda layers, v, d: layers.clip(v([4, 2], d), 0.0, 1.0),
    "shape": lambda layers, v, d: layers.shape(v([4, 2], d)),
    "isfinite": lambda layers, v, d: layers.isfinite(v([4, 2], d)),
    "cumsum": lambda layers, v, d: layers.cumsum(v([4, 2], d)),
    "where": lambda layers, v, d: layers.where(v([4, 2], d)),
    "fill_constant": lambda layers, v, d: layers.fill_constant([2], d, 1),
    "zeros": lambda layers, v, d: layers.zeros([2], d),
    "sequence_pool": lambda layers, v, d: layers.sequence_pool(v([4, 2], d, 1), "sum"),
    "sequence_softmax": lambda layers, v, d: layers.sequence_softmax(v([4, 1], d, 1)),
    "sequence_reverse": lambda layers, v, d: layers.sequence_reverse(v([4, 2], d, 1)),
    "sequence_expand": lambda layers, v, d: layers.sequence_expand(v([4, 2], d), v([4, 2], "float32", 1)),
    "sequence_concat": lambda layers, v, d: layers.sequence_concat([v([4, 2], d, 1), v([4, 2], d, 1)]),
    "sequence_mask": lambda layers, v, d: layers.sequence_mask(v([4], d), 3),
    "dynamic_gru": lambda layers, v, d: layers.dynamic_gru(v([4, 6], d, 1), 2),
    "uniform_random": lambda layers, v, d: layers.uniform_random([2], d),
    "randperm": lambda layers, v, d: layers.randperm(4, dtype=d),
}


def _outcome(fluid, call, dtype):
    count = []

    def v(shape, kind, lod_level=0):
        count.append(0)
        return fluid.data("v%d" % len(count), shape, kind, lod_level)

    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(fluid.layers, v, dtype)
        except TypeError:
            return False
        except Exception:
            return None  # an operator's own check
    return True


def probe(fluid, layers=tuple(CALLS)):
    """{layer: [accepted dtypes, dtypes that it raises TypeError for]}."""
    found = {}
    for layer in layers:
        outcomes = {d: _outcome(fluid, CALLS[layer], d) for d in DTYPES}
        found[layer] = [[d for d in DTYPES if outcomes[d] is wanted] for wanted in (True, False)]
    return found
