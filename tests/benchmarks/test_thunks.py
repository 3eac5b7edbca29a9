"""The part of a step that its products take, as `benchmarks/limit.py` finds it."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import thunks

MODULE = """HloModule step
%joined (p: f32[4]) -> f32[4] {
  ROOT %dot.7 = f32[4]{0} dot(%p, %p), lhs_contracting_dims={0}
}
%added (p: f32[4]) -> f32[4] {
  ROOT %add.7 = f32[4]{0} add(%p, %p)
}
ENTRY %main (p: f32[4]) -> f32[4] {
  %dot.1 = f32[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}
  %convolution.2 = f32[8,8]{1,0} convolution(%p, %p), window={size=3}
  %ffi_call.3 = f32[8,8]{1,0} custom-call(%p), custom_call_target="jfluid_direct_product"
  %ffi_call.4 = f32[8,8]{1,0} custom-call(%p), custom_call_target="TopK"
  %ffi_call.5 = f32[8,8]{1,0} custom-call(%p), custom_call_target="jfluid_rows_take"
  %ynn_fusion = f32[8,8]{1,0} fusion(%p), kind=kCustom, calls=%joined
  ROOT %add_fusion = f32[8,8]{1,0} fusion(%p), kind=kLoop, calls=%added
}
"""


def test_products_are_told_from_what_else_a_step_does():
    expected = {"dot.1", "dot.7", "convolution.2", "ffi_call.3", "ynn_fusion"}
    assert thunks.of_products(MODULE) == expected


def test_what_sums_channels_is_no_product():
    line = '%ffi_call.8 = f32[8]{0} custom-call(%p), custom_call_target="jfluid_direct_channel_moments_16"'
    assert not thunks.of_products(f"ENTRY %main (p: f32[4]) -> f32[8] {{\n  {line}\n}}")


def test_an_instruction_has_ended_when_one_that_reads_it_begins():
    lines = (
        '%call.1 = f32[8,8]{1,0} custom-call(%p), custom_call_target="jfluid_direct_product"',
        "%bitcast.2 = f32[64]{0} bitcast(%call.1)",
        "%fusion.3 = f32[64]{0} fusion(%q, %bitcast.2), kind=kLoop, calls=%added",
        "%fusion.4 = f32[64]{0} fusion(%q), kind=kLoop, calls=%added",
    )
    readers = thunks._readers("\n".join(f"  {line}" for line in lines))
    assert readers["call.1"] == {"fusion.3"}
    events = [("call.1", 0, 9), ("fusion.4", 2, 3), ("fusion.3", 5, 8), ("call.1", 10, 12)]
    assert list(thunks._ended(events, readers)) == [("call.1", 0, 5), *events[1:]]


def test_time_in_which_two_run_counts_once():
    assert thunks._covered([(0, 10), (2, 5), (8, 12), (20, 21)]) == 13


@pytest.mark.parametrize(
    "step, least, most",
    [(lambda x: x @ x, 0.9, 1.0), (lambda x: jnp.sin(x) @ x[:, :1], 0.0, 0.5), (jnp.sin, 0.0, 0.0)],
    ids=["a product", "mostly sines", "sines"],
)
def test_the_share_is_that_of_the_time(step, least, most):
    x = jnp.ones((1024, 1024), jnp.float32)
    compiled = jax.jit(step).lower(x).compile()
    compiled(x).block_until_ready()
    text = compiled.as_text()
    # another process may stop this one in a product, or beside it: not five times
    shares = (thunks.share(lambda: compiled(x).block_until_ready(), text) for _ in range(5))
    assert any(least <= found <= most for found in shares)
