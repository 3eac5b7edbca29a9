"""`jfluid check-device`: the command `python -m jfluid.check_device`."""

import argparse
from collections.abc import Sequence

_NAME = "jfluid check-device"


def main(arguments: Sequence[str]) -> int:
    """Check the devices; returns the exit code, 1 where something is wrong."""
    from jfluid.check_device import __main__ as checks

    return checks.main(arguments, _NAME)


def arguments_parser() -> argparse.ArgumentParser:
    """Return what the arguments are."""
    from jfluid.check_device import __main__ as checks

    return checks.arguments_parser(_NAME)
