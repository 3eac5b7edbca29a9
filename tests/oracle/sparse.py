"""Write tests/golden/sparse.json: training with sparse gradients, as the real Fluid does it.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.sparse
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.sparse import VARIANTS, train

result = {}
for name in VARIANTS:
    losses, values = train(fluid, name)
    result[name] = {"losses": losses, "table": [[float("%.7g" % v) for v in row] for row in values]}
with open(os.path.join(os.path.dirname(__file__), "..", "golden", "sparse.json"), "w") as f:
    f.write("{\n" + ",\n".join("%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(result.items())) + "\n}\n")
