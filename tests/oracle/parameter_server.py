"""Write tests/golden/parameter_server.json: what the real Fluid gives for the cases of
tests/parity/parameter_server.py.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.parameter_server
"""

import json
import os

import paddle.fluid as fluid
from paddle.fluid.transpiler.geo_sgd_transpiler import GeoSgdTranspiler

from tests.parity.parameter_server import CASES, key, run

fluid.transpiler.GeoSgdTranspiler = GeoSgdTranspiler
results = {key(case): run(fluid, case) for case in CASES}
with open(os.path.join(os.path.dirname(__file__), "..", "golden", "parameter_server.json"), "w") as f:
    lines = ["%s: %s" % (json.dumps(case), json.dumps(told, sort_keys=True)) for case, told in sorted(results.items())]
    f.write("{\n" + ",\n".join(lines) + "\n}\n")
