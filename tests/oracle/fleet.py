"""Write tests/golden/fleet.json: what the real Fluid gives for the cases of tests/parity/fleet.py.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.fleet
"""

import json
import os
import tempfile

import paddle.fluid as fluid

from tests.oracle import collective  # noqa: F401  (it notes the operators of a Fluid with GPUs)
from tests.parity.fleet import CASES, run

with open(os.path.join(os.path.dirname(__file__), "..", "golden", "fleet.json"), "w") as f:
    lines = [
        "%s: %s" % (json.dumps(case), json.dumps(run(fluid, case, tempfile.mkdtemp()), sort_keys=True))
        for case in sorted(CASES)
    ]
    f.write("{\n" + ",\n".join(lines) + "\n}\n")
