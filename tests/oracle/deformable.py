"""Write tests/golden/deformable.json: the real Fluid's losses of a network of deformable
convolutions and pooled boxes.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.deformable
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.deformable import train

if __name__ == "__main__":
    found = train(fluid)
    print(found["losses"])
    path = os.path.join(os.path.dirname(__file__), "..", "golden", "deformable.json")
    with open(path, "w") as f:
        lines = ["%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in found.items()]
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
