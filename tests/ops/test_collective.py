"""Collective operators: alone, among replicas, and where they must not stand."""

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, processes
from jfluid.ops import collective, registry, static_values
from tests.op_case import check

X = np.arange(24, dtype="float32").reshape(2, 4, 3) - 7  # of two replicas, four rows each


def among(op_type, values, **attrs):
    """What the operator gives in each replica."""
    return np.asarray(jax.vmap(lambda x: registry.get(op_type).fn(x, **attrs), axis_name=collective.AXIS)(values))


@pytest.mark.parametrize(
    ("op_type", "attrs", "expected"),
    [
        ("c_allreduce_sum", {}, X.sum(0)),
        ("c_allreduce_prod", {}, X.prod(0)),
        ("c_allreduce_max", {}, X.max(0)),
        ("c_allreduce_min", {}, X.min(0)),
        ("allreduce", {"reduce_type": 0}, X.sum(0)),
        ("allreduce", {"reduce_type": 1}, X.prod(0)),
        ("allreduce", {"reduce_type": 2}, X.max(0)),
        ("allreduce", {"reduce_type": 3}, X.min(0)),
        ("c_broadcast", {"root": 1}, X[1]),
        ("broadcast", {"root": 0}, X[0]),
        ("c_allgather", {"nranks": 2}, X.reshape(8, 3)),
        ("c_sync_calc_stream", {}, X),
        ("c_sync_comm_stream", {}, X),
    ],
)
def test_among_replicas(op_type, attrs, expected):
    np.testing.assert_array_equal(among(op_type, X, **attrs), np.broadcast_to(expected, (2, *expected.shape[-2:])))


def test_reducescatter_gives_each_its_share():
    np.testing.assert_array_equal(among("c_reducescatter", X, nranks=2), X.sum(0).reshape(2, 2, 3))


@pytest.mark.parametrize("op_type", ["c_allreduce_sum", "c_broadcast"])
def test_integers_stay_integers(op_type):
    assert among(op_type, np.array([[3], [4]], "int32")).tolist() in ([[7], [7]], [[3], [3]])
    assert among(op_type, np.array([[3], [4]], "int32")).dtype == np.int32


def test_sums_of_several_are_one():
    a, b, c = (np.random.RandomState(i).rand(2, 3, i + 1).astype("float32") for i in range(3))
    d = np.arange(4, dtype="int32").reshape(2, 2)
    found = jax.vmap(registry.get("fused_allreduce_sum").fn, axis_name=collective.AXIS)([a, d, b, c])
    for have, value in zip(found, (a, d, b, c)):
        assert have.dtype == value.dtype
        np.testing.assert_allclose(have[0], value.sum(0), rtol=1e-6)
        np.testing.assert_array_equal(have[0], have[1])
    lowered = str(
        jax.make_jaxpr(jax.vmap(registry.get("fused_allreduce_sum").fn, axis_name=collective.AXIS))([a, d, b, c])
    )
    assert lowered.count("reduce_sum") <= 2


def test_gradients_among_replicas():
    def loss(x, weight, op_type, **attrs):
        return (registry.get(op_type).fn(x, **attrs) * weight).sum()

    weights = np.random.RandomState(0).rand(2, 4, 3).astype("float32")
    grads = jax.vmap(jax.grad(lambda x, w: loss(x, w, "c_allreduce_sum")), axis_name=collective.AXIS)(X, weights)
    np.testing.assert_allclose(grads, np.stack([weights.sum(0)] * 2), rtol=1e-6)
    weights = np.random.RandomState(0).rand(2, 8, 3).astype("float32")
    grads = jax.vmap(jax.grad(lambda x, w: loss(x, w, "c_allgather", nranks=2)), axis_name=collective.AXIS)(X, weights)
    np.testing.assert_allclose(grads, weights.sum(0).reshape(2, 4, 3), rtol=1e-6)


