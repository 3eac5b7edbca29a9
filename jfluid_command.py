"""The command `jfluid` as it is installed."""

from jfluid.command import main as main
