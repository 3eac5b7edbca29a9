"""Write tests/golden/faster_rcnn.json: the real Fluid's losses of a small Faster R-CNN with a
feature pyramid.

Run with the real Fluid's interpreter from the project's root:  python -m tests.oracle.faster_rcnn
"""

import json
import os

import paddle.fluid as fluid

from tests.parity.faster_rcnn import train

if __name__ == "__main__":
    found = train(fluid)
    print(found["losses"], found["lods"])
    path = os.path.join(os.path.dirname(__file__), "..", "golden", "faster_rcnn.json")
    with open(path, "w") as f:
        lines = ["%s: %s" % (json.dumps(k), json.dumps(v)) for k, v in found.items()]
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
