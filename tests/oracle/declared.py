"""Write tests/golden/declared.json: what the real Fluid gives for the operators of
tests/parity/declared_cases.py.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.declared
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.declared import run
from tests.parity.declared_cases import CASES


def rounded(values):
    return [float("%.7g" % v) for v in values]


result = {}
for case in CASES:
    found = run(fluid, case)
    result[case.name] = {n: [rounded(v), s, lod] for n, (v, s, lod) in found.items()}
with open(os.path.join(os.path.dirname(__file__), "..", "golden", "declared.json"), "w") as f:
    lines = ["%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in sorted(result.items())]
    f.write("{\n" + ",\n".join(lines) + "\n}\n")
print(len(result), "cases")
