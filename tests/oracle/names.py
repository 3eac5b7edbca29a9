"""Write tests/golden/names.json: the names of parameters and variables of the programs in
tests/parity/names.py.

Run with the real Fluid's interpreter:  python tests/oracle/names.py
"""

import json
import os
import sys

import paddle.fluid as fluid

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", ".."))
from tests.parity import names  # noqa: E402

found = {name: names.names(fluid, build) for name, build in names.PROGRAMS.items()}
with open(os.path.join(here, "..", "golden", "names.json"), "w") as f:
    json.dump(found, f, sort_keys=True, separators=(",", ":"))
    f.write("\n")
