"""Write tests/golden/parity.json: losses and persistable names of tests/parity/programs.py.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.parity
"""
import json
import os

import paddle.fluid as fluid

from tests.parity.programs import PROGRAMS, train

result = {}
for build in PROGRAMS:
    losses, names = train(fluid, build)
    result[build.__name__] = {"losses": losses, "persistables": names}
    print(build.__name__, losses[0], losses[-1])
with open(os.path.join(os.path.dirname(__file__), "..", "golden", "parity.json"), "w") as f:
    f.write("{\n" + ",\n".join("%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(result.items())) + "\n}\n")
