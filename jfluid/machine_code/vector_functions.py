"""LLVM vector code of activations and their slopes in float32, and a GEMM of few rows.

Exponentials are Cephes' (Moshier, `expf`): a power of two times a polynomial. The errors of exponentials and of
the activations are a few units in the last place. NaN stays NaN.
"""

from typing import Any

from llvmlite import ir

from jfluid.machine_code.llvm_writer import FLOAT, I32, I64, POINTER, VOID, Function, Module
from jfluid.machine_code.processor import LANES, REGISTERS

VECTOR = ir.VectorType(FLOAT, LANES)
KINDS = ("identity", "sigmoid", "tanh", "relu")  # of activations, by number
MOST_ROWS = 6  # that are multiplied at a time
PANEL = REGISTERS // 8  # vectors of columns that are
_INTEGERS = ir.VectorType(I32, LANES)
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_ROUNDS = 1.5 * 2**23  # added to a number, it leaves its nearest integer in the last bits
_SIGN, _MANTISSA, _ONE = 1 << 31, 23, 0x3F800000
# (exp(x) - 1 - x) / x**2 for |x| <= ln(2) / 2, the highest power first
_EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_LARGEST = 87.0  # of which the exponential is finite, and its reciprocal no smaller than all others


class VectorFunctions:
    """Writer of vector arithmetic into a function."""

    def __init__(self, f: Function):
        self.f, self.b = f, f.b
        self.fma_ = f.module.declare(f"llvm.fma.v{LANES}f32", VECTOR, [VECTOR] * 3)

    def number(self, value: float) -> Any:
        """Return a vector of a constant."""
        return ir.Constant(VECTOR, [value] * LANES)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return self.f.call(self.fma_, x, y, z)

    def load(self, place: Any) -> Any:
        return self.f.load(place, VECTOR)

    def store(self, value: Any, place: Any) -> None:
        self.b.store(value, place, align=4)

    def _bits(self, value: int) -> Any:
        return ir.Constant(_INTEGERS, [value] * LANES)

    def _clipped(self, x: Any, most: float) -> Any:
        """Clip a vector at a maximum; NaN stays NaN."""
        above = self.b.fcmp_ordered(">", x, self.number(most))
        return self.b.select(above, self.number(most), x)

    def _exponential(self, x: Any) -> tuple[Any, Any]:
        """Compute (s, p) with exp(x) = s (1 + p), s a power of two and p small, for |x| up to `_LARGEST`."""
        b = self.b
        rounded = self.fma(x, self.number(_LOG2_E), self.number(_ROUNDS))
        n = b.fsub(rounded, self.number(_ROUNDS))
        r = self.fma(n, self.number(-_LN2_HIGH), x)
        r = self.fma(n, self.number(-_LN2_LOW), r)
        q = self.number(_EXP[0])
        for coefficient in _EXP[1:]:
            q = self.fma(q, r, self.number(coefficient))
        p = self.fma(b.fmul(r, r), q, r)
        power = b.shl(b.bitcast(rounded, _INTEGERS), self._bits(_MANTISSA))
        return b.bitcast(b.add(power, self._bits(_ONE)), VECTOR), p

    def _reciprocal(self, x: Any) -> Any:
        """Compute 1 / x; with AVX-512 by one Newton step from 14 bits."""
        if LANES < 16:
            return self.b.fdiv(self.number(1.0), x)
        kinds = [VECTOR, VECTOR, ir.IntType(LANES)]
        estimate = self.f.module.declare("llvm.x86.avx512.rcp14.ps.512", VECTOR, kinds)
        first = self.f.call(estimate, x, self.number(0.0), ir.IntType(LANES)(-1))
        error = self.fma(self.b.fneg(x), first, self.number(1.0))
        return self.fma(first, error, first)

    def sigmoid(self, x: Any) -> Any:
        """Compute 1 / (1 + exp(-x)); a denormal result is flushed to 0."""
        b = self.b
        x = b.fneg(x)
        none = b.fcmp_ordered(">", x, self.number(_LARGEST))
        x = self._clipped(x, _LARGEST)
        below = b.fcmp_ordered("<", x, self.number(-_LARGEST))
        s, p = self._exponential(b.select(below, self.number(-_LARGEST), x))
        found = self._reciprocal(b.fadd(self.fma(s, p, s), self.number(1.0)))
        return b.select(none, self.number(0.0), found)

    def tanh(self, x: Any) -> Any:
        """Compute -m / (2 + m) with m = exp(-2 |x|) - 1, which is exact near 0, and the sign of x."""
        b = self.b
        bits = b.bitcast(x, _INTEGERS)
        size = b.bitcast(b.and_(bits, self._bits(_SIGN - 1)), VECTOR)
        size = self._clipped(size, _LARGEST / 4)
        s, p = self._exponential(b.fmul(size, self.number(-2.0)))
        m = self.fma(s, p, b.fsub(s, self.number(1.0)))
        found = b.fmul(b.fneg(m), self._reciprocal(b.fadd(m, self.number(2.0))))
        sign = b.and_(bits, self._bits(_SIGN))
        return b.bitcast(b.or_(b.bitcast(found, _INTEGERS), sign), VECTOR)

    def relu(self, x: Any) -> Any:
        return self.b.select(self.b.fcmp_ordered("<", x, self.number(0.0)), self.number(0.0), x)

    def activated(self, kind: Any, x: Any) -> Any:
        """Apply an activation; its number is known at run time only."""
        return self._choice(kind, x, x, self.sigmoid, self.tanh, self.relu)

    def slope(self, kind: Any, y: Any) -> Any:
        """Compute the derivative of an activation from its output."""
        one, b = self.number(1.0), self.b
        return self._choice(
            kind,
            y,
            one,
            lambda y: b.fmul(y, b.fsub(one, y)),
            lambda y: self.fma(b.fneg(y), y, one),
            lambda y: b.select(b.fcmp_ordered(">", y, self.number(0.0)), one, self.number(0.0)),
        )

    def _choice(self, kind: Any, x: Any, first: Any, *others: Any) -> Any:
        found = self.f.variable(VECTOR, first)
        for number, function in enumerate(others, 1):
            with self.b.if_then(self.b.icmp_signed("==", kind, I64(number))):
                self.b.store(function(x), found)
        return self.f.load(found, VECTOR)


