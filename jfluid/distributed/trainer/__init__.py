"""Execution of the program of a trainer."""
