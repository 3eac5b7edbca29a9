"""Each rule of `optimizers.RULES` against Fluid's operator of the same type, on the same rows, over
several steps.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from annotated_types import Le, Lt

from jfluid.ops import ragged_dispatch, registry
from jfluid.ops.definition import REQUIRED
from jfluid.ops.selected_rows import SelectedRows
from jfluid.ps_server import specs
from jfluid.ps_server.dense import DenseBlock
from jfluid.ps_server.optimizers import RULES
from jfluid.ps_server.table import SparseTable

HEIGHT, WIDTH, STEPS = 7, 3, 13
# settings that no attribute of the operator needs to have
OWN = {"learning_rate", "type", "lazy_mode"}


def number(info):
    """A value of a setting that is not its default: one that the bounds of the setting allow."""
    bounds = {type(bound) for bound in info.metadata}
    return 0.8 if Lt in bounds else -0.3 if Le in bounds else 0.04


def cases():
    """Every rule with all combinations of its flags, with its numbers as they are by default and with others; before
    each change the default numbers without flags, and others with all combinations.
    """
    for rule in RULES.values():
        fields = {
            name: info for name, info in rule.settings.model_fields.items() if name not in ("learning_rate", "type")
        }
        flags = [name for name, info in fields.items() if info.annotation is bool]
        numbers = {name: number(info) for name, info in fields.items() if name not in flags}
        needed = {name: value for name, value in numbers.items() if fields[name].is_required()}
        for values in itertools.product((False, True), repeat=len(flags)):
            for given in (needed, numbers):
                on = [name for name, value in zip(flags, values) if value] + ["other numbers"] * (given is not needed)
                yield pytest.param(
                    rule,
                    rule.settings(learning_rate=0.1, **given, **dict(zip(flags, values))),
                    id=" ".join([rule.operator, *on]),
                    marks=[pytest.mark.nightly] * (given is not numbers and any(values)),
                )


def attributes(rule, settings):
    return {name: getattr(settings, setting) for setting, name in rule.attributes.items()}


class ByOperator:
    """A parameter and its state, updated by the operator itself."""

    def __init__(self, rule, settings, param):
        self.rule, self.definition, self.attrs = (
            rule,
            registry.get(rule.operator),
            attributes(rule, settings),
        )
        self.values = {"Param": param}
        for slot in rule.slots:
            self.values[slot.input] = np.full_like(param, getattr(settings, slot.first) if slot.first else 0)
        for name, setting in rule.powers.items():
            self.values[name] = np.full(1, np.float32(getattr(settings, setting)), np.float32)

    def step(self, grad, rate, only=None):
        """One update; of `only` these rows, as if there were no others."""
        given = {"Grad": grad, "LearningRate": np.full(1, rate, np.float32)} | self.values
        divided = {"Param", *(slot.input for slot in self.rule.slots)} if only is not None else set()
        inputs = [
            None
            if s.name not in given
            else jax.tree.map(jnp.asarray, given[s.name][only] if s.name in divided else given[s.name])
            for s in self.definition.ins
        ]
        with jax.enable_x64(True):
            outs = ragged_dispatch.call(self.definition, inputs, self.attrs)
        for slot, out in zip(self.definition.outs, outs):
            name = self.definition.inplace[slot.name]
            if out is not None and name in self.values:
                new = np.array(out, np.float32)
                if name in divided:
                    whole = self.values[name].copy()
                    whole[only] = new
                    new = whole
                self.values[name] = new


def batches():
    """(rows, gradients, rate) of steps: some rows rest for many, one for all, and the rate changes
    twice.
    """
    rng = np.random.RandomState(3)
    for i in range(STEPS):
        ids = rng.permutation([0, 1] if 3 < i < 10 else HEIGHT - 1)[: 1 + i % 4]
        yield (
            np.sort(ids),
            rng.normal(size=(len(ids), WIDTH)).astype(np.float32),
            [0.1, 0.02, 0.2][i // 5],
        )


def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("rule, settings", list(cases()))
def test_rows_follow_the_operator(rule, settings):
    param = np.random.RandomState(0).uniform(0.5, 2, (HEIGHT, WIDTH)).astype(np.float32)
    ids = np.arange(HEIGHT)
    table = SparseTable(specs.TableSpec(name="t", width=WIDTH, optimizer=settings, shards=2))
    table.assign(ids, param)
    reference = ByOperator(rule, settings, param)
    # An operator without sparse gradients, or without the lazy mode that is set, does it with the
    # rows alone.
    lazy = getattr(settings, "lazy_mode", False) and "lazy_mode" not in rule.attributes
    alone = lazy or not reference.definition.sparse
    for step, (some, gradients, rate) in enumerate(batches()):
        table.push(some, gradients, rate)
        if alone:
            reference.step(gradients, rate, some)
        else:
            reference.step(SelectedRows(some, gradients, HEIGHT, unique=True), rate)
        if step % 4 == 0 or step == STEPS - 1:  # looked at on a copy: the rows have not caught up by that
            near(table.look_up(ids, train=False), reference.values["Param"])
    state = table.slots(ids)
    assert list(state) == [s.name for s in rule.slots if not s.needs or getattr(settings, s.needs)]
    for slot in rule.slots:
        if slot.name in state:
            near(state[slot.name], reference.values[slot.input])
    near(table.look_up(ids), reference.values["Param"])  # and now they have


@pytest.mark.parametrize("rule, settings", list(cases()))
def test_blocks_follow_the_operator(rule, settings):
    block = DenseBlock(
        specs.BlockSpec(
            name="w",
            shape=(HEIGHT, WIDTH),
            initializer=specs.Uniform(low=0.5, high=2),
            optimizer=settings,
        )
    )
    reference, rng = ByOperator(rule, settings, block.read()[0]), np.random.RandomState(1)
    for rate in (0.1, 0.1, 0.03):
        gradient = rng.normal(size=(HEIGHT, WIDTH)).astype(np.float32)
        block.push(gradient, rate)
        reference.step(gradient, rate)
        near(block.read()[0], reference.values["Param"])


@pytest.mark.parametrize("rule", list(RULES.values()), ids=list(RULES))
def test_a_rule_says_all_of_its_operator(rule):
    definition, fields = registry.get(rule.operator), rule.settings.model_fields
    assert rule.inputs >= {s.name for s in definition.ins if not s.optional}
    assert rule.inputs <= {s.name for s in definition.ins}
    assert set(rule.attributes.values()) == set(definition.attrs)
    assert set(fields) == {*rule.attributes, *(s.first for s in rule.slots if s.first)} | OWN & set(fields)
    assert {s.needs for s in rule.slots} - {""} <= set(fields) and set(rule.powers.values()) <= set(fields)
    told = {name: 1 / 4 if a.default is REQUIRED else a.default for name, a in definition.attrs.items()}
    settings = rule.settings_of(told.__getitem__)
    assert attributes(rule, settings) == told


@pytest.mark.parametrize("rule", list(RULES.values()), ids=list(RULES))
def test_rows_without_a_gradient_move_as_the_operator_moves_them(rule):
    # What `idle` says of a rule, held against the operator: does a step without a gradient change a
    # row that has moved?
    definition = registry.get(rule.operator)
    if not definition.sparse:
        assert rule.idle is None
        return
    needed = {
        name: 0.8 for name, info in rule.settings.model_fields.items() if info.is_required() and name != "learning_rate"
    }
    more = {"momentum": 0.5} if "momentum" in rule.attributes else {}
    reference = ByOperator(rule, rule.settings(learning_rate=0.1, **needed, **more), np.ones((2, WIDTH), np.float32))
    gradient = np.ones((1, WIDTH), np.float32)
    reference.step(SelectedRows(np.array([0]), gradient, 2, unique=True), 0.1)
    before = {name: value[0].copy() for name, value in reference.values.items() if value.ndim == 2}
    reference.step(SelectedRows(np.array([1]), gradient, 2, unique=True), 0.1)
    moved = any((reference.values[name][0] != value).any() for name, value in before.items())
    assert moved == (rule.idle is not None)
