"""`python -m jfluid.startup`: lines for a shell, after which `python script.py` takes jfluid for `paddle`."""

import os
import shlex

from jfluid import startup

for name, value in {
    startup.CHOICE: "1",
    **startup.variables({**os.environ, startup.CHOICE: "1"}),
}.items():
    print(f"export {name}={shlex.quote(value)}")
