"""Single operators as Fluid's own operator tests state them, for any engine that offers the Fluid
API (Python 3.7 syntax): every input declared with all of its dimensions, outputs with their dtype
alone, optional outputs left out.
"""

import numpy as np


class Rows:
    """Rows in sequences: values and lengths by level."""

    def __init__(self, values, lengths, dtype="float32"):
        self.values, self.lengths = np.array(values, dtype), lengths


class Case:
    """One operator.

    Args:
        inputs: slot -> array or `Rows`, or a list of them.
        outputs: slot -> dtype, or a list of dtypes.
        grads: input slots whose gradients are compared, of the mean of the squares of `through`.
        through: the output slots that the gradients come from (the first by default).
        hidden: output slots that are made, but not compared.
    """

    def __init__(self, name, op, inputs, outputs, attrs=None, grads=(), through=(), hidden=(), shapes=False):
        self.name, self.op, self.inputs, self.outputs = name, op, inputs, outputs
        self.attrs, self.grads, self.hidden = attrs or {}, list(grads), list(hidden)
        self.through = list(through) or list(outputs)[:1]
        self.shapes = shapes


def _listed(value):
    return value if isinstance(value, list) else [value]


def _declare(fluid, block, slot, value, feed):
    names = []
    for i, given in enumerate(_listed(value)):
        ragged = isinstance(given, Rows)
        array = given.values if ragged else given
        name = "%s_%d" % (slot, i) if isinstance(value, list) else slot
        block.create_var(
            name=name,
            shape=list(array.shape),
            dtype=str(array.dtype),
            lod_level=len(given.lengths) if ragged else 0,
        )
        place = fluid.CPUPlace()
        if ragged:
            feed[name] = fluid.create_lod_tensor(array, given.lengths, place)
        else:
            feed[name] = fluid.LoDTensor()
            feed[name].set(array, place)
        names.append(name)
    return names


def _loss(fluid, block, through):
    """The sum of the means of the squares of some variables."""
    means = []
    for var in through:
        square, mean = (block.create_var(name=var.name + end, dtype=var.dtype) for end in (".square", ".mean"))
        block.append_op(type="square", inputs={"X": [var]}, outputs={"Out": [square]})
        block.append_op(type="mean", inputs={"X": [square]}, outputs={"Out": [mean]})
        means.append(mean)
    loss = block.create_var(name="loss", dtype=through[0].dtype)
    block.append_op(type="sum", inputs={"X": means}, outputs={"Out": [loss]})
    return loss


def run(fluid, case):
    """{variable: (values, shape, lod)} of the outputs of a case, and of its gradients."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        block, feed = main.global_block(), {}
        inputs = {s: _declare(fluid, block, s, v, feed) for s, v in case.inputs.items()}
        outputs = {
            slot: [
                block.create_var(name="%s.out%d" % (slot, i), dtype=dtype) for i, dtype in enumerate(_listed(dtypes))
            ]
            for slot, dtypes in case.outputs.items()
        }
        block.append_op(type=case.op, inputs=inputs, outputs=outputs, attrs=dict(case.attrs))
        fetches = [v for s, found in outputs.items() if s not in case.hidden for v in found]
        if case.grads:
            loss = _loss(fluid, block, [v for s in case.through for v in outputs[s]])
            wanted = [n for slot in case.grads for n in inputs[slot]]
            found = fluid.backward.append_backward(loss, parameter_list=wanted)
            fetches += [g for _, g in found]
        exe = fluid.Executor(fluid.CPUPlace())
        values = exe.run(main, feed=feed, fetch_list=fetches, return_numpy=False, scope=_scope(fluid))
    return {
        var.name: (np.array(v).ravel().tolist(), list(np.array(v).shape), v.lod()) for var, v in zip(fetches, values)
    }


def _scope(fluid):
    return fluid.core.Scope() if hasattr(fluid, "core") else fluid.Scope()
