"""Write tests/golden/slim.json: quantization by passes, distillation and pruning.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.slim
"""

import json
import os

import paddle.fluid as fluid

from tests.parity import slim

result = {"quantized": {}, "distilled": {}}
result["pruned"] = slim.pruned(fluid)
for kind in ("l2", "fsp", "soft"):
    result["distilled"][kind] = slim.distilled(fluid, kind)
for kinds in slim.KINDS:
    result["quantized"][" ".join(kinds)] = slim.quantized(fluid, *kinds)
for part in result.values():
    print(str(part)[:400])
with open(os.path.join(os.path.dirname(__file__), "..", "golden", "slim.json"), "w") as f:
    json.dump(result, f, sort_keys=True, separators=(",", ":"))
    f.write("\n")
