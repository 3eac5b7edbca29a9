"""Quantization operators, by values of the formula and by what Fluid gives for odd inputs."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests.op_case import check

RNG = np.random.RandomState(11)
X = RNG.normal(size=(4, 3)).astype("float32")
HALVES = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 127]], "float32")
LOD = [[0, 1, 1, 4]]


def scalar(value):
    return np.array([value], "float32")


def quantized(x, scale, bits=8):
    """Half away from zero, as `decimal` would."""
    largest = 2 ** (bits - 1) - 1
    scaled = np.clip(x.astype("float64"), -scale, scale) / scale * largest
    return np.trunc(scaled + np.copysign(0.5, scaled)).astype("float32")


@pytest.mark.parametrize("bits", [3, 8, 16])
def test_by_the_largest(bits):
    peak = np.abs(X).max()
    expect = {"Out": quantized(X, peak, bits), "OutScale": scalar(peak)}
    check("fake_quantize_abs_max", {"X": X}, {"bit_length": bits}, expect=expect)


def test_halves_go_away_from_zero_and_padding_rows_have_no_say():
    expect = {"Out": np.array([[1, 2, 3, -1, -2, 127]], "float32"), "OutScale": scalar(127)}
    check("fake_quantize_abs_max", {"X": HALVES}, expect=expect)
    ragged = fluid.LoDTensor(X, LOD)
    peak = np.abs(X).max()
    expect = {"Out": fluid.LoDTensor(quantized(X, peak), LOD), "OutScale": scalar(peak)}
    check("fake_quantize_abs_max", {"X": ragged}, expect=expect)


def test_zeros_and_nan():
    expect = {"Out": 0 * X, "OutScale": scalar(0)}
    check("fake_quantize_abs_max", {"X": 0 * X}, expect=expect)
    broken = np.array([[0.5, np.nan, 127]], "float32")
    expect = {"Out": np.array([[1, np.nan, 127]], "float32"), "OutScale": scalar(127)}
    check("fake_quantize_abs_max", {"X": broken}, expect=expect)
    with pytest.raises(errors.ProgramError, match="bit_length: expected a number from 1 to 16"):
        check("fake_quantize_abs_max", {"X": X}, {"bit_length": 17}, expect={"Out": None})


def test_by_channel():
    x = RNG.normal(size=(3, 2, 2)).astype("float32")
    peaks = np.array([np.abs(part).max() for part in x], "float32")
    out = np.stack([quantized(part, peak) for part, peak in zip(x, peaks)])
    expect = {"Out": out, "OutScale": peaks}
    check("fake_channel_wise_quantize_abs_max", {"X": x}, expect=expect, rows=())
    back = out * peaks[:, None, None] / 127
    inputs = {"X": out, "Scales": [peaks]}
    check("fake_channel_wise_dequantize_max_abs", inputs, expect={"Out": back}, rows=())
    inputs = {"X": out, "Scales": [peaks[:2], scalar(2)]}
    expect = {"Out": out * peaks[:2, None] / 127 * 2 / 7}
    attrs = {"quant_bits": [8, 4]}
    check("fake_channel_wise_dequantize_max_abs", inputs, attrs, expect=expect, rows=())
    with pytest.raises(errors.ShapeError, match="expected 3 scales"):
        inputs = {"X": out, "Scales": [peaks[:2]]}
        check("fake_channel_wise_dequantize_max_abs", inputs, expect={"Out": None})


def test_the_largest_of_a_window_of_steps():
    """What Fluid gives, step by step: a peak that leaves the window lets the scale fall."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x = fluid.data("x", [1, 2], "float32")
        state = {
            "InScale": fluid.layers.create_global_var([1], 0.001, "float32", True, name="scale"),
            "Iter": fluid.layers.create_global_var([1], 0, "int64", True, name="step"),
        }
        kept = fluid.layers.create_global_var([3], 0, "float32", True, name="window")
        out = main.current_block().create_var(name="out", dtype="float32")
        main.current_block().append_op(
            "fake_quantize_range_abs_max",
            {"X": x, **state},
            {"Out": out, "OutScale": state["InScale"], "OutScales": kept},
            {"window_size": 3},
        )
        fluid.layers.increment(state["Iter"])
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    scales, firsts = [], []
    for v in (1, 5, 3, 2, 1.5, 1.25, 1.125, 1.0625, 1):
        feed = {"x": np.array([[v, -v / 2]], "float32")}
        first, scale, window = exe.run(main, feed=feed, fetch_list=[out, "scale", "window"], scope=scope)
        scales.append(float(scale[0]))
        firsts.append(first.ravel().tolist())
    assert scales == [1, 5, 5, 5, 3, 2, 1.5, 1.25, 1.125]
    assert firsts[2:6] == [[76, -38], [51, -25], [64, -32], [79, -40]]
    np.testing.assert_array_equal(window, [1.125, 1.0625, 1])


