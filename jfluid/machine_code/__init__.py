"""Machine code of our own for steps on CPUs: `*_kernels.py` write it down for LLVM, `functions.py` makes
it for this machine and makes it known to XLA, and the other modules say for which arrays a step calls it.
"""
