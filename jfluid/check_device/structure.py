"""Small programs with control flow: loops, conditions, tensor arrays, sparse gradients, parts of programs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import jfluid as fluid
from jfluid import layers
from jfluid.check_device.devices import Devices
from jfluid.check_device.operators import distance
from jfluid.check_device.report import Row
from jfluid.ir.program import Program
from jfluid.layers import control_flow
from jfluid.layers.blocks import conditional
from jfluid.lod_tensor import LoDTensor, create_lod_tensor
from jfluid.places import CPUPlace, CUDAPlace

SECTION = "small programs"
QUICK_EVERY_ON_CPUS = 4
Feed = dict[str, Any]
Builder = Callable[[], tuple[list[Any], Feed]]
_RANDOM = np.random.RandomState(0)
_BATCH = _RANDOM.randn(3, 4).astype("float32")
_STEPS = _RANDOM.randn(5, 3, 4).astype("float32")
_SEQUENCES = create_lod_tensor(_RANDOM.randn(6, 4).astype("float32"), [[2, 1, 3]])
_WORDS = create_lod_tensor(np.array([[1], [4], [0], [3], [3], [2]]), [[2, 1, 3]])
_IDS = np.array([[1], [3], [1], [0]])


def _x() -> tuple[Any, Feed]:
    """Return a batch [3, 4] that gets a gradient."""
    x = fluid.data("x", [3, 4])
    x.stop_gradient = False
    return x, {"x": _BATCH}


def _with_gradients(loss: Any, *others: Any) -> list[Any]:
    """Return the loss, further outputs, and the gradients of all parameters."""
    return [loss, *others, *(gradient for _, gradient in fluid.append_backward(loss))]


def _appended(type_: str, inputs: Feed, attrs: Feed, *shapes: Sequence[int]) -> list[Any]:
    """Append an operator that has no layer, and return its outputs Out."""
    block = fluid.default_main_program().current_block()
    outs = [block.create_var(name=f"{type_}_{i}", shape=s) for i, s in enumerate(shapes)]
    block.append_op(type_, inputs, {"Out": outs}, attrs)
    return outs


def loop() -> tuple[list[Any], Feed]:
    """Write and read a tensor array in a While, with the gradient of the factor."""
    x, feed = _x()
    weight = layers.create_parameter([4, 4], "float32", name="weight")
    i, limit = (layers.fill_constant([1], "int64", n) for n in (0, 12))
    going = layers.less_than(i, limit)
    array = layers.array_write(x, i)
    with layers.While(going).block():
        new = layers.tanh(layers.mul(layers.array_read(array, i), weight))
        layers.increment(i)
        layers.array_write(new, i, array=array)
        layers.less_than(i, limit, cond=going)
    last = layers.array_read(array, limit)
    return _with_gradients(layers.mean(last), last, layers.array_length(array)), feed


def arrays() -> tuple[list[Any], Feed]:
    """Join and stack the elements of a tensor array."""
    x, feed = _x()
    array = layers.array_write(x, layers.fill_constant([1], "int64", 0))
    layers.array_write(layers.square(x), layers.fill_constant([1], "int64", 1), array=array)
    joined, sizes = layers.tensor_array_to_tensor(array, axis=1)
    stacked, _ = layers.tensor_array_to_tensor(array, axis=0, use_stack=True)
    gradients = fluid.gradients(layers.reduce_sum(joined) + layers.mean(stacked), x)
    return [joined, sizes, stacked, *gradients], feed


def static_rnn() -> tuple[list[Any], Feed]:
    """Step over the first dimension with a memory."""
    steps = fluid.data("steps", [5, 3, 4])
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(steps)
        state = rnn.memory(shape=[-1, 3], batch_ref=word, init_value=0.2)
        new = layers.fc([word, state], 3, act="tanh")
        rnn.update_memory(state, _appended("rnn_memory_helper", {"X": new}, {"dtype": 5}, [3, 3])[0])
        rnn.step_output(new)
    out = rnn()
    return _with_gradients(layers.mean(layers.square(out)), out), {"steps": _STEPS}


def dynamic_rnn() -> tuple[list[Any], Feed]:
    """Step over sequences, the longest first, from a state in the order of the batch."""
    x, start = fluid.data("sequences", [None, 4], lod_level=1), fluid.data("start", [3, 3])
    rnn = layers.DynamicRNN()
    with rnn.block():
        word, state = rnn.step_input(x), rnn.memory(init=start, need_reorder=True)
        new = layers.fc([word, state], 3, act="tanh")
        rnn.update_memory(state, new)
        rnn.output(new)
    out = rnn()
    feed = {"sequences": _SEQUENCES, "start": _BATCH[:, :3]}
    return _with_gradients(layers.mean(layers.square(out)), out), feed


def branches() -> tuple[list[Any], Feed]:
    """Choose between two blocks by a value of the batch, and assign the output."""
    x, feed = _x()
    positive = layers.reduce_sum(x) > 0.0
    chosen = layers.cond(positive, lambda: layers.scale(x, 2.0), lambda: layers.square(x))
    other = layers.cond(layers.logical_not(positive), lambda: layers.scale(x, 2.0), lambda: layers.square(x))
    index = {"X": x, "Mask": layers.cast(positive, "int32")}
    first, second = _appended("select_output", index, {}, [3, 4], [3, 4])
    loss = layers.mean(chosen) + layers.mean(other) + layers.reduce_sum(first * 3.0 + second * 5.0)
    return [chosen, other, first, second, *fluid.gradients(loss, x)], feed


def if_else() -> tuple[list[Any], Feed]:
    """Divide the rows of a batch by a mask, and join the parts, as training and as inference does."""
    x, feed = _x()
    mask = layers.reduce_sum(x, dim=1, keep_dim=True) < 0.0
    choice = layers.IfElse(mask)
    with choice.true_block():
        rows = choice.input(x)
        choice.output(layers.scale(rows, 2.0) + layers.reduce_mean(rows))
    with choice.false_block():
        choice.output(layers.square(choice.input(x)))
    (out,) = choice()
    parts = control_flow.split_lod_tensor(x, mask)
    merging = {"X": x, "Mask": mask, "InTrue": parts[0], "InFalse": parts[1]}
    (joined,) = _appended("merge_lod_tensor_infer", merging, {"level": 0}, [3, 4])
    return [out, joined, *fluid.gradients(layers.mean(out), x)], feed


def inference_block() -> tuple[list[Any], Feed]:
    """Run a block under a condition, as a saved model does."""
    x, feed = _x()
    out = layers.fill_constant([3, 4], "float32", 7.0)
    with conditional(layers.reduce_sum(x) < 100.0):
        layers.assign(layers.scale(x, 2.0), out)
    block = fluid.default_main_program().global_block()
    op = block.ops.pop()
    attrs = {name: op.attrs[name] for name in ("sub_block", "is_scalar_condition")}
    block.append_op("conditional_block_infer", op.inputs, op.outputs, attrs | {"skip_eager_deletion_vars": []})
    return [out], feed


def part_of_a_program() -> tuple[list[Any], Feed]:
    """Run some operators of a second block, with their gradient."""
    x, feed = _x()
    program = fluid.default_main_program()
    inner = program._create_block()
    out = layers.square(layers.scale(x, 3.0))
    program._rollback()
    program.global_block().create_var(name=out.name, shape=[3, 4], dtype="float32")
    attrs = {"global_block": inner, "start_op_index": 0, "end_op_index": 2}
    program.global_block().append_op("run_program", {"X": x, "Params": []}, {"Out": out.name}, attrs)
    found = program.global_block().var(out.name)
    return [found, *fluid.gradients(layers.reduce_sum(found), x)], feed


def tables() -> tuple[list[Any], Feed]:
    """Train tables with sparse gradients: rows that occur twice count twice."""
    ids, words = fluid.data("ids", [4, 1], "int64"), fluid.data("words", [None, 1], "int64", 1)
    first = layers.embedding(ids, [6, 3], is_sparse=True, param_attr="first")
    second = fluid.embedding(ids, [6, 3], is_sparse=True, param_attr="second")
    pooled = fluid.contrib.layers.fused_embedding_seq_pool(words, [6, 3], is_sparse=True, param_attr="pooled")
    loss = layers.mean(first * layers.reshape(second, [4, 3])) + layers.mean(layers.square(pooled))
    _, pairs = fluid.optimizer.Adam(0.1).minimize(loss)
    gradient: Any = {parameter.name: found for parameter, found in pairs}["first"]
    merged = layers.merge_selected_rows(gradient)
    found = _appended("lookup_sparse_table", {"W": merged, "Ids": ids}, {}, [4, 3])
    dense = layers.get_tensor_from_selected_rows(merged)
    return [loss, dense, *found, *_parameters()], {"ids": _IDS, "words": _WORDS}


def classes() -> tuple[list[Any], Feed]:
    """Train on sampled classes: hierarchical softmax and NCE, with sparse gradients."""
    x, label = fluid.data("rows", [4, 3]), fluid.data("ids", [4, 1], "int64")
    tree = layers.hsigmoid(x, label, 6, is_sparse=True)
    sampled = layers.nce(x, label, 6, num_neg_samples=3, seed=1, is_sparse=True)
    loss = layers.mean(tree) + layers.mean(sampled)
    fluid.optimizer.SGD(0.1).minimize(loss)
    return [loss, *_parameters()], {"rows": _STEPS[0, :, :3].repeat(2, 0)[:4], "ids": _IDS}


def runs_of_words() -> tuple[list[Any], Feed]:
    """Hash short runs of words into a table that trains itself."""
    words = fluid.data("words", [None, 1], "int32", 1)
    words.stop_gradient = False  # else nothing asks for the gradient
    table = fluid.ParamAttr(name="table", initializer=fluid.initializer.Uniform(-0.5, 0.5))
    found = fluid.contrib.layers.search_pyramid_hash(
        words,
        num_emb=8,
        space_len=50,
        pyramid_layer=3,
        rand_len=4,
        drop_out_percent=0.0,
        is_training=True,
        use_filter=False,
        white_list_len=16,
        black_list_len=16,
        seed=1,
        lr=0.1,
        param_attr=table,
        distribute_update_vars=["table"],
    )
    found.stop_gradient = False
    loss = layers.mean(layers.square(layers.fc(found, 2)))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return [loss, *_parameters()], {"words": LoDTensor(_WORDS.value.astype("int32"), _WORDS.lod())}


def recomputed() -> tuple[list[Any], Feed]:
    """Recompute activations between checkpoints."""
    x, feed = _x()
    hidden = layers.fc(x, 4, act="tanh")
    loss = layers.mean(layers.square(layers.fc(layers.fc(hidden, 4, act="relu"), 2)))
    optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
    optimizer._set_checkpoints([hidden])
    optimizer.minimize(loss)
    return [loss, *_parameters()], feed


def detections() -> tuple[list[Any], Feed]:
    """Keep the best of overlapping boxes: a number of rows that depends on data."""
    boxes, scores = fluid.data("boxes", [1, 4, 4]), fluid.data("scores", [1, 3, 4])
    kept = layers.multiclass_nms(boxes, scores, 0.1, 10, 5, nms_threshold=0.4)
    corners = np.array([[0, 0, 4, 4], [0, 0, 4, 5], [6, 6, 9, 9], [1, 1, 2, 2]], "float32")
    return [kept], {"boxes": corners[None], "scores": np.abs(_BATCH[None])}


def parts() -> tuple[list[Any], Feed]:
    """Divide and choose tensors as trainers of parameter servers do; count from constants."""
    x, feed = _x()
    divided = _appended("split_byref", {"X": x}, {"sections": [1, 2]}, [1, 4], [2, 4])
    number = {"X": [x, x * 2.0], "TrainerId": fluid.data("trainer", [1], "int64")}
    chosen = _appended("ref_by_trainer_id", number, {}, [3, 4])
    numbers = [layers.range(0, 5, 2, "int64"), layers.linspace(0.0, 1.0, 5, "float32")]
    return [*divided, *chosen, *numbers], feed | {"trainer": np.array([1])}


def _parameters() -> list[Any]:
    return fluid.default_main_program().all_parameters()


PROGRAMS: tuple[Builder, ...] = (
    loop,
    arrays,
    static_rnn,
    dynamic_rnn,
    branches,
    if_else,
    inference_block,
    part_of_a_program,
    tables,
    classes,
    runs_of_words,
    recomputed,
    detections,
    parts,
)


def check(devices: Devices) -> Iterator[Row]:
    """Compare the results of each program with the CPU's: a summary row, and a row for each difference."""
    step = QUICK_EVERY_ON_CPUS if devices.quick and not devices.on_gpus else 1
    chosen, done, wrong = PROGRAMS[::step], 0, 0
    for build in chosen:
        if devices.clock.left <= 0:
            break
        with jax.default_matmul_precision("float32"):
            found, wanted = values(build, devices.places[0]), values(build, CPUPlace())
        if differs := _difference(found, wanted):
            wrong += 1
            yield Row(SECTION, build.__name__, "wrong", differs)
        done += 1
    if done:
        about = f"{done - wrong} of {done} programs are equal to the CPU's"
        name = "loops, conditions, arrays, sparse rows"
        yield Row(SECTION, name, "wrong" if wrong else "right", about)
    for build in chosen[done:]:
        yield Row(SECTION, build.__name__, "left out", "no time was left")


