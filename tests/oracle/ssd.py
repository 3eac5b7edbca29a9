"""Write tests/golden/ssd.json: the real Fluid's losses of a small SSD, and what it detects.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.ssd
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.ssd import train_and_detect

if __name__ == "__main__":
    found = train_and_detect(fluid)
    print(found["losses"], [len(d[0]) for d in found["detected"]], [d[2:] for d in found["detected"]])
    path = os.path.join(os.path.dirname(__file__), "..", "golden", "ssd.json")
    with open(path, "w") as f:
        lines = ["%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in found.items()]
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
