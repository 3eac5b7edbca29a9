"""LoDTensors, what DataFeeder makes of samples and what Executor.run returns, for any engine that
offers the Fluid API.

`run` tells what a case gives: values, dtype and lod of tensors, or that it raises.
"""

import numpy as np

ROWS = np.arange(10, dtype="float32").reshape(5, 2)


def _made(data, lengths):
    return lambda fluid: fluid.create_lod_tensor(data, lengths, fluid.CPUPlace())


def _tensor(fluid, lod=None, rows=ROWS):
    tensor = fluid.LoDTensor()
    if rows is not None:
        tensor.set(rows, fluid.CPUPlace())
    if lod is not None:
        tensor.set_lod(lod)
    return tensor


def _with_lod(lod, rows=ROWS):
    return lambda fluid: _tensor(fluid, lod, rows)


def _with_lengths(lengths):
    def build(fluid):
        tensor = _tensor(fluid)
        tensor.set_recursive_sequence_lengths(lengths)
        return [tensor, tensor.has_valid_recursive_sequence_lengths()]

    return build


def _lod_stays(fluid):
    """Neither a wrong lod nor other rows change the lod."""
    tensor = _tensor(fluid, [[0, 2, 5]])
    try:
        tensor.set_lod([[0, 4]])
    except Exception:
        pass
    found = [tensor, tensor.has_valid_recursive_sequence_lengths()]
    tensor.set(ROWS[:3], fluid.CPUPlace())
    return [tensor.lod() for tensor in found[:1]] + [
        tensor,
        tensor.has_valid_recursive_sequence_lengths(),
    ]


def _regrouped(fluid):
    tensor = _tensor(fluid, [[0, 2, 5]])
    return fluid.create_lod_tensor(tensor, [[1, 1], [4, 1]], fluid.CPUPlace())


def _empty(fluid):
    tensor = fluid.LoDTensor()
    return [
        tensor.lod(),
        tensor.recursive_sequence_lengths(),
        tensor.has_valid_recursive_sequence_lengths(),
        tensor.shape(),
    ]


def _random(fluid):
    tensor = fluid.create_random_int_lodtensor([[2, 0, 3]], [4], fluid.CPUPlace(), 5, 5)
    return [tensor, tensor.shape()]


def _fed(level, shape, dtype, samples):
    def build(fluid):
        var = fluid.data("x", shape, dtype, lod_level=level)
        return fluid.DataFeeder([var], fluid.CPUPlace()).feed([(s,) for s in samples])["x"]

    return build


def _fed_old(fluid):
    words = fluid.layers.data("words", [1], "int64", lod_level=1)
    label = fluid.layers.data("label", [1], "int64")
    feed = fluid.DataFeeder([words, label], fluid.CPUPlace()).feed([([1, 2], 3), ([5], 7)])
    return [feed["words"], feed["label"]]


def _fetched(name, numpy):
    """One variable of a program on rows with one and two levels, and on dense ones."""

    def build(fluid):
        layers = fluid.layers
        one, two = (
            fluid.data("one", [None, 2], "float32", lod_level=1),
            fluid.data("two", [None, 2], "float32", lod_level=2),
        )
        dense = fluid.data("dense", [None, 2], "float32")
        zero, first = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 1)
        found = {
            "one": one,
            "scaled": layers.scale(one, 2.0),
            "pooled": layers.sequence_pool(one, "sum"),
            "two": layers.scale(two, 3.0),
            "pooled_two": layers.sequence_pool(two, "max"),
            "dense": dense,
            "array": layers.array_write(dense, zero),
            "mixed_array": layers.array_write(dense, zero),
        }
        layers.array_write(layers.scale(dense, 2.0), first, found["array"])
        layers.array_write(one, first, found["mixed_array"])
        feed = {
            "one": _tensor(fluid, [[0, 2, 2, 5]]),
            "two": _tensor(fluid, [[0, 2, 2, 3], [0, 1, 1, 5]]),
            "dense": ROWS,
        }
        (fetched,) = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=[found[name]], return_numpy=numpy)
        return fetched

    return build


