"""Write tests/golden/quantize.json: training with simulated quantization, frozen and converted, by
the kind of scale; and two of the models to tests/golden/models/quantized.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.quantize
"""

import json
import os

import paddle.fluid as fluid

from tests.oracle.make_model import without_call_stacks
from tests.parity import quantize

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "golden")
PATH = os.path.join(GOLDEN, "quantize.json")
MODELS = os.path.join(GOLDEN, "models", "quantized")
result = {
    "%s %s" % kinds: quantize.run(fluid, *kinds, folder=MODELS if kinds == quantize.SAVED else None)
    for kinds in quantize.KINDS
}
for name in ("frozen", "int8"):
    without_call_stacks(os.path.join(MODELS, name, "model"))
for name, found in result.items():
    print(name, found["losses"], found["scales"])
with open(PATH, "w") as f:
    json.dump(result, f, sort_keys=True)
    f.write("\n")
