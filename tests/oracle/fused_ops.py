"""Write tests/golden/fused_ops.json: what the real Fluid gives for the operators of
tests/parity/fused.py.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.fused_ops
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.fused import CASES
from tests.parity.ops import run

result = {
    case[0]: {n: [[float("%.7g" % x) for x in v], s, lod] for n, (v, s, lod) in run(fluid, case).items()}
    for case in CASES
}
with open(os.path.join(os.path.dirname(__file__), "..", "golden", "fused_ops.json"), "w") as f:
    lines = ["%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(result.items())]
    f.write("{\n" + ",\n".join(lines) + "\n}\n")
