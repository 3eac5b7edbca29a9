"""The shares of operators in XLA's instructions."""

import pytest

from jfluid.record.fusion_shares import OTHER, operator_type, shares_of

PRODUCT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
MODULE = """HloModule jit_fluid_1

%fused_computation (param_0: f32[4,8], param_1: f32[8,2]) -> f32[4,2] {
  %param_0 = f32[4,8]{1,0} parameter(0)
  %param_1 = f32[8,2]{1,0} parameter(1)
  %dot.1 = f32[4,2]{1,0} dot(%param_0, %param_1), PRODUCT, metadata={op_name="jit(f)/mul/dot_general"}
  %constant.2 = f32[] constant(0), metadata={op_name="jit(f)/relu/max"}
  ROOT %maximum.3 = f32[4,2]{1,0} maximum(%dot.1, %dot.1), metadata={op_name="jit(f)/relu/max"}
}

ENTRY %main (x: f32[4,8], w: f32[8,2]) -> f32[4,2] {
  %x = f32[4,8]{1,0} parameter(0)
  %w = f32[8,2]{1,0} parameter(1)
  %copy.1 = f32[4,8]{1,0} copy(%x)
  %tuple.2 = (f32[4,8]{1,0}, f32[8,2]{1,0}) tuple(%x, %w), metadata={op_name="jit(f)/sum/tuple"}
  ROOT %fusion = f32[4,2]{1,0} fusion(%copy.1, %w), kind=kOutput, calls=%fused_computation, METADATA
}
""".replace("PRODUCT", PRODUCT).replace("METADATA", 'metadata={op_name="jit(f)/r/x"}')


def test_a_fusion_is_shared_by_the_cost_of_its_operators():
    found = shares_of(MODULE)
    # 4 x 2 sums of 8 products, and 4 x 2 maxima
    assert found["fusion"] == {"mul": pytest.approx(64 / 72), "relu": pytest.approx(8 / 72)}
    assert found["copy.1"] == {OTHER: 1.0} and found["tuple.2"] == {"sum": 1.0}
    assert all(sum(shares.values()) == pytest.approx(1) for shares in found.values())


def test_a_convolution_counts_its_window():
    text = MODULE.replace(
        f"dot(%param_0, %param_1), {PRODUCT}",
        "convolution(%param_0, %param_1), dim_labels=bf_io->bf",
    )
    assert shares_of(text)["fusion"]["mul"] == pytest.approx(64 / 72)


@pytest.mark.parametrize("text", ["", "nonsense = {", "HloModule x\n\nENTRY %main () -> f32[] {\n}\n"])
def test_other_texts_have_no_instructions(text):
    assert shares_of(text) == {}


@pytest.mark.parametrize(
    "path, operator", [("jit(f)/mul/dot", "mul"), ("jit(f)/transpose(relu)/x", "relu"), ("jit(f)", OTHER), ("", OTHER)]
)
def test_the_operator_is_the_first_scope(path, operator):
    assert operator_type(path) == operator