@pytest.mark.parametrize(
    ("op_type", "attrs"),
    [
        *((f"c_allreduce_{how}", {}) for how in ("sum", "prod", "max", "min")),
        ("allreduce", {}),
        ("broadcast", {}),
        ("c_broadcast", {}),
        ("c_allgather", {"nranks": 1}),
        ("c_reducescatter", {"nranks": 1}),
        ("c_sync_calc_stream", {}),
        ("c_sync_comm_stream", {}),
    ],
)
def test_one_replica_keeps_what_it_has(op_type, attrs):
    check(
        op_type,
        {"X": X[0]},
        attrs,
        expect={"Out": X[0]},
        padded=False,
        grad=["X"] if op_type in ("c_allreduce_sum", "c_allgather") else [],
    )


def test_shapes_are_inferred_for_all_replicas():
    block = fluid.default_main_program().global_block()
    fluid.data("x", [None, 3])
    fluid.data("y", [4, 3])
    for name, op_type, source in (
        ("a", "c_allgather", "y"),
        ("b", "c_reducescatter", "y"),
        ("c", "c_allgather", "x"),
    ):
        block.create_var(name=name)
        block.append_op(op_type, {"X": source}, {"Out": name}, {"nranks": 2})
    assert [block.var(n).shape for n in "abc"] == [(8, 3), (2, 3), (-1, 3)]


@pytest.mark.parametrize(
    ("op_type", "attrs", "said"),
    [
        ("c_allgather", {"nranks": 3}, "nranks is 3, but the program runs in 1 replica"),
        ("c_reducescatter", {"nranks": 0}, "nranks is how many replicas there are, found 0"),
        ("c_broadcast", {"root": 1}, "root is one of 1 replica"),
        ("allreduce", {"reduce_type": 4}, "found 4"),
    ],
)
def test_groups_that_are_not_there(op_type, attrs, said):
    with pytest.raises(errors.OpError, match=said):
        registry.get(op_type).fn(X[0], **attrs)


def test_other_processes_that_cannot_be_reached(monkeypatch):
    monkeypatch.setattr(processes, "count", lambda: 2)
    with pytest.raises(errors.OpError, match="c_allreduce_sum: 2 processes train together"):
        registry.get("c_allreduce_sum").fn(X[0])
    with static_values.inferring(static_values.PLACEHOLDERS[0]):
        assert registry.get("c_allreduce_sum").fn(X[0]).shape == (4, 3)


def test_process_group(monkeypatch):
    calls = []
    monkeypatch.setattr(processes, "join", lambda endpoints, rank: calls.append((endpoints, rank)))
    program = fluid.Program()
    block = program.global_block()
    assert collective.process_group(program) is None
    for i in range(2):
        block.create_var(name=f"id_{i}", persistable=True, type=fluid.core.VarDesc.VarType.RAW)
    block.append_op(
        "c_gen_nccl_id",
        {},
        {"Out": "id_0"},
        {"rank": 1, "endpoint": "b:1", "other_endpoints": ["a:1", "c:1"]},
    )
    block.append_op("c_comm_init", {"X": "id_0"}, {}, {"rank": 1, "nranks": 3, "ring_id": 0})
    block.append_op("c_comm_init_all", {}, {}, {})
    assert collective.process_group(program) == (["a:1", "b:1", "c:1"], 1)
    fluid.Executor(fluid.CPUPlace()).run(program)
    # before JAX starts, and where the operator stands
    assert calls == [(["a:1", "b:1", "c:1"], 1)] * 2
    block.append_op("gen_nccl_id", {}, {"NCCLID": "id_1"}, {"trainers": ["a:1", "b:1"], "trainer_id": 0})
    block.append_op("c_comm_init", {"X": "id_1"}, {}, {"rank": 1, "nranks": 2, "ring_id": 0})
    with pytest.raises(errors.OpError, match="this is rank 1 of 2, but trainer 0 of 2 connected"):
        fluid.Executor(fluid.CPUPlace()).run(program)
