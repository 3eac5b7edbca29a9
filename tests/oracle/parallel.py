"""Write tests/golden/parallel.json: losses of the real Fluid's replicas, for the cases of
tests/parity/parallel.py.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.parallel
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.parallel import CASES, train

result = {}
for case in sorted(CASES):
    for reduce in (False, True):
        try:
            losses, state = train(fluid, case, 2, reduce)
        except Exception as error:  # Fluid cannot run it
            print(case, reduce, str(error).strip().splitlines()[-1][:100])
            continue
        result["%s_%s" % (case, "reduce" if reduce else "allreduce")] = [["%.7g" % v for v in step] for step in losses]
        print(case, reduce, losses[0], losses[-1])
with open(os.path.join(os.path.dirname(__file__), "..", "golden", "parallel.json"), "w") as f:
    f.write(
        "{\n"
        + ",\n".join("%s: %s" % (json.dumps(k), json.dumps(v).replace('"', "")) for k, v in sorted(result.items()))
        + "\n}\n"
    )
