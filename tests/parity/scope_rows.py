"""Programs that meet SelectedRows of a scope, for any engine that offers the Fluid API (Python 3.7 syntax)."""

import numpy as np


def values(*shape):
    """Return numbers that no sum rounds."""
    return np.arange(int(np.prod(shape)), dtype="float32").reshape(shape) / 8


class Case:
    """A program, its scope and what it holds."""

    def __init__(self, fluid):
        self.fluid, self.scope = fluid, fluid.core.Scope()
        self.executor = fluid.Executor(fluid.CPUPlace())
        self.program = fluid.Program()
        self.block = self.program.global_block()

    def rows(self, name, numbers=None, table=None, height=10):
        """Declare a variable of SelectedRows, and put the rows into the scope."""
        kind = self.fluid.core.VarDesc.VarType.SELECTED_ROWS
        shape = [height, 4]
        var = self.block.create_var(name=name, shape=shape, dtype="float32", type=kind, persistable=True)
        held = self.scope.var(name).get_selected_rows()
        if numbers is not None:
            held.set_rows(numbers)
            held.set_height(height)
            held.sync_index()
        if table is not None:
            held.get_tensor().set(table, self.fluid.CPUPlace())
        return var

    def dense(self, name, value):
        """Declare a persistable variable, and put its value into the scope."""
        var = self.block.create_var(name=name, shape=list(value.shape), dtype=str(value.dtype), persistable=True)
        self.scope.var(name).get_tensor().set(value, self.fluid.CPUPlace())
        return var

    def append(self, op, inputs, outputs, **attrs):
        self.block.append_op(type=op, inputs=inputs, outputs=outputs, attrs=attrs)

    def run(self, times=1, program=None, **arguments):
        for _ in range(times):
            found = self.executor.run(program or self.program, scope=self.scope, **arguments)
        return [np.array(v).tolist() for v in found]

    def held(self, name):
        """Return the rows, the height and the values in the scope."""
        found = self.scope.find_var(name).get_selected_rows()
        return [list(found.rows()), found.height(), np.array(found.get_tensor()).tolist()]


def _table(case):
    return case.rows("w", [0, 4, 7], values(3, 4))


def _gradient(case):
    return case.rows("g", [7, 0, 7], values(3, 4) + 1)


def _rate(case):
    return case.dense("rate", np.array([0.5], "float32"))


def look_up(op):
    def run(case):
        with case.fluid.program_guard(case.program):
            ids = case.fluid.data("ids", [None, 1], "int64")
        out = case.block.create_var(name="out", dtype="float32", shape=[-1, 4])
        case.append(op, {"W": [_table(case)], "Ids": [ids]}, {"Out": [out]})
        with case.fluid.program_guard(case.program):
            total = case.fluid.layers.reduce_sum(case.fluid.layers.scale(out, 2.0), dim=-1)
        feeds = (np.array(ids, "int64").reshape(-1, 1) for ids in ([4], [0, 7], [7, 7, 4, 0]))
        return [case.run(feed={"ids": ids}, fetch_list=[out, total]) for ids in feeds]

    return run


def fill(op, **attrs):
    """An operator gives values for rows that are in the scope."""

    def run(case):
        out = case.rows("w", [1, 2, 3])
        case.append(op, {}, {"Out": [out]}, shape=[3, 4], dtype=5, **attrs)
        case.run()
        rows, height, found = case.held("w")
        return [rows, height, np.shape(found), bool((np.array(found) >= 1).all() and (np.array(found) <= 1.5).all())]

    return run


def sgd_of_rows(case):
    param = case.rows("p", [0, 4, 7, 9], values(4, 4))
    slots = {"Param": [param], "Grad": [_gradient(case)], "LearningRate": [_rate(case)]}
    case.append("sgd", slots, {"ParamOut": [param]})
    case.run(times=3)
    return [case.held("p"), case.held("g")]


def update(op, states, **attrs):
    """A dense parameter is updated by a gradient of rows."""

    def run(case):
        outs = {}
        slots = {"Grad": [_gradient(case)], "LearningRate": [_rate(case)]}
        for slot, out, value in states:
            slots[slot] = outs[out] = [case.dense(slot, value)]
        case.append(op, slots, outs, **attrs)
        case.run(times=2)
        return [np.array(case.scope.find_var(slot).get_tensor()).tolist() for slot, _, _ in states]

    return run


def map_of(op, **attrs):
    def run(case):
        out = case.rows("out")
        case.append(op, {"X": [_gradient(case)]}, {"Out": [out]}, **attrs)
        case.run()
        return case.held("out")

    return run


def sum_of_two(case):
    out, other = case.rows("out"), case.rows("other", [0, 3], values(2, 4))
    case.append("sum", {"X": [_gradient(case), other]}, {"Out": [out]})
    case.run()
    return case.held("out")


def scale_in_place(case):
    var = _gradient(case)
    case.append("scale", {"X": [var]}, {"Out": [var]}, scale=2.0)
    case.run(times=2)
    return case.held("g")


def merge_and_get(case):
    layers, var = case.fluid.layers, _gradient(case)
    with case.fluid.program_guard(case.program):
        out = layers.get_tensor_from_selected_rows(layers.merge_selected_rows(var))
    found = case.run(fetch_list=[out])
    held = case.scope.find_var("g").get_selected_rows()
    held.set_rows([1, 2])
    held.get_tensor().set(values(2, 4), case.fluid.CPUPlace())
    return [found, case.run(fetch_list=[out])]


_PARAM = ("Param", "ParamOut", values(10, 4))
_POWERS = [("Beta%dPow" % i, "Beta%dPowOut" % i, np.array([beta], "float32")) for i, beta in ((1, 0.9), (2, 0.99))]
CASES = {
    "lookup_table": look_up("lookup_table"),
    "lookup_table_v2": look_up("lookup_table_v2"),
    "uniform_random": fill("uniform_random", min=1.0, max=1.5, seed=7),
    "fill_constant": fill("fill_constant", value=1.5),
    "sgd of rows": sgd_of_rows,
    "sgd": update("sgd", [_PARAM]),
    "momentum": update("momentum", [_PARAM, ("Velocity", "VelocityOut", values(10, 4))], mu=0.9),
    "adagrad": update("adagrad", [_PARAM, ("Moment", "MomentOut", values(10, 4))]),
    "adam": update("adam", [_PARAM] + [("Moment%d" % i, "Moment%dOut" % i, values(10, 4)) for i in (1, 2)] + _POWERS),
    "sum": sum_of_two,
    "scale in place": scale_in_place,
    "merge and get": merge_and_get,
    "merge": map_of("merge_selected_rows"),
    "square": map_of("square"),
    "sqrt": map_of("sqrt"),
    "abs": map_of("abs"),
    "assign": map_of("assign"),
    "clip": map_of("clip", min=1.1, max=1.9),
    "clip_by_norm": map_of("clip_by_norm", max_norm=1.0),
}


def run(fluid, name):
    """Return what a case gives, as lists."""
    return CASES[name](Case(fluid))
