"""Every registered operator against Fluid's own schema (tests/golden/op_schema.json)."""

import json
import math
from pathlib import Path

import pytest

import jfluid as fluid
from jfluid.ir.codec import COMMON_ATTRS
from jfluid.ops import registry, schema
from jfluid.ops.definition import FUSED_ATTRS, HINT_ATTRS, REQUIRED, Slot

TESTS = Path(__file__).parents[1]
SCHEMA = json.loads((TESTS / "golden" / "op_schema.json").read_text())
# Operators that Fluid does not have.
OWN = {
    "fused_allreduce_sum",
    "recompute_barrier",
    "replica_count",
}
# Operators of Fluid that its build without GPUs, which wrote the schema, leaves out.
GPU_ONLY = {"dgc", "gen_nccl_id", "c_gen_nccl_id", "sync_batch_norm"}
REGISTERED = [t for t in registry.registered() if t in SCHEMA]


def test_every_registered_operator_is_fluids():
    grads = {t for t in registry.registered() if "_grad" in t}
    assert set(registry.registered()) - set(SCHEMA) - OWN - GPU_ONLY - grads == set()


@pytest.mark.parametrize("op_type", REGISTERED)
def test_slots_and_attributes_are_fluids(op_type):
    definition, golden = registry.get(op_type), SCHEMA[op_type]
    for ours, theirs in ((definition.ins, golden["ins"]), (definition.outs, golden["outs"])):
        theirs = {Slot.parse(s).name: Slot.parse(s) for s in theirs}
        assert {s.name for s in ours} <= set(theirs), "a slot that Fluid does not have"
        assert all(s.many == theirs[s.name].many for s in ours)
        assert set(theirs) - {s.name for s in ours} <= {"ResidualData", "Scope"}, "a slot of Fluid's is missing"
    for name, attr in definition.attrs.items():
        assert name in golden["attrs"], f"attribute {name} is not Fluid's"
        kind, *default = golden["attrs"][name]
        assert attr.kind == kind, name
        if default and attr.default is not REQUIRED:
            _same(attr.default, default[0], name)
    known = set(definition.attrs) | set(COMMON_ATTRS) | set(HINT_ATTRS) | set(FUSED_ATTRS)
    assert set(golden["attrs"]) <= known, sorted(set(golden["attrs"]) - known)


def _same(ours, theirs, name):
    if isinstance(theirs, float):
        assert math.isclose(ours, theirs, rel_tol=1e-6) or (math.isinf(ours) and math.isinf(theirs)), name
    else:
        assert (list(ours) if isinstance(ours, tuple) else ours) == theirs, name


@pytest.mark.parametrize(("shape", "times"), [([2, 3], 1), ([-1, 3], 2)])
def test_shapes_are_inferred_twice_only_where_something_is_unknown(monkeypatch, shape, times):
    evaluate, calls = schema._evaluate, []
    monkeypatch.setattr(schema, "_evaluate", lambda *arguments: calls.append(arguments) or evaluate(*arguments))
    # what was inferred once is kept: a number that no other test has
    out = fluid.layers.scale(fluid.data("x", shape), 1.0625)
    assert out.shape == tuple(shape) and len(calls) == times
