"""`jfluid run`: a script as `python` runs it, with jfluid for `paddle`."""

from collections.abc import Sequence

from jfluid.compat import scripts


def main(arguments: Sequence[str]) -> int:
    """Run `script.py arguments` or `-m module arguments`; exceptions of the script pass through.

    Returns 0; a script that ends by itself with another code raises SystemExit.
    """
    scripts.run(arguments, "jfluid run")
    return 0
