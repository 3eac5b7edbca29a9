"""Write tests/golden/dygraph_layers.json: parameters and operators of the cases in
tests/dygraph_layer_cases.py in programs, and their numbers in dygraph mode.

Run with the real Fluid's interpreter:  python tests/oracle/dygraph_layers.py
"""

import json
import os
import sys

import paddle.fluid as fluid

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, ".."))
import dygraph_layer_cases  # noqa: E402


def short(value):
    """Numbers with the nine digits that tell a 32-bit float."""
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [short(v) for v in value]
    return float("{:.9g}".format(value)) if isinstance(value, float) else value


result = {"programs": {}, "values": {}}
for name, (make, data) in dygraph_layer_cases.cases(fluid).items():
    result["programs"][name] = dygraph_layer_cases.describe(*dygraph_layer_cases.program_of(fluid, make, data))
for name, (make, data) in dygraph_layer_cases.value_cases(fluid).items():
    result["values"][name] = short(dygraph_layer_cases.values(fluid, name, make, data))
with open(os.path.join(here, "..", "golden", "dygraph_layers.json"), "w") as f:
    json.dump(result, f, sort_keys=True, separators=(",", ":"))
    f.write("\n")
