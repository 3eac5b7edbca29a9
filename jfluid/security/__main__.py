"""`python -m jfluid.security`: a new secret for a job."""
import argparse
import sys
from collections.abc import Sequence

from jfluid.security import secret


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jfluid.security", description="The secret of a job (docs/security.md).")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("new", help=f"print a new secret, for {secret.VARIABLE} or a file")
    parser.parse_args(arguments)
    print(secret.fresh())
    return 0


if __name__ == "__main__":
    sys.exit(main())
