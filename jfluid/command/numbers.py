"""Numbers on a command line, each with its range."""

import argparse


def positive(text: str) -> int:
    """Return a whole number from 1 on. Raises ArgumentTypeError."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, found {text}")
    return number


def port(text: str) -> int:
    """Return the number of a port, or 0 for any free port. Raises ArgumentTypeError."""
    number = int(text) if text.isdecimal() and len(text) < 6 else -1
    if not 0 <= number < 1 << 16:
        raise argparse.ArgumentTypeError(f"expected a port from 0 (any free port) to 65535, found {text}")
    return number


def seconds(text: str) -> float:
    """Return a number from 0 on. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, found {text}")
    return number


def timeout(text: str) -> float:
    """Return a number above 0. Raises ArgumentTypeError."""
    number = seconds(text)
    if number == 0:
        raise argparse.ArgumentTypeError("expected a number above 0, found 0")
    return number
