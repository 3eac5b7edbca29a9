"""Compiler from a program to XLA: plans, lowering, rewrites of traced steps, and compiled steps at run time."""
