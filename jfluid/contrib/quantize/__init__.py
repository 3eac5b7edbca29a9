"""Training with simulated quantization, and models with integer products."""

from jfluid.contrib.quantize.transpiler import QuantizeTranspiler

__all__ = ["QuantizeTranspiler"]
