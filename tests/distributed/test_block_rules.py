"""Pieces that are updated by compiled rules are what the operators of the server's program make of
them.
"""

from dataclasses import replace

import numpy as np
import pytest

import jfluid as fluid
from jfluid.distributed.programs.server_program import UpdateBlock
from jfluid.distributed.server.block_rule import BlockRules, block_rule_of
from jfluid.engine import Engine

SHAPE = (3, 5)
RATE = np.float32(0.1)
# an operator's type, its state by input, its attributes
CASES = [
    ("sgd", {}, {}),
    ("momentum", {"Velocity": "v"}, {"mu": 0.9}),
    ("momentum", {"Velocity": "v"}, {"mu": 0.9, "use_nesterov": True}),
    ("adagrad", {"Moment": "v"}, {"epsilon": 1e-3}),
    ("rmsprop", {"Moment": "v", "MeanSquare": "s"}, {"decay": 0.9, "epsilon": 1e-3}),
    (
        "rmsprop",
        {"Moment": "v", "MeanSquare": "s", "MeanGrad": "g"},
        {"decay": 0.9, "epsilon": 1e-3, "centered": True, "momentum": 0.5},
    ),
    ("ftrl", {"SquaredAccumulator": "s", "LinearAccumulator": "v"}, {"l1": 0.01, "l2": 0.1}),
]


def values(seed):
    return np.random.RandomState(seed).rand(*SHAPE).astype(np.float32)


def update_of(kind, state, attrs, before=()):
    """(the update, its program, a scope with the first values)."""
    program, scope = fluid.Program(), fluid.Scope()
    block = program.global_block()
    for name in ("w", *state.values()):
        block.create_var(name=name, shape=SHAPE, dtype="float32", persistable=True)
        scope.var(name).get_tensor().set(values(len(name)))
    block.create_var(name="rate", shape=[1], dtype="float32", persistable=True)
    scope.var("rate").get_tensor().set(np.full(1, RATE))
    block.create_var(name="d", shape=SHAPE, dtype="float32")
    for op in before:
        block.append_op(op, {"X": "d"}, {"Out": "d"}, {"scale": 0.5})
    block.append_op(
        kind,
        {"Param": "w", "Grad": "d", "LearningRate": "rate", **state},
        {"ParamOut": "w"} | {f"{_out(kind, slot)}": name for slot, name in state.items()},
        attrs,
    )
    names = ["w", *state.values()]
    return UpdateBlock("w", "d", block, list(block.ops), names, []), program, scope


def _out(kind, slot):
    return {"SquaredAccumulator": "SquaredAccumOut", "LinearAccumulator": "LinearAccumOut"}.get(slot, slot + "Out")


def rules_of(update, tensor):
    return BlockRules([block_rule_of(update, tensor)], tensor)


def state_of(update, scope):
    return {n: np.array(scope.find_var(n).get_tensor()) for n in update.state}


@pytest.mark.parametrize(("kind", "state", "attrs"), CASES)
def test_a_rule_is_the_operator(kind, state, attrs):
    update, program, plain = update_of(kind, state, attrs)
    _, _, scope = update_of(kind, state, attrs)
    rule = rules_of(update, lambda name: scope.find_var(name).get_tensor())
    engine = Engine(fluid.CPUPlace())
    for step in range(4):
        gradient = values(10 + step) - np.float32(0.5)
        gradient.flags.writeable = False  # as in a message
        engine.run(program, {"d": gradient}, [], plain)
        (found,) = rule.update([gradient], RATE)
        wanted = state_of(update, plain)
        np.testing.assert_allclose(found, wanted["w"], rtol=1e-5, atol=1e-6)
        for name, value in state_of(update, scope).items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_what_was_read_before_stays_and_what_others_set_counts():
    update, _, scope = update_of(*CASES[1])
    tensor = lambda name: scope.find_var(name).get_tensor()  # noqa: E731
    rule = rules_of(update, tensor)
    (first,) = rule.update([values(1)], RATE)
    copy = first.copy()
    rule.update([values(2)], RATE)
    np.testing.assert_array_equal(first, copy)
    assert not first.flags.writeable
    tensor("w").set(np.zeros(SHAPE, np.float32))
    tensor("v").set(np.zeros(SHAPE, np.float32))
    (found,) = rule.update([values(3)], RATE)
    np.testing.assert_allclose(found, -RATE * values(3), rtol=1e-6)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_gradients_may_begin_anywhere(at):
    update, _, scope = update_of(*CASES[0])
    before = np.array(scope.find_var("w").get_tensor())
    data = b"-" * at + values(1).tobytes()
    gradient = np.frombuffer(data, np.float32, values(1).size, at).reshape(SHAPE)
    rule = rules_of(update, lambda name: scope.find_var(name).get_tensor())
    (found,) = rule.update([gradient], RATE)
    np.testing.assert_allclose(found, before - RATE * values(1), rtol=1e-6)


@pytest.mark.parametrize("case", [CASES[0], CASES[4]])
def test_pieces_of_one_kind_are_updated_together(case):
    shapes, tensors, alone = [(3, 5), (7,), (1500, 2)], {}, []
    update, _, scope = update_of(*case)
    rule = block_rule_of(update, lambda name: scope.find_var(name).get_tensor())
    rules, random = [], np.random.RandomState(0)
    for i, shape in enumerate(shapes):
        names = tuple(f"{name}{i}" for name in rule.names)
        rules.append(replace(rule, names=names, shape=shape))
        for name in names:
            value = random.rand(*shape).astype(np.float32)
            tensors[name], tensors[name + "@alone"] = fluid.LoDTensor(value), fluid.LoDTensor(value)
        alone.append(BlockRules([rules[-1]], lambda name: tensors[name + "@alone"]))
    together = BlockRules(rules, tensors.__getitem__)
    for step in range(3):
        gradients = [random.rand(*shape).astype(np.float32) for shape in shapes]
        found = together.update(gradients, RATE)
        for one, own, gradient in zip(found, alone, gradients, strict=True):
            np.testing.assert_array_equal(one, own.update([gradient], RATE)[0])
        if step == 1:  # others set one of them
            for name in ("w1", "w1@alone"):
                tensors[name].set(np.ones(7, np.float32))
    for name in [n for r in rules for n in r.names]:
        np.testing.assert_array_equal(tensors[name].value, tensors[name + "@alone"].value)


def test_other_updates_have_no_rule():
    update, _, scope = update_of("sgd", {}, {}, before=["scale"])
    tensor = lambda name: scope.find_var(name).get_tensor()  # noqa: E731
    assert block_rule_of(update, tensor) is None
    update, _, scope = update_of("lars_momentum", {"Velocity": "v"}, {"mu": 0.9})
    assert block_rule_of(update, tensor) is None
    update, _, scope = update_of("sgd", {}, {})
    tensor("w").set(np.zeros(SHAPE, np.float64))
    assert block_rule_of(update, tensor) is None
