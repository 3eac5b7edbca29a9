"""Write tests/golden/control.json: what the real Fluid gives for the programs of
tests/parity/control.py.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.control
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.control import PROGRAMS, run

result = {}
for build in PROGRAMS:
    result[build.__name__] = [[[float("%.7g" % x) for x in v], s, lod] for v, s, lod in run(fluid, build)]
with open(os.path.join(os.path.dirname(__file__), "..", "golden", "control.json"), "w") as f:
    f.write("{\n" + ",\n".join("%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(result.items())) + "\n}\n")
