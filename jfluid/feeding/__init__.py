"""Feeding programs: readers and their decorators."""
