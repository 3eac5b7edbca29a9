"""Intermediate representation of programs: blocks, operators, variables, gradients, files.

Imports no JAX.
"""
