"""Lowering: plans of programs, and the traced functions of their segments."""