def test_a_range_in_tests_is_the_one_that_is_given():
    inputs = {"X": X, "InScale": scalar(0.5)}
    expect = {"Out": quantized(X, 0.5), "OutScale": scalar(0.5)}
    check("fake_quantize_range_abs_max", inputs, {"is_test": True}, expect=expect, rows=("X",))
    with pytest.raises(errors.ProgramError, match="needs the input Iter"):
        check("fake_quantize_range_abs_max", inputs, expect={"Out": None})


@pytest.mark.parametrize("kind", ["fake_quantize", "fake_quantize_dequantize", "moving_average_abs_max_scale"])
def test_moving_average(kind):
    state, total = 0.9 * 2 + 1, 0.9 * 3 + np.abs(X).max()
    scale = total / state
    out = {
        "fake_quantize": quantized(X, scale),
        "fake_quantize_dequantize": quantized(X, scale) * scale / 127,
        "moving_average_abs_max_scale": X,
    }[kind]
    inputs = {"X": X, "InAccum": scalar(3), "InState": scalar(2)}
    expect = {"Out": out.astype("float32"), "OutScale": scalar(scale)}
    expect |= {"OutState": scalar(state), "OutAccum": scalar(total)}
    if kind.startswith("moving"):
        check(kind, inputs, {"moving_rate": 0.9}, expect=expect, rows=("X",))
        check(kind, {"X": X}, {"is_test": True}, expect={"Out": X}, rows=("X",))
        return
    name = f"{kind}_moving_average_abs_max"
    check(name, inputs | {"InScale": scalar(9)}, {"moving_rate": 0.9}, expect=expect, rows=("X",))
    out = quantized(X, 0.5) if kind == "fake_quantize" else quantized(X, 0.5) * 0.5 / 127
    expect = {"Out": out.astype("float32"), "OutScale": scalar(0.5)}
    inputs = {"X": X, "InScale": scalar(0.5)}
    check(name, inputs, {"is_test": True}, expect=expect, rows=("X",))


def test_back_to_floats():
    inputs = {"X": X, "Scale": scalar(2)}
    check(
        "fake_dequantize_max_abs",
        inputs,
        {"max_range": 127.0},
        expect={"Out": X * 2 / 127},
        rows=("X",),
    )
    codes = np.array([[-128, 3], [127, -1]], "int8")
    inputs = {"X": codes, "Scale": scalar(2)}
    expect = {"Out": (codes * 2.0 / 127).astype("float32")}
    check("dequantize_abs_max", inputs, {"max_range": 127.0}, expect=expect, rows=("X",))
    values = np.arange(128, dtype="float32") + 0.5
    inputs = {"X": codes, "Dict": values}
    expect = {"Out": np.array([[-0.5, 3.5], [127.5, -127.5]], "float32")}
    check("dequantize_log", inputs, expect=expect, rows=("X",))
    for name, other in (("dequantize_abs_max", "Scale"), ("dequantize_log", "Dict")):
        with pytest.raises(errors.ShapeError, match=f"{name}: expected X of dtype int8"):
            attrs = {"max_range": 127.0} if other == "Scale" else {}
            check(name, {"X": X, other: values}, attrs, expect={"Out": None})


def test_eight_bits():
    """Half to even and saturated, as the real Fluid's kernels for CPUs."""
    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 127, 300, -300, np.nan]], "float32")
    signed = np.array([[0, 2, 2, 0, -2, 127, 127, -128, -128]], "int8")
    attrs = {"is_negative_input": True, "output_format": "NCHW"}
    check("quantize", {"Input": x}, attrs, expect={"Output": signed})
    unsigned = np.array([[0, 2, 2, 0, 0, 127, 255, 0, 0]], "uint8")
    check("quantize", {"Input": x}, expect={"Output": unsigned})
    expect = {"Output": signed.astype("float32") / 2}
    check("dequantize", {"Input": signed}, {"Scale": 2.0}, expect=expect)
    expect = {"Output": np.array([[0, 3, 3, 0, -3, 127, 127, -128, -128]], "int8")}
    attrs = {"Scale_in": 2.0, "Scale_out": 3.0}
    check("requantize", {"Input": signed}, attrs, expect=expect)
