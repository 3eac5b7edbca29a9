"""Rewrites of traced steps (jaxprs) for CPUs: layouts, kernels and epilogues that XLA does not choose by itself."""