def _difference(found: Sequence[LoDTensor], wanted: Sequence[LoDTensor]) -> str:
    """Return the difference of the fetches of a program; "" where the fetches are equal."""
    for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one.lod() != other.lod():
            return f"fetch {i}: lod {one.lod()}, on the CPU {other.lod()}"
        if (apart := distance(np.array(one), np.array(other))) is not None:
            return f"fetch {i}: {apart}"
    return ""


def built(build: Builder) -> tuple[Program, Program, list[Any], Feed]:
    """Return a program, its startup program, its fetches and its feeds."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        fetches, feed = build()
    return main, startup, fetches, feed


def values(build: Builder, place: CPUPlace | CUDAPlace) -> list[LoDTensor]:
    """Return the results of a program at a place."""
    main, startup, fetches, feed = built(build)
    executor, scope = fluid.Executor(place), fluid.Scope()
    executor.run(startup, scope=scope)
    return executor.run(main, feed, fetches, scope=scope, return_numpy=False)


def operators_of(program: Program) -> set[str]:
    """Return the types of the operators in all blocks of a program."""
    return {op.type for block in program.blocks for op in block.ops}


_REPLACED = "the engine gives the program feeds in its place"
_NOTHING = "it computes nothing"
_REPLICAS = 'it needs several devices; the section "several devices" trains with it'
# Operators that XLA computes, and neither a case nor a program here shows.
ELSEWHERE = {
    "create_double_buffer_reader": _REPLACED,
    "create_py_reader": _REPLACED,
    "delete_var": _NOTHING,
    "dgc": _REPLICAS,
    "feed": _NOTHING,
    "fetch": _NOTHING,
    "fused_allreduce_sum": _REPLICAS,
    "read": _REPLACED,
    "replica_count": _REPLICAS,
    "sync_batch_norm": _REPLICAS,
}


def shown() -> set[str]:
    """Return the operators that stand in a program."""
    return set().union(*(operators_of(built(build)[0]) for build in PROGRAMS))
