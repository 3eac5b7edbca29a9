"""Rewrites of traced steps (jaxprs) for CPUs: layouts and kernels that XLA does not choose by itself."""
