"""Execution of the program of a parameter server."""
