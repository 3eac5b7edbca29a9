"""Writes the pages and tables that are made from the code.

python -m scripts.pages            write them
python -m scripts.pages --check    only compare; exit code 1, and the differences, when a page is out of date
"""

import argparse
import difflib
import sys

from scripts.pages import FOLDER, PAGES


def main() -> int:
    """Write or compare; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.pages")
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    code = 0
    for name, page in PAGES.items():
        made, path = page(), FOLDER / name
        there = path.read_text() if path.exists() else ""
        if not check:
            path.write_text(made)
        elif made != there:
            code = 1
            sys.stdout.writelines(difflib.unified_diff(there.splitlines(True), made.splitlines(True), name, "made"))
    return code


if __name__ == "__main__":
    sys.exit(main())
