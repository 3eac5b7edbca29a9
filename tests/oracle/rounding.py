"""Write tests/golden/rounding.json: Fluid's errors in float32 in the nets of tests/parity/rounding.py.

Run with the real Fluid's interpreter:  python tests/oracle/rounding.py
"""

import json
import os
import sys

import paddle.fluid as fluid

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", ".."))
from tests.parity import rounding  # noqa: E402

with open(os.path.join(here, "..", "golden", "rounding.json"), "w") as f:
    json.dump({net: rounding.errors(fluid, net) for net in rounding.NETS}, f, sort_keys=True, indent=1)
    f.write("\n")
