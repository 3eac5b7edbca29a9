"""`jfluid check-device`: the command `python -m jfluid.check_device`."""

import argparse
from collections.abc import Sequence

_NAME = "jfluid check-device"


def main(arguments: Sequence[str]) -> int:
    """Check the devices and return the exit code: 1 where a check fails."""
    from jfluid.check_device import __main__ as checks

    return checks.main(arguments, _NAME)


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    from jfluid.check_device import __main__ as checks

    return checks.arguments_parser(_NAME)
