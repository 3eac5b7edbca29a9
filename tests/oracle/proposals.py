"""Write tests/golden/proposals.json: what the real Fluid gives for the operators of
tests/parity/proposals.py; and tests/golden/proposal_levels.json, for tests/parity/proposal_levels.py.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.proposals
"""

import json
import os

import paddle.fluid as fluid

from tests.parity import proposal_levels
from tests.parity.proposals import CASES, run


def rounded(values):
    return [float("%.7g" % v) for v in values]


result = {}
for case in CASES:
    result[case[0]] = {n: [rounded(v), s, lod] for n, (v, s, lod) in run(fluid, case).items()}
with open(os.path.join(os.path.dirname(__file__), "..", "golden", "proposals.json"), "w") as f:
    f.write("{\n" + ",\n".join("%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(result.items())) + "\n}\n")
print(len(result), "cases")
levels = {name: proposal_levels.proposals(fluid, name == "padded") for name in ("distinct", "padded")}
with open(os.path.join(os.path.dirname(__file__), "..", "golden", "proposal_levels.json"), "w") as f:
    json.dump(levels, f, sort_keys=True)
    f.write("\n")
