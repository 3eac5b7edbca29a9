"""Start-up of Python interpreters that a script starts: `import paddle` finds jfluid there, too.

This folder stands first in PYTHONPATH of such an interpreter, which so runs its `sitecustomize.py`.

    eval "$(python -m jfluid.startup)"      # the same for all interpreters that a shell starts
"""

import os
from collections.abc import Mapping

FOLDER = os.path.dirname(os.path.abspath(__file__))
CHOICE = "JFLUID_AS_PADDLE"
ALIAS = '"""`paddle` is jfluid.'  # how the package that `jfluid install-alias` makes begins


def variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that a process needs beside `environment`; none if JFLUID_AS_PADDLE=0."""
    if environment.get(CHOICE) == "0":
        return {}
    before = environment.get("PYTHONPATH", "")
    rest = [folder for folder in before.split(os.pathsep) if folder not in ("", FOLDER)]
    return {"PYTHONPATH": os.pathsep.join([FOLDER, *rest])}


def share() -> None:
    """Have processes that this one starts from now on take jfluid for `paddle`, as it does itself."""
    os.environ[CHOICE] = "1"
    os.environ.update(variables())
