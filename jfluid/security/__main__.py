"""`python -m jfluid.security`: creates a secret for a job, and derives the token for metrics from one."""

import argparse
import sys
from collections.abc import Sequence

from jfluid import errors
from jfluid.security import secret


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m jfluid.security", description="The secret of a job (docs/security.md)."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("new", help=f"print a new secret, for {secret.VARIABLE} or a file")
    token = commands.add_parser("metrics-token", help="print the token with which Prometheus asks the job's servers")
    token.add_argument(
        "--secret-file",
        metavar="FILE",
        help=f"has the job's secret (default: the variable {secret.VARIABLE}, or this user's secret)",
    )
    options = parser.parse_args(arguments)
    try:
        if options.command == "new":
            print(secret.fresh())
        else:
            print(
                secret.metrics_token(
                    secret.from_file(options.secret_file) if options.secret_file else secret.job_secret()
                )
            )
    except errors.SecretError as error:
        print(f"python -m jfluid.security: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
