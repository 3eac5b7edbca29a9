"""Transpiled programs, read from their operators."""
