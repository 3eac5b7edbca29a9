"""Write tests/golden/lod_tensor.json: what the real Fluid gives for the cases of
tests/parity/lod_tensor.py.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.lod_tensor
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.lod_tensor import CASES, run

with open(os.path.join(os.path.dirname(__file__), "..", "golden", "lod_tensor.json"), "w") as f:
    lines = ["%s: %s" % (json.dumps(case), json.dumps(run(fluid, case))) for case in sorted(CASES)]
    f.write("{\n" + ",\n".join(lines) + "\n}\n")
