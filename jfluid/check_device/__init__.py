"""Checks of the devices of a machine: correctness and speed."""
