"""Trains a step in every mode, and prints for each how much was compiled and traced, and its losses.

python -m tests.compile.every_mode [MODE ...]
"""

import json
import os
import sys

import numpy as np

os.environ["CPU_NUM"] = "2"

import jax

import jfluid as fluid
from jfluid import layers
from jfluid.compile.lowering import trace

COMPILED = "/jax/core/compile/backend_compile_duration"
counts = {"compiled": 0, "lowered": 0}
random = np.random.RandomState(0)


def _noted(event, seconds, **_):
    counts["compiled"] += event == COMPILED


def _lower(*arguments, real=trace.lower, **options):
    counts["lowered"] += 1
    return real(*arguments, **options)


def losses(build, feeds, compiled=lambda program, loss: program):
    """What steps of a program give for feeds."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss = build()
        fluid.optimizer.Adam(0.01).minimize(loss)
    executor = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        program = compiled(main, loss)
        return [np.mean(executor.run(program, feed=f, fetch_list=[loss])[0]).item() for f in feeds]


def _dense():
    x = fluid.data("x", [None, 3])
    return layers.mean(layers.dropout(layers.fc(x, 4, act="tanh"), 0.5))


def _rows(*counts):
    return [{"x": random.rand(n, 3).astype("float32")} for n in counts]


def static():
    """One device."""
    return losses(_dense, _rows(4, 4))


def stream():
    """Batches of many sizes."""
    return losses(_dense, _rows(4, 5, 9, 7, 30, 6))


def replicas():
    """Two replicas in one XLA program, and on devices of their own."""
    found = []
    for joined, reduces in ((True, False), (False, False), (False, True)):
        fluid.set_flags({"FLAGS_cpu_replicas_joined": joined})

        def compiled(program, loss, reduces=reduces):
            strategy = fluid.BuildStrategy()
            if reduces:
                strategy.reduce_strategy = strategy.ReduceStrategy.Reduce
            return fluid.CompiledProgram(program).with_data_parallel(loss.name, strategy)

        found += losses(_dense, _rows(4, 4), compiled)
    return found


def replicas_stream():
    """Two replicas with shares of many sizes, each of which draws numbers of its own."""
    fluid.set_flags({"FLAGS_cpu_replicas_joined": True})
    return losses(
        _dense,
        _rows(4, 5, 9, 7, 30, 6),
        lambda program, loss: fluid.CompiledProgram(program).with_data_parallel(loss.name),
    )


def sequences():
    """Sequences with a LoD, whose values are held against the operators' rules."""

    def build():
        words = fluid.data("words", [None, 1], "int64", lod_level=1)
        label = fluid.data("label", [None, 1], "int64", lod_level=1)
        rows = layers.fc(layers.embedding(words, [20, 8]), 9)
        return layers.mean(layers.linear_chain_crf(rows, label, fluid.ParamAttr("transition")))

    def feed(lengths):
        def tensor(most):
            values = random.randint(0, most, (sum(lengths), 1)).astype("int64")
            return fluid.create_lod_tensor(values, [lengths], fluid.CPUPlace())

        return {"words": tensor(20), "label": tensor(9)}

    return losses(build, [feed(lengths) for lengths in ([2, 3], [1, 4], [3, 9])])


def known_values():
    """Shapes that follow from a value that is fed."""

    def build():
        x, k = fluid.data("x", [4, 3]), fluid.data("k", [1], "int32")
        return layers.mean(layers.topk(layers.fc(x, 4), k)[0])

    return losses(build, [_rows(4)[0] | {"k": np.array([n], "int32")} for n in (2, 3)])


def _eager(sizes):
    found = []
    with fluid.dygraph.guard(fluid.CPUPlace()), fluid.unique_name.guard():
        constant = fluid.initializer.Constant(0.3)
        layer = fluid.dygraph.Linear(3, 4, param_attr=constant)
        optimizer = fluid.optimizer.Adam(0.01, parameter_list=layer.parameters())
        for feed in _rows(*sizes):
            loss = layers.mean(layers.tanh(layer(fluid.dygraph.to_variable(feed["x"]))))
            loss.backward()
            optimizer.minimize(loss)
            layer.clear_gradients()
            found.append(loss.numpy().item())
    return found


def imperative():
    """Imperative steps of one size."""
    return _eager((4, 4, 4))


def imperative_stream():
    """Imperative steps of many sizes."""
    return _eager((4, 5, 9, 7, 30))


def declarative():
    """A function of imperative mode that is made into a program."""
    with fluid.dygraph.guard(fluid.CPUPlace()), fluid.unique_name.guard():
        constant = fluid.initializer.Constant(0.3)
        layer = fluid.dygraph.Linear(3, 4, param_attr=constant)

        @fluid.dygraph.declarative
        def function(x):
            return layers.mean(layer(x))

        found = []
        for feed in _rows(4, 4):
            loss = function(fluid.dygraph.to_variable(feed["x"]))
            loss.backward()
            found.append(loss.numpy().item())
        return found


MODES = (
    static,
    stream,
    replicas,
    replicas_stream,
    sequences,
    known_values,
    imperative,
    imperative_stream,
    declarative,
)


def main(wanted):
    jax.monitoring.register_event_duration_secs_listener(_noted)
    trace.lower = _lower
    for mode in MODES:
        if wanted and mode.__name__ not in wanted:
            continue
        counts.update(compiled=0, lowered=0)
        random.seed(0)
        print(json.dumps({"mode": mode.__name__, "losses": mode(), **counts}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
