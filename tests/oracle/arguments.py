"""Write tests/golden/arguments.json: the dtypes that the real Fluid's layers accept and refuse
(tests/parity/arguments.py).

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.arguments
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.arguments import probe

path = os.path.join(os.path.dirname(__file__), "..", "golden", "arguments.json")
with open(path, "w") as f:
    found = probe(fluid)
    lines = ["%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(found.items())]
    f.write("{\n" + ",\n".join(lines) + "\n}\n")
print(len(found), "layers")
