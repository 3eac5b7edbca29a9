"""LLVM kernels for steps on CPUs.

`*_kernels.py` write the kernels in LLVM IR. `functions.py` compiles them for this processor and registers them
with XLA. The other modules decide for which shapes a step calls a kernel.
"""