CASES = {
    "two_levels": _made(ROWS, [[2, 1], [1, 2, 2]]),
    "an_empty_sequence": _made(ROWS, [[2, 0, 3]]),
    "no_level": _made(ROWS, []),
    "no_rows": _made(ROWS[:0], [[0, 0]]),
    "lists": _made([[1, 2], [3]], [[2, 1]]),
    "lists_with_an_empty": _made([[], [3]], [[0, 1]]),
    "lists_of_other_lengths": _made([[1], [3]], [[3]]),
    "too_short": _made(ROWS, [[1, 1]]),
    "levels_do_not_fit": _made(ROWS, [[1, 1], [2, 2, 1]]),
    "no_data": _made("abc", [[3]]),
    "regrouped": _regrouped,
    "empty": _empty,
    "random": _random,
    "set_lod": _with_lod([[0, 2], [0, 2, 5]]),
    "set_lod_before_rows": lambda fluid: _with_lod([[0, 2, 7]], None)(fluid).has_valid_recursive_sequence_lengths(),
    "set_lod_levels_before_rows": lambda fluid: _with_lod([[0, 2], [0, 2, 3, 5]], None)(fluid).lod(),
    "set_lod_too_long": _with_lod([[0, 7]]),
    "set_lod_falls": _with_lod([[0, 3, 2, 5]]),
    "set_lod_starts_late": _with_lod([[1, 5]]),
    "set_lod_levels_do_not_fit": _with_lod([[0, 1], [0, 2, 5]]),
    "lod_stays": _lod_stays,
    "set_lengths": _with_lengths([[2, 3]]),
    "set_lengths_two_levels": _with_lengths([[1, 1], [0, 5]]),
    "set_lengths_too_short": _with_lengths([[2, 2]]),
    "set_no_lengths": _with_lengths([]),
    "feeder_words": _fed(1, [None, 1], "int64", [[1, 2, 3], [4]]),
    "feeder_an_empty": _fed(1, [None, 1], "int64", [[1, 2, 3], [], [4]]),
    "feeder_only_empty": _fed(1, [None, 1], "int64", [[], []]),
    "feeder_columns": _fed(1, [None, 1], "int64", [[[1], [2]]]),
    "feeder_array": _fed(1, [None, 1], "int64", [np.array([3, 4])]),
    "feeder_no_sequence": _fed(1, [None, 1], "int64", [3]),
    "feeder_rows": _fed(1, [None, 2], "float32", [[[1, 2], [3, 4]], [], [[5, 6]]]),
    "feeder_flat_rows": _fed(1, [None, 2], "float32", [[1, 2]]),
    "feeder_rows_reshaped": _fed(1, [None, 2, 2], "float32", [[[1, 2, 3, 4]], [[5, 6, 7, 8]]]),
    "feeder_two_levels": _fed(2, [None, 1], "int64", [[[1, 2], [3]], [[4]]]),
    "feeder_two_levels_an_empty": _fed(2, [None, 1], "int64", [[[1, 2], []], [], [[4]]]),
    "feeder_a_level_too_few": _fed(2, [None, 1], "int64", [[1, 2]]),
    "feeder_old_data": _fed_old,
}
CASES.update(
    ("fetch_%s%s" % (name, "_numpy" * numpy), _fetched(name, numpy))
    for name in ("one", "scaled", "pooled", "two", "pooled_two", "dense", "array", "mixed_array")
    for numpy in (False, True)
)


def _shown(value):
    if hasattr(value, "lod"):
        return {
            "values": np.array(value).tolist(),
            "dtype": str(np.array(value).dtype),
            "lod": value.lod(),
            "lengths": value.recursive_sequence_lengths(),
        }
    if isinstance(value, np.ndarray):
        return {"values": value.tolist(), "dtype": str(value.dtype)}
    return [_shown(v) for v in value] if isinstance(value, list) else value


def run(fluid, case):
    scope = fluid.Scope() if hasattr(fluid, "Scope") else fluid.core.Scope()
    with fluid.scope_guard(scope), fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        try:
            return _shown(CASES[case](fluid))
        except Exception:
            return "raises"
