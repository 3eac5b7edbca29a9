"""`jfluid launch`: the command `jfluid-launch`."""

import argparse
from collections.abc import Sequence

from jfluid import launch
from jfluid.launch import command

_NAME = "jfluid launch"


def main(arguments: Sequence[str]) -> int:
    """Run a job; returns the exit code as `jfluid-launch` does."""
    return launch.main(arguments, name=_NAME)


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    return command.arguments_parser(with_target=True, name=_NAME)