def fits(name: str, shape: tuple[int, int], pitch: int, panel: int) -> tuple[str, bool]:
    """Return the condition on a matrix for `product`: a text, and True if the condition holds."""
    (rows, columns), wide = shape, PANEL * LANES
    whole = columns % wide == 0 and (pitch, panel) == (wide, rows * wide)
    return f"{name} in panels", whole or (pitch, panel) == (columns, wide)


def product(module: Module) -> Any:
    """Write the GEMM of few rows: out [rows, columns] = x [rows, depth] times a matrix.

    At most `MOST_ROWS` rows; columns are a multiple of `LANES`. Rows of the matrix are `pitch` numbers apart, panels
    of `PANEL` vectors are `panel` numbers apart.
    """
    found = module.find("few_rows")
    if found:
        return found
    pointers = dict.fromkeys(("x", "matrix", "out"), POINTER)
    numbers = dict.fromkeys(("rows", "depth", "columns", "pitch", "panel"), I64)
    narrower = [PANEL >> i for i in range(1, PANEL.bit_length())]
    tiles = {
        count: {width: _tile(module, count, width) for width in (PANEL, *narrower)} for count in range(1, MOST_ROWS + 1)
    }
    f = Function(module, "few_rows", VOID, **pointers, **numbers)
    v, b = f.v, f.b
    panels = b.sdiv(v["columns"], I64(PANEL * LANES))
    for count, widths in tiles.items():
        with b.if_then(b.icmp_signed("==", v["rows"], I64(count))):
            sizes = (v["depth"], v["pitch"], v["columns"])
            with f.loop(panels) as i:
                matrix = f.at(v["matrix"], f.product(i, v["panel"]))
                out = f.at(v["out"], f.product(i, I64(PANEL * LANES)))
                f.call(widths[PANEL], v["x"], matrix, out, *sizes)
            matrix = f.variable(POINTER, f.at(v["matrix"], f.product(panels, v["panel"])))
            out = f.variable(POINTER, f.at(v["out"], f.product(panels, I64(PANEL * LANES))))
            for width in narrower:
                rest = b.and_(v["columns"], I64(width * LANES))
                with b.if_then(b.icmp_signed("!=", rest, I64(0))):
                    places = f.load(matrix, POINTER), f.load(out, POINTER)
                    f.call(widths[width], v["x"], *places, *sizes)
                    for place, now in zip((matrix, out), places):
                        b.store(f.at(now, I64(width * LANES)), place)
    return f.end()


def _tile(module: Module, count: int, width: int) -> Any:
    """Write the register tile of `product`: `count` rows and `width` vectors of columns."""
    pointers = dict.fromkeys(("x", "matrix", "out"), POINTER)
    numbers = dict.fromkeys(("depth", "pitch", "columns"), I64)
    f = Function(module, f"few_rows_{count}_{width}", VOID, **pointers, **numbers)
    f.function.attributes.add("noinline")  # so that the loop has all registers
    v, b, vectors = f.v, f.b, VectorFunctions(f)
    sums = [[f.variable(VECTOR, vectors.number(0.0)) for _ in range(width)] for _ in range(count)]
    row = f.variable(POINTER, v["matrix"])
    starts = [f.at(v["x"], f.product(I64(i), v["depth"])) for i in range(count)]
    with f.loop(v["depth"]) as k:
        matrix = f.load(row, POINTER)
        loaded = [vectors.load(f.at(matrix, I64(LANES * j))) for j in range(width)]
        for start, of_row in zip(starts, sums):
            number = f.spread(f.load(f.at(start, k), FLOAT), VECTOR)
            for place, other in zip(of_row, loaded):
                b.store(vectors.fma(number, other, vectors.load(place)), place)
        b.store(f.at(matrix, v["pitch"]), row)
    for i, of_row in enumerate(sums):
        out = f.at(v["out"], f.product(I64(i), v["columns"]))
        for j, place in enumerate(of_row):
            vectors.store(vectors.load(place), f.at(out, I64(LANES * j)))
    return f.end()
