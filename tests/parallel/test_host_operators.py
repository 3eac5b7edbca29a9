"""Operators of the host in programs that run on replicas, against one device."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers


@pytest.fixture(autouse=True)
def cpu_num(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")


def decoded(steps=3, beams=2, end=1):
    """A search by beams in a loop, whose arrays the host keeps: (words, scores)."""
    ids = layers.data("ids", [1], dtype="int64", lod_level=2)
    scores = layers.data("scores", [1], lod_level=2)
    i, limit = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", steps)
    words, sums = layers.array_write(ids, i), layers.array_write(scores, i)
    going = layers.less_than(i, limit)
    with layers.While(going).block():
        before, so_far = layers.array_read(words, i), layers.array_read(sums, i)
        logits = layers.embedding(
            before,
            [7, 7],
            param_attr=fluid.ParamAttr(
                name="e",
                initializer=fluid.initializer.NumpyArrayInitializer(
                    np.random.RandomState(3).randn(7, 7).astype("float32")
                ),
            ),
        )
        best, which = layers.topk(layers.softmax(logits), beams)
        total = layers.elementwise_add(layers.log(best), layers.reshape(so_far, [-1]), axis=0)
        chosen, value = layers.beam_search(before, so_far, which, total, beams, end)
        layers.increment(i)
        layers.array_write(chosen, i, words)
        layers.array_write(value, i, sums)
        layers.less_than(i, limit, cond=going)
    return [*layers.beam_search_decode(words, sums, beams, end), words]


def starts(first):
    lengths = [[1] * len(first), [1] * len(first)]
    return {
        "ids": fluid.create_lod_tensor(np.array(first)[:, None], lengths),
        "scores": fluid.create_lod_tensor(np.zeros((len(first), 1), "float32"), lengths),
    }


def test_a_search_in_a_loop_keeps_its_arrays_in_each_replica():
    words, scores, array = decoded()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    fetch = {"fetch_list": [words, scores], "return_numpy": False}
    alone = exe.run(feed=starts([0, 2, 3, 5]), **fetch)
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel()
    found = exe.run(program, feed=[starts([0, 2]), starts([3, 5])], **fetch)
    for one, several in zip(alone, found):
        assert one.lod() == several.lod()
        np.testing.assert_allclose(np.array(one), np.array(several), rtol=1e-6)
    parts = exe.run(
        program,
        feed=[starts([0, 2]), starts([3, 5])],
        fetch_list=[array],
        return_numpy=False,
        return_merged=False,
    )
    assert [len(part) for part in parts[0]] == [4, 4]


def test_an_array_of_the_host_that_xla_would_read_is_refused():
    *_, array = decoded()
    length = layers.array_length(array)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel()
    with pytest.raises(errors.UnsupportedError, match="only operators of the host may read"):
        exe.run(program, feed=[starts([0, 2]), starts([3, 5])], fetch_list=[length])


@pytest.mark.parametrize("pruned", [False, True])
def test_each_replica_finds_other_values_once(pruned):
    x, label = fluid.data("x", [-1, 3]), fluid.data("label", [-1, 3])
    y = layers.fc(x, 3, param_attr=fluid.initializer.Constant(1.0), bias_attr=False)
    flat = layers.cast(layers.reshape(y, [-1]), "int32")
    values, _, count = layers.unique_with_counts(flat)
    loss = layers.mean(layers.square(y - label))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name)
    feed = {"x": np.array([[1, 1, 1], [2, 1, 1], [0, 0, 1], [0, 1, 0]], "float32")}
    if not pruned:
        feed["label"] = np.zeros((4, 3), "float32")
    for _ in range(1 + pruned):  # without the update the values stay
        found = exe.run(program, feed=feed, fetch_list=[values, count], use_prune=pruned)
        assert [f.tolist() for f in found] == [[3, 4, 1], [3, 3, 6]]


def test_parameters_are_saved_and_loaded_in_a_step(tmp_path):
    x = fluid.data("x", [-1, 3])
    y = layers.fc(x, 2, param_attr=fluid.ParamAttr(name="w"), bias_attr=False)
    block = fluid.default_main_program().global_block()
    block.append_op("save", {"X": ["w"]}, {}, {"file_path": str(tmp_path / "w")})
    copy = block.create_var(name="copy", shape=[3, 2], dtype="float32", persistable=True)
    block.append_op("load", {}, {"Out": [copy]}, {"file_path": str(tmp_path / "w")})
    again = layers.mul(x, copy)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel()
    found = exe.run(program, feed={"x": np.eye(4, 3, dtype="float32")}, fetch_list=[y, again])
    weight = np.array(fluid.global_scope().find_var("w").get_tensor())
    for each in found:
        np.testing.assert_array_equal(each, [*weight, [0, 0]])
