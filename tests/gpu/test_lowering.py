"""What XLA takes for GPUs is made on every machine: programs lower for `cuda` without JAX's plugin, and what a step
overwrites is aliased. tests/compile/test_recorded_cases.py has the operators.
"""

import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid.check_device import cases, structure
from jfluid.ops import registry
from jfluid.places import CPUPlace
from tests.gpu.ahead import (  # lowers_for_cuda is a fixture
    arguments_of,
    lowered_for_cuda,
    lowers_for_cuda,  # noqa: F401
    one_device,
    step_of,
)
from tests.slow_tests import nightly_but

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import fluid_models  # noqa: E402


@pytest.mark.usefixtures("lowers_for_cuda", "interpreted_module")
@pytest.mark.parametrize("build", structure.PROGRAMS, ids=lambda build: build.__name__)
def test_small_programs_lower(build):
    """`lowers_for_cuda` lowers each segment that runs here."""
    for value in structure.values(build, CPUPlace()):
        assert np.isfinite(np.array(value)).all()


def test_each_operator_has_a_case_or_a_reason_why_it_has_none():
    """`python -m jfluid.check_device` compares devices on them, and docs/coverage.md names the others."""
    recorded = {case.type for case in cases.runnable(cases.recorded())}
    checked = recorded | structure.shown()
    computed = {name for name in registry.registered() if not (registry.get(name).host or registry.get(name).absent)}
    assert computed - checked == set(structure.ELSEWHERE), (
        "python -m scripts.operator_cases tests/ops/<file>.py writes cases down; what needs more than one operator is "
        "a program of jfluid/check_device/structure.py"
    )
    assert len(recorded) > 350


# Parts of the programs whose sizes do not matter for what is checked are small.
SMALL = {
    "resnet_cifar": {"blocks": 1, "batch": 4},
    "transformer_encoder": {"layers": 1, "vocab": 50},
    "ctr_dnn": {"slots": 3, "vocab": 1000, "batch": 8},
    "ssd": {"batch": 2},
}


# Before each change `detections` above has the operators of `ssd`, and one model of each kind of layers lowers.
@pytest.mark.parametrize(
    "model", nightly_but(("resnet_cifar", "transformer_encoder", "ctr_dnn_lazy_adam", "crnn"), fluid_models.MODELS)
)
def test_benchmarked_programs_lower(model):
    main = fluid.default_main_program()
    loss, feed = fluid_models.MODELS[model](fluid, **SMALL.get(model, {}))
    step, values = step_of(main, feed(np.random.RandomState(0)), [loss.name])
    segment, values = one_device(step, values, jax.devices("cpu")[0])
    assert len(step.segments) == 1 and segment.donated
    text = lowered_for_cuda(segment.exact.plain, arguments_of(segment, values, step.plan.rng))
    # constants may be f64 scalars, which are converted when XLA compiles
    assert not re.search(r"\dxf64", text) and "callback" not in text
