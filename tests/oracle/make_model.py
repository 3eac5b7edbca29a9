"""Write tests/golden/models: models, states, programs and tensor files as the real Fluid saves
them.

Run with the real Fluid's interpreter:  python tests/oracle/make_model.py
"""

import os

import numpy as np
import paddle.fluid as fluid
from paddle.fluid import core
from paddle.fluid.proto import framework_pb2 as pb

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "models")
CPU = fluid.CPUPlace()


def path(*parts):
    return os.path.join(ROOT, *parts)


def without_call_stacks(file):
    """Clear the lines of Python that made each operator: they name the folders of this machine."""
    with open(file, "rb") as f:
        desc = pb.ProgramDesc.FromString(f.read())
    for block in desc.blocks:
        for op in block.ops:
            for attr in op.attrs:
                if attr.name == "op_callstack":
                    del attr.strings[:]
    with open(file, "wb") as f:
        f.write(desc.SerializeToString())


def write_program(program, file):
    with open(file, "wb") as f:
        f.write(program.desc.serialize_to_string())
    without_call_stacks(file)


def conv_net():
    """A small net after three steps of Adam: its inference model both ways, its state, an input and
    the output.
    """
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        image = fluid.data("image", [None, 1, 8, 8])
        label = fluid.data("label", [None, 1], "int64")
        hidden = fluid.layers.conv2d(image, 4, 3, padding=1)
        hidden = fluid.layers.batch_norm(hidden, act="relu")
        hidden = fluid.layers.pool2d(hidden, 2, "max", 2)
        hidden = fluid.layers.dropout(hidden, 0.25)
        probability = fluid.layers.fc(hidden, 3, act="softmax")
        loss = fluid.layers.mean(fluid.layers.cross_entropy(probability, label))
        fluid.optimizer.Adam(0.01).minimize(loss)
        exe = fluid.Executor(CPU)
        exe.run(startup)
        random = np.random.RandomState(0)
        for _ in range(3):
            exe.run(
                main,
                feed={
                    "image": random.rand(6, 1, 8, 8).astype("float32"),
                    "label": random.randint(0, 3, [6, 1]).astype("int64"),
                },
                fetch_list=[loss],
            )
        fluid.io.save_inference_model(path("separate"), ["image"], [probability], exe, main)
        fluid.io.save_inference_model(path("combined"), ["image"], [probability], exe, main, "model", "params")
        fluid.save(main, path("state", "net"))
    for file in (
        path("separate", "__model__"),
        path("combined", "model"),
        path("state", "net.pdmodel"),
    ):
        without_call_stacks(file)
    program, feeds, fetches = fluid.io.load_inference_model(path("separate"), exe)
    images = random.rand(5, 1, 8, 8).astype("float32")
    np.savez(
        path("expected.npz"),
        image=images,
        probability=exe.run(program, feed={feeds[0]: images}, fetch_list=fetches)[0],
    )


def control_flow():
    """Nested blocks, tensor arrays, ragged and sparse variables, readers."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        words = fluid.layers.data("words", [1], dtype="int64", lod_level=2)
        rows = fluid.layers.embedding(words, [50, 4], is_sparse=True)
        loss = fluid.layers.mean(rows)
        fluid.optimizer.Adagrad(0.1).minimize(loss)
        step = fluid.layers.fill_constant([1], "int64", 0)
        stop = fluid.layers.fill_constant([1], "int64", 3)
        array = fluid.layers.create_array("float32")
        running = fluid.layers.less_than(step, stop)
        loop = fluid.layers.While(running)
        with loop.block():
            fluid.layers.array_write(fluid.layers.fill_constant([2], "float32", 1.5), step, array)
            even = fluid.layers.equal(
                fluid.layers.elementwise_mod(step, fluid.layers.fill_constant([1], "int64", 2)),
                fluid.layers.fill_constant([1], "int64", 0),
            )
            fluid.layers.cond(even, lambda: fluid.layers.scale(loss, 2.0), lambda: fluid.layers.scale(loss, 3.0))
            fluid.layers.increment(step)
            fluid.layers.less_than(step, stop, cond=running)
        fluid.layers.assign(np.arange(6, dtype="float32").reshape(2, 3))
        fluid.layers.py_reader(4, [[-1, 3], [-1, 1]], ["float32", "int64"], name="reader")
    write_program(main, path("control_flow.program"))


def tensors():
    """A file of each kind: the element types that Fluid saves, ragged rows, SelectedRows."""
    scope, exe = core.Scope(), fluid.Executor(CPU)
    values = {t: np.arange(6).reshape(2, 3).astype(t) for t in ("int8", "int32", "int64", "float32", "float64")}
    values["ragged"] = np.arange(5, dtype="int64").reshape(5, 1)
    values["one"] = np.array([2.5], "float32")
    with fluid.scope_guard(scope):
        program = fluid.Program()
        block = program.global_block()
        for name, value in sorted(values.items()):
            var = block.create_var(name=name, persistable=True, dtype=str(value.dtype), shape=value.shape)
            tensor = scope.var(name).get_tensor()
            tensor.set(value, CPU)
            if name == "ragged":
                tensor.set_recursive_sequence_lengths([[2, 1], [1, 1, 3]])
            block.append_op(
                type="save",
                inputs={"X": var},
                outputs={},
                attrs={"file_path": path("tensors", name)},
            )
        sparse = block.create_var(
            name="sparse",
            type=core.VarDesc.VarType.SELECTED_ROWS,
            persistable=True,
            dtype="float32",
            shape=[10, 2],
        )
        rows = scope.var("sparse").get_selected_rows()
        rows.set_rows([3, 7, 3])
        rows.set_height(10)
        rows.get_tensor().set(np.arange(6, dtype="float32").reshape(3, 2), CPU)
        block.append_op(
            type="save",
            inputs={"X": sparse},
            outputs={},
            attrs={"file_path": path("tensors", "sparse")},
        )
        exe.run(program)


if __name__ == "__main__":
    conv_net()
    control_flow()
    tensors()
