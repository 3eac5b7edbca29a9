"""Parameters and variables of many programs have Fluid's names: checkpoints of Fluid fit."""

import functools
import json
from pathlib import Path

import pytest

import jfluid as fluid
from tests.parity import names

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "names.json").read_text())
# Programs whose temporary variables have other names, since other operators compute the values.
OTHER_OPERATORS = {
    "blocks_of_nets": "attention reshapes its weights once",
    "decoders": "loops carry tensors instead of arrays",
    "fully_connected": "weight normalization is two operators",
    "gradients_of_gradients": "gradients of gradients are derived by JAX",
    "look_ahead": "slow weights are written by one block",
    "mixed_precision": "the type is bfloat16, and loss scaling one block",
    "recurrent_cells": "initial states and masks of sequences are made by fewer operators",
}
# Variables of one engine that no operator of the other engine reads or writes.
UNUSED = {
    "conditions_and_loops": {"cast_3.tmp_0"},
    "contrib_layers": {"shuffle_batch_seed_0"},  # initialized by the startup program, not by the first step
    "images": {"random_crop_seed_0"},
    "losses": {"reshape2_0.tmp_1"},
    "recurrent_layers": {"_generated_var_0", "_generated_var_1", "lstmp_0.tmp_5"},
    "sampled_losses": {"one_hot_0.tmp_0", "sample_logits_0.tmp_8"},
}


@functools.cache
def built(name):
    return json.loads(json.dumps(names.names(fluid, names.PROGRAMS[name])))


@pytest.mark.parametrize("name", names.PROGRAMS)
def test_names(name):
    found, expected = built(name), GOLDEN[name]
    assert found["parameters"] == expected["parameters"]
    if name not in OTHER_OPERATORS:
        for kind in ("startup", "main"):
            for ours, fluids in zip(found[kind], expected[kind], strict=True):
                assert set(ours) ^ set(fluids) <= UNUSED.get(name, set())


@pytest.mark.parametrize("name", [*OTHER_OPERATORS, *UNUSED])
def test_exceptions_are_needed(name):
    found, expected = built(name), GOLDEN[name]
    differences = [
        set(ours) ^ set(fluids) for kind in ("startup", "main") for ours, fluids in zip(found[kind], expected[kind])
    ]
    assert set().union(*differences) >= UNUSED.get(name, set()) and any(differences)


def test_programs_are_those_of_the_golden_file():
    assert names.PROGRAMS.keys() == GOLDEN.keys()
    assert len(GOLDEN) >= 40
