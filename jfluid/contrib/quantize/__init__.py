"""Training with simulated quantization, and models whose products compute with integers."""

from jfluid.contrib.quantize.transpiler import QuantizeTranspiler

__all__ = ["QuantizeTranspiler"]
