"""Run a script as `python script.py` does, with `import paddle` bound to jfluid.

`python -m jfluid script.py [arguments]` binds the name also in processes that the script starts.
`python -m jfluid doctor ...` is the command `jfluid doctor ...`, as with each subcommand.
"""

import sys

from jfluid import command
from jfluid.compat import scripts

if __name__ == "__main__":
    if {*sys.argv[1:2]} & {*command.SUBCOMMANDS, "--version", "-h", "--help"}:
        sys.exit(command.main())
    scripts.run(sys.argv[1:])
