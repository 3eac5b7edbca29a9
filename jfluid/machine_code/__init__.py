"""LLVM kernels for steps on CPUs.

`*_kernels.py` write the kernels in LLVM IR. `kernel_registry.py` compiles the kernels for this processor and
registers the kernels with XLA. The other modules decide for which shapes a step calls a kernel.
"""
